"""The README's headline, deployed: MNIST at 100 sites with secure aggregation, and its accuracy.

python benchmarks/secure_headline.py [--epsilon 1] [--seed 0] [--output results/bench]

The same records as in `accuracy.py` (10,000 images, two digits per site), defaults only. A server,
the sites and the coordinator are processes as in `secure_round.py`; noise and masks are real. About
15 minutes on two cores, most of them for drawing noise. Writes secure_headline.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from measuring import machine, write_json
from secure_round import PATIENCE, deployed, federation, running

from dpfedc.deployment.mailbox.https_operator import HttpsMailbox
from dpfedc.deployment.runs import await_sites
from dpfedc.kernels.metrics import scores
from dpfedc.research.datasets import mnist
from dpfedc.research.partition import label_shards

N_SITES, DELTA = 100, 1e-4
PLAN = """
[run]
name = "headline"
coordinator = "benchmark"
clusters = 10
features = {features}
seed = {seed}
[privacy]
trust = "secure-aggregation"
epsilon = {epsilon}
delta = {delta}
[rounds]
deadline = 600
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    chosen = parser.parse_args()
    data = mnist(10_000, seed=chosen.seed)
    sites = label_shards(data.y, N_SITES, 2, rng=np.random.default_rng(chosen.seed))
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y)
    features = [f"p{i}" for i in range(X.shape[1])]
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        server = federation(home, [X[sites == i] for i in range(N_SITES)], features)
        with running(home, N_SITES), closing(HttpsMailbox(server)) as mailbox:
            await_sites(mailbox, sorted(server.enrolled()), PATIENCE)
            terms = {"epsilon": chosen.epsilon, "delta": DELTA, "seed": chosen.seed}
            began = time.perf_counter()
            text = PLAN.format(features=json.dumps(features), **terms)
            finished = deployed(server, mailbox, text, [])
            seconds = time.perf_counter() - began
    found = {
        **terms,
        **scores(X, finished.model.labels(X), y),
        "rounds": len(finished.record.rounds),
        "seconds": seconds,
        "promise": finished.record.results["privacy"],
    }
    print(json.dumps(found, indent=1, default=str))
    write_json(chosen.output / "secure_headline.json", {"machine": machine(), "run": found})


if __name__ == "__main__":
    main()
