"""Hostile sites, strangers and servers over NATS: refused or harmless, and the others go on.

Every attack is made with NATS's own client, by somebody who has an enrolled key or none. A site
geneva works beside it all the time, and must be served at the end.
"""

import asyncio
import json
import os
import resource
import socket
import ssl
import threading
import time

import nats
import nkeys
import pytest
from nats.errors import Error

from dpfedc.deployment.certificates import write_site_key
from dpfedc.deployment.control import answered
from dpfedc.deployment.keys import SITE_KEY, SITE_PUB, Identity, verifying_key
from dpfedc.deployment.mailbox import nats_config, nats_operator, nats_site
from dpfedc.deployment.mailbox.frames import PIECE
from dpfedc.deployment.mailbox.letters import letter
from dpfedc.deployment.mailbox.mailbox import MAX_LETTER
from dpfedc.deployment.mailbox.nats_config import MAX_CONNECTIONS, MAX_SUBSCRIPTIONS, site_subject
from dpfedc.deployment.mailbox.nats_operator import NatsMailbox, taken_up
from dpfedc.deployment.mailbox.nats_wire import MAX_PAYLOAD, REQUEST, packed, unpacked, user_key
from dpfedc.deployment.mailbox.post_office import digest_of
from dpfedc.errors import InvalidInput
from support.mailbox_callers import (
    Caller,
    HostileListener,
    HungUp,
    bare_context,
    context_of,
    issued_by_an_enrolled_one,
)  # fmt: skip
from support.mailboxes import PATIENCE, InBackground, quickly, wait_until
from support.nats_worlds import NatsWorld, nats_server

NAMES = ("berlin", "geneva")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return a federation in which geneva is there, and berlin is the attacker."""
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        made = NatsWorld(tmp_path_factory.mktemp("world"), NAMES)
        made.start_server()
        made.start_site("geneva")
        yield made
        made.close()


@pytest.fixture
def own_world(tmp_path, monkeypatch):
    quickly(monkeypatch)
    made = NatsWorld(tmp_path, NAMES)
    made.start_server()
    yield made
    made.close()


def is_served(world, request=b"still there?"):
    return world.operator().exchange({"geneva": request}, PATIENCE) == {"geneva": request}


class Attacker:
    """A connection with an enrolled key, and what the server has said of its attempts."""

    def __init__(self, client, complaints):
        self.client, self.complaints = client, complaints

    @classmethod
    async def connected(cls, world, identity, *, certificate=None):
        complaints = []

        async def complained(error):
            complaints.append(str(error).lower())

        seed = nkeys.encode_seed(identity.key.private_bytes_raw(), nkeys.PREFIX_BYTE_USER)
        context = context_of(identity) if certificate is None else bare_context(*certificate)
        client = await nats.connect(
            f"tls://127.0.0.1:{world.nodes.nodes[0].port}", tls=context, tls_handshake_first=True,
            nkeys_seed_str=seed.decode(), allow_reconnect=False, error_cb=complained,
            max_reconnect_attempts=1, reconnect_time_wait=0, connect_timeout=5,
        )  # fmt: skip
        return cls(client, complaints)

    async def heard(self, subject, seconds=0.1):
        """Return what comes on a subject."""
        got = []

        async def keep(message):
            got.append(message)

        await self.client.subscribe(subject, cb=keep)
        await self.client.flush()
        await asyncio.sleep(seconds)
        return got


def attack(world, work, name="berlin", **how):
    """Let a coroutine do what it likes as an enrolled site; return what it returns."""

    async def attacked():
        attacker = await Attacker.connected(world, world.identity(name), **how)
        try:
            return await work(attacker)
        finally:
            await attacker.client.close()

    return world.loop.call(attacked())


def test_nats_and_we_write_a_key_alike(world):
    identity = world.identity("berlin")
    seed = nkeys.encode_seed(identity.key.private_bytes_raw(), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    assert user_key(verifying_key(identity.certificate).public_bytes_raw()) == public


# Other sites' subjects, inboxes, the system's subjects.

FOREIGN = [
    "site.geneva", "site.berlin", "site.*", "site.>", ">", "*", "request.geneva", "_INBOX.>",
    "_R_.>", "nodes.ping", "nodes.reload.*", "nodes.>", "$SYS.>", "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.USER.INFO", "$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.SITE-geneva.>",
    "$SYS.ACCOUNT.OPERATOR.>", "$SYS.SERVER.*.>", "$JS.API.>", "$JS.API.STREAM.LIST", "$KV.>",
    "$MQTT.>", "$G.>", "OPERATOR.>", "SITE-geneva.request", "SYSTEM.>", "_GR_.>",
]  # fmt: skip


def test_a_site_can_listen_to_nothing_but_what_it_is_asked(world):
    async def listening(me):
        for subject in FOREIGN:
            await me.client.subscribe(subject, cb=None)
            await me.client.subscribe(subject, queue="q")
        own = await me.heard(REQUEST, 0)
        await me.client.flush()
        everything = [m for s in me.client._subs.values() for m in iter_queue(s)]
        return own, everything, me.complaints

    async def during(me):
        task = asyncio.ensure_future(listening(me))
        await asyncio.sleep(0.2)
        return await task

    attacking = InBackground(attack, world, during)
    for _ in range(5):
        assert is_served(world, os.urandom(1000))
    own, everything, complaints = attacking.result()
    assert own == everything == []
    denied = {c.split('"')[1] for c in complaints if "permissions violation for subscription" in c}
    assert denied == {subject.lower() for subject in FOREIGN}


def iter_queue(subscription):
    queue = subscription._pending_queue
    while not queue.empty():
        yield queue.get_nowait()


@pytest.mark.parametrize("reply", ["", "_INBOX.mine", "site.geneva", "$SYS.REQ.SERVER.PING"])
def test_a_site_can_send_nothing_of_its_own_accord(world, reply):
    """Neither to others, nor in the place of the operator, nor with a Msg-Id or a reply subject."""
    headers = {"Nats-Msg-Id": "1", "Nats-Expected-Stream": "x", "Nats-Rollup": "all"}
    told = packed({"is": "got", "letter": "0" * 64})
    subjects = [*(subject for subject in FOREIGN if "*" not in subject and ">" not in subject),
                REQUEST, "_INBOX.abc.1", "_R_.abcdef.ghijkl", "$JS.ACK.a.b.1.1.1.1.1"]  # fmt: skip

    async def sending(me):
        for subject in subjects:
            await me.client.publish(subject, told, reply=reply, headers=headers)
            await me.client.publish(subject, told, reply=reply)
        await me.client.flush()
        await asyncio.sleep(0.05)
        return me.complaints

    complaints = attack(world, sending)
    denied = {c.split('"')[1] for c in complaints if "permissions violation for publish" in c}
    assert denied == {subject.lower() for subject in subjects}
    assert is_served(world)


def test_with_the_permissions_gone_the_accounts_still_keep_sites_apart(own_world, monkeypatch):
    """Two walls, each of which holds alone: here a site may say and hear what it likes."""
    right = nats_config.Nodes._accounts

    def open_to_all(nodes, sites):
        accounts = right(nodes, sites)
        for name, account in accounts.items():
            if name.startswith("SITE-"):
                del account["users"][0]["permissions"], account["limits"]
        return accounts

    with monkeypatch.context() as patch:
        patch.setattr(nats_config.Nodes, "_accounts", open_to_all)
        own_world.taken_up()
    own_world.start_site("geneva")

    async def trying(me):
        got = await me.heard(">", 0)
        for subject in (site_subject("geneva"), REQUEST, "nodes.ping", "nodes.reload.X"):
            for reply in ("", site_subject("geneva"), "_INBOX.x"):
                await me.client.publish(subject, b"nonsense", reply=reply)
        await me.client.flush()
        await asyncio.sleep(0.3)
        return {message.subject for message in got}

    attacking = InBackground(attack, own_world, trying)
    for _ in range(3):
        assert is_served(own_world, os.urandom(1000))
    mine = attacking.result()
    assert site_subject("geneva") in mine  # its own words, in its own account, and no others
    assert not {s for s in mine if s.startswith(("_R_", "$SYS.REQ", "$SYS.SERVER"))}
    assert own_world.told["geneva"] == ["connected to " + own_world.nodes.nodes[0].address]


# A site that is asked, and does not answer as it should.


def test_every_question_is_answered_once_and_by_the_one_who_was_asked(world):
    """A flood of answers is one answer; who knows another's way back cannot use it."""
    ways = []

    async def flooding(me):
        async def heard(message):
            ways.append(message.reply)
            for _ in range(300):
                await me.client.publish(message.reply, packed({"is": "held"}) + bytes(1000))

        await me.client.subscribe(REQUEST, cb=heard)
        await me.client.flush()
        await asyncio.sleep(0.8)
        return me.complaints

    counted = CountedAnswers(world)
    attacking = InBackground(attack, world, flooding)
    assert counted.exchange({"berlin": b"x", "geneva": b"y"}, 1.0) == {"geneva": b"y"}
    complaints = attacking.result()
    assert len(ways) >= 1
    assert counted.n_answers <= len(ways) + counted.n_to_geneva + 10  # and those who were not there
    assert sum("permissions violation" in c for c in complaints) >= 299

    async def using(me):
        for way in ways:
            await me.client.publish(way, packed({"is": "answer", "length": 1}, b"x"))
        await me.client.flush()
        return me.complaints

    world.loop.call(using_as(world, "geneva", using))
    assert is_served(world)


async def using_as(world, name, work):
    attacker = await Attacker.connected(world, world.identity(name))
    try:
        return await work(attacker)
    finally:
        await attacker.client.close()


class CountedAnswers(NatsMailbox):
    """An operator that counts what reaches it."""

    def __init__(self, world):
        super().__init__(world.folder)
        world._operators.append(self)
        self.n_answers = self.n_to_geneva = 0

    async def _connected(self):
        fresh = self._line is None
        line = await super()._connected()
        if fresh:
            right, ask = line._on_answer, line.ask

            async def counted(message):
                self.n_answers += 1
                await right(message)

            async def asked(subject, data, timeout_s):
                self.n_to_geneva += subject == site_subject("geneva")
                return await ask(subject, data, timeout_s)

            line._on_answer, line.ask = counted, asked
        return line


LIES = {
    "nothing": lambda _: b"",
    "no JSON": lambda _: b"\xff" * 1000,
    "a long line": lambda _: b"[" * 100_000,
    "nothing wanted": lambda _: packed({"is": "wanted", "at": 10**12}),
    "a negative place": lambda _: packed({"is": "wanted", "at": -1}),
    "a place of another kind": lambda _: packed({"is": "wanted", "at": "0"}),
    "a huge answer": lambda _: packed({"is": "answer", "length": 10**15}, b"x"),
    "an answer that never ends": lambda _: packed({"is": "answer", "length": 10**6}, b""),
    "an empty answer": lambda _: packed({"is": "answer", "length": 0}),
    "another's answer": lambda _: packed({"is": "answer", "length": 100}, bytes(100)),
    "the question": lambda question: question,
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_is_none_costs_only_the_one_who_gives_it(world, lie):
    async def lying(me):
        async def heard(message):
            await me.client.publish(message.reply, LIES[lie](message.data)[:MAX_PAYLOAD])

        await me.client.subscribe(REQUEST, cb=heard)
        await me.client.flush()
        there.set()
        await asyncio.sleep(0.3)

    there = threading.Event()
    operator = world.operator(most_answer=2000)
    attacking = InBackground(attack, world, lying)
    assert there.wait(PATIENCE)
    got = operator.exchange({"berlin": b"x", "geneva": b"y"}, 0.3)
    attacking.result()
    assert got.pop("geneva") == b"y"
    assert not any(isinstance(value, bytes) for value in got.values())


def asked_of_liar(world, lie, request, deadline_s):
    """Return the heads of all questions that a site gets that answers with `lie`, at once."""
    heads, there, done = [], threading.Event(), threading.Event()

    async def lying(me):
        async def heard(message):
            head = unpacked(message.data)[0]
            heads.append(head)
            if head["is"] not in ("here", "got"):
                await me.client.publish(message.reply, lie(head))

        await me.client.subscribe(REQUEST, cb=heard)
        await me.client.flush()
        there.set()
        await asyncio.to_thread(done.wait, PATIENCE)

    attacking = InBackground(attack, world, lying)
    assert there.wait(PATIENCE)
    got = world.operator(most_answer=MAX_LETTER).exchange(
        {"berlin": request, "geneva": b"y"}, deadline_s
    )
    done.set()
    attacking.result()
    assert got == {"geneva": b"y"}
    return [head for head in heads if head["is"] not in ("here", "got")]


def test_a_site_that_says_at_once_that_it_works_is_not_asked_more_often(world):
    n_waits = 5
    deadline_s = n_waits * nats_operator.WAIT_S
    asked = asked_of_liar(world, lambda _: packed({"is": "held"}), b"x", deadline_s)
    assert 1 <= len(asked) <= n_waits + 1


def at_byte(head):
    return head.get("at", 0)


N_RESTARTS = 3
PACES = {
    # What it says, and how many questions it gets before it is given up.
    "the same again": (lambda _: packed({"is": "wanted", "at": 0}), 1 + 4 * (N_RESTARTS + 1)),
    "one byte more": (lambda head: packed({"is": "wanted", "at": at_byte(head) + 1}), 1),
    "an answer of nothing": (lambda _: packed({"is": "answer", "length": MAX_LETTER}), 1),
    "an answer of too much": (
        lambda head: packed({"is": "answer", "length": 2**23}, bytes(PIECE + (at_byte(head) > 0))),
        5,
    ),
    "an answer that breaks off": (
        lambda head: packed({"is": "answer", "length": 2**23 + at_byte(head)}, bytes(PIECE)),
        5 * (N_RESTARTS + 1),
    ),
}


@pytest.mark.parametrize("pace", PACES)
def test_a_site_that_never_gets_on_is_given_up(world, monkeypatch, pace):
    """Else it would be sent, or asked for, as much as the line carries, until the deadline."""
    monkeypatch.setattr(nats_operator, "MAX_RESTARTS", N_RESTARTS)
    monkeypatch.setattr(nats_operator, "SLACK_S", PATIENCE)  # nothing is asked twice in haste
    log = world.folder.path / "refused.log"
    log.unlink(missing_ok=True)
    lie, n_questions = PACES[pace]
    asked = asked_of_liar(world, lie, bytes(2**20), PATIENCE)
    assert len(asked) == n_questions
    assert json.loads(log.read_text())["caller"] == "berlin"


def test_messages_beyond_the_limit_cut_only_the_one_who_sends_them(world):
    async def shouting(me):
        await me.heard(REQUEST, 0)
        with pytest.raises(Error):  # the client refuses itself, so it is told a lie
            await me.client.publish(REQUEST, bytes(MAX_PAYLOAD + 1))
        me.client._max_payload = 10**9
        await me.client.publish(REQUEST, bytes(MAX_PAYLOAD + 1))
        await asyncio.sleep(0.2)
        return me.client.is_closed

    assert attack(world, shouting)
    assert is_served(world)


def test_subscriptions_beyond_the_limit_are_refused(world):
    async def subscribing(me):
        for _ in range(5 * MAX_SUBSCRIPTIONS):
            await me.client.subscribe(REQUEST)
        await asyncio.sleep(0.2)
        return me.client.is_closed or me.complaints

    assert attack(world, subscribing)
    assert is_served(world)


# Many connections.


def test_a_site_has_few_connections_however_many_it_opens(world):
    async def opening():
        found = []
        for _ in range(4):
            found += await asyncio.gather(
                *(Attacker.connected(world, world.identity("berlin")) for _ in range(10)),
                return_exceptions=True,
            )
        await asyncio.sleep(0.1)
        standing = [a for a in found if isinstance(a, Attacker) and not a.client.is_closed]
        for attacker in standing:
            await attacker.client.close()
        return len(found), len(standing)

    assert world.loop.call(opening()) == (40, MAX_CONNECTIONS)
    assert is_served(world)


def test_1200_callers_who_say_nothing_keep_nobody_out(own_world):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("1,200 connections need more open files than this system allows")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    port, silent = own_world.nodes.nodes[0].port, []
    try:
        for i in range(1200):
            caller = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            if i % 2:
                caller.sendall(b"\x16")
            silent.append(caller)
        own_world.start_site("geneva")
        assert is_served(own_world)
    finally:
        for caller in silent:
            caller.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Who is not enrolled.


def stranger(world, name):
    folder = world.home / f"stranger-{name}"
    folder.mkdir(exist_ok=True)
    if not (folder / SITE_KEY).exists():
        write_site_key(folder, name)
    return Identity.read(folder / SITE_KEY, folder / SITE_PUB)


def node_files(world):
    place = world.nodes.place(world.nodes.nodes[0])
    return place / "node.crt", place / "node.key"


STRANGERS = {
    "no certificate": lambda world: bare_context(),
    "a certificate of its own": lambda world: context_of(stranger(world, "paris")),
    "the name of an enrolled site": lambda world: context_of(stranger(world, "berlin")),
    "TLS 1.2": lambda world: context_of(world.identity("berlin"), most=ssl.TLSVersion.TLSv1_2),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_to_a_stranger_the_server_says_nothing(world, who):
    """Not even the greeting, which would tell its version and name."""
    try:
        with Caller(world.nodes.nodes[0].port, STRANGERS[who](world)) as caller:
            caller.send(b"CONNECT {}\r\nPING\r\n")
            assert caller.rest() == b""
    except OSError:
        pass
    assert is_served(world)


OTHERS_KEYS = {
    "an enrolled certificate with a strange key": (
        lambda w: (w.place("berlin") / SITE_PUB, w.place("berlin") / SITE_KEY),
        lambda w: stranger(w, "paris"),
    ),
    "a node's certificate with a strange key": (node_files, lambda w: stranger(w, "paris")),
}


@pytest.mark.parametrize("who", OTHERS_KEYS)
def test_a_certificate_without_its_key_in_the_list_is_turned_away(world, who):
    certificate, identity = (each(world) for each in OTHERS_KEYS[who])
    with pytest.raises((Error, OSError)):
        world.loop.call(Attacker.connected(world, identity, certificate=certificate))


def test_what_a_site_vouches_for_is_nobody(own_world):
    """A site makes its certificate itself, and may make it one that signs others."""
    files = issued_by_an_enrolled_one(own_world)
    own_world.taken_up()
    with pytest.raises((Error, OSError)):
        own_world.loop.call(
            Attacker.connected(own_world, stranger(own_world, "sub"), certificate=files)
        )


# What the operator of the servers is protected from, and what from them.


def test_a_broken_file_leaves_the_old_one_in_force(own_world, monkeypatch):
    """First found out by nats-server here, then by the node itself."""
    own_world.start_site("geneva")
    place = own_world.nodes.place(own_world.nodes.nodes[0])
    before = (place / "nats.conf").read_bytes()
    right = nats_config.Nodes._settings
    monkeypatch.setattr(
        nats_config.Nodes, "_settings", lambda *given: {**right(*given), "max_payload": "much"}
    )
    monkeypatch.setenv("PATH", f"{os.path.dirname(nats_server())}:{os.environ['PATH']}")
    with pytest.raises(InvalidInput, match="the old one stays"):
        taken_up(own_world.folder)
    assert (place / "nats.conf").read_bytes() == before
    monkeypatch.setattr(nats_config, "_require_good", lambda *_: None)
    wrong = taken_up(own_world.folder)
    assert "it keeps the old one" in wrong[own_world.nodes.nodes[0].name]
    assert is_served(own_world)
    monkeypatch.undo()
    own_world.taken_up()
    assert is_served(own_world)


def test_a_node_with_other_files_is_noticed(own_world, monkeypatch):
    """As on another machine, to which nobody has copied them."""
    name = own_world.nodes.nodes[0].name
    right = nats_config.write_together
    monkeypatch.setattr(nats_config, "write_together", lambda place, files, **how: None)
    monkeypatch.setattr(nats_config.Nodes, "_tags", lambda *_: ["configuration:newer"])
    assert "another file" in taken_up(own_world.folder)[name]
    monkeypatch.setattr(nats_config, "write_together", right)


class TestHostileServer:
    """Somebody who has the key of a node, and speaks to a site as it likes."""

    def server(self, world, says):
        return HostileListener(node_files(world), says)

    def told(self, world, says, until):
        server = self.server(world, says)
        address = f"nats://127.0.0.1:{server.port}"
        world.start_site("berlin", there=False, address=address)
        try:
            wait_until(lambda: until(world.told["berlin"]), what="the end of it")
        finally:
            world.stop_site("berlin")
            server.close()
        return server

    def test_a_message_without_end_is_hung_up_on(self, own_world):
        n_sent = []

        def says(connection):
            greeted(connection)
            n_sent.append(0)
            connection.sendall(b"MSG request 1 _R_.x.y 99999999999\r\n")
            while True:
                connection.sendall(bytes(2**16))
                n_sent[-1] += 2**16

        self.told(own_world, says, lambda told: any("lost" in text for text in told))
        assert n_sent[0] < 2**24  # what fits into the system's buffers

    def test_a_line_without_end_is_hung_up_on(self, own_world):
        def says(connection):
            greeted(connection)
            while True:
                connection.sendall(b"x" * 2**16)

        self.told(own_world, says, lambda told: any("lost" in t for t in told))

    @pytest.mark.parametrize(
        "nonce",
        ["dpfedc rotation 1\0abc", "dpfedc receipt\nrun", "a b", "", "ä", "x" * 65, 5, None],
    )
    def test_nothing_is_signed_for_it_but_a_challenge(self, own_world, nonce):
        """The same key signs letters and agreements: what it may sign here must be none of them."""
        heard = []

        def says(connection):
            info = {"server_id": "X", "version": "2.15.1", "auth_required": True, "nonce": nonce}
            connection.sendall(f"INFO {json.dumps(info)}\r\n".encode())
            heard.append(connection.recv(65536))

        self.told(own_world, says, lambda told: len(told) >= 2)
        assert not any(b'"sig"' in data for data in heard)

    @pytest.mark.parametrize("info", ["5", "[]", '"x"', "null", "{"])
    def test_one_that_says_nonsense_is_called_again(self, own_world, info):
        def says(connection):
            connection.sendall(f"INFO {info}\r\n".encode())
            connection.recv(65536)

        self.told(own_world, says, lambda told: len(told) >= 2)

    def test_one_that_hangs_up_in_the_handshake_is_called_again(self, own_world):
        """NATS's client would wait for ever for the end of such a connection."""
        server = HungUp()
        address = f"nats://127.0.0.1:{server.port}"
        own_world.start_site("berlin", there=False, address=address)
        wait_until(lambda: len(own_world.told["berlin"]) >= 3, what="another try")
        own_world.stop_site("berlin")
        server.close()

    def test_a_flood_of_nonsense_fills_no_log(self, own_world):
        def says(connection):
            greeted(connection)
            for _ in range(2000):
                connection.sendall(b"MSG request 1 8\r\nnonsense\r\n")

        self.told(own_world, says, lambda told: sum("lost" in text for text in told) >= 2)
        assert sum("refused" in text for text in own_world.told["berlin"]) < 100

    def test_other_addresses_that_it_names_are_not_called(self, own_world):
        called = HostileListener(node_files(own_world), lambda _: None)

        def says(connection):
            greeted(connection, connect_urls=[f"127.0.0.1:{called.port}"])

        try:
            self.told(own_world, says, lambda told: len(told) > 3)
            assert called.n_accepted == 0
        finally:
            called.close()

    def test_letters_that_the_operator_did_not_sign_are_refused(self, own_world):
        forged = letter(own_world.identity("geneva"), "berlin", b"give me everything")
        other = letter(own_world.folder.operator, "geneva", b"for geneva only")
        asked = []

        def says(connection):
            greeted(connection)
            for data in (forged, other):
                time.sleep(2 * nats_site.COMPLAINT_S)
                head = {"is": "piece", "at": 0, "length": len(data), "letter": digest_of(data)}
                message = packed({**head, "wait": 0}, data)
                connection.sendall(b"MSG request 1 _R_.x.y %d\r\n%b\r\n" % (len(message), message))
            time.sleep(0.5)

        server = self.server(own_world, says)
        own_world.start_site(
            "berlin", asked.append, there=False, address=f"nats://127.0.0.1:{server.port}"
        )
        told = own_world.told["berlin"]
        wait_until(lambda: sum("refused: " in text for text in told) >= 2)
        own_world.stop_site("berlin")
        server.close()
        assert asked == []


def greeted(connection, **more):
    """Say what a server says until somebody is connected, and has subscribed."""
    info = {"server_id": "X", "version": "2.15.1", "proto": 1, "headers": True,
            "max_payload": 2**20, "auth_required": True, "nonce": "abc", **more}  # fmt: skip
    connection.sendall(f"INFO {json.dumps(info)}\r\n".encode())
    heard, n_pings = b"", 0
    while n_pings < 2:  # one with the connection, one after the subscription
        data = connection.recv(65536)
        if not data:
            return
        heard += data
        while heard.count(b"PING\r\n") > n_pings:
            n_pings += 1
            connection.sendall(b"PONG\r\n")


class TestDesk:
    """What a site keeps is bounded, whatever it is sent."""

    def test_letters_that_never_end_make_room_after_a_while(self, monkeypatch):
        async def filled():
            desk = nats_site._Desk()
            for i in range(10):
                desk.add(str(i), 0, 1000, b"x")
            assert [*desk.coming] == ["0", "1"]
            monkeypatch.setattr(nats_site, "STALE_S", -1.0)
            assert desk.add("9", 0, 1000, b"x") == {"is": "wanted", "at": 1}
            return len(desk.coming)

        assert asyncio.run(filled()) == nats_site.MAX_COMING

    def test_pieces_that_do_not_fit_are_not_taken(self):
        async def filled():
            desk, whole = nats_site._Desk(), b"0123456789"
            name = digest_of(whole)
            for at, length, body in (
                (5, 10, b"5"),
                (0, 10, whole * 2),
                (0, 11, b""),
                (0, 10, b"0"),
            ):
                said = desk.add(name, at, length, body)
            assert said == {"is": "wanted", "at": 1}
            assert desk.add(name, 1, 10, whole[1:]) == {"is": "held"}
            assert desk.add("another name", 0, 10, whole) == {"is": "wanted", "at": 0}
            assert desk.add(digest_of(b"b"), 0, 1, b"b") == {"is": "held"}
            return desk.add(digest_of(b"c"), 0, 1, b"c"), [*desk.inbox]

        said, inbox = asyncio.run(filled())
        assert said == {"is": "full"}
        assert len(inbox) == nats_site.MAX_INBOX

    @pytest.mark.parametrize(
        "data", [b"", b"{}", b"[]\n", b"{\n", b"x" * 10**6, b"[" * 2000 + b"\n"]
    )
    def test_what_is_no_message_is_refused(self, data):
        with pytest.raises(InvalidInput):
            unpacked(data)


def test_a_server_that_reads_nothing_gets_few_answers(world):
    """Each could be a piece of 256 KiB, and would wait in the memory of the site."""

    class Stuck:
        async def say(self, *_):
            await asyncio.Event().wait()

    class Question:
        data, reply = packed({"is": "question", "letter": "0" * 64, "wait": 0}), "_R_.x.y"

    async def asked():
        site = nats_site.NatsSite(world.line("berlin"), answered, tell=lambda _: None)
        for _ in range(1000):
            site._heard(Stuck(), world.identity("berlin"), Question())
            await asyncio.sleep(0)
        n_waiting = len(site._waiting)
        for task in site._waiting:
            task.cancel()
        return n_waiting

    assert world.loop.call(asked()) == nats_site.MAX_WAITING


def test_a_flood_of_questions_does_not_fill_a_site(own_world):
    """Of its own operator, say: it answers all, and keeps no more than a few at a time."""
    slow = threading.Event()
    own_world.start_site("berlin", lambda _: (slow.wait(PATIENCE), answered(b"done"))[1])
    operator = own_world.operator()
    asked = InBackground(operator.exchange, {"berlin": b"x"}, PATIENCE)
    wait_until(lambda: operator.counts()["letters"] == 1)

    async def flooding(me):
        question = packed({"is": "question", "letter": "0" * 64, "wait": 10_000})
        for _ in range(5000):
            await me.client.publish(site_subject("berlin"), question, reply="_INBOX.nobody")
        await me.client.flush()

    async def as_operator():
        attacker = await Attacker.connected(own_world, own_world.folder.operator)
        await flooding(attacker)
        await attacker.client.close()

    own_world.loop.call(as_operator())
    slow.set()
    assert asked.result() == {"berlin": b"done"}
