"""k-means at every site on its own records: k-means++ seeding and Lloyd's algorithm.

Sites are ragged; `segments.by_size` pads those of similar size into one block (sites x width x
features), so there is no loop over sites. Within a block each site's own mean is the origin:
|x|^2 - 2 x.c + |c|^2 then loses no more digits than the site's spread demands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.kernels import Array
from dpfedc.kernels.segments import Int64, by_size
from dpfedc.privacy.sampling import site_of_row

Draws = npt.NDArray[np.float64]
"""Numbers in [0, 1) that decide the seeding: (..., sites, clusters, trials)."""


def n_seeding_trials(n_clusters: int) -> int:
    """Return how many candidates a seeding step compares: 2 + floor(ln k), as scikit-learn does."""
    return 2 + int(np.log(n_clusters))


@dataclass(frozen=True)
class SiteBlock:
    """Sites of similar size, padded: records (s x w x m) with each site's mean as their origin.

    Rows that are padding or null are zero and not `used`. `sites` are positions in the batch.
    """

    records: Array
    used: Array
    squared_norms: Array
    origin: Array
    sites: Array

    @classmethod
    def of(
        cls, X: Array, rows: Array, real: Array, offsets: Int64, present: Array | None
    ) -> SiteBlock:
        """Return the block of the given rows, as `segments.padded_rows` numbers them."""
        xp, flat = array_namespace(X), array_namespace(X).reshape(rows, (-1,))
        used = real
        if present is not None:
            used = used & xp.reshape(xp.take(present, flat), rows.shape)
        records = xp.reshape(xp.take(X, flat, axis=0), (*rows.shape, X.shape[1]))
        mask, zeros = used[:, :, None], xp.zeros_like(records)
        n = xp.sum(xp.astype(used, X.dtype), axis=1)[:, None, None]
        total = xp.sum(xp.where(mask, records, zeros), axis=1, keepdims=True)
        origin = total / xp.clip(n, min=1.0)
        records = xp.where(mask, records - origin, zeros)
        position = xp.asarray(site_of_row(offsets), device=device(X))
        squares = xp.sum(records**2, axis=2)
        return cls(records, used, squares, origin, xp.take(position, rows[:, 0]))

    def squared_distances(self, centers: Array) -> Array:
        """Return |x - c_l|^2 (s x w x k) to each site's centres (s x k x m), never below zero."""
        xp = array_namespace(centers)
        products = xp.matmul(self.records, xp.matrix_transpose(centers))
        lengths = xp.sum(centers**2, axis=2)[:, None, :]
        return xp.clip(self.squared_norms[:, :, None] - 2 * products + lengths, min=0)

    def weighted_means(self, weights: Array, fallback: Array) -> Array:
        """Return sum_j w_jl x_j / sum_j w_jl (s x k x m) over used rows; without weight: fallback.

        `weights` is s x w x k.
        """
        xp = array_namespace(weights)
        weights = xp.where(self.used[:, :, None], weights, xp.zeros_like(weights))
        totals = xp.sum(weights, axis=1)[:, :, None]
        sums = xp.matmul(xp.matrix_transpose(weights), self.records)
        return xp.where(totals > 0, sums / xp.where(totals > 0, totals, 1.0), fallback)


def seeded_centers(X: Array, offsets: Int64, draws: Draws, present: Array | None = None) -> Array:
    """Return k records of every site (sites x k x m), seeded by greedy k-means++.

    The first is drawn uniformly. Each later one is the best of several drawn with probability in
    proportion to the squared distance to those chosen: the one that lowers the sum of these most
    (Arthur and Vassilvitskii 2007). A site with fewer distinct records repeats some.
    `draws` (sites x k x trials) are numbers in [0, 1), which this turns into records.
    """

    def seeded(rows: Array, real: Array) -> Array:
        block = SiteBlock.of(X, rows, real, offsets, present)
        return _seeded(block, _of_sites(draws, block)) + block.origin

    return by_size(seeded, X, offsets)


def kmeans_centers(
    X: Array, offsets: Int64, draws: Draws, steps: int, present: Array | None = None
) -> Array:
    """Return the k centres of every site and, in a last column, their counts (sites x k x (m+1)).

    Lloyd's algorithm for at most `steps` steps, from several seedings: `draws` is
    starts x sites x k x trials. Each site keeps its centres of least cost. An empty cluster's
    centre stays where it was.
    """

    def clustered(rows: Array, real: Array) -> Array:
        xp = array_namespace(X)
        block = SiteBlock.of(X, rows, real, offsets, present)
        shape, like = (rows.shape[0], draws.shape[2], X.shape[1] + 1), _like(X)
        best, least = xp.zeros(shape, **like), xp.full(rows.shape[0], xp.inf, **like)
        for start in draws:
            centers = _lloyd(block, _seeded(block, _of_sites(start, block)), steps)
            counts, cost = _counts_and_cost(block, centers)
            found = xp.concat([centers + block.origin, counts[:, :, None]], axis=2)
            best = xp.where((cost < least)[:, None, None], found, best)
            least = xp.minimum(cost, least)
        return best

    return by_size(clustered, X, offsets)


def _of_sites(draws: Draws, block: SiteBlock) -> Array:
    """Return the draws of the block's sites, in the precision of its records."""
    xp = array_namespace(block.records)
    return xp.take(xp.asarray(draws, **_like(block.records)), block.sites, axis=0)


def _like(array: Array) -> dict[str, Any]:
    return {"dtype": array.dtype, "device": device(array)}


def _rows_of(values: Array, index: Array) -> Array:
    """Return values[i, index[i, c]] for every site i and c: (s x c x ...) from (s x w x ...)."""
    xp = array_namespace(values, index)
    s, w = values.shape[:2]
    first = w * xp.arange(s, dtype=index.dtype, device=device(values))[:, None]
    flat = xp.take(
        xp.reshape(values, (s * w, *values.shape[2:])), xp.reshape(first + index, (-1,)), axis=0
    )
    return xp.reshape(flat, (*index.shape, *values.shape[2:]))


def _drawn(weights: Array, draws: Array) -> Array:
    """Return row numbers (s x c) drawn in proportion to weights (s x w); row 0 if all are 0.

    Row j is drawn if cumulative_{j-1} <= target < cumulative_j, so never one of weight 0.
    """
    xp = array_namespace(weights)
    cumulative = xp.cumulative_sum(weights, axis=1)
    total = cumulative[:, -1:]
    # In single precision a number in [0, 1) may round to 1.
    target = draws * total * (1 - 4 * float(xp.finfo(weights.dtype).eps))
    below = xp.astype(cumulative[:, :, None] <= target[:, None, :], xp.int64)
    index = xp.sum(below, axis=1)
    return xp.where(total > 0, index, xp.zeros_like(index))


def _seeded(block: SiteBlock, draws: Array) -> Array:
    """Return k records of each site, in the block's coordinates."""
    xp, used = array_namespace(draws), block.used[:, :, None]
    closest = xp.astype(block.used, draws.dtype)
    chosen = []
    for cluster in range(draws.shape[1]):
        trials = draws[:, cluster, :] if cluster else draws[:, cluster, :1]
        candidates = _rows_of(block.records, _drawn(closest, trials))
        distances = block.squared_distances(candidates)
        if cluster:
            distances = xp.minimum(distances, closest[:, :, None])
        distances = xp.where(used, distances, xp.zeros_like(distances))
        best = xp.argmin(xp.sum(distances, axis=1), axis=1)[:, None]
        chosen.append(_rows_of(candidates, best))
        closest = _rows_of(xp.matrix_transpose(distances), best)[:, 0, :]
    return xp.concat(chosen, axis=1)


def _members(block: SiteBlock, labels: Array, n_clusters: int) -> Array:
    xp, on = array_namespace(labels), device(labels)
    columns = xp.arange(n_clusters, dtype=labels.dtype, device=on)
    return xp.astype(labels[:, :, None] == columns, block.records.dtype)


def _lloyd(block: SiteBlock, centers: Array, steps: int) -> Array:
    """Return the centres after `steps` steps, or once no record changes its cluster."""
    xp, labels = array_namespace(centers), None
    for _ in range(steps):
        nearest = xp.argmin(block.squared_distances(centers), axis=2)
        if labels is not None and bool(xp.all(nearest == labels)):
            break
        labels = nearest
        centers = block.weighted_means(_members(block, labels, centers.shape[1]), centers)
    return centers


def _counts_and_cost(block: SiteBlock, centers: Array) -> tuple[Array, Array]:
    """Return how many records are nearest to each centre, and their squared distances' sum."""
    xp, distances = array_namespace(centers), block.squared_distances(centers)
    members = _members(block, xp.argmin(distances, axis=2), centers.shape[1])
    members = xp.where(block.used[:, :, None], members, xp.zeros_like(members))
    least = xp.min(distances, axis=2)
    cost = xp.sum(xp.where(block.used, least, xp.zeros_like(least)), axis=1)
    return xp.sum(members, axis=1), cost
