"""The parts of a mailbox as real processes, which can be killed at any moment."""

import asyncio
import hashlib
import json
import multiprocessing
import os
import time
from pathlib import Path

from dpfedc.deployment.control import answered
from dpfedc.deployment.keys import SITE_KEY, SITE_PUB, Identity
from dpfedc.deployment.mailbox.https_server import serve
from dpfedc.deployment.mailbox.nats_config import Nodes
from dpfedc.deployment.mailbox.operator_side import mailbox_of
from dpfedc.deployment.mailbox.site_side import SiteLine, site_side
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.whole_files import write_whole

PATIENCE = 600.0
N_BYTES = 20_000
NOISE = 16


def drawn(*words):
    """Return bytes that depend on these words only."""
    seed = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    return hashlib.shake_256(seed).digest(N_BYTES)


def request_of(t, site):
    return b"round %d " % t + drawn("request", t, site)


def serve_folder(home):
    serve(ServerFolder.open(Path(home) / "server"), on_ready=lambda: None)


def attend_sites(home, names):
    """Be several sites. Each keeps its answers, as a ledger does: what was drawn is not redrawn."""
    home = Path(home)

    def site(name):
        folder = home / name
        identity = Identity.read(folder / SITE_KEY, folder / SITE_PUB)
        server = ServerFolder.open(home / "server")
        address = Nodes.of(server).for_sites if server.nats else f"127.0.0.1:{server.port}"
        line = SiteLine(name, address, server.authority, lambda: [identity])

        def answer_of(request):
            kept = folder / hashlib.sha256(request).hexdigest()
            if not kept.exists():
                time.sleep(0.02)  # long enough to be killed in it
                write_whole(kept, os.urandom(NOISE) + drawn("answer", name, request[:9]))
            return answered(kept.read_bytes())

        return site_side(line, answer_of, tell=lambda _: None)

    async def all_of_them():
        stop = asyncio.Event()
        await asyncio.gather(*(site(name).attend(stop) for name in names))

    asyncio.run(all_of_them())


def place(home):
    """Return how many rounds the run has behind it, and the digests of their answers."""
    file = Path(home) / "place.json"
    return json.loads(file.read_text()) if file.exists() else []


def coordinate(home, names, n_rounds):
    """Do the rounds from where the run stands; each begins when the file `permit` says so."""
    home = Path(home)
    mailbox = mailbox_of(ServerFolder.open(home / "server"))
    done = place(home)
    while len(done) < n_rounds:
        t = len(done)
        while int((home / "permit").read_text() or -1) < t:
            time.sleep(0.005)
        requests = {name: request_of(t, name) for name in names}
        got = mailbox.exchange(requests, PATIENCE)
        done.append({name: hashlib.sha256(got[name]).hexdigest() for name in names})
        write_whole(home / "place.json", json.dumps(done).encode())
    mailbox.close()


class Killable:
    """A process that is started again after each kill."""

    _context = multiprocessing.get_context("forkserver")  # or each start would import everything

    def __init__(self, work, *args):
        self._work, self._args = work, args
        self.start()

    def start(self):
        self._process = self._context.Process(target=self._work, args=self._args, daemon=True)
        self._process.start()

    def kill(self):
        """End it as a power failure would."""
        self._process.kill()
        self._process.join(PATIENCE)
        self._process.close()

    @property
    def pid(self):
        return self._process.pid

    @property
    def exit_code(self):
        return self._process.exitcode

    def is_over(self):
        return self._process.exitcode is not None


Killable._context.set_forkserver_preload(
    [
        "aiohttp.web",
        "cryptography.x509",
        "dpfedc.deployment.mailbox.https_operator",
        "dpfedc.deployment.mailbox.https_server",
        "dpfedc.deployment.mailbox.https_site",
        "dpfedc.deployment.mailbox.nats_operator",
        "dpfedc.deployment.mailbox.nats_site",
    ]
)
