"""k-median: the sum of distances (not squared) to the nearest centre, and coresets for it.

Problems may be stacked: X is (..., n, m), weights (..., n) and centres C (..., k, m).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.segments import Int64, by_size
from dpfedc.privacy.sampling import site_of_row
from dpfedc.research.kernels.candidate_draws import squared_gaps
from dpfedc.research.kernels.local_clustering import SiteBlock

Float = npt.NDArray[np.float64]


def nearest_medians(X: Array, C: Array) -> tuple[Array, Array]:
    """Return the distance to the nearest centre, and that centre's number."""
    xp, gaps = array_namespace(X, C), squared_gaps(X, C)
    return xp.sqrt(xp.min(gaps, axis=-1)), xp.argmin(gaps, axis=-1)


def kmedian_seeds(X: Array, weights: Array, coins: Array) -> Array:
    """Return k rows of each problem (s x k x m), chosen one after another by greedy k-median++.

    The first is drawn in proportion to the weights. Each later one is the best of several drawn in
    proportion to weight times distance to the rows chosen so far: the one that lowers the cost
    most. `coins` (s x k x trials) are numbers in [0, 1). Rows of weight 0 are never drawn, unless
    all of a problem's weights are 0. A problem with fewer distinct rows repeats some.
    """
    xp = array_namespace(X, weights)
    (s, n, m), k = X.shape, coins.shape[1]
    rows = xp.reshape(X, (s * n, m))
    first = n * xp.arange(s, dtype=xp.int64, device=device(X))[:, None]
    distances, seeds = xp.ones_like(weights), []
    for cluster in range(k):
        trials = coins[:, cluster, :] if cluster else coins[:, cluster, :1]
        drawn = first + _drawn(weights * distances, weights, trials)
        candidates = xp.reshape(xp.take(rows, xp.reshape(drawn, (-1,)), axis=0), (s, -1, m))
        gaps = xp.sqrt(squared_gaps(X, candidates))
        gaps = xp.minimum(gaps, distances[:, :, None]) if cluster else gaps
        best = _first_least(xp.sum(weights[:, :, None] * gaps, axis=1))
        chosen = best[:, None] == xp.arange(gaps.shape[2], dtype=best.dtype, device=device(X))
        distances = xp.sum(xp.where(chosen[:, None, :], gaps, xp.zeros_like(gaps)), axis=2)
        picked = xp.where(chosen[:, :, None], candidates, xp.zeros_like(candidates))
        seeds.append(xp.sum(picked, axis=1, keepdims=True))
    return xp.concat(seeds, axis=1)


def _first_least(costs: Array) -> Array:
    """Return the first least entry of each row; what differs by rounding is taken for equal.

    Equal costs are common (any two rows leave the same third), and padding rounds differently.
    """
    xp = array_namespace(costs)
    margin = 1 + float(xp.finfo(costs.dtype).eps) ** 0.5
    least = xp.min(costs, axis=1, keepdims=True) * margin
    return xp.argmax(xp.astype(costs <= least, xp.int32), axis=1)


def _drawn(scores: Array, weights: Array, coins: Array) -> Array:
    """Return positions (s x trials) in each row of scores, drawn in proportion to them.

    If all scores of a row are 0, in proportion to the weights.
    """
    xp = array_namespace(scores)
    scores = xp.where(xp.sum(scores, axis=1, keepdims=True) > 0, scores, weights)
    cumulative = xp.cumulative_sum(scores, axis=1)
    # In single precision a number in [0, 1) may round to 1.
    target = coins * cumulative[:, -1:] * (1 - 4 * float(xp.finfo(scores.dtype).eps))
    above = xp.astype(cumulative[:, :, None] > target[:, None, :], xp.int32)
    return xp.astype(xp.argmax(above, axis=1), xp.int64)


def weiszfeld_step(X: Array, weights: Array, C: Array) -> Array:
    """Return the centres after one step of each towards the median of its own records.

        c <- c + (1 - eta / |R|)^+ R / sum_j (w_j / d_j),   R = sum_j (w_j / d_j) (x_j - c)

    Sums are over the records nearest to c with d_j = |x_j - c| > 0; eta is the weight of those that
    lie at c. This is Weiszfeld's step as Vardi and Zhang (2000) amended it: it leaves a record that
    is not the median, and never raises the sum of weighted distances. An empty cluster's centre
    stays.
    """
    xp = array_namespace(X, weights, C)
    distances, labels = nearest_medians(X, C)
    columns = xp.arange(C.shape[-2], dtype=labels.dtype, device=device(labels))
    members = xp.astype(labels[..., None] == columns, X.dtype)
    here = distances == 0
    pull = xp.where(here, 0.0, weights / xp.where(here, 1.0, distances))
    held = xp.sum(members * xp.where(here, weights, 0.0)[..., None], axis=-2)
    pulls = members * pull[..., None]
    total = xp.sum(pulls, axis=-2)
    R = xp.matmul(xp.matrix_transpose(pulls), X) - total[..., None] * C
    length = xp.sqrt(xp.sum(R * R, axis=-1))
    share = xp.clip(1 - held / xp.where(length > 0, length, 1.0), min=0)
    return C + xp.where(total > 0, share / xp.where(total > 0, total, 1.0), 0.0)[..., None] * R


def kmedian_centers(X: Array, weights: Array, coins: Array, steps: int) -> Array:
    """Return the centres (s x k x m) after k-median++ and `steps` alternating steps."""
    return stepped_medians(X, weights, kmedian_seeds(X, weights, coins), steps)


def stepped_medians(X: Array, weights: Array, C: Array, steps: int) -> Array:
    """Return the centres after `steps` steps: records go to the nearest, each takes one step."""
    for _ in range(steps):
        C = weiszfeld_step(X, weights, C)
    return C


def site_kmedians(
    X: Array, offsets: Int64, coins: Float, steps: int, present: Array | None = None
) -> tuple[Array, Float, npt.NDArray[np.int64]]:
    """Return every site's own k medians (sites x k x m), and each record's distance and median.

    Null records have distance 0, and no say. `coins` is sites x k x trials. No loop over sites:
    those of similar size are solved as one stack.
    """
    xp, found = array_namespace(X), []
    drawn = xp.asarray(coins, dtype=X.dtype, device=device(X))

    def solved(rows: Array, real: Array) -> Array:
        block = SiteBlock.of(X, rows, real, offsets, present)
        weights = xp.astype(block.used, X.dtype)
        chosen = xp.take(drawn, block.sites, axis=0)
        C = kmedian_centers(block.records, weights, chosen, steps)
        distances, labels = nearest_medians(block.records, C)
        # By record, whatever the padding; put in the order of the records below.
        is_real = on_host(real) > 0
        found.append([on_host(a)[is_real] for a in (rows, distances * weights, labels)])
        return C + block.origin

    C = by_size(solved, X, offsets)
    rows, distances, labels = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(rows)
    return C, distances[order], labels[order].astype(np.int64)


def coreset_shares(costs: Float, size: int, coin: float) -> Int64:
    """Return whole numbers t_i that sum to `size`, with mean size * cost_i / total over the coin.

    t_i = floor(s_i + coin) - floor(s_{i-1} + coin), s_i the shares of sites 1 to i: within 1 of its
    mean. No cost, no shares.

    >>> coreset_shares(np.array([1.0, 2.0, 1.0]), 6, 0.25).tolist()
    [1, 3, 2]
    """
    total = float(costs.sum())
    if not total > 0:
        return np.zeros(len(costs), dtype=np.int64)
    reached = np.concatenate([[0.0], np.cumsum(costs)]) * (size / total)
    reached[-1] = size
    return np.asarray(np.diff(np.floor(reached + coin)), dtype=np.int64)


def coreset_draws(distances: Float, offsets: Int64, shares: Int64, coins: Float) -> Int64:
    """Return the rows drawn, site after site: share_i of site i in proportion to distance.

    `coins` holds one number in [0, 1) per draw. Draws are with replacement, by each site's own
    cumulative distances. A row at distance 0 is drawn only at a site that has no other.
    """
    cumulative = np.concatenate([[0.0], np.cumsum(distances)])
    low, high = cumulative[offsets[:-1]], cumulative[offsets[1:]]
    # The last row of a site that has a distance: rounding must not carry a draw past it.
    last = np.maximum(np.searchsorted(cumulative, high, side="left") - 1, offsets[:-1])
    site = np.repeat(np.arange(len(shares)), shares)
    target = low[site] + coins * (high - low)[site]
    rows = np.searchsorted(cumulative, target, side="right") - 1
    return np.asarray(np.minimum(rows, last[site]))


def coreset_weights(
    distances: Float,
    labels: npt.NDArray[np.int64],
    counted: npt.NDArray[Any],
    offsets: Int64,
    rows: Int64,
    *,
    n_clusters: int,
    cost_per_draw: float,
) -> tuple[Float, Float]:
    """Return the weights of the draws and of the sites' medians (sites x k).

    A draw q weighs w_q = (total cost / size) / distance_q. A median b weighs |P_b| minus the
    weights of the draws in P_b, the records nearest to it; this may be negative. A site's weights
    sum to the number of its records, and the coreset's cost of any centres has the right mean.
    A draw at distance 0 (a site without cost) weighs 0.
    """
    site, n_sites = site_of_row(offsets), len(offsets) - 1
    cell, n_cells = site * n_clusters + labels, n_sites * n_clusters
    gap = distances[rows]
    weights = np.divide(cost_per_draw, gap, out=np.zeros(len(rows)), where=gap > 0)
    records = np.bincount(cell, weights=counted, minlength=n_cells)
    left = records - np.bincount(cell[rows], weights=weights, minlength=n_cells)
    return weights, np.asarray(left.reshape(n_sites, n_clusters), dtype=np.float64)
