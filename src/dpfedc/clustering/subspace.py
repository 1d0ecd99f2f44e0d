"""The stage that finds the directions in which records differ most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.mean_and_scale import mean_entry, scale_entry
from dpfedc.clustering.stage import (
    Entry,
    Form,
    Known,
    Public,
    SiteBatch,
    Stage,
    State,
    at_most,
)
from dpfedc.clustering.standardize import (
    VIEW,
    standardized_memory,
    standardized_view,
    with_mean_and_scale,
)
from dpfedc.kernels import Array
from dpfedc.kernels.column_view import SPREAD
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

Float = npt.NDArray[Any]

MIN_VARIANCE = 1e-6
"""Of a record of length one, along a direction."""
NOISE_EDGE, MIN_DIRECTIONS = 1.0, 2
"""A direction is kept if its variance is above so much of what noise alone would show."""
ONE_COLUMN, MANY_COLUMNS = 0.9, 3
"""One of so many columns that takes such a part of the records' length is worth a word."""


def in_all_features(centers: Float, state: State) -> Float:
    """Return centres with all features, also those that lie in the state's subspace."""
    if "basis" not in state or centers.shape[1] == state["basis"].shape[1]:
        return centers
    return np.asarray(centers @ on_host(state["basis"]))


@dataclass(frozen=True)
class Subspace(Stage):
    """Release the sum of x~ x~'; the state's `basis` becomes its leading eigenvectors.

    All later stages work in that subspace, where there is less room for noise. |x~ x~'| <= 1. With
    `drops_noise` directions that noise may have made are zero. `variances` are what the records
    have along each direction, `outside` what they have along none, and `column_parts` along each
    feature.
    """

    n_dimensions: int
    drops_noise: bool = False
    name = "subspace"
    n_rounds = 1
    reads = VIEW

    @property
    def purpose(self) -> str:  # type: ignore[override]
        """Return what is found out."""
        return f"the {self.n_dimensions} directions in which records differ most"

    def starts(self, known: Known, n_features: int) -> Known:
        return {"data_mean": mean_entry(n_features), "scale": scale_entry(1.0), **known}

    def makes(self, known: Known, n_features: int) -> Known:
        return {"basis": Entry((self.n_dimensions, n_features), at_most(1.0))}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((n_features, n_features), symmetric=True)

    def sensitivity(self, state: State, t: int) -> float:
        """Return 1: |x~| <= 1."""
        return 1.0

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return with_mean_and_scale(state, public)

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return standardized_memory(batch, state, 0.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        view = standardized_view(batch, state, 0.0)
        return OuterSum(view, view, view.squared_norms, symmetric=True)

    def combine(self, state: State, released: Released, t: int) -> State:
        moment, n = on_host(released.value).astype(np.float64), released.n_records
        values, vectors = np.linalg.eigh(moment)
        basis = vectors[:, : -self.n_dimensions - 1 : -1].T.copy()
        variances = np.maximum(values[: -self.n_dimensions - 1 : -1] / n, MIN_VARIANCE)
        if self.drops_noise:
            # The largest eigenvalue of noise alone is about sqrt(2 m) times its size.
            edge = NOISE_EDGE * released.event.noise_std * math.sqrt(2 * len(moment)) / n
            weak = variances <= edge
            weak[:MIN_DIRECTIONS] = False
            basis[weak], variances[weak] = 0.0, 0.0
        parts = np.clip(np.diag(moment), 0.0, None)
        found = {
            "basis": basis,
            "variances": variances,
            "outside": np.asarray(max(float(np.trace(moment)) / n - float(variances.sum()), 0.0)),
            "column_parts": parts / max(float(parts.sum()), MIN_VARIANCE),
        }
        xp, on = array_namespace(released.value), device(released.value)
        like = {"dtype": released.value.dtype, "device": on}
        return {**state, **{name: xp.asarray(v, **like) for name, v in found.items()}}

    def doubts(self, state: State) -> tuple[str, ...]:
        parts = on_host(state["column_parts"])
        largest = int(np.argmax(parts))
        if len(parts) < MANY_COLUMNS or parts[largest] < ONE_COLUMN or SPREAD[0] in state:
            return ()
        return (
            f"column {largest} (counted from 0) takes {parts[largest]:.0%} of the length of the "
            "records, so it decides alone which records are alike. If that is a matter of units, "
            "scale the columns by what is known of them, describe them in a schema, or ask for "
            "scale='columns' (--scale-columns): each of them brings columns to like spread",
        )
