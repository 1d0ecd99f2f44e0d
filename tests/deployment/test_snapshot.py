"""The frozen records of a run: what they are, who may read them, and when they go."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from dpfedc import whole_files
from dpfedc.deployment import control, snapshot
from dpfedc.deployment.control import opened
from dpfedc.deployment.messages import Answer, Refusal
from dpfedc.deployment.offered_runs import MODEL
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import LOST, NOT_READY, SiteService, site_node
from dpfedc.deployment.snapshot import KEY, SNAPSHOT
from dpfedc.errors import InvalidInput
from dpfedc.privacy.ledger import Ledger
from dpfedc.whole_files import draft_of
from support.deployment import by_site
from support.site_services import (
    agreement_with,
    charges,
    first_request,
    offered,
    result,
    site_folder,
    words,
    write_records,
)


@pytest.fixture
def agreement(folder):
    made = agreement_with([folder])
    folder.keep(made)
    folder.accept(made.digest)
    return made


@pytest.fixture
def service(folder, told):
    service = SiteService(folder, allow_simulated=True, tell=told.append)
    yield service
    service.close()


@pytest.fixture
def file(folder, agreement):
    return folder.run(agreement.digest) / SNAPSHOT


def table(folder):
    return folder.path.parent / "berlin.csv"


def test_what_was_frozen_is_read_back_to_the_last_bit(folder, agreement, file):
    X = by_site()["berlin"]
    X[3, 1] = np.nan
    write_records(table(folder), X)
    before = folder.load(agreement)
    snapshot.freeze(folder, agreement)
    values, present = snapshot.frozen(folder, agreement)
    np.testing.assert_array_equal(values, before.X)
    np.testing.assert_array_equal(present, before.present)
    assert not present[3]
    assert file.stat().st_size == X.size * 8 + len(X) + 32  # whatever the cells are


def test_nobody_else_may_read_it(service, folder, agreement, file):
    assert offered(service, agreement)
    for private in (file, folder.path / KEY):
        assert private.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write_records(path, by_site()["berlin"][:-1]),
        lambda path: write_records(path, np.vstack([by_site()["berlin"], [1.0, 2.0, 3.0]])),
        lambda path: write_records(path, by_site()["berlin"] * 2),
        Path.unlink,
    ],
    ids=["deleted", "inserted", "changed", "gone"],
)
def test_the_table_does_not_matter_any_more(tmp_path, change):
    """Not to a new process either: the answers are those of a site whose table stayed."""
    uploads = []
    for home, changed in ((tmp_path / "stayed", False), (tmp_path / "changed", True)):
        home.mkdir()
        folder = site_folder(home, "berlin")
        agreement = agreement_with([folder])
        service = SiteService(folder, accept=True, allow_simulated=True)
        assert offered(service, agreement)
        service.close()
        if changed:
            change(home / "berlin.csv")
        again = SiteService(SiteFolder.open(folder.path), allow_simulated=True)
        assert offered(again, agreement)
        answer = Answer.from_bytes(opened(again.reply(first_request(agreement))))
        uploads.append(answer.upload.values)
        again.close()
    np.testing.assert_array_equal(*uploads)


def test_an_acceptance_is_frozen_before_it_is_told(service, folder, agreement, file, told):
    assert not file.exists()
    assert offered(service, agreement)
    assert file.exists()
    assert "frozen" in told[-1]
    inode = file.stat().st_ino
    assert offered(service, agreement)
    assert file.stat().st_ino == inode  # once


def test_an_offer_that_waits_is_not_frozen(service, folder):
    waiting = agreement_with([folder], seed=8)
    assert not offered(service, waiting)
    assert not snapshot.is_frozen(folder, waiting.digest)


def lost(agreement):
    """Return how a run is refused whose frozen records are lost: for good, in fixed words."""
    return Refusal(f"run {agreement.digest[:12]} {LOST}", for_good=True, of_run=True)


@pytest.mark.parametrize("place", [0, 8 * 360 + 5, -1])
def test_a_changed_snapshot_is_refused_before_anything_is_charged(
    service, folder, agreement, file, told, place
):
    assert offered(service, agreement)
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert opened(service.reply(first_request(agreement))) == lost(agreement)
    assert "is not as it was written" in told[-1]
    assert charges(folder) == 0


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"x", lambda _: b""])
def test_a_snapshot_of_another_length_is_refused(service, folder, agreement, file, change):
    assert offered(service, agreement)
    file.write_bytes(change(file.read_bytes()))
    assert opened(service.reply(first_request(agreement))) == lost(agreement)
    assert charges(folder) == 0


def test_a_snapshot_of_another_run_or_with_another_key_is_refused(folder, agreement, file):
    other = agreement_with([folder], seed=8)
    folder.keep(other)
    folder.accept(other.digest)
    snapshot.freeze(folder, agreement)
    snapshot.freeze(folder, other)
    content = file.read_bytes()
    file.write_bytes((folder.run(other.digest) / SNAPSHOT).read_bytes())
    with pytest.raises(InvalidInput, match="not as it was written"):
        snapshot.frozen(folder, agreement)
    file.write_bytes(content)
    snapshot.frozen(folder, agreement)
    (folder.path / KEY).write_bytes(bytes(32))
    with pytest.raises(InvalidInput, match="not as it was written"):
        snapshot.frozen(folder, agreement)


def test_records_are_not_frozen_again_once_something_was_charged(
    service, folder, agreement, file, told
):
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)
    file.unlink()
    again = SiteService(folder, allow_simulated=True, tell=told.append)
    for request in (control.offer(agreement), first_request(agreement)):
        assert opened(again.reply(request)) == lost(agreement)
        assert "are gone" in told[-1]
    again.close()
    assert not file.exists()


def test_a_full_disk_is_a_fixed_refusal_and_leaves_nothing_half_written(
    service, folder, agreement, file, told, monkeypatch
):
    sync = os.fsync

    def full(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith(f"{SNAPSHOT}.draft"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(whole_files.os, "fsync", full)
    assert opened(service.reply(control.offer(agreement))) == Refusal(NOT_READY)
    assert "No space left" in told[-1]
    assert not file.exists()
    assert not draft_of(file).exists()
    monkeypatch.undo()
    assert offered(service, agreement)


def test_the_refusal_is_the_same_whatever_is_wrong_with_the_records(tmp_path):
    """A table that is gone, one with other columns, and one with other rows."""
    replies = []
    for name, spoil in {
        "gone": Path.unlink,
        "columns": lambda path: path.write_text("a,b\n1,2\n"),
        "rows": lambda path: write_records(path, by_site()["berlin"][:7]),
    }.items():
        home = tmp_path / name
        home.mkdir()
        folder = site_folder(home, "berlin")
        service = SiteService(folder, accept=True, allow_simulated=True)
        spoil(home / "berlin.csv")
        replies.append(service.reply(control.offer(agreement_with([folder]))))
        service.close()
    assert len(set(replies)) == 1
    assert opened(replies[0]) == Refusal(NOT_READY)


class TestDeletion:
    def test_when_the_model_is_here(self, service, folder, agreement, file):
        assert isinstance(opened(service.reply(first_request(agreement))), bytes)
        assert file.exists()
        assert words(service.reply(result(agreement)))["stored"]
        assert not file.exists()

    def test_when_a_killed_process_left_it(self, folder, agreement, file):
        snapshot.freeze(folder, agreement)
        (folder.run(agreement.digest) / MODEL).write_bytes(b"model")
        draft_of(file).write_bytes(b"half")
        SiteService(folder).close()
        assert not file.exists()
        assert not draft_of(file).exists()

    def test_but_not_while_the_run_goes_on(self, folder, agreement, file):
        snapshot.freeze(folder, agreement)
        draft_of(file).write_bytes(b"half")
        SiteService(folder).close()
        assert file.exists()
        assert not draft_of(file).exists()

    def test_when_the_run_is_cancelled_while_it_is_frozen(self, folder, agreement, file):
        """The command found nothing to delete yet."""
        folder.cancel(agreement.digest)
        snapshot.freeze(folder, agreement)
        assert not file.exists()

    def test_what_the_process_holds_goes_too(self, service, folder, agreement):
        assert isinstance(opened(service.reply(first_request(agreement))), bytes)
        assert agreement.digest in service._nodes
        folder.cancel(agreement.digest)
        service.reply(first_request(agreement))
        assert not service._nodes


def test_the_fingerprint_is_nowhere_in_the_ledger_or_in_what_is_sent(
    service, folder, agreement, file
):
    replies = [service.reply(control.hello()), service.reply(control.offer(agreement))]
    replies.append(service.reply(first_request(agreement)))
    tag = file.read_bytes()[-32:]
    for content in (*replies, folder.ledger.read_bytes()):
        assert tag not in content
        assert tag.hex().encode() not in content


def test_no_table_is_read_in_a_round(service, folder, agreement, monkeypatch):
    assert offered(service, agreement)
    monkeypatch.setattr(SiteFolder, "load", lambda *_: pytest.fail("the table was read"))
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)
    with Ledger.open(folder.ledger) as ledger:
        site_node(folder, agreement.digest, ledger, allow_simulated=True)
