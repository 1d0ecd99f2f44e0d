"""Seconds of a deployed round with secure aggregation, beside the same round with local trust.

python benchmarks/secure_round.py [--sites 4 20 100] [--repeats 3] [--output results/bench]

A server process, two processes that host all the sites (each with its own folder, key, ledger and
frozen records, and calls of its own over mutual TLS 1.3), and this one as the coordinator, all on
one machine. The digits are dealt to the sites; dp-fedc, secure noise. Runs of both trusts take
turns; of each run the first round, in which sites check once what they need, is left out.

All sites share the machine's cores here, so seconds grow with their number; on machines of their
own they would not. `crypto` is processor time in keys, boxes, masks, shares and signatures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, write_json
from sklearn.datasets import load_digits
from wire import free_port

from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.mailbox.https_operator import HttpsMailbox
from dpfedc.deployment.mailbox.https_site import HttpsSite
from dpfedc.deployment.mailbox.site_side import SiteLine
from dpfedc.deployment.peers import PinnedPeers
from dpfedc.deployment.runs import acceptances, await_sites, proposal, run_folder
from dpfedc.deployment.secure_aggregation.masks import Bundle
from dpfedc.deployment.secure_aggregation.server_round import SecretSum
from dpfedc.deployment.secure_aggregation.site_round import SiteRound
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import SiteService
from dpfedc.privacy.ledger import GaussianCap

TRUSTS = ("local", "secure-aggregation")
PROCESSES, PATIENCE = 2, 600.0
AT_SITES = {SiteRound: ("__post_init__", "shares", "receive", "masked", "agreed", "opened")}
AT_COORDINATOR = {SecretSum: ("opened",), Bundle: ("is_of", "require_good")}
FEATURES = [f"p{i}" for i in range(64)]
PLAN = """
[run]
name = "run {n}"
coordinator = "benchmark"
clusters = 10
features = {features}
[privacy]
epsilon = 20
delta = 1e-5
norm_bound = 80.0
trust = "{trust}"
[rounds]
rounds = 10
"""


def clocked(methods: dict[Any, tuple[str, ...]]) -> list[float]:
    """Return a list that takes up the processor seconds of each call of these methods."""
    taken: list[float] = []

    def clock(method: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*args, **more)
            finally:
                taken.append(time.thread_time() - began)

        return call

    for kind, names in methods.items():
        for name in names:
            setattr(kind, name, clock(getattr(kind, name)))
    return taken


async def attend(home: Path, first: int, n_sites: int) -> None:
    """Be every PROCESSES-th site until told to stop; then write what cryptography took."""
    crypto, stop, sites = clocked(AT_SITES), asyncio.Event(), []
    worker = ThreadPoolExecutor(1)  # a ledger is used by one thread alone
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    for i in range(first, n_sites, PROCESSES):
        own = SiteFolder.open(home / f"s{i}")
        service = worker.submit(SiteService, own, accept=True).result()
        most = service.most_bytes
        line = SiteLine(own.name, own.server, own.authority, own.identities, most_bytes=most)
        sites.append(HttpsSite(line, service.reply, tell=lambda _: None, executor=worker))
    await asyncio.gather(*(site.attend(stop) for site in sites))
    (home / f"crypto{first}").write_text(str(sum(crypto)))


def federation(home: Path, parts: Sequence[Any], features: Sequence[str]) -> ServerFolder:
    """Return a server's folder with an enrolled site for each part, whose folder is beside it."""
    server = ServerFolder.create(home / "server", hosts=(), listen="127.0.0.1", port=free_port())
    for i, part in enumerate(parts):
        data = home / f"s{i}.npz"
        np.savez(data, X=part, feature_names=np.array(features))
        folder = SiteFolder.create(
            home / f"s{i}", name=f"s{i}", server=f"127.0.0.1:{server.port}",
            authority=server.authority, data={"path": str(data)}, records=len(part),
            cap=GaussianCap(1000.0, 1e-3), holding=f"s{i}",
        )  # fmt: skip
        # Not `enrol`, which looks at all the others each time.
        public = (folder.path / "site.pub").read_bytes()
        (server.path / "sites" / f"s{i}.pub").write_bytes(public)
    return server


@contextmanager
def running(home: Path, n_sites: int) -> Iterator[None]:
    """Let the server and the sites run in processes of their own."""
    commands = [["-m", "dpfedc", "server", "start", str(home / "server")]]
    commands += [[__file__, "attend", str(home), str(i), str(n_sites)] for i in range(PROCESSES)]
    env, quiet = {**os.environ, "OMP_NUM_THREADS": "1"}, subprocess.DEVNULL
    started = [subprocess.Popen([sys.executable, *c], env=env, stdout=quiet) for c in commands]
    try:
        yield
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def deployed(server: ServerFolder, mailbox: HttpsMailbox, text: str, passed: list[Any]) -> Any:
    """Return what a plan comes to at all enrolled sites, which accept it by themselves."""
    plan, names = server.path / "plan.toml", sorted(server.enrolled())
    plan.write_text(text)
    agreement, heads = proposal(server, mailbox, plan, names), KeptHeads(server.path)
    if agreement.is_masked:
        for name in names:
            PinnedPeers(server.path.parent / name).pin_roster(agreement, name)
    path = run_folder(server, agreement)
    acceptances(mailbox, agreement, PATIENCE, folder=path, heads=heads)
    mailbox.on_delivery, mailbox.most_answer = passed.append, agreement.max_message_bytes
    finished = Coordinator(agreement, mailbox, path, key=server.receipt_key, heads=heads).run()
    mailbox.on_delivery = lambda _: None
    return finished


def one_run(server: ServerFolder, mailbox: HttpsMailbox, trust: str, n: int) -> Any:
    """Return the rounds' seconds, and the bytes to and from a site in a round."""
    passed: list[Any] = []
    names, text = server.enrolled(), PLAN.format(n=n, features=json.dumps(FEATURES), trust=trust)
    rounds = deployed(server, mailbox, text, passed).record.rounds
    assert all(entry.n_sites == len(names) and not entry.lost for entry in rounds)
    each = len(names) * len(rounds)
    sent, received = (sum(getattr(d, what) for d in passed) for what in ("n_sent", "n_received"))
    return [entry.seconds for entry in rounds], sent / each, received / each


def compared(n_sites: int, repeats: int, crypto: list[float]) -> dict[str, Any]:
    """Return what both trusts cost with so many sites."""
    seconds: dict[str, list[float]] = {trust: [] for trust in TRUSTS}
    found: dict[str, Any] = {"sites": n_sites}
    crypto.clear()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        server = federation(home, np.array_split(load_digits().data, n_sites), FEATURES)
        with running(home, n_sites), closing(HttpsMailbox(server)) as mailbox:
            await_sites(mailbox, sorted(server.enrolled()), PATIENCE)
            for n in range(repeats):
                for trust in TRUSTS:
                    taken, sent, received = one_run(server, mailbox, trust, n)
                    seconds[trust] += taken[1:]
                    found |= {f"{trust} bytes to": sent, f"{trust} bytes from": received}
        at_sites = sum(float((home / f"crypto{i}").read_text()) for i in range(PROCESSES))
    local, secure = (statistics.median(seconds[trust]) for trust in TRUSTS)
    n_rounds = repeats * len(taken)
    at_sites, opening = at_sites / n_rounds, sum(crypto) / n_rounds
    found |= {"local_s": local, "secure_s": secure, "ratio": secure / local}
    found |= {"crypto_ms_a_site": 1e3 * at_sites / n_sites, "crypto_ms_coordinator": 1e3 * opening}
    return {**found, "crypto_part": (at_sites / PROCESSES + opening) / secure}


def main() -> None:
    if sys.argv[1:2] == ["attend"]:
        asyncio.run(attend(Path(sys.argv[2]), *map(int, sys.argv[3:])))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, nargs="*", default=[4, 20, 100])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    chosen, crypto, rows = parser.parse_args(), clocked(AT_COORDINATOR), []
    for n_sites in chosen.sites:
        rows.append(compared(n_sites, chosen.repeats, crypto))
        print("; ".join(f"{k} {v:.4g}" for k, v in rows[-1].items()), flush=True)
    write_json(chosen.output / "secure_round.json", {"machine": machine(), "rounds": rows})


if __name__ == "__main__":
    main()
