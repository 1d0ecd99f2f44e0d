"""Ledgers of earlier versions open, verify and go on charging: what was spent stays spent.

The files in tests/data were written by version 0.1.0 and are never made again.
"""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dpfedc.errors import Refused
from dpfedc.privacy.ledger import Damaged, Ledger, Unusable, ledger_rows
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan

DATA = Path(__file__).parents[1] / "data"
ALONE, TOGETHER = "a" * 64, "b" * 64
PLANS = {
    ALONE: PrivacyPlan(
        (
            PlannedRelease("bound", 1, 3, 1, 20.0),
            PlannedRelease("factorisation", 6, 2, 4, 9.0, 0.5),
            PlannedRelease("centres", 1, 3, 1, 15.0),
        ),
        1e-6,
        "local",
        3,
    ),
    TOGETHER: PrivacyPlan(
        (PlannedRelease("bound", 1, 5, 1, 20.0), PlannedRelease("lloyd", 5, 5, 5, 9.0)),
        1e-6,
        "secure-aggregation",
        5,
        min_survivors=4,
        colluding_sites=1,
    ),
}
HEADS = {
    "gaussian": "e84d69af2b1b1d6802bdba2e8253aa7e2dad88bdf3e090740b422e5a02615cb4",
    "basic": "d19fbc1593d993b1b97f6dd51fa1dc88f7e654adfa43c386c220414364fd31af",
}
SPENT = {
    "gaussian": {"inverse_squares": 2 / 20**2 + 4 / 9**2, "spare_delta": 0.0},
    "basic": {"epsilon": 1.6584204311541648, "delta": 2e-6},
}


@pytest.fixture(params=list(HEADS))
def old(request, tmp_path):
    path = tmp_path / "site.ledger"
    shutil.copyfile(DATA / f"ledger-0.1.0-{request.param}.sqlite", path)
    path.chmod(0o600)
    with Ledger.open(path) as ledger:
        yield request.param, ledger


def test_it_opens_and_verifies(old):
    kind, ledger = old
    assert ledger.verify().digest == HEADS[kind]
    assert ledger.opening.holding == "ward 7"
    assert ledger.totals().spent == pytest.approx(SPENT[kind], rel=1e-12)
    assert ledger.answer(ALONE, "bound", 1, "abound1") == b"answer a bound 1"


def test_it_goes_on_charging(old):
    kind, ledger = old
    plan = PLANS[ALONE]
    head = ledger.charge(ALONE, plan, "factorisation", 4, "next", noise_multiplier=9.0)
    ledger.settle(ALONE, "factorisation", 4, b"more")
    assert head.n_rows == 13
    more = {"inverse_squares": 1 / 9**2, "spare_delta": 0.0} if kind == "gaussian" else {}
    due = {name: spent + more.get(name, 0.0) for name, spent in SPENT[kind].items()}
    assert ledger.totals().spent == pytest.approx(due, rel=1e-12)
    assert ledger.verify().n_rows == 14


def test_what_it_has_spent_cannot_be_spent_again(old):
    _, ledger = old
    with pytest.raises(Refused, match="must come after round 2"):
        ledger.charge(ALONE, PLANS[ALONE], "factorisation", 2, "again", noise_multiplier=9.0)
    with pytest.raises(Refused, match="is spent"):
        ledger.answer(TOGETHER, "lloyd", 2, "blloyd2")
    other = replace(PLANS[ALONE], delta=1e-5)
    with pytest.raises(Refused, match="must keep to the plan"):
        ledger.charge(ALONE, other, "centres", 1, "other plan", noise_multiplier=15.0)
    weak = PrivacyPlan((PlannedRelease("bound", 1, 3, 1, 0.2),), 1e-6, "local", 3)
    with pytest.raises(Refused, match="over the lifetime cap"):
        ledger.charge("c" * 64, weak, "bound", 1, "first", noise_multiplier=0.2)


def test_a_ledger_of_a_later_format_is_left_alone(tmp_path):
    path = tmp_path / "site.ledger"
    shutil.copyfile(DATA / "ledger-0.1.0-basic.sqlite", path)
    with closing(sqlite3.connect(path)) as later:
        later.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    with pytest.raises(Unusable, match="must be a ledger of format 3 at most, got 7"):
        Ledger.open(path)
    assert path.read_bytes() == before


def user_version(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def test_what_it_has_spent_is_carried_over_to_another_unit(old, tmp_path):
    kind, ledger = old
    ledger.change_unit("person", rows_per_person=2)
    spent = ledger.totals().spent
    if kind == "gaussian":
        assert spent == pytest.approx({"inverse_squares": 4 * SPENT[kind]["inverse_squares"]}
                                      | {"spare_delta": 0.0})  # fmt: skip
    else:
        assert spent["epsilon"] == pytest.approx(2 * SPENT[kind]["epsilon"], rel=1e-12)
        assert spent["delta"] > 2 * SPENT[kind]["delta"]
    assert ledger.verify().n_rows == 13
    with pytest.raises(Refused, match="must be for unit person, relation zero-out, got record"):
        ledger.charge(ALONE, PLANS[ALONE], "factorisation", 4, "next", noise_multiplier=9.0)
    person = replace(PLANS[ALONE], unit="person", delta=1e-8)
    if kind == "gaussian":
        ledger.charge("c" * 64, person, "bound", 1, "first", noise_multiplier=20.0)
        assert ledger.verify().n_rows == 14


def test_a_ledger_is_of_the_later_format_from_the_first_row_that_needs_it(
    old, tmp_path, monkeypatch
):
    _, ledger = old
    path = tmp_path / "site.ledger"
    ledger.charge(ALONE, PLANS[ALONE], "factorisation", 4, "next", noise_multiplier=9.0)
    assert user_version(path) == 0  # version 0.1.0 may go on with it
    ledger.change_unit("person", rows_per_person=2)
    assert user_version(path) == 1
    ledger.close()
    with Ledger.open(path) as ledger:
        ledger.recover(None)
    assert user_version(path) == 2
    for newest in (0, 1):
        monkeypatch.setattr("dpfedc.privacy.ledger.chain.NEWEST", newest)
        with pytest.raises(Unusable, match=f"must be a ledger of format {newest} at most, got 2"):
            Ledger.open(path)


def test_a_program_that_does_not_know_the_row_refuses_it(old, tmp_path, monkeypatch):
    """As version 0.1.0 does, which does not look at the format."""
    _, ledger = old
    ledger.change_unit("person", rows_per_person=2)
    monkeypatch.delitem(ledger_rows._KINDS, "unit")
    with pytest.raises(Damaged, match="row 13 could not have been written"):
        Ledger.open(tmp_path / "site.ledger")
