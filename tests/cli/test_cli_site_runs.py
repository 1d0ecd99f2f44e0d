"""The commands around a site's runs: what an operator types, and what it does to them."""

import io
import json

import pytest

from dpfedc.deployment import control
from dpfedc.deployment.control import opened
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.site_service import SiteService
from dpfedc.deployment.snapshot import SNAPSHOT
from dpfedc.privacy.ledger import BasicCap
from support.command_line import outcome, read_csv
from support.site_services import (
    agreement_with,
    charges,
    first_request,
    offered,
    result,
    site_folder,
    words,
)


@pytest.fixture
def folder(tmp_path):
    return site_folder(tmp_path, "berlin")


@pytest.fixture
def service(folder):
    service = SiteService(folder, allow_simulated=True)
    yield service
    service.close()


@pytest.fixture
def agreement(folder, service):
    made = agreement_with([folder])
    service.reply(control.offer(made))
    return made


@pytest.fixture
def dpfedc(capsys, folder):
    """Run a command about the site; return what it says, on one line."""

    def call(command, *more, code=0):
        got, out, err = outcome(capsys, ["site", command, folder.path, *more])
        assert got == code, err
        return " ".join((out if code == 0 else err).split())

    return call


def test_a_run_is_accepted_by_its_name_without_a_look_at_the_table(
    dpfedc, folder, service, agreement, tmp_path
):
    """The password of a database is known to the site's process, not to the operator's shell."""
    table = tmp_path / "berlin.csv"
    content = table.read_bytes()
    table.unlink()
    assert "Accepted run" in dpfedc("accept", "study", "--yes")
    assert "accepted; records not frozen yet" in dpfedc("status")
    assert "accepted already" in dpfedc("accept", agreement.digest[:8])
    table.write_bytes(content)
    assert offered(service, agreement)
    assert "not frozen" not in dpfedc("status")


def test_declining_is_for_good(dpfedc, folder, service, agreement, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    dpfedc("decline", "study", code=1)
    assert folder.state(agreement.digest) == "offered"
    assert "Declined run" in dpfedc("decline", "--yes")
    refusal = opened(service.reply(control.offer(agreement)))
    closed = f"run {agreement.digest[:12]} was declined here"
    assert refusal == Refusal(closed, for_good=True, of_run=True)
    assert "was declined here, for good" in dpfedc("accept", "study", code=2)
    assert "must wait to be declined" in dpfedc("decline", "study", "--yes", code=2)
    assert "no run is offered here" in dpfedc("accept", code=2)
    assert "declined" in dpfedc("status")


def test_cancelling_ends_a_run_here_and_deletes_its_records(
    dpfedc, folder, service, agreement, monkeypatch
):
    assert "must be accepted to be cancelled" in dpfedc("cancel", "study", "--yes", code=2)
    dpfedc("accept", "--yes")
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)
    assert "running: 1 of " in dpfedc("status")
    snapshot = folder.run(agreement.digest) / SNAPSHOT
    assert snapshot.exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    dpfedc("cancel", "study", code=1)
    assert snapshot.exists()
    assert "What was charged for it stays charged" in dpfedc("cancel", "study", "--yes")
    assert not snapshot.exists()
    refusal = opened(service.reply(first_request(agreement)))
    closed = f"run {agreement.digest[:12]} was cancelled here"
    assert refusal == Refusal(closed, for_good=True, of_run=True)
    assert charges(folder) == 1
    assert "was cancelled here, for good" in dpfedc("accept", "study", code=2)


def test_what_is_reserved_is_shown_and_counted(tmp_path, capsys):
    folder = site_folder(tmp_path, "berlin", cap=BasicCap(60.0, 2e-4))
    first, second = (agreement_with([folder], seed=seed, name=f"run {seed}") for seed in (1, 2))
    for run in (first, second):
        folder.keep(run)
    code, out, _ = outcome(capsys, ["site", "accept", folder.path, "run 1", "--yes"])
    assert code == 0
    assert "after this run: at most" in " ".join(out.split())
    code, _, err = outcome(capsys, ["site", "accept", folder.path, "run 2", "--yes"])
    assert code == 2
    assert "reserved for the accepted run" in " ".join(err.split())
    assert folder.state(second.digest) == "offered"
    code, out, _ = outcome(capsys, ["site", "status", folder.path])
    assert f"of epsilon for run {first.digest[:12]} (run 1)" in " ".join(out.split())
    code, out, _ = outcome(capsys, ["site", "status", folder.path, "--json"])
    status = json.loads(out)
    assert [run["state"] for run in status["runs"]] == ["accepted", "offered"]
    assert 49 < status["reserved"]["epsilon"] <= 50


def test_after_a_refused_offer_accept_says_so(dpfedc, folder, service):
    service.reply(control.offer(agreement_with([folder], unit="person")))
    said = dpfedc("accept", code=2)
    assert "no run is offered here. The latest offer was refused" in said
    assert "must be for unit record" in said


def test_an_offer_for_what_is_no_longer_declared_is_not_accepted(dpfedc, folder, agreement):
    folder.declaring(119)
    assert "119 records, got" in dpfedc("accept", "study", "--yes", code=2)
    assert folder.state(agreement.digest) == "offered"


def test_labels_are_found_by_the_runs_name(dpfedc, service, agreement, tmp_path):
    dpfedc("accept", "--yes")
    assert "has not come to its end yet" in dpfedc("labels", "--run", "study", code=2)
    service.reply(first_request(agreement))
    assert words(service.reply(result(agreement)))["stored"]
    assert "finished" in dpfedc("status")
    dpfedc("labels", "--run", "study", "--output", tmp_path / "labels.csv")
    assert len(read_csv(tmp_path / "labels.csv")) == 1 + 120
