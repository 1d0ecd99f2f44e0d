"""How long a fit takes beside one of an older version, in turns.

python benchmarks/older_version.py --old path/to/0.1.0/src [--pairs 5] [--epsilon 1]

Cases: MNIST 10,000 x 784 in 10 clusters and TCGA miRNA 7,373 x 1,046 in 20 (random numbers of that
shape where the data are absent), 100 sites, delta 1e-4, secure aggregation (simulated), defaults
otherwise, one BLAS thread. "round" is `shape="round"` beside the older version's clusters; "any"
has prototypes, beside as many clusters of the older version as there are prototypes. Each version
has a process of its own, which fits once before it is timed; then old, new, old, new, and so on. A
ratio is the median over pairs, of processor time, which a busy machine disturbs less than wall
time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

WORKER = """
import json, sys, time, warnings
import numpy as np
from dpfedc import DPFedC
warnings.simplefilter("ignore")
folder, settings = sys.argv[1], json.loads(sys.argv[2])
X, sites = np.load(f"{folder}/X.npy"), np.load(f"{folder}/sites.npy")
for seed, _ in enumerate(sys.stdin):
    began = time.process_time()
    model = DPFedC(**settings, delta=1e-4, trust="secure-aggregation", random_state=seed)
    model.fit(X, sites=sites)
    n_prototypes = len(getattr(model, "prototypes_", model.cluster_centers_))
    print(time.process_time() - began, n_prototypes, flush=True)
"""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def started(source: Path, *given: str) -> subprocess.Popen[str]:
    """Return a process that sees one version, and fits whenever it is told to."""
    env = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(source)}
    command, pipe = [sys.executable, "-c", WORKER, *given], subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)


def fitted(worker: subprocess.Popen[str]) -> tuple[float, int]:
    """Return the processor time of one fit, and how many prototypes or clusters it has."""
    worker.stdin.write("\n")
    worker.stdin.flush()
    seconds, n_prototypes = worker.stdout.readline().split()
    return float(seconds), int(n_prototypes)


def ended(worker: subprocess.Popen[str]) -> None:
    worker.stdin.close()
    worker.wait()


def compared(folder: str, old: Path, new: Path, k: int, shape: str, given: Any) -> str:
    """Return a row: median seconds of both, and the median ratio."""
    settings = {"n_clusters": k, "epsilon": given.epsilon}
    newer = started(new, folder, json.dumps({**settings, "shape": shape}))
    n = fitted(newer)[1]
    older = started(old, folder, json.dumps({**settings, "n_clusters": n}))
    fitted(older)
    times = np.array([[fitted(w)[0] for w in (older, newer)] for _ in range(given.pairs)])
    ended(older)
    ended(newer)
    before, now = np.median(times, axis=0)
    ratio = np.median(times[:, 1] / times[:, 0])
    return f"| {shape} | {k} | {n} | {before:.2f} | {now:.2f} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, required=True, help="src folder of the older version")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args()
    from cases import CASES

    print("| case | shape | clusters | prototypes | old, s | new, s | new / old |")
    print("|---|---|---|---|---|---|---|")
    here = Path(__file__).resolve().parents[1] / "src"
    for name in ("mnist", "tcga"):
        case = CASES[name]()
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/X.npy", case.X)
            np.save(f"{folder}/sites.npy", case.sites)
            for shape in ("round", "any"):
                k = case.settings.n_clusters
                row = compared(folder, given.old, here, k, shape, given)
                print(f"| {name} {row}", flush=True)


if __name__ == "__main__":
    main()
