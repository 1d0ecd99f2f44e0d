"""Scalable k-means++ (k-means||) over sites: many candidates in few rounds, reclustered into k.

After B. Bahmani, B. Moseley, A. Vattani, R. Kumar, S. Vassilvitskii, "Scalable k-means++" (2012).
One record, drawn uniformly, is the first candidate. Then, a few times: the sites release the sum of
d^2(x, C), and every record is drawn with probability min(1, l d^2(x, C) / sum), independently of
all others; drawn records join the candidates C. Last, the sites count how many records are nearest
to each candidate, and the server clusters the candidates, weighted by these counts.

Candidates are records, uploaded one by one, so a gate with a plan refuses this method. Public are:
the candidates and their counts, the sums of d^2, how many records each site drew in a round, and
the number of slots in which it sends them.

With a noise multiplier z, every upload carries Gaussian noise of z times what one record can change
it by, if it becomes null. For the sums this holds for certain: d^2 is clipped to (2 bound)^2, a
count changes by 1, the sums of a Lloyd round by sqrt(2) in units of the bound. For uploads of
points it is only ASSUMED that the record's slot changes by its length, at most the bound, and
nothing else does; but which records are drawn depends on all records, and which slots are filled is
sent without being hidden. So the whole is no proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device
from threadpoolctl import threadpool_limits

from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.stage import Public, SiteBatch, Stage, State
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import one_hot
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.row_views import Columns
from dpfedc.model_file import MEASURED
from dpfedc.privacy.gate import Released
from dpfedc.privacy.open_gate import SiteUploads
from dpfedc.privacy.sampling import RoundSample, site_of_row, slot_of_row
from dpfedc.privacy.sums import Contribution, OuterSum, SiteValues
from dpfedc.randomness import Randomness
from dpfedc.research.kernels.candidate_draws import (
    draw_probabilities,
    nearest_candidates,
    rows_in_ball,
    slot_count,
    slot_rows,
)

RESTARTS = 10
"""How often the server clusters the candidates, of which it keeps the best: they are few."""
MASK_SIZE = 100.0
"""The mask of filled slots is sent so many standard deviations high: it is public, not hidden."""


def with_stated_noise(total: OuterSum, batch: SiteBatch, z: float, bound: float) -> Contribution:
    """Return the clipped sum with noise of z times the bound at every site; z = 0: as it is."""
    if not z:
        return total
    xp = array_namespace(total.norms)
    value = total.clipped(bound, batch.present)
    noise_std = np.full(len(batch.sites), z * bound)
    return SiteValues(xp.expand_dims(value, axis=0), noise_std)


def kept_records(batch: SiteBatch, state: State) -> dict[str, Array]:
    """Return what sites remember if there is a bound: the records, clipped to it."""
    return {"records": rows_in_ball(batch.X, state["bound"])} if "bound" in state else {}


def reclustered(
    candidates: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], k: int, seed: int
) -> npt.NDArray[np.float64]:
    """Return k centres of the weighted candidates, by weighted k-means++ and Lloyd steps.

    If fewer than k distinct candidates have a weight, these are the centres, some of them twice.
    """
    from sklearn.cluster import KMeans

    if not (weights > 0).any():  # all lost in noise
        weights = np.ones(len(weights))
    used = weights > 0
    points, which = np.unique(candidates[used], axis=0, return_inverse=True)
    if len(points) <= k:
        return np.asarray(points[np.arange(k) % len(points)])
    total = np.bincount(which.ravel(), weights=weights[used])
    model = KMeans(k, n_init=RESTARTS, random_state=seed)
    with threadpool_limits(limits=1):  # for so few points a second thread only costs
        return np.asarray(model.fit(points, sample_weight=total).cluster_centers_)


@dataclass(frozen=True)
class Candidates(Stage):
    """The rounds that draw candidates: `n_rounds` is 1 + 2 x the reference's rounds.

    Round 1 uploads the first candidate. Then even rounds release the sum of d^2, odd rounds upload
    the records drawn. `expected_draws` is l. A record remembers its d^2, so only distances to new
    candidates are computed.
    """

    expected_draws: float
    n_rounds: int = 11
    noise_multiplier: float = 0.0
    name = "candidates"
    purpose = "records drawn as candidates, and what they cost"
    proved = False
    sums_records = False
    listens = True  # only so that sites keep what they remember; all take part

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        row = int(randomness.generator("first candidate").integers(public.n_records))
        ends = np.cumsum(public.records_per_site)
        site = int(np.searchsorted(ends, row, side="right"))
        slot = row - int(ends[site] - public.records_per_site[site])
        none = public.asarray(np.zeros((0, public.n_features)))
        return {**state, "candidates": none, "fresh": none, "first": np.array([site, slot])}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        xp = array_namespace(batch.X)
        return {"squares": xp.ones_like(batch.X[:, 0]), **kept_records(batch, state)}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> Contribution:
        X: Array = batch.memory.get("records", batch.X)
        if t % 2 == 0:
            return self._cost(X, batch, state)
        site = np.asarray(batch.sites)[site_of_row(batch.offsets)]
        slot = slot_of_row(batch.offsets)
        drawn = (site == state["first"][0]) & (slot == state["first"][1])
        if t > 1:
            coins = randomness.uniform("draw of candidates", t=t, sites=site, slots=slot)
            squares = on_host(batch.memory["squares"])
            drawn = coins < draw_probabilities(squares, float(state["cost"]), self.expected_draws)
        if batch.present is not None:
            drawn &= on_host(batch.present) > 0
        return self._uploads(X, slot_rows(drawn, batch.offsets, self.n_slots), state)

    def combine(self, state: State, released: Released, t: int) -> State:
        xp, value = array_namespace(released.value), released.value
        if t % 2 == 0:
            return {**state, "cost": value}
        rows = xp.reshape(value, (-1, value.shape[2]))
        filled = np.flatnonzero(on_host(rows[:, -1]) > self._mask_size(state) / 2)
        fresh = xp.take(rows[:, :-1], xp.asarray(filled, device=device(value)), axis=0)
        if "bound" in state:
            fresh = rows_in_ball(fresh, state["bound"])
        candidates = xp.concat([state["candidates"], fresh], axis=0)
        return {**state, "candidates": candidates, "fresh": fresh}

    def sensitivity(self, state: State, t: int) -> float:
        """Return the largest d^2 of records in the ball of the bound."""
        return 4 * float(state["bound"]) ** 2 if "bound" in state else float("inf")

    @property
    def n_slots(self) -> int:
        """Return the public number of slots that every site sends in an odd round."""
        return slot_count(self.expected_draws)

    def _cost(self, X: Array, batch: SiteBatch, state: State) -> Contribution:
        xp, fresh = array_namespace(X), state["fresh"]
        if fresh.shape[0]:
            squares, _ = nearest_candidates(X, fresh)
            if fresh.shape[0] < state["candidates"].shape[0]:
                squares = xp.minimum(squares, batch.memory["squares"])
            batch.memory["squares"] = squares
        squares = batch.memory["squares"]
        total = OuterSum(xp.ones_like(squares)[:, None], Columns.of(squares), squares, shape=())
        return with_stated_noise(total, batch, self.noise_multiplier, self.sensitivity(state, 2))

    def _uploads(self, X: Array, rows: npt.NDArray[np.int64], state: State) -> SiteUploads:
        xp, on = array_namespace(X), device(X)
        filled = xp.asarray(rows >= 0, device=on)[..., None]
        taken = xp.take(X, xp.asarray(np.maximum(rows, 0).ravel(), device=on), axis=0)
        points = xp.reshape(taken, (*rows.shape, X.shape[1]))
        points = xp.where(filled, points, xp.zeros_like(points))
        mask = xp.astype(filled, X.dtype) * self._mask_size(state)
        std = self._noise_std(state)
        noise_std = np.full(len(rows), std) if std else None
        return SiteUploads(xp.concat([points, mask], axis=2), noise_std)

    def _noise_std(self, state: State) -> float:
        """Return z times the assumed sensitivity: a record is in one slot, no longer than bound."""
        return self.noise_multiplier * float(state["bound"]) if self.noise_multiplier else 0.0

    def _mask_size(self, state: State) -> float:
        return max(1.0, MASK_SIZE * self._noise_std(state))


@dataclass(frozen=True)
class Reclustering(Stage):
    """Count the records nearest to each candidate; `centres` become the clusters of candidates."""

    n_clusters: int
    noise_multiplier: float = 0.0
    name = "weights"
    purpose = "how many records are nearest to each candidate"
    proved = False
    sums_records = False
    n_rounds = 1

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        seed = randomness.generator("reclustering").integers(2**31 - 1)
        return {**state, "server_seed": np.asarray(seed)}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return kept_records(batch, state)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> Contribution:
        X: Array = batch.memory.get("records", batch.X)
        xp, candidates = array_namespace(X), state["candidates"]
        n_candidates = int(candidates.shape[0])
        squares, labels = nearest_candidates(X, candidates)
        counted = xp.where(xp.isfinite(squares), xp.ones_like(squares), squares)
        ones = Columns.of(xp.ones_like(squares))
        counts = OuterSum(one_hot(labels, n_candidates, X), ones, counted, shape=(n_candidates,))
        return with_stated_noise(counts, batch, self.noise_multiplier, 1.0)

    def sensitivity(self, state: State, t: int) -> float:
        """Return 1: a record counts once."""
        return 1.0

    def combine(self, state: State, released: Released, t: int) -> State:
        value = released.value
        xp = array_namespace(value)
        candidates, seed = on_host(state["candidates"]), int(state["server_seed"])
        centers = reclustered(candidates, on_host(value), self.n_clusters, seed)
        like = {"dtype": value.dtype, "device": device(value)}
        found = {"weights": value, "centers": xp.asarray(centers, **like)}
        if "bound" not in state:
            # Lloyd rounds measure from the origin; far from the data they would lose precision.
            found["origin"] = xp.asarray(centers.mean(axis=0), **like)
        return {**state, **found}


@dataclass(frozen=True)
class StatedNoiseLloyd(LloydSums):
    """Lloyd rounds with noise of z times the sums' sensitivity, added at every site."""

    noise_multiplier: float = 0.0

    proved = False

    def local(  # type: ignore[override]  # a noisy sum is no longer an OuterSum
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> Contribution:
        total = super().local(batch, state, t, sample, randomness)
        bound = self.sensitivity(state, t)
        return with_stated_noise(total, batch, self.noise_multiplier, bound)

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the new centres; what the sites' noise does to counts is unsaid."""
        after = super().combine(state, released, t)
        if not self.noise_multiplier:
            return after
        return {name: values for name, values in after.items() if name not in MEASURED}

    def doubts(self, state: State) -> tuple[str, ...]:
        return super().doubts(state) if "sizes" in state else ()
