"""A mailbox on this machine: a server, sites and operators, any of which can be killed."""

import asyncio
import threading
import time

from dpfedc.deployment.certificates import write_site_key
from dpfedc.deployment.control import answered
from dpfedc.deployment.keys import SITE_KEY, SITE_PUB, Identity, read_certificate
from dpfedc.deployment.mailbox import (
    https_operator,
    https_server,
    https_site,
    nats_operator,
    site_side,
)
from dpfedc.deployment.mailbox.https_operator import HttpsMailbox
from dpfedc.deployment.mailbox.https_server import HttpsServer
from dpfedc.deployment.mailbox.mailbox import MAX_LETTER
from dpfedc.deployment.mailbox.site_side import SiteLine
from dpfedc.deployment.server_folder import ServerFolder
from support.ports import reserved_port

PATIENCE = 60.0
"""Seconds. It bounds a hang; nothing is expected to take so long."""


def quickly(monkeypatch):
    """Shorten what both sides wait before they try again."""
    monkeypatch.setattr(https_server, "LOOK_S", 0.02)
    for operator in (https_operator, nats_operator):
        monkeypatch.setattr(operator, "AGAIN_S", 0.05)
    monkeypatch.setattr(nats_operator, "WAIT_S", 0.3)
    monkeypatch.setattr(nats_operator, "SLACK_S", 0.3)
    monkeypatch.setattr(site_side, "SHORTEST_PAUSE_S", 0.05)
    monkeypatch.setattr(site_side, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(https_site, "HASTE_S", 0.05)


def wait_until(there, *, what="it"):
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.01)


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self.complaints = []
        self._loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, work):
        """Let a coroutine run, and return its task."""

        async def started():
            return asyncio.create_task(work)

        return self.call(started())

    def call(self, work):
        """Return what a coroutine returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def end(self, task):
        """Cancel a task, and return when it has ended."""

        async def ended():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.call(ended())

    def close(self):
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert self.complaints == [], self.complaints

    async def _end(self):
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
        await asyncio.sleep(0.05)  # connections that were aborted are closed a moment later


class World:
    """Everything of one federation but what is between its parts."""

    signed = False

    def __init__(self, home, **settings):
        self.home = home
        self.port, keeper = reserved_port()
        self._keepers = [keeper]
        self.folder = ServerFolder.create(
            home / "server", hosts=(), listen="127.0.0.1", port=self.port, **settings
        )
        self.loop = Loop()
        self._attending, self._operators, self.told = {}, [], {}

    # Who is known.

    def place(self, name, place=None):
        return self.home / name if place is None else self.home / name / place

    def new_site(self, name, place=None):
        """Make a site's key; with a `place` the one that is to follow."""
        before = None if place is None else self.identity(name)
        folder = self.place(name, place)
        folder.mkdir(parents=True)
        write_site_key(folder, name, before=before)
        self.told.setdefault(name, [])

    def identity(self, name, place=None):
        folder = self.place(name, place)
        return Identity.read(folder / SITE_KEY, folder / SITE_PUB)

    def authority(self):
        return read_certificate(self.folder.authority.read_bytes())

    def enrol(self, name, place=None):
        self.folder.enrol((self.place(name, place) / SITE_PUB).read_text(), name)

    def remove(self, name):
        self.folder.remove(name)

    def renew(self):
        self.folder.renew()

    # Who is there.

    def line(self, name, *, identities=None, **changes):
        def mine():
            next_one = self.place(name, "next")
            known = [self.identity(name)]
            return [self.identity(name, "next"), *known] if next_one.exists() else known

        settings = {"address": self.address} | changes
        return SiteLine(
            name, authority=self.folder.authority, identities=identities or mine, **settings
        )

    def start_site(self, name, answer_of=answered, *, there=True, **changes):
        """Start a site that answers so, and wait until it is connected."""
        site = site_side.site_side(
            self.line(name, **changes), answer_of, tell=self.told[name].append
        )
        self.told[name].clear()
        stop = asyncio.Event()
        self._attending[name] = self.loop.start(site.attend(stop)), stop
        if there:
            wait_until(lambda: self.is_connected(name), what=name)

    def is_connected(self, name):
        return any(text.startswith("connected") for text in self.told[name])

    def stop_site(self, name):
        """End a site as a power failure would."""
        self.loop.end(self._attending.pop(name)[0])

    def told_to_stop(self, name):
        """Tell a site to stop, and return when it has."""
        attending, stop = self._attending.pop(name)

        async def told():
            stop.set()
            await attending

        self.loop.call(told())

    def is_alive(self, name):
        return not self._attending[name][0].done()

    def refused(self):
        """Return what the log of refused callers says."""
        file = self.folder.path / "refused.log"
        return file.read_text() if file.exists() else ""

    def close(self):
        for mailbox in self._operators:
            mailbox.close()
        self.loop.close()
        for keeper in self._keepers:
            keeper.close()


class HttpsWorld(World):
    """Everything of one federation over HTTPS; `signed`: sites call by the port for proxies."""

    def __init__(self, home, names=("berlin", "geneva", "lisbon"), *, signed=False):
        self.signed_port, other = reserved_port()
        super().__init__(home, signed_port=self.signed_port)
        self.signed = signed
        self._keepers.append(other)
        self.server, self._serving = None, None
        for name in names:
            self.new_site(name)
            self.enrol(name)

    @property
    def address(self):
        return f"127.0.0.1:{self.signed_port if self.signed else self.port}"

    def line(self, name, **changes):
        trusted = {"proxy_authority": self.folder.authority} if self.signed else {}
        return super().line(name, **{**trusted, **changes})

    def start_server(self):
        ready = threading.Event()
        self.server = HttpsServer(self.folder)
        self._serving = self.loop.start(self.server.serve(ready.set))
        assert ready.wait(PATIENCE)

    def stop_server(self):
        self.loop.end(self._serving)
        self._serving = None

    def operator(self, most_answer=MAX_LETTER):
        mailbox = HttpsMailbox(self.folder)
        mailbox.most_answer = most_answer
        self._operators.append(mailbox)
        return mailbox

    def counts(self):
        return self.server._office.counts()


class InBackground:
    """A call in a thread of its own, whose result is wanted later."""

    def __init__(self, call, *args):
        self._result = None
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(call, *args), daemon=True)
        self._thread.start()

    def _run(self, call, *args):
        try:
            self._result = call(*args)
        except BaseException as error:
            self._error = error

    @property
    def done(self):
        return not self._thread.is_alive()

    def result(self):
        self._thread.join(PATIENCE)
        assert self.done, "it does not end"
        if self._error is not None:
            raise self._error
        return self._result
