"""Lloyd's rounds on residuals: how far records lie from their own centre, and to which side.

A record adds its residual r_j = x~_j - c_l, c_l the centre of its cluster (the nearest, or that of
the nearest of several places), clipped to a length C_l that is a few times the typical one of that
cluster. So noise is in proportion to how wide clusters are, and not to how far apart they lie, as
that of sums of the records themselves. A record far from every centre is clipped towards its own
centre, and not towards the middle of all.

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
from dpfedc.clustering.subspace import in_all_features
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import mean_errors, one_hot, squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.objective import residual_norms
from dpfedc.kernels.row_views import Columns, Residuals, Scaled, Standardized
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

Float = npt.NDArray[Any]

SENSITIVITY = math.sqrt(1 + 2 * COUNT_WEIGHT**2)
LEAST_FACTOR, MOST_FACTOR, ROOM = 3.0, 8.0, 0.05
"""Residuals are clipped to so many times their typical length: more, where the noise that it brings
moves a centre by less than that part of the typical length."""
MIN_RESIDUAL, MAX_RESIDUAL = 1e-3, 2.0
"""Of what residuals are clipped to, in scales of the records."""
CENTER_MAX = 2.0
"""A site refuses larger centres: distances to them would lose precision."""
HIDDEN = 2.0
"""Standard deviations of noise that may have made a mean square look smaller than it is."""
AT_THE_EDGE = 0.97
"""How far out records of a cluster are, in scales, where many may have been clipped to one."""
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
    bounds: Float
    n_noisy: int
    """How many entries of a sum have noise."""

    @classmethod
    def of(cls, released: Released, state: State, *, plain: bool) -> ClusterSums:
        """Return a released value in the units of the standardised records.

        Along directions that were dropped from a subspace there is nothing but noise.
        """
        value, a = on_host(released.value).astype(np.float64), COUNT_WEIGHT
        bounds, sums = on_host(state["residual_bounds"]).astype(np.float64), value[:, :-2]
        kept = np.ones(sums.shape[1], dtype=bool)
        if not plain and "variances" in state:
            kept = on_host(state["variances"]) > 0
        noise = released.event.noise_std
        squares = bounds**2 * value[:, -1] / a
        sums = bounds[:, None] * np.where(kept, sums, 0.0)
        return cls(sums, value[:, -2] / a, squares, noise, bounds, int(kept.sum()))

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
        return np.where(self.filled[:, None], self.sums / self._counts[:, None], 0)

    @property
    def step_noise(self) -> Float:
        """Return the noise in the entries of each step."""
        return self.bounds * self.noise_std / self._counts

    @property
    def likely_steps(self) -> Float:
        """Return the steps, shortened where noise has made them longer."""
        from dpfedc.kernels.shorter_steps import shortened  # no site needs it

        return shortened(self.steps, self.step_noise, self.n_noisy)

    @property
    def spread(self) -> Float:
        """Return the sums of squared distances from the means, none below zero."""
        spread = self.squares - (self.sums**2).sum(axis=1) / self._counts
        return np.where(self.filled, np.maximum(spread, 0.0), 0.0)

    @property
    def within(self) -> float:
        """Return the mean squared distance from the means."""
        return float(self.spread.sum()) / self._n_records

    @property
    def pooled_square(self) -> float:
        """Return the mean squared residual of all clusters, with what noise may have hidden.

        A bound that is too small would cost more than one that is too large.
        """
        return self.within + HIDDEN * self.hidden

    @property
    def hidden(self) -> float:
        """Return the noise in the mean squared distance of all records."""
        return math.sqrt(float((self.square_noise[self.filled] ** 2).sum())) / self._n_records

    @property
    def square_noise(self) -> Float:
        """Return the noise in the sums of squared residuals."""
        return self.bounds**2 * self.count_noise

    @property
    def mean_squares(self) -> Float:
        """Return the mean squared residual of each cluster, with what noise may have hidden.

        A bound that is too small would cost more than one that is too large. What noise hides of a
        cluster is taken from all of them together, as if it had so many more records of their kind.
        """
        noise = self.square_noise
        within = max(self.within, self.hidden, MIN_RESIDUAL**2)  # it may have hidden all there is
        more = noise / within
        counts = np.where(self.filled, self.counts, 0.0) + more
        found = (self.spread + more * within) / np.maximum(counts, 1e-9)
        return found + HIDDEN * noise / np.maximum(counts, 1.0)

    def next_bounds(self, mean_squares: Float) -> Float:
        """Return what to clip residuals to from now on, by cluster."""
        width = self.sums.shape[1]
        return roomy_bounds(mean_squares, self.counts, self.count_noise, width)

    @property
    def _counts(self) -> Float:
        """Return what to divide by: 1 where a count is only noise."""
        return np.where(self.filled, self.counts, 1)

    @property
    def _n_records(self) -> float:
        return max(float(self.counts[self.filled].sum()), 1.0)


def roomy_bounds(mean_squares: Float, counts: Float, count_noise: float, width: int) -> Float:
    """Return what to clip residuals to where counts and their noise are known, by cluster."""
    noise = COUNT_WEIGHT * count_noise * math.sqrt(width)
    factors = ROOM * counts / max(noise, 1e-9)
    return residual_bounds(mean_squares, np.clip(factors, LEAST_FACTOR, MOST_FACTOR))


def residual_bounds(mean_squares: Float, factors: Float | float = LEAST_FACTOR) -> Float:
    """Return what to clip residuals to, from their mean squares; noise alone makes it one scale."""
    least = np.clip(LEAST_FACTOR * np.sqrt(np.maximum(mean_squares, 0)), MIN_RESIDUAL, 1.0)
    return np.minimum(least * factors / LEAST_FACTOR, MAX_RESIDUAL)


@dataclass(frozen=True)
class ResidualSums(Stage):
    """Release (r_j / C, a, a |r_j|^2 / C^2) summed by cluster, |r_j| clipped to C.

    a is COUNT_WEIGHT. C is that centre's, broadcast with it; what a record adds is no longer than
    sqrt(1 + 2 a^2) whatever C is. In the subspace where there is one, unless `plain` is set.
    """

    n_clusters: int
    n_rounds: int
    plain: bool = False
    """Whether all features count, also where there is a subspace."""
    longest: float = 1.0
    """Records longer than so many scales are clipped to that length."""
    n_places: int = 0
    """Of several places for each cluster, the nearest tells a record's cluster (0: its centre)."""
    name: str = "centres"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what a site's work depends on."""
        view = tuple(name for name in VIEW if name != "basis") if self.plain else VIEW
        return (*view, "centers", "residual_bounds", *(PLACES if self.n_places else ()))

    def starts(self, known: Known, n_features: int) -> Known:
        width = self._width(known, n_features)
        centers = Entry((self.n_clusters, width), at_most(CENTER_MAX))
        bounds = Entry((self.n_clusters,), are_residual_bounds)
        places = places_of(self.n_places, width, self.n_clusters) if self.n_places else {}
        return {"centers": centers, "residual_bounds": bounds, **places}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((self.n_clusters, self._width(known, n_features) + 2))

    def sensitivity(self, state: State, t: int) -> float:
        """Return sqrt(1 + 2 a^2): |r / C| <= 1."""
        return SENSITIVITY

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return standardized_memory(batch, self._seen(state), 0.0, self.longest)

    def memory_factor(self, X: Array, state: State) -> float:
        return max(self.n_clusters / USUAL_CLUSTERS, self.n_places / USUAL_CLUSTERS, 1.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        view = standardized_view(batch, self._seen(state), 0.0, self.longest)
        centers = broadcast(state, "centers", most=CENTER_MAX * SLACK)
        bounds = broadcast(state, "residual_bounds", above=0, most=MAX_RESIDUAL * SLACK)
        products = view.products(centers)
        nearest = self._clusters(view, centers, products, state)
        members = one_hot(nearest, self.n_clusters, batch.X)
        lengths = residual_norms(view.squared_norms, products, members, centers @ centers.T)
        # A record whose numbers overflow is null: weight 0, and nothing that 0 would not cancel.
        known, bound = xp.isfinite(lengths), xp.take(bounds, nearest)
        factors = xp.where(known, -1 / xp.maximum(lengths, bound), xp.zeros_like(lengths))
        parts = xp.where(known, xp.clip(lengths / bound, max=1.0), xp.zeros_like(lengths))
        a = COUNT_WEIGHT
        norms = xp.sqrt(parts**2 + a**2 + a**2 * parts**4)
        residuals = Scaled(Residuals(members, centers, view), factors)
        extra = a * xp.stack([xp.astype(known, parts.dtype), parts**2], axis=1)
        return OuterSum(members, Columns.of(residuals, extra), xp.where(known, norms, lengths))

    def _clusters(self, view: Standardized, centers: Array, products: Array, state: State) -> Array:
        """Return the cluster of each record: that of the nearest place, or the nearest centre."""
        xp = array_namespace(centers)
        if not self.n_places:
            return xp.argmin(squared_distances(products, view.squared_norms, centers), axis=1)
        places = broadcast(state, "places", most=CENTER_MAX * SLACK)
        clusters = xp.astype(broadcast(state, "place_clusters"), xp.int64)
        distances = squared_distances(view.products(places), view.squared_norms, places)
        return xp.take(clusters, xp.argmin(distances, axis=1))

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        """Return the objective: squared distances to the own centre, the mean over sites."""
        from dpfedc.kernels.segments import segment_sum

        view = standardized_view(batch, self._seen(state), 0.0, self.longest)
        xp, centers = array_namespace(batch.X), state["centers"]
        products = view.products(centers)
        distances = squared_distances(products, view.squared_norms, centers)
        own = self._clusters(view, centers, products, state)[:, None]
        losses = xp.take_along_axis(distances, own, axis=1)[:, 0]
        return {"objective": float(xp.mean(segment_sum(losses, batch.offsets)))}

    def _seen(self, state: State) -> State:
        """Return the state with what the stage sees records through."""
        return {n: v for n, v in state.items() if not (self.plain and n == "basis")}

    def _width(self, known: Known | State, n_features: int) -> int:
        if self.plain or "basis" not in known:
            return n_features
        return int(known["basis"].shape[0])


PLACES = ("places", "place_clusters")


def places_of(n_places: int, width: int, n_clusters: int) -> dict[str, Entry]:
    """Return the arrays that tell of several places for each cluster where they are, and whose."""

    def are_clusters(values: npt.NDArray[Any], _: State) -> bool:
        whole = np.array_equal(values, np.round(values))
        return bool(whole and (values >= 0).all() and (values < n_clusters).all())

    return {
        "places": Entry((n_places, width), at_most(CENTER_MAX)),
        "place_clusters": Entry((n_places,), are_clusters),
    }


def are_residual_bounds(values: npt.NDArray[Any], _: State) -> bool:
    """Return whether bounds on residuals are in the range that sites accept."""
    return bool(((values >= MIN_RESIDUAL / SLACK) & (values <= MAX_RESIDUAL * SLACK)).all())


@dataclass(frozen=True)
class ResidualLloyd(ResidualSums):
    """Move each centre by the mean residual of its records, less what noise makes of that.

    Where a round tells little, a centre stays close to where earlier rounds have put it: so rounds
    count together, and not the last one alone.
    """

    merges: bool = False
    """Whether the centres are to be made from cells."""
    keeps_steps: bool = False
    """Whether steps stay whole: prototypes that are held back may lie between two clusters, and
    their graph would show a link there."""

    @property
    def purpose(self) -> str:  # type: ignore[override]
        """Return what is found out."""
        return "centres moved to the means of their records"

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        state = with_mean_and_scale(state, public)
        if self.merges:
            from dpfedc.clustering.merged_cells import merged  # no site needs it

            found = merged(state, self.n_clusters, randomness)
            state = {**state, **{name: public.asarray(values) for name, values in found.items()}}
        centers, squares = on_host(state["centers"]), on_host(state["mean_squares"])
        factors = on_host(state["residual_bounds"]) / np.sqrt(np.maximum(squares, 1e-12))
        if self.plain and centers.shape[1] < public.n_features:
            centers = in_all_features(centers, state)
            squares = squares + float(state.get("outside", 0.0))
        bounds = residual_bounds(squares, np.clip(factors, LEAST_FACTOR, MOST_FACTOR))
        if self.longest > 1:
            # Clipped so far, records of such clusters may lie as much farther out as counts now.
            at_the_edge = (centers**2).sum(axis=1) + squares > AT_THE_EDGE**2
            bounds = np.where(at_the_edge, np.maximum(bounds, self.longest - 1), bounds)
        centers = np.clip(centers, -CENTER_MAX, CENTER_MAX)
        told = {"centers": centers, "residual_bounds": bounds, "mean_squares": squares}
        if self.n_places:
            from dpfedc.clustering.merged_prototypes import placed  # no site needs it

            told |= placed(state, centers, self.n_places)
        return {**state, **{name: public.asarray(values) for name, values in told.items()}}

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        found = ClusterSums.of(released, state, plain=self.plain)
        steps = found.steps if self.keeps_steps else found.likely_steps
        means = np.clip(on_host(state["centers"]) + steps, -CENTER_MAX, CENTER_MAX)
        filled, within = found.filled, found.within
        noise, squares = found.bounds[:, None] * found.noise_std, found.mean_squares
        errors = mean_errors(found.steps, found.counts, noise, found.count_noise)
        errors[~filled] = np.inf  # such a centre is no mean
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        told = {
            "centers": means,
            "best_centers": means,
            "residual_bounds": found.next_bounds(squares),
            "mean_squares": squares,
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
