"""The unit that epsilon protects: plans for persons, with rows at one site or at several."""

import json
import math
from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.clustering.dp_fedc_planner import DP_FEDC, noise_ratio
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import SiteBatch
from dpfedc.errors import InvalidInput
from dpfedc.kernels.row_views import Columns
from dpfedc.privacy.accountant import (
    Reach,
    composed_mu,
    dp_event,
    gaussian_epsilon,
    gaussian_mu,
    guarantee,
    plan_epsilon,
    plan_reach,
    reach_of,
    releases_epsilon,
)
from dpfedc.privacy.calibration import StageBudget, calibrated_plan
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.schedule import most_rounds_of_a_site, schedule
from dpfedc.privacy.sums import OuterSum
from dpfedc.settings import PrivacyTarget
from support.noise_checks import gate_of, let_out
from support.planting import plant

TRUST = ("local", "secure-aggregation", "trusted-server")
GRID_ERROR = 2e-3
RELEASES = (PlannedRelease("mean", 1, 4, 1, 8.0), PlannedRelease("rounds", 9, 4, 3, 4.25))
OLD = """{
 "unit": "record",
 "relation": "zero-out",
 "releases": [
  {
   "stage": "mean",
   "n_rounds": 1,
   "sites_per_round": 4,
   "rounds_per_site": 1,
   "noise_multiplier": 8.0,
   "sampling_probability": 1.0
  },
  {
   "stage": "rounds",
   "n_rounds": 9,
   "sites_per_round": 4,
   "rounds_per_site": 3,
   "noise_multiplier": 4.25,
   "sampling_probability": 0.5
  }
 ],
 "delta": 1e-06,
 "trust": "secure-aggregation",
 "n_sites": 5,
 "min_survivors": 4,
 "colluding_sites": 1,
 "spare_delta": 1e-08
}"""
"""A plan as version 0.1.0 wrote it; digests and ledgers rest on every character."""


def plan_for(trust="local", sites=1, unit="person", **more):
    return PrivacyPlan(RELEASES, 1e-5, trust, 5, unit=unit, sites_per_person=sites, **more)


# --- how it is written -------------------------------------------------------------------------


def test_a_plan_for_records_is_written_as_ever():
    plan = PrivacyPlan.from_json(OLD)
    assert (plan.unit, plan.sites_per_person) == ("record", 1)
    assert plan.to_json() == OLD
    assert "sites_per_person" not in plan_for(sites=1).to_json()


@pytest.mark.parametrize("sites", [1, 2, 5])
def test_a_plan_for_persons_comes_back_as_it_was(sites):
    plan = plan_for(sites=sites)
    content = json.loads(plan.to_json())
    assert content["unit"] == "person"
    assert content.get("sites_per_person", 1) == sites
    assert PrivacyPlan.from_json(plan.to_json()) == plan
    assert plan != replace(plan, unit="record", sites_per_person=1)


@pytest.mark.parametrize(
    ("unit", "sites", "message"),
    [
        ("visit", 1, "unit must be one of record, person, got 'visit'"),
        (None, 1, "unit must be"),
        (["person"], 1, "unit must be"),
        ("record", 2, "sites_per_person must be 1 with unit record, got 2"),
        ("person", 0, "sites_per_person must be"),
        ("person", 1.5, "sites_per_person must be a whole number"),
        ("person", True, "sites_per_person must be a whole number"),
        ("person", 6, "sites_per_person must be from 1 to 5, got 6"),
    ],
)
def test_units_that_mean_nothing_are_refused(unit, sites, message):
    with pytest.raises(InvalidInput, match=message):
        plan_for(unit=unit, sites=sites)
    content = {**json.loads(plan_for().to_json()), "unit": unit, "sites_per_person": sites}
    with pytest.raises(InvalidInput, match="not a privacy plan"):
        PrivacyPlan.from_json(json.dumps(content))
    if sites != 6:
        with pytest.raises(InvalidInput, match=message):
            PrivacyTarget(1.0, 1e-5, unit=unit, sites_per_person=sites)


def test_sampling_and_several_sites_exclude_each_other():
    sampled = (replace(RELEASES[0], sampling_probability=0.5), RELEASES[1])
    assert PrivacyPlan(sampled, 1e-5, "local", 5, unit="person").unit == "person"
    budgets = (StageBudget("rounds", 3, 5, 3, 1.0, 0.5),)
    about = {"epsilon": 1.0, "delta": 1e-5, "trust": "local", "n_sites": 5, "unit": "person"}
    facts, target = Federation(3, np.full(5, 900)), PrivacyTarget(5.0, 1e-5, unit="person")
    for refused in (
        lambda: PrivacyPlan(sampled, 1e-5, "local", 5, unit="person", sites_per_person=2),
        lambda: plan_for(sites=2, spare_delta=1e-8),
        lambda: calibrated_plan(budgets, sites_per_person=2, **about),
        lambda: DP_FEDC.plan(
            {"n_clusters": 2, "sampling_probability": 0.5},
            facts,
            replace(target, sites_per_person=2),
        ),
    ):
        with pytest.raises(InvalidInput, match=r"must be 1 where records are sampled .* got 2"):
            refused()


# --- what a person meets -----------------------------------------------------------------------


def pld_of(events, delta=1e-5):
    accountant = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-3)
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("sites", [1, 2, 3])
def test_events_are_those_that_dp_accounting_composes(sites):
    """Local: every release s times. Sums: the same releases with z / s. Counted there by hand."""
    alone = [(dp.GaussianDpEvent(r.noise_multiplier), r.rounds_per_site) for r in RELEASES]
    times = pld_of([(event, n * sites) for event, n in alone])
    assert plan_epsilon(plan_for("local", sites)) == pytest.approx(times, rel=1e-9)
    closer = pld_of(
        [(dp.GaussianDpEvent(r.noise_multiplier / sites), r.rounds_per_site) for r in RELEASES]
    )
    for trust in TRUST[1:]:
        assert plan_epsilon(plan_for(trust, sites)) == pytest.approx(closer, rel=1e-9)
    own = guarantee(plan_for("local", sites), None)
    assert pld_of([(own.event, 1)]) == pytest.approx(own.epsilon, rel=1e-9)
    copies = pld_of([(dp_event(RELEASES), sites)])
    assert own.epsilon == pytest.approx(copies, rel=1e-9)
    assert (own.unit, own.sites_per_person) == ("person", sites)
    assert own.as_plain()["sites_per_person"] == sites


@given(st.sampled_from(TRUST), st.integers(1, 5))
def test_the_closed_form_grows_with_the_reach(trust, sites):
    plan = plan_for(trust, sites)
    grown = sites if trust == "local" else sites**2
    assert plan_reach(plan).squared == grown
    mu = math.sqrt(grown * (1 / 8**2 + 3 / 4.25**2))
    assert composed_mu(plan.releases, plan_reach(plan)) == pytest.approx(mu)
    epsilon = gaussian_epsilon(mu, 1e-5)
    assert epsilon <= plan_epsilon(plan) <= epsilon * (1 + GRID_ERROR) + GRID_ERROR


def test_a_person_at_one_site_is_a_record():
    for trust in TRUST:
        record = plan_for(trust, unit="record")
        assert plan_epsilon(plan_for(trust)) == plan_epsilon(record)
        assert reach_of(trust, 1) == Reach()


@st.composite
def persons(draw):
    n_sites = draw(st.integers(1, 12))
    per_round, n_rounds = draw(st.integers(1, n_sites)), draw(st.integers(1, 30))
    at = draw(st.sets(st.integers(0, n_sites - 1), min_size=1))
    return n_sites, per_round, n_rounds, sorted(at), draw(st.integers(0, 2**32 - 1))


@given(persons())
def test_no_schedule_lets_a_person_meet_more(person):
    """Section 13: sums move by j_t S in round t; the sum of j_t^2 is at most s^2 rounds."""
    n_sites, per_round, n_rounds, at, seed = person
    rng = np.random.default_rng(seed)
    together = [
        int(np.isin(cohort, at).sum()) for cohort in schedule(n_sites, per_round, n_rounds, rng=rng)
    ]
    most, sites = most_rounds_of_a_site(n_sites, per_round, n_rounds), len(at)
    assert sum(together) <= most * reach_of("local", sites).squared
    assert sum(j**2 for j in together) <= most * reach_of("trusted-server", sites).squared


@pytest.mark.parametrize("sites", [1, 2, 4])
def test_a_person_moves_a_sum_by_as_much_as_is_counted(sites):
    """Long records that point the same way, one at each site: nulling them moves s S, no less."""
    plan = PrivacyPlan((PlannedRelease("mean", 1, 4, 1, 2.0),), 1e-5, "trusted-server", 4)
    x = np.full((4, 3), 50.0)
    values = []
    for present in (np.ones(4, bool), np.arange(4) >= sites):
        batch = SiteBatch(x, np.arange(5), np.arange(4), present)
        rows = OuterSum(np.ones((4, 1)), Columns.of(x), np.linalg.norm(x, axis=1), shape=(3,))
        values.append(np.asarray(let_out(gate_of(plan), rows, batch, sensitivity=1.5).value))
    moved = np.linalg.norm(values[0] - values[1])
    assert moved == pytest.approx(1.5 * reach_of("trusted-server", sites).shift, rel=1e-12)


def test_a_person_against_whom_all_other_sites_work():
    """Only the noise of the person's own sites is left, at least one share for each in a round."""
    plan = plan_for("secure-aggregation", 2, min_survivors=4, colluding_sites=1)
    shares, squares = 3, 1 / 8**2 + 3 / 4.25**2
    alone = guarantee(plan, None).epsilon_if_others_collude
    assert alone == pytest.approx(gaussian_epsilon(math.sqrt(2 * shares * squares), 1e-5))
    few = plan_for("secure-aggregation", 3, min_survivors=2, colluding_sites=1)
    promise = guarantee(few, None)
    # With fewer honest shares than sites of the person, the promise itself is the larger one.
    assert promise.epsilon_if_others_collude == pytest.approx(promise.epsilon, rel=GRID_ERROR)
    for trust in ("local", "trusted-server"):
        promise = guarantee(plan_for(trust, 3), None)
        assert promise.epsilon_if_others_collude == promise.epsilon


# --- noise for an epsilon ----------------------------------------------------------------------


@settings(max_examples=20)
@given(
    st.sampled_from(TRUST), st.integers(1, 3), st.floats(0.05, 20), st.floats(1e-9, 1e-2),
    st.integers(1, 40),
)  # fmt: skip
def test_calibration_reaches_epsilon_and_no_more(trust, sites, epsilon, delta, rounds):
    budgets = (StageBudget("mean", 1, 7, 1, 0.2), StageBudget("rounds", rounds, 7, rounds, 0.8))
    about = {"epsilon": epsilon, "delta": delta, "trust": trust, "n_sites": 7}
    plan = calibrated_plan(budgets, unit="person", sites_per_person=sites, **about)
    assert (plan.unit, plan.sites_per_person) == ("person", sites)
    assert plan_epsilon(plan) <= epsilon
    less = tuple(replace(r, noise_multiplier=0.99 * r.noise_multiplier) for r in plan.releases)
    assert plan_epsilon(replace(plan, releases=less)) > epsilon
    alone = calibrated_plan(budgets, **about)
    grown = math.sqrt(sites) if trust == "local" else sites
    for release, one in zip(plan.releases, alone.releases, strict=True):
        ratio = release.noise_multiplier / one.noise_multiplier
        assert ratio == pytest.approx(grown, rel=1e-3)


@pytest.mark.parametrize("trust", TRUST)
@pytest.mark.parametrize("per_round", [2, 5])
def test_a_run_is_planned_for_persons(trust, per_round):
    facts = Federation(4, np.full(5, 3000))
    choices = {"n_clusters": 3, "sites_per_round": per_round}
    target = PrivacyTarget(4.0, 1e-6, trust, unit="person", sites_per_person=3)
    plan = DP_FEDC.plan(choices, facts, target)
    assert (plan.privacy.unit, plan.privacy.sites_per_person) == ("person", 3)
    epsilon = plan_epsilon(plan.privacy)
    assert 4.0 * 0.99 < epsilon <= 4.0
    # The planner sees the noise: that of the closed form, and that which stages are told of.
    one = replace(target, sites_per_person=1)
    grown = math.sqrt(3) if trust == "local" else 3
    assert plan.noise_ratio == pytest.approx(grown * noise_ratio(facts, 3, per_round, one))
    again = DP_FEDC.plan(choices, facts, target, privacy=plan.privacy)
    assert again.stages == plan.stages


# --- bugs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda right, trust, sites: Reach(),  # a person counted as a record
        lambda right, trust, sites: Reach(times=sites),  # sums composed, though they move at once
    ],
)
def test_a_reach_that_is_too_short_breaks_the_promise(monkeypatch, wrong):
    budgets = (StageBudget("rounds", 3, 7, 3, 1.0),)
    about = {"epsilon": 1.0, "delta": 1e-5, "trust": "trusted-server", "n_sites": 7}
    plant(monkeypatch, reach_of, wrong)
    plan = calibrated_plan(budgets, unit="person", sites_per_person=3, **about)
    met = releases_epsilon(plan.releases, 1e-5, Reach(shift=3))
    assert met > 1.7


def test_the_worst_schedule_needs_the_whole_shift():
    """All of a person's sites in the same rounds: z / s is what they meet, and not too much."""
    plan = plan_for("trusted-server", 3)
    exact = gaussian_epsilon(math.sqrt(9 * (1 / 8**2 + 3 / 4.25**2)), 1e-5)
    assert plan_epsilon(plan) == pytest.approx(exact, rel=GRID_ERROR)
    assert gaussian_mu(exact, 1e-5) == pytest.approx(3 * composed_mu(RELEASES))
