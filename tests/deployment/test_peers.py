"""Whose keys a site trusts with hiding its uploads: pins, and what a run needs of them."""

import io
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

from dpfedc.deployment import control
from dpfedc.deployment.agreement import Site
from dpfedc.deployment.certificates import write_site_key
from dpfedc.deployment.control import opened
from dpfedc.deployment.keys import SITE_PUB, fingerprint, mark_of, read_certificate, signing_key
from dpfedc.deployment.messages import Refusal, Request, StepAnswer
from dpfedc.deployment.offered_runs import MODEL
from dpfedc.deployment.peers import FILE, PinnedPeers
from dpfedc.deployment.secure_aggregation.masks import Bundle, context_of
from dpfedc.deployment.secure_steps import told_by
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import FAILED, SiteService
from dpfedc.deployment.terms import pins_in_words
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.whole_files import is_locked
from support.command_line import outcome
from support.masked_runs import masked
from support.site_services import authority_in, charges, offered, site_folder

OWN, PEERS = "berlin", ("geneva", "lisbon", "madrid")


@dataclass
class World:
    """A site with a folder, the keys of its peers, and runs of them all."""

    folder: SiteFolder
    keys: dict

    @property
    def pinned(self):
        return PinnedPeers(self.folder.path)

    def pub(self, name):
        return self.keys[name] / SITE_PUB

    def certificate(self, name):
        return read_certificate(self.pub(name).read_bytes())

    def mark(self, name):
        return fingerprint(self.certificate(name))

    def run(self, name="study", *, sites=None, **changes):
        """Return an agreement between all of them, as their keys are now."""
        found = [
            Site(n, self.folder.records if n == OWN else 90, self.mark(n),
                 signing_key(self.certificate(n)))
            for n in (OWN, *PEERS)
        ]  # fmt: skip
        return masked(4, "federated-k-means", name=name, sites=sites or tuple(found), **changes)

    def exchanged(self, name):
        """Give a peer a new key."""
        place = self.keys[name] / "new"
        place.mkdir()
        write_site_key(place, name)
        self.keys[name] = place

    def service(self, told=None, *, accept=False):
        tell = (lambda _: None) if told is None else told.append
        return SiteService(SiteFolder.open(self.folder.path), accept=accept, tell=tell)

    def pin_all(self):
        for name in PEERS:
            self.pinned.pin(self.certificate(name))


@pytest.fixture
def world(tmp_path):
    folder = site_folder(tmp_path, OWN)
    keys = {OWN: folder.path}
    for name in PEERS:
        keys[name] = tmp_path / f"key of {name}"
        keys[name].mkdir()
        write_site_key(keys[name], name)
    return World(folder, keys)


@pytest.fixture
def dpfedc(capsys, monkeypatch, world):
    """Run a command about the site; return what it says, on one line."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(command, *more, code=0):
        got, out, err = outcome(capsys, ["site", command, world.folder.path, *more])
        assert got == code, err
        return " ".join((out if code == 0 else err).split())

    return call


# Pins


def test_a_peer_is_pinned_by_its_certificate(world):
    assert world.pinned.read() == {}
    assert world.pinned.pin(world.certificate("geneva")) == "geneva"
    assert world.pinned.pin(world.certificate("geneva")) == "geneva"
    certificate = world.certificate("geneva")
    assert world.pinned.read() == {"geneva": signing_key(certificate)}


def test_accepting_a_run_pins_all_its_peers_and_not_the_site_itself(world):
    agreement = world.run()
    assert [site.name for site in world.pinned.unpinned(agreement, OWN)] == [*PEERS]
    world.pinned.pin_roster(agreement, OWN)
    assert world.pinned.unpinned(agreement, OWN) == []
    due = {n: signing_key(world.certificate(n)) for n in PEERS}
    assert world.pinned.read() == due
    world.pin_all()
    assert world.pinned.read() == due, "both ways to pin a peer come to the same"


def test_only_those_who_are_not_pinned_are_named(world):
    world.pinned.pin(world.certificate("lisbon"))
    strangers = world.pinned.unpinned(world.run(), OWN)
    assert [site.name for site in strangers] == ["geneva", "madrid"]
    (said,) = pins_in_words(strangers)
    assert said.startswith("Warning: the keys of geneva, madrid are pinned here neither")


def test_a_pinned_peer_with_another_key_is_refused_and_both_are_named(world):
    world.pin_all()
    before = world.mark("lisbon")
    world.exchanged("lisbon")
    words = f"site lisbon must have the pinned key {before}, got {world.mark('lisbon')}"
    with pytest.raises(InvalidInput, match=words) as refused:
        world.pinned.unpinned(world.run(), OWN)
    assert "dpfedc site peers FOLDER --forget lisbon" in str(refused.value)


def test_a_pin_is_not_exchanged_by_another_file(world):
    world.pin_all()
    before = world.pinned.read()
    world.exchanged("lisbon")
    with pytest.raises(InvalidInput, match="site lisbon must have the pinned key"):
        world.pinned.pin(world.certificate("lisbon"))
    assert world.pinned.read() == before


def test_a_peer_that_was_forgotten_may_have_another_key(world):
    world.pin_all()
    world.exchanged("lisbon")
    world.pinned.forget("lisbon")
    assert [site.name for site in world.pinned.unpinned(world.run(), OWN)] == ["lisbon"]
    world.pinned.pin(world.certificate("lisbon"))
    assert world.pinned.unpinned(world.run(), OWN) == []


def test_only_who_is_pinned_can_be_forgotten(world):
    world.pinned.pin(world.certificate("geneva"))
    with pytest.raises(InvalidInput, match="must be pinned to be forgotten, got 'lisbon'"):
        world.pinned.forget("lisbon")
    assert [*world.pinned.read()] == ["geneva"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"geneva": 1}', '{"geneva": ["ab"]}', '{"geneva": ["ab", "cd"]}',
     '{"geneva": {"ab": 1, "cd": 2}}', '{"geneva": ["ab", null]}', b"\xff\xfe"],
)  # fmt: skip
def test_a_damaged_file_is_named_and_not_written_over(world, content):
    """Who was pinned cannot be known any more: nobody may take it that nobody was."""
    path = world.folder.path / FILE
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = path.read_bytes()
    for use in (
        world.pinned.read,
        lambda: world.pinned.pin(world.certificate("geneva")),
        lambda: world.pinned.pin_roster(world.run(), OWN),
        lambda: world.pinned.forget("geneva"),
        lambda: world.pinned.unpinned(world.run(), OWN),
    ):
        with pytest.raises(DataUnavailable, match=f"{FILE} is damaged"):
            use()
    assert path.read_bytes() == before


def test_pins_are_written_by_one_at_a_time(world, monkeypatch):
    lock, seen = world.folder.path / f"{FILE}.lock", []
    write, read = PinnedPeers._write, PinnedPeers.read

    def watched(of):
        def call(*args):
            seen.append(is_locked(lock))
            return of(*args)

        return call

    monkeypatch.setattr(PinnedPeers, "_write", watched(write))
    monkeypatch.setattr(PinnedPeers, "read", watched(read))
    world.pin_all()
    world.pinned.forget("geneva")
    assert seen == [True] * 8, "held from before it is read until it is written"
    assert not is_locked(lock)


PINS = """
import sys
from pathlib import Path
from dpfedc.deployment.keys import read_certificate
from dpfedc.deployment.peers import PinnedPeers

folder, files = Path(sys.argv[1]), sys.argv[2:]
certificates = [read_certificate(Path(file).read_bytes()) for file in files]
print("ready", flush=True)
sys.stdin.readline()
for certificate in certificates:
    PinnedPeers(folder).pin(certificate)
"""


def test_two_processes_lose_none_of_each_others_pins(world, tmp_path):
    files = []
    for i in range(40):
        (tmp_path / f"p{i}").mkdir()
        write_site_key(tmp_path / f"p{i}", f"p{i}")
        files.append(tmp_path / f"p{i}" / SITE_PUB)
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PINS, world.folder.path, *files[start::2]],
            stdin=pipe, stdout=pipe, text=True,
        )
        for start in (0, 1)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert world.pinned.read().keys() == {f"p{i}" for i in range(40)}


# A site that accepts by itself


def test_a_run_with_peers_that_nobody_knows_waits_for_the_operator_who_is_told_once(world, told):
    service, agreement = world.service(told, accept=True), world.run()
    world.pinned.pin(world.certificate("geneva"))
    for _ in range(5):  # a coordinator offers it every two seconds
        assert not offered(service, agreement)
    assert world.folder.state(agreement.digest) == "offered"
    assert len(told) == 2
    run = agreement.digest[:12]
    assert f"run {run} (study) is offered" in told[0]
    assert f"dpfedc site accept {world.folder.path} {run}" in told[0]
    assert f"run {run} is not accepted by itself (--accept)" in told[1]
    assert "not pinned here (lisbon, madrid)" in told[1]
    refusal = opened(service.reply(keys_request(agreement)))
    assert refusal == Refusal(f"run {run} has not been accepted here")
    service.close()


def test_a_run_that_waited_is_accepted_once_all_peers_are_pinned(world, told):
    service, agreement = world.service(told, accept=True), world.run()
    assert not offered(service, agreement)
    for name in PEERS:
        assert not offered(service, agreement)
        world.pinned.pin(world.certificate(name))
    assert offered(service, agreement)
    assert world.folder.state(agreement.digest) == "accepted"
    assert f"run {agreement.digest[:12]} (study) was offered and accepted (--accept)" in told
    assert isinstance(opened(service.reply(keys_request(agreement))), bytes)
    service.close()


def test_a_run_with_known_peers_is_accepted_at_once(world, told):
    world.pin_all()
    service, agreement = world.service(told, accept=True), world.run()
    assert offered(service, agreement)
    assert "was offered and accepted (--accept)" in told[0]
    service.close()


def test_without_accept_pins_make_no_difference_to_an_offer(world, told):
    world.pin_all()
    service, agreement = world.service(told), world.run()
    assert not offered(service, agreement)
    assert world.folder.state(agreement.digest) == "offered"
    assert not any("--accept" in text for text in told)
    service.close()


def test_peers_need_not_be_known_where_they_hide_nothing(world):
    service, agreement = world.service(accept=True), world.run()
    sites = tuple(replace(site, signing_key=None) for site in agreement.sites)
    local = world.run(sites=sites, trust="local", min_survivors=None, colluding_sites=0)
    assert not local.is_masked
    assert offered(service, local)
    service.close()


@pytest.mark.parametrize("accept", [True, False])
def test_a_run_in_which_a_pinned_peer_has_another_key_is_refused(world, told, accept):
    world.pin_all()
    before = world.mark("madrid")
    world.exchanged("madrid")
    service, agreement = world.service(told, accept=accept), world.run()
    refusal = opened(service.reply(control.offer(agreement)))
    words = f"site madrid must have the pinned key {before}, got {world.mark('madrid')}"
    assert words in refusal.reason
    assert words in told[0]
    assert world.folder.state(agreement.digest) == "unknown"
    world.pinned.forget("madrid")
    assert not offered(service, agreement)
    assert world.folder.state(agreement.digest) == "offered"
    world.pinned.pin(world.certificate("madrid"))
    assert offered(service, agreement) == accept
    service.close()


def test_a_run_that_waits_is_refused_if_a_peer_is_pinned_with_another_key(world):
    service, agreement = world.service(accept=True), world.run()
    assert not offered(service, agreement)
    world.exchanged("geneva")
    world.pin_all()
    assert "site geneva must have the pinned key" in opened(
        service.reply(control.offer(agreement))
    ).reason  # fmt: skip
    assert world.folder.state(agreement.digest) == "offered"
    service.close()


def test_of_a_damaged_file_the_server_learns_nothing(world, told):
    (world.folder.path / FILE).write_text("{")
    service, agreement = world.service(told, accept=True), world.run()
    assert opened(service.reply(control.offer(agreement))) == Refusal(FAILED)
    assert f"{world.folder.path / FILE} is damaged" in told[0]
    assert world.folder.state(agreement.digest) == "unknown"
    service.close()


def test_the_model_of_a_run_that_is_over_comes_whoever_has_a_new_key_since(world):
    """`run resume` asks first whether the run is accepted, and sends the model then."""
    world.pin_all()
    service, agreement = world.service(accept=True), world.run()
    assert offered(service, agreement)
    (world.folder.run(agreement.digest) / MODEL).write_bytes(b"")
    world.exchanged("geneva")
    world.pinned.forget("geneva")
    world.pinned.pin(world.certificate("geneva"))
    try:
        assert isinstance(opened(service.reply(control.offer(agreement))), bytes)
    finally:
        service.close()


def test_a_run_that_the_ledger_will_not_charge_is_not_taken(world):
    """Its cost would be reserved and its records frozen, for rounds that are all refused."""
    world.pin_all()
    service = world.service(accept=True)
    agreement = world.run(colluding_sites=0, min_survivors=3)
    try:
        reason = opened(service.reply(control.offer(agreement))).reason
        assert "must tolerate 1 colluding sites, got 0" in reason
    finally:
        service.close()


# An operator who accepts


def test_accept_warns_of_peers_that_nobody_has_compared_and_pins_them(world, dpfedc):
    service, agreement = world.service(), world.run()
    offered(service, agreement)
    world.pinned.pin(world.certificate("lisbon"))
    said = dpfedc("accept", "study", "--yes")
    assert "Warning the keys of geneva, madrid are pinned here neither" in said
    for subject in ("Assumed", "Server", "Keys"):
        assert f" {subject} " in said
    for name in (OWN, *PEERS):
        assert f"{name} {world.mark(name)}" in said
    assert agreement.digest in said.replace(" ", "")
    assert world.pinned.unpinned(agreement, OWN) == []
    assert OWN not in world.pinned.read()
    assert offered(service, agreement)
    assert isinstance(opened(service.reply(keys_request(agreement))), bytes)
    service.close()


def test_accept_pins_nobody_if_the_operator_says_no(world, dpfedc, monkeypatch):
    service, agreement = world.service(), world.run()
    offered(service, agreement)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    dpfedc("accept", "study", code=1)
    assert world.pinned.read() == {}
    assert world.folder.state(agreement.digest) == "offered"
    service.close()


def test_accept_says_so_if_all_peers_are_pinned(world, dpfedc):
    service = world.service()
    offered(service, world.run())
    world.pin_all()
    said = dpfedc("accept", "--yes")
    assert "Pinned the keys of all peers are those that were pinned here before." in said
    assert "pinned here neither" not in said
    offered(service, world.run("the next"))
    assert "were pinned here before" in dpfedc("accept", "the next", "--yes")
    service.close()


def test_accept_refuses_a_pinned_peer_with_another_key(world, dpfedc):
    service, agreement = world.service(), world.run()
    offered(service, agreement)
    before = world.mark("geneva")
    world.exchanged("geneva")
    world.pin_all()
    said = dpfedc("accept", "study", "--yes", code=2)
    assert f"must have the pinned key {world.mark('geneva')}, got {before}" in said
    assert world.folder.state(agreement.digest) == "offered"
    dpfedc("peers", "--forget", "geneva")
    assert "the keys of geneva are pinned here neither" in dpfedc("accept", "study", "--yes")
    assert mark_of(world.pinned.read()["geneva"]) == before
    service.close()


# The command about peers


def test_peers_are_shown_pinned_and_forgotten(world, dpfedc):
    assert dpfedc("peers") == "No peer is pinned here."
    said = dpfedc("peers", "--pin", world.pub("geneva"), "--pin", world.pub("lisbon"))
    for name in ("geneva", "lisbon"):
        assert name in said
        assert world.mark(name) in said
        assert f"Pinned {name} from " in said
    assert said.endswith(dpfedc("peers"))
    said = dpfedc("peers", "--forget", "geneva")
    assert "geneva" not in said
    assert world.mark("lisbon") in said
    assert dpfedc("peers", "--forget", "lisbon") == "No peer is pinned here."


def test_a_peer_gets_its_new_key_in_one_command(world, dpfedc):
    world.pin_all()
    before = world.mark("geneva")
    world.exchanged("geneva")
    said = dpfedc("peers", "--forget", "geneva", "--pin", world.pub("geneva"))
    assert world.mark("geneva") in said
    assert before not in said


def test_what_cannot_be_pinned_is_said(world, dpfedc, tmp_path):
    missing = tmp_path / "missing.pub"
    assert dpfedc("peers", "--pin", missing, code=2) == f"dpfedc: error: no such file: {missing}"
    assert "no such file" in dpfedc("peers", "--pin", tmp_path, code=2)
    for content in (b"", b"hello", b"\xff\xfe", (world.folder.path / "site.key").read_bytes()):
        wrong = tmp_path / "wrong.pub"
        wrong.write_bytes(content)
        assert "not a certificate as in a site's site.pub" in dpfedc(
            "peers", "--pin", wrong, code=2
        )
    said = dpfedc("peers", "--pin", authority_in(tmp_path), code=2)
    assert "must have an Ed25519 key" in said
    assert "must be pinned to be forgotten, got 'geneva'" in dpfedc(
        "peers", "--forget", "geneva", code=2
    )
    assert world.pinned.read() == {}


def test_peers_of_no_site_are_none(tmp_path, capsys):
    code, _, err = outcome(capsys, ["site", "peers", tmp_path])
    assert code == 2
    assert "is not a site's folder" in err


def test_a_damaged_file_of_peers_is_said_in_a_line(world, dpfedc):
    (world.folder.path / FILE).write_text("{")
    assert "peers.json is damaged" in dpfedc("peers", code=2)


# A site whose key is exchanged while it is in a run


def keys_request(agreement, attempt="ab" * 16):
    """Return the first request of a masked round: for keys, which the site signs."""
    stage = agreement.exchanges[0].stage.name
    request = Request(agreement.digest, OWN, stage, 1, {}, step="keys", attempt=attempt)
    return request.to_bytes()


def signed_as_in_the_roster(agreement, reply, attempt):
    answer = StepAnswer.from_bytes(opened(reply))
    bundle = Bundle.from_bytes(told_by("keys", answer.arrays)[0])
    context = context_of(agreement.digest, answer.stage, 1, attempt)
    return bundle.is_of(bytes.fromhex(agreement.sites[0].signing_key), context, 0)


def test_a_site_signs_with_the_key_of_the_roster_until_the_new_one_is_admitted(world, dpfedc):
    world.pin_all()
    service, agreement = world.service(accept=True), world.run()
    assert offered(service, agreement)
    service.close()
    dpfedc("rotate-key")
    service = world.service()
    attempt = "cd" * 16
    reply = service.reply(keys_request(agreement, attempt))
    assert signed_as_in_the_roster(agreement, reply, attempt)
    service.close()


def test_a_site_whose_key_was_exchanged_refuses_in_fixed_words_and_tells_its_operator(
    world, dpfedc, told
):
    """It must not sign with a key that no peer knows, and the run need not wait for it."""
    world.pin_all()
    service, agreement = world.service(accept=True), world.run()
    assert offered(service, agreement)
    service.close()
    dpfedc("rotate-key")
    newer, _ = world.folder.identities()
    world.folder.admitted(newer)
    assert len(world.folder.identities()) == 1
    service = world.service(told)
    closed = f"run {agreement.digest[:12]} goes no further here: berlin has another key than"
    refusal = opened(service.reply(keys_request(agreement)))
    assert refusal.reason.startswith(closed)
    assert refusal.of_run
    assert closed in told[0]
    assert charges(world.folder) == 0
    # It stays so, whoever asks; the operator can end it, and a new run has the new key.
    assert opened(service.reply(keys_request(agreement, "ef" * 16))) == refusal
    assert "Cancelled run" in dpfedc("cancel", "study", "--yes")
    after = world.run("with the new key")
    assert after.sites[0].signing_key != agreement.sites[0].signing_key
    service.close()
    service = world.service(accept=True)
    assert offered(service, after)
    assert signed_as_in_the_roster(after, service.reply(keys_request(after)), "ab" * 16)
    service.close()


def test_an_offer_with_a_key_that_was_exchanged_is_neither_taken_nor_accepted(world, dpfedc):
    service, agreement = world.service(), world.run()
    assert not offered(service, agreement)
    dpfedc("rotate-key")
    world.folder.admitted(world.folder.identities()[0])
    said = dpfedc("accept", "study", "--yes", code=2)
    assert f"berlin must have key {world.mark(OWN)}" in said
    assert world.folder.state(agreement.digest) == "offered"
    assert world.pinned.read() == {}
    late = replace(agreement, name="late")
    assert "berlin must have key" in opened(service.reply(control.offer(late))).reason
    service.close()


def test_an_offer_with_the_sites_fingerprint_over_another_signing_key_is_refused(world):
    """The site knows its own key: no server can give it another in the roster."""
    service, agreement = world.service(), world.run()
    false = replace(agreement.sites[0], signing_key="11" * 32, key=None)
    offer = replace(agreement, sites=(false, *agreement.sites[1:]))
    reason = opened(service.reply(control.offer(offer))).reason
    assert "berlin must have key" in reason
    assert world.folder.state(offer.digest) == "unknown"
    service.close()
