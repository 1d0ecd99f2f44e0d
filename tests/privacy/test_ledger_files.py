"""The files of a ledger, changed while somebody has it open: nothing more is charged or answered.

SQLite itself notices none of it. Each case is something that happens to a site: a file is deleted,
put back from a backup, or opened to others.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpfedc.privacy.ledger import Damaged, Ledger, Unusable
from dpfedc.privacy.ledger.chain import Chain
from dpfedc.privacy.ledger.ledger_file import SUFFIXES, OpenFiles
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from support.ledgers import WIDE, charge
from support.planting import plant

pytestmark = pytest.mark.skipif(os.name != "posix", reason="open files cannot be deleted there")
MANY = PrivacyPlan((PlannedRelease("rounds", 99, 4, 99, 2.0),), 1e-6, "local", 4)


def beside(path, suffix):
    return Path(f"{path}{suffix}")


@pytest.fixture
def path(tmp_path):
    """Return a ledger with a charge; a copy of it, as a backup, lies beside."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, holding="h", cap=WIDE) as made:
        charge(made, plan=MANY, t=1)
        made.settle("r", "rounds", 1, b"one")
    shutil.copy(path, tmp_path / "backup")
    return path


@pytest.fixture
def ledger(path):
    """Return it open, with more rows than the backup has, all of them in the file proper."""
    with Ledger.open(path) as opened:
        charge(opened, plan=MANY, t=2)
        opened.settle("r", "rounds", 2, b"two")
        charge(opened, plan=MANY, t=3)
        opened._chain._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield opened


def in_shell(command):
    """Change files as another process does: this one must not open them beside SQLite."""
    subprocess.run(["sh", "-c", command], check=True)


def deleted(path):
    for suffix in SUFFIXES:
        beside(path, suffix).unlink()


def replaced_by_an_older_copy(path):
    shutil.copy(path.parent / "backup", path.parent / "new")
    (path.parent / "new").replace(path)


def replaced_by_a_new_ledger(path):
    deleted(path)
    Ledger.create(path, holding="h", cap=WIDE).close()


def replaced_by_a_link(path):
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def folder_replaced(path):
    path.parent.rename(path.parent.with_name("old"))
    shutil.copytree(path.parent.with_name("old"), path.parent)


CHANGES = {
    "deleted": (deleted, "ledger.sqlite is not where it was"),
    "moved away": (lambda path: path.rename(path.parent / "away"), "is not where it was"),
    "an older copy": (replaced_by_an_older_copy, "is another file than the one"),
    "a new ledger": (replaced_by_a_new_ledger, "is another file than the one"),
    "a link": (replaced_by_a_link, "is another file than the one"),
    "another folder": (folder_replaced, "is another file than the one"),
    "log deleted": (lambda path: beside(path, "-wal").unlink(), "sqlite-wal is not where it was"),
    "locks deleted": (lambda path: beside(path, "-shm").unlink(), "sqlite-shm is not where it w"),
    "open to others": (lambda path: path.chmod(0o644), "got mode 644: chmod 600 it"),
    "open to a group": (lambda path: path.chmod(0o620), "got mode 620"),
    "log open to others": (lambda path: beside(path, "-wal").chmod(0o604), "-wal .* mode 604"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_nothing_is_charged_answered_or_changed_any_more(ledger, path, what):
    change, message = CHANGES[what]
    change(path)
    for use in (
        lambda: charge(ledger, plan=MANY, t=4),
        lambda: ledger.settle("r", "rounds", 3, b"three"),
        lambda: ledger.change_unit("person", rows_per_person=2),
        lambda: ledger.recover(None),
        lambda: ledger.require(ledger.head()),
    ):
        with pytest.raises(Unusable, match=message):
            use()
    assert ledger.head().n_rows == 6


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root")
def test_a_file_of_another_user_is_not_charged(ledger, path):
    os.chown(path, 12345, 12345)
    with pytest.raises(Unusable, match="must belong to who uses it, got a file of user 12345"):
        charge(ledger, plan=MANY, t=4)


def test_a_ledger_that_is_a_link_is_not_charged(path):
    replaced_by_a_link(path)
    with Ledger.open(path) as ledger, pytest.raises(Unusable, match="must be a plain file"):
        charge(ledger, plan=MANY, t=4)


def test_a_copy_that_others_can_read_can_be_looked_at(path):
    path.chmod(0o644)
    with Ledger.open(path) as ledger:
        assert ledger.verify().n_rows == 3
        assert ledger.totals().spent["inverse_squares"] == 1 / 4


def test_a_file_that_was_moved_away_and_back_is_the_same(ledger, path):
    for suffix in SUFFIXES:
        beside(path, suffix).rename(path.parent / f"away{suffix}")
        beside(path.parent / "away", suffix).rename(beside(path, suffix))
    charge(ledger, plan=MANY, t=4)
    assert ledger.verify().n_rows == 7


def test_others_who_use_the_ledger_change_nothing(ledger, path):
    for t in (4, 5):
        with Ledger.open(path) as other:
            charge(other, plan=MANY, t=t)
            other.settle("r", "rounds", t, bytes(9000))
            other._chain._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    code = f"from dpfedc.privacy.ledger import Ledger; Ledger.open({str(path)!r}).close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    charge(ledger, plan=MANY, t=6)
    assert ledger.verify().n_rows == 11


def written_over(path):
    """Write a backup into the same file, which keeps its inode."""
    in_shell(f"cat {path.parent}/backup > {path}")


def test_a_backup_that_was_written_into_the_same_file_is_found(ledger, path):
    written_over(path)
    with pytest.raises(Damaged, match="row 6 was there, and is no longer"):
        charge(ledger, plan=MANY, t=4)
    with pytest.raises(Damaged, match="row 6 was there"):
        ledger.settle("r", "rounds", 3, b"three")


def test_a_backup_without_the_very_last_row_is_found(ledger, path):
    in_shell(f"cp {path} {path.parent}/backup")
    charge(ledger, plan=MANY, t=4)
    ledger._chain._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    written_over(path)
    with pytest.raises(Damaged, match="row 7 was there, and is no longer"):
        charge(ledger, plan=MANY, t=4, request="again")


def test_a_log_that_was_emptied_is_found(ledger, path):
    charge(ledger, plan=MANY, t=4)
    in_shell(f": > {path}-wal")
    with pytest.raises(Unusable):
        charge(ledger, plan=MANY, t=5)


def test_a_file_that_goes_while_it_is_charged_is_found_before_anything_is_computed(
    ledger, path, monkeypatch
):
    append = Chain.append

    def last_moment(self, *args, **how):
        head = append(self, *args, **how)
        path.rename(path.parent / "away")
        return head

    monkeypatch.setattr(Chain, "append", last_moment)
    with pytest.raises(Unusable, match="is not where it was"):
        charge(ledger, plan=MANY, t=4)


# --- the checks are what finds it --------------------------------------------------------------


@pytest.mark.parametrize("what", ["deleted", "an older copy", "a new ledger", "log deleted"])
def test_without_the_look_at_the_files_the_site_goes_on(ledger, path, monkeypatch, what):
    plant(monkeypatch, OpenFiles.trouble, lambda right, self: None)
    CHANGES[what][0](path)
    charge(ledger, plan=MANY, t=4)  # and it is in no file that will be opened again


def test_pages_in_memory_hide_what_is_on_the_disk(ledger, path):
    """That is why they are dropped: read through them, the row is still there."""
    before = ledger.head()
    written_over(path)
    assert ledger.head() == before
