"""Is each rival as good as an independent version of it? Both without noise, on the same records.

python benchmarks/references.py [--seeds 5] [--output results/references.json]

The federated method has 100 sites with records dealt at random, all taking part in every round.
Its reference sees the pooled records: scikit-learn's k-means (one k-means++ start), and fuzzy
c-means and k-median written down here as plainly as can be. Prints accuracy in per cent, mean and
standard error over the seeds. Data sets that are not there are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.metrics import pairwise_distances
from threadpoolctl import threadpool_limits

from dpfedc.errors import DataUnavailable
from dpfedc.estimators.federated_kmeans import FederatedKMeans
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.research.datasets import digits, mnist, tcga_mirna
from dpfedc.research.partition import iid
from dpfedc.research.rivals.coreset_kmedian import CoresetKMedian
from dpfedc.research.rivals.fuzzy_cmeans import FederatedFuzzyCMeans
from dpfedc.research.rivals.kmeans_parallel import KMeansParallel
from dpfedc.research.spread import mean_and_error

N_SITES, FUZZIFIER = 100, 1.1
DATA: dict[str, tuple[int, Callable[[int], Any]]] = {
    "digits": (10, lambda _: digits()),
    "MNIST": (10, lambda seed: mnist(10_000, seed=seed)),
    "TCGA miRNA": (20, lambda _: tcga_mirna()),
}


def kmeans(X: Any, k: int, seed: int) -> Any:
    return KMeans(k, n_init=1, random_state=seed).fit(X).labels_


def fuzzy_cmeans(X: Any, k: int, seed: int) -> Any:
    """Return the labels after 100 steps of fuzzy c-means on the pooled records."""
    centers, _ = kmeans_plusplus(X, k, random_state=seed)
    for _ in range(100):
        squares = pairwise_distances(X, centers) ** 2 + 1e-12
        share = (squares / squares.min(axis=1, keepdims=True)) ** (-1 / (FUZZIFIER - 1))
        weight = (share / share.sum(axis=1, keepdims=True)) ** FUZZIFIER
        centers = weight.T @ X / weight.sum(axis=0)[:, None]
    return pairwise_distances(X, centers).argmin(axis=1)


def kmedian(X: Any, k: int, seed: int) -> Any:
    """Return the labels after 30 steps: assign, then Weiszfeld's step for every median."""
    centers, _ = kmeans_plusplus(X, k, random_state=seed)
    for _ in range(30):
        distances = pairwise_distances(X, centers)
        labels = distances.argmin(axis=1)
        for c in range(k):
            mine = labels == c
            pull = 1 / np.maximum(distances[mine, c], 1e-9)
            if mine.any():
                centers[c] = pull @ X[mine] / pull.sum()
    return pairwise_distances(X, centers).argmin(axis=1)


PAIRS: dict[str, tuple[Callable[[int, int], Any], Callable[[Any, int, int], Any]]] = {
    "FKM, federated k-means": (
        lambda k, seed: FederatedKMeans(k, random_state=seed),
        kmeans,
    ),
    "DK++, k-means parallel": (lambda k, seed: KMeansParallel(k, random_state=seed), kmeans),
    "FZKM, fuzzy c-means": (
        lambda k, seed: FederatedFuzzyCMeans(
            k, fuzzifier=FUZZIFIER, weighted=True, random_state=seed
        ),
        fuzzy_cmeans,
    ),
    "DKM, coreset k-median": (lambda k, seed: CoresetKMedian(k, random_state=seed), kmedian),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/references.json"))
    options = parser.parse_args()
    rows = []
    for name, (k, load) in DATA.items():
        try:
            sets = [load(seed) for seed in range(options.seeds)]
        except DataUnavailable as error:
            print(f"{name}: {error}")
            continue
        for title, (ours, reference) in PAIRS.items():
            found = []
            for seed, data in enumerate(sets):
                sites = iid(len(data.X), N_SITES, rng=np.random.default_rng(seed))
                with threadpool_limits(limits=1):
                    mine = ours(k, seed).fit(data.X, sites=sites).labels_
                    theirs = reference(data.X, k, seed)
                found.append([100 * clustering_accuracy(data.y, x) for x in (mine, theirs)])
            mean, error = mean_and_error(found)
            rows.append({"data": name, "method": title, "accuracy": found})
            print(
                f"| {name} | {title} | {mean[0]:.1f} ± {error[0]:.1f} "
                f"| {mean[1]:.1f} ± {error[1]:.1f} | {mean[0] - mean[1]:+.1f} |",
                flush=True,
            )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
