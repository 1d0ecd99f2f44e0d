"""k-FED: one-shot federated clustering.

Every site clusters its own records into a few clusters and uploads their centres, once. The server
takes one site's centres, adds the farthest upload until it has k, assigns all uploads to the
nearest of these, and averages each group (D. K. Dennis, T. Li, V. Smith, "Heterogeneity for the
win: one-shot federated clustering", 2021).

The local clustering is k-means++ and Lloyd's algorithm. The reference first projects a site's
records on their leading singular vectors and drops ambiguous ones (Awasthi and Sheffet 2012); that
is for its proof and left out here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Public, SiteBatch, Stage, State
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.cluster_sums import squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.segments import segment_sum
from dpfedc.privacy.gate import Released
from dpfedc.privacy.open_gate import SiteUploads
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness
from dpfedc.research.kernels.local_clustering import Draws, kmeans_centers, n_seeding_trials

Float = npt.NDArray[Any]


def assumed_center_sensitivity(
    records_per_site: npt.NDArray[np.int64], n_centers: int, norm_bound: float
) -> Float:
    """Return how far one record is ASSUMED to move a site's local centres, for every site.

    2 B / max(1, n_i / (2 k)). Records are clipped to norm B, so the mean of c records moves by at
    most 2 B / c if one of them goes. Assumed, not proved: that the record's cluster holds at least
    half of an average cluster's records, and that the other records keep their clusters.
    """
    least = np.maximum(np.asarray(records_per_site, np.float64) / (2 * n_centers), 1.0)
    return np.asarray(2 * norm_bound / least)


def bounded_records(X: Array, norm_bound: float) -> Array:
    """Return the records, scaled down to the bound where they are longer."""
    if math.isinf(norm_bound):
        return X
    xp = array_namespace(X)
    return X * clip_weights(xp.sqrt(xp.sum(X**2, axis=1)), norm_bound)[:, None]


def seeding_draws(
    sites: npt.NDArray[np.int64], n_starts: int, n_clusters: int, t: int, randomness: Randomness
) -> Draws:
    """Return the numbers (starts x sites x clusters x trials) by which sites seed their k-means.

    A site's numbers depend on the site and round alone.
    """
    shape = (n_starts, n_clusters, n_seeding_trials(n_clusters))
    each = math.prod(shape)
    slots = np.tile(np.arange(each), len(sites))
    flat = randomness.uniform("local seeding", t=t, sites=np.repeat(sites, each), slots=slots)
    return np.moveaxis(flat.reshape(len(sites), *shape), 0, 1)


def mean_cost(batch: SiteBatch, centers: Array) -> float:
    """Return the k-means cost of the centres: squared distances, summed, as the mean over sites."""
    xp, X = array_namespace(batch.X), batch.X
    distances = squared_distances(X @ centers.T, xp.sum(X**2, axis=1), centers)
    return float(xp.mean(segment_sum(xp.min(distances, axis=1), batch.offsets)))


def farthest_first(points: Float, first: Float, n_points: int) -> Float:
    """Return `first` and, one after another, the points farthest from all chosen so far."""
    chosen = list(first[:n_points])
    gaps = np.min([((points - c) ** 2).sum(axis=1) for c in chosen], axis=0)
    while len(chosen) < n_points:
        chosen.append(points[int(np.argmax(gaps))])
        gaps = np.minimum(gaps, ((points - chosen[-1]) ** 2).sum(axis=1))
    return np.stack(chosen)


def averaged_groups(points: Float, centers: Float) -> Float:
    """Return the mean of the points nearest to each centre; a centre without points stays."""
    gaps = [((points - center) ** 2).sum(axis=1) for center in centers]
    members = np.eye(len(centers))[np.argmin(gaps, axis=0)]
    counts = members.sum(axis=0)[:, None]
    return np.where(counts > 0, members.T @ points / np.maximum(counts, 1), centers)


@dataclass(frozen=True)
class KFedRound(Stage):
    """The one round of k-FED; the state's `centres` become the averages of the server's groups.

    A site with fewer records than `clusters_per_site` has one cluster per record; what it uploads
    beyond these is not used. The server starts from the site with the most records. `noise_std`
    holds each site's noise; it rests on an assumed sensitivity, so a gate with a plan refuses it.
    """

    n_clusters: int
    clusters_per_site: int
    local_steps: int = 100
    n_init: int = 4
    norm_bound: float = math.inf
    noise_std: Float | None = None
    name = "k-fed"
    purpose = "centres of every site's own clusters"
    proved = False
    sums_records = False
    n_rounds = 1

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return {**state, "records_per_site": public.asarray(public.records_per_site)}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> SiteUploads:
        draws = seeding_draws(batch.sites, self.n_init, self.clusters_per_site, t, randomness)
        found = kmeans_centers(
            bounded_records(batch.X, self.norm_bound),
            batch.offsets,
            draws,
            self.local_steps,
            batch.present,
        )
        noise = None if self.noise_std is None else self.noise_std[batch.sites]
        return SiteUploads(found[:, :, :-1], noise)

    def combine(self, state: State, released: Released, t: int) -> State:
        uploads, records = on_host(released.value), on_host(state["records_per_site"])
        valid = np.arange(self.clusters_per_site) < records[:, None]
        largest = int(np.argmax(records))
        points = uploads[valid]
        chosen = farthest_first(points, uploads[largest][valid[largest]], self.n_clusters)
        centers = averaged_groups(points, chosen)
        xp, like = array_namespace(released.value), released.value
        return {**state, "centers": xp.asarray(centers, dtype=like.dtype, device=device(like))}

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        return {"objective": mean_cost(batch, state["centers"])}
