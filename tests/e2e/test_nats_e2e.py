"""A cluster of three NATS servers, of which one or another is killed: real processes throughout."""

import asyncio
import re
import threading

import numpy as np
import pytest

from dpfedc.deployment.control import answered, refused
from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.mailbox.nats_config import MAX_CONNECTIONS
from dpfedc.deployment.mailbox.nats_wire import Line
from dpfedc.deployment.messages import Refusal
from dpfedc.privacy.ledger import Ledger
from processes import NatsFederation, wait_until
from support.deployment import KEY
from support.masked_runs import counts, lloyd, masked, sites_in
from support.nats_worlds import NatsWorld
from support.site_services import write_records
from test_e2e import NAMES, agreement_of, spent
from test_secure_e2e import MIDDLES, assert_right, plan_file

pytestmark = pytest.mark.e2e

ROUNDS, EVERY = 25, 5


class Kills:
    """In every fifth round one node is killed, and the one before it is started again."""

    def __init__(self, nodes):
        self._nodes, self.n_killed, self._down = nodes, 0, None

    def strike(self):
        if self._down is not None:
            self._down.start()
        self._down = self._nodes[self.n_killed % len(self._nodes)]
        self._down.kill()
        self.n_killed += 1


def test_sums_in_secret_are_the_same_with_and_without_kills(tmp_path):
    """Bit for bit: all noise is known, and the same requests reach the same sites.

    A kill falls into a round, while a site works on a request of it.
    """
    agreement = masked(4, settings=dict(lloyd(ROUNDS)), deadline=600.0)
    quietly = sites_in(tmp_path / "quiet", agreement)
    (tmp_path / "quiet run").mkdir()
    heads = KeptHeads(tmp_path / "quiet run")
    quiet = Coordinator(agreement, quietly, tmp_path / "quiet run", key=KEY, heads=heads).run()

    names = [site.name for site in agreement.sites]
    world, lock = NatsWorld(tmp_path / "world", names, n_nodes=3), threading.Lock()
    sites, kills = sites_in(tmp_path / "kills", agreement), Kills(world.processes)

    due = threading.Event()

    def answering(name):
        def answer_of(request):
            with lock:
                if due.is_set():
                    due.clear()
                    kills.strike()
                reply = sites._served(name, request)
            return refused(reply) if isinstance(reply, Refusal) else answered(reply)

        return answer_of

    rounds = []

    def on_event(event):
        if event.done:
            rounds.append((event.number, event.answered))
        elif event.number % EVERY == 0:
            due.set()

    try:
        world.start_server()
        for name in names:
            world.start_site(name, answering(name))
        (tmp_path / "kills run").mkdir()
        heads = KeptHeads(tmp_path / "kills run")
        noisy = Coordinator(
            agreement, world.operator(), tmp_path / "kills run", key=KEY, heads=heads,
            on_event=on_event,
        ).run()  # fmt: skip
        told = [text for name in names for text in world.told[name]]
    finally:
        world.close()
    assert kills.n_killed == agreement.plan.n_rounds // EVERY >= 5
    assert any(text.startswith("the connection was lost") for text in told)
    assert rounds == [(n + 1, tuple(names)) for n in range(agreement.plan.n_rounds)]
    np.testing.assert_array_equal(noisy.model.cluster_centers, quiet.model.cluster_centers)
    for name in names:  # verifies the ledger, too
        assert counts(sites, name) == counts(quietly, name)


@pytest.fixture
def federation(tmp_path):
    """Four sites that accept by themselves, and have pinned their peers."""
    made, rng = NatsFederation(tmp_path), np.random.default_rng(1)
    made.start_nodes()
    for i, name in enumerate(NAMES):
        X = MIDDLES[rng.integers(3, size=400 + 100 * i)]
        made.add(name, write_records(tmp_path / f"{name}.csv", X + rng.normal(size=X.shape)))
    for name in NAMES:
        peers = [tmp_path / peer / "site.pub" for peer in NAMES if peer != name]
        made.call("site", "peers", tmp_path / name, *(word for p in peers for word in ("--pin", p)))
    for name in NAMES:
        made.start(name, "--accept").says("connected to")
    yield made
    made.close()


def test_a_run_by_its_commands_loses_no_round_to_kills(federation):
    """With secure noise, which nobody can repeat: nothing is lost, and every ledger verifies."""
    plan = plan_file(federation.home, "kills", "secure-aggregation", rounds=ROUNDS)
    running, kills = federation.run("start", plan), Kills(federation.nodes)
    for t in range(EVERY, ROUNDS + 1, EVERY):
        running.says(f"factorisation {t - 1}/{ROUNDS}")  # the next one is under way
        kills.strike()
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    record = assert_right(federation, agreement)
    assert len(record.rounds) == agreement.plan.n_rounds
    rounds = re.findall(r"^Round .*: (\d) of 4 sites answered", running.text, flags=re.MULTILINE)
    assert rounds == ["4"] * agreement.plan.n_rounds
    for name in NAMES:
        counts_of = spent(federation, name, agreement)
        assert all(c == planned == done for c, planned, done in counts_of.values())
        with Ledger.open(federation.home / name / "ledger.sqlite") as ledger:
            ledger.verify()
    assert kills.n_killed == ROUNDS // EVERY


def test_a_site_is_removed_and_enrolled_again_by_the_commands(federation):
    server, site = federation.home / "server", federation.home / "s0"
    others = {name: federation.running[name].text for name in NAMES[1:]}
    assert "does not go by it yet" not in federation.call("server", "remove", server, "s0")
    federation.running["s0"].says("its operator must enrol site.pub")
    status = federation.call("server", "status", server)
    assert status.count("as it should be") == 3
    assert status.count("online") == 3
    federation.call("server", "enrol", server, site / "site.pub")
    wait_until(lambda: federation.call("server", "status", server).count("online") == 4, what="s0")
    federation.call("server", "renew", server)
    assert federation.call("server", "status", server).count("as it should be") == 3
    assert others == {name: federation.running[name].text for name in NAMES[1:]}, "undisturbed"
    federation.nodes[0].kill()
    status = federation.call("server", "status", server)
    assert "NOT RUNNING, or cut off" in status
    said = " ".join(federation.call("server", "nats-config", server).split())
    assert f"{federation.nodes[0].place.name} cannot be reached" in said
    refusal = federation.call("server", "start", server, code=2)
    assert "carried by NATS" in refusal


def test_a_site_that_opens_1200_connections_has_few(tmp_path):
    world = NatsWorld(tmp_path, ("berlin", "geneva"), n_nodes=3)
    nodes, mine = [node.address for node in world.nodes.nodes], world.identity("berlin")

    async def opening():
        found = []
        for _ in range(24):
            calls = [Line.open(nodes, mine, world.folder.authority) for _ in range(50)]
            found += await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(1)
        n_standing = sum(isinstance(one, Line) and not one.lost.is_set() for one in found)
        await asyncio.gather(*(one.close() for one in found if isinstance(one, Line)))
        return len(found), n_standing

    try:
        world.start_server()
        world.start_site("geneva")
        n_tried, n_standing = world.loop.call(opening())
        assert world.operator().exchange({"geneva": b"x"}, 60.0) == {"geneva": b"x"}
    finally:
        world.close()
    assert n_tried == 1200
    assert n_standing <= 3 * MAX_CONNECTIONS  # nodes learn of each other's with some delay
