"""A start for clusters from cells: of many that cost about the same, links tell which to take.

k-means comes to different clusters from different starts, and noise hides which of them cost least.
But clusters that are there have few records between them. So there are prototypes first, more of
them than clusters, and a graph of which have records between them (`neighbors.py`). The server puts
prototypes together by k-means, from many starts, and by links alone (`kernels/merge_tree.py`), and
takes what costs little and parts few records. Lloyd's rounds go on from there. Where round clusters
would cut through records without gaps, links alone decide, and records may belong to prototypes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from dpfedc.clustering.neighbors import Neighbors
from dpfedc.clustering.stage import Public, State
from dpfedc.clustering.subspace import in_all_features
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.gate import Released
from dpfedc.randomness import Randomness

OF_PROTOTYPES = ("best_centers", "counts", "sizes", "size_errors", "center_errors")
"""What was released of prototypes, and is not true of the clusters that they become."""


@dataclass(frozen=True)
class LeastParted(Neighbors):
    """Release the graph of a `Neighbors`; `centers` become those of the clusters it speaks for."""

    any_shape: bool = False
    purpose = "which prototypes have records between them, to put them together by"

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        prototypes = in_all_features(on_host(state["best_centers"]), state)
        told = super().start({"best_centers": prototypes}, public, randomness)
        return {**state, "prototypes": told["prototypes"]}

    def combine(self, state: State, released: Released, t: int) -> State:
        from dpfedc.clustering.merged_prototypes import put_together  # no site needs it

        xp = array_namespace(released.value)
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        known = {name: on_host(values).astype(np.float64) for name, values in state.items()}
        graph, noise = on_host(released.value).astype(np.float64), released.event.noise_std
        found = put_together(graph, noise, known, self.n_clusters, any_shape=self.any_shape)
        left = {name: v for name, v in state.items() if name not in OF_PROTOTYPES}
        return {**left, **{name: xp.asarray(v, **like) for name, v in found.items()}}
