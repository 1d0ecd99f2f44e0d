"""More cells than clusters, then free work at the server: a start that no bad luck spoils.

The stage `subspace` has told how records spread. From that the server draws points as far apart as
records are, and `Cells` moves them to the records near them. From sums and counts of the cells the
server finds k centres by weighted k-means, from many starts (`merged_cells.py`): that is arithmetic
on released values, and costs no privacy. The stage `refine` or `centres` goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.residual_lloyd import (
    CENTER_MAX,
    ClusterSums,
    ResidualSums,
    residual_bounds,
)
from dpfedc.clustering.stage import Public, State
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.gate import Released
from dpfedc.randomness import Randomness

Float = npt.NDArray[Any]

DRAWS_PER_CELL, MIN_DRAWS, MAX_DISTANCES = 20, 400, 2**23
"""Points that the first cells are made to stand for, and distances between both that fit into the
memory."""
MAX_CELLS = 2000
LLOYD_STEPS = 15
FIRST_RESIDUAL = 1.0
"""What residuals of the first cells are clipped to, of which nothing is known."""


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
        from dpfedc.clustering.merged_cells import certainty, split  # no site needs them

        xp = array_namespace(released.value)
        found = ClusterSums.of(released, state, plain=self.plain)
        cells, filled = on_host(state["centers"]) + found.steps, found.filled
        weights = np.where(filled, found.counts, 0.0)
        squares = np.full(len(cells), found.pooled_square)  # cells are alike, and hold few records
        if t < self.n_rounds:
            directions = on_host(state["directions"])[t - 1]
            cells, weights = split(cells, weights, found.spread, directions)
        elif self.weighed:
            weights = weights * certainty(found)
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        told = {
            "centers": np.clip(cells, -CENTER_MAX, CENTER_MAX),
            "cell_weights": weights,
            "mean_squares": squares,
            "residual_bounds": residual_bounds(squares),
        }
        return {**state, **{name: xp.asarray(v, **like) for name, v in told.items()}}


def _lloyd(points: Float, centers: Float) -> Float:
    """Return where Lloyd's algorithm takes the centres in a few steps."""
    from dpfedc.kernels.weighted_kmeans import lloyd_steps  # no site needs it

    return lloyd_steps(points, np.ones(len(points)), centers, LLOYD_STEPS)
