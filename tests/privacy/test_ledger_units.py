"""A ledger for records or for persons: what it charges, and how a change carries its spend over."""

import json
import math
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.accountant import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    guarantee,
    plan_epsilon,
)
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Ledger
from dpfedc.privacy.ledger.book import MAX_ROWS
from support.ledgers import (
    PLAN,
    RELEASES,
    TOGETHER,
    WIDE,
    charge,
    damage,
    forged,
    ledgers_in,
    set_in,
)
from support.planting import plant

PERSON = replace(PLAN, unit="person")


@pytest.fixture
def new(tmp_path):
    with ledgers_in(tmp_path) as make:
        yield make


def sites_of(plan, n):
    return replace(plan, unit="person", sites_per_person=n)


# --- a ledger has a unit -----------------------------------------------------------------------


def test_plans_must_be_for_the_ledgers_unit(new):
    for unit, fits, other in (("record", PLAN, PERSON), ("person", PERSON, PLAN)):
        ledger = new(name=unit, unit=unit)
        assert ledger.unit == ledger.opening.unit == unit
        with pytest.raises(Refused, match=rf"must be for unit {unit}, .*got {other.unit}, .*chang"):
            charge(ledger, plan=other)
        charge(ledger, plan=fits)
        assert ledger.totals().spent["inverse_squares"] == 1 / 16
        assert ledger.verify().n_rows == 2
    with pytest.raises(InvalidInput, match="unit must be one of record, person"):
        new(name="visit", unit="visit")


def test_the_cap_is_for_one_site_wherever_else_a_person_is(new):
    """The noise of this site is what is charged: other sites charge their own."""
    ledger = new(unit="person")
    charge(ledger, plan=sites_of(PLAN, 3))
    charge(ledger, "sums", sites_of(TOGETHER, 3))
    assert ledger.totals().spent["inverse_squares"] == 2 / 16
    basic = new(BasicCap(90.0, 1e-4), name="basic", unit="person")
    charge(basic, plan=sites_of(PLAN, 3))
    # A plan's own epsilon counts the person's other sites as well: more than this site's part.
    assert basic.totals().epsilon == plan_epsilon(sites_of(PLAN, 3)) > plan_epsilon(PLAN)


# --- what is carried over ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 50, MAX_ROWS])
def test_a_release_moves_r_times_as_far_for_a_person_with_r_rows(new, rows):
    ledger = new(GaussianCap(100.0, 1e-5, spare_delta=1e-6))
    plan = replace(PLAN, spare_delta=1e-7)
    charge(ledger, plan=plan)
    charge(ledger, plan=plan, t=2, z=7.0)
    charge(ledger, "s", TOGETHER)
    before = ledger.totals()
    squares = 2 / 16 + 1 / 49
    assert before.spent["inverse_squares"] == pytest.approx(squares)
    head = ledger.change_unit("person", rows_per_person=rows)
    assert head == ledger.head()
    after = ledger.totals()
    assert after.spent["inverse_squares"] == pytest.approx(rows**2 * squares, rel=1e-12)
    assert after.spent["spare_delta"] == pytest.approx(rows * 1e-7, rel=1e-12)
    alone = after.spent_if_others_collude["inverse_squares"]
    assert alone == pytest.approx(rows**2 * (squares + 2 / 16), rel=1e-12)
    assert after.left["inverse_squares"] == pytest.approx(
        before.limits["inverse_squares"] - rows**2 * squares, rel=1e-9
    )
    # Group privacy of Gaussian releases: r times mu.
    mu = rows * math.sqrt(squares)
    assert after.epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5 - 1e-6), rel=1e-6)
    assert after.stages == before.stages  # counters go on
    assert ledger.unit == "person"
    assert ledger.opening.unit == "record"
    assert ledger.verify() == head


def test_epsilons_and_deltas_grow_plan_by_plan(new):
    """(r eps, delta (1 + e^eps + ... + e^((r-1) eps))) for each plan, and then added up."""
    ledger, rows = new(BasicCap(500.0, 0.5)), 3
    weak = replace(PLAN, releases=(replace(RELEASES[1], noise_multiplier=3.0),), delta=1e-8)
    charge(ledger, "a")
    charge(ledger, "a", t=2)
    charge(ledger, "b", weak)
    charge(ledger, "c", TOGETHER)
    ledger.change_unit("person", rows_per_person=rows)
    claims = [(plan_epsilon(plan), plan.delta) for plan in (PLAN, weak, TOGETHER)]
    spent = ledger.totals().spent
    assert spent["epsilon"] == pytest.approx(rows * sum(e for e, _ in claims))
    due = sum(d * sum(math.exp(k * e) for k in range(rows)) for e, d in claims)
    assert spent["delta"] == pytest.approx(due, rel=1e-9)
    assert spent["delta"] >= due
    promised = guarantee(TOGETHER, None).epsilon_if_others_collude
    alone = ledger.totals().spent_if_others_collude["epsilon"]
    assert alone == pytest.approx(rows * (claims[0][0] + claims[1][0] + promised))


@given(st.floats(0.01, 4), st.floats(1e-9, 1e-2), st.integers(1, 20))
def test_what_is_carried_over_covers_a_gaussian_release(epsilon, delta, rows):
    """A release that is exactly (epsilon, delta), moved r times as far: its true delta is less."""
    mu = gaussian_mu(epsilon, delta)
    carried = BasicCap(1.0, 1e-5).of_group({"epsilon": epsilon, "delta": delta}, rows)
    assert carried["epsilon"] == Fraction(epsilon) * rows
    true = gaussian_delta(rows * mu, float(carried["epsilon"]))
    assert true <= float(carried["delta"]) * (1 + 1e-6) <= 1 + 1e-6


def test_growth_that_cannot_be_computed_is_no_promise_at_all():
    cap = BasicCap(1.0, 1e-5)
    for epsilon, rows in ((100.0, 1000), (1e6, 2), (1.0, MAX_ROWS)):
        assert cap.of_group({"epsilon": epsilon, "delta": 1e-9}, rows)["delta"] == 1
    assert cap.of_group({"epsilon": 0.0, "delta": 2.0**-30}, 4)["delta"] >= Fraction(4, 2**30)
    beyond = {"epsilon": 3.0, "delta": 1.5}  # several plans of which nothing is left
    assert cap.of_group(beyond, 2)["delta"] == Fraction(1.5)
    once = {"epsilon": 3.0, "delta": 1e-7}
    assert cap.of_group(once, 1) == {name: Fraction(value) for name, value in once.items()}


@pytest.mark.parametrize(("rows", "steps"), [(1, 1), (2, 2), (7, 2)])
def test_a_row_of_a_person_who_stays_is_a_replacement(new, rows, steps):
    """From persons to records: the person's one record becomes null, and then another."""
    ledger = new(unit="person")
    charge(ledger, plan=PERSON)
    ledger.change_unit("record", rows_per_person=rows)
    assert ledger.totals().spent["inverse_squares"] == steps**2 / 16
    charge(ledger, "r2", PLAN)
    basic = new(BasicCap(90.0, 1e-2), name="basic", unit="person")
    charge(basic, plan=PERSON)
    basic.change_unit("record", rows_per_person=rows)
    epsilon = plan_epsilon(PERSON)
    assert basic.totals().spent["epsilon"] == pytest.approx(steps * epsilon)
    growth = 1 + (math.exp(epsilon) if steps == 2 else 0)
    assert basic.totals().spent["delta"] == pytest.approx(growth * 1e-6)


# --- afterwards --------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [GaussianCap(3.0, 1e-6), BasicCap(3.0, 1e-5)])
def test_more_than_the_cap_is_carried_over_too_and_nothing_is_left(new, cap):
    ledger = new(cap)
    charge(ledger, stage="mean")
    charge(ledger)
    ledger.change_unit("person", rows_per_person=40)
    totals = ledger.totals()
    assert min(totals.left.values()) < 0
    assert totals.epsilon > 3.0
    for z in (4.0, 1e9):  # however little
        with pytest.raises(Refused, match=r"over the lifetime cap .* must be at most -"):
            charge(ledger, "p", PERSON, z=z)
    assert ledger.verify().n_rows == 4


def test_a_run_under_way_goes_no_further_but_its_answers_stay(new):
    ledger = new()
    charge(ledger, t=1)
    ledger.settle("r", "rounds", 1, b"one")
    charge(ledger, t=2, request="q2")
    ledger.change_unit("person", rows_per_person=2)
    with pytest.raises(Refused, match="must be for unit person"):
        charge(ledger, t=3)
    with pytest.raises(Refused, match="must keep to the plan"):  # nor under another name
        charge(ledger, plan=PERSON, t=3)
    assert ledger.answer("r", "rounds", 1, "q") == b"one"
    ledger.settle("r", "rounds", 2, b"two")  # charged before, and carried over
    assert ledger.answer("r", "rounds", 2, "q2") == b"two"


def test_counters_and_spend_go_on_after_a_way_back(new):
    ledger = new()
    charge(ledger, t=1)
    ledger.change_unit("person", rows_per_person=2)
    ledger.change_unit("record", rows_per_person=3)
    assert ledger.totals().spent["inverse_squares"] == 4 * 4 / 16
    charge(ledger, t=2)
    with pytest.raises(Refused, match="must come after round 2"):
        charge(ledger, t=1)
    assert ledger.totals().spent["inverse_squares"] == 17 / 16


@pytest.mark.parametrize(
    ("unit", "rows", "error", "message"),
    [
        ("record", 2, Refused, "must be another than the ledger's own, got record"),
        ("visit", 2, InvalidInput, "unit must be one of record, person"),
        ("person", 0, InvalidInput, "rows_per_person must be from 1 to 1000000, got 0"),
        ("person", MAX_ROWS + 1, InvalidInput, "rows_per_person must be"),
        ("person", 2.5, InvalidInput, "rows_per_person must be a whole number"),
        ("person", True, InvalidInput, "rows_per_person must be a whole number"),
        ("person", "2", InvalidInput, "rows_per_person must be a whole number"),
    ],
)
def test_changes_that_mean_nothing_write_nothing(new, unit, rows, error, message):
    ledger = new()
    charge(ledger)
    for change in (ledger.change_unit, ledger.change_of_unit):
        with pytest.raises(error, match=message):
            change(unit, rows_per_person=rows)
    assert ledger.head().n_rows == 2
    assert ledger.unit == "record"


def test_what_was_declared_of_persons_cannot_be_made_less(new):
    ledger = new()
    ledger.change_unit("person", rows_per_person=5)
    with pytest.raises(Refused, match="at least the 5 declared before, got 1"):
        ledger.change_unit("record", rows_per_person=1)
    ledger.change_unit("record", rows_per_person=5)


def test_a_change_can_be_looked_at_before(new):
    ledger = new()
    charge(ledger)
    row = ledger.change_of_unit("person", rows_per_person=3)
    assert row.carried == {"inverse_squares": 9 / 16, "spare_delta": 0.0}
    assert ledger.unit == "record"
    assert ledger.head().n_rows == 2
    ledger.change_unit("person", rows_per_person=3)
    assert ledger.totals().spent == row.carried


def test_another_process_sees_the_change(new, tmp_path):
    mine = new()
    with Ledger.open(tmp_path / "site.ledger") as other:
        other.change_unit("person", rows_per_person=2)
        with pytest.raises(Refused, match="must be for unit person"):
            charge(mine)
        charge(mine, plan=PERSON)


def test_a_change_that_cannot_be_written_leaves_no_trace(new, tmp_path, monkeypatch):
    ledger = new()
    charge(ledger)
    before = ledger.head()
    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ledger.change_unit("person", rows_per_person=2)
    assert ledger.verify() == before
    with closing(sqlite3.connect(tmp_path / "site.ledger")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (0,)


STEPS = st.lists(
    st.tuples(st.just("change"), st.integers(1, 4))
    | st.tuples(st.just("charge"), st.integers(1, 9)),
    max_size=8,
)


@settings(max_examples=60)
@given(STEPS, st.sampled_from(["gaussian", "basic"]), st.sampled_from(["record", "person"]))
def test_the_spend_never_falls_and_a_reader_finds_the_same(tmp_path_factory, steps, kind, unit):
    path = tmp_path_factory.mktemp("units") / "l"
    cap = WIDE if kind == "gaussian" else BasicCap(1e5, 0.9)
    with Ledger.create(path, holding="h", cap=cap, unit=unit) as ledger:
        rows, spent = 1, ledger.totals().spent
        for i, (step, n) in enumerate(steps):
            if step == "change":
                rows = max(rows, n)
                other = "person" if ledger.unit == "record" else "record"
                ledger.change_unit(other, rows_per_person=rows)
                unit = other
            elif min(ledger.totals().left.values()) > 0:
                charge(ledger, f"run {i}", replace(PLAN, unit=unit, delta=1e-9), z=float(4 * n))
            now = ledger.totals().spent
            assert all(now[name] >= before for name, before in spent.items())
            spent = now
        alone = ledger.totals().spent_if_others_collude
        with Ledger.open(path) as again:
            assert again.unit == ledger.unit == unit
            assert again.totals().spent == spent
            assert again.totals().spent_if_others_collude == alone
            assert again.verify() == ledger.verify()


# --- rows that were changed --------------------------------------------------------------------


def changed(path):
    """Make a ledger whose rows are: opening, two charges, a change of unit, a charge."""
    with Ledger.create(path, holding="ward 7", cap=WIDE) as ledger:
        charge(ledger, t=1)
        charge(ledger, t=2)
        ledger.change_unit("person", rows_per_person=3)
        charge(ledger, "p", PERSON)
    return path


SPENT = {"inverse_squares": 9 * 2 / 16, "spare_delta": 0.0}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (set_in(4, rows_per_person=1), "row 4 .* not what was spent before"),
        (set_in(4, carried={**SPENT, "inverse_squares": 2 / 16}), "row 4 .* not what was spent"),
        (set_in(4, carried_if_others_collude={**SPENT, "inverse_squares": 0.0}), "row 4 .* not wh"),
        (set_in(4, carried={}), "row 4 .* not what was spent"),
        (set_in(4, carried={**SPENT, "more": 0.0}), "row 4 .* not what was spent"),
        (set_in(4, carried={**SPENT, "inverse_squares": math.nan}), "row 4 .* not what was spent"),
        (set_in(4, carried={**SPENT, "inverse_squares": "1"}), "row 4 could not"),
        (set_in(4, carried=None), "row 4 could not"),
        (set_in(4, rows_per_person=1, carried={**SPENT, "inverse_squares": 0.125}), "row 4 .* not"),
        (set_in(4, rows_per_person=0), "row 4 .* rows_per_person must be"),
        (set_in(4, unit="record"), "row 4 .* must be another"),
        (set_in(4, unit="visit"), "row 4 .* unit must be"),
        (set_in(1, unit="person"), "row 2 .* must be for unit person"),
        (lambda rows: rows.pop(3), "row 4 .* must be for unit record"),  # the change is taken out,
        (lambda rows: rows.insert(1, rows.pop(3)), "row 2 .* not what was spent"),  # or moved
        (lambda rows: rows.insert(4, rows[3]), "row 5 .* must be another"),  # or doubled
        (lambda rows: rows.pop(2), "row 3 .* not what was spent"),  # a charge before it is
    ],
)  # fmt: skip
def test_a_change_that_breaks_the_rules_is_named_though_its_hash_fits(tmp_path, edit, message):
    said = damage(forged(changed(tmp_path / "l"), lambda rows: edit(rows) and None))
    assert re.search(message, said), said


def test_a_reader_who_rounds_otherwise_takes_the_larger_amount(tmp_path):
    more = SPENT["inverse_squares"] * (1 + 1e-12)
    for factor in (1 + 1e-12, 1 - 1e-12):
        path = changed(tmp_path / f"{factor}")
        edit = set_in(4, carried={**SPENT, "inverse_squares": SPENT["inverse_squares"] * factor})
        forged(path, edit)
        with Ledger.open(path) as ledger:
            spent = ledger.totals().spent["inverse_squares"] - 1 / 16
        assert SPENT["inverse_squares"] <= spent + 1e-15 <= more + 1e-14


@pytest.mark.parametrize("factor", [lambda n: n, lambda n: 1])
def test_a_spend_that_is_carried_over_too_small(new, monkeypatch, factor):
    """The bugs: squares that grow like mu, and a fresh start. The first test above finds them."""

    def wrong(right, self, cost, n):
        return {name: Fraction(value) * factor(n) for name, value in cost.items()}

    plant(monkeypatch, GaussianCap.of_group, wrong)
    ledger = new()
    charge(ledger)
    ledger.change_unit("person", rows_per_person=3)
    assert ledger.totals().spent["inverse_squares"] < 9 / 16
