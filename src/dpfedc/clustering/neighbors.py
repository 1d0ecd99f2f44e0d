"""Which prototypes belong together: a graph of neighbours, and the clusters that follow from it.

Where a plan has more prototypes than clusters, this stage comes after the one that releases their
centres. Of each record it tells the nearest prototype and the second nearest, and how near the
record is to the plane midway between them. Prototypes of one cloud of records have many records
between them, whatever the shape of the cloud; where there is a gap, there are none. The server
merges prototypes by that (`kernels/merge_tree.py`), to a given number of clusters or to the number
at which the links between groups fall off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.residual_lloyd import CENTER_MAX
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
from dpfedc.clustering.standardize import standardized_memory, standardized_view
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import one_hot, squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.row_views import Columns
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

Float = npt.NDArray[np.float64]

SECOND = 0.5
"""The weight of the second nearest prototype, of a record midway between it and the nearest."""
SENSITIVITY = 1 + SECOND**2
PLACE = ("data_mean", "scale")
"""What prototypes are measured by: they have all features, also where there is a subspace."""


@dataclass(frozen=True)
class Neighbors(Stage):
    """Release the sum of h_j h_j', with 1 in h_j at the nearest prototype and t_j at the second.

    t_j falls from 1/2 on the plane midway between both to 0 at the nearest one. One record adds a
    matrix of norm |h_j|^2 = 1 + t_j^2 <= 5/4.
    """

    n_prototypes: int
    least_clusters: int
    most_clusters: int
    """How many clusters may be made: one number, or a range to choose from."""
    any_shape: bool = True
    """Whether records may belong to the nearest prototype, and not to the nearest centre."""
    few_features: bool = False
    """Then records go to the nearest centre all the same where that groups prototypes alike, and
    large groups are merged earlier."""
    longest: float = 1.0
    """Records longer than so many scales are clipped to that length."""
    name = "neighbours"
    n_rounds = 1
    purpose = "which prototypes have records between them"
    reads = (*PLACE, "prototypes")

    @property
    def n_clusters(self) -> int:
        """Return the largest number of clusters."""
        return self.most_clusters

    def starts(self, known: Known, n_features: int) -> Known:
        return {"prototypes": Entry((self.n_prototypes, n_features), at_most(CENTER_MAX))}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((self.n_prototypes, self.n_prototypes), symmetric=True)

    def sensitivity(self, state: State, t: int) -> float:
        """Return 5/4: |h_j|^2 = 1 + t_j^2."""
        return SENSITIVITY

    def finding(self, n_clusters: int) -> Self:
        return replace(self, least_clusters=n_clusters, most_clusters=n_clusters)

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        prototypes = np.clip(on_host(state["best_centers"]), -CENTER_MAX, CENTER_MAX)
        return {**state, "prototypes": public.asarray(prototypes)}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return standardized_memory(batch, _placed(state), 0.0, self.longest)

    def memory_factor(self, X: Array, state: State) -> float:
        return max(self.n_prototypes / USUAL_PROTOTYPES, 1.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        view = standardized_view(batch, _placed(state), 0.0, self.longest)
        prototypes = broadcast(state, "prototypes", most=CENTER_MAX * SLACK)
        distances = squared_distances(view.products(prototypes), view.squared_norms, prototypes)
        known = xp.isfinite(view.squared_norms)
        # A record whose numbers overflow is null: weight 0, and nothing that 0 would not cancel.
        distances = xp.where(known[:, None], distances, xp.zeros_like(distances))
        first = one_hot(xp.argmin(distances, axis=1), self.n_prototypes, batch.X)
        nearest = xp.min(distances, axis=1)
        others = xp.where(first > 0, xp.full_like(distances, xp.inf), distances)
        second = one_hot(xp.argmin(others, axis=1), self.n_prototypes, batch.X)
        apart = squared_distances(
            prototypes @ prototypes.T, xp.sum(prototypes**2, axis=1), prototypes
        )
        between = xp.clip(xp.sum((first @ apart) * second, axis=1), min=MIN_APART)
        away = (xp.min(others, axis=1) - nearest) / between
        weights = SECOND * xp.clip(1.0 - away, min=0.0, max=1.0)
        rows = Columns.of(first + weights[:, None] * second)
        norms = xp.where(known, 1.0 + weights**2, view.squared_norms)
        return OuterSum(rows, rows, norms, symmetric=True)

    def combine(self, state: State, released: Released, t: int) -> State:
        from dpfedc.clustering.merged_prototypes import clusters_of  # no site needs it

        xp = array_namespace(released.value)
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        graph = on_host(released.value).astype(np.float64)
        found = clusters_of(
            graph,
            released.event.noise_std,
            {name: on_host(values).astype(np.float64) for name, values in state.items()},
            (self.least_clusters, self.most_clusters),
            any_shape=self.any_shape,
            few_features=self.few_features,
        )
        return {**state, **{name: xp.asarray(v, **like) for name, v in found.items()}}

    def doubts(self, state: State) -> tuple[str, ...]:
        from dpfedc.clustering.merged_prototypes import doubtful_choice

        return doubtful_choice(state) if self.least_clusters < self.most_clusters else ()


USUAL_PROTOTYPES = 64
"""A round with more of them is worked through in smaller parts."""
MIN_APART = 1e-12
"""Prototypes at one place have every record midway between them."""


def _placed(state: State) -> dict[str, Any]:
    return {name: values for name, values in state.items() if name != "basis"}
