"""What a round costs over HTTPS and over NATS, beside bare aiohttp doing the same, in the same run.

A server process, one process with all the sites (coroutines), and this one as the operator, all on
this machine, mutual TLS 1.3, the same number of bytes each way. Two references, neither of which
signs, checks or resends anything: the echo goes the way of ours (the operator posts, sites that
wait get their bytes, answer with them, and the operator has them back); in the short echo every
site posts bytes to the server and gets them back, and there is no operator. Over NATS the server is
one nats-server with the configuration that `dpfedc server nats-config` writes; without that program
the column is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from aiohttp import web

from dpfedc.deployment.certificates import write_site_key
from dpfedc.deployment.control import answered
from dpfedc.deployment.keys import Identity
from dpfedc.deployment.mailbox.https_calls import new_session, open_ended
from dpfedc.deployment.mailbox.nats_config import CONFIG, Nodes
from dpfedc.deployment.mailbox.operator_side import mailbox_of
from dpfedc.deployment.mailbox.site_side import SiteLine, site_side
from dpfedc.deployment.mailbox.tls import caller_context, server_context
from dpfedc.deployment.server_folder import ServerFolder

ROUNDS = {3: 30, 20: 20, 200: 7, 1000: 5}
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def federation(home: Path, n_sites: int) -> ServerFolder:
    """Return a server's folder with so many enrolled sites, whose keys are beside it."""
    folder = ServerFolder.create(home / "server", hosts=(), listen="127.0.0.1", port=free_port())
    for i in range(n_sites):
        place = home / f"s{i}"
        place.mkdir()
        write_site_key(place, f"s{i}")
        # Not `enrol`, which looks at all the others each time.
        (folder.path / "sites" / f"s{i}.pub").write_bytes((place / "site.pub").read_bytes())
    return folder


def identity(home: Path, i: int) -> Identity:
    place = home / f"s{i}"
    return Identity.read(place / "site.key", place / "site.pub")


def over_nats(folder: ServerFolder) -> ServerFolder:
    """Return the folder with one node, whose files are written."""
    nodes = Nodes.chosen(folder, [f"127.0.0.1:{free_port()}"], listen="127.0.0.1", monitoring=False)
    nodes.write()
    return nodes.folder


def nats_server() -> str | None:
    """Return the program: beside Python, or on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


def usage(pid: int) -> tuple[float, int, int]:
    """Return a process's CPU seconds, the most memory it had, and that of now, in MB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    peak, now = (int(status[name].split()[0]) // 1024 for name in ("VmHWM", "VmRSS"))
    return (int(fields[11]) + int(fields[12])) / TICKS, peak, now


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, bufsize=1
    )


# What the other processes do.


async def serve_echo(home: Path) -> None:
    """Return every body to whoever sent it."""
    folder = ServerFolder.open(home / "server")

    async def echo(request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.read())

    callers = [folder.operator.certificate, *folder.enrolled().values()]
    context = server_context(*folder.certificate_files, callers)
    waiting: dict[str, asyncio.Future[bytes]] = {}
    answers: dict[str, asyncio.Future[bytes]] = {}

    async def site(request: web.BaseRequest) -> web.Response:
        """Take an answer, and wait for the next bytes."""
        name, body = request.query["name"], await request.read()
        if body:
            answers[name].set_result(body)
        waiting[name] = asyncio.get_running_loop().create_future()
        return web.Response(body=await waiting[name])

    async def operator(request: web.BaseRequest) -> web.Response:
        """Hand out pieces of a body, and return all answers."""
        names, body = request.query["names"].split(","), await request.read()
        size, loop = len(body) // len(names), asyncio.get_running_loop()
        while any(name not in waiting or waiting[name].done() for name in names):
            await asyncio.sleep(0.001)
        for i, name in enumerate(names):
            answers[name] = loop.create_future()
            waiting[name].set_result(body[i * size : (i + 1) * size])
        return web.Response(body=b"".join([await answers[name] for name in names]))

    app = web.Application(client_max_size=2**31, handler_args={"max_line_size": 2**16})
    app.router.add_post("/", echo)
    app.router.add_post("/site", site)
    app.router.add_post("/operator", operator)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", folder.port, ssl_context=context, backlog=1024).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


async def call_echo(home: Path, n_sites: int, n_bytes: int, n_rounds: int) -> None:
    """Print the seconds of each round."""
    folder, body = ServerFolder.open(home / "server"), os.urandom(n_bytes)
    sessions = [
        new_session(caller_context(identity(home, i), folder.authority)) for i in range(n_sites)
    ]

    async def one(session) -> None:
        async with session.post(f"https://127.0.0.1:{folder.port}/", data=body) as response:
            assert await response.read() == body

    for session in sessions:  # connections stand before the clock runs
        await one(session)
    for _ in range(n_rounds):
        began = time.perf_counter()
        await asyncio.gather(*map(one, sessions))
        print(time.perf_counter() - began, flush=True)
    for session in sessions:
        await session.close()


async def wait_echo(home: Path, n_sites: int) -> None:
    """Answer all bytes with themselves, as so many sites, without more ado."""
    folder = ServerFolder.open(home / "server")

    async def one(i: int) -> None:
        context, body = caller_context(identity(home, i), folder.authority), b""
        async with new_session(context) as session:
            while True:
                url = f"https://127.0.0.1:{folder.port}/site?name=s{i}"
                async with session.post(url, data=body) as response:
                    body = await response.read()

    await asyncio.gather(*map(one, range(n_sites)))


async def ask_echo(home: Path, n_sites: int, n_bytes: int, n_rounds: int) -> list[float]:
    """Return the seconds of each round of the operator."""
    folder, body = ServerFolder.open(home / "server"), os.urandom(n_bytes * n_sites)
    names, seconds = ",".join(f"s{i}" for i in range(n_sites)), []
    context = caller_context(folder.operator, folder.authority)
    async with new_session(context) as session:
        for _ in range(n_rounds + 1):
            began = time.perf_counter()
            url = f"https://127.0.0.1:{folder.port}/operator?names={names}"
            async with session.post(url, data=body, timeout=open_ended()) as response:
                assert await response.read() == body
            seconds.append(time.perf_counter() - began)
    return seconds[1:]  # connections stand before the clock runs


async def attend_all(home: Path, n_sites: int) -> None:
    """Answer every request with itself, as so many sites."""
    folder, stop = ServerFolder.open(home / "server"), asyncio.Event()
    address = Nodes.of(folder).for_sites if folder.nats else f"127.0.0.1:{folder.port}"
    lines = []
    for i in range(n_sites):
        own = identity(home, i)
        lines.append(SiteLine(f"s{i}", address, folder.authority, lambda own=own: [own]))
    await asyncio.gather(
        *(site_side(line, answered, tell=lambda _: None).attend(stop) for line in lines)
    )


WORK = {
    "serve-echo": serve_echo,
    "call-echo": call_echo,
    "wait-echo": wait_echo,
    "attend": attend_all,
}


# What this process does.


def short_echo(home: Path, n_sites: int, n_bytes: int, n_rounds: int) -> float:
    """Return the median seconds of a round without an operator."""
    server = start("serve-echo", str(home))
    assert server.stdout is not None
    server.stdout.readline()
    sites = start("call-echo", str(home), str(n_sites), str(n_bytes), str(n_rounds))
    assert sites.stdout is not None
    seconds = [float(line) for line in sites.stdout]
    sites.wait()
    server.kill()
    server.wait()
    return statistics.median(seconds)


def echo_rounds(home: Path, n_sites: int, n_bytes: int, n_rounds: int) -> tuple[float, float, int]:
    """Return the median seconds of a round, the server's CPU seconds a round, and its peak MB."""
    server = start("serve-echo", str(home))
    assert server.stdout is not None
    server.stdout.readline()
    sites = start("wait-echo", str(home), str(n_sites))
    before = usage(server.pid)[0]
    seconds = asyncio.run(ask_echo(home, n_sites, n_bytes, n_rounds))
    cpu, peak, _ = usage(server.pid)
    for process in (sites, server):
        process.kill()
        process.wait()
    return statistics.median(seconds), (cpu - before) / (n_rounds + 1), peak


def mailbox_rounds(
    home: Path, folder: ServerFolder, n_sites: int, n_bytes: int, n_rounds: int
) -> tuple[float, float, int, int]:
    """Return the same of our mailbox, and the bytes that each site sent and received a round."""
    command, place = [sys.executable, "-m", "dpfedc", "server", "start", str(folder.path)], None
    if folder.nats:
        nodes = Nodes.of(folder)
        command, place = [str(nats_server()), "-c", CONFIG], nodes.place(nodes.nodes[0])
    server = subprocess.Popen(
        command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    sites = start("attend", str(home), str(n_sites))
    n_passed = []
    with closing(mailbox_of(folder)) as mailbox:
        mailbox.most_answer = 2 * n_bytes
        mailbox.on_delivery = lambda d: n_passed.append(d.n_sent + d.n_received)
        while sum(mailbox.online().values()) < n_sites:
            time.sleep(0.2)
        seconds, body = [], os.urandom(n_bytes - 1)
        before = usage(server.pid)[0]
        for i in range(n_rounds):
            request = body + bytes([i])
            requests = {f"s{j}": request for j in range(n_sites)}
            began = time.perf_counter()
            got = mailbox.exchange(requests, 600)
            seconds.append(time.perf_counter() - began)
            assert got == requests
        cpu, peak, _ = usage(server.pid)
    for process in (sites, server):
        process.kill()
        process.wait()
    bytes_a_round = sum(n_passed) // len(n_passed)
    return statistics.median(seconds), (cpu - before) / n_rounds, peak, bytes_a_round


def compare(n_sites: int, n_bytes: int, n_rounds: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        folder = federation(home, n_sites)
        short = short_echo(home, n_sites, n_bytes, n_rounds)
        echo, echo_cpu, echo_peak = echo_rounds(home, n_sites, n_bytes, n_rounds)
        ours, cpu, peak, passed = mailbox_rounds(home, folder, n_sites, n_bytes, n_rounds)
        nats = None
        if nats_server() is not None:
            nats = mailbox_rounds(home, over_nats(folder), n_sites, n_bytes, n_rounds)
    print(
        f"{n_sites:>5} sites x {n_bytes / 1e3:,.0f} kB: {ours:.4f} s a round; echo {echo:.4f} s, "
        f"ratio {ours / echo:.2f}; short echo {short:.4f} s, ratio {ours / short:.2f}; server CPU "
        f"{1e3 * cpu / n_sites:.2f} ms an answer (echo {1e3 * echo_cpu / n_sites:.2f}), at most "
        f"{peak} MB (echo {echo_peak}); {passed / 1e3:,.1f} kB with each site",
        flush=True,
    )
    if nats is not None:
        seconds, cpu, peak, passed = nats
        print(
            f"      over NATS: {seconds:.4f} s a round, {seconds / ours:.2f} of HTTPS; server CPU "
            f"{1e3 * cpu / n_sites:.2f} ms an answer, at most {peak} MB; "
            f"{passed / 1e3:,.1f} kB with each site",
            flush=True,
        )


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in WORK:
        what, home, *numbers = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
        asyncio.run(WORK[what](home, *numbers))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="*", default=sorted(ROUNDS))
    parser.add_argument("--kilobytes", type=int, default=64)
    parser.add_argument("--no-large", action="store_true", help="skip 20 MB at 20 sites")
    chosen = parser.parse_args()
    for n_sites in chosen.sites:
        compare(n_sites, 1024 * chosen.kilobytes, ROUNDS.get(n_sites, 5))
    if not chosen.no_large:
        compare(20, 20 * 10**6, 2)


if __name__ == "__main__":
    main()
