"""A ledger that lost rows: it is charged the most they can have cost, and goes on from there."""

import re
import shutil
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.errors import Refused
from dpfedc.privacy.accountant import plan_epsilon
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Head, Ledger, RowsLost
from dpfedc.privacy.ledger.book import Book
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from support.ledgers import (
    PLAN,
    TOGETHER,
    WIDE,
    charge,
    damage,
    forged,
    ledgers_in,
    set_in,
)
from support.planting import plant

MANY = PrivacyPlan((PlannedRelease("rounds", 30, 4, 20, 2.0),), 1e-6, "local", 4)
SMALL = GaussianCap(10.0, 1e-5)
LOST = Head(40, "ab" * 32)


@pytest.fixture
def new(tmp_path):
    with ledgers_in(tmp_path) as make:
        yield make


def restored(path, *, until, then, cap=SMALL):
    """Return a ledger that was put back from a backup, and the head that somebody had seen."""
    with Ledger.create(path, holding="h", cap=cap) as ledger:
        until(ledger)
    shutil.copy(path, path.with_name("backup"))
    with Ledger.open(path) as ledger:
        then(ledger)
        seen, spent = ledger.head(), ledger.totals().spent
    shutil.copy(path.with_name("backup"), path)
    return Ledger.open(path), seen, spent


def rounds(run, *ts, plan=MANY):
    return lambda ledger: [charge(ledger, run, plan, t=t, request=f"q{t}") for t in ts]


# --- all that is left --------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [SMALL, BasicCap(200.0, 1e-5)])
def test_all_that_is_left_is_charged_and_nothing_is_released_any_more(tmp_path, cap):
    ledger, seen, _ = restored(
        tmp_path / "l", until=rounds("a", 1, 2), then=rounds("b", 1, 2, 3), cap=cap
    )
    with ledger:
        with pytest.raises(RowsLost, match=f"ledger recover .*l --seen 6:{seen.digest}") as lost:
            ledger.require(seen)
        said = str(lost.value)  # before the command stands whose word it is
        doubt = "if no backup was put back here, the server is wrong or lies; ask its operator"
        assert -1 < said.find(doubt) < said.find("dpfedc ledger recover")
        assert "if no trial was charged since the backup" in said
        head = ledger.recover(seen)
        assert head == ledger.head() == ledger.verify()
        totals = ledger.totals()
        assert totals.spent == totals.limits
        assert set(totals.left.values()) == {0.0}
        ledger.require(seen)
        for run, z in (("a", 2.0), ("b", 2.0), ("c", 1e6)):
            with pytest.raises(Refused):
                charge(ledger, run, MANY, t=9, z=z)
    with Ledger.open(tmp_path / "l") as again:
        assert again.totals() == totals
        again.require(seen)


def test_only_the_head_that_was_charged_for_counts_as_held(tmp_path):
    ledger, seen, _ = restored(tmp_path / "l", until=rounds("a", 1), then=rounds("a", 2, 3, 4))
    with ledger:
        ledger.recover(seen)
        for head in (
            Head(seen.n_rows, "00" * 32),
            Head(seen.n_rows - 1, seen.digest),
            Head(seen.n_rows + 1, "11" * 32),
            LOST,
        ):
            with pytest.raises(RowsLost):
                ledger.require(head)
        ledger.recover(LOST)  # nothing was left to charge, and somebody else has seen another
        ledger.require(LOST)
        ledger.require(seen)
        assert ledger.totals().left["inverse_squares"] == 0


def test_nothing_is_charged_where_nothing_is_lost(new):
    ledger = new()
    charge(ledger)
    for head in (ledger.head(), Head(1, ledger._chain.digest(1))):
        for look in (ledger.recover, ledger.worst_case):
            with pytest.raises(Refused, match="none is lost"):
                look(head)
    assert ledger.head().n_rows == 2


def test_rows_may_be_lost_that_nobody_has_seen(new):
    ledger = new()
    ledger.recover(None)
    totals = ledger.totals()
    assert totals.spent == totals.limits
    assert totals.recoveries[0].seen is None


def test_more_than_the_cap_stays_more(new):
    ledger = new(GaussianCap(3.0, 1e-6))
    charge(ledger)
    ledger.change_unit("person", rows_per_person=40)
    before = ledger.totals().spent
    ledger.recover(LOST)
    assert ledger.totals().spent == before


# --- what known runs can have cost -------------------------------------------------------------


def test_runs_that_can_have_been_charged_are_charged_for_all_they_had_left(new):
    ledger = new()
    rounds("open", 1, 4)(ledger)
    charge(ledger, "done", PLAN, "mean")
    rounds("done", 1, 2, 3, plan=PLAN)(ledger)
    before = ledger.totals().spent["inverse_squares"]
    row = ledger.worst_case(LOST, plans={"new": PLAN})
    assert ledger.totals().spent["inverse_squares"] == before
    # 18 rounds of "open"; of "done" nothing; of "new" a mean and three rounds.
    due = 18 / 4 + 1 / 64 + 3 / 16
    assert row.cost["inverse_squares"] == pytest.approx(due, rel=1e-8)
    assert row.cost["inverse_squares"] >= due
    ledger.recover(LOST, plans={"new": PLAN})
    totals = ledger.totals()
    assert totals.spent["inverse_squares"] == pytest.approx(before + due, rel=1e-8)
    assert totals.closed == {"open", "done", "new"}
    charge(ledger, "next", PLAN)
    assert ledger.verify().n_rows == 9


def test_no_more_than_the_cap_had_left_is_charged(new):
    ledger = new(SMALL)
    ledger.recover(LOST, plans={str(i): MANY for i in range(50)})
    totals = ledger.totals()
    assert totals.spent == totals.limits


def test_plans_pay_as_a_whole_under_a_basic_cap(new):
    ledger = new(BasicCap(300.0, 1e-4))
    rounds("open", 1)(ledger)  # has paid
    ledger.recover(LOST, plans={"new": PLAN, "other": MANY})
    spent = ledger.totals().spent
    assert spent["epsilon"] == pytest.approx(2 * plan_epsilon(MANY) + plan_epsilon(PLAN))
    assert spent["delta"] == pytest.approx(3e-6)
    assert ledger.verify().n_rows == 3


def test_what_colluding_sites_would_know_is_charged_too(new):
    ledger = new()
    ledger.recover(LOST, plans={"s": TOGETHER})
    totals = ledger.totals()
    due = 1 / 64 + 3 / 16
    assert totals.spent["inverse_squares"] == pytest.approx(due, rel=1e-8)
    assert totals.spent_if_others_collude["inverse_squares"] == pytest.approx(3 * due, rel=1e-8)


def test_a_plans_spare_delta_is_charged_once(new):
    ledger = new(GaussianCap(100.0, 1e-5, spare_delta=1e-6))
    plan = replace(PLAN, spare_delta=1e-7)
    charge(ledger, "open", plan)
    ledger.recover(LOST, plans={"new": plan})
    assert ledger.totals().spent["spare_delta"] == pytest.approx(2e-7)


def test_a_run_of_before_is_closed_for_good_but_its_answers_stay(new, tmp_path):
    ledger = new()
    charge(ledger, t=1)
    ledger.settle("r", "rounds", 1, b"one")
    charge(ledger, t=2, request="q2")
    ledger.recover(LOST, plans={"new": PLAN})
    for run in ("r", "new"):
        with pytest.raises(Refused, match=f"run {run} is closed here: rows of the site's ledger"):
            charge(ledger, run, t=3)
        with pytest.raises(Refused, match="is closed here"):
            ledger.require_open(run)
    ledger.require_open("another")
    assert ledger.answer("r", "rounds", 1, "q") == b"one"
    ledger.settle("r", "rounds", 2, b"two")  # charged in a row that is still there
    with Ledger.open(tmp_path / "site.ledger") as again, pytest.raises(Refused, match="is closed"):
        charge(again, t=3)


def test_runs_that_were_closed_before_cost_nothing_the_second_time(new):
    ledger = new()
    rounds("open", 1)(ledger)
    ledger.recover(LOST, plans={"new": PLAN})
    spent = ledger.totals().spent
    other = Head(50, "cd" * 32)
    ledger.recover(other, plans={"new": PLAN})
    assert ledger.totals().spent == spent
    ledger.recover(Head(51, "cd" * 32), plans={"newer": PLAN})
    assert ledger.totals().spent["inverse_squares"] > spent["inverse_squares"]
    ledger.require(other)
    assert ledger.verify().n_rows == 5


def test_a_ledger_that_was_charged_since_is_charged_all_that_is_left(tmp_path):
    """The same rounds may be in the lost rows and in the new ones: both were released."""
    ledger, seen, _ = restored(tmp_path / "l", until=rounds("a", 1), then=rounds("a", 2, 3))
    with ledger:
        charge(ledger, "a", MANY, t=2, request="another")
        charge(ledger, "a", MANY, t=3)
        assert ledger.head().n_rows == seen.n_rows
        with pytest.raises(Refused, match="it was charged after rows were lost"):
            ledger.recover(seen, plans={})
        ledger.recover(seen)
        ledger.require(seen)


@pytest.mark.parametrize(
    ("plan", "message"),
    [(replace(PLAN, unit="person"), "must be for unit record"), (PLAN, "must keep to the plan")],
)
def test_plans_that_the_ledger_could_not_have_charged_are_refused(new, plan, message):
    ledger = new()
    charge(ledger, "known", MANY)
    run = "known" if plan is PLAN else "new"
    with pytest.raises(Refused, match=message):
        ledger.recover(LOST, plans={run: plan})
    assert ledger.head().n_rows == 2


def test_a_run_for_a_unit_of_before_is_over(new):
    ledger = new()
    charge(ledger)
    ledger.change_unit("person", rows_per_person=1)
    before = ledger.totals().spent
    ledger.recover(LOST, plans={})
    assert ledger.totals().spent == before


def test_what_was_charged_for_lost_rows_is_carried_over_to_another_unit(new):
    ledger = new()
    ledger.recover(LOST, plans={"new": PLAN})
    spent = ledger.totals().spent["inverse_squares"]
    ledger.change_unit("person", rows_per_person=3)
    assert ledger.totals().spent["inverse_squares"] == pytest.approx(9 * spent)


# --- whatever happened, it was not more --------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([PLAN, MANY]), st.integers(1, 4)), max_size=9
)


@settings(max_examples=60)
@given(EVENTS, EVENTS, EVENTS, st.booleans(), st.sampled_from(["gaussian", "basic"]))
def test_the_true_spend_never_passes_what_is_written(
    tmp_path_factory, before, lost, after, by_runs, kind
):
    """Charges before a backup, those that are lost, and those after the recovery."""
    cap = GaussianCap(12.0, 1e-5) if kind == "gaussian" else BasicCap(60.0, 1e-3)
    path, plans = tmp_path_factory.mktemp("lost") / "l", {}

    def play(ledger, events):
        for run, plan, t in events:
            try:
                charge(ledger, run, plans.get(run, plan), t=t)
                plans.setdefault(run, plan)
            except Refused:
                pass

    def spent(ledger):
        return {name: Fraction(value) for name, value in ledger._read().spent.items()}

    with Ledger.create(path, holding="h", cap=cap) as ledger:
        play(ledger, before)
        at_backup = spent(ledger)
    shutil.copy(path, path.with_name("backup"))
    with Ledger.open(path) as ledger:
        play(ledger, lost)
        at_loss, seen = spent(ledger), ledger.head()
    shutil.copy(path.with_name("backup"), path)
    with Ledger.open(path) as ledger:
        if at_loss == at_backup:
            return
        ledger.recover(seen, plans=dict(plans) if by_runs else None)
        recovered = spent(ledger)
        limits = ledger.opening.limits
        assert all(at_loss[name] <= recovered[name] <= Fraction(limits[name]) for name in recovered)
        ledger.require(seen)
        closed, stages = set(plans), ledger.totals().stages
        play(ledger, after)
        released = set(ledger.totals().stages) - set(stages)
        assert not {stage.run for stage in released} & closed
        assert by_runs or not released
        now = spent(ledger)
        true = {name: at_loss[name] + now[name] - recovered[name] for name in now}
        assert all(true[name] <= Fraction(limits[name]) for name in now)
        with Ledger.open(path) as again:
            assert spent(again) == now
            assert again.verify() == ledger.head()


# --- rows that were changed --------------------------------------------------------------------


def recovered(path, plans):
    """Make a ledger whose rows are: opening, two charges, a recovery, a charge."""
    with Ledger.create(path, holding="ward 7", cap=WIDE) as ledger:
        charge(ledger, t=1)
        charge(ledger, t=2)
        ledger.recover(LOST, plans=plans)
        if plans is not None:
            charge(ledger, "p", PLAN)
    return path


NONE = {"inverse_squares": 0.0, "spare_delta": 0.0}


@pytest.mark.parametrize("plans", [None, {"new": PLAN}])
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (set_in(4, cost=NONE), "row 4 .* not the most"),
        (set_in(4, cost={}), "row 4 .* not the most"),
        (set_in(4, cost=None), "row 4 could not"),
        (set_in(4, cost={**NONE, "inverse_squares": float("nan")}), "row 4 .* not the most"),
        (set_in(4, cost_if_others_collude=NONE), "row 4 .* not the most"),
        (set_in(4, plans={}), "row 4 .* not the most"),
        (set_in(4, plans={"r": {}}), "row 4 could not"),
        (set_in(4, seen=[1]), "row 4 could not"),
        (lambda rows: rows.pop(2), "row 3 .* not the most"),
    ],
)
def test_a_recovery_that_breaks_the_rules_is_named_though_its_hash_fits(
    tmp_path, edit, message, plans
):
    path = forged(recovered(tmp_path / "l", plans), lambda rows: edit(rows) and None)
    said = damage(path)
    assert re.search(message, said), said


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_under_a_basic_cap_amounts_stand_as_written_if_they_are_amounts(tmp_path, value):
    path = tmp_path / "l"
    with Ledger.create(path, holding="h", cap=BasicCap(300.0, 1e-4)) as ledger:
        ledger.recover(LOST, plans={"new": PLAN})
    said = damage(forged(path, set_in(2, cost={"epsilon": value, "delta": 1e-6})))
    assert "row 2 could not have been written: what is charged for lost rows must be" in said


# --- planted bugs ------------------------------------------------------------------------------


def test_a_run_that_is_not_closed_would_release_its_rounds_again(new, monkeypatch):
    """The lost rows may hold round 3, with other noise."""
    plant(monkeypatch, Book.require_open, lambda right, self, run: None)
    ledger = new()
    charge(ledger, t=1)
    ledger.recover(LOST, plans={})
    charge(ledger, t=3)
