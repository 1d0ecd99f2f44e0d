"""Clustering quality on MNIST, TCGA miRNA and blobs, over several seeds.

python benchmarks/accuracy.py [--seeds 5] [--output results/accuracy.json]

MNIST and TCGA miRNA are looked for as `dpfedc.data` does (DPFEDC_DATA names a folder); what is not
there is left out and said so. Prints Markdown tables of mean and standard error.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from dpfedc import DPFedC
from dpfedc.data import iid, label_shards, mnist, tcga_mirna
from dpfedc.errors import DataUnavailable
from dpfedc.evaluation.metrics import scores

N_SITES = 100
BLOBS = [(1, 3), (1, 5), (2, 3), (2, 5), (2, 8), (2, 10), (3, 6), (5, 6), (5, 10), (8, 4), (10, 8)]
Case = tuple[str, int, Callable[[int], tuple[Any, Any, Any]]]


def cases() -> Iterator[Case]:
    """Yield (name, number of clusters, seed -> (X, y, sites)) of the real data sets."""

    def images(seed: int, deal: Callable[..., Any]) -> tuple[Any, Any, Any]:
        data = mnist(10_000, seed=seed)
        return data.X, data.y, deal(data.y, np.random.default_rng(seed))

    def shuffled(y: Any, rng: np.random.Generator) -> Any:
        return iid(len(y), N_SITES, rng=rng)

    def paired(y: Any, rng: np.random.Generator) -> Any:
        return label_shards(y, N_SITES, 2, rng=rng)

    def genes(seed: int) -> tuple[Any, Any, Any]:
        data = tcga_mirna()
        return data.X, data.y, shuffled(data.y, np.random.default_rng(seed))

    yield "MNIST, iid", 10, lambda seed: images(seed, shuffled)
    yield "MNIST, two digits per site", 10, lambda seed: images(seed, paired)
    yield "TCGA miRNA, iid", 20, genes


def separated_blobs(m: int, k: int, seed: int, n: int) -> tuple[Any, Any]:
    """Return Gaussian clusters whose centres are at least four apart (standard deviation 0.7)."""
    rng = np.random.default_rng(1000 * m + 10 * k + seed)
    if m == 1:
        centres = 4.0 * rng.permutation(k)[:, None]
    else:
        while True:
            centres = rng.uniform(-10, 10, (k, m))
            gaps = np.linalg.norm(centres[:, None] - centres[None], axis=2)
            if gaps[np.triu_indices(k, 1)].min() > 4:
                break
    return make_blobs(n, centers=centres, cluster_std=0.7, random_state=seed)


def summary(values: list[float]) -> str:
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{np.mean(values):.3f} ± {error:.3f}"


def real_table(seeds: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Fit every real case with every seed and print the table."""
    rows: list[dict[str, Any]] = []
    print("| data | accuracy | NMI | ARI | cost per record |\n|---|---|---|---|---|")
    for name, k, draw in cases():
        try:
            found = []
            for seed in range(seeds):
                X, y, sites = draw(seed)
                model = DPFedC(k, random_state=seed, **settings).fit(X, sites=sites)
                found.append(scores(X, model.labels_, y))
                rows.append({"data": name, "seed": seed, **settings, **found[-1]})
        except DataUnavailable as error:
            print(f"| {name} | left out: {error} |")
            continue
        cells = [summary([f[key] for f in found]) for key in ("accuracy", "nmi", "ari", "cost")]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return rows


def blob_table(seeds: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Fit blobs of every shape and print their ARI relative to that of k-means."""
    rows: list[dict[str, Any]] = []
    for m, k in BLOBS:
        for seed in range(seeds):
            X, y = separated_blobs(m, k, seed, 3_000)
            sites = iid(len(X), 20, rng=np.random.default_rng(seed))
            best = scores(X, KMeans(k, n_init=10, random_state=seed).fit_predict(X), y)["ari"]
            model = DPFedC(k, random_state=seed, **settings).fit(X, sites=sites)
            ours = scores(X, model.labels_, y)["ari"]
            rows.append({"m": m, "k": k, "seed": seed, "ari": ours, "kmeans_ari": best})
    print(f"\nBlobs, 1-D to 10-D, k 3 to 10, {len(BLOBS)} shapes: ARI relative to k-means")
    print(summary([row["ari"] / row["kmeans_ari"] for row in rows]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/accuracy.json"))
    options = parser.parse_args()
    real = real_table(options.seeds, {"n_rounds": 100, "sites_per_round": 30})
    blobs = blob_table(options.seeds, {})
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"real": real, "blobs": blobs}, indent=1))


if __name__ == "__main__":
    main()
