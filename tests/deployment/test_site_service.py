"""What a site does with whatever reaches it: what it keeps, answers and refuses, and why."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpfedc.deployment import control
from dpfedc.deployment.agreement import FORMAT
from dpfedc.deployment.control import opened
from dpfedc.deployment.messages import Answer, Refusal, Request, packed
from dpfedc.deployment.model_message import model_message
from dpfedc.deployment.offered_runs import AGREEMENT, MAX_PENDING, MODEL
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import NOT_READY, SiteService, site_node
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Ledger
from dpfedc.randomness import Randomness
from support.deployment import SIZES, agreed, by_site
from support.site_services import (
    agreement_with,
    charges,
    first_request,
    offered,
    result,
    site_folder,
    some_model,
    words,
    write_records,
)


@pytest.fixture
def agreement(folder):
    return agreement_with([folder])


@pytest.fixture
def service(folder, told):
    service = SiteService(folder, allow_simulated=True, tell=told.append)
    yield service
    service.close()


def test_a_site_says_what_it_declares_and_where_its_ledger_stands_and_nothing_else(service):
    with Ledger.open(service._folder.ledger) as ledger:
        head = ledger.head()
    said = {"records": SIZES["berlin"], "ledger": [1, head.digest]}
    assert words(service.reply(control.hello())) == said


def test_an_offer_waits_for_the_operator(service, folder, agreement, told):
    assert not offered(service, agreement)
    assert list(folder.offered()) == [agreement.digest]
    assert f"dpfedc site accept {folder.path} {agreement.digest[:12]}" in told[0]
    refusal = opened(service.reply(first_request(agreement)))
    assert refusal == Refusal(f"run {agreement.digest[:12]} has not been accepted here")
    assert charges(folder) == 0
    folder.accept(agreement.digest)
    assert offered(service, agreement)
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)
    assert charges(folder) == 1


def test_with_accept_no_operator_is_asked(folder, agreement):
    service = SiteService(folder, accept=True, allow_simulated=True)
    assert offered(service, agreement)
    assert folder.is_accepted(agreement.digest)
    service.close()


def test_the_same_request_gets_the_same_bytes_also_after_a_restart(service, folder, agreement):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    request = first_request(agreement)
    reply = service.reply(request)
    assert Answer.from_bytes(opened(reply)).site == "berlin"
    assert service.reply(request) == reply
    again = SiteService(SiteFolder.open(folder.path), allow_simulated=True)
    assert again.reply(request) == reply
    again.close()
    assert charges(folder) == 1


def test_an_offer_that_is_not_for_this_site_as_it_is_is_refused(service, folder, agreement):
    here, *others = agreement.sites
    for site in (replace(here, key="11" * 16), replace(here, n_records=121)):
        refusal = opened(service.reply(control.offer(agreed(sites=(site, *others)))))
        assert "berlin must have key" in refusal.reason
    refusal = opened(service.reply(control.offer(agreed(sites=tuple(others)))))
    assert "got 'berlin'" in refusal.reason
    assert not list(folder.offered())


def test_an_offer_with_less_noise_than_follows_from_its_epsilon_is_refused(
    service, folder, agreement
):
    first, *rest = agreement.privacy.releases
    less = replace(first, noise_multiplier=first.noise_multiplier * 0.9)
    plan = replace(agreement.privacy, releases=(less, *rest))
    refusal = opened(service.reply(control.offer(replace(agreement, privacy=plan))))
    assert "must have noise multiplier" in refusal.reason
    assert not list(folder.offered())


@pytest.mark.parametrize("kind", [GaussianCap, BasicCap])
def test_an_offer_beyond_the_lifetime_cap_is_refused_before_anything_is_spent(tmp_path, kind):
    """The run promises epsilon 50: it fits into a cap of 51, and not into one of 49."""
    for cap, fits in ((51.0, True), (49.0, False)):
        home = tmp_path / f"{cap:g}"
        home.mkdir()
        folder = site_folder(home, "berlin", cap=kind(cap, 1e-4))
        service = SiteService(folder, allow_simulated=True)
        reply = opened(service.reply(control.offer(agreement_with([folder]))))
        assert isinstance(reply, bytes) == fits
        assert fits or "lifetime cap" in reply.reason
        service.close()


def test_simulated_noise_must_be_allowed_by_name(folder, agreement):
    service = SiteService(folder, accept=True)
    assert "noise must be secure" in opened(service.reply(control.offer(agreement))).reason
    folder.keep(agreement)
    folder.accept(agreement.digest)
    assert opened(service.reply(first_request(agreement))) == Refusal(NOT_READY)
    assert charges(folder) == 0
    service.close()


def test_an_agreement_that_was_changed_on_the_disk_is_not_served(service, folder, agreement, told):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    other = agreement_with([folder], seed=8)
    (folder.run(agreement.digest) / AGREEMENT).write_text(other.to_json())
    assert opened(service.reply(first_request(agreement))) == Refusal(NOT_READY)
    assert "has been changed on the disk" in told[0]
    assert charges(folder) == 0


@pytest.mark.parametrize("ask", [control.offer, first_request])
def test_what_is_wrong_with_the_records_is_told_here_and_not_sent(
    service, folder, agreement, told, tmp_path, ask
):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    write_records(tmp_path / "berlin.csv", by_site()["berlin"][:-1])
    reply = service.reply(ask(agreement))
    assert opened(reply) == Refusal(NOT_READY)
    assert b"119" not in reply
    assert "119" in told[0]
    assert charges(folder) == 0


def test_replies_to_wrong_requests_do_not_depend_on_the_records(tmp_path, agreement):
    """The same answers from a site with other values, some of them missing."""
    X = by_site()["berlin"] * 1e9
    X[::2] = np.nan
    (tmp_path / "other").mkdir()
    folders = [SiteFolder.open(tmp_path / "berlin"), site_folder(tmp_path / "other", "berlin", X=X)]
    right = first_request(agreement)
    wrong = [b"", b"{", b"[]", b"{}", b"\0" * 50, right[:-1], right + b"x", first_request(
        agreement, "geneva"
    )]  # fmt: skip
    replies = []
    for folder in folders:
        folder.keep(agreement)
        folder.accept(agreement.digest)
        service = SiteService(folder, allow_simulated=True)
        replies.append([service.reply(request) for request in wrong])
        service.close()
        assert charges(folder) == 0
    assert replies[0] == replies[1]
    assert all(isinstance(opened(reply), Refusal) for reply in replies[0])


def test_a_model_is_kept_for_a_run_that_this_site_took_part_in_only(service, folder, agreement):
    message = result(agreement)
    path = folder.run(agreement.digest) / MODEL
    assert "has not been accepted here" in opened(service.reply(message)).reason
    folder.keep(agreement)
    folder.accept(agreement.digest)
    assert "has answered nothing in run" in opened(service.reply(message)).reason
    assert not path.exists()
    service.reply(first_request(agreement))
    assert words(service.reply(message)) == {"stored": True}
    assert ClusterModel.read(path).about["privacy"]["epsilon"] == agreement.guarantee.epsilon
    for run in ("../../x", "", "zz" * 32, 7, None):
        reply = service.reply(packed({"kind": "model", "run": run}, {}))
        assert isinstance(opened(reply), Refusal)


def test_what_was_declared_reaches_a_running_site_and_later_runs(service, folder, agreement):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    assert offered(service, agreement)
    write_records(folder.path.parent / "berlin.csv", by_site()["berlin"][:-1])
    folder.declaring(119)
    assert words(service.reply(control.hello()))["records"] == 119
    refusal = opened(service.reply(control.offer(agreement_with([folder], seed=8))))
    assert "berlin must have key" in refusal.reason
    assert "119 records" in refusal.reason
    # The run that was frozen goes on with what it was frozen with.
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)


def test_settings_that_cannot_be_read_are_told_here_and_not_sent(service, folder, agreement, told):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    assert offered(service, agreement)
    (folder.path / "site.toml").write_text("records = 'secret")
    assert opened(service.reply(control.hello())) == Refusal(NOT_READY)
    assert "site.toml cannot be read" in told[-1]
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)


@pytest.mark.parametrize(("state", "said"), [("declined", "was declined"), ("cancelled", "was ca")])
def test_a_run_that_was_declined_or_cancelled_is_refused_for_good(
    service, folder, agreement, state, said
):
    folder.keep(agreement)
    if state == "declined":
        folder.decline(agreement.digest)
    else:
        folder.accept(agreement.digest)
        assert offered(service, agreement)
        assert isinstance(opened(service.reply(first_request(agreement))), bytes)
        folder.cancel(agreement.digest)
    spent = charges(folder)
    model = result(agreement)
    for request in (control.offer(agreement), first_request(agreement), model):
        refusal = opened(service.reply(request))
        assert refusal.reason.startswith(f"run {agreement.digest[:12]} {said}")
        assert refusal.of_run
    again = SiteService(folder, accept=True, allow_simulated=True)
    assert said in opened(again.reply(control.offer(agreement))).reason
    again.close()
    assert charges(folder) == spent
    assert not (folder.run(agreement.digest) / MODEL).exists()


def test_a_run_that_is_over_answers_no_round_and_takes_its_model_again(service, folder, agreement):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    request = first_request(agreement)
    assert isinstance(opened(service.reply(request)), bytes)
    over = result(agreement)
    for _ in range(2):
        assert words(service.reply(over)) == {"stored": True}
        refusal = opened(service.reply(request))
        assert "is over here" in refusal.reason
        assert refusal.of_run
        assert offered(service, agreement)  # resumed, to send its model once more
    assert charges(folder) == 1


def test_names_given_here_outlive_that_the_model_is_sent_again(service, folder, agreement):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    service.reply(first_request(agreement))
    sent = some_model(agreement)
    assert words(service.reply(model_message(agreement, sent)))["stored"]
    path = folder.run(agreement.digest) / MODEL
    ClusterModel.read(path).named(0, "ours").named(1, "also ours").write(path)
    again = model_message(agreement, sent.named(1, "theirs"))
    assert words(service.reply(again))["stored"]
    assert ClusterModel.read(path).names == {0: "ours", 1: "theirs"}
    before = path.read_bytes()
    assert isinstance(opened(service.reply(again[:-8])), Refusal)
    assert path.read_bytes() == before
    path.write_bytes(b"no model")  # what somebody did here does not keep the model away
    assert words(service.reply(again))["stored"]
    assert ClusterModel.read(path).names == {1: "theirs"}


@pytest.mark.parametrize("version", [b"dpfedc 3", b"dpfedc 5"])
def test_a_coordinator_of_another_version_is_told_both(service, agreement, version):
    request = version + first_request(agreement)[len(version) :]
    reason = opened(service.reply(request)).reason
    assert "must be dpfedc 4, " in reason
    assert f"got '{version.decode()}': have the older side upgraded" in reason


def test_so_is_one_with_another_format_of_agreements(service, agreement):
    text = agreement.to_json().replace(FORMAT, "dpfedc-agreement-3")
    offer = json.dumps({"kind": "offer", "agreement": text}).encode()
    reason = opened(service.reply(offer)).reason
    assert f"must be {FORMAT}, " in reason
    assert "got 'dpfedc-agreement-3': have the older side upgraded" in reason


def test_offers_that_nobody_accepts_do_not_pile_up(service, folder):
    for seed in range(MAX_PENDING):
        folder.keep(agreement_with([folder], seed=seed))
    refusal = opened(service.reply(control.offer(agreement_with([folder], seed=99))))
    assert "less than 20 offers" in refusal.reason


def test_a_folder_reads_back_what_it_was_made_with(folder):
    assert SiteFolder.open(folder.path) == folder
    assert SiteFolder.open(folder.declaring(7).path).records == 7
    with pytest.raises(InvalidInput, match="a new or empty folder"):
        site_folder(folder.path.parent, "berlin")


@pytest.mark.parametrize(("unit", "other"), [("record", "person"), ("person", "record")])
def test_an_offer_for_another_unit_than_the_ledgers_is_refused(tmp_path, unit, other):
    folder = site_folder(tmp_path, "berlin", unit=unit)
    service = SiteService(folder, accept=True, allow_simulated=True)
    refusal = opened(service.reply(control.offer(agreement_with([folder], unit=other))))
    assert f"must be for unit {unit}, as the site's ledger is, got {other}" in refusal.reason
    assert not list(folder.offered())
    fitting = agreement_with([folder], unit=unit)
    assert offered(service, fitting)
    assert isinstance(opened(service.reply(first_request(fitting))), bytes)
    with Ledger.open(folder.ledger) as ledger:
        ledger.change_unit(other, rows_per_person=1)
    # The run that was accepted goes no further, and nothing more is charged.
    node = opened(service.reply(second_request(fitting)))
    assert f"must be for unit {other}" in node.reason
    assert charges(folder) == 1
    # Nor does a run for the ledger's new unit begin, while the slots are what they were.
    refusal = opened(service.reply(control.offer(agreement_with([folder], unit=other))))
    assert f"must be for unit {unit}, as the site's slots are, got {other}" in refusal.reason
    service.close()


def test_no_acceptance_makes_persons_of_rows(tmp_path):
    """Not even one that was written into the folder, with a ledger for persons."""
    folder = site_folder(tmp_path, "berlin")
    with Ledger.open(folder.ledger) as ledger:
        ledger.change_unit("person", rows_per_person=1)
        agreement = agreement_with([folder], unit="person")
        folder.keep(agreement)
        folder.accept(agreement.digest)
        with pytest.raises(InvalidInput, match="as the site's slots are, got person"):
            site_node(folder, agreement.digest, ledger, allow_simulated=True)


@pytest.mark.parametrize("state", ["accepted", "finished"])
def test_a_damaged_agreement_holds_up_no_other_run(service, folder, agreement, state):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    if state == "finished":
        assert isinstance(opened(service.reply(first_request(agreement))), bytes)
        assert words(service.reply(result(agreement))) == {"stored": True}
    (folder.run(agreement.digest) / AGREEMENT).write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match=f"run {agreement.digest[:12]} cannot be read"):
        folder.agreement(agreement.digest)
    again = SiteService(folder, accept=True, allow_simulated=True)
    least = again.most_bytes()
    other = agreement_with([folder], seed=8)
    assert offered(again, other)
    assert again.most_bytes() > least
    assert isinstance(opened(again.reply(first_request(other))), bytes)
    again.close()


def test_an_operator_who_cannot_be_told_keeps_nobody_from_an_answer(folder, agreement):
    def gone(_):
        raise OSError("the terminal is gone")

    service = SiteService(folder, accept=True, allow_simulated=True, tell=gone)
    assert offered(service, agreement)
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)
    assert isinstance(opened(service.reply(b"?")), Refusal)
    service.close()


def test_runs_that_were_accepted_unasked_and_never_begin_are_not_without_end(folder):
    service = SiteService(folder, accept=True, allow_simulated=True)
    for seed in range(MAX_PENDING):
        assert offered(service, agreement_with([folder], epsilon=0.5, seed=seed))
    more = agreement_with([folder], epsilon=0.5, seed=MAX_PENDING)
    refusal = opened(service.reply(control.offer(more)))
    assert refusal.reason.endswith("less than 20 accepted runs here that have not begun")
    assert folder.state(more.digest) == "unknown"
    first = agreement_with([folder], epsilon=0.5, seed=0)
    assert isinstance(opened(service.reply(first_request(first))), bytes)
    assert offered(service, more)
    service.close()


def test_nor_are_those_that_begin_and_do_not_end(folder, monkeypatch):
    """Each holds frozen records on the disk, and may have charged next to nothing."""
    monkeypatch.setattr("dpfedc.deployment.admission.MAX_OPEN", 5)
    service = SiteService(folder, accept=True, allow_simulated=True)
    runs = [agreement_with([folder], epsilon=0.01, seed=seed) for seed in range(6)]
    for agreement in runs[:5]:
        assert offered(service, agreement)
        assert isinstance(opened(service.reply(first_request(agreement))), bytes)
    refusal = opened(service.reply(control.offer(runs[5])))
    assert "less than 5 accepted runs here that are not over" in refusal.reason
    assert len([*folder.path.glob("runs/*/records.snapshot")]) == 5
    folder.cancel(runs[0].digest)
    assert offered(service, runs[5])
    service.close()


def second_request(agreement, site="berlin"):
    exchange = agreement.exchanges[1]
    stage = exchange.stage
    state = {**agreement.declared, "bound": np.asarray(20.0)}
    state = stage.start(state, agreement.public, Randomness(agreement.seed))
    return Request(agreement.digest, site, stage.name, 1, exchange.sent(state)).to_bytes()
