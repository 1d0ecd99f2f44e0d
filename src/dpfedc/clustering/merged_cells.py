"""More cells than clusters, then free work at the server: a start that no bad luck spoils.

The search finds more directions than there are clusters. `Cells` releases sums and counts of the
records in each direction's cell. From these the server finds k centres by weighted k-means, with as
many starts as it likes: that is arithmetic on released values, and costs no privacy. The stage
`centres` goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from dpfedc.clustering.centers import COUNT_WEIGHT, Centers
from dpfedc.clustering.stage import Entry, Known, Public, State, at_most
from dpfedc.kernels.cluster_sums import cluster_means
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.gate import Released
from dpfedc.randomness import Randomness

N_STARTS = 64


@dataclass(frozen=True)
class Cells(Centers):
    """Release (x~_j, a, a |x~_j|^2) summed by cell; the state's `W` becomes `n_merged` centres."""

    n_merged: int = 1
    name = "cells"

    @property
    def purpose(self) -> str:  # type: ignore[override]
        """Return what is found out."""
        return f"sums and counts of {self.n_clusters} cells, from which centres are made"

    def makes(self, known: Known, n_features: int) -> Known:
        return {"W": Entry((self.n_merged, n_features), at_most(1.0))}

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        draws = randomness.generator("cells").random((N_STARTS, self.n_merged))
        return {**super().start(state, public, randomness), "draws": public.asarray(draws)}

    def combine(self, state: State, released: Released, t: int) -> State:
        xp, value = array_namespace(released.value), on_host(released.value)
        sums, counts = value[:, :-2], value[:, -2] / COUNT_WEIGHT
        least = 1 + 2 * self.noise_std / COUNT_WEIGHT
        means = cluster_means(sums, counts, on_host(state["centers"]), least=least)
        filled = counts >= least
        if filled.sum() < self.n_merged:  # noise has swamped them: the largest are all there is
            filled = np.argsort(np.argsort(-counts)) < self.n_merged
        from dpfedc.kernels.weighted_kmeans import weighted_kmeans  # no site needs it

        weights = np.maximum(counts[filled], 1.0)
        merged = weighted_kmeans(means[filled], weights, on_host(state["draws"]))
        merged = np.clip(merged, -1.0, 1.0)
        like = {"dtype": released.value.dtype, "device": device(released.value)}
        rest = {name: state[name] for name in state if name != "draws"}
        return {**rest, "W": xp.asarray(merged, **like)}

    def doubts(self, state: State) -> tuple[str, ...]:
        return ()  # the sizes are those of the stage that follows, which doubts them itself
