"""What a ledger admits: both kinds of cap, the plan's counters, and a naive oracle."""

import json
import math
import shutil
import sqlite3
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.errors import Refused
from dpfedc.privacy.accountant import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    guarantee,
    plan_epsilon,
)
from dpfedc.privacy.calibration import StageBudget, calibrated_plan
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Ledger
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from support.ledgers import PLAN, RELEASES, TOGETHER, WIDE, charge, ledgers_in


@pytest.fixture
def new(tmp_path):
    with ledgers_in(tmp_path) as make:
        yield make


def test_gaussian_cap_stops_exactly_at_mu_squared(new):
    z = 2.0
    plan = PrivacyPlan((PlannedRelease("rounds", 99, 4, 99, z),), 1e-6, "local", 4)
    cap = GaussianCap(3.0, 1e-6)
    ledger, n = new(cap), 0
    while (n + 1) / z**2 <= gaussian_mu(3.0, 1e-6) ** 2:
        n += 1
        charge(ledger, plan=plan, t=n)
    with pytest.raises(Refused, match="over the lifetime cap of 'ward 7'"):
        charge(ledger, plan=plan, t=n + 1)
    # The next one would have broken the promise, by the closed form of Gaussian releases.
    assert gaussian_delta(math.sqrt(n) / z, 3.0) <= 1e-6 < gaussian_delta(math.sqrt(n + 1) / z, 3.0)
    totals = ledger.totals()
    assert totals.spent["inverse_squares"] == n / 4
    assert totals.left["inverse_squares"] == pytest.approx(totals.limits["inverse_squares"] - n / 4)
    assert totals.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(n) / z, 1e-6))
    charge(ledger, run="weak", plan=plan, z=1e3)  # less, and that still fits


def test_a_plan_made_for_the_caps_epsilon_fits_into_it_once(new):
    budgets = (StageBudget("mean", 1, 4, 1, 0.1), StageBudget("rounds", 9, 4, 3, 0.9))
    plan = calibrated_plan(budgets, epsilon=1.0, delta=1e-5, trust="local", n_sites=4)
    for i, cap in enumerate((GaussianCap(1.0, 1e-5), BasicCap(1.0, 1e-5))):
        ledger = new(cap, name=str(i))
        charge(ledger, plan=plan, stage="mean")
        for t in (1, 2, 3):
            charge(ledger, plan=plan, t=t)
        with pytest.raises(Refused, match="over the lifetime cap"):
            charge(ledger, "again", plan, "mean")


def test_sampled_records_are_charged_as_if_all_were_there(new):
    sampled = replace(PLAN, releases=(replace(RELEASES[1], sampling_probability=0.01),))
    ledger = new()
    charge(ledger, plan=sampled)
    assert ledger.totals().spent["inverse_squares"] == 1 / 16


def test_spare_delta_is_charged_once_a_plan_and_capped(new):
    plan = replace(PLAN, spare_delta=4e-7)
    cap = GaussianCap(100.0, 1e-5, spare_delta=1e-6)
    ledger = new(cap)
    for run in ("a", "b"):
        charge(ledger, run, plan, t=1)
        charge(ledger, run, plan, t=2)
    with pytest.raises(Refused, match="more of spare_delta must be at most 2e-07"):
        charge(ledger, "c", plan)
    charge(ledger, "d", PLAN)
    assert ledger.totals().spent["spare_delta"] == pytest.approx(8e-7, rel=1e-9, abs=0)
    mu = math.sqrt(ledger.totals().limits["inverse_squares"])
    assert gaussian_delta(mu, 100.0) + cap.spare_delta == pytest.approx(cap.delta, rel=1e-6, abs=0)
    with pytest.raises(Refused, match="more of spare_delta must be at most 0"):
        charge(new(name="none set aside"), plan=plan)


def test_basic_cap_adds_up_whole_plans(new):
    epsilon = plan_epsilon(PLAN)
    ledger = new(BasicCap(2.5 * epsilon, 1e-3))
    for run in ("a", "b"):
        charge(ledger, run, t=1)
        assert ledger.totals().spent["epsilon"] == pytest.approx(epsilon * (1 + (run == "b")))
        charge(ledger, run, t=2)  # paid for
    with pytest.raises(Refused, match="more of epsilon"):
        charge(ledger, "c")
    charge(ledger, "a", t=3)
    assert ledger.totals().spent == {
        "epsilon": pytest.approx(2 * epsilon),
        "delta": pytest.approx(2e-6, rel=1e-9, abs=0),
    }
    with pytest.raises(Refused, match="more of delta"):
        charge(new(BasicCap(9.0, 1e-7), name="small delta"))


@pytest.mark.parametrize("cap", [WIDE, BasicCap(50.0, 1e-5)])
def test_both_totals_for_sums_over_sites(new, cap, tmp_path):
    ledger = new(cap, least_colluding_sites=1)
    charge(ledger, plan=TOGETHER)
    charge(ledger, plan=TOGETHER, stage="mean")
    totals = ledger.totals()
    if cap is WIDE:
        assert totals.spent["inverse_squares"] == 1 / 16 + 1 / 64
        # Three honest shares: 4 survivors less one who colludes.
        assert totals.spent_if_others_collude["inverse_squares"] == 3 * (1 / 16 + 1 / 64)
    else:
        promised = guarantee(TOGETHER, None)
        assert totals.epsilon == promised.epsilon
        assert totals.epsilon_if_others_collude == promised.epsilon_if_others_collude
    assert totals.epsilon_if_others_collude > 1.5 * totals.epsilon
    with sqlite3.connect(tmp_path / "site.ledger") as db:
        (content,) = db.execute("SELECT content FROM chain WHERE row = 2").fetchone()
    db.close()
    row = json.loads(content)
    assert (row["min_survivors"], row["colluding_sites"]) == (4, 1)
    with pytest.raises(Refused, match="must tolerate 1 colluding sites, got 0"):
        charge(ledger, "careless", replace(TOGETHER, colluding_sites=0))
    charge(ledger, "own noise", PLAN)  # tolerates all others


def test_unit_and_relation_are_those_of_the_ledger(new, monkeypatch):
    ledger = new()
    monkeypatch.setattr("dpfedc.privacy.ledger.book.RELATION", "replace-one")
    with pytest.raises(Refused, match="relation zero-out, got record, replace-one"):
        charge(ledger)


Z = st.sampled_from([1.0, 2.0, 4.0, 1024.0])
OPS = st.one_of(
    st.tuples(
        st.just("charge"), st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["mean", "w"]),
        st.integers(1, 6), st.sampled_from("xy"), Z,
    ),
    st.tuples(
        st.sampled_from(["settle", "answer"]), st.sampled_from("ab"), st.just(0),
        st.sampled_from(["mean", "w"]), st.integers(1, 6), st.sampled_from("xy"), Z,
    ),
    st.tuples(st.just("reopen")),
)  # fmt: skip
PLANS = [
    PrivacyPlan((PlannedRelease("w", 9, 3, 3, 1.0),), 1e-5, "local", 3),
    PrivacyPlan(
        (PlannedRelease("w", 9, 3, 2, 2.0), PlannedRelease("mean", 2, 3, 2, 1.0)), 1e-5, "local", 3,
        spare_delta=2.0**-20,
    ),
    PrivacyPlan(
        (PlannedRelease("mean", 9, 3, 9, 1.0),), 1e-5, "secure-aggregation", 3, spare_delta=2.0**-19
    ),
]  # fmt: skip


@settings(max_examples=150)
@given(st.lists(OPS, max_size=25), st.integers(0, 2))
def test_decisions_are_those_of_a_naive_oracle(tmp_path_factory, ops, n_spare):
    path = tmp_path_factory.mktemp("oracle") / "l"
    spare = n_spare * 2.0**-20
    cap = GaussianCap(9.0, 1e-5, spare_delta=spare)
    ledger = Ledger.create(path, holding="h", cap=cap)
    charges, answers = [], {}

    def oracle(op, run, i, stage, t, request, z):
        """Return whether the ledger must go along, looking at the whole past each time."""
        here = [c for c in charges if (c["run"], c["stage"]) == (run, stage)]
        same = [c for c in here if c["t"] == t]
        if op == "answer":
            return not same or (same[0]["request"] == request and (run, stage, t) in answers)
        if op == "settle":
            return bool(same) and (run, stage, t) not in answers
        rounds = {r.stage: r for r in PLANS[i].releases}
        plans = {c["run"]: c["plan"] for c in charges} | {run: i}
        past = sum(1 / c["z"] ** 2 for c in charges) + 1 / z**2
        return (
            all(c["plan"] == i for c in charges if c["run"] == run)
            and stage in rounds
            and z >= rounds[stage].noise_multiplier
            and len(here) < rounds[stage].rounds_per_site
            and all(c["t"] < t for c in here)
            and gaussian_delta(math.sqrt(past), 9.0) <= 1e-5 - spare
            and sum(PLANS[j].spare_delta for j in plans.values()) <= spare
        )

    try:
        for op in ops:
            if op == ("reopen",):
                ledger.close()
                ledger = Ledger.open(path)
                continue
            kind, run, i, stage, t, request, z = op
            due, before, got = oracle(*op), ledger.head(), None
            try:
                if kind == "charge":
                    ledger.charge(run, PLANS[i], stage, t, request, noise_multiplier=z)
                    charges.append(
                        {"run": run, "plan": i, "stage": stage, "t": t, "request": request, "z": z}
                    )
                elif kind == "settle":
                    ledger.settle(run, stage, t, str(op).encode())
                    answers[run, stage, t] = str(op).encode()
                else:
                    got = ledger.answer(run, stage, t, request)
                admitted = True
            except Refused:
                admitted = False
            assert admitted == due, op
            if kind == "answer" and admitted:
                assert got == answers.get((run, stage, t))
            if not admitted or kind == "answer":
                assert ledger.head() == before
        assert ledger.verify().n_rows == 1 + len(charges) + len(answers)
        ledger.require(before if ops and op != ("reopen",) else ledger.head())
    finally:
        ledger.close()
        shutil.rmtree(path.parent)
