"""Clustering of tables with persons, gaps and categories: the three hospitals of the examples.

python benchmarks/tables.py [--seeds 5] [--patients 8000]

Files are read and clustered as `dpfedc fit --schema` does, at person level. Beside it stand k-means
without privacy on the same encoding (columns brought to like spread by exact means and spreads) and
the run without noise. Prints the adjusted Rand index against the true groups, mean and standard
error over fresh seeds: other patients, other start, other noise each time.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC, Schema
from dpfedc.errors import BudgetWarning
from dpfedc.research.spread import mean_and_error
from dpfedc.tables.trial_tables import read_encoded

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from three_hospitals import write_hospitals

EPSILON, DELTA, N_CLUSTERS, FIRST_SEED = 2.0, 1e-5, 4, 200
TRUSTS = ("secure-aggregation", "local")


def truth(folder: Path, records: Any) -> list[str]:
    with (folder / "truth.csv").open(encoding="utf-8") as stream:
        groups = {
            (row["hospital"], row["patient_id"]): row["group"] for row in csv.DictReader(stream)
        }
    return [groups[pair] for pair in zip(records.sites.tolist(), records.ids, strict=True)]


def one_seed(seed: int, n_patients: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_hospitals(folder, n_patients=n_patients, seed=seed)
        records = read_encoded(files, Schema.read(folder / "schema.toml"))
        true = truth(folder, records)
    found = {}
    exact = DPFedC(N_CLUSTERS, epsilon=None, random_state=seed).fit_records(records)
    encoded = exact.model_.seen(records.X)
    pooled = KMeans(N_CLUSTERS, n_init=10, random_state=seed).fit_predict(encoded)
    found["k-means, pooled, no privacy"] = adjusted_rand_score(true, pooled)
    found["no noise"] = adjusted_rand_score(true, exact.record_labels_)
    for trust in TRUSTS:
        model = DPFedC(N_CLUSTERS, epsilon=EPSILON, delta=DELTA, trust=trust, random_state=seed)
        found[f"epsilon {EPSILON:g}, {trust}"] = adjusted_rand_score(
            true, model.fit_records(records).record_labels_
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--patients", type=int, default=8000)
    given = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)  # the records are invented
        runs = [one_seed(seed, given.patients) for seed in seeds]
    reference = np.mean([run["k-means, pooled, no privacy"] for run in runs])
    print(f"{given.patients:,} patients at 3 hospitals, {N_CLUSTERS} clusters, delta {DELTA:g}, "
          f"seeds {seeds.start} to {seeds.stop - 1}")  # fmt: skip
    print("\n| run | ARI | of k-means |\n|---|---|---|")
    for name in runs[0]:
        mean, error = mean_and_error([run[name] for run in runs])
        print(f"| {name} | {mean:.3f} +- {error:.3f} | {mean / reference:.2f} |")


if __name__ == "__main__":
    main()
