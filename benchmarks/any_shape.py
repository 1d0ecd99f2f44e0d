"""Clusters of any shape, and their number: what `shape="any"` and `n_clusters="auto"` give.

python benchmarks/any_shape.py [--seeds 5] [--first-seed 5000] [--only shapes,numbers,others]
    [--output results/any_shape]

* shapes: two moons; and every set of the judging half of `frontier_sets.py` at epsilon 2, any shape
  beside round, with the same records, sites and seeds.
* numbers: mixtures of 2 to 11 clusters (8 columns, 6,000 records, 30 sites), uniform records, and
  digits, MNIST and TCGA miRNA, chosen number beside the true one.
* others: k-means, spectral clustering and HDBSCAN of scikit-learn on the pooled records, without
  privacy, for orientation.

Secure aggregation (simulated), delta 1e-5 and 20 sites but for what is named; everything else is at
its default. MNIST and TCGA miRNA: delta 1e-4, 100 sites; left out where they are not there.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from frontier_sets import JUDGING, missing, spaced
from sklearn.cluster import HDBSCAN, KMeans, SpectralClustering
from sklearn.datasets import load_digits, make_moons
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.errors import DataUnavailable, NotFound
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.research.datasets import mnist, tcga_mirna
from dpfedc.research.partition import iid
from dpfedc.research.spread import mean_and_error

TIE = 0.02
Table = list[str]


def fit(X: Any, k: Any, seed: int, *, n_sites: int = 20, **settings: Any) -> Any:
    """Return a fit at epsilon 2, or None where it refuses."""
    given = {"epsilon": 2.0, "trust": "secure-aggregation", "random_state": seed, **settings}
    sites = iid(len(X), n_sites, rng=np.random.default_rng([10, seed]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return DPFedC(k, **given).fit(X, sites=sites)
        except NotFound:
            return None


def score(y: Any, model: Any) -> float:
    return 0.0 if model is None else float(adjusted_rand_score(y, model.labels_))


def shown(values: list[float]) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.3f} ± {error:.3f}"


def moons(seeds: range) -> Table:
    lines = ["| two moons, 10,000 records | round | any |", "|---|---|---|"]
    for epsilon in (None, 2.0, 1.0):
        found: dict[str, list[float]] = {"round": [], "any": []}
        for seed in seeds:
            X, y = make_moons(10_000, noise=0.06, random_state=seed)
            for shape, scores in found.items():
                scores.append(score(y, fit(X, 2, seed, epsilon=epsilon, shape=shape)))
        name = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
        lines.append(f"| {name} | {shown(found['round'])} | {shown(found['any'])} |")
    return lines


def judged(seeds: range) -> Table:
    lines = ["| set | k | prototypes | round | any | difference |", "|---|---|---|---|---|---|"]
    differences = []
    for name, draw in JUDGING.items():
        if missing(name):
            lines.append(f"| {name} | left out: needs {', '.join(missing(name))} |")
            continue
        found: dict[str, list[float]] = {"round": [], "any": []}
        n_prototypes = k = 0
        for seed in seeds:
            X, y, k = draw(seed)
            for shape, scores in found.items():
                model = fit(X, k, seed, shape=shape)
                scores.append(score(y, model))
                if model is not None:
                    n_prototypes = len(model.prototypes_)
        gaps = np.subtract(found["any"], found["round"]).tolist()
        differences.append(float(np.mean(gaps)))
        cells = " | ".join(shown(values) for values in (found["round"], found["any"], gaps))
        lines.append(f"| {name} | {k} | {n_prototypes} | {cells} |")
        print(lines[-1], flush=True)
    good = sum(gap >= -TIE for gap in differences)
    lines += [
        "",
        f"Any shape is within {TIE} of round, or better, on {good} of {len(differences)} sets; "
        f"mean gain {shown(differences)}.",
    ]
    return lines


def numbers(seeds: range) -> Table:
    lines = ["| clusters | " + " | ".join(str(k) for k in range(2, 12)) + " | right | off by one |"]
    lines.append("|---" * 13 + "|")
    for seed in seeds:
        chosen = []
        for k in range(2, 12):
            X, _, _ = spaced(6_000, 8, k, 6, np.random.default_rng([11, k, seed]))
            chosen.append(fit(X, "auto", seed, n_sites=30).choose_k_)
        off = [abs(c.n_clusters - k) for k, c in enumerate(chosen, start=2)]
        cells = " | ".join(f"{c.n_clusters}{'' if c.clear else ' (?)'}" for c in chosen)
        lines.append(f"| seed {seed} | {cells} | {off.count(0)} | {off.count(1)} |")
        print(lines[-1], flush=True)
    unclear = 0
    for seed in range(seeds.start, seeds.start + 10):
        X = np.random.default_rng([12, seed]).random((6_000, 8))
        unclear += not fit(X, "auto", seed, n_sites=30).choose_k_.clear
    lines += ["", f"Uniform records: no clear choice in {unclear} of 10 runs.", ""]
    lines += ["| data | true k | chosen | ARI, true k | ARI, chosen | part |", "|---" * 6 + "|"]
    for name, k, settings, draw in real_sets():
        found: list[tuple[int, float, float]] = []
        try:
            for seed in seeds:
                X, y = draw(seed)
                own = fit(X, "auto", seed, **settings)
                found.append(
                    (
                        len(own.cluster_centers_),
                        score(y, fit(X, k, seed, **settings)),
                        score(y, own),
                    )
                )
        except DataUnavailable:
            lines.append(f"| {name} | left out: not there |")
            continue
        ks, true, chosen = (list(column) for column in zip(*found, strict=True))
        parts = (np.array(chosen) / np.mean(true)).tolist()
        cells = f"{', '.join(map(str, ks))} | {shown(true)} | {shown(chosen)} | {shown(parts)}"
        lines.append(f"| {name} | {k} | {cells} |")
        print(lines[-1], flush=True)
    return lines


def real_sets() -> Iterator[tuple[str, int, dict[str, Any], Any]]:
    def images(seed: int) -> tuple[Any, Any]:
        data = mnist(10_000, seed=seed)
        return data.X, data.y

    def genes(_: int) -> tuple[Any, Any]:
        data = tcga_mirna()
        return data.X, data.y

    many = {"n_sites": 100, "delta": 1e-4}
    yield "digits 1,797 x 64", 10, {}, lambda _: load_digits(return_X_y=True)
    yield "MNIST 10,000 x 784", 10, many, images
    yield "TCGA miRNA 7,373 x 1,046", 20, many, genes


def others(seeds: range) -> Table:
    lines = [
        "| data | k-means | spectral | HDBSCAN | dpfedc, no noise | dpfedc, epsilon 2 |",
        "|---" * 6 + "|",
    ]
    cases: list[tuple[str, int, dict[str, Any], Any]] = [
        ("two moons", 2, {"shape": "any"}, lambda s: make_moons(10_000, noise=0.06, random_state=s))
    ]
    for name, k, settings, draw in [*cases, *real_sets()]:
        seed = seeds.start
        try:
            X, y = draw(seed)
        except DataUnavailable:
            lines.append(f"| {name} | left out: not there |")
            continue
        spectral = SpectralClustering(k, affinity="nearest_neighbors", random_state=seed, n_jobs=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            labels = [
                KMeans(k, n_init=10, random_state=seed).fit_predict(X),
                spectral.fit_predict(X),
                HDBSCAN(min_cluster_size=max(len(X) // 200, 5)).fit_predict(X),
                fit(X, k, seed, **settings, epsilon=None).labels_,
                fit(X, k, seed, **settings).labels_,
            ]
        aris = [adjusted_rand_score(y, found) for found in labels]
        shares = [clustering_accuracy(y, found - found.min()) for found in labels]
        cells = [f"{ari:.3f} / {share:.3f}" for ari, share in zip(aris, shares, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


PARTS = {
    "shapes": lambda seeds: [*moons(seeds), "", *judged(seeds)],
    "numbers": numbers,
    "others": others,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=5000)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=Path("results/any_shape"))
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    options.output.mkdir(parents=True, exist_ok=True)
    for part in options.only.split(","):
        lines = PARTS[part](seeds)
        (options.output / f"{part}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print("\n".join(lines), flush=True)
    settings = {"seeds": list(seeds), "parts": options.only}
    (options.output / "settings.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
