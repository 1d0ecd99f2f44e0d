"""How good the clusters are: one release at the final centres, for whoever asks for it.

Of each record it tells its cluster, how far it lies from what it was assigned by, and how much
nearer that is than the nearest other cluster (the simplified silhouette). The server makes sizes,
costs and silhouettes of it, with error bars (`summary/cluster_quality.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from array_api_compat import array_namespace, device

from dpfedc.clustering.residual_lloyd import (
    CENTER_MAX,
    HIDDEN,
    MAX_RESIDUAL,
    PLACES,
    are_residual_bounds,
    places_of,
    residual_bounds,
)
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
from dpfedc.clustering.standardize import VIEW, standardized_memory, standardized_view
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import one_hot, squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.objective import membership_matrix
from dpfedc.kernels.row_views import Columns, Standardized
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty

QUALITY_SHARE = 0.02
"""Of the budget, counted in mu^2: the noise of all other releases is 1 % larger for it. With 2,000
records in a cluster, secure aggregation and epsilon 1, the cluster's silhouette is then known to
about 0.08, and its size to 130."""
COST_WEIGHT = 2.0
"""Of the squared distance, beside 1 for the count and the silhouette: clipped at nine times the
typical one, it is the smallest of the three and would else be the noisiest."""
SENSITIVITY = math.sqrt(1 + COST_WEIGHT**2 + 1)
USUAL_PLACES = 64
"""A round with more of them is worked through in smaller parts."""


@dataclass(frozen=True)
class Quality(Stage):
    """Release (1, 2 u_j, s_j) summed by cluster, u_j in [0, 1] and s_j in [-1, 1].

    u_j is the squared distance of a record to what it was assigned by, over the square of a bound
    that is broadcast, and clipped; s_j its simplified silhouette (b - a) / max(a, b), a the
    distance to its own cluster and b to the nearest other. A cluster is one or several `places`:
    its centre, or its prototypes. Records belong to the nearest place or, `by_membership`, to the
    cluster of the largest membership. Rows of clusters that were not made hold noise alone.
    """

    n_clusters: int
    """The largest number of them."""
    n_places: int
    by_membership: bool = False
    penalty: Penalty = field(default_factory=Penalty)
    final_steps: int = 50
    constant: float = 0.0
    """Of memberships: distances are measured without it."""
    longest: float = 1.0
    """Records longer than so many scales are clipped to that length."""
    name = "quality"
    optional = True
    n_rounds = 1
    purpose = "how many records each cluster has, how near they are, and how well apart"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what a site's work depends on."""
        view = (*VIEW, "W") if self.by_membership else tuple(n for n in VIEW if n != "basis")
        return (*view, *PLACES, "distance_bound")

    def starts(self, known: Known, n_features: int) -> Known:
        places = places_of(self.n_places, n_features, self.n_clusters)
        return {**places, "distance_bound": Entry((), are_residual_bounds)}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((self.n_clusters, 3))

    def sensitivity(self, state: State, t: int) -> float:
        """Return sqrt 6: the row (1, 2 u_j, s_j) of one cluster."""
        return SENSITIVITY

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        from dpfedc.clustering.merged_prototypes import placed  # no site needs it

        told = placed(state, on_host(state["best_centers"]), self.n_places)
        told["distance_bound"] = np.asarray(_distance_bound(state))
        return {**state, **{name: public.asarray(values) for name, values in told.items()}}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        memory = standardized_memory(batch, self._seen(state), self._constant, self.longest)
        squares = memory["squared_norms"]
        if self.by_membership and ("basis" in state or self.constant):
            plain = Standardized.of(
                batch.X, center=state["data_mean"], scale=state.get("scale"), longest=self.longest
            )
            squares = plain.squared_norms
        return {**memory, "plain_squares": squares}

    def memory_factor(self, X: Array, state: State) -> float:
        return max(self.n_places / USUAL_PLACES, 1.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        view = standardized_view(batch, self._seen(state), self._constant, self.longest)
        squares = batch.memory["plain_squares"]
        plain = replace(view, squared_norms=squares, constant=0.0, basis=None)
        places = broadcast(state, "places", most=CENTER_MAX * SLACK)
        bound = broadcast(state, "distance_bound", above=0, most=MAX_RESIDUAL * SLACK)
        clusters = one_hot(broadcast(state, "place_clusters"), self.n_clusters, batch.X)
        known = xp.isfinite(squares)
        # A record whose numbers overflow is null: weight 0, and nothing that 0 would not cancel.
        distances = squared_distances(plain.products(places), squares, places)
        distances = xp.where(known[:, None], distances, xp.zeros_like(distances))
        members = self._members(view, distances, clusters, state)
        own = (members @ clusters.T) > 0
        far = xp.full_like(distances, xp.inf)
        near = xp.min(xp.where(own, distances, far), axis=1)
        other = xp.min(xp.where(own, far, distances), axis=1)
        parts = xp.clip(near / bound**2, max=1.0)
        silhouettes = _silhouettes(xp.sqrt(near), xp.sqrt(other))
        extra = xp.stack([xp.ones_like(parts), COST_WEIGHT * parts, silhouettes], axis=1)
        norms = xp.sqrt(1 + (COST_WEIGHT * parts) ** 2 + silhouettes**2)
        return OuterSum(members, Columns.of(extra), xp.where(known, norms, squares))

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        square = float(state["distance_bound"]) ** 2
        units = np.asarray([1.0, square / COST_WEIGHT, 1.0])
        sums = on_host(released.value).astype(np.float64)[: len(state["best_centers"])]
        told = {
            "quality_sums": sums * units,
            "quality_noise": released.event.noise_std * units,
            "quality_records": np.asarray(float(released.n_records)),
        }
        return {**state, **{name: xp.asarray(values, **like) for name, values in told.items()}}

    @property
    def _constant(self) -> float:
        return self.constant if self.by_membership else 0.0

    def _seen(self, state: State) -> State:
        """Return the state with what memberships are computed from, or distances alone."""
        return {n: v for n, v in state.items() if self.by_membership or n != "basis"}

    def _members(
        self, view: Standardized, distances: Array, clusters: Array, state: State
    ) -> Array:
        """Return the cluster of each record, as `predict` of the final model tells it."""
        xp = array_namespace(distances)
        if not self.by_membership:
            return one_hot(xp.argmin(distances, axis=1), self.n_places, distances) @ clusters
        W = broadcast(state, "W")
        H = membership_matrix(view, W, penalty=self.penalty, steps=self.final_steps)
        return one_hot(xp.argmax(H, axis=1), self.n_clusters, distances)


def _silhouettes(own: Array, other: Array) -> Array:
    """Return (b - a) / max(a, b), 0 where there is no other cluster or both are nowhere."""
    xp = array_namespace(own)
    larger = xp.where(xp.isfinite(other), xp.where(own > other, own, other), xp.zeros_like(own))
    some = (larger > 0) & xp.isfinite(own)
    gaps = xp.where(some, other - own, xp.zeros_like(own))
    return xp.clip(gaps / xp.where(some, larger, xp.ones_like(own)), min=-1.0, max=1.0)


def _distance_bound(state: State) -> float:
    """Return what distances are clipped to: a few times the typical one, where that was released.

    As in the rounds that move centres, what noise may have hidden is added.
    """
    if bool(state.get("by_prototype", False)) and "mean_squares" in state:
        squares = state.get("place_squares", state["mean_squares"])  # of prototypes
        return float(residual_bounds(on_host(squares).max()))
    if "best_cost" not in state:
        return 1.0
    n_records = float(state["best_records"])
    unit = (
        float(np.max(on_host(state["residual_bounds"]))) ** 2 if "residual_bounds" in state else 1.0
    )
    noise = unit * float(np.linalg.norm(on_host(state["size_errors"]))) / n_records
    mean_square = np.asarray(float(state["best_cost"]) / n_records + HIDDEN * noise)
    return float(residual_bounds(mean_square))
