"""A hostile or broken world around a site: it refuses, stays up, and tells nothing by the way."""

import json
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest

from dpfedc.deployment import control, runs
from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.control import opened
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.limits import MAX_RECORDS
from dpfedc.deployment.messages import Refusal, Request, packed
from dpfedc.deployment.site_run import LEDGER_TROUBLE
from dpfedc.deployment.site_service import FAILED, SiteService
from dpfedc.errors import InvalidInput, MissingExtra, Refused
from dpfedc.privacy import noise
from dpfedc.privacy.ledger import Damaged, Ledger, chain
from support.deployment import agreed, by_site, new_ledger, node
from support.site_services import DeskTransport, agreement_with, site_folder


@pytest.fixture
def agreement(folder):
    made = agreement_with([folder])
    folder.keep(made)
    folder.accept(made.digest)
    return made


@pytest.fixture
def service(folder, agreement, told):
    service = SiteService(folder, allow_simulated=True, tell=told.append)
    yield service
    service.close()


def first_request(agreement, **changes):
    arrays = {"origin": np.zeros(3)}
    place = {"run": agreement.digest, "site": "berlin", "stage": "bound", "t": 1, **changes}
    steps = {"step": "upload", "attempt": ""}
    return packed({"kind": "request", "receipt": None, **steps, **place}, arrays)


def charges(folder):
    with Ledger.open(folder.ledger) as ledger:
        return sum(stage.n_charged for stage in ledger.totals().stages)


def altered_offer(agreement, where, value):
    """Return the offer of an agreement that no honest coordinator writes."""
    content = json.loads(agreement.to_json())
    at = content
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({"kind": "offer", "agreement": text}).encode()


HUGE = 10**400


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("sites", 1, "n_records"), HUGE),
        (("sites", 1, "n_records"), 2**63 - 1),
        (("epsilon",), HUGE),
        (("epsilon",), 1e308),
        (("deadline",), HUGE),
        (("privacy", "delta"), 5e-324),
        (("privacy", "releases", 0, "noise_multiplier"), HUGE),
        (("settings", "n_rounds"), HUGE),
        (("settings", "norm_bound"), HUGE),
        (("features",), ["\ud800", "b", "c"]),
        (("features",), ["\x1b[2J", "b", "c"]),
    ],
)
def test_no_offer_ends_the_process(service, folder, agreement, where, value):
    """Nor does one keep it busy for minutes, or reach the operator's terminal as it is."""
    reply = opened(service.reply(altered_offer(agreement, where, value)))
    assert isinstance(reply, Refusal)
    assert list(folder.offered()) == [agreement.digest]
    assert isinstance(opened(service.reply(control.hello())), bytes)


@pytest.mark.parametrize("site", ["\ud800", "\x1b[2J", "x" * 60000])
def test_no_words_of_a_request_end_the_process_or_reach_the_terminal(
    service, folder, agreement, told, site
):
    assert isinstance(opened(service.reply(first_request(agreement, site=site))), Refusal)
    assert all(text.isprintable() for text in told)
    assert charges(folder) == 0


def test_what_nobody_thought_of_is_told_here_and_not_sent(service, folder, told, monkeypatch):
    def broken(*_):
        raise OSError(28, "No space left on device", str(folder.path))

    monkeypatch.setattr(SiteService, "_offered", broken)
    assert opened(service.reply(b'{"kind":"offer"}')) == Refusal(FAILED)
    assert "No space left" in told[0]


def test_not_even_a_panic_of_a_compiled_library_ends_the_process(service, told, monkeypatch):
    class Panic(BaseException):
        """What some compiled packages raise: no Exception."""

    def broken(*_):
        raise Panic("index out of bounds")

    monkeypatch.setattr(SiteService, "_offered", broken)
    assert opened(service.reply(b'{"kind":"offer"}')) == Refusal(FAILED)
    assert "index out of bounds" in told[0]
    monkeypatch.setattr(
        SiteService, "_offered", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        service.reply(b'{"kind":"offer"}')


def test_a_ledger_in_trouble_is_named_here_and_no_path_is_sent(folder, agreement, monkeypatch):
    """Somebody else holds the file; afterwards the same request is answered."""
    monkeypatch.setattr(chain, "_WAIT_S", 0.05)
    told = []
    service = SiteService(folder, allow_simulated=True, tell=told.append)
    with closing(sqlite3.connect(folder.ledger, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        reply = service.reply(first_request(agreement))
        other.execute("ROLLBACK")
    assert opened(reply) == Refusal(LEDGER_TROUBLE)
    assert str(folder.path) in told[0]
    assert charges(folder) == 0
    assert isinstance(opened(service.reply(first_request(agreement))), bytes)
    service.close()


def test_nor_by_a_node_that_is_asked_without_a_desk(tmp_path, monkeypatch):
    monkeypatch.setattr(chain, "_WAIT_S", 0.05)
    agreement = agreed()
    new_ledger(tmp_path, "berlin")
    path = tmp_path / "berlin.ledger"
    with Ledger.open(path) as ledger, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Refused) as refusal:
            node(agreement, "berlin", ledger).answer(first_request(agreement))
    assert str(refusal.value) == LEDGER_TROUBLE


def test_nor_when_a_run_is_offered(service, folder, told, monkeypatch):
    def damaged(self):
        raise Damaged(f"{folder.ledger}: row 3 is missing")

    monkeypatch.setattr(Ledger, "totals", damaged)
    offer = control.offer(agreement_with([folder], seed=8))
    assert opened(service.reply(offer)) == Refusal(LEDGER_TROUBLE)
    assert told == [f"refused: {folder.ledger}: row 3 is missing"]


def test_a_missing_package_costs_no_round(tmp_path, monkeypatch):
    def missing(_):
        raise MissingExtra("secure noise needs opendp")

    agreement = agreed(noise="secure")
    new_ledger(tmp_path, "berlin")
    monkeypatch.setattr(noise, "_discrete_gaussian", missing)
    with Ledger.open(tmp_path / "berlin.ledger") as ledger:
        with pytest.raises(MissingExtra):
            node(agreement, "berlin", ledger)
        assert ledger.totals().stages == ()


def test_two_processes_that_look_at_the_same_time_release_once(tmp_path, monkeypatch):
    """Both see that the round has no answer yet; the ledger lets one of them charge it."""
    agreement = agreed(noise="secure")
    new_ledger(tmp_path, "berlin")
    together, looked = threading.Barrier(2), Ledger.answer

    def look(self, *place):
        found = looked(self, *place)
        together.wait(60)
        return found

    monkeypatch.setattr(Ledger, "answer", look)
    arrays = {"origin": np.zeros(3), "bound": np.array(12.0), "centers": np.eye(3)}
    data = Request(agreement.digest, "berlin", "lloyd", 1, arrays).to_bytes()
    answers, refusals = [], []

    def serve():
        with Ledger.open(tmp_path / "berlin.ledger") as ledger:
            try:
                answers.append(node(agreement, "berlin", ledger, by_site()["berlin"]).answer(data))
            except Refused as error:
                refusals.append(str(error))

    # SQLite's connections stay in their threads, as they would in their processes.
    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (len(answers), len(refusals)) == (1, 1)
    with Ledger.open(tmp_path / "berlin.ledger") as ledger:
        z = agreement.privacy.of_stage("lloyd").noise_multiplier
        assert ledger.totals().spent["inverse_squares"] == pytest.approx(z**-2)


class TestAccepting:
    def test_an_offer_that_waited_is_accepted_after_a_restart_with_accept(self, folder):
        waiting = agreement_with([folder], seed=8)
        for accept in (False, True):
            service = SiteService(folder, accept=accept, allow_simulated=True)
            said = json.loads(opened(service.reply(control.offer(waiting))))
            assert said["accepted"] is accept
            service.close()

    def test_but_not_one_that_is_no_longer_allowed(self, folder):
        waiting = agreement_with([folder], seed=8)
        folder.keep(waiting)
        service = SiteService(folder, accept=True)
        reply = opened(service.reply(control.offer(waiting)))
        assert "noise must be secure" in reply.reason
        assert not folder.is_accepted(waiting.digest)
        service.close()


class TestSitesThatLie:
    def test_numbers_of_records_cannot_add_up_to_something_small(self):
        """As 64-bit integers two of 2^63 would make zero."""
        Site("a", MAX_RECORDS)
        with pytest.raises(InvalidInput, match="n_records"):
            Site("a", MAX_RECORDS + 1)

    @pytest.mark.parametrize("said", [b"", b"nonsense", b"[]", b'{"accepted":1}'])
    def test_nonsense_instead_of_an_acceptance_does_not_stop_the_others(
        self, tmp_path, monkeypatch, said
    ):
        monkeypatch.setattr(runs, "_AGAIN_S", 0.01)
        folders = [site_folder(tmp_path, name) for name in ("berlin", "geneva", "lisbon")]
        agreement = agreement_with(folders, min_answers=2)
        transport = DeskTransport(folders, accept=True)
        honest = transport.exchange
        transport.exchange = lambda requests, s: {
            name: said if name == "geneva" else reply for name, reply in honest(requests, s).items()
        }
        heads = KeptHeads(tmp_path)
        found = runs.acceptances(transport, agreement, 0.1, folder=tmp_path, heads=heads)
        assert found == {"berlin", "lisbon"}
        transport.close()


def test_an_agreement_cannot_be_a_text_with_two_readings(agreement):
    """The same key twice, other numbers for the same value, other white space."""
    text = agreement.to_json()
    for other in (
        text.replace('"epsilon":50.0', '"epsilon":1.0,"epsilon":50.0'),
        text.replace('"epsilon":50.0', '"epsilon":5e1'),
        text.replace('"epsilon":50.0', '"epsilon":1e400'),
        text.replace('"epsilon":50.0', '"epsilon":NaN'),
        text.replace('"seed":7', '"seed":7.0'),
        text.replace('"seed":7', '"seed": 7'),
        text.replace("study", "st\\u0075dy"),
    ):
        assert other != text
        with pytest.raises(InvalidInput):
            Agreement.from_json(other)
