"""Federated k-means: Lloyd's algorithm from sums over sites (FKM), and its starts.

Lloyd's next centres are the means of their clusters, so sums and counts over all sites give exactly
what pooled Lloyd gives; secure aggregation shows the server these sums and nothing else
(S. Li, S. Hou, B. Buyukates, S. Avestimehr, "Secure federated clustering", 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Method, Public, SiteBatch, State, broadcast
from dpfedc.clustering.standardize import (
    outer_products,
    standardized_memory,
    standardized_rows,
    standardized_view,
)
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import cluster_means, one_hot, squared_distances
from dpfedc.kernels.host import on_host
from dpfedc.kernels.segments import site_of_row, slot_of_row
from dpfedc.kernels.standardized import centered_norms
from dpfedc.privacy.gate import RecordSum, Released, SiteUploads
from dpfedc.privacy.sampling import RoundSample
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
class SeedByDistance(Method):
    """k-means++ over sites: round t uploads one record, drawn with probability ~ d^2(x, centres).

    Every record draws an exponential time with rate d^2; each site uploads the record whose time is
    first and that time, and the server takes the first of all: exactly a draw from all records. It
    uploads records as they are, so a gate with a plan refuses it.
    """

    n_rounds: int
    """One for each centre."""
    name: str = "seeding"

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with no centre yet."""
        return {**state, "centres": public.asarray(np.zeros((0, public.n_features)))}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> SiteUploads:
        """Return every site's first record and its time."""
        xp = array_namespace(batch.X)
        sites = np.asarray(batch.sites)[site_of_row(batch.offsets)]
        draws = randomness.uniform("seeding", t=t, sites=sites, slots=slot_of_row(batch.offsets))
        rates = np.ones(batch.n_records)
        if t > 1:
            chosen = state["centres"]
            squares = centered_norms(batch.X, chosen[0, :] * 0) ** 2
            distances = squared_distances(batch.X @ chosen.T, squares, chosen)
            rates = np.asarray(xp.min(distances, axis=1), dtype=np.float64)
        with np.errstate(divide="ignore"):
            times = -np.log1p(-draws) / rates
        times[~np.isfinite(times)] = np.finfo(np.float64).max
        order = np.lexsort((times, site_of_row(batch.offsets)))
        first = order[batch.offsets[:-1]]
        points = xp.take(batch.X, xp.asarray(first), axis=0)
        stamps = xp.asarray(np.minimum(times[first], 1e30), dtype=batch.X.dtype)
        return SiteUploads(xp.concat([points, stamps[:, None]], axis=1))

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the first record of all as one more centre."""
        xp = array_namespace(released.value)
        winner = int(xp.argmin(released.value[:, -1]))
        point = released.value[winner, :-1]
        return {**state, "centres": xp.concat([state["centres"], point[None, :]], axis=0)}


@dataclass(frozen=True)
class LloydSums(Method):
    """Release (x, 1) summed by nearest centre; the state's `centres` become the means.

    With a `bound` in the state, records are clipped to it around the `origin` and measured in units
    of it: sensitivity sqrt(2). A cluster whose count is below `least_count` keeps its centre.
    """

    n_clusters: int
    n_rounds: int
    least_count: float = 1.0
    name: str = "lloyd"
    sums_records = True

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with an origin, and with centres spread in the bound if it has none."""
        state = {"origin": public.asarray(np.zeros(public.n_features)), **state}
        if "centres" in state:
            return state
        rng = randomness.generator("start")
        points = public.asarray(spread_points(self.n_clusters, public.n_features, rng=rng))
        return {**state, "centres": state["origin"] + points * self._unit(state)}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        """Return each record's factor and squared norm, in units of the bound."""
        return standardized_memory(batch, self._place(state), 0.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> RecordSum:
        """Return the sums and counts."""
        xp = array_namespace(batch.X)
        view = standardized_view(batch, self._place(state), 0.0)
        centers = (broadcast(state, "centres") - state["origin"]) / self._unit(state)
        distances = squared_distances(view.products(centers), view.squared_norms, centers)
        members = one_hot(xp.argmin(distances, axis=1), self.n_clusters, batch.X)

        def total(weights: Array) -> Array:
            V = members * weights[:, None]
            return xp.concat([view.weighted_sums(V), xp.sum(V, axis=0)[:, None]], axis=1)

        def terms(rows: slice) -> Array:
            x = standardized_rows(view, rows)
            row = xp.concat([x, xp.ones_like(x[:, :1])], axis=1)
            return outer_products(members[rows, :], row)

        bound = math.sqrt(2) if "bound" in state else math.inf
        return RecordSum(xp.sqrt(view.squared_norms + 1), bound, total, terms=terms)

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the new centres."""
        xp = array_namespace(released.value)
        value = on_host(released.value)
        unit, origin = float(self._unit(state)), on_host(state["origin"])
        before = (on_host(state["centres"]) - origin) / unit
        means = cluster_means(value[:, :-1], value[:, -1], before, least=self.least_count)
        if "bound" in state:  # a mean of clipped records is in the unit ball; noise may not be
            means = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1.0)
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        return {**state, "centres": xp.asarray(origin + unit * means, **like)}

    def _place(self, state: State) -> State:
        """Return where records are measured from, and the length they are clipped to."""
        place = {"center": state["origin"]}
        return {**place, "scale": state["bound"]} if "bound" in state else place

    def _unit(self, state: State) -> Array:
        return state.get("bound", 1.0)
