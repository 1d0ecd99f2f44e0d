"""What the tests of the ledger share: a plan, a ledger with some history, and a forger."""

import json
import sqlite3
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256

import pytest

from dpfedc.privacy.ledger import Damaged, GaussianCap, Ledger
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan

RELEASES = (PlannedRelease("mean", 1, 4, 1, 8.0), PlannedRelease("rounds", 9, 4, 3, 4.0))
PLAN = PrivacyPlan(RELEASES, 1e-6, "local", 4)
TOGETHER = replace(PLAN, trust="secure-aggregation", min_survivors=4, colluding_sites=1)
WIDE = GaussianCap(100.0, 1e-5)


@contextmanager
def ledgers_in(folder):
    """Hand out a function that makes a ledger; all are closed at the end."""
    with ExitStack() as made:

        def make(cap=WIDE, name="site.ledger", **more):
            ledger = Ledger.create(folder / name, holding="ward 7", cap=cap, **more)
            return made.enter_context(ledger)

        yield make


def charge(ledger, run="r", plan=PLAN, stage="rounds", t=1, request="q", z=None):
    z = plan.of_stage(stage).noise_multiplier if z is None else z
    return ledger.charge(run, plan, stage, t, request, noise_multiplier=z)


def used(path):
    """Make a ledger with some history: two runs, two answers, one answer lost."""
    with Ledger.create(path, holding="ward 7", cap=WIDE) as ledger:
        charge(ledger, stage="mean")
        ledger.settle("r", "mean", 1, b"noisy mean")
        charge(ledger, t=2)
        charge(ledger, t=5)
        ledger.settle("r", "rounds", 5, b"noisy round")
        charge(ledger, "s", TOGETHER)
    return path


TRIGGERS = (
    "chain_grows", "answers_grow", "chain_UPDATE_refused", "chain_DELETE_refused",
    "answers_UPDATE_refused", "answers_DELETE_refused",
)  # fmt: skip


def raw(path):
    """Return a connection with which everything can be changed."""
    db = sqlite3.connect(path, isolation_level=None)
    for trigger in TRIGGERS:
        db.execute(f"DROP TRIGGER {trigger}")
    return db


def damage(path):
    """Return what opening and verifying the ledger says is wrong."""
    with pytest.raises(Damaged) as found, Ledger.open(path) as ledger:
        ledger.verify()
    return str(found.value)


def forged(path, edit):
    """Write all rows anew, changed by `edit`, with hashes that fit."""
    db = raw(path)
    rows = [json.loads(c) for (c,) in db.execute("SELECT content FROM chain ORDER BY row")]
    rows = edit(rows) or rows
    db.execute("DELETE FROM chain")
    previous = ""
    for i, row in enumerate(rows, start=1):
        text = json.dumps(row)
        previous = sha256(json.dumps([previous, text]).encode()).hexdigest()
        db.execute("INSERT INTO chain VALUES (?, ?, ?)", (i, text, previous))
    db.close()
    return path


def set_in(row, **changes):
    return lambda rows: rows[row - 1].update(changes)
