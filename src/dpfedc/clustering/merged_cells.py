"""What the server makes of cells: wide ones are split, faint ones doubted, and all are merged.

Arithmetic on released values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.residual_lloyd import MIN_RESIDUAL, ClusterSums, residual_bounds
from dpfedc.clustering.stage import State
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.weighted_kmeans import best_of, clusterings
from dpfedc.randomness import Randomness

Float = npt.NDArray[Any]

MAX_STARTS, STARTS_TIMES_CLUSTERS = 32, 640
"""So many starts of the merging, and fewer where there are many clusters, to be done in seconds."""
SPLIT_REACH = 0.7
"""How far apart the halves of a split cell begin, in its standard deviations."""


def split(cells: Float, weights: Float, spread: Float, directions: Float) -> tuple[Float, Float]:
    """Return cells and weights with empty ones moved to where they take half of a wide one each."""
    cells, weights, spread = cells.copy(), weights.copy(), spread.copy()
    # A half has as much less of the spread along its direction as half of a normal law has.
    left = (1 - 2 / np.pi / cells.shape[1]) / 2
    for empty in np.flatnonzero(weights == 0):
        wide = int(np.argmax(spread))
        if spread[wide] <= 0:
            break
        reach = SPLIT_REACH * np.sqrt(spread[wide] / max(weights[wide], 1.0)) * directions[empty]
        cells[empty], cells[wide] = cells[wide] + reach, cells[wide] - reach
        half, whole = weights[wide] / 2, spread[wide]
        for part in (empty, wide):
            weights[part], spread[part] = half, left * whole
    return cells, weights


def certainty(found: ClusterSums) -> Float:
    """Return how much to trust each mean, from 0 to 1: 1/2 if noise moved it as far as records lie.

    Noise takes means of few records far out, where they would be taken for clusters of their own.
    """
    within = max(found.within, MIN_RESIDUAL**2)  # records may be a few values, and lie nowhere else
    return np.asarray(within / (within + found.n_noisy * found.step_noise**2))


def merged(state: State, n_clusters: int, randomness: Randomness) -> dict[str, Float]:
    """Return `n_clusters` centres that stand for the state's cells, and the spread around them."""
    cells, weights = on_host(state["centers"]), on_host(state["cell_weights"])
    used = weights > 0
    if used.sum() < n_clusters:  # noise has swamped them: all there are
        used, weights = np.ones(len(cells), dtype=bool), np.maximum(weights, 1.0)
    n_starts = min(max(STARTS_TIMES_CLUSTERS // n_clusters, 4), MAX_STARTS)
    rng = randomness.generator("merge")
    cells, weights = cells[used], weights[used]
    found = clusterings(cells, weights, n_clusters, n_starts, rng)
    best, stable = best_of(found, [one.cost for one in found], weights)
    within = float(on_host(state["mean_squares"]).mean()) + best.cost / float(weights.sum())
    squares = np.full(n_clusters, within)
    told = {"centers": best.centers, "mean_squares": squares, "stability": np.asarray(stable)}
    return {**told, "residual_bounds": residual_bounds(squares)}
