"""k-means++ over sites: a start for runs without noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from dpfedc.clustering.stage import Public, SiteBatch, Stage, State
from dpfedc.kernels.cluster_sums import squared_distances
from dpfedc.kernels.row_views import centered_norms
from dpfedc.privacy.gate import Released
from dpfedc.privacy.open_gate import SiteUploads
from dpfedc.privacy.sampling import RoundSample, site_of_row, slot_of_row
from dpfedc.randomness import Randomness


@dataclass(frozen=True)
class SeedByDistance(Stage):
    """k-means++ over sites: round t uploads one record, drawn with probability ~ d^2(x, centres).

    Every record draws an exponential time with rate d^2; each site uploads the record whose time is
    first and that time, and the server takes the first of all: exactly a draw from all records. It
    uploads records as they are, so a gate with a plan refuses it.
    """

    n_rounds: int
    """One for each centre."""
    name = "seeding"
    purpose = "records to start from, drawn one by one"
    proved = False
    sums_records = False

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return {**state, "centers": public.asarray(np.zeros((0, public.n_features)))}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> SiteUploads:
        xp = array_namespace(batch.X)
        sites = np.asarray(batch.sites)[site_of_row(batch.offsets)]
        draws = randomness.uniform("seeding", t=t, sites=sites, slots=slot_of_row(batch.offsets))
        rates = np.ones(batch.n_records)
        if t > 1:
            chosen = state["centers"]
            squares = centered_norms(batch.X, chosen[0, :] * 0) ** 2
            distances = squared_distances(batch.X @ chosen.T, squares, chosen)
            rates = np.asarray(xp.min(distances, axis=1), dtype=np.float64)
        with np.errstate(divide="ignore"):
            times = -np.log1p(-draws) / rates
        times[~np.isfinite(times)] = np.finfo(np.float64).max
        if batch.present is not None:  # a null record is no place to start from
            times[~np.asarray(batch.present)] = np.inf
        order = np.lexsort((times, site_of_row(batch.offsets)))
        first = order[batch.offsets[:-1]]
        points = xp.take(batch.X, xp.asarray(first), axis=0)
        stamps = xp.asarray(np.minimum(times[first], 1e30), dtype=batch.X.dtype)
        return SiteUploads(xp.concat([points, stamps[:, None]], axis=1))

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        winner = int(xp.argmin(released.value[:, -1]))
        point = released.value[winner, :-1]
        return {**state, "centers": xp.concat([state["centers"], point[None, :]], axis=0)}
