"""Federated k-means: Lloyd's algorithm from sums over sites (FKM), and its starts.

Lloyd's next centres are the means of their clusters, so sums and counts over all sites give exactly
what pooled Lloyd gives; secure aggregation shows the server these sums and nothing else
(S. Li, S. Hou, B. Buyukates, S. Avestimehr, "Secure federated clustering", 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.bound import origin_entry
from dpfedc.clustering.centers import doubtful_sizes
from dpfedc.clustering.stage import Entry, Form, Known, Public, SiteBatch, Stage, State, broadcast
from dpfedc.clustering.standardize import standardized_memory, standardized_view
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import cluster_means, mean_errors, one_hot, squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.row_views import Columns
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness


def spread_points(k: int, m: int, *, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return k points of the unit ball that keep far from each other and from its surface.

    Data-free. Points are drawn at random and kept if no other is within `gap` and the surface is
    not within half of it; the gap shrinks until k are found (Su et al. 2016, sphere packing).
    """
    gap, points = 1.0, np.zeros((0, m))
    while len(points) < k:
        for _ in range(100):
            direction = rng.standard_normal(m)
            length = rng.random() ** (1 / m) * (1 - gap / 2)
            point = direction / np.linalg.norm(direction) * length
            if len(points) == 0 or np.linalg.norm(points - point, axis=1).min() >= gap:
                points = np.concatenate([points, point[None]])
            if len(points) == k:
                return points
        gap, points = 0.8 * gap, np.zeros((0, m))
    return points


@dataclass(frozen=True)
class LloydSums(Stage):
    """Release (x, 1) summed by nearest centre; the state's `centers` become the means.

    With a `bound` in the state, records are clipped to it around the `origin` and measured in units
    of it: sensitivity sqrt(2). A cluster whose count is below `min_count` keeps its centre.
    """

    n_clusters: int
    n_rounds: int
    min_count: float = 1.0
    sites_per_round: int | None = None
    name = "lloyd"
    purpose = "sums and counts of each cluster"
    reads = ("origin", "bound", "centers")

    def starts(self, known: Known, n_features: int) -> Known:
        origin = known.get("origin", origin_entry(n_features))
        return {"origin": origin, "centers": Entry((self.n_clusters, n_features))}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((self.n_clusters, n_features + 1))

    def sensitivity(self, state: State, t: int) -> float:
        """Return sqrt(2) where there is a bound: records are at most 1 long in units of it."""
        return math.sqrt(2) if "bound" in state else math.inf

    def told(self, noise: float, n_records: int) -> Self:
        """Return the stage with a count that noise alone does not reach."""
        return replace(self, min_count=1 + 2 * math.sqrt(2) * noise)

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        state = {"origin": public.asarray(np.zeros(public.n_features)), **state}
        if "centers" in state:
            return state
        rng = randomness.generator("start")
        points = public.asarray(spread_points(self.n_clusters, public.n_features, rng=rng))
        return {**state, "centers": state["origin"] + points * self._unit(state)}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return standardized_memory(batch, self._place(state), 0.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        view = standardized_view(batch, self._place(state), 0.0)
        centers = (broadcast(state, "centers") - state["origin"]) / self._unit(state)
        distances = squared_distances(view.products(centers), view.squared_norms, centers)
        members = one_hot(xp.argmin(distances, axis=1), self.n_clusters, batch.X)

        right = Columns.of(view, xp.ones_like(view.factors))
        return OuterSum(members, right, xp.sqrt(view.squared_norms + 1))

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        value = on_host(released.value)
        unit, origin = float(self._unit(state)), on_host(state["origin"])
        before = (on_host(state["centers"]) - origin) / unit
        means = cluster_means(value[:, :-1], value[:, -1], before, least=self.min_count)
        if "bound" in state:  # a mean of clipped records is in the unit ball; noise may not be
            means = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1.0)
        noise, counts = released.event.noise_std, value[:, -1]
        errors = mean_errors(means, counts, noise, noise)
        errors[counts < self.min_count] = np.inf  # such a centre is no mean
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        return {
            **state,
            "centers": xp.asarray(origin + unit * means, **like),
            "sizes": xp.asarray(counts, **like),
            "size_errors": xp.asarray(np.full(len(counts), noise), **like),
            "counted": xp.asarray(float(released.n_records), **like),
            "center_errors": xp.asarray(unit * errors, **like),
        }

    def doubts(self, state: State) -> tuple[str, ...]:
        return doubtful_sizes(state)

    def _place(self, state: State) -> State:
        """Return where records are measured from, and the length they are clipped to."""
        place = {"data_mean": state["origin"]}
        return {**place, "scale": state["bound"]} if "bound" in state else place

    def _unit(self, state: State) -> Array:
        return state.get("bound", 1.0)
