"""The last stage: what gives the centres in data units.

`Centers` releases sums and counts of each cluster. With `refine` set its rounds are Lloyd's:
records go to the nearest centre, centres to the mean of their records, less what noise makes of the
step. Between rounds the server may also move a centre from where two share a cluster to where one
serves two; a move that makes the cost higher, beyond noise, is taken back. Without `refine` the
single round is for display: clusters stay those of the memberships.

`Lengths` releases only how far each cluster reaches along its direction: two numbers a cluster, for
data with so many features that noisy sums would tell nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Entry, Form, Known, Public, SiteBatch, Stage, State, broadcast
from dpfedc.clustering.standardize import VIEW, standardized_memory, standardized_view
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import cluster_means, mean_errors, one_hot, squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.objective import membership_matrix
from dpfedc.kernels.row_views import Columns, Standardized
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty, enumerated

MOVE_NOISE = 2.0
"""A centre is moved for a gain of at least so many standard deviations of the noise, and put back
for such a loss."""
COUNT_WEIGHT = 0.5
"""Counts and squared norms are released at half size: they need less precision than the sums."""
DOUBTFUL_SIZE = 3.0
"""A cluster stands out if its count is at least so many standard deviations of the noise."""


@dataclass(frozen=True)
class Lengths(Stage):
    """Release (x~_j . w_l, 1) summed by cluster; the centres become the mean length times w_l."""

    n_clusters: int
    penalty: Penalty = field(default_factory=Penalty)
    final_steps: int = 50
    constant: float = 0.0
    name = "centres"
    n_rounds = 1
    purpose = "how far each cluster reaches along its direction"
    reads = (*VIEW, "W")

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((self.n_clusters, 2))

    def sensitivity(self, state: State, t: int) -> float:
        """Return sqrt(2): |x~ . w| <= 1, and a record counts once."""
        return math.sqrt(2)

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return standardized_memory(batch, state, self.constant)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        view, W = standardized_view(batch, state, self.constant), broadcast(state, "W")
        xp = array_namespace(batch.X)
        H = membership_matrix(view, W, penalty=self.penalty, steps=self.final_steps)
        members = one_hot(xp.argmax(H, axis=1), self.n_clusters, batch.X)
        lengths = xp.clip(xp.sum(view.products(W) * members, axis=1), min=-1.0, max=1.0)
        finite = xp.where(xp.isfinite(lengths), lengths, xp.zeros_like(lengths))
        squares = view.squared_norms
        # A record whose norm overflows is null.
        norms = xp.where(xp.isfinite(squares), xp.sqrt(lengths**2 + 1), squares)
        return OuterSum(members, Columns.of(finite, xp.ones_like(finite)), norms)

    def combine(self, state: State, released: Released, t: int) -> State:
        xp, W = array_namespace(released.value), state["W"]
        if "basis" in state:
            W = W @ state["basis"]
        elif self.constant:
            W = W[:, :-1]
        sums, counts = released.value[:, 0], released.value[:, 1]
        lengths = xp.clip(sums / xp.clip(counts, min=1.0), min=0.0, max=1.0)
        return {
            **state,
            "best_centers": W * lengths[:, None],
            "counts": counts,
            "sizes": counts,
            "size_errors": xp.full_like(counts, released.event.noise_std),
            "counted": xp.full_like(counts[0], released.n_records),
        }

    def doubts(self, state: State) -> tuple[str, ...]:
        return doubtful_sizes(state)


@dataclass(frozen=True)
class Centers(Stage):
    """Release (x~_j, a, a |x~_j|^2) summed by cluster; the state's `centers` become the means.

    a is COUNT_WEIGHT. `noise_std` is the known noise of the released sums: a centre is moved only
    where the gain stands out from it.
    """

    n_clusters: int
    n_rounds: int = 1
    refine: bool = False
    penalty: Penalty = field(default_factory=Penalty)
    final_steps: int = 50
    constant: float = 0.0
    noise_std: float = 0.0
    bounded: bool = False
    """Whether records have norm at most 1 (they have after scaling), so that phi is bounded."""
    name = "centres"
    reads = (*VIEW, "W", "centers")

    @property
    def purpose(self) -> str:  # type: ignore[override]
        """Return what is found out."""
        if self.refine:
            return "centres moved to the means of their records"
        return "the centres in the units of the data"

    def starts(self, known: Known, n_features: int) -> Known:
        return {"centers": Entry((self.n_clusters, n_features))}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((self.n_clusters, n_features + 2))

    def sensitivity(self, state: State, t: int) -> float:
        """Return sqrt(1 + 2 a^2) where |x~| <= 1."""
        return math.sqrt(1 + 2 * COUNT_WEIGHT**2) if self.bounded else math.inf

    def told(self, noise: float, n_records: int) -> Self:
        """Return the stage with the noise of its sums."""
        return replace(self, noise_std=noise * math.sqrt(1 + 2 * COUNT_WEIGHT**2))

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        rng = randomness.generator("relocation")
        directions = rng.standard_normal((self.n_rounds, self.n_clusters, public.n_features))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        W = state["W"] @ state["basis"] if "basis" in state else state["W"][:, : public.n_features]
        return {
            **state,
            "centers": W,
            "best_centers": W,
            "best_cost": public.asarray(np.asarray(np.inf)),
            "directions": public.asarray(directions),
        }

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        memory = standardized_memory(batch, state, self.constant)
        squares = memory["squared_norms"]
        if "basis" in state or self.constant:
            plain = Standardized.of(batch.X, center=state["data_mean"], scale=state.get("scale"))
            squares = plain.squared_norms
        return {**memory, "plain_squares": squares}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        full = standardized_view(batch, state, self.constant)
        xp = array_namespace(batch.X)
        squares = batch.memory["plain_squares"]
        plain = replace(full, squared_norms=squares, constant=0.0, basis=None)
        if t == 1:
            H = membership_matrix(
                full, broadcast(state, "W"), penalty=self.penalty, steps=self.final_steps
            )
            labels = xp.argmax(H, axis=1)
        else:
            centers = broadcast(state, "centers")
            labels = xp.argmin(squared_distances(plain.products(centers), squares, centers), axis=1)
        members = one_hot(labels, self.n_clusters, batch.X)
        finite = xp.where(xp.isfinite(squares), squares, xp.zeros_like(squares))
        a = COUNT_WEIGHT
        norms = xp.sqrt(squares + a**2 + a**2 * squares**2)
        extra = a * xp.stack([xp.ones_like(finite), finite], axis=1)
        return OuterSum(members, Columns.of(plain, extra), norms)

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        value = on_host(released.value)
        sums, counts, squares = value[:, :-2], value[:, -2], value[:, -1]
        counts, squares = counts / COUNT_WEIGHT, squares / COUNT_WEIGHT
        before = on_host(state["centers"])
        means = cluster_means(sums, counts, before, least=self._least)
        noise = released.event.noise_std
        errors = mean_errors(means, counts, noise, noise / COUNT_WEIGHT)
        errors[counts < self._least] = np.inf  # such a centre is no mean
        best = float(state["best_cost"])
        if math.isfinite(best):  # else `before` are directions, and no places
            from dpfedc.kernels.shorter_steps import shortened  # no site needs it

            noises = noise / np.maximum(counts, self._least)
            means = before + shortened(means - before, noises, means.shape[1])
        spread = squares - 2 * (sums * means).sum(axis=1) + counts * (means**2).sum(axis=1)
        cost = float(spread.sum())
        best_centers = on_host(state["best_centers"])
        found = {
            "sizes": counts,
            "center_errors": errors,
            "counted": np.asarray(float(released.n_records)),
            "size_errors": np.full(len(counts), noise / COUNT_WEIGHT),
        }
        # Sites may fail to answer: costs are compared as if of equally many records.
        n_records = released.n_records
        best_records = float(state.get("best_records", n_records))
        ratio = best_records / n_records
        if cost * ratio < best + MOVE_NOISE * ratio * noise * _noise_of_difference(means):
            best, best_records, best_centers = cost, n_records, means
        else:
            found = {name: on_host(state[name]) for name in found if name in state} or found
            if t % 2 == 0:
                means = best_centers  # the last move made things worse: take it back
        if self.refine and t % 2 == 1 and t + 2 <= self.n_rounds:
            from dpfedc.kernels.relocation import relocated_centers  # no site needs it

            directions = on_host(state["directions"])[t - 1]
            least_gain = MOVE_NOISE * self.noise_std / COUNT_WEIGHT
            means = relocated_centers(means, counts, spread, directions, noise=least_gain)
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        return {
            **state,
            "centers": xp.asarray(means, **like),
            "best_centers": xp.asarray(best_centers, **like),
            "best_cost": xp.asarray(best, **like),
            "best_records": xp.asarray(best_records, **like),
            "counts": xp.asarray(counts, **like),
            **{name: xp.asarray(values, **like) for name, values in found.items()},
        }

    def doubts(self, state: State) -> tuple[str, ...]:
        return doubtful_sizes(state)

    @property
    def _least(self) -> float:
        """Return the count from which on a centre is a mean, and not noise."""
        return 1 + 2 * self.noise_std


def _noise_of_difference(means: npt.NDArray[np.float64]) -> float:
    """Return the noise in the difference of two costs, in units of the noise of a sum."""
    squares, a = (means**2).sum(axis=1), COUNT_WEIGHT
    return math.sqrt(2 * float((1 / a**2 + 4 * squares + squares**2 / a**2).sum()))


def doubtful_sizes(state: State) -> tuple[str, ...]:
    """Return which clusters do not stand out from the noise in their count."""
    sizes, errors = on_host(state["sizes"]), on_host(state["size_errors"])
    few = np.flatnonzero(sizes < DOUBTFUL_SIZE * errors)
    if not len(few):
        return ()
    which, it = f"clusters {enumerated(few)} hold", "they"
    if len(few) == 1:
        which, it = f"cluster {few[0]} holds", "it"
    return (
        f"{which} too few records to stand out from the noise in a count (standard deviation "
        f"{errors.max():,.0f}): {it} may not be there. Fewer clusters, more records or a larger "
        "epsilon would help",
    )
