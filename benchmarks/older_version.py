"""How long a fit takes beside one of an older version, in turns.

python benchmarks/older_version.py --old path/to/0.1.0/src [--pairs 5] [--epsilon 1]

Cases: MNIST 10,000 x 784 in 10 clusters and TCGA miRNA 7,373 x 1,046 in 20 (random numbers of that
shape where the data are absent), 100 sites, delta 1e-4, secure aggregation (simulated), defaults
otherwise, one BLAS thread. Each version has a process of its own, which fits once before it is
timed; then old, new, old, new, and so on. A ratio is the median over pairs, of processor time,
which a busy machine disturbs less than wall time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORKER = """
import sys, time, warnings
import numpy as np
from dpfedc import DPFedC
warnings.simplefilter("ignore")
folder, k, epsilon = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
X, sites = np.load(f"{folder}/X.npy"), np.load(f"{folder}/sites.npy")
for seed, _ in enumerate(sys.stdin):
    began = time.process_time()
    DPFedC(n_clusters=k, epsilon=epsilon, delta=1e-4, trust="secure-aggregation",
           random_state=seed).fit(X, sites=sites)
    print(time.process_time() - began, flush=True)
"""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def started(source: Path, *given: str) -> subprocess.Popen[str]:
    """Return a process that sees one version, and fits whenever it is told to."""
    env = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(source)}
    command, pipe = [sys.executable, "-c", WORKER, *given], subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)


def fitted(worker: subprocess.Popen[str]) -> float:
    """Return the processor time of one fit."""
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, required=True, help="src folder of the older version")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args()
    from cases import CASES

    print("| case | old, s | new, s | new / old |\n|---|---|---|---|")
    for name in ("mnist", "tcga"):
        case = CASES[name]()
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/X.npy", case.X)
            np.save(f"{folder}/sites.npy", case.sites)
            arguments = (folder, str(case.settings.n_clusters), str(given.epsilon))
            here = Path(__file__).resolve().parents[1] / "src"
            workers = [started(source, *arguments) for source in (given.old, here)]
            times = np.array([[fitted(w) for w in workers] for _ in range(given.pairs + 1)])[1:]
            for worker in workers:
                worker.stdin.close()
                worker.wait()
        old, new = np.median(times, axis=0)
        ratio = np.median(times[:, 1] / times[:, 0])
        print(f"| {name} | {old:.2f} | {new:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
