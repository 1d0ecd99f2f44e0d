"""What a site does with whatever reaches it: what it keeps, answers and refuses, and why."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpfedc.deployment import control
from dpfedc.deployment.control import opened
from dpfedc.deployment.messages import Answer, Refusal, Request
from dpfedc.deployment.site_folder import AGREEMENT, MAX_PENDING, MODEL, SiteFolder
from dpfedc.deployment.site_service import NOT_READY, SiteService, site_node
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Ledger
from dpfedc.randomness import Randomness
from support.deployment import SIZES, agreed, by_site
from support.site_services import agreement_with, site_folder, write_records
from support.summaries import table_model


@pytest.fixture
def folder(tmp_path):
    return site_folder(tmp_path, "berlin")


@pytest.fixture
def agreement(folder):
    return agreement_with([folder])


@pytest.fixture
def told():
    return []


@pytest.fixture
def service(folder, told):
    service = SiteService(folder, allow_simulated=True, tell=told.append)
    yield service
    service.close()


def words(reply):
    return json.loads(opened(reply))


def offered(service, agreement):
    return words(service.reply(control.offer(agreement)))["accepted"]


def first_request(agreement, site="berlin"):
    exchange = agreement.exchanges[0]
    stage = exchange.stage
    state = stage.start(agreement.declared, agreement.public, None)
    return Request(agreement.digest, site, stage.name, 1, exchange.sent(state)).to_bytes()


def charges(folder):
    with Ledger.open(folder.ledger) as ledger:
        return sum(stage.n_charged for stage in ledger.totals().stages)


def test_a_site_says_how_many_records_it_declares_and_nothing_else(service):
    assert words(service.reply(control.hello())) == {"records": SIZES["berlin"]}


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


def test_what_is_wrong_with_the_records_is_told_here_and_not_sent(
    service, folder, agreement, told, tmp_path
):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    write_records(tmp_path / "berlin.csv", by_site()["berlin"][:-1])
    reply = service.reply(first_request(agreement))
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


def test_a_model_is_kept_for_an_accepted_run_only(service, folder, agreement):
    result = control.result(agreement.digest, b"model")
    assert isinstance(opened(service.reply(result)), Refusal)
    folder.keep(agreement)
    folder.accept(agreement.digest)
    assert words(service.reply(result)) == {"stored": True}
    assert (folder.run(agreement.digest) / MODEL).read_bytes() == b"model"
    for run in ("../../x", "", "zz" * 32):
        assert isinstance(opened(service.reply(control.result(run, b"model"))), Refusal)


def test_names_given_here_outlive_that_the_model_is_sent_again(service, folder, agreement):
    folder.keep(agreement)
    folder.accept(agreement.digest)
    sent = table_model()
    assert words(service.reply(control.result(agreement.digest, sent.to_bytes())))["stored"]
    path = folder.run(agreement.digest) / MODEL
    assert path.read_bytes() == sent.to_bytes()
    ClusterModel.read(path).named(0, "ours").named(1, "also ours").write(path)
    again = sent.named(1, "theirs").to_bytes()
    assert words(service.reply(control.result(agreement.digest, again)))["stored"]
    assert ClusterModel.read(path).names == {0: "ours", 1: "theirs"}
    service.reply(control.result(agreement.digest, b"no model"))  # kept as it was sent, as before
    assert path.read_bytes() == b"no model"


def test_offers_that_nobody_accepts_do_not_pile_up(service, folder):
    for seed in range(MAX_PENDING):
        folder.keep(agreement_with([folder], seed=seed))
    refusal = opened(service.reply(control.offer(agreement_with([folder], seed=99))))
    assert "less than 20 offers" in refusal.reason


def test_a_run_is_found_by_the_start_of_its_digest(folder, agreement):
    with pytest.raises(InvalidInput, match="known: none"):
        folder.resolve("ab")
    folder.keep(agreement)
    assert folder.resolve(agreement.digest[:6]) == agreement.digest
    other = agreement_with([folder], seed=8)
    folder.keep(other)
    with pytest.raises(InvalidInput, match="there must be one offered run, got 2"):
        folder.resolve("")
    folder.accept(agreement.digest)
    assert folder.resolve("") == other.digest


def test_a_folder_reads_back_what_it_was_made_with(folder):
    assert SiteFolder.open(folder.path) == folder
    assert SiteFolder.open(folder.declaring(7).path).records == 7
    with pytest.raises(InvalidInput, match="a new or empty folder"):
        site_folder(folder.path.parent, "berlin")


@pytest.mark.parametrize("server", ["192.0.2.1:8470", "hub.example.org:8470", "[2001:db8::1]:1"])
def test_without_tls_only_this_machine_is_reached(folder, server):
    text = (folder.path / "site.toml").read_text().replace("127.0.0.1:8470", server)
    (folder.path / "site.toml").write_text(text)
    with pytest.raises(InvalidInput, match="must stay on a loopback address"):
        SiteFolder.open(folder.path)


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


def second_request(agreement, site="berlin"):
    exchange = agreement.exchanges[1]
    stage = exchange.stage
    state = {**agreement.declared, "bound": np.asarray(20.0)}
    state = stage.start(state, agreement.public, Randomness(agreement.seed))
    return Request(agreement.digest, site, stage.name, 1, exchange.sent(state)).to_bytes()
