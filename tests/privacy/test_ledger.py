"""The ledger: what it remembers, whom it answers, and the file it is in."""

import math
import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.ledger import BasicCap, Damaged, GaussianCap, Ledger
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from support.ledgers import PLAN, WIDE, charge, ledgers_in, used


@pytest.fixture
def new(tmp_path):
    with ledgers_in(tmp_path) as make:
        yield make


# What is remembered


def test_answers_come_back_as_they_were_also_in_another_process(new, tmp_path):
    ledger = new()
    assert ledger.answer("r", "rounds", 3, "q") is None
    charge(ledger, t=3)
    ledger.settle("r", "rounds", 3, b"\x00noise\xff")
    code = (
        "import sys; from dpfedc.privacy.ledger import Ledger\n"
        "sys.stdout.buffer.write(Ledger.open(sys.argv[1]).answer('r', 'rounds', 3, 'q'))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "site.ledger")]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"\x00noise\xff"


def test_a_round_is_answered_once(new):
    ledger = new()
    charge(ledger, t=3)
    with pytest.raises(Refused, match="round 3 of stage 'rounds' is spent"):
        ledger.answer("r", "rounds", 3, "q")
    ledger.settle("r", "rounds", 3, b"one")
    with pytest.raises(Refused, match="has been answered"):
        ledger.settle("r", "rounds", 3, b"two")
    with pytest.raises(Refused, match="charged for another request"):
        ledger.answer("r", "rounds", 3, "other")
    with pytest.raises(Refused, match="must come after round 3"):
        charge(ledger, t=3)
    with pytest.raises(Refused, match="must come after round 3"):
        charge(ledger, t=2)
    with pytest.raises(Refused, match="has not been charged"):
        ledger.settle("r", "rounds", 4, b"free")
    assert ledger.answer("r", "rounds", 3, "q") == b"one"
    assert ledger.head().n_rows == 3


def test_counters_outlive_processes_and_follow_the_plan(new, tmp_path):
    charge(new(), t=1)
    for t in (4, 7):
        with Ledger.open(tmp_path / "site.ledger") as again:
            charge(again, t=t)
    with Ledger.open(tmp_path / "site.ledger") as again:
        with pytest.raises(Refused, match="planned for 3 releases of a site, got one more"):
            charge(again, t=8)
        with pytest.raises(Refused, match="keep to the plan of its first charge"):
            charge(again, t=8, plan=replace(PLAN, delta=1e-7))
        with pytest.raises(Refused, match="'lengths' is not in the privacy plan"):
            again.charge("r", PLAN, "lengths", 1, "q", noise_multiplier=9.0)
        charge(again, stage="mean")  # another stage has a counter of its own,
        charge(again, run="another", t=1)  # and so has another run
        (mean, rounds, other) = sorted(again.totals().stages, key=lambda s: (s.run != "r", s.stage))
    assert (mean.n_charged, rounds.n_charged, other.n_charged) == (1, 3, 1)
    assert (rounds.n_planned, rounds.n_answered, rounds.last_round) == (3, 0, 7)


def test_a_ledger_open_elsewhere_sees_what_others_charge(new, tmp_path):
    mine = new()
    with Ledger.open(tmp_path / "site.ledger") as other:
        charge(mine, t=1)
        charge(other, t=2)
        charge(mine, t=3)
        assert mine.head() == other.head()
        with pytest.raises(Refused, match="one more"):
            charge(other, t=4)


def test_noise_must_be_the_plans_or_more(new):
    ledger = new()
    with pytest.raises(Refused, match=r"at least the plan's 4.0, got 3.99"):
        charge(ledger, z=3.99)
    charge(ledger, t=1, z=4.0 * (1 - 1e-12))
    charge(ledger, t=2, z=16.0)
    spent = ledger.totals().spent["inverse_squares"]
    assert spent == pytest.approx(1 / 16 + 1 / 256, rel=1e-9)


# The file


def test_an_answer_that_cannot_be_stored_leaves_no_trace(new, monkeypatch):
    ledger = new()
    before = charge(ledger)

    def fails(*_):
        raise sqlite3.OperationalError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._chain, "store", fails)
        with pytest.raises(Refused, match="disk full"):
            ledger.settle("r", "rounds", 1, b"lost")
    assert ledger.verify() == before
    ledger.settle("r", "rounds", 1, b"kept")


def test_only_the_owner_can_read_it_and_every_commit_is_synced(new, tmp_path):
    old = os.umask(0)
    try:
        ledger = new()
        charge(ledger)
    finally:
        os.umask(old)
    files = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert {"site.ledger", "site.ledger-wal"} <= set(files)
    assert set(files.values()) == {0o600}
    pragma = {
        name: ledger._chain._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    }
    assert pragma == {"journal_mode": "wal", "synchronous": 2}  # 2 is FULL


def test_files_that_are_no_ledger(tmp_path):
    path = used(tmp_path / "l")
    with pytest.raises(InvalidInput, match="must be a new file"):
        Ledger.create(path, holding="ward 7", cap=WIDE)
    with pytest.raises(InvalidInput, match="must be an existing file"):
        Ledger.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "text").write_text("not a database " * 100)
    with pytest.raises(Damaged, match="not a ledger"):
        Ledger.open(tmp_path / "text")
    (tmp_path / "empty").touch()
    with pytest.raises(Refused, match="no such table"):
        Ledger.open(tmp_path / "empty")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"holding": ""}, "holding must be"),
        ({"least_colluding_sites": -1}, "least_colluding_sites must be >= 0, got -1"),
        ({"cap": (1.0, 1e-5)}, "cap must be a GaussianCap or a BasicCap"),
    ],
)
def test_bad_settings_leave_no_file(tmp_path, words, message):
    with pytest.raises(InvalidInput, match=message):
        Ledger.create(tmp_path / "l", **{"holding": "h", "cap": WIDE, **words})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianCap(0.0, 1e-5), "epsilon must be >= 1e-06"),
        (lambda: GaussianCap(1.0, 1.0), "delta must be"),
        (lambda: GaussianCap(1.0, 1e-5, spare_delta=1e-5), "spare_delta must be"),
        (lambda: BasicCap(math.inf, 1e-5), "epsilon must be"),
        (lambda: BasicCap(1.0, 0.0), "delta must be"),
    ],
)
def test_bad_caps(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"t": 0}, "t must be >= 1"),
        ({"t": 1.0}, "t must be a whole number"),
        ({"run": ""}, "run must be"),
        ({"request": b"q"}, "request must be"),
        ({"z": 0.0}, "noise_multiplier must be > 0"),
        ({"z": math.nan}, "noise_multiplier must be"),
    ],
)
def test_bad_charges_write_nothing(new, words, message):
    ledger = new()
    with pytest.raises(InvalidInput, match=message):
        charge(ledger, **words)
    assert ledger.head().n_rows == 1


def test_very_small_charges_are_not_lost_in_rounding(new):
    tiny = 1e9  # 1/z^2 is 1e-18, which 1 + 1e-18 does not show
    plan = PrivacyPlan((PlannedRelease("rounds", 99, 4, 99, 1.0),), 1e-6, "local", 4)
    ledger = new(GaussianCap(20.0, 1e-5))
    charge(ledger, plan=plan, t=1)
    for t in range(2, 12):
        charge(ledger, plan=plan, t=t, z=tiny)
    exact = ledger._read().spent["inverse_squares"] - 1
    assert float(exact) == pytest.approx(1e-17, rel=1e-9, abs=0)
