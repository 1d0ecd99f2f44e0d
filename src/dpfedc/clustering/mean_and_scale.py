"""The stages that find where the middle of the records lies, and how far they are from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from dpfedc.clustering.bound import WHAT_TO_DECLARE, moved_mean_entry, origin_entry
from dpfedc.clustering.stage import (
    SLACK,
    Entry,
    Form,
    Known,
    Public,
    SiteBatch,
    Stage,
    State,
    broadcast,
)
from dpfedc.clustering.standardize import distances, distances_memory
from dpfedc.kernels import Array
from dpfedc.kernels.row_views import Columns, Standardized, is_far
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

MIN_SCALE = 2.0**-10
"""The scale is at least this part of the bound, so that noise cannot make it vanish."""


def mean_entry(n_features: int) -> Entry:
    """Return the entry of the records' mean, which is no farther from the origin than the bound."""

    def within(mean: Array, state: State) -> bool:
        away = np.linalg.norm((mean - state["origin"]) / state["bound"])
        return float(away) <= SLACK

    return Entry((n_features,), within, needs=("origin", "bound"))


def longest(state: State) -> Array | float:
    """Return the longest distance from the mean that counts: the radius, if it is known."""
    return state.get("radius", state.get("bound", math.inf))


def scale_entry(factor: float) -> Entry:
    """Return the entry of the scale, a public part of the longest distance at least and at most."""

    def within(scale: Array, state: State) -> bool:
        ratio = float(scale / longest(state))
        return MIN_SCALE / SLACK <= ratio <= factor * SLACK

    return Entry((), within, needs=("bound", "radius"))


@dataclass(frozen=True)
class Mean(Stage):
    """Release the sum of the records; the state's `data_mean` becomes their mean.

    Records are clipped to the state's `bound` around the point `around`: that is the sensitivity.
    Without a bound nothing is clipped. Around the mean of an earlier pass records may turn out to
    be far shorter than around the origin, and the next mean far better.
    """

    around: str = "origin"
    name: str = "mean"
    n_rounds = 1
    purpose = "where the middle of all records lies"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return around which point records are clipped, and to which length."""
        return (self.around, "bound")

    def starts(self, known: Known, n_features: int) -> Known:
        return {self.around: known.get(self.around, origin_entry(n_features))}

    def makes(self, known: Known, n_features: int) -> Known:
        entry = mean_entry if self.around == "origin" else moved_mean_entry
        return {"data_mean": entry(n_features)}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((n_features,))

    def sensitivity(self, state: State, t: int) -> float:
        """Return the bound."""
        return float(state.get("bound", math.inf))

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return {self.around: public.asarray(np.zeros(public.n_features)), **state}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return distances_memory(batch, broadcast(state, self.around))

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp, origin = array_namespace(batch.X), broadcast(state, self.around)
        norms = distances(batch, origin)
        ones = xp.ones_like(norms)
        far = is_far(origin, state.get("bound"))
        records = Standardized(batch.X, origin, ones, norms**2, 0.0, far=far)
        return OuterSum(ones[:, None], records, norms, shape=(int(batch.X.shape[1]),))

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the mean, no farther from that point than the bound.

        A mean of clipped records cannot be farther; noise can.
        """
        xp = array_namespace(released.value)
        mean = released.value / released.n_records
        if "bound" in state:
            length = xp.sqrt(xp.sum(mean**2))
            mean = mean * (state["bound"] / xp.maximum(length, state["bound"]))
        return {**state, "data_mean": state[self.around] + mean}


@dataclass(frozen=True)
class Scale(Stage):
    """Release the sum of |x_j - mean|; the state's `scale` becomes `factor` times its mean.

    Distances are clipped to the `radius`, or the `bound`: that is the sensitivity. Records farther
    out than the scale are clipped to it later, so the factor is a little over one, and the scale
    not below the state's `reach`, if it has one.
    """

    factor: float = 1.3
    name = "scale"
    n_rounds = 1
    purpose = "how far records are from that middle"
    reads = ("data_mean", "bound", "radius")

    def starts(self, known: Known, n_features: int) -> Known:
        return {"data_mean": known.get("data_mean", mean_entry(n_features))}

    def makes(self, known: Known, n_features: int) -> Known:
        return {"scale": scale_entry(self.factor)}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form(())

    def sensitivity(self, state: State, t: int) -> float:
        """Return the longest distance that counts."""
        return float(longest(state))

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        origin = state.get("origin", public.asarray(np.zeros(public.n_features)))
        return {"data_mean": origin, **state}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return distances_memory(batch, broadcast(state, "data_mean"))

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        norms = distances(batch, broadcast(state, "data_mean"))
        finite = xp.where(xp.isfinite(norms), norms, xp.zeros_like(norms))
        return OuterSum(xp.ones_like(norms)[:, None], Columns.of(finite), norms, shape=())

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        scale = self.factor * released.value / released.n_records
        least = float(xp.finfo(released.value.dtype).smallest_normal) ** 0.5
        bound = float(longest(state))
        if math.isinf(bound):
            return {**state, "scale": xp.clip(scale, min=least)}
        least = max(MIN_SCALE * bound, float(state.get("reach", 0.0)))
        return {**state, "scale": xp.clip(scale, min=least, max=self.factor * bound)}

    def doubts(self, state: State) -> tuple[str, ...]:
        least = MIN_SCALE * float(longest(state))
        if math.isinf(least) or float(state["scale"]) > least * SLACK:
            return ()
        return (
            "the scale of the records is at its floor: they spread far less than the bound on "
            f"their length, or noise has swamped it. {WHAT_TO_DECLARE}",
        )
