"""A federation of real processes on this machine: a server, sites, and a listener in between."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support.nats_worlds import NO_SERVER, NodeProcess, nats_server, node_ports
from support.ports import reserved_port

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
PATIENCE = 600.0
"""Seconds. It bounds a hang; a busy machine takes a minute to start all processes."""


def wait_until(there, *, what):
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.05)


class Process:
    """A command of dpfedc that runs on, with its output in a file."""

    def __init__(self, words, log):
        self.log = Path(log)
        self._file = self.log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dpfedc", *map(str, words)],
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
        )

    @property
    def text(self):
        return self.log.read_text()

    def says(self, words):
        wait_until(lambda: words in self.text or self.ended, what=f"{words!r} in {self.log}")
        assert words in self.text, self.text

    @property
    def ended(self):
        return self._process.poll() is not None

    def result(self):
        code = self._process.wait(PATIENCE)
        self._file.close()
        return code

    def kill(self):
        """End it as a power failure would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._file.close()

    def send(self, number):
        """Send it a signal."""
        self._process.send_signal(number)

    def close(self):
        if not self.ended:
            self._process.terminate()
            assert self._process.wait(PATIENCE) in (0, -signal.SIGTERM), self.text
        self._file.close()


class Listener:
    """A TCP proxy on a port of its own, which keeps all bytes that pass, in both directions."""

    def __init__(self, port):
        self._target = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.up, self.down = bytearray(), bytearray()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                site, _ = self._door.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                site.close()
                continue
            for ends in ((site, server, self.up), (server, site, self.down)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    @staticmethod
    def _pass_on(source, sink, kept):
        try:
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()

    def close(self):
        self._door.close()


class Federation:
    """A server with sites, set up and run by the commands that operators type."""

    def __init__(self, home):
        self.home = Path(home)
        self.port, self._keeper = reserved_port()
        self.running = {}
        self.call("server", "init", self.home / "server", "--listen", "127.0.0.1",
                  "--port", self.port)  # fmt: skip

    def address(self, port=None):
        """Return what a site calls."""
        return f"127.0.0.1:{port or self.port}"

    def call(self, *words, code=0):
        """Run a command to its end and return what it said."""
        done = subprocess.run(
            [sys.executable, "-m", "dpfedc", *map(str, words)],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def add(self, name, data, *more, enrol=True, port=None, authority=None):
        """Make a site and enrol it."""
        trust = ("--ca", authority or self.home / "server" / "ca.crt")
        self.call("site", "init", self.home / name, "--name", name, "--data", data, *more, *trust,
                  "--server", self.address(port), "--cap-epsilon", 1000,
                  "--cap-delta", 1e-3)  # fmt: skip
        if enrol:
            self.call("server", "enrol", self.home / "server", self.home / name / "site.pub")

    def start(self, name, *more):
        """Start the server, or a site."""
        command = ("server", "start") if name == "server" else ("site", "start")
        self.running[name] = Process((*command, self.home / name, *more), self.home / f"{name}.log")
        return self.running[name]

    def run(self, *words):
        """Start a run; it goes on while the test does something else."""
        self.running["run"] = Process(
            ("run", *words, "--server", self.home / "server", "--wait", PATIENCE),
            self.home / "run.log",
        )
        return self.running["run"]

    def close(self):
        for process in reversed(self.running.values()):
            process.close()
        self._keeper.close()


class NatsFederation(Federation):
    """The same over NATS: its servers are nodes of a cluster."""

    def __init__(self, home, n_nodes=3):
        if nats_server() is None:
            pytest.skip(NO_SERVER)
        super().__init__(home)
        ports, self._node_keepers = node_ports(n_nodes)
        self._addresses = [f"127.0.0.1:{port}" for port in ports]
        nodes = [word for address in self._addresses for word in ("--node", address)]
        self.call("server", "nats-config", self.home / "server", "--listen", "127.0.0.1", *nodes)
        places = (self.home / "server" / "nats" / a.replace(":", "-") for a in self._addresses)
        self.nodes = [NodeProcess(place) for place in places]

    def address(self, port=None):
        return "nats://" + ",".join(self._addresses)

    def start_nodes(self):
        for node in self.nodes:
            node.start()

    def close(self):
        try:
            super().close()
        finally:
            for node in self.nodes:
                node.kill()
            for keeper in self._node_keepers:
                keeper.close()
