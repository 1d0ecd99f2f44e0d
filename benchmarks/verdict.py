"""Whether the verdict is right: what plans were said to give, beside what they gave.

python benchmarks/verdict.py [--first 1000] [--settings 70] [--after] [--jobs 2]

A setting is drawn by its seed: 100 to 20,000 records, 2 to 50 columns, 2 to 12 clusters, 2 to 20
sites, epsilon 0.25 to 8, noise at the sites or secure aggregation; and clusters that are round,
long or heavy-tailed, of equal or unequal sizes, 4 to 9 standard deviations apart at the closest,
up to 3 spreads away from zero, dealt evenly or unevenly. None of the latter is known to a plan.
Each is fitted 5 times with noise and without (other records, start and noise). A setting failed if
its mean adjusted Rand index is below 0.7 of that without noise; a run that refuses scores 0. The
verdict on the plan should call failures "rough" or "useless", and no others. Predicted standard
deviations of centres stand beside those of pairs of fits that differ in noise and start alone.
`--after` also asks for the verdict on the first fit. scikit-learn's real data sets follow, at four
epsilons. Thresholds were found on seeds 0 to 69.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn import datasets
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.errors import NotFound
from dpfedc.settings import PrivacyTarget
from dpfedc.verdict.verdict import USABLE, expected_verdict

REPEATS, FAILED, DELTA = 5, 0.7, 1e-5
REAL = ("iris", "wine", "breast_cancer", "digits")
EPSILONS = (0.5, 1.0, 2.0, 8.0)


@dataclass(frozen=True)
class Setting:
    """What a plan knows (the first line), and what it does not."""

    name: str
    n: int
    d: int
    k: int
    n_sites: int
    epsilon: float
    trust: str
    seed: int = 0
    gap: float = 0.0
    offset: float = 0.0
    shape: str = ""
    equal: bool = True
    even: bool = True

    def records(self, repeat: int) -> tuple[Any, Any, Any]:
        """Return records, their clusters and their sites."""
        rng = np.random.default_rng([17, self.seed, repeat])
        if self.name in REAL:
            X, y = getattr(datasets, f"load_{self.name}")(return_X_y=True)
            X = X / np.maximum(X.std(axis=0), 1e-9) if self.name != "digits" else X
            return X, y, rng.permutation(np.arange(len(X)) % self.n_sites)
        centers = rng.standard_normal((self.k, self.d))
        apart = np.linalg.norm(centers[:, None] - centers, axis=2)
        np.fill_diagonal(apart, np.inf)
        centers *= self.gap / apart.min()
        shares = None if self.equal else rng.dirichlet(np.full(self.k, 5.0))
        y = rng.choice(self.k, self.n, p=shares)
        Z = rng.standard_normal((self.n, self.d))
        if self.shape == "long":
            Z *= rng.uniform(0.4, 1.6, (self.k, self.d))[y]
        elif self.shape == "heavy-tailed":
            Z = rng.standard_t(5, (self.n, self.d)) * np.sqrt(3 / 5)
        X = centers[y] + Z
        away = rng.uniform(0, self.offset, self.d) * rng.choice([-1, 1], self.d)
        return X + X.std(axis=0) * away, y, self._sites(y, rng)

    def _sites(self, y: Any, rng: np.random.Generator) -> Any:
        if self.even:
            return rng.permutation(np.arange(self.n) % self.n_sites)
        shares = rng.dirichlet(np.full(self.n_sites, 0.5), self.k)
        sites = np.array([rng.choice(self.n_sites, p=shares[c]) for c in y])
        sites[rng.choice(self.n, self.n_sites, replace=False)] = np.arange(self.n_sites)
        return sites


def drawn(seed: int) -> Setting:
    rng = np.random.default_rng([13, seed])

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    n, d, k = int(between(100, 20_000)), round(between(2, 50)), int(rng.integers(2, 13))
    epsilon = round(between(0.25, 8), 2)
    trust = ("local", "secure-aggregation")[int(rng.integers(2))]
    n_sites = int(rng.integers(2, 21))
    return Setting(
        f"drawn {seed}", n, d, min(k, max(2, n // 15)), n_sites, epsilon, trust, seed,
        gap=float(rng.uniform(4, 9)), equal=bool(rng.integers(2)),
        offset=float(rng.uniform(0, 3)), even=not rng.integers(2),
        shape=("round", "long", "heavy-tailed")[int(rng.integers(3))],
    )  # fmt: skip


def real() -> Iterator[Setting]:
    for name in REAL:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        k = len(np.unique(y))
        for trust in ("secure-aggregation", "local"):
            for epsilon in EPSILONS:
                yield Setting(name, len(X), X.shape[1], k, 5, epsilon, trust)


def score(setting: Setting, repeat: int, epsilon: float | None, seed: int) -> tuple[float, Any]:
    """Return the adjusted Rand index of a fit, and the fit; 0 and nothing if it refuses."""
    X, y, sites = setting.records(repeat)
    model = DPFedC(setting.k, epsilon=epsilon, delta=DELTA, trust=setting.trust, random_state=seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, sites=sites)
    except NotFound:
        return 0.0, None
    return float(adjusted_rand_score(y, model.labels_)), model


def deviations(setting: Setting, repeat: int) -> Any:
    """Return how far centres of two fits are apart, in spreads: each one's standard deviation."""
    pair = [score(setting, repeat, setting.epsilon, 50 + 2 * repeat + i)[1] for i in (0, 1)]
    if None in pair:
        return np.zeros(0)
    X = setting.records(repeat)[0]
    spread = np.sqrt(X.var(axis=0).mean())
    one, two = (model.cluster_centers_ / spread for model in pair)
    gaps = ((one[:, None] - two) ** 2).sum(axis=2)
    return np.sqrt(gaps[linear_sum_assignment(gaps)] / X.shape[1] / 2)


def measured(setting: Setting, after: bool) -> dict[str, Any]:
    fits = [score(setting, i, setting.epsilon, i) for i in range(REPEATS)]
    noisy = float(np.mean([found for found, _ in fits]))
    quiet = float(np.mean([score(setting, i, None, i)[0] for i in range(REPEATS)]))
    method, given = method_named("dp-fedc"), {"n_clusters": setting.k}
    facts = Federation(setting.d, np.bincount(np.arange(setting.n) % setting.n_sites))
    target = PrivacyTarget(setting.epsilon, DELTA, setting.trust)
    plan = method.plan(given, facts, target)
    verdict = expected_verdict(method, given, facts, plan)
    stds = np.concatenate([deviations(setting, i) for i in range(REPEATS)])
    first = fits[0][1]
    reached = "refused" if first is None else first.verdict_.word if after else ""
    return {
        "setting": setting, "noisy": noisy, "quiet": quiet,
        "failed": noisy < FAILED * quiet, "word": verdict.word, "score": verdict.score,
        "reached": reached, "std": float(np.median(stds)) if len(stds) else None,
        "expected_std": verdict.center_std,
    }  # fmt: skip


def digits(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def shown(rows: list[dict[str, Any]], what: str, key: str = "word") -> None:
    failed = [row for row in rows if row["failed"]]
    others = [row for row in rows if not row["failed"]]
    called, wrong = (sum(row[key] != USABLE for row in some) for some in (failed, others))
    print(f"\n{what}: {len(rows)} settings, {len(failed)} failed. Called rough or useless: "
          f"{called} of {len(failed)} that failed ({called / max(len(failed), 1):.0%}), "
          f"{wrong} of {len(others)} others ({wrong / max(len(others), 1):.0%}).")  # fmt: skip


def shown_stds(rows: list[dict[str, Any]]) -> None:
    ratios = [r["expected_std"] / r["std"] for r in rows if r["std"] and r["expected_std"]]
    near = [ratio for ratio in ratios if 1 / 1.5 <= ratio <= 1.5]
    print(f"Standard deviations of centres: {len(near)} of {len(ratios)} predictions within a "
          f"factor 1.5 ({len(near) / max(len(ratios), 1):.0%}); ratios {min(ratios):.2f} to "
          f"{max(ratios):.2f}, median {np.median(ratios):.2f}.")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--settings", type=int, default=70)
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--no-real", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    settings = [drawn(seed) for seed in range(given.first, given.first + given.settings)]
    settings += [] if given.no_real else list(real())
    with ProcessPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(measured, settings, [given.after] * len(settings)))
    head = ("setting", "n", "columns", "clusters", "sites", "epsilon", "trust", "ARI",
            "without noise", "expected part", "verdict", "after", "std of centres",
            "expected")  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in sorted(rows, key=lambda row: row["noisy"] / max(row["quiet"], 1e-9)):
        s = row["setting"]
        mark = " **wrong**" if row["failed"] == (row["word"] == USABLE) else ""
        print(f"| {s.name} | {s.n:,} | {s.d} | {s.k} | {s.n_sites} | {s.epsilon:g} | {s.trust} | "
              f"{row['noisy']:.2f} | {row['quiet']:.2f} | {row['score']:.2f} | "
              f"{row['word']}{mark} | {row['reached']} | {digits(row['std'])} | "
              f"{digits(row['expected_std'])} |")  # fmt: skip
    invented = [row for row in rows if row["setting"].name not in REAL]
    shown(invented, f"Invented, seeds {given.first} to {given.first + given.settings - 1}")
    if given.after:
        shown(invented, "The same, after the first fit", "reached")
    shown_stds(invented)
    if not given.no_real:
        shown([row for row in rows if row["setting"].name in REAL], "Real data sets")


if __name__ == "__main__":
    main()
