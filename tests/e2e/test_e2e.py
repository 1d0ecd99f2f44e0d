"""Real processes, TLS and keys between them: one server and four sites with the digits."""

import asyncio
import contextlib
import csv
import json
import os
import re
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.control import answered
from dpfedc.deployment.mailbox.https_operator import HttpsMailbox
from dpfedc.deployment.mailbox.https_site import HttpsSite
from dpfedc.deployment.mailbox.site_side import SiteLine
from dpfedc.deployment.messages import packed
from dpfedc.deployment.runs import stored_agreement
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.engine.run_record import RunRecord
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.ledger import Ledger
from processes import ENVIRONMENT, PATIENCE, Federation, Listener, wait_until
from support.deployment import in_one_process
from support.ports import reserved_port

pytestmark = pytest.mark.e2e

NAMES = ("s0", "s1", "s2", "s3")
FEATURES = [f"p{i}" for i in range(64)]


def dealt():
    """Return the digits of each site."""
    X = load_digits().data
    site = np.random.default_rng(0).integers(len(NAMES), size=len(X))
    return {name: X[site == i] for i, name in enumerate(NAMES)}


def write_sites(home):
    """Write the sites' records, each in another way; return what `site init` is told of them."""
    parts = dealt()
    for name in NAMES[:2]:
        np.savetxt(home / f"{name}.csv", parts[name], fmt="%g", delimiter=",", comments="",
                   header=",".join(FEATURES))  # fmt: skip
    np.savez(home / "s2.npz", X=parts["s2"], feature_names=np.array(FEATURES))
    with sqlite3.connect(home / "s3.db") as database:
        columns = ",".join(f"{name} REAL" for name in FEATURES)
        database.execute(f"CREATE TABLE digits (id INTEGER PRIMARY KEY, {columns})")
        places = ",".join("?" * 64)
        rows = parts["s3"].tolist()
        database.executemany(f"INSERT INTO digits VALUES (NULL, {places})", rows)
    database.close()
    return {
        "s0": (home / "s0.csv",),
        "s1": (home / "s1.csv",),
        "s2": (home / "s2.npz",),
        "s3": (f"sqlite:///{home / 's3.db'}", "--table", "digits"),
    }


def plan_file(home, name, *, rounds=3, noise="simulated", deadline=PATIENCE, min_answers=2):
    path = home / f"{name}.toml"
    path.write_text(
        f'[run]\nname = "{name}"\ncoordinator = "test"\nclusters = 10\nfeatures = {FEATURES}\n'
        f'seed = 7\n[privacy]\nepsilon = 20\ndelta = 1e-5\nnoise = "{noise}"\nnorm_bound = 80.0\n'
        f"[rounds]\nrounds = {rounds}\ndeadline = {deadline}\nmin_answers = {min_answers}\n"
    )
    return path


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    home = tmp_path_factory.mktemp("federation")
    made = Federation(home)
    listener = Listener(made.port)
    for name, (data, *more) in write_sites(home).items():
        made.add(name, data, *more, port=listener.port if name == "s0" else None)
    made.listener = listener
    made.start("server")
    for name in NAMES:
        made.start(name, "--accept", "--allow-simulated")
    yield made
    made.close()
    listener.close()


def agreement_of(federation):
    return stored_agreement(ServerFolder.open(federation.home / "server"), "")


def folder_of(federation, agreement):
    return federation.home / "server" / "runs" / agreement.digest


def assert_as_in_one_process(federation, agreement):
    model = ClusterModel.read(folder_of(federation, agreement) / "model.npz")
    expected = in_one_process(agreement, dealt().values())
    assert isinstance(agreement, Agreement)
    np.testing.assert_allclose(model.cluster_centers, expected.cluster_centers, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.directions, expected.directions, rtol=0, atol=1e-6)


def spent(federation, name, agreement):
    """Return for each stage the rounds that were charged, planned without spares, answered."""
    with Ledger.open(federation.home / name / "ledger.sqlite") as ledger:
        stages = [s for s in ledger.totals().stages if s.run == agreement.digest]
    spare = {r.stage: r.spare_rounds for r in agreement.privacy.releases}
    return {s.stage: (s.n_charged, s.n_planned - spare[s.stage], s.n_answered) for s in stages}


def test_a_run_gives_the_same_centers_as_in_one_process(federation):
    listener = federation.listener
    running = federation.run("start", plan_file(federation.home, "simulated"))
    running.says("Accepted by 4 of 4 sites")
    before = len(listener.up), len(listener.down)
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    assert_as_in_one_process(federation, agreement)
    record = RunRecord.read(folder_of(federation, agreement) / "run.jsonl")
    seconds = [entry.seconds for entry in record.rounds]
    up, down = (len(listener.up) - before[0], len(listener.down) - before[1])
    print(
        f"\n{len(seconds)} rounds, {statistics.median(seconds):.2f} s in the middle, at most "
        f"{max(seconds):.2f}; one site sent {up / len(seconds):.0f} and received "
        f"{down / len(seconds):.0f} bytes per round, the model's publication included"
    )


def test_a_run_with_secure_noise_ends_with_labels_at_the_site(federation):
    running = federation.run("start", plan_file(federation.home, "secure", noise="secure"))
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    assert agreement.noise == "secure"
    for name in NAMES:
        counts = spent(federation, name, agreement)
        assert all(charged == planned == answered for charged, planned, answered in counts.values())
    labels = federation.home / "labels.csv"
    federation.call(
        "site", "labels", federation.home / "s3", "--run", agreement.digest[:12], "-o", labels
    )
    with labels.open() as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == len(dealt()["s3"])
    assert len({row[2] for row in rows}) > 1
    status = federation.call("site", "status", federation.home / "s3")
    assert "secure" in status
    assert "finished" in status


def test_a_killed_site_comes_back_into_the_run(federation):
    """It misses no round but one that it had charged and not answered when it was killed."""
    running = federation.run("start", plan_file(federation.home, "killed site", rounds=8))
    running.says("factorisation 2/8")
    federation.running["s2"].kill()
    federation.start("s2", "--accept", "--allow-simulated").says("connected to")
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    counts = spent(federation, "s2", agreement)
    assert all(charged == planned for charged, planned, _ in counts.values())
    lost = sum(charged - answered for charged, _, answered in counts.values())
    rounds = [line for line in running.text.splitlines() if line.startswith("Round ")]
    assert len(rounds) == agreement.plan.n_rounds
    assert sum("4 of 4 sites answered" not in line for line in rounds) == lost <= 1
    if not lost:
        assert_as_in_one_process(federation, agreement)


def test_a_killed_server_and_a_killed_run_cost_nothing(federation):
    """The centres are those of an undisturbed run: no round was lost, none done twice."""
    plan = plan_file(federation.home, "killed server", rounds=8, min_answers=4)
    running = federation.run("start", plan)
    running.says("factorisation 2/8")
    federation.running["server"].kill()
    federation.start("server").says("Listening")
    running.says("factorisation 5/8")
    running.kill()
    resumed = federation.run("resume")
    assert resumed.result() == 0, resumed.text
    assert "factorisation 2/8" not in resumed.text
    agreement = agreement_of(federation)
    assert agreement.name == "killed server"
    assert_as_in_one_process(federation, agreement)
    for name in NAMES:
        counts = spent(federation, name, agreement)
        assert all(charged == planned == answered for charged, planned, answered in counts.values())


def test_a_run_that_is_interrupted_says_in_a_line_how_it_goes_on(federation):
    """Wherever it is: one round waits for a site, and others are under way."""
    # So many that it has not come to the second place before it is stopped at the first.
    plan = plan_file(federation.home, "interrupted", rounds=300, min_answers=4)
    words = ("start", plan)
    for shown, stopped in (("factorisation 1/300", "s1"), ("factorisation 100/300", None)):
        running = federation.run(*words)
        running.says(shown)
        if stopped:
            federation.running[stopped].send(signal.SIGSTOP)
            time.sleep(1)
        running.send(signal.SIGINT)
        assert running.result() == 130, running.text
        if stopped:
            federation.running[stopped].send(signal.SIGCONT)
        run = agreement_of(federation).digest[:12]
        last = f"dpfedc: interrupted; go on with: dpfedc run resume {run} --server "
        assert [line for line in running.text.splitlines() if not line.startswith("Round ")][
            -1
        ] == f"{last}{federation.home / 'server'}"
        assert "Traceback" not in running.text
        assert "never awaited" not in running.text
        words = ("resume", run)
    assert federation.run("resume").result() == 0


def test_a_site_that_is_not_enrolled_is_turned_away_until_it_is(federation):
    federation.add("stranger", federation.home / "s0.csv", enrol=False)
    stranger = federation.start("stranger", "--accept")
    stranger.says("its operator must enrol site.pub")
    status = json.loads(federation.call("server", "status", federation.home / "server", "--json"))
    assert "stranger" not in status["sites"]
    assert status["running"]["refused"]["callers"] > 0
    folder = federation.home / "server"
    federation.call("server", "enrol", folder, federation.home / "stranger" / "site.pub")
    stranger.says("connected to")
    federation.call("server", "remove", folder, "stranger")
    wait_until(lambda: "was lost" in stranger.text, what="the cut connection")
    assert not stranger.ended
    stranger.close()


def test_a_server_of_another_authority_is_turned_away(federation, tmp_path):
    federation.call("server", "init", tmp_path / "other", "--listen", "127.0.0.1")
    federation.add("doubter", federation.home / "s0.csv", authority=tmp_path / "other" / "ca.crt")
    doubter = federation.start("doubter")
    doubter.says("must come from the authority in ca.crt")
    assert not doubter.ended
    doubter.close()
    federation.call("server", "remove", federation.home / "server", "doubter")


def test_a_key_is_exchanged_and_certificates_renewed_while_a_run_is_under_way(federation):
    running = federation.run("start", plan_file(federation.home, "rotation", rounds=12))
    running.says("factorisation 2/12")
    server = federation.home / "server"
    federation.call("site", "rotate-key", federation.home / "s1")
    federation.call("server", "enrol", server, federation.home / "s1" / "next" / "site.pub")
    federation.call("server", "renew", server)
    wait_until(lambda: not (federation.home / "s1" / "next").exists(), what="the new key")
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    assert_as_in_one_process(federation, agreement)
    for name in NAMES:
        counts = spent(federation, name, agreement)
        assert all(charged == planned == answered for charged, planned, answered in counts.values())


def test_a_second_server_on_the_folder_says_so(federation):
    said = federation.call("server", "start", federation.home / "server", code=2)
    assert "another process serves" in said


def test_who_listens_in_reads_nothing(tmp_path):
    """The listener sees the array if it passes in plain, so it would have seen it with TLS."""
    federation = Federation(tmp_path)
    listener = Listener(federation.port)
    records = tmp_path / "records.csv"
    records.write_text("x\n1\n2\n")
    federation.add("site", records, port=listener.port)
    array = np.full(1000, 1234.5678)
    request = packed({"kind": "test"}, {"array": array})
    folder = SiteFolder.open(tmp_path / "site")
    line = SiteLine("site", folder.server, folder.authority, folder.identities)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    site = threading.Thread(
        target=loop.run_until_complete,
        args=(HttpsSite(line, answered, tell=lambda _: None).attend(stop),),
        daemon=True,
    )
    try:
        federation.start("server").says("Listening")
        site.start()
        with contextlib.closing(HttpsMailbox(ServerFolder.open(tmp_path / "server"))) as mailbox:
            wait_until(lambda: mailbox.online()["site"], what="the site")
            assert mailbox.exchange({"site": request}, PATIENCE) == {"site": request}
        for seen in (listener.up, listener.down):
            assert len(seen) > array.nbytes
            assert array[:4].tobytes() not in seen
        with socket.create_connection(("127.0.0.1", listener.port)) as plain:
            plain.sendall(request)
            wait_until(lambda: array.tobytes() in listener.up, what="the control")
    finally:
        loop.call_soon_threadsafe(stop.set)
        site.join(PATIENCE)
        loop.close()
        federation.close()
        listener.close()


def test_the_commands_of_the_docs_do_what_they_say(tmp_path):
    """All commands of "Try it on one machine", as they stand there but for the port."""
    docs = Path(__file__).parents[2] / "docs" / "deployment.md"
    section = docs.read_text().split("## Try it on one machine")[1].split("\n## ")[0]
    commands = "".join(re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL))
    assert commands.count("dpfedc ") > 8
    port, keeper = reserved_port()
    for words, on_our_port in (
        ("server init server ", f"server init server --port {port} "),
        ("localhost:8470", f"localhost:{port}"),
    ):
        assert commands.count(words) == 1
        commands = commands.replace(words, on_our_port)
    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    with keeper, (tmp_path / "out").open("w") as out:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", commands],
            cwd=tmp_path,
            env={**ENVIRONMENT, "PATH": path},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(2 * PATIENCE)
        finally:  # whatever failed, the server and the sites do not outlive the test
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    said = (tmp_path / "out").read_text()
    assert code == 0, said
    for words in ("as expected", "Accepted run", "Sites that have the model: north, south, west"):
        assert words in said
    assert len((tmp_path / "north-labels.csv").read_text().splitlines()) == 3001
    (model,) = (tmp_path / "server" / "runs").glob("*/model.npz")
    centers = ClusterModel.read(model).cluster_centers
    true = np.array([[25, 110, 60], [50, 150, 90], [75, 130, 70]])
    nearest = np.linalg.norm(true[:, None] - centers[None], axis=2).min(axis=1)
    assert nearest.max() < 5
