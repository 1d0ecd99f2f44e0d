"""Server, sites and run are killed again and again; every answer is what it would have been."""

import hashlib
import random
import time

import pytest

from dpfedc.deployment.certificates import write_site_key
from dpfedc.deployment.mailbox.nats_config import Nodes
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.whole_files import write_whole
from processes import wait_until
from support.mailbox_processes import (
    NOISE,
    Killable,
    attend_sites,
    coordinate,
    drawn,
    place,
    request_of,
    serve_folder,
)
from support.nats_worlds import NO_SERVER, NodeProcess, nats_server
from support.ports import reserved_port

N_ROUNDS, N_KILLS = 40, 60
NAMES = [f"s{i:02d}" for i in range(20)]
PER_PROCESS = 5

pytestmark = pytest.mark.e2e


def https_server(folder):
    return Killable(serve_folder, str(folder.path.parent))


def nats_node(folder):
    """Return the node of a federation over NATS; sites and operator find it in the folder."""
    if nats_server() is None:
        pytest.skip(NO_SERVER)
    address = f"127.0.0.1:{folder.port}"
    nodes = Nodes.chosen(folder, [address], listen="127.0.0.1", monitoring=False)
    nodes.write()
    node = NodeProcess(nodes.place(nodes.nodes[0]))
    node.start()
    return node


@pytest.fixture
def home(tmp_path):
    port, keeper = reserved_port()
    folder = ServerFolder.create(tmp_path / "server", hosts=(), listen="127.0.0.1", port=port)
    for name in NAMES:
        (tmp_path / name).mkdir()
        write_site_key(tmp_path / name, name)
        folder.enrol((tmp_path / name / "site.pub").read_text())
    write_whole(tmp_path / "permit", b"-1")
    yield tmp_path
    keeper.close()


@pytest.mark.parametrize("started", [https_server, nats_node])
def test_kills_of_everyone_change_no_answer(home, started):
    chance = random.Random(14)
    groups = [NAMES[i : i + PER_PROCESS] for i in range(0, len(NAMES), PER_PROCESS)]
    server = started(ServerFolder.open(home / "server"))
    sites = [Killable(attend_sites, str(home), group) for group in groups]
    run = Killable(coordinate, str(home), NAMES, N_ROUNDS)
    victims = [
        victim
        for n in range(N_KILLS)
        for victim in (server, sites[n % len(sites)], run)
    ]  # fmt: skip
    n_killed = 0
    try:
        for t in range(N_ROUNDS):
            write_whole(home / "permit", b"%d" % t)
            while n_killed * N_ROUNDS < len(victims) * (t + 1):
                time.sleep(chance.uniform(0, 0.15))
                victims[n_killed].kill()
                victims[n_killed].start()
                n_killed += 1
            wait_until(lambda t=t: len(place(home)) > t or run.is_over(), what=f"round {t}")
        wait_until(run.is_over, what="the end of the run")
        assert run.exit_code == 0
    finally:
        for process in (server, run, *sites):
            process.kill()
    assert n_killed == 3 * N_KILLS
    done = place(home)
    assert len(done) == N_ROUNDS
    for t, answers in enumerate(done):
        for name in NAMES:
            request = request_of(t, name)
            kept = (home / name / hashlib.sha256(request).hexdigest()).read_bytes()
            assert kept[NOISE:] == drawn("answer", name, request[:9])
            assert answers[name] == hashlib.sha256(kept).hexdigest()
