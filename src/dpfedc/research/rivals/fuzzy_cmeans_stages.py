"""Federated fuzzy c-means (FZKM): local fuzzy c-means, and k-means over the local centres.

In every round each site starts fuzzy c-means from the broadcast centres, on its own records, and
uploads its k centres. The server clusters all uploads by k-means into the k next global centres:
from k-means++ in the first round, from the last global centres later (M. Stallmann, A. Wilbik,
"Towards federated clustering: a federated fuzzy c-means algorithm (FFCM)", 2022, the variant with
k-means). In the first round sites start from k-means++ on their own records, unless the server has
public centres to begin with.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from dpfedc.clustering.stage import Public, SiteBatch, Stage, State
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.segments import segment_sum
from dpfedc.privacy.gate import Released
from dpfedc.privacy.open_gate import SiteUploads
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness
from dpfedc.research.kernels.fuzzy_memberships import fuzzy_centers, fuzzy_losses
from dpfedc.research.kernels.local_clustering import seeded_centers
from dpfedc.research.rivals.k_fed_stages import bounded_records, seeding_draws

Float = npt.NDArray[Any]


def clustered_centers(points: Float, weights: Float | None, model: KMeans) -> Float:
    """Return the centres that k-means finds among weighted points."""
    # Threads would add up a cluster's points in no fixed order; one gives the same sums each time.
    with threadpool_limits(limits=1, user_api="openmp"), warnings.catch_warnings():
        # Sites whose centres coincide upload fewer than k distinct points; that is no failure.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(points, sample_weight=weights).cluster_centers_)


@dataclass(frozen=True)
class FuzzyCMeansRounds(Stage):
    """The rounds of federated fuzzy c-means; the state's `centres` are the global ones.

    With `weighted` set sites also upload their clusters' sizes, in units of `size_unit`, by which
    the server weights the centres. `noise_std` holds each site's noise; it rests on an assumed
    sensitivity, so a gate with a plan refuses it.
    """

    n_clusters: int
    n_rounds: int = 10
    local_steps: int = 10
    fuzzifier: float = 2.0
    weighted: bool = False
    n_init: int = 4
    norm_bound: float = math.inf
    size_unit: float = 1.0
    noise_std: Float | None = None
    sites_per_round: int | None = None
    name = "fuzzy-c-means"
    purpose = "centres of every site's own fuzzy clusters"
    proved = False
    sums_records = False

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        # Below 2^24 a whole number is exact in single precision too.
        seed = randomness.generator("server k-means").integers(2**24)
        return {**state, "seed": public.asarray(seed)}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> SiteUploads:
        X = bounded_records(batch.X, self.norm_bound)
        found = fuzzy_centers(
            X,
            batch.offsets,
            self._local_start(X, batch, state, t, randomness),
            self.local_steps,
            fuzzifier=self.fuzzifier,
            present=batch.present,
        )
        xp = array_namespace(X)
        uploads = found[:, :, :-1]
        if self.weighted:
            uploads = xp.concat([uploads, self.size_unit * found[:, :, -1:]], axis=2)
        noise = None if self.noise_std is None else self.noise_std[batch.sites]
        return SiteUploads(uploads, noise)

    def combine(self, state: State, released: Released, t: int) -> State:
        uploads = on_host(released.value)
        points = uploads.reshape(-1, uploads.shape[2])
        weights = None
        if self.weighted:
            # Noise may make a size negative; k-means does not mind the unit of weights.
            points, sizes = points[:, :-1], np.maximum(points[:, -1], 0)
            weights = sizes if sizes.any() else None
        centers = clustered_centers(points, weights, self._server_model(state, t))
        xp, like = array_namespace(released.value), released.value
        return {**state, "centers": xp.asarray(centers, dtype=like.dtype, device=device(like))}

    def _server_model(self, state: State, t: int) -> KMeans:
        """Return k-means from several seedings in round 1, and from the last centres after it."""
        if t > 1:
            return KMeans(self.n_clusters, init=on_host(state["centers"]), n_init=1)
        seed = int(state["seed"])
        return KMeans(self.n_clusters, n_init=self.n_init, random_state=seed)

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        xp, X, centers = array_namespace(batch.X), batch.X, state["centers"]
        distances = squared_distances(X @ centers.T, xp.sum(X**2, axis=1), centers)
        losses = fuzzy_losses(distances, self.fuzzifier)
        return {"objective": float(xp.mean(segment_sum(losses, batch.offsets)))}

    def _local_start(
        self, X: Array, batch: SiteBatch, state: State, t: int, randomness: Randomness
    ) -> Array:
        n_sites = len(batch.sites)
        if "centers" in state:
            centers = state["centers"]
            return array_namespace(X).broadcast_to(centers, (n_sites, *centers.shape))
        draws = seeding_draws(batch.sites, 1, self.n_clusters, t, randomness)
        return seeded_centers(X, batch.offsets, draws[0], batch.present)
