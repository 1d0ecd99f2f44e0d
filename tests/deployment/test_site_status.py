"""What a site's operator can know of its runs, and by which words a run is found."""

import json

import pytest

from dpfedc.deployment import control
from dpfedc.deployment.admission import reservations
from dpfedc.deployment.control import opened
from dpfedc.deployment.offered_runs import AGREEMENT
from dpfedc.deployment.site_service import SiteService
from dpfedc.deployment.site_status import plain_status, resolve, run_statuses
from dpfedc.errors import InvalidInput
from dpfedc.privacy.ledger import GaussianCap, Head, Ledger
from support.site_services import agreement_with, first_request, offered, result, site_folder


def kept(folder, **changes):
    agreement = agreement_with([folder], **changes)
    folder.keep(agreement)
    return agreement


def states(folder):
    with Ledger.open(folder.ledger) as ledger:
        return [status.state for status in run_statuses(folder, ledger)]


def test_a_run_goes_from_offered_to_finished(folder):
    service = SiteService(folder, allow_simulated=True)
    agreement = agreement_with([folder])
    assert states(folder) == []
    assert not offered(service, agreement)
    assert states(folder) == ["offered"]
    folder.accept(agreement.digest)
    assert states(folder) == ["accepted"]
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)
    assert states(folder) == ["running"]
    with Ledger.open(folder.ledger) as ledger:
        (status,) = run_statuses(folder, ledger)
    planned = sum(release.rounds_per_site for release in agreement.privacy.releases)
    assert (status.answered, status.planned, status.frozen) == (1, planned, True)
    assert (status.epsilon, status.delta) == (50.0, 1e-4)
    service.reply(result(agreement))
    assert states(folder) == ["finished"]
    service.close()


@pytest.mark.parametrize(
    "content", [b'{"name": "old", "format": "0"}', b"{}", b"[", b"7", b"\xff\xfe"]
)
def test_a_run_that_cannot_be_read_is_shown_as_such_and_can_be_cancelled(folder, content):
    run = kept(folder).digest
    folder.accept(run)
    (folder.run(run) / AGREEMENT).write_bytes(content)
    assert states(folder) == ["unreadable"]
    with Ledger.open(folder.ledger) as ledger:
        assert reservations(folder, ledger) == []
        assert plain_status(folder, ledger)["runs"][0]["state"] == "unreadable"
    folder.cancel(resolve(folder, run[:8], state="accepted"))
    assert folder.state(run) == "cancelled"


def test_a_run_that_lost_rows_have_closed_reserves_nothing_and_is_shown_as_such(folder):
    folder.accept(kept(folder).digest)
    with Ledger.open(folder.ledger) as ledger:
        seen = Head(9, "ab" * 32)
        assert reservations(folder, ledger)
        ledger.recover(seen, plans={r: folder.agreement(r).privacy for r in folder.offered()})
        assert reservations(folder, ledger) == []
    assert states(folder) == ["closed"]


def test_the_status_as_json(folder):
    first, second = kept(folder, seed=1), kept(folder, seed=2, name="other")
    folder.accept(first.digest)
    folder.decline(second.digest)
    with Ledger.open(folder.ledger) as ledger:
        status = json.loads(json.dumps(plain_status(folder, ledger), allow_nan=False))
    assert (status["site"], status["declared"], status["unit"]) == ("berlin", 120, "record")
    assert [(run["name"], run["state"]) for run in status["runs"]] == [
        ("study", "accepted"),
        ("other", "declined"),
    ]
    due = sum(r.rounds_per_site / r.noise_multiplier**2 for r in first.privacy.releases)
    assert status["reserved"]["inverse_squares"] == pytest.approx(due)
    assert status["ledger"]["cap"] == {
        "kind": "gaussian", "epsilon": 1000.0, "delta": 1e-3, "spare_delta": 0.0,
    }  # fmt: skip
    assert status["ledger"]["spent"]["inverse_squares"] == 0


class TestResolve:
    def test_by_first_digits_or_name(self, folder):
        first, second = kept(folder, seed=1), kept(folder, seed=2, name="other study")
        for run in (first, second):
            for words in (run.digest, run.digest[:6], run.name):
                assert resolve(folder, words, state="offered") == run.digest

    def test_a_name_that_is_the_first_digits_of_another_run_does_not_stand_for_it(self, folder):
        first = kept(folder, seed=1)
        kept(folder, seed=2, name=first.digest[:12])
        assert resolve(folder, first.digest[:12], state="offered") == first.digest

    def test_of_several_with_one_name_the_one_that_waits_is_meant(self, folder):
        first, second = kept(folder, seed=1), kept(folder, seed=2)
        with pytest.raises(InvalidInput, match="RUN must fit one run, got 'study', which fits mo"):
            resolve(folder, "study", state="offered")
        with pytest.raises(InvalidInput, match="which fits more"):
            resolve(folder, "", state="offered")
        folder.accept(first.digest)
        assert resolve(folder, "study", state="offered") == second.digest
        assert resolve(folder, "", state="offered") == second.digest
        assert resolve(folder, "study", state="accepted") == first.digest

    def test_what_is_not_there_is_said_with_what_is(self, folder):
        with pytest.raises(InvalidInput, match="no run is offered here; known: none"):
            resolve(folder, "", state="offered")
        run = kept(folder)
        folder.accept(run.digest)
        known = rf"known: {run.digest[:12]} \(study, accepted\)"
        for words in ("", "no such run"):
            with pytest.raises(InvalidInput, match=known):
                resolve(folder, words, state="offered")

    def test_an_offer_that_was_refused_is_named_with_its_reason(self, tmp_path):
        (tmp_path / "poor").mkdir()
        folder = site_folder(tmp_path / "poor", "berlin", cap=GaussianCap(0.1, 1e-4))
        service = SiteService(folder, allow_simulated=True)
        agreement = agreement_with([folder], name="study \N{SNOWMAN}")
        service.reply(control.offer(agreement))
        service.close()
        said = rf"The latest offer was refused: run {agreement.digest[:12]} .*lifetime cap"
        with pytest.raises(InvalidInput, match=said):
            resolve(folder, "", state="offered")
        kept(folder, seed=9)  # news that is old is not told
        folder.accept(next(folder.offered()))
        with pytest.raises(InvalidInput, match="no run is offered here; known"):
            resolve(folder, "", state="offered")
