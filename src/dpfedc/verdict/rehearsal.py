"""A run rehearsed: the real stages, gate and noise, on invented records of a public mixture.

What counts is the noise against the records of a round. So a rehearsal takes fewer records and
sites than the plan, and as much less noise: a large plan is rehearsed in seconds. At most sites
see records dealt at random, whatever the real ones see.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

from dpfedc.clustering.method import Method, Settings
from dpfedc.clustering.run_plan import Federation, RunPlan, planned_releases, told_of_noise
from dpfedc.clustering.stage import Stage
from dpfedc.engine.rounds import run
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.errors import NotFound
from dpfedc.kernels.column_view import VIEW, unseen
from dpfedc.kernels.devices import as_numpy
from dpfedc.kernels.threads import rows_over_threads
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.randomness import Randomness
from dpfedc.tables.layout import NUMBER, Layout
from dpfedc.verdict.mixtures import Mixture

Float = npt.NDArray[np.float64]

MAX_RECORDS, MAX_SITES, MAX_NUMBERS = 4000, 40, 1_000_000
"""Of a rehearsal; more would tell the same, later."""
MIN_PER_CLUSTER = 50
MAX_WORK, MAX_ARRAY = 2e10, 1e8
"""Multiplications of one rehearsal, and numbers in one array."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one rehearsal came to: the adjusted Rand index, and the centres (None: it failed).

    `centers` are as the clustering sees records, matched to the mixture's clusters, and `exact` the
    true means. `columns` are the matched centres' numbers in spreads of all records.
    """

    score: float
    centers: Float | None = None
    exact: Float | None = None
    columns: Float | None = None


class Rehearsal:
    """Rehearsals of one plan."""

    def __init__(self, method: Method, given: Settings, facts: Federation, plan: RunPlan) -> None:
        self._method, self._given, self._plan = method, given, plan
        self._n_records, n_sites = facts.n_records, min(facts.n_sites, MAX_SITES)
        _, self._k = method.cluster_range(given, facts)
        few = max(MAX_NUMBERS // facts.n_features, MIN_PER_CLUSTER * self._k)
        most = max(min(MAX_RECORDS, few), 2 * n_sites)
        n_records = max(min(facts.n_records, most), n_sites)
        sizes = np.bincount(np.arange(n_records) % n_sites)
        self.facts = Federation(facts.n_features, sizes, facts.layout)
        self._stages = tuple(_fewer_sites(stage, facts, self.facts) for stage in plan.stages)
        self._privacy: PrivacyPlan | None = None
        if plan.privacy is not None:
            self._privacy = _scaled(plan.privacy, plan.stages, self._stages, facts, self.facts)
            self._stages = told_of_noise(self._stages, self.facts, self._privacy)

    @property
    def too_large(self) -> bool:
        """Return whether a rehearsal would take minutes or more memory than there may be.

        Whoever is offered a plan rehearses it, so a plan must not be able to keep them busy.
        """
        n, m = self.facts.n_records, self.facts.n_features
        work = 0.0
        for stage in self._stages:
            k = max(getattr(stage, name, 1) for name in ("n_clusters", "n_prototypes"))
            steps = getattr(stage, "membership_steps", 10)
            work += stage.n_rounds * n * k * (m + steps * k)
        k = self._k
        return work > MAX_WORK or max(n * (m + k), k * k * m, 50 * m) > MAX_ARRAY

    @property
    def in_full(self) -> bool:
        """Return whether it has as many records as tell what more would."""
        return self.facts.n_records >= min(self._n_records, MAX_RECORDS)

    def outcome(self, mixture: Mixture, *, records: int, noise: int) -> Outcome:
        """Return what comes of records and noise drawn by these seeds."""
        rng = np.random.default_rng([records, mixture.n_clusters])
        X, y = mixture.draw(self.facts.n_records, rng)
        where = np.repeat(np.arange(self.facts.n_sites), self.facts.records_per_site)
        sites, randomness = Sites.of(X, where, None), Randomness(noise)
        gate: Gate | OpenGate = OpenGate(None)
        if self._privacy is not None:
            gate = Gate(self._privacy, SimulatedNoise(randomness), randomness)
        declared = self._method.declared(self._given, self.facts)
        state = {name: sites.public.asarray(values) for name, values in declared.items()}
        backend = SimulatedSites(sites, gate, randomness, None)
        try:
            with rows_over_threads():
                last = run(self._stages, backend, randomness=randomness, state=state)
        except NotFound:
            return Outcome(0.0)
        view = {name: as_numpy(last.state[name]) for name in VIEW if name in last.state}
        model = self._method.model(
            self._given, self._plan, last.state, feature_names=None, about={}
        )
        return _compared(model, view, X, y, mixture.n_clusters, self.facts.layout)


def _compared(
    model: ClusterModel, view: dict[str, Any], X: Float, y: Any, k: int, layout: Layout | None
) -> Outcome:
    V = np.asarray(replace(model, view=view).seen(X))
    score = max(float(adjusted_rand_score(y, model.labels(V))), 0.0)
    exact = np.stack(
        [V[y == c].mean(axis=0) if (y == c).any() else V.mean(axis=0) for c in range(k)]
    )
    gaps = ((model.cluster_centers[:, None] - exact) ** 2).sum(axis=2)
    found, true = linear_sum_assignment(gaps)
    # A run that chose fewer clusters has none for some: the nearest stands for them.
    centers = model.cluster_centers[gaps.argmin(axis=0)]
    centers[true] = model.cluster_centers[found]
    return Outcome(score, centers, exact, _in_spreads(centers, view, X, layout))


def _in_spreads(centers: Float, view: dict[str, Any], X: Float, layout: Layout | None) -> Float:
    """Return the centres' numbers over the spread of a typical column, or of each in a table."""
    if layout is None:
        return centers / math.sqrt(max(float(X.var(axis=0).mean()), 1e-24))
    numbers = [group.start for group in layout if group.kind == NUMBER]
    spread = np.maximum(X[:, numbers].std(axis=0), 1e-12)
    return np.asarray(unseen(centers, view)[:, numbers] / spread)


def _fewer_sites(stage: Stage, facts: Federation, small: Federation) -> Stage:
    if stage.sites_per_round is None:
        return stage
    share = stage.taking_part(facts.n_sites) / facts.n_sites
    return replace(stage, sites_per_round=max(round(share * small.n_sites), 1))  # type: ignore[type-var]


def _scaled(
    privacy: PrivacyPlan,
    stages: tuple[Stage, ...],
    fewer: tuple[Stage, ...],
    facts: Federation,
    small: Federation,
) -> PrivacyPlan:
    """Return the plan with the same noise over records in every round, added to the sum at once."""
    releases = []
    for stage, (name, n_rounds, per_round, most, q, _) in zip(
        stages, planned_releases(fewer, small), strict=True
    ):
        taking_part = stage.taking_part(facts.n_sites)
        records = facts.n_records * taking_part / facts.n_sites
        fewer_records = small.n_records * per_round / small.n_sites
        z = privacy.noise_of_sum(name, taking_part) * fewer_records / records
        releases.append(PlannedRelease(name, n_rounds, per_round, most, z, q))
    return PrivacyPlan(tuple(releases), privacy.delta, "trusted-server", small.n_sites)
