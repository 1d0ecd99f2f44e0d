"""The hash of a row, which a server sees, does not let it try what the row may say."""

import datetime
import json
import re
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from dpfedc.privacy.ledger import GaussianCap, Ledger, site_ledger
from dpfedc.privacy.ledger.ledger_rows import Opening, UnitChange, as_content

DATA = Path(__file__).parents[1] / "data"
NOW = "2026-11-18T03:00:00+00:00"
CAP = GaussianCap(7.0, 1e-6)


@pytest.fixture(autouse=True)
def a_known_time(monkeypatch):
    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 18, 3, tzinfo=tz)

    monkeypatch.setattr(site_ledger, "datetime", Fixed)


def made(path):
    with Ledger.create(path, holding="berlin", cap=CAP) as ledger:
        first = ledger.head()
        return first, ledger.change_unit("person", rows_per_person=37)


def contents(path):
    with closing(sqlite3.connect(path)) as db:
        return [json.loads(text) for (text,) in db.execute("SELECT content FROM chain")]


def guessed(before, row, at):
    """Return the hash of a row that says this, as somebody else computes it."""
    content = {"at": at, **as_content(row)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return sha256(json.dumps([before, text]).encode()).hexdigest()


def test_ledgers_with_the_same_rows_have_different_heads(tmp_path):
    heads = [made(tmp_path / name) for name in ("one", "other")]
    assert len({head.digest for pair in heads for head in pair}) == 4


def test_a_guess_that_is_right_does_not_show(tmp_path):
    """The server knows all but the salt; who has the salt finds the very hash."""
    opened, changed = made(tmp_path / "ledger")
    zero = {"inverse_squares": 0.0, "spare_delta": 0.0}
    opening = Opening.of("berlin", CAP, 0, "record")
    change = UnitChange("person", 37, zero, zero)
    assert guessed("", opening, NOW) != opened.digest
    assert guessed(opened.digest, change, NOW) != changed.digest
    first, second = (content["at"] for content in contents(tmp_path / "ledger"))
    assert guessed("", opening, first) == opened.digest
    assert guessed(opened.digest, change, second) == changed.digest


def test_every_new_row_has_a_salt_of_its_own(tmp_path):
    """Also in a ledger of version 0.1.0, the rows of which stay as they were."""
    path = tmp_path / "ledger"
    shutil.copyfile(DATA / "ledger-0.1.0-gaussian.sqlite", path)
    path.chmod(0o600)
    before = contents(path)
    with Ledger.open(path) as ledger:
        for unit in ("person", "record", "person"):
            ledger.change_unit(unit, rows_per_person=2)
        ledger.verify()
    after = contents(path)
    assert after[: len(before)] == before
    new = [content["at"] for content in after[len(before) :]]
    assert all(re.fullmatch(re.escape(NOW) + " [0-9a-f]{32}", at) for at in new)
    assert len(set(new)) == 3
