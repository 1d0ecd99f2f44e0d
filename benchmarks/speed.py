"""How far one fit is from its unavoidable matrix products, measured side by side in one run.

python benchmarks/speed.py [--repeats 5]

Case: MNIST 10,000 x 784 (or random numbers of that shape), float32, 100 sites, 30 a round, 100
rounds, 10 membership steps, one BLAS thread. The floor is what no implementation can avoid: per
round the products X W' and V' X over the round's records, and the ten n x k by k x k products of
the membership steps, on arrays that lie ready. Fits without noise, fits at epsilon 20 (local) and
the floor are timed in turn, and the least of each kept. Calibration is timed in a fresh process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tracemalloc

import numpy as np
from threadpoolctl import threadpool_limits

from dpfedc import DPFedC
from dpfedc.data import iid, label_shards, mnist
from dpfedc.errors import DataUnavailable
from dpfedc.evaluation.metrics import clustering_accuracy

N, M, K = 10_000, 784, 10
SITES, PER_ROUND, ROUNDS, STEPS = 100, 30, 100, 10


def floor_seconds(X: np.ndarray) -> float:
    """Return the time of the products alone."""
    rng = np.random.default_rng(0)
    part = X[: N * PER_ROUND // SITES]
    W = rng.standard_normal((K, M)).astype(X.dtype)
    square = rng.standard_normal((K, K)).astype(X.dtype)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        A = part @ W.T
        for _ in range(STEPS):
            A @ square
        A.T @ part
    return time.perf_counter() - began


CALIBRATE = """
import time
from dpfedc.privacy.calibration import StageBudget, calibrated_plan
began = time.perf_counter()
budgets = (StageBudget("mean", 1, 100, 1, 0.1), StageBudget("factorisation", 100, 30, 30, 0.9, {q}))
calibrated_plan(budgets, epsilon=1.0, delta=1e-5, trust="local", n_sites=100)
print(time.perf_counter() - began)
"""


def calibration_seconds(q: float) -> float:
    """Return the time of one calibration in a process that has done none, its imports included."""
    command = [sys.executable, "-c", CALIBRATE.format(q=q)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    try:
        data = mnist(N, seed=0)
        X, y, name = data.X, data.y, "MNIST"
        sites = label_shards(y, SITES, 2, rng=np.random.default_rng(0))
    except DataUnavailable as error:
        print(f"random numbers in place of MNIST: {error}")
        X, y, name = np.random.default_rng(0).random((N, M), dtype=np.float32), None, "random"
        sites = iid(N, SITES, rng=np.random.default_rng(0))
    order = np.argsort(sites, kind="stable")
    X, sites, y = X[order], sites[order], None if y is None else y[order]
    schedule = {"n_rounds": ROUNDS, "sites_per_round": PER_ROUND, "random_state": 0}
    model = DPFedC(K, epsilon=None, **schedule)
    private = DPFedC(K, epsilon=20.0, **schedule).fit(X, sites=sites)
    fits, noisy, floors = [], [], []
    with threadpool_limits(limits=1):
        for _ in range(repeats):
            floors.append(floor_seconds(X))
            for estimator, times in ((model, fits), (private, noisy)):
                began = time.perf_counter()
                estimator.fit(X, sites=sites)
                times.append(time.perf_counter() - began)
        tracemalloc.start()
        model.fit(X, sites=sites)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    if y is not None:
        print(f"accuracy {clustering_accuracy(y, model.labels_):.3f}")
    print(f"{name}: fit {min(fits):.3f} s, products {min(floors):.3f} s")
    print(f"ratio {min(fits) / min(floors):.2f}")
    print(f"fit with noise, over fit without: {min(noisy) / min(fits):.2f}")
    print(f"calibration from cold: q = 1 {calibration_seconds(1.0):.1f} s, ", end="")
    print(f"q = 0.1 {calibration_seconds(0.1):.1f} s")
    print(f"memory while fitting, input excluded: {peak / X.nbytes:.2f} x the data")


if __name__ == "__main__":
    main()
