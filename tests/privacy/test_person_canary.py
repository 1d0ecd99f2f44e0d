"""An audit with a canary: a person with the most extreme rows there are, in a table or not.

The auditor knows all other persons, the plan and every release, and asks of each run whether the
canary was there. From how often it is right follows a lower bound on epsilon, at 99.9 % confidence,
which must be below what is promised. The same audit finds out a run that protects rows only.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import contributed
from dpfedc.engine.rounds import run
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.privacy.accountant import guarantee
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.sums import summed
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyTarget
from dpfedc.tables.encode import encoded_table
from dpfedc.tables.schema import Schema
from dpfedc.tables.stored import column_table
from support.audits import lower_bound

DELTA, N_RUNS, VISITS = 1e-3, 300, 5
SCHEMA = Schema.of({
    "person": "who",
    "column": [
        {"name": "age", "kind": "number", "range": [0, 100]},
        {"name": "pulse", "kind": "number", "range": [40, 180]},
        {"name": "sex", "kind": "category", "values": ["F", "M"]},
    ],
})  # fmt: skip


def visits(schema):
    """Return the records of 30 persons, the last of whom is the canary."""
    rng = np.random.default_rng(0)
    rows = [
        (f"p{i}", rng.normal(40, 5), rng.normal(70, 5), "F") for i in range(29) for _ in range(2)
    ]
    rows += [("canary", 100.0, 180.0, "M")] * VISITS
    names = ("who", "age", "pulse", "sex")
    columns = {name: [row[j] for row in rows] for j, name in enumerate(names)}
    return encoded_table(column_table("visits", columns), schema)


class Auditor(SimulatedSites):
    """The sites, and somebody who sees all releases and knows everybody but the canary."""

    def watch(self, canary):
        self.canary, self.evidence = canary, 0.0
        return self

    def round(self, stage, state, t, cohort):
        released = super().round(stage, state, t, cohort)
        bound, std = stage.sensitivity(state, t), released.event.noise_std
        sums = []
        for present in (np.ones(len(self.canary), bool), ~self.canary):
            sites = replace(self._seen, present=present)
            batch = sites.batch(np.arange(1), {})
            batch.memory = stage.prepare(batch, state, self.randomness)
            gate = Gate(self.gate.plan, SimulatedNoise(self.randomness), self.randomness)
            sums.append(summed(contributed(stage, batch, state, t, gate, self.randomness), bound))
        with_it, without = sums
        # The log of how much likelier the release is with the canary than without it.
        gap = (released.value - without) ** 2 - (released.value - with_it) ** 2
        self.evidence += float(gap.sum()) / (2 * std**2)
        return released


def evidence(records, canary, plan, facts, seed, *, there):
    randomness = Randomness(seed)
    present = None if there else ~canary
    sites = Sites.of(records.X, None, present)
    gate = Gate(plan.privacy, SimulatedNoise(randomness), randomness)
    auditor = Auditor(sites, gate, randomness).watch(canary)
    state = {"origin": np.zeros(facts.n_features)}
    run(plan.stages, auditor, randomness=randomness, state=state)
    return auditor.evidence


def audited(schema, epsilon):
    """Return the lower bound on epsilon, and what the plan promises."""
    records = visits(schema)
    canary = np.array([text == "canary" for text in records.ids])
    facts = Federation(records.X.shape[1], np.array([len(records.X)]), schema.layout)
    target = PrivacyTarget(epsilon, DELTA, unit=schema.unit)
    given = {"n_clusters": 2, "n_rounds": 2, "refine_rounds": 2}
    plan = method_named("dp-fedc").plan(given, facts, target)
    scores = [
        np.array([evidence(records, canary, plan, facts, 2 * s + i, there=there)
                  for s in range(N_RUNS)])
        for i, there in enumerate((True, False))
    ]  # fmt: skip
    return lower_bound(*scores, delta=DELTA), guarantee(plan.privacy, None).epsilon


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_a_canary_person_is_as_well_hidden_as_is_promised():
    found, promised = audited(SCHEMA, 4.0)
    assert promised == pytest.approx(4.0, rel=1e-3)
    assert 0.2 < found <= promised, found


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_the_audit_finds_out_that_rows_alone_are_protected():
    """Planted: each visit a record of its own, and the promise said to be for persons."""
    found, promised = audited(replace(SCHEMA.without_persons(), id="who"), 2.0)
    assert found > 1.2 * promised, found
