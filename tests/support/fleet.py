"""A server and sites in one process: the real calls of Flower's Fleet API, without a network."""

import sqlite3
import threading
import warnings
from contextlib import closing

from dpfedc.deployment.flower.fleet_client import FleetClient
from dpfedc.deployment.flower.fleet_server import fleet_app
from dpfedc.deployment.flower.store import Store
from dpfedc.deployment.flower.transport import FlowerTransport
from dpfedc.deployment.keys import read_site_key, write_site_key
from dpfedc.deployment.server_folder import ServerFolder

with warnings.catch_warnings():  # it wants a package that Flower does not use
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

PATIENCE = 120.0
"""Seconds. It bounds a hang; nothing that works takes so long, even on a busy machine."""
_EMPTY = []
"""A new store as Flower makes it, which takes a second or two."""


class Fleet:
    """An enrolled site for each name, and what each of them called."""

    def __init__(self, folder, names=()):
        self.home = folder
        self.folder = ServerFolder.create(
            folder / "server", hosts=(), listen="127.0.0.1", port=8470
        )
        if _EMPTY:
            self.folder.database.write_bytes(_EMPTY[0])
        else:
            Store(self.folder)
            with closing(sqlite3.connect(self.folder.database)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all is in the one file then
            _EMPTY.append(self.folder.database.read_bytes())
        for name in names:
            self.enrol(name)
        self.transport = FlowerTransport(self.folder)
        self.store = self.transport._store
        self.web = TestClient(fleet_app(self.store), raise_server_exceptions=False)
        self.calls = []
        self._threads = []

    def close(self):
        """Let the sites go."""
        for thread in self._threads:
            thread.stop.set()
            thread.join(PATIENCE)

    def key(self, name):
        path = self.home / name
        if not path.exists():
            path.mkdir()
            write_site_key(path, name)
        return read_site_key(path / "site.key")

    def enrol(self, name):
        self.key(name)
        self.folder.enrol(name, (self.home / name / "site.pub").read_text())

    def client(self, name):
        """Return a site's connection, which ends in this process."""
        client = FleetClient("testserver", self.key(name), authority=None)
        client._calls.close()
        client._calls._client = self.web
        made = client._call

        def call(what, request):
            self.calls.append((name, what))
            return made(what, request)

        client._call = call
        return client

    def answering(self, name, reply, *, n_requests=1):
        """Start a site that answers so many requests; return its thread."""

        def work():
            with self.client(name).session() as session:
                ready.set()
                for _ in range(n_requests):
                    while (fetched := session.fetch()) is None:
                        if stop.wait(0.01):
                            return
                    envelope, request = fetched
                    session.send(envelope, request, reply(request))
                # Flower drops the answer of a site that leaves before it is taken out.
                stop.wait()

        ready, stop = threading.Event(), threading.Event()
        thread = threading.Thread(target=work, daemon=True)
        thread.stop = stop
        self._threads.append(thread)
        thread.start()
        assert ready.wait(PATIENCE)
        return thread
