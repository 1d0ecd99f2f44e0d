"""Rehearsals: the noise over the records of a round is the plan's, with fewer records, too."""

import numpy as np
import pytest

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.privacy.gate import Gate
from dpfedc.settings import PrivacyTarget
from dpfedc.tables.layout import Group
from dpfedc.verdict import rehearsal
from dpfedc.verdict.mixtures import Mixture, reference_mixture
from dpfedc.verdict.rehearsal import Rehearsal

DECLARED = {"n_clusters": 2, "norm_bound": 5.0, "n_rounds": 2}


def planned(facts, method="dp-lloyd", epsilon=4.0, given=None, **target):
    given = DECLARED if given is None else given
    target = None if epsilon is None else PrivacyTarget(epsilon, 1e-5, **target)
    method = method_named(method)
    return method, given, facts, method.plan(given, facts, target)


def mixture_for(given, facts, name="far"):
    return reference_mixture(name, given, facts, seed=0)


@pytest.fixture
def gates(monkeypatch):
    """Make rehearsals small, and return the gates that they open."""
    opened = []

    def opening(*args, **more):
        opened.append(Gate(*args, **more))
        return opened[-1]

    monkeypatch.setattr(rehearsal, "Gate", opening)
    monkeypatch.setattr(rehearsal, "MAX_RECORDS", 90)
    monkeypatch.setattr(rehearsal, "MAX_SITES", 4)
    return opened


TRUST = {
    "local": {"trust": "local"},
    "together": {"trust": "secure-aggregation"},
    "some lost, some colluding": {
        "trust": "secure-aggregation", "min_survivors": 5, "colluding_sites": 2,
    },
    "server": {"trust": "trusted-server"},
    "persons": {"trust": "local", "unit": "person", "sites_per_person": 2},
}  # fmt: skip


@pytest.mark.parametrize("sites_per_round", [None, 6])
@pytest.mark.parametrize("trust", TRUST)
@pytest.mark.parametrize("method", ["dp-lloyd", "dp-fedc"])
def test_noise_over_the_records_of_a_round_is_that_of_the_plan(
    gates, method, trust, sites_per_round
):
    facts = Federation(2, np.full(12, 100))
    given = {**DECLARED, "sites_per_round": sites_per_round}
    method, given, facts, plan = planned(facts, method, given=given, **TRUST[trust])
    small = Rehearsal(method, given, facts, plan)
    assert (small.facts.n_records, small.facts.n_sites) == (90, 4)
    small.outcome(mixture_for(given, facts), records=0, noise=0)
    (gate,) = gates
    stages = {stage.name: stage for stage in plan.stages}
    assert {event.stage for event in gate.events} == set(stages)
    for event in gate.events:
        taking_part = stages[event.stage].taking_part(12)
        over_records = plan.privacy.noise_of_sum(event.stage, taking_part) / (100 * taking_part)
        # Of 90 records two sites have 22, two 23: a round's records differ by 2 % at most.
        found = event.noise_std / event.sensitivity / event.n_records
        assert found == pytest.approx(over_records, rel=0.03)


def test_noise_without_a_plan_to_scale_is_the_plan_s_own(gates):
    """Where the plan is small, its records, its sites and its noise are rehearsed as they are."""
    facts = Federation(2, np.array([25, 35]))
    method, given, facts, plan = planned(facts, trust="local")
    small = Rehearsal(method, given, facts, plan)
    assert (small.facts.n_records, small.facts.n_sites) == (60, 2)
    small.outcome(mixture_for(given, facts), records=0, noise=0)
    for event in gates[0].events:
        noise = plan.privacy.noise_of_sum(event.stage, 2)
        assert event.noise_std / event.sensitivity == pytest.approx(noise)


def test_stages_are_told_of_the_noise_that_they_get(gates):
    facts = Federation(2, np.full(20, 500))
    method, given, facts, plan = planned(facts, given={"n_clusters": 2, "n_rounds": 2})
    small = Rehearsal(method, given, facts, plan)
    (asked,) = [stage.min_count for stage in plan.stages if stage.name == "bound"]
    (told,) = [stage.min_count for stage in small._stages if stage.name == "bound"]
    assert told / 90 == pytest.approx(asked / 10_000)


def test_seeds_of_records_and_of_noise_are_apart():
    facts = Federation(2, np.full(2, 150))
    small = Rehearsal(*planned(facts))
    mixture = mixture_for(DECLARED, facts)
    seeds = {"same": (0, 0), "again": (0, 0), "noise": (0, 1), "records": (1, 0)}
    found = {k: small.outcome(mixture, records=r, noise=n) for k, (r, n) in seeds.items()}
    np.testing.assert_array_equal(found["same"].centers, found["again"].centers)
    np.testing.assert_array_equal(found["same"].exact, found["noise"].exact)
    assert not np.array_equal(found["same"].centers, found["noise"].centers)
    assert not np.allclose(found["same"].exact, found["records"].exact)


@pytest.mark.parametrize("method", ["dp-lloyd", "dp-fedc"])
def test_without_noise_clear_clusters_are_found_and_matched(method):
    facts = Federation(2, np.full(2, 200))
    method, given, facts, plan = planned(facts, method, epsilon=None)
    outcome = Rehearsal(method, given, facts, plan).outcome(
        mixture_for(given, facts), records=0, noise=0
    )
    assert outcome.score > 0.95
    # Matched: each centre is nearest to the mean of its own cluster, and near it.
    gaps = np.linalg.norm(outcome.centers[:, None] - outcome.exact, axis=2)
    assert gaps.argmin(axis=1).tolist() == [0, 1]
    scale = np.linalg.norm(outcome.centers[0] - outcome.centers[1])
    spread = scale / np.linalg.norm(outcome.columns[0] - outcome.columns[1])
    assert np.diag(gaps).max() < 0.3 * spread


def test_the_score_is_never_negative():
    facts = Federation(2, np.full(2, 150))
    small = Rehearsal(*planned(facts, epsilon=1e-3))
    scores = [
        small.outcome(mixture_for(DECLARED, facts), records=i, noise=i).score for i in range(8)
    ]
    assert min(scores) >= 0


def test_a_run_that_stops_has_no_centers():
    """Records of one length each: no bin of the histogram stands out, though one could."""
    facts = Federation(2, np.array([400]))
    method, given, facts, plan = planned(facts, given={"n_clusters": 2, "n_rounds": 2}, epsilon=2.0)
    assert not plan.hopeless(facts)

    def lengths(n, rng):
        return np.column_stack([2.0 ** (np.arange(n) % 60 - 30), np.zeros(n)]), np.arange(n) % 2

    outcome = Rehearsal(method, given, facts, plan).outcome(
        Mixture("lengths", 2, lengths), records=0, noise=0
    )
    assert (outcome.score, outcome.centers, outcome.exact) == (0.0, None, None)


def test_a_table_is_rehearsed_with_its_own_stages(gates):
    layout = (
        Group("number", 0, 1, 1.0, auto=True),
        Group("gaps", 1, 1, 0.5),
        Group("shares", 2, 2, 0.5),
        Group("number", 4, 1, 1.0),
    )
    facts = Federation(5, np.full(3, 30), layout)
    method, given, facts, plan = planned(facts, "dp-fedc", epsilon=1e4, given={"n_clusters": 2})
    outcome = Rehearsal(method, given, facts, plan).outcome(
        mixture_for(given, facts), records=0, noise=0
    )
    assert {event.stage for event in gates[0].events} >= {"ranges", "spread", "centres"}
    assert outcome.centers.shape == (2, 5)
    assert outcome.columns.shape == (2, 2)  # its numbers
    assert 0.5 < np.abs(outcome.columns[0] - outcome.columns[1]).max() < 3
    assert outcome.score > 0.9


def test_few_records_of_many_columns_and_many_sites_are_taken():
    """Never fewer than a site needs, nor than a cluster needs to be one."""
    for n_features, sizes, k, least in (
        (100_000, np.full(10, 1000), 3, 150),
        (2, np.full(1000, 3), 3, 3000),
        (2, np.full(500, 100), 3, 4000),
    ):
        facts = Federation(n_features, sizes)
        method = method_named("dp-lloyd")
        given = {**DECLARED, "n_clusters": k}
        small = Rehearsal(method, given, facts, method.plan(given, facts, None))
        assert small.facts.n_records == least
        assert small.facts.n_sites == min(len(sizes), rehearsal.MAX_SITES)
        assert small.facts.records_per_site.min() >= 1
