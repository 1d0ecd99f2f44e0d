"""Distributed k-median by coresets (DKM): sites upload a few weighted points, the server clusters.

After M.-F. Balcan, S. Ehrlich, Y. Liang, "Distributed k-means and k-median clustering on general
topologies" (2013). Round 1: every site finds k medians of its own records and uploads them with
their cost, the sum of distances. The server splits the coreset's t points over the sites in
proportion to these costs. Round 2: a site draws its share, with replacement, in proportion to the
distance to its medians. A draw q weighs (total cost) / (t distance_q); a median weighs the number
of its records less the weights of the draws among them. The server solves the weighted k-median
problem on all medians and draws. It counts a negative weight as zero; the coreset keeps it.

(The reference sends the medians in round 2; here they go with their cost, so sites keep nothing
but their records' distances.)

Draws are records, uploaded one by one, so a gate with a plan refuses this method. Public are the
medians, costs, draws and weights, and each site's share of the draws.

With a noise multiplier z, every upload carries Gaussian noise of z times what one record is ASSUMED
to change it by, if it becomes null; none of this is proved:
round 1: one median moves by no more than 2 bound / (n_i / 2k), nor than 2 bound, as the mean of an
ordinary cluster would; the cost changes by the record's distance, at most 2 bound, and is sent in
units that make this equal. Together sqrt(2) times that.
round 2: the record was drawn at most once, and its slot changes by its length, at most bound; the
weights change by one record, and are sent in units of the bound. Together sqrt(2) bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Public, SiteBatch, Stage, State
from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.gate import Released
from dpfedc.privacy.open_gate import SiteUploads
from dpfedc.privacy.sampling import RoundSample, site_of_row, slot_of_row
from dpfedc.randomness import Randomness
from dpfedc.research.kernels.candidate_draws import nearest_candidates, rows_in_ball
from dpfedc.research.kernels.kmedian import (
    Float,
    coreset_draws,
    coreset_shares,
    coreset_weights,
    kmedian_centers,
    nearest_medians,
    site_kmedians,
    stepped_medians,
)
from dpfedc.research.kernels.local_clustering import n_seeding_trials

RESTARTS, FIRST_STEPS, LAST_STEPS = 10, 15, 60
"""The server starts its problem so often, with a few steps each, and goes on from the best."""


def weighted_kmedian(points: Float, weights: Float, coins: Float) -> Float:
    """Return k medians of the weighted points, from the best of several starts.

    `coins` is starts x k x trials. Negative weights count as zero.
    """
    weights = np.maximum(weights, 0.0)
    weights = weights / weights.sum() if weights.any() else np.full(len(points), 1 / len(points))
    origin = weights @ points
    X, w = (points - origin)[None], weights[None]
    tries = [kmedian_centers(X, w, start[None], FIRST_STEPS) for start in coins]
    costs = [float(weights @ nearest_medians(X, C)[0][0]) for C in tries]
    C = stepped_medians(X, w, tries[int(np.argmin(costs))], LAST_STEPS)
    return np.asarray(C[0] + origin)


@dataclass(frozen=True)
class Coreset(Stage):
    """The two rounds; the state's `centres` become the medians of the coreset.

    `coreset_size` is t. `local_steps` are the alternating steps of a site on its own records.
    """

    n_clusters: int
    coreset_size: int
    local_steps: int = 10
    noise_multiplier: float = 0.0
    name = "coreset"
    purpose = "medians of every site, then a weighted sample"
    proved = False
    sums_records = False
    n_rounds = 2
    listens = True  # only so that sites keep what they remember; all take part

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        rng = randomness.generator("coreset")
        units = np.minimum(1.0, 2 * self.n_clusters / public.records_per_site)
        return {
            **state,
            "cost_units": units,
            "share_coin": np.asarray(rng.random()),
            "server_coins": rng.random((RESTARTS, self.n_clusters, self._n_trials)),
        }

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        xp = array_namespace(batch.X)
        empty = {name: xp.zeros_like(batch.X[:, 0]) for name in ("distances", "labels")}
        if "bound" in state:
            empty["records"] = rows_in_ball(batch.X, state["bound"])
        return empty

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> SiteUploads:
        X: Array = batch.memory.get("records", batch.X)
        if t == 1:
            return self._medians(X, batch, state, randomness)
        return self._draws(X, batch, state, randomness)

    def combine(self, state: State, released: Released, t: int) -> State:
        value = released.value
        return self._shared(value, state) if t == 1 else self._solved(value, state)

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        if "centers" not in state:
            return {}
        squares, _ = nearest_candidates(batch.X, state["centers"])
        xp = array_namespace(squares)
        return {"objective": float(xp.mean(xp.sqrt(squares)))}

    def _medians(
        self, X: Array, batch: SiteBatch, state: State, randomness: Randomness
    ) -> SiteUploads:
        xp, k, n_sites = array_namespace(X), self.n_clusters, len(batch.sites)
        like = {"dtype": X.dtype, "device": device(X)}
        n_coins = k * self._n_trials
        coins = randomness.uniform(
            "k-median seeds",
            t=1,
            sites=np.repeat(batch.sites, n_coins),
            slots=np.tile(np.arange(n_coins), n_sites),
        ).reshape(n_sites, k, self._n_trials)
        C, distances, labels = site_kmedians(
            X, batch.offsets, coins, self.local_steps, batch.present
        )
        batch.memory["distances"] = xp.asarray(distances, **like)
        batch.memory["labels"] = xp.asarray(labels, **like)
        units = np.asarray(state["cost_units"])[batch.sites]
        costs = np.add.reduceat(distances, batch.offsets[:-1]) * units
        sent = xp.concat([xp.reshape(C, (n_sites, -1)), xp.asarray(costs, **like)[:, None]], axis=1)
        return SiteUploads(sent, self._noise_std(state, 2 * math.sqrt(2) * units))

    def _draws(
        self, X: Array, batch: SiteBatch, state: State, randomness: Randomness
    ) -> SiteUploads:
        xp, like = array_namespace(X), {"dtype": X.dtype, "device": device(X)}
        n_slots, n_sites = self._n_slots(state), len(batch.sites)
        shares = np.asarray(state["shares"])[batch.sites]
        ends = np.concatenate([[0], np.cumsum(shares)])
        site, slot = site_of_row(ends), slot_of_row(ends)
        coins = randomness.uniform("coreset draws", t=2, sites=batch.sites[site], slots=slot)
        distances = on_host(batch.memory["distances"])
        rows = coreset_draws(distances, batch.offsets, shares, coins)
        drawn, left = coreset_weights(
            distances,
            on_host(batch.memory["labels"]).astype(np.int64),
            np.ones(batch.n_records) if batch.present is None else on_host(batch.present),
            batch.offsets,
            rows,
            n_clusters=self.n_clusters,
            cost_per_draw=float(state["total_cost"]) / self.coreset_size,
        )
        index, weights = np.zeros((n_sites, n_slots), np.int64), np.zeros((n_sites, n_slots))
        index[site, slot], weights[site, slot] = rows, drawn
        filled = xp.asarray((np.arange(n_slots) < shares[:, None]).ravel(), device=device(X))
        points = xp.take(X, xp.asarray(index.ravel(), device=device(X)), axis=0)
        points = xp.where(filled[:, None], points, xp.zeros_like(points))
        scaled = self._unit(state) * np.concatenate([weights, left], axis=1)
        points = xp.reshape(points, (n_sites, n_slots * X.shape[1]))
        sent = xp.concat([points, xp.asarray(scaled, **like)], axis=1)
        return SiteUploads(sent, self._noise_std(state, np.full(n_sites, math.sqrt(2))))

    def _shared(self, value: Array, state: State) -> State:
        """Return the state with all sites' medians, and each site's share of the draws."""
        xp = array_namespace(value)
        medians = xp.reshape(value[:, :-1], (value.shape[0] * self.n_clusters, -1))
        costs = np.maximum(on_host(value[:, -1]) / state["cost_units"], 0.0)
        return {
            **state,
            "medians": self._in_ball(medians, state),
            "total_cost": np.asarray(costs.sum()),
            "shares": coreset_shares(costs, self.coreset_size, float(state["share_coin"])),
        }

    def _solved(self, value: Array, state: State) -> State:
        """Return the state with the coreset (medians, then draws), its weights and the centres."""
        xp, on, medians = array_namespace(value), device(value), state["medians"]
        n_slots, m = self._n_slots(state), medians.shape[1]
        points = xp.reshape(value[:, : n_slots * m], (-1, m))
        weights = on_host(value[:, n_slots * m :]) / self._unit(state)
        filled = np.arange(n_slots) < np.asarray(state["shares"])[:, None]
        drawn = xp.take(points, xp.asarray(np.flatnonzero(filled), device=on), axis=0)
        coreset = xp.concat([medians, self._in_ball(drawn, state)], axis=0)
        weights = np.concatenate([weights[:, n_slots:].ravel(), weights[:, :n_slots][filled]])
        centers = weighted_kmedian(on_host(coreset), weights, np.asarray(state["server_coins"]))
        return {
            **state,
            "coreset": coreset,
            "coreset_weights": weights,
            "centers": xp.asarray(centers, dtype=value.dtype, device=on),
        }

    def _noise_std(self, state: State, sensitivity: Float) -> Float | None:
        """Return z times the sensitivity, given in units of the bound."""
        if not self.noise_multiplier:
            return None
        return self.noise_multiplier * float(state["bound"]) * sensitivity

    @property
    def _n_trials(self) -> int:
        return n_seeding_trials(self.n_clusters)

    def _n_slots(self, state: State) -> int:
        """Return the slots that every site sends: the largest share, which is public."""
        return int(np.asarray(state["shares"]).max())

    def _unit(self, state: State) -> float:
        return float(state["bound"]) if "bound" in state else 1.0

    def _in_ball(self, points: Array, state: State) -> Array:
        return rows_in_ball(points, state["bound"]) if "bound" in state else points
