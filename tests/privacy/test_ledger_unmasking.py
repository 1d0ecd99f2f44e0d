"""Rows that say that a site has opened the sum of a round: once, and in that order."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from dpfedc.errors import InvalidInput, Refused, RoundSpent
from dpfedc.privacy.ledger import Damaged, Ledger, Unusable, ledger_rows
from support.ledgers import PLAN, TOGETHER, WIDE, charge, damage, forged, ledgers_in, set_in


@pytest.fixture
def path(tmp_path):
    """Return a ledger with a masked run of three rounds: opened, answered, and charged only.

    Its rows: the opening; charge, answer and unmasking of round 1; charge and answer of round 2;
    charge of round 4; charge and answer of a run without masks.
    """
    path = tmp_path / "site.ledger"
    with Ledger.create(path, holding="ward 7", cap=WIDE) as ledger:
        charge(ledger, "s", TOGETHER, t=1)
        ledger.settle("s", "rounds", 1, b"masked")
        ledger.unmask("s", "rounds", 1, "open")
        charge(ledger, "s", TOGETHER, t=2)
        ledger.settle("s", "rounds", 2, b"masked, too")
        charge(ledger, "s", TOGETHER, t=4)
        charge(ledger, "r", PLAN)
        ledger.settle("r", "rounds", 1, b"noisy")
    return path


def user_version(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def is_opened(ledger, t):
    return ("s", "rounds", t) in ledger._read().unmasked


def test_a_sum_is_opened_once_its_upload_is_answered(path):
    with Ledger.open(path) as ledger:
        before = ledger.head()
        assert is_opened(ledger, 1)
        assert not is_opened(ledger, 2)
        head = ledger.unmask("s", "rounds", 2, "open")
        assert head == ledger.head() == ledger.verify()
        assert head.n_rows == before.n_rows + 1 == 10
        assert is_opened(ledger, 2)
        ledger.require(before)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (("s", "rounds", 3), "nothing was charged"),
        (("s", "rounds", 4), "nothing was answered"),
        (("s", "mean", 1), "nothing of this stage"),
        (("x", "rounds", 1), "no such run"),
        (("r", "rounds", 1), "its answer had no masks"),
    ],
)
def test_what_has_no_masked_answer_is_not_opened(path, place, why):
    with Ledger.open(path) as ledger:
        before = ledger.head()
        said = f"round {place[2]} of stage {place[1]!r} has no masked answer"
        with pytest.raises(Refused, match=said) as found:
            ledger.unmask(*place, "open")
        assert not isinstance(found.value, RoundSpent), f"{why}: it may yet come"
        assert ledger.head() == before


def test_a_trusted_server_has_nothing_to_open(tmp_path):
    trusted = replace(PLAN, trust="trusted-server")
    with ledgers_in(tmp_path) as make:
        ledger = make()
        charge(ledger, "r", trusted)
        ledger.settle("r", "rounds", 1, b"noisy")
        with pytest.raises(Refused, match="has no masked answer"):
            ledger.unmask("r", "rounds", 1, "open")


@pytest.mark.parametrize("request_", ["open", "another"])
def test_a_sum_is_opened_once_whatever_the_request(path, request_):
    with Ledger.open(path) as ledger:
        before = ledger.head()
        for _ in range(2):
            with pytest.raises(RoundSpent, match=r"round 1 of .* was opened before, and is only"):
                ledger.unmask("s", "rounds", 1, request_)
        assert ledger.head() == before


def test_so_it_is_by_a_second_reader(path):
    """Both have the file open, and each sees at once what the other wrote."""
    with Ledger.open(path) as one, Ledger.open(path) as other:
        assert one.head() == other.head()
        one.unmask("s", "rounds", 2, "open")
        with pytest.raises(RoundSpent, match="was opened before"):
            other.unmask("s", "rounds", 2, "another")
        assert one.head() == other.head() == other.verify()


OPENS = """
import sys
from dpfedc.errors import RoundSpent
from dpfedc.privacy.ledger import Ledger
with Ledger.open(sys.argv[1]) as ledger:
    try:
        print(ledger.unmask("s", "rounds", 2, sys.argv[2]).n_rows)
    except RoundSpent:
        print("spent")
"""


def test_so_it_is_by_another_process(path):
    def opened_there(request):
        call = [sys.executable, "-c", OPENS, str(path), request]
        done = subprocess.run(call, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    with Ledger.open(path) as ledger:
        assert opened_there("open") == "10"
        with pytest.raises(RoundSpent, match="was opened before"):
            ledger.unmask("s", "rounds", 2, "another")
    assert opened_there("a third") == "spent"


@pytest.mark.parametrize("request_", ["", None, 7])
def test_a_request_must_have_a_name(path, request_):
    with Ledger.open(path) as ledger:
        with pytest.raises(InvalidInput, match="request must be a text"):
            ledger.unmask("s", "rounds", 2, request_)
        assert not is_opened(ledger, 2)


def test_opening_costs_nothing_and_releases_nothing(path):
    """The sum was paid for when the upload was charged."""
    with Ledger.open(path) as ledger:
        before = ledger.totals()
        ledger.unmask("s", "rounds", 2, "open")
        assert ledger.totals() == before
        assert ledger.answer("s", "rounds", 2, "q") == b"masked, too"
        with pytest.raises(RoundSpent, match="charged for another request"):
            ledger.answer("s", "rounds", 2, "open")


def test_a_row_that_was_not_written_is_not_there(path, monkeypatch):
    """The process ends before the row is on the disk: the next one may open the sum."""

    def fails(*_, **__):
        raise KeyboardInterrupt

    with Ledger.open(path) as ledger, monkeypatch.context() as patch:
        patch.setattr(ledger._chain, "append", fails)
        with pytest.raises(KeyboardInterrupt):
            ledger.unmask("s", "rounds", 2, "open")
    with Ledger.open(path) as ledger:
        assert not is_opened(ledger, 2)
        ledger.unmask("s", "rounds", 2, "open")


# Formats


def test_the_format_is_the_third_from_the_first_such_row_on(tmp_path, monkeypatch):
    with ledgers_in(tmp_path) as make:
        ledger = make()
        charge(ledger, "s", TOGETHER)
        ledger.settle("s", "rounds", 1, b"masked")
        assert user_version(tmp_path / "site.ledger") == 0
        with pytest.raises(Refused):
            ledger.unmask("s", "rounds", 2, "open")
        assert user_version(tmp_path / "site.ledger") == 0, "what is refused needs no format"
        ledger.unmask("s", "rounds", 1, "open")
        assert user_version(tmp_path / "site.ledger") == 3
        charge(ledger, "r", PLAN)
        ledger.change_unit("person", rows_per_person=1)
    assert user_version(tmp_path / "site.ledger") == 3, "and stays so"
    with Ledger.open(tmp_path / "site.ledger") as ledger:
        assert ledger.verify().n_rows == 6
    monkeypatch.setattr("dpfedc.privacy.ledger.chain.NEWEST", 2)
    with pytest.raises(Unusable, match="must be a ledger of format 2 at most, got 3"):
        Ledger.open(tmp_path / "site.ledger")


@pytest.mark.parametrize("older", [0, 1, 2])
def test_ledgers_of_older_formats_take_such_rows(tmp_path, older):
    path = tmp_path / "site.ledger"
    unit = "person" if older else "record"
    plan = replace(TOGETHER, unit=unit)
    with ledgers_in(tmp_path) as make:
        ledger = make(unit=unit)
        if older == 2:
            charge(ledger, "lost", plan)
            ledger.recover(None, plans={})
        charge(ledger, "s", plan, t=2)
        ledger.settle("s", "rounds", 2, b"masked")
    assert user_version(path) == older
    with Ledger.open(path) as ledger:
        ledger.unmask("s", "rounds", 2, "open")
        ledger.verify()
    assert user_version(path) == 3


def test_a_program_that_does_not_know_the_row_refuses_the_file(path, monkeypatch):
    monkeypatch.delitem(ledger_rows._KINDS, "unmasking")
    with pytest.raises(Damaged, match="row 4 could not have been written"):
        Ledger.open(path)


# Forged rows


def inserted(at, like, **changes):
    """Return an edit: a row like another one, put in after row `at`."""
    return lambda rows: rows.insert(at, {**rows[like - 1], **changes})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (inserted(4, 4), r"row 5 .* round 1 of stage 'rounds' was opened before"),
        (inserted(9, 4, request="another"), r"row 10 .* was opened before"),
        (inserted(2, 4), r"row 3 .* round 1 of stage 'rounds' has no masked answer"),
        (inserted(1, 4), r"row 2 .* has no masked answer"),
        (inserted(9, 4, t=4), r"row 10 .* round 4 of stage 'rounds' has no masked answer"),
        (inserted(9, 4, t=3), r"row 10 .* has no masked answer"),
        (inserted(9, 4, run="r"), r"row 10 .* has no masked answer"),
        (inserted(9, 4, run="x"), r"row 10 .* has no masked answer"),
        (inserted(9, 4, stage="mean"), r"row 10 .* has no masked answer"),
        (set_in(4, more=1), "row 4 could not"),
        (lambda rows: rows[3].pop("request"), "row 4 could not"),
        (set_in(4, kind="answer", digest="00"), "row 4 could not"),
        (lambda rows: rows.pop(2) and None, "row 3 .* has no masked answer"),
    ],
)
def test_rows_that_break_the_rules_are_named_though_their_hashes_fit(path, edit, message):
    def only(rows):
        edit(rows)

    said = damage(forged(path, only))
    assert re.search(message, said), said


def test_a_row_that_was_cut_off_is_missed_by_whoever_has_seen_it(path):
    """The file alone is whole without it, as with every row at the end."""
    with Ledger.open(path) as ledger:
        before, seen = ledger.head(), ledger.unmask("s", "rounds", 2, "open")
    assert "TRIGGER" in damage(forged(path, lambda rows: rows[:-1]))
    with Ledger.open(path) as ledger:
        assert not is_opened(ledger, 2)
        assert ledger.head().n_rows == before.n_rows
        with pytest.raises(Refused, match="restored from a backup"):
            ledger.require(seen)


def test_a_change_of_the_row_is_found(path):
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append only"):
        db.execute("DELETE FROM chain WHERE row = 4")
    (content,) = db.execute("SELECT content FROM chain WHERE row = 4").fetchone()
    db.execute("DROP TRIGGER chain_UPDATE_refused")
    changed = content.replace('"open"', '"another"')
    assert changed != content
    db.execute("UPDATE chain SET content = ? WHERE row = 4", (changed,))
    db.commit()
    db.close()
    assert "row 4 is not as it was written" in damage(path)
