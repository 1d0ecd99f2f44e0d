"""More cells than clusters, then free work at the server: a start that no bad luck spoils.

The stage `subspace` has told how records spread. From that the server draws points as far apart as
records are, and `Cells` moves them to the records near them. From sums and counts of the cells the
server finds k centres by weighted k-means, with as many starts as it likes: that is arithmetic on
released values, and costs no privacy. The stage `refine` or `centres` goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.residual_lloyd import (
    CENTER_MAX,
    MIN_RESIDUAL,
    ClusterSums,
    ResidualSums,
    residual_bounds,
)
from dpfedc.clustering.stage import Public, State
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.gate import Released
from dpfedc.randomness import Randomness

Float = npt.NDArray[Any]

MAX_STARTS, STARTS_TIMES_CLUSTERS = 32, 640
"""So many starts of the merging, and fewer where there are many clusters, to be done in seconds."""
DRAWS_PER_CELL, MIN_DRAWS, MAX_DISTANCES = 20, 400, 2**23
"""Points that the first cells are made to stand for, and distances between both that fit into the
memory."""
MAX_CELLS = 2000
LLOYD_STEPS = 15
FIRST_RESIDUAL = 1.0
"""What residuals of the first cells are clipped to, of which nothing is known."""
SPLIT_REACH = 0.7
"""How far apart the halves of a split cell begin, in its standard deviations."""


@dataclass(frozen=True)
class Cells(ResidualSums):
    """Release the sums of a `ResidualSums` for more cells than there are clusters."""

    weighed: bool = False
    """Whether cells count less in the end where noise has moved them far."""
    name: str = "cells"

    @property
    def purpose(self) -> str:  # type: ignore[override]
        """Return what is found out."""
        return f"sums and counts of {self.n_clusters} cells, from which centres are made"

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        rng, variances = randomness.generator("cells"), on_host(state["variances"])
        n_draws = min(DRAWS_PER_CELL * self.n_clusters, MAX_DISTANCES // self.n_clusters)
        n_draws = max(n_draws, MIN_DRAWS, self.n_clusters)
        points = rng.standard_normal((n_draws, len(variances))) * np.sqrt(variances)
        first = rng.choice(n_draws, self.n_clusters, replace=False)
        cells = _lloyd(points, points[first])
        directions = rng.standard_normal((self.n_rounds, *cells.shape)) * np.sqrt(variances)
        if self.plain:
            basis = on_host(state["basis"])
            cells, directions = cells @ basis, directions @ basis
        cells = np.clip(cells, -CENTER_MAX, CENTER_MAX)
        lengths = np.linalg.norm(directions, axis=2, keepdims=True)
        return {
            **state,
            "centers": public.asarray(cells),
            "cell_weights": public.asarray(np.ones(self.n_clusters)),
            "mean_squares": public.asarray(np.full(len(cells), float(variances.sum()))),
            "residual_bounds": public.asarray(np.full(len(cells), FIRST_RESIDUAL)),
            "directions": public.asarray(directions / np.maximum(lengths, 1e-300)),
        }

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        found = ClusterSums.of(released, state, plain=self.plain)
        cells, filled = on_host(state["centers"]) + found.steps, found.filled
        weights = np.where(filled, found.counts, 0.0)
        squares = np.full(len(cells), found.pooled_square)  # cells are alike, and hold few records
        if t < self.n_rounds:
            directions = on_host(state["directions"])[t - 1]
            cells, weights = _split(cells, weights, found.spread, directions)
        elif self.weighed:
            weights = weights * _certainty(found)
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        told = {
            "centers": np.clip(cells, -CENTER_MAX, CENTER_MAX),
            "cell_weights": weights,
            "mean_squares": squares,
            "residual_bounds": residual_bounds(squares),
        }
        return {**state, **{name: xp.asarray(v, **like) for name, v in told.items()}}


def _certainty(found: ClusterSums) -> Float:
    """Return how much to trust each mean, from 0 to 1: 1/2 if noise moved it as far as records lie.

    Noise takes means of few records far out, where they would be taken for clusters of their own.
    """
    within = max(found.within, MIN_RESIDUAL**2)  # records may be a few values, and lie nowhere else
    return np.asarray(within / (within + found.n_noisy * found.step_noise**2))


def _lloyd(points: Float, centers: Float) -> Float:
    """Return where Lloyd's algorithm takes the centres in a few steps."""
    from dpfedc.kernels.weighted_kmeans import lloyd_steps  # no site needs it

    return lloyd_steps(points, np.ones(len(points)), centers, LLOYD_STEPS)


def _split(cells: Float, weights: Float, spread: Float, directions: Float) -> tuple[Float, Float]:
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


def merged(state: State, n_clusters: int, randomness: Randomness) -> dict[str, Float]:
    """Return `n_clusters` centres that stand for the state's cells, and the spread around them."""
    from dpfedc.kernels.weighted_kmeans import best_of, clusterings  # no site needs it

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
