"""Ledgers that were changed, cut or restored from a backup: what is wrong is found and named."""

import json
import re
import shutil
import sqlite3

import pytest

from dpfedc.errors import Refused
from dpfedc.privacy.ledger import Damaged, Head, Ledger
from support.ledgers import PLAN, charge, damage, forged, raw, set_in, used


def test_sqlite_refuses_changes_while_the_triggers_are_there(tmp_path):
    db = sqlite3.connect(used(tmp_path / "l"))
    for change in (
        "UPDATE chain SET digest = ''",
        "UPDATE answers SET answer = x'00'",
        "DELETE FROM chain WHERE row = 7",
        "DELETE FROM answers",
        "INSERT OR REPLACE INTO chain VALUES (3, '{}', '')",
        "INSERT INTO chain VALUES (99, '{}', '')",
        "INSERT OR REPLACE INTO answers VALUES (3, x'00')",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append only"):
            db.execute(change)
    db.close()
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.verify() == ledger.head()


@pytest.mark.parametrize("row", range(1, 8))
@pytest.mark.parametrize(
    "change",
    [
        "digest = substr(digest, 2) || substr(digest, 1, 1)",
        "digest = x'00'",
        "content = content || ' '",
        "content = x'00'",
        "row = row + 100",
    ],
)
def test_a_change_of_any_column_of_any_row_is_named(tmp_path, row, change):
    db = raw(used(tmp_path / "l"))
    db.execute(f"UPDATE chain SET {change} WHERE row = ?", (row,))
    db.close()
    assert f"row {row} is" in damage(tmp_path / "l")


def test_every_field_of_every_row_is_under_the_hash(tmp_path):
    used(tmp_path / "l")
    with sqlite3.connect(tmp_path / "l") as db:
        rows = db.execute("SELECT row, content FROM chain").fetchall()
    db.close()
    n_changes = 0
    for number, content in rows:
        for name in json.loads(content):
            shutil.copy(tmp_path / "l", tmp_path / "copy")
            changed = json.loads(content)
            changed[name] = "something else"
            db = raw(tmp_path / "copy")
            text = json.dumps(changed, sort_keys=True, separators=(",", ":"))
            db.execute("UPDATE chain SET content = ? WHERE row = ?", (text, number))
            db.close()
            assert f"row {number} is not as it was written" in damage(tmp_path / "copy")
            n_changes += 1
    assert n_changes > 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM chain WHERE row = 4", "row 4 is missing"),
        ("DELETE FROM chain WHERE row = 1", "row 1 is missing"),
        ("DELETE FROM chain", "row 1 is missing"),
        ("INSERT INTO chain VALUES (0, '{}', '')", "row 1 is missing, row 0 comes instead"),
        ("UPDATE answers SET answer = x'00' WHERE row = 3", "the answer of row 3 is not as it was"),
        ("UPDATE answers SET answer = 'text' WHERE row = 3", "the answer of row 3 is missing"),
        ("UPDATE answers SET row = 4 WHERE row = 3", "the answer of row 3 is missing"),
        ("DELETE FROM answers WHERE row = 6", "the answer of row 6 is missing"),
        ("INSERT INTO answers VALUES (4, x'00')", "row 4, which has bytes, is missing"),
        ("DELETE FROM chain WHERE row >= 6", "row 6, which has bytes, is missing"),
        ("SELECT 1", "TRIGGER"),
        ("CREATE TABLE more (x)", "CREATE T"),
    ],
)
def test_other_damage_is_named(tmp_path, change, message):
    db = raw(used(tmp_path / "l"))
    db.execute(change)
    db.close()
    assert message in damage(tmp_path / "l")


def test_a_changed_answer_is_not_handed_out(tmp_path):
    db = raw(used(tmp_path / "l"))
    db.execute("UPDATE answers SET answer = x'00' WHERE row = 3")
    db.close()
    with Ledger.open(tmp_path / "l") as ledger, pytest.raises(Damaged, match="answer of row 3"):
        ledger.answer("r", "mean", 1, "q")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (set_in(5, t=2), "row 5 could not have been written: round 2 .* must come after round 2"),
        (set_in(4, stage="mean", t=9), "row 4 could .* planned for 1 releases of a site"),
        (set_in(4, cost={"inverse_squares": 0.0, "spare_delta": 0.0}), "row 4 .* costs"),
        (set_in(7, min_survivors=2), "row 7 .* costs"),
        (set_in(7, cost_if_others_collude={"inverse_squares": 0.0}), "row 7 .* costs"),
        (set_in(4, noise_multiplier=1.0), "row 4 .* at least the plan's 4.0, got 1.0"),
        (set_in(2, plan=None), "row 2 .* must hold its plan"),
        (set_in(4, plan=json.loads(PLAN.to_json())), "row 4 .* costs"),
        (set_in(1, limits={"inverse_squares": 0.1, "spare_delta": 0.0}), "row 5 .* over the life"),
        (set_in(1, least_colluding_sites=2), "row 7 .* must tolerate 2 colluding sites"),
        (set_in(1, relation="replace-one"), "row 2 .* relation replace-one"),
        (set_in(1, cap_kind="none"), "row 1 could not"),
        (set_in(3, t=2), "row 3 .* has not been charged"),
        (set_in(3, kind="opening"), "row 3 could not"),
        (set_in(3, more=1), "row 3 could not"),
        (set_in(3, digest=""), "the answer of row 3 is not"),
        (lambda rows: [rows[1]], "row 1 .* starts with its holding"),
        (lambda rows: [rows[0], rows[0]], "row 2 .* opened once"),
        (lambda rows: rows.__setitem__(3, []), "row 4 could not"),
        (lambda rows: rows.append(rows[2]), "row 8 .* has been answered"),
    ],
)
def test_rows_that_break_the_rules_are_named_though_their_hashes_fit(tmp_path, edit, message):
    used(tmp_path / "l")
    said = damage(forged(tmp_path / "l", edit))
    assert re.search(message, said), said


def test_rewriting_without_a_change_is_whole_but_for_the_triggers(tmp_path):
    """The forger above changes nothing else, so what is named is what was changed."""
    assert "TRIGGER" in damage(forged(used(tmp_path / "l"), lambda rows: None))


def test_a_ledger_restored_from_a_backup_is_found_out(tmp_path):
    path = used(tmp_path / "l")
    shutil.copy(path, tmp_path / "backup")
    with Ledger.open(path) as ledger:
        old, new = ledger.head(), charge(ledger, t=9)
        assert new == ledger.head() != old
        ledger.require(old)
        ledger.require(new)
        ledger.require(Head(0, ""))
    shutil.copy(tmp_path / "backup", path)
    with Ledger.open(path) as ledger:
        assert ledger.verify() == old  # nothing in the file is wrong
        ledger.require(old)
        with pytest.raises(Refused, match=r"8 rows .* restored from a backup"):
            ledger.require(new)
        charge(ledger, t=9, request="another")  # as long again, but not the same
        with pytest.raises(Refused, match="restored from a backup"):
            ledger.require(new)
        for head in (Head(2**80, new.digest), Head(-1, new.digest), Head(3, new.digest)):
            with pytest.raises(Refused):
                ledger.require(head)
