"""Who tries to get in, and who is in and does not keep to the rules: refused, and others go on."""

import os
import resource
import socket
import ssl
import threading
import time

import pytest

from dpfedc.deployment.certificates import write_site_key
from dpfedc.deployment.control import answered
from dpfedc.deployment.keys import SITE_KEY, SITE_PUB, Identity, pin
from dpfedc.deployment.mailbox import connections, door, https_server
from dpfedc.deployment.mailbox.letters import letter
from dpfedc.deployment.mailbox.mailbox import MAX_LETTER
from dpfedc.deployment.mailbox.post_office import digest_of
from support.mailbox_callers import (
    Caller,
    CountedData,
    bare_context,
    context_of,
    head_of,
    issued_by_an_enrolled_one,
)  # fmt: skip
from support.mailboxes import PATIENCE, HttpsWorld, InBackground, quickly, wait_until

MAIL = head_of("/v1/mail?stay=0", 0)


@pytest.fixture
def world(tmp_path, monkeypatch):
    quickly(monkeypatch)
    made = HttpsWorld(tmp_path, ("berlin", "geneva"))
    made.start_server()
    yield made
    made.close()


@pytest.fixture
def counted(monkeypatch):
    return CountedData(monkeypatch)


def is_served(world):
    """An enrolled site is answered, whatever else goes on."""
    with Caller(world.port, context_of(world.identity("geneva"))) as caller:
        return caller.call("/v1/mail?stay=0")[0] == 204


def stranger(world, name):
    folder = world.home / "stranger"
    folder.mkdir()
    write_site_key(folder, name)
    return Identity.read(folder / SITE_KEY, folder / SITE_PUB)


def former_operator(world):
    """Return a certificate that the authority has signed, and that was good until now."""
    old = world.folder.path / "operator.crt"
    kept = world.home / "old.crt"
    kept.write_bytes(old.read_bytes())
    world.renew()
    now = pin(world.folder.operator.certificate)
    wait_until(lambda: now in world.server._callers)
    return bare_context(kept, world.folder.path / "operator.key")


def removed(world):
    world.remove("berlin")
    wait_until(lambda: "berlin" not in world.server._sites)
    return context_of(world.identity("berlin"))


UNENROLLED = {
    "no certificate": lambda world: bare_context(),
    "a certificate of its own": lambda world: context_of(stranger(world, "paris")),
    "the name of an enrolled site": lambda world: context_of(stranger(world, "berlin")),
    "the server's own certificate": lambda world: bare_context(*world.folder.certificate_files),
    "a former one of the operator": former_operator,
    "a site that was removed": removed,
    "TLS 1.2": lambda world: context_of(
        world.identity("berlin"), most=ssl.TLSVersion.TLSv1_2
    ),
}  # fmt: skip


def tried(world, context):
    """Return what a caller gets who sends a call as soon as it can."""
    try:
        with Caller(world.port, context) as caller:
            caller.send(MAIL)
            return caller.rest()
    except OSError:
        return b""


class TestUnenrolled:
    @pytest.mark.parametrize("who", UNENROLLED)
    def test_no_byte_of_what_a_stranger_says_is_read(self, world, counted, who):
        context = UNENROLLED[who](world)
        n_refused = world.server._refused.n_refused
        assert tried(world, context) == b""
        assert counted.n_bytes == 0
        wait_until(lambda: world.server._refused.n_refused > n_refused, what="the refusal")
        wait_until(lambda: '"address": "127.0.0.1"' in world.refused(), what="the log")
        assert is_served(world)

    def test_without_the_handshakes_check_it_is_read(self, world, counted, monkeypatch):
        """What the check is worth, and that the count would show it."""
        right = https_server.server_context
        monkeypatch.setattr(
            https_server, "server_context", lambda crt, key, _: right(crt, key, None)
        )
        world.stop_server()
        world.start_server()
        assert tried(world, bare_context()).startswith(b"HTTP/1.1 400")
        assert counted.n_bytes == len(MAIL)

    def test_without_looking_a_removed_site_would_still_be_served(self, world, monkeypatch):
        monkeypatch.setattr(https_server.HttpsServer, "_look", lambda _: None)
        world.remove("berlin")
        time.sleep(0.1)
        with Caller(world.port, context_of(world.identity("berlin"))) as caller:
            assert caller.call("/v1/mail?stay=0")[0] == 204

    def test_what_a_site_vouches_for_is_not_admitted(self, world):
        """A site makes its certificate itself, and may make it one that signs others."""
        certificate, key = issued_by_an_enrolled_one(world)
        wait_until(lambda: "madrid" in world.server._sites)
        got = tried(world, bare_context(certificate, key))
        assert b" 200 " not in got
        assert b" 204 " not in got
        wait_until(lambda: "not enrolled" in world.refused(), what="the log")

    def test_a_removed_site_is_cut_while_it_waits(self, world):
        with (
            Caller(world.port, context_of(world.identity("berlin"))) as mine,
            Caller(world.port, context_of(world.identity("geneva"))) as other,
        ):
            for caller in (mine, other):
                caller.send(head_of("/v1/mail", 0))
            wait_until(lambda: all(world.server._office.online().values()))
            world.remove("berlin")
            assert b" 200 " not in mine.rest()
            world.operator().exchange({"geneva": b"x"}, 0.3)
            assert other.response()[0] == 200
        assert "its certificate was removed" in world.refused()


@pytest.mark.parametrize("change", ["remove", "enrol", "renew"])
def test_two_changes_in_one_tick_of_the_clock_are_two(world, change):
    """A server that has seen the first must see the second."""
    sites, folder = world.folder.path / "sites", world.folder
    times = {file: file.stat() for file in (sites, folder.path / "server.crt",
                                            folder.path / "operator.crt")}  # fmt: skip
    world.new_site("madrid")
    before = folder.standing()
    {"remove": lambda: world.remove("berlin"), "enrol": lambda: world.enrol("madrid"),
     "renew": world.renew}[change]()  # fmt: skip
    for file, stat in times.items():
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert folder.standing() != before


class TestSlow:
    def test_a_caller_that_begins_no_handshake_is_cut(self, world, monkeypatch):
        monkeypatch.setattr(door, "HANDSHAKE_S", 0.2)
        with socket.create_connection(("127.0.0.1", world.port), timeout=PATIENCE) as caller:
            assert caller.recv(1) == b""
        wait_until(lambda: "no handshake" in world.refused(), what="the log")

    @pytest.mark.parametrize(("most", "said"), [("MAX_SILENT", b""), ("MAX_HANDSHAKES", b"\x16")])
    def test_too_many_handshakes_make_room_for_another(self, world, monkeypatch, most, said):
        monkeypatch.setattr(door, most, 4)
        monkeypatch.setattr(door, "PATIENCE_S", 0.1)
        silent = [
            socket.create_connection(("127.0.0.1", world.port), timeout=PATIENCE) for _ in range(12)
        ]
        for caller in silent:
            caller.sendall(said)
        assert is_served(world)
        assert "too many at once" in world.refused()
        for caller in silent:
            caller.close()

    @pytest.mark.parametrize("signed", [False, True])
    def test_slow_headers_are_cut(self, world, monkeypatch, signed):
        monkeypatch.setattr(connections, "FIRST_CALL_S", 0.2)
        context = bare_context() if signed else context_of(world.identity("berlin"))
        with Caller(world.signed_port if signed else world.port, context) as caller:
            caller.send(b"POST /v1/mail HTTP/1.1\r\nX: ")
            assert caller.rest() == b""
        assert "no call within" in world.refused()

    def test_a_body_that_takes_too_long_is_cut(self, world, monkeypatch):
        monkeypatch.setattr(https_server, "BODY_S", 0.2)
        with posted(world) as (digest, caller):
            caller.send(head_of(f"/v1/mail?answers={digest}", 1000) + b"a")
            assert caller.response()[0] == 408
        assert "took too long" in world.refused()

    @pytest.mark.parametrize(
        "data",
        [b"X: y\r\n" * 10_000, b"X: " + b"y" * 100_000, b"\0\x1b[2J nonsense\r\n\r\n"],
    )
    def test_headers_without_end_are_refused(self, world, capfd, data):
        """Also where the caller is not known yet; and nothing of it is printed."""
        with Caller(world.signed_port, bare_context()) as caller:
            caller.send(b"POST /v1/mail HTTP/1.1\r\n" + data)
            assert caller.response()[0] == 400
        wait_until(lambda: "not a good call" in world.refused(), what="the log")
        assert capfd.readouterr() == ("", "")


class posted:  # noqa: N801  # reads as a verb: with posted(world) as ...
    """A letter to berlin that waits, and a connection of berlin's."""

    def __init__(self, world):
        self._world = world

    def __enter__(self):
        self._asked = InBackground(
            self._world.operator().exchange, {"berlin": b"x", "geneva": b"y"}, 1.0
        )
        boxes = self._world.server._office._boxes
        wait_until(lambda: boxes["berlin"].waiting and boxes["geneva"].waiting, what="letters")
        self._caller = Caller(self._world.port, context_of(self._world.identity("berlin")))
        self._world.start_site("geneva")
        (digest,) = boxes["berlin"].waiting
        return digest, self._caller

    def __exit__(self, *error):
        self._caller.close()
        if error == (None, None, None):  # whatever berlin did, geneva's answer has come
            assert self._asked.result()["geneva"] == b"y"
        else:
            self._asked.result()


async def left(office, theirs):
    office.post(office.open(), "geneva", theirs, 1000)


class TestEnrolledAndHostile:
    def test_many_connections_of_one_site_are_cut_and_the_others_go_on(self, world):
        callers = [Caller(world.port, context_of(world.identity("berlin"))) for _ in range(20)]
        assert is_served(world)
        most = connections.MAX_PER_CALLER
        wait_until(lambda: len(world.server._connections) <= most + 1, what="fewer connections")
        assert "more than 8 connections" in world.refused()
        assert '"caller": "berlin"' in world.refused()
        for caller in callers:
            caller.close()

    @pytest.mark.parametrize("what", ["exchange", "status", "", "mail/../status"])
    def test_only_the_operator_has_the_operators_calls(self, world, what):
        with Caller(world.port, context_of(world.identity("berlin"))) as caller:
            status, _ = caller.call(f"/v1/{what}", b"[]")
            assert status == 400
        assert is_served(world)
        assert '"caller": "berlin"' in world.refused()

    def test_a_site_cannot_answer_or_take_what_is_anothers(self, world):
        """By the digest of another site's letter: there is none of its own of that name."""
        theirs = letter(world.folder.operator, "geneva", b"for you only")
        world.loop.call(left(world.server._office, theirs))
        with Caller(world.port, context_of(world.identity("berlin"))) as caller:
            status, _ = caller.call(f"/v1/mail?answers={digest_of(theirs)}", b"mine")
            assert status == 410
            assert caller.call("/v1/mail?stay=0") == (204, "")
        assert world.server._office.expected("geneva", digest_of(theirs)) is not None

    @pytest.mark.parametrize("length", [10, MAX_LETTER + 1, 10**15])
    def test_answers_that_nobody_waits_for_are_not_kept(self, world, length):
        with Caller(world.port, context_of(world.identity("berlin"))) as caller:
            caller.send(head_of(f"/v1/mail?answers={'0' * 64}", length) + b"0123456789")
            assert caller.response()[0] == 410
        assert world.counts()["bytes"] == 0

    def test_who_sends_one_hears_so_and_stays_connected(self, world):
        """A late answer, however long, must not keep its site from the next letter."""
        with Caller(world.port, context_of(world.identity("berlin"))) as caller:
            assert caller.call(f"/v1/mail?answers={'0' * 64}", bytes(3_000_000))[0] == 410
            assert caller.call("/v1/mail?stay=0")[0] == 204

    def test_huge_lengths_are_refused_before_a_byte_is_read(self, world):
        with posted(world) as (digest, caller):
            caller.send(head_of(f"/v1/mail?answers={digest}", 10**12))
            assert caller.response()[0] == 413
        assert "an answer of 1000000000000 bytes" in world.refused()

    @pytest.mark.parametrize(
        "head",
        [
            head_of("/v1/mail?answers={}", None, Transfer_Encoding="chunked") + b"3\r\nabc\r\n",
            head_of("/v1/mail?answers={}", 5, Content_Encoding="gzip") + b"12345",
            head_of("/v1/mail?answers={}", 0),
            head_of("/v1/mail?stay=0", 5) + b"12345",
            head_of("/v1/mail?answers={}", 5).replace(b"POST", b"GET") + b"12345",
        ],
    )
    def test_other_forms_of_a_call_are_refused(self, world, head):
        with posted(world) as (digest, caller):
            caller.send(head.replace(b"{}", digest.encode()))
            assert caller.response()[0] == 400

    def test_a_body_that_is_cut_off_disturbs_nobody(self, world, capfd):
        with posted(world) as (digest, caller):
            caller.send(head_of(f"/v1/mail?answers={digest}", 1000) + b"abc")
            wait_until(lambda: world.counts()["answers"] == 1, what="geneva's answer")
            caller.close()
            wait_until(
                lambda: not any(c.n_active and c.caller == "berlin"
                                for c in world.server._connections._all.values()),
                what="the end of its call",
            )  # fmt: skip
        assert capfd.readouterr().err == ""

    def test_one_answer_is_in_memory_once_however_often_it_is_sent(self, world):
        with posted(world) as (digest, first):
            head = head_of(f"/v1/mail?answers={digest}", 1000)
            first.send(head + b"abc")
            with Caller(world.port, context_of(world.identity("berlin"))) as second:
                second.send(head + b"abc")
                assert first.rest() == b""

    def test_another_protocol_is_refused_with_both_versions(self, world):
        with Caller(world.port, context_of(world.identity("berlin"))) as caller:
            status, words = caller.call("/v7/mail")
        assert status == 426
        assert "protocol 1" in words
        assert "'v7'" in words


def memory_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_the_servers_memory_is_flat_whoever_calls(tmp_path):
    """1,000 callers that say nothing, and eight that send 255 MiB without being known."""
    from support.mailbox_processes import Killable, serve_folder

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("1,000 connections need more open files than this system allows")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    world = HttpsWorld(tmp_path, ("berlin", "geneva"))
    server = Killable(serve_folder, str(tmp_path))
    silent = []
    try:
        wait_until(lambda: is_up(world), what="the server")
        before = memory_of(server.pid)
        for _ in range(1000):
            silent.append(socket.create_connection(("127.0.0.1", world.port), timeout=PATIENCE))
        assert is_served(world)
        with_silent = memory_of(server.pid)
        floods = [
            threading.Thread(target=flood, args=(port,))
            for port in (world.port, world.signed_port)
            for _ in range(4)
        ]
        for thread in floods:
            thread.start()
        most = with_silent
        while any(thread.is_alive() for thread in floods):
            most = max(most, memory_of(server.pid))
            time.sleep(0.02)
        assert is_served(world)
        assert most - before < 60, (before, with_silent, most)
    finally:
        server.kill()
        for caller in silent:
            caller.close()
        world.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_up(world):
    try:
        return is_served(world)
    except OSError:
        return False


def flood(port):
    """Send 255 MiB, or as much as gets through."""
    block = bytes(2**20)
    try:
        with Caller(port, bare_context()) as caller:
            caller.send(head_of(f"/v1/mail?answers={'0' * 64}", 255 * 2**20))
            for _ in range(255):
                caller.send(block)
    except OSError:
        pass


def test_an_answer_of_a_site_is_echoed(world):
    """The world of these tests works, so that what they show is not that nothing does."""
    world.start_site("berlin", lambda request: answered(b"!" + request))
    assert world.operator().exchange({"berlin": b"x"}, PATIENCE) == {"berlin": b"!x"}
