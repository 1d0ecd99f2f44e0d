"""Lloyd's rounds on residuals: how far records lie from their own centre, and to which side.

A record adds its residual r_j = x~_j - c_l, c_l the nearest centre, clipped to a length C that is
a few times the typical one. Noise is in proportion to C, and so to how wide clusters are, where
sums of the records themselves would have noise in proportion to how far apart they lie. A record
far from every centre is clipped towards its own centre, and not towards the middle of all.

`ResidualLloyd` starts from the cells of the stage `cells`, which the server merges to clusters, or
goes on from a `ResidualLloyd` before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.centers import COUNT_WEIGHT, doubtful_sizes
from dpfedc.clustering.stage import (
    SLACK,
    Entry,
    Form,
    Known,
    Public,
    SiteBatch,
    Stage,
    State,
    at_most,
    broadcast,
)
from dpfedc.clustering.standardize import (
    VIEW,
    standardized_memory,
    standardized_view,
    with_mean_and_scale,
)
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import mean_errors, one_hot, squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.objective import residual_norms
from dpfedc.kernels.row_views import Columns, Residuals, Scaled
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

Float = npt.NDArray[Any]

SENSITIVITY = math.sqrt(1 + 2 * COUNT_WEIGHT**2)
RESIDUAL_FACTOR = 3.0
"""Residuals are clipped to so many times their typical length."""
MIN_RESIDUAL, MAX_RESIDUAL = 1e-3, 1.0
"""Of what residuals are clipped to, in lengths of the longest record."""
CENTER_MAX = 2.0
"""A site refuses larger centres: distances to them would lose precision."""
HIDDEN = 2.0
"""Standard deviations of noise that may have made a mean square look smaller than it is."""
MIN_COUNT = 2.0
"""A centre is moved if its count is at least so many standard deviations of the noise."""
USUAL_CLUSTERS = 64
"""A round with more of them is worked through in smaller parts."""


@dataclass(frozen=True)
class ClusterSums:
    """What a round says of each cluster: counts, and sums of residuals and of their squares."""

    sums: Float
    counts: Float
    squares: Float
    noise_std: float
    """Of sums over the bound and, over the weight of counts, of counts."""
    bound: float

    @classmethod
    def of(cls, released: Released, state: State, *, plain: bool) -> ClusterSums:
        """Return a released value in the units of the standardised records.

        Along directions that were dropped from a subspace there is nothing but noise.
        """
        value, a = on_host(released.value).astype(np.float64), COUNT_WEIGHT
        bound, sums = float(state["residual_bound"]), value[:, :-2]
        if not plain and "variances" in state:
            sums = np.where(on_host(state["variances"]) > 0, sums, 0.0)
        noise = released.event.noise_std
        return cls(bound * sums, value[:, -2] / a, bound**2 * value[:, -1] / a, noise, bound)

    @property
    def count_noise(self) -> float:
        """Return the noise of a count."""
        return self.noise_std / COUNT_WEIGHT

    @property
    def filled(self) -> npt.NDArray[np.bool_]:
        """Return which clusters stand out from the noise."""
        return np.asarray(self.counts >= max(1.0, MIN_COUNT * self.count_noise))

    @property
    def steps(self) -> Float:
        """Return the mean residual of each cluster, zero where it is only noise."""
        filled = self.filled
        return np.where(filled[:, None], self.sums / np.where(filled, self.counts, 1)[:, None], 0)

    @property
    def spread(self) -> Float:
        """Return the sums of squared distances from the means, none below zero."""
        counts = np.where(self.filled, self.counts, 1)
        spread = self.squares - (self.sums**2).sum(axis=1) / counts
        return np.where(self.filled, np.maximum(spread, 0.0), 0.0)

    @property
    def within(self) -> float:
        """Return the mean squared distance from the means."""
        return float(self.spread.sum()) / self._n_records

    @property
    def next_bound(self) -> float:
        """Return what to clip residuals to from now on.

        Noise may make the mean square look smaller than it is, and a bound that is too small would
        cost more than one that is too large: what noise may have hidden is added.
        """
        noise = self.bound**2 * self.count_noise * math.sqrt(self.filled.sum()) / self._n_records
        return residual_bound(self.within + HIDDEN * noise)

    @property
    def _n_records(self) -> float:
        return max(float(self.counts[self.filled].sum()), 1.0)


def residual_bound(mean_square: float) -> float:
    """Return what to clip residuals to, from their mean square."""
    return min(max(RESIDUAL_FACTOR * math.sqrt(max(mean_square, 0)), MIN_RESIDUAL), MAX_RESIDUAL)


@dataclass(frozen=True)
class ResidualSums(Stage):
    """Release (r_j / C, a, a |r_j|^2 / C^2) summed by the nearest centre, |r_j| clipped to C.

    a is COUNT_WEIGHT. C is broadcast with the centres; what a record adds is no longer than
    sqrt(1 + 2 a^2) whatever C is. In the subspace where there is one, unless `plain` is set.
    """

    n_clusters: int
    n_rounds: int
    plain: bool = False
    """Whether all features count, also where there is a subspace."""
    name: str = "centres"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what a site's work depends on."""
        view = tuple(name for name in VIEW if name != "basis") if self.plain else VIEW
        return (*view, "centers", "residual_bound")

    def starts(self, known: Known, n_features: int) -> Known:
        centers = Entry((self.n_clusters, self._width(known, n_features)), at_most(CENTER_MAX))
        return {"centers": centers, "residual_bound": Entry((), _is_residual_bound)}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((self.n_clusters, self._width(known, n_features) + 2))

    def sensitivity(self, state: State, t: int) -> float:
        """Return sqrt(1 + 2 a^2): |r / C| <= 1."""
        return SENSITIVITY

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return standardized_memory(batch, self._seen(state), 0.0)

    def memory_factor(self, X: Array, state: State) -> float:
        return max(self.n_clusters / USUAL_CLUSTERS, 1.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        view = standardized_view(batch, self._seen(state), 0.0)
        centers = broadcast(state, "centers", most=CENTER_MAX * SLACK)
        bound = float(broadcast(state, "residual_bound", above=0, most=MAX_RESIDUAL * SLACK))
        products = view.products(centers)
        distances = squared_distances(products, view.squared_norms, centers)
        members = one_hot(xp.argmin(distances, axis=1), self.n_clusters, batch.X)
        lengths = residual_norms(view.squared_norms, products, members, centers @ centers.T)
        # A record whose numbers overflow is null: weight 0, and nothing that 0 would not cancel.
        known = xp.isfinite(lengths)
        factors = xp.where(known, -1 / xp.clip(lengths, min=bound), xp.zeros_like(lengths))
        parts = xp.where(known, xp.clip(lengths / bound, max=1.0), xp.zeros_like(lengths))
        a = COUNT_WEIGHT
        norms = xp.sqrt(parts**2 + a**2 + a**2 * parts**4)
        residuals = Scaled(Residuals(members, centers, view), factors)
        extra = a * xp.stack([xp.astype(known, parts.dtype), parts**2], axis=1)
        return OuterSum(members, Columns.of(residuals, extra), xp.where(known, norms, lengths))

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        """Return the objective: squared distances to the nearest centre, the mean over sites."""
        from dpfedc.kernels.segments import segment_sum

        xp, view = array_namespace(batch.X), standardized_view(batch, self._seen(state), 0.0)
        centers = state["centers"]
        distances = squared_distances(view.products(centers), view.squared_norms, centers)
        losses = segment_sum(xp.min(distances, axis=1), batch.offsets)
        return {"objective": float(xp.mean(losses))}

    def _seen(self, state: State) -> State:
        """Return the state with what the stage sees records through."""
        return {n: v for n, v in state.items() if not (self.plain and n == "basis")}

    def _width(self, known: Known | State, n_features: int) -> int:
        if self.plain or "basis" not in known:
            return n_features
        return int(known["basis"].shape[0])


def _is_residual_bound(value: npt.NDArray[Any], _: State) -> bool:
    return MIN_RESIDUAL / SLACK <= float(value) <= MAX_RESIDUAL * SLACK


@dataclass(frozen=True)
class ResidualLloyd(ResidualSums):
    """Move each centre by the mean residual of its records."""

    merges: bool = False
    """Whether the centres are to be made from cells."""

    @property
    def purpose(self) -> str:  # type: ignore[override]
        """Return what is found out."""
        return "centres moved to the means of their records"

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        state = with_mean_and_scale(state, public)
        if self.merges:
            from dpfedc.clustering.merged_cells import merged  # no site needs it

            state = {**state, **merged(state, self.n_clusters, randomness)}
        centers, within = on_host(state["centers"]), float(state["within"])
        if self.plain and "basis" in state:
            centers = centers @ on_host(state["basis"])
            within += float(state.get("outside", 0.0))
        bound = max(residual_bound(within), float(state["residual_bound"]))
        return {
            **state,
            "centers": public.asarray(np.clip(centers, -CENTER_MAX, CENTER_MAX)),
            "residual_bound": public.asarray(np.asarray(bound)),
            "within": public.asarray(np.asarray(within)),
        }

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        found = ClusterSums.of(released, state, plain=self.plain)
        means = np.clip(on_host(state["centers"]) + found.steps, -CENTER_MAX, CENTER_MAX)
        filled, within = found.filled, found.within
        noise = found.bound * found.noise_std
        errors = mean_errors(found.steps, found.counts, noise, found.count_noise)
        errors[~filled] = np.inf  # such a centre is no mean
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        told = {
            "centers": means,
            "best_centers": means,
            "residual_bound": np.asarray(found.next_bound),
            "within": np.asarray(within),
            "best_cost": np.asarray(within * released.n_records),
            "best_records": np.asarray(float(released.n_records)),
            "counts": found.counts,
            "sizes": found.counts,
            "size_errors": np.full(len(found.counts), found.count_noise),
            "center_errors": errors,
            "counted": np.asarray(float(released.n_records)),
        }
        return {**state, **{name: xp.asarray(v, **like) for name, v in told.items()}}

    def doubts(self, state: State) -> tuple[str, ...]:
        return doubtful_sizes(state) if self.plain else ()  # the last stage says it
