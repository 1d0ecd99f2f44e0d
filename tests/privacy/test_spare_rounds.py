"""A spare round is a release like any other: planned, charged and accounted, needed or not."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.clustering import run_plan
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.engine.rounds import StageLost, run
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.accountant import gaussian_epsilon, plan_epsilon, releases_epsilon
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.ledger import GaussianCap, Ledger
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyTarget
from support.lost_rounds import LosingSites
from support.noise_checks import gate_of, logged_releases, noise_of
from support.planting import plant

SITES = np.repeat(np.arange(4), 30)
X = np.random.default_rng(0).normal(size=(len(SITES), 3)) + 9 * np.eye(3)[SITES % 3]
FACTS = Federation(3, np.full(4, 30))
TARGET = PrivacyTarget(40.0, 1e-4, spare_rounds=1)
CHOSEN = {
    "dp-lloyd": {"n_clusters": 3, "n_rounds": 3},
    "dp-fedc": {"n_clusters": 3, "n_rounds": 3, "sites_per_round": 3, "refine_rounds": 0},
    "one round": {"n_clusters": 3, "n_rounds": 1, "sites_per_round": 2, "refine_rounds": 1},
}


@cache
def planned(name, target=TARGET):
    method = method_named(name if name in ("dp-lloyd", "dp-fedc") else "dp-fedc")
    return method.plan(CHOSEN[name], FACTS, target)


def run_of(plan, lost, seed=0):
    """Run a plan over simulated sites that lose these rounds; return the gate and the end."""
    randomness = Randomness(seed)
    gate = Gate(plan.privacy, SimulatedNoise(randomness), randomness)
    sites = LosingSites(Sites.of(X, SITES), gate, randomness, lost=frozenset(lost))
    try:
        return gate, run(plan.stages, sites, randomness=randomness, spare_rounds=plan.spare_rounds)
    except StageLost:
        return gate, None


def everything_lost_once(plan):
    """Return the gate of a run that used all that it was allowed, spare rounds too."""
    lost = {(stage.name, 1) for stage in plan.stages if stage.n_rounds == 1}
    gate, last = run_of(plan, lost)
    assert last is not None
    return gate


@pytest.mark.parametrize("name", CHOSEN)
def test_a_run_with_all_its_spare_rounds_costs_what_was_promised(name):
    plan = planned(name)
    assert plan_epsilon(plan.privacy) <= TARGET.epsilon
    gate = everything_lost_once(plan)
    delta = TARGET.delta
    used = releases_epsilon(logged_releases(gate), delta)
    assert used == pytest.approx(plan_epsilon(plan.privacy), rel=1e-9)


@pytest.mark.parametrize("name", CHOSEN)
def test_forgetting_the_spare_rounds_in_the_accounting_is_found_out(name, monkeypatch):
    """Planted: a site's rounds are counted without the spare ones. Then no spare is let out."""

    def forgotten(right, stages, facts, spare_rounds=0):
        without = right(stages, facts)
        return [
            (*w[:5], r[5]) for w, r in zip(without, right(stages, facts, spare_rounds), strict=True)
        ]

    plant(monkeypatch, run_plan.planned_releases, forgotten)
    plan = planned.__wrapped__(name)
    assert any(plan.spare_rounds.values())
    with pytest.raises(Refused, match="got one more"):
        everything_lost_once(plan)


def test_a_stage_with_a_spare_round_is_accounted_as_one_of_two():
    one = PlannedRelease("mean", 1, 4, 2, 3.0, spare_rounds=1)
    two = PlannedRelease("mean", 2, 4, 2, 3.0)
    plans = [PrivacyPlan((release,), 1e-5, "local", 4) for release in (one, two)]
    assert plan_epsilon(plans[0]) == plan_epsilon(plans[1])
    assert plan_epsilon(plans[0]) == pytest.approx(gaussian_epsilon(2**0.5 / 3, 1e-5), rel=1e-3)


@pytest.mark.parametrize("name", CHOSEN)
def test_only_stages_of_one_round_have_spare_ones_and_pay_for_them(name):
    with_spares, without = planned(name).privacy, planned(name, replace(TARGET, spare_rounds=0))
    for release, plain in zip(with_spares.releases, without.privacy.releases, strict=True):
        assert release.spare_rounds == (release.n_rounds == 1)
        assert plain.spare_rounds == 0
        share = release.rounds_per_site / plain.rounds_per_site
        ratio = release.noise_multiplier / plain.noise_multiplier
        assert ratio == pytest.approx(share**0.5, rel=1e-3)
    assert PrivacyPlan.from_json(with_spares.to_json()) == with_spares
    assert "spare_rounds" not in without.privacy.to_json()


def test_a_third_attempt_is_refused_by_gate_and_ledger_alike(tmp_path):
    plan = PrivacyPlan((PlannedRelease("mean", 1, 8, 2, 2.0, spare_rounds=1),), 1e-5, "local", 8)
    gate = gate_of(plan)
    with Ledger.create(tmp_path / "ledger", holding="h", cap=GaussianCap(100.0, 1e-3)) as ledger:

        def attempts(t):
            yield lambda: noise_of(gate, 3, t=t)
            yield lambda: ledger.charge("run", plan, "mean", t, f"r{t}", noise_multiplier=2.0)

        noises = [next(attempts(t))() for t in (1, 2)]
        assert np.abs(noises[0] - noises[1]).min() > 0
        for t in (1, 2):
            list(attempts(t))[1]()
        for attempt in attempts(3):
            with pytest.raises(Refused, match="planned for 2 releases of a site, got one more"):
                attempt()


def test_a_plan_has_room_for_its_rounds_and_spare_ones_and_no_more():
    with pytest.raises(InvalidInput, match="rounds_per_site must be"):
        PlannedRelease("mean", 1, 4, 3, 2.0, spare_rounds=1)
    with pytest.raises(InvalidInput, match="spare_rounds must be"):
        PlannedRelease("mean", 1, 4, 1, 2.0, spare_rounds=-1)
    with pytest.raises(InvalidInput, match="spare_rounds must be"):
        PrivacyTarget(1.0, 1e-5, spare_rounds=2)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(CHOSEN)), data=st.data())
def test_whatever_is_lost_no_site_releases_more_than_planned(name, data):
    plan = planned(name)
    places = [
        (stage.name, t)
        for stage in plan.stages
        for t in range(1, stage.n_rounds + plan.spare_rounds[stage.name] + 1)
    ]
    lost = data.draw(st.sets(st.sampled_from(places)))
    gate, last = run_of(plan, lost, data.draw(st.integers(0, 99)))
    for stage, charged in gate._charged.items():
        assert charged.max() <= plan.privacy.of_stage(stage).rounds_per_site
    assert len({(event.stage, event.t) for event in gate.events}) == len(gate.events)
    dead = [
        stage.name
        for stage in plan.stages
        if all(place in lost for place in places if place[0] == stage.name)
    ]
    assert (last is None) == bool(dead)
    if last is not None:
        assert {(r.stage, r.t) for r in last.rounds if r.lost} <= lost
        for stage in plan.stages:
            rounds = [r for r in last.rounds if r.stage == stage.name]
            assert sum(not r.lost for r in rounds) >= 1
            if plan.spare_rounds[stage.name]:  # a spare round is asked for only if it is needed
                assert [r.lost for r in rounds] == [True] * (len(rounds) - 1) + [False]
