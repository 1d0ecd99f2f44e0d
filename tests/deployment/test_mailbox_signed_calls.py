"""The port for sites behind proxies that open TLS: every call is signed, or refused and logged."""

import hashlib
import ssl
import time
from base64 import b64encode

import pytest

from dpfedc.deployment.mailbox import signed_calls
from dpfedc.deployment.mailbox.signed_calls import HEADER, Signatures, signed_header
from dpfedc.deployment.mailbox.tls import server_context
from dpfedc.errors import InvalidInput
from support.mailbox_callers import Caller, CountedData, bare_context, head_of, signed_call
from support.mailboxes import PATIENCE, HttpsWorld, InBackground, quickly, wait_until

PATH = "/v1/mail?stay=0"


@pytest.fixture
def world(tmp_path, monkeypatch):
    quickly(monkeypatch)
    made = HttpsWorld(tmp_path, ("berlin", "geneva"), signed=True)
    made.start_server()
    yield made
    made.close()


def header(world, *, name="berlin", key="berlin", at=None, nonce="0" * 32, path=PATH, body=b""):
    """Return a header with this in it, signed by that site's key."""
    told = [name, str(int(time.time() if at is None else at)), nonce]
    told.append(hashlib.sha256(body).hexdigest())
    content = signed_calls._content(world.authority(), path, told)
    return " ".join([*told, b64encode(world.identity(key).sign(content)).decode()])


def test_a_good_call_is_served_and_leaves_no_line_in_the_log(world):
    assert signed_call(world, "berlin", PATH)[0] == 204
    assert signed_call(world, "berlin", PATH, header=header(world))[0] == 204
    assert world.refused() == ""


def replayed(world):
    once = header(world)
    assert signed_call(world, "berlin", PATH, header=once)[0] == 204
    return once


ATTACKS = {
    "another's key": (lambda w: header(w, key="geneva"), "signed by an enrolled site",
                      "is_signature"),
    "another path": (lambda w: header(w, path="/v1/mail"), "signed by an enrolled site",
                     "is_signature"),
    "a clock behind": (lambda w: header(w, at=time.time() - 400), "clock", "CLOCK_S"),
    "a clock ahead": (lambda w: header(w, at=time.time() + 400), "clock", "CLOCK_S"),
    "a header that was heard": (replayed, "not used before", "_use"),
}  # fmt: skip
WITHOUT = {
    "is_signature": (signed_calls, lambda *_: True),
    "CLOCK_S": (signed_calls, 1e6),
    "_use": (Signatures, lambda *_: None),
}
FORMS = {
    "no header": lambda w: "",
    "nonsense": lambda w: "nonsense",
    "letters of no alphabet": lambda w: "berlin \xff\xfe",
    "a name that is not enrolled": lambda w: header(w, name="paris"),
    "a name that is a path": lambda w: header(w, name="../x"),
    "a time beyond all numbers": lambda w: header(w, at=10**300),
    "no time": lambda w: header(w).replace(" 1", " -1", 1),
    "a short number": lambda w: header(w, nonce="0"),
    "a long number": lambda w: header(w, nonce="0" * 2000),
    "no signature": lambda w: header(w).rpartition(" ")[0],
    "half a signature": lambda w: header(w)[:-20],
}


class TestHeaders:
    @pytest.mark.parametrize("attack", ATTACKS)
    def test_a_call_that_its_site_did_not_make_now_is_refused(self, world, attack):
        made, words, _ = ATTACKS[attack]
        status, said = signed_call(world, "berlin", PATH, header=made(world))
        assert status == 400
        assert words in said
        wait_until(lambda: words in world.refused(), what="the log")

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_and_would_be_served_without_that_check(self, world, monkeypatch, attack):
        made, _, check = ATTACKS[attack]
        where, nothing = WITHOUT[check]
        monkeypatch.setattr(where, check, nothing)
        assert signed_call(world, "berlin", PATH, header=made(world))[0] == 204

    @pytest.mark.parametrize("form", FORMS)
    def test_a_header_of_another_form_is_refused(self, world, capfd, form):
        with Caller(world.signed_port, bare_context()) as caller:
            lines = {HEADER: FORMS[form](world)} if form != "no header" else {}
            caller.send(head_of(PATH, 0, **lines))
            assert caller.response()[0] == 400
        wait_until(world.refused, what="the log")
        assert capfd.readouterr() == ("", "")

    def test_numbers_are_forgotten_when_their_time_has_passed(self, world, monkeypatch):
        known, sites = Signatures(world.authority()), {
            "berlin": world.identity("berlin").certificate
        }  # fmt: skip
        monkeypatch.setattr(signed_calls, "MAX_NONCES", 3)
        now = time.time()
        for n in range(3):
            known.caller(header(world, nonce=f"{n:032d}"), PATH, sites)
        with pytest.raises(InvalidInput, match="not used before"):
            known.caller(header(world, nonce="f" * 32), PATH, sites)
        monkeypatch.setattr(signed_calls.time, "time", lambda: now + 601)
        known.caller(header(world, nonce="f" * 32), PATH, sites)


class TestBodies:
    def letter(self, world):
        asked = InBackground(world.operator().exchange, {"berlin": b"x"}, 1.0)
        box = world.server._office._boxes["berlin"]
        wait_until(lambda: box.waiting, what="a letter")
        return asked, f"/v1/mail?answers={next(iter(box.waiting))}&stay=0"

    def test_another_body_than_was_signed_for_is_refused(self, world):
        asked, path = self.letter(world)
        good = header(world, path=path, body=b"mine")
        assert signed_call(world, "berlin", path, b"none", header=good)[0] == 400
        wait_until(lambda: "the one that was signed for" in world.refused(), what="the log")
        assert asked.result() == {}

    def test_and_would_be_taken_without_that_check(self, world, monkeypatch):
        asked, path = self.letter(world)
        right = Signatures.caller
        monkeypatch.setattr(Signatures, "caller", lambda *given: (right(*given)[0], None))
        good = header(world, path=path, body=b"mine")
        assert signed_call(world, "berlin", path, b"none", header=good)[0] == 204
        asked.result()

    def test_no_body_is_read_before_its_header_is_verified(self, world, monkeypatch):
        """What is on its way with the header fits into one buffer; the rest stays outside."""
        counted = CountedData(monkeypatch)
        asked, path = self.letter(world)
        n_before = counted.n_bytes
        with Caller(world.signed_port, bare_context()) as caller:
            lines = {HEADER: header(world, key="geneva", path=path)}
            caller.send(head_of(path, 255 * 2**20, **lines))
            assert caller.response()[0] == 400
            with pytest.raises(OSError):  # noqa: PT011  # it has hung up, in whatever way
                caller.send(bytes(255 * 2**20))
        assert asked.result() == {}
        assert counted.n_bytes - n_before < 2**20


def test_more_sites_than_strangers_are_let_in_can_wait_here(world, monkeypatch):
    """Connections of sites that have signed do not count as strangers'."""
    monkeypatch.setattr("dpfedc.deployment.mailbox.connections.MAX_UNKNOWN", 2)
    for name in ("berlin", "geneva"):
        world.start_site(name)
    strangers = [Caller(world.signed_port, bare_context()) for _ in range(6)]
    requests = {"berlin": b"x", "geneva": b"y"}
    operator = world.operator()
    told = {name: [*words] for name, words in world.told.items()}
    assert operator.exchange(requests, PATIENCE) == requests
    assert world.told == told
    wait_until(lambda: "more than 2 connections" in world.refused(), what="the log")
    for caller in strangers:
        caller.close()


def test_this_port_speaks_no_old_tls_and_no_weak_cipher(world):
    context = server_context(*world.folder.certificate_files, None)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    ciphers = [c for c in context.get_ciphers() if c["protocol"] != "TLSv1.3"]
    assert ciphers
    assert all(c["aead"] and "ECDHE" in c["name"] for c in ciphers)


def test_a_header_names_its_body_and_no_two_are_equal(world):
    made = [
        signed_header(world.identity("berlin"), "berlin", world.authority(), PATH, b"body")
        for _ in range(2)
    ]
    assert made[0] != made[1]
    assert all(hashlib.sha256(b"body").hexdigest() in header for header in made)
