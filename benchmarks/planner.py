"""Is the planner's choice near the best? Fits with other choices beside it, on several data sets.

python benchmarks/planner.py [--seeds 5] [--jobs 2] [--output results/planner]

For every data set and privacy setting: the planned number of rounds, half and twice as many, hard
(rho 1) and soft (rho 0.1) final memberships, with and without a subspace. Prints the accuracy of
each, and what the plan loses against the best of them. Data that are not there are left out.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from dpfedc import DPFedC
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.errors import BudgetWarning, DataUnavailable, UtilityWarning
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.research.datasets import digits, mnist, tcga_mirna
from dpfedc.research.partition import iid
from dpfedc.research.spread import mean_and_error
from dpfedc.settings import PrivacyTarget

N_SITES, DELTA = 100, 1e-4
DATA = {
    "digits 1,797": (10, lambda _: digits()),
    "MNIST 3,000": (10, lambda seed: mnist(3_000, seed=seed)),
    "MNIST 10,000": (10, lambda seed: mnist(10_000, seed=seed)),
    "TCGA 3,000": (20, lambda seed: tcga_mirna(3_000, seed=seed)),
    "TCGA 7,373": (20, lambda _: tcga_mirna()),
}
TARGETS = [("secure-aggregation", e) for e in (0.25, 0.5, 1.0, 2.0, 8.0)]
TARGETS += [("local", e) for e in (4.0, 8.0, 20.0)]


def accuracy(name: str, trust: str, epsilon: float, seed: int, options: dict[str, Any]) -> float:
    k, load = DATA[name]
    data = load(seed)
    sites = iid(len(data.X), N_SITES, rng=np.random.default_rng(seed))
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        warnings.simplefilter("ignore", UtilityWarning)
        warnings.simplefilter("ignore", BudgetWarning)
        model = DPFedC(k, epsilon=epsilon, delta=DELTA, trust=trust, random_state=seed, **options)
        return clustering_accuracy(data.y, model.fit(data.X, sites=sites).labels_)


def variations(name: str, trust: str, epsilon: float) -> tuple[float, dict[str, dict[str, Any]]]:
    """Return the noise ratio and the settings to compare."""
    k, load = DATA[name]
    n, m = load(0).X.shape
    facts = Federation(m, np.full(N_SITES, n // N_SITES))
    target = PrivacyTarget(epsilon, DELTA, trust)
    plan = method_named("dp-fedc").plan({"n_clusters": k}, facts, target)
    rounds = next(s.n_rounds for s in plan.stages if s.name == "factorisation")
    subspace = any(s.name == "subspace" for s in plan.stages)
    return plan.noise_ratio, {
        "plan": {},
        "R/2": {"n_rounds": max(rounds // 2, 2)},
        "2R": {"n_rounds": 2 * rounds},
        "rho 0.1": {"orthogonality": 0.1},
        "rho 1": {"orthogonality": 1.0},
        "other subspace": {"subspace": None if subspace else min(40, m)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("results/planner"))
    options = parser.parse_args()
    rows, lines = [], []
    for name in DATA:
        for trust, epsilon in TARGETS:
            try:
                kappa, choices = variations(name, trust, epsilon)
            except DataUnavailable as error:
                print(f"{name} left out: {error}")
                break
            work = [(label, seed) for label in choices for seed in range(options.seeds)]
            found = Parallel(options.jobs)(
                delayed(accuracy)(name, trust, epsilon, seed, choices[label])
                for label, seed in work
            )
            by_label: dict[str, list[float]] = {label: [] for label in choices}
            for (label, _), value in zip(work, found, strict=True):
                by_label[label].append(value)
            means = {label: float(np.mean(values)) for label, values in by_label.items()}
            _, error = mean_and_error(by_label["plan"])
            row = {"data": name, "trust": trust, "epsilon": epsilon, "kappa": kappa}
            rows.append({**row, **means, "error": error})
            if not lines:
                lines += [f"| data | setting | kappa | {' | '.join(means)} |"]
                lines += ["|---" * (3 + len(means)) + "|"]
            cells = [f"{means['plan']:.3f} ± {error:.3f}"]
            cells += [f"{value:.3f}" for label, value in means.items() if label != "plan"]
            lines.append(f"| {name} | {trust} {epsilon:g} | {kappa:.2f} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "tables.md").write_text("\n".join(lines) + "\n")
    (options.output / "runs.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
