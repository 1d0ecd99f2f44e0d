"""Seconds of a deployed round: digits at four sites, real processes, computing included.

python benchmarks/deployed_round.py [--other PATH] [--repeats 3]

`--other` is the `dpfedc` command of another version, run in turns with this one, so that both meet
the same machine. The figures are the medians of the rounds' seconds in `run.jsonl`, without the
first round of a run, in which sites read and check what they need once.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

NAMES = ("s0", "s1", "s2", "s3")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PLAN = """
[run]
name = "digits"
coordinator = "benchmark"
clusters = 10
features = {features}
[privacy]
epsilon = 20
delta = 1e-5
noise = "secure"
norm_bound = 80.0
[rounds]
rounds = 10
deadline = 300
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def seconds_of_rounds(command: list[str], home: Path) -> list[float]:
    """Return what each round of a run took, with this command."""

    def call(*words: object) -> None:
        subprocess.run([*command, *map(str, words)], check=True, env=ENVIRONMENT,
                       stdout=subprocess.DEVNULL)  # fmt: skip

    def start(*words: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, *map(str, words)], env=ENVIRONMENT,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    digits = load_digits().data
    place = np.random.default_rng(0).integers(len(NAMES), size=len(digits))
    features, port = [f"p{i}" for i in range(digits.shape[1])], free_port()
    (home / "plan.toml").write_text(PLAN.format(features=json.dumps(features)))
    call("server", "init", home / "server", "--listen", "127.0.0.1", "--port", port)
    for i, name in enumerate(NAMES):
        np.savetxt(home / f"{name}.csv", digits[place == i], fmt="%g", delimiter=",", comments="",
                   header=",".join(features))  # fmt: skip
        call("site", "init", home / name, "--name", name, "--data", home / f"{name}.csv",
             "--server", f"127.0.0.1:{port}", "--ca", home / "server" / "ca.crt",
             "--cap-epsilon", 1000, "--cap-delta", 1e-3)  # fmt: skip
        call("server", "enrol", home / "server", home / name / "site.pub")
    running = [start("server", "start", home / "server")]
    time.sleep(3)
    running += [start("site", "start", home / name, "--accept") for name in NAMES]
    try:
        call("run", "start", home / "plan.toml", "--server", home / "server", "--wait", 300)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    (record,) = (home / "server" / "runs").glob("*/run.jsonl")
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    return [entry["seconds"] for entry in entries if "seconds" in entry][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", help="the dpfedc command of another version")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    commands = {"this version": [sys.executable, "-m", "dpfedc"]}
    if chosen.other:
        commands["the other"] = [chosen.other]
    medians: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(chosen.repeats):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as home:
                medians[name].append(statistics.median(seconds_of_rounds(command, Path(home))))
            print(f"{name}: {medians[name][-1]:.4f} s a round", flush=True)
    found = {name: statistics.median(values) for name, values in medians.items()}
    for name, value in found.items():
        print(f"median of {chosen.repeats} runs, {name}: {value:.4f} s a round")
    if chosen.other:
        print(f"ratio: {found['this version'] / found['the other']:.3f}")


if __name__ == "__main__":
    main()
