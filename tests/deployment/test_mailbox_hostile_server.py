"""A site whose server, or the way there, is in other hands: it stays up and computes nothing."""

import asyncio
import dataclasses
import datetime
import itertools
import socket
import time
import zlib
from threading import Event

import pytest

from dpfedc.deployment import certificates
from dpfedc.deployment.keys import Identity
from dpfedc.deployment.mailbox import https_calls, https_site, letters, site_side
from dpfedc.deployment.mailbox.letters import LetterBox, letter
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.errors import InvalidInput
from support.mailbox_callers import HostileServer, Proxy
from support.mailboxes import PATIENCE, HttpsWorld, InBackground, quickly, wait_until


@pytest.fixture
def world(tmp_path, monkeypatch):
    quickly(monkeypatch)
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    made = HttpsWorld(tmp_path, ("berlin", "geneva"))
    yield made
    made.close()


@pytest.fixture
def foreign(tmp_path):
    """Return the folder of another server, with an authority of its own."""
    return ServerFolder.create(tmp_path / "foreign", hosts=(), listen="127.0.0.1", port=1)


def response(body=b"", status="200 OK", *lines):
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def bomb(n_bytes):
    packer, out = zlib.compressobj(9, zlib.DEFLATED, 31), []
    block = bytes(2**24)
    out = [packer.compress(block) for _ in range(n_bytes // 2**24)]
    return b"".join([*out, packer.flush()])


def endless(start, piece):
    return itertools.chain([start], itertools.repeat(piece))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
MIB = 2**20
SAYS = {
    "a compressed bomb": lambda: [response(BOMB, "200 OK", "Content-Encoding: gzip")],
    "a body without end": lambda: endless(CHUNKED, b"100000\r\n" + bytes(MIB) + b"\r\n"),
    "a length beyond the cap": lambda: endless(
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", bytes(MIB)
    ),
    "headers without end": lambda: endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000),
    "a header without end": lambda: endless(b"HTTP/1.1 200 OK\r\nX: ", b"y" * MIB),
    "continue without end": lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "no HTTP": lambda: [b"\x1b[2J\0 nonsense\r\n\r\n"],
    "half a body": lambda: [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", None],
    "a drip": lambda: drip(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"),
    "unauthorized": lambda: [response(b"\x1b[2J go away", "401 X")],
    "an error": lambda: [response(b"", "500 X")],
    "another version": lambda: [
        response(b"this server speaks protocol 7, the caller 'v1'", "426 X")
    ],
    "a letter of nobody": lambda: [response(b"dpfedc letter 1\n" + bytes(500))],
    "a letter of another version": lambda: [response(b"dpfedc letter 7\n" + bytes(500))],
    "an empty letter": lambda: [response(b"")],
}
BOMB = bomb(2**28)
TOLD = {
    "a compressed bomb": "as they are",
    "another version": "protocol 7, the caller 'v1'",
    "a letter of another version": "letter 7",
}


def drip(start):
    yield start
    while True:
        time.sleep(0.05)
        yield b"\0"


class Asked:
    """What a site would compute with, and must not be asked."""

    def __init__(self):
        self.n = 0

    def __call__(self, _):
        self.n += 1
        return b"\0"


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("what", SAYS)
def test_nothing_that_a_server_says_ends_a_site_or_fills_it(world, monkeypatch, what, at_once):
    monkeypatch.setattr(https_calls, "SILENT_S", 0.5)
    monkeypatch.setattr(https_calls, "WHOLE_S", 0.5)
    monkeypatch.setattr(https_calls, "ANSWER_S", 0.0)
    asked = Asked()

    def says(heard):
        """Answer the first call as a good server does, or not."""
        is_first = "stay=0" in heard.calls[-1] and not at_once
        return hung_up([response(b"", "204 X")] if is_first else SAYS[what]())

    server = HostileServer(world.folder.certificate_files, says)
    world.start_site("berlin", asked, there=False, address=f"127.0.0.1:{server.port}")
    wait_until(lambda: len(server.calls) >= 4, what="four calls")
    assert world.is_alive("berlin")
    assert asked.n == 0
    told = [*world.told["berlin"]]
    assert told
    assert all(text.isprintable() for text in told)
    assert at_once or TOLD.get(what, "") in " ".join(told)
    assert server.n_sent < len(server.calls) * 24 * MIB  # what lies in the buffers of a connection
    world.stop_site("berlin")
    server.close()


def hung_up(pieces):
    """Hang up where there is nothing more to be said."""
    for piece in pieces:
        if piece is None:
            raise OSError
        yield piece


def test_letters_that_nobody_asked_for_are_not_read(world, monkeypatch):
    """While a site works on one, a server sends others without end, asked for or not."""
    monkeypatch.setattr(https_site, "BEAT_S", 0.01)
    sites, right, n = [], https_site.HttpsSite.__init__, itertools.count()
    monkeypatch.setattr(
        https_site.HttpsSite, "__init__", lambda s, *a, **k: (right(s, *a, **k), sites.append(s))[0]
    )
    good, at_work, done = letter(world.folder.operator, "berlin", b"x"), Event(), Event()

    def says(_):
        i = next(n)
        body = good if i == 1 else i.to_bytes(8, "big") * 2**12
        return [response(b"", "204 X") if i == 0 else response(body)]

    def work(_):
        at_work.set()
        assert done.wait(PATIENCE)
        return b"\0"

    server = HostileServer(world.folder.certificate_files, says)
    world.start_site("berlin", work, there=False, address=f"127.0.0.1:{server.port}")
    assert at_work.wait(PATIENCE)
    wait_until(lambda: len(server.calls) >= 20, what="20 calls")
    assert len(sites[0]._desk.inbox) == https_site.MAX_INBOX
    assert sum("stay=0" in call for call in server.calls) >= 10
    done.set()
    world.stop_site("berlin")
    server.close()


def test_no_byte_of_such_a_letter_is_waited_for(world, monkeypatch):
    """The first call asks for none either: a length that never comes is not waited for."""
    monkeypatch.setattr(https_calls, "SILENT_S", 10 * PATIENCE)
    server = HostileServer(
        world.folder.certificate_files,
        lambda _: [b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"],
    )
    world.start_site("berlin", Asked(), there=False, address=f"127.0.0.1:{server.port}")
    wait_until(lambda: len(server.calls) >= 3, what="three calls")
    assert any("when none was asked for" in text for text in world.told["berlin"])
    world.stop_site("berlin")
    server.close()


def test_a_site_is_not_sent_elsewhere(world):
    elsewhere = HostileServer(world.folder.certificate_files, lambda _: [response(b"", "500 X")])
    there = f"Location: https://127.0.0.1:{elsewhere.port}/v1/mail"
    server = HostileServer(
        world.folder.certificate_files, lambda _: [response(b"", "307 X", there)]
    )
    world.start_site("berlin", Asked(), there=False, address=f"127.0.0.1:{server.port}")
    wait_until(lambda: len(server.calls) >= 3, what="three calls")
    world.stop_site("berlin")
    assert elsewhere.calls == []
    for each in (server, elsewhere):
        each.close()


def test_a_site_keeps_no_cookie(world):
    cookie = "Set-Cookie: who=berlin"
    server = HostileServer(
        world.folder.certificate_files, lambda _: [response(b"", "204 X", cookie)]
    )
    world.start_site("berlin", Asked(), address=f"127.0.0.1:{server.port}")
    wait_until(lambda: len(server.calls) >= 3, what="three calls")
    world.stop_site("berlin")
    assert not any("cookie" in call.lower() for call in server.calls)
    server.close()


def test_a_server_that_cannot_be_had_is_tried_less_and_less_often(world, monkeypatch):
    pauses = []
    monkeypatch.setattr(https_site.random, "uniform", lambda *_: pauses.append(1) or 1.0)
    monkeypatch.setattr(site_side, "LONGEST_PAUSE_S", 0.4)
    world.start_site("berlin", Asked(), there=False)
    wait_until(lambda: len(world.told["berlin"]) >= 5, what="five complaints")
    said = [text.rpartition("again in ")[2].split()[0] for text in world.told["berlin"][:5]]
    assert said == ["0.1", "0.1", "0.2", "0.4", "0.4"]


def test_without_the_server_two_keys_are_not_tried_in_haste(world, monkeypatch):
    """While a key is exchanged the second is tried at once, but only if the first is refused."""
    monkeypatch.setattr(site_side, "SHORTEST_PAUSE_S", 60.0)
    world.new_site("berlin", "next")
    world.start_site("berlin", Asked(), there=False)
    wait_until(lambda: world.told["berlin"], what="a complaint")
    time.sleep(0.3)
    assert len(world.told["berlin"]) == 1


def test_a_server_that_hangs_does_not_make_a_round_longer(world, monkeypatch):
    monkeypatch.setattr(https_calls, "CONNECT_S", 10 * PATIENCE)
    with socket.create_server(("127.0.0.1", world.port)):
        asked = InBackground(world.operator().exchange, {"berlin": b"x"}, 0.1)
        assert asked.result() == {}


class TestLetters:
    """Only the operator's, for this site, and good today."""

    @pytest.fixture
    def box(self, world):
        return LetterBox("berlin", world.authority())

    def test_a_good_one_is_opened(self, world, box):
        assert box.opened(letter(world.folder.operator, "berlin", b"x")) == b"x"

    def wrong(self, world, foreign, which):
        operator = world.folder.operator
        good = letter(operator, "berlin", b"x")
        if which == "expired":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(certificates, "_SHORT_DAYS", -0.5)
                world.renew()
            return letter(world.folder.operator, "berlin", b"x")
        return {
            "for another site": lambda: letter(operator, "geneva", b"x"),
            "of another authority": lambda: letter(foreign.operator, "berlin", b"x"),
            "of a site": lambda: letter(world.identity("geneva"), "berlin", b"x"),
            "with a foreign key": lambda: letter(
                Identity(foreign.operator.key, operator.certificate, None, None), "berlin", b"x"
            ),
            "changed": lambda: good + b"y",
            "cut short": lambda: good[:-2],
            "only its beginning": lambda: good[:18],
            "empty": lambda: b"",
        }[which]()

    CASES = (
        "for another site", "of another authority", "of a site", "with a foreign key", "changed",
        "cut short", "only its beginning", "empty", "expired",
    )  # fmt: skip

    @pytest.mark.parametrize("which", CASES)
    def test_any_other_is_refused(self, world, foreign, box, which):
        with pytest.raises(InvalidInput):
            box.opened(self.wrong(world, foreign, which))

    @pytest.mark.parametrize("which", ["for another site", "with a foreign key", "changed"])
    def test_without_the_signatures_check_it_would_be_opened(
        self, world, foreign, box, monkeypatch, which
    ):
        monkeypatch.setattr(letters, "is_signature", lambda *_: True)
        assert box.opened(self.wrong(world, foreign, which)).startswith(b"x")

    @pytest.mark.parametrize("which", ["of another authority", "of a site", "expired"])
    def test_without_the_operators_check_it_would_be_opened(
        self, world, foreign, box, monkeypatch, which
    ):
        monkeypatch.setattr(letters, "require_operator", lambda *_: None)
        assert box.opened(self.wrong(world, foreign, which)) == b"x"

    def test_a_certificate_that_was_good_is_refused_when_it_has_expired(
        self, world, box, monkeypatch
    ):
        good = letter(world.folder.operator, "berlin", b"x")
        box.opened(good)

        class Later(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return super().now(tz) + datetime.timedelta(days=800)

        monkeypatch.setattr(letters, "datetime", Later)
        monkeypatch.setattr(certificates.datetime, "datetime", Later)
        with pytest.raises(InvalidInput, match="good today"):
            box.opened(good)

    def test_a_site_computes_nothing_for_a_letter_to_another(self, world):
        asked = Asked()
        theirs = response(letter(world.folder.operator, "geneva", b"x"))
        server = HostileServer(
            world.folder.certificate_files,
            lambda heard: [response(b"", "204 X") if "stay=0" in heard.calls[-1] else theirs],
        )
        world.start_site("berlin", asked, there=False, address=f"127.0.0.1:{server.port}")
        wait_until(lambda: len(server.calls) >= 3, what="three calls")
        assert asked.n == 0
        assert any("signed by the operator for this site" in t for t in world.told["berlin"])
        world.stop_site("berlin")
        server.close()


def test_a_letter_that_came_to_the_old_key_does_not_vouch_for_the_new_one(world):
    """It came before the connection was lost, and is worked on when the new key is tried."""
    world.new_site("berlin", "next")
    old, new = world.identity("berlin"), world.identity("berlin", "next")
    admitted, stop = [], asyncio.Event()

    class Site(https_site.HttpsSite):
        async def _posted(self, *_, **__):
            stop.set()

    line = world.line("berlin", proxy_authority=world.folder.authority)
    line = dataclasses.replace(line, on_admitted=admitted.append)
    site = Site(line, lambda _: b"\0", tell=lambda _: None)
    site._desk.take(letter(world.folder.operator, "berlin", b"x"), old)
    asyncio.run(site._work(None, new, stop))
    assert admitted == [old]


class TestOnTheWay:
    @pytest.mark.parametrize("signed", [False, True])
    def test_a_proxy_for_connect_is_used_and_hears_nothing(self, world, monkeypatch, signed):
        world.signed = signed
        world.start_server()
        proxy = Proxy()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        world.start_site("berlin")
        assert world.operator().exchange({"berlin": b"secret" * 99}, PATIENCE) == {
            "berlin": b"secret" * 99
        }
        port = world.signed_port if signed else world.port
        assert set(proxy.asked) == {f"127.0.0.1:{port}"}
        assert b"secret" not in proxy.heard
        world.stop_site("berlin")
        proxy.close()

    def opening(self, world, foreign, target):
        return Proxy(
            opens=foreign.certificate_files, target=target, authority=world.folder.authority
        )

    def test_a_proxy_that_opens_tls_is_used_in_signed_mode(self, world, foreign, monkeypatch):
        world.signed = True
        world.start_server()
        proxy = self.opening(world, foreign, world.signed_port)
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        world.start_site("berlin", proxy_authority=foreign.authority)
        assert world.operator().exchange({"berlin": b"x"}, PATIENCE) == {"berlin": b"x"}
        assert b"Dpfedc-Signed: berlin" in proxy.heard
        world.stop_site("berlin")
        proxy.close()

    def test_and_refused_in_direct_mode(self, world, foreign, monkeypatch):
        world.start_server()
        proxy = self.opening(world, foreign, world.port)
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        asked = Asked()
        world.start_site("berlin", asked, there=False)
        wait_until(lambda: len(world.told["berlin"]) >= 2, what="complaints")
        assert all("must come from the authority in ca.crt" in t for t in world.told["berlin"])
        assert b"/v1/mail" not in proxy.heard
        world.stop_site("berlin")
        proxy.close()

    def test_another_authoritys_server_is_refused(self, world, foreign):
        server = HostileServer(foreign.certificate_files, lambda _: [response()])
        world.start_site("berlin", Asked(), there=False, address=f"127.0.0.1:{server.port}")
        wait_until(lambda: len(world.told["berlin"]) >= 2, what="complaints")
        assert all("must come from the authority in ca.crt" in t for t in world.told["berlin"])
        assert server.calls == []
        world.stop_site("berlin")
        server.close()
