"""Whether error bars hold what they say: how often 95 % intervals cover the exact values.

python benchmarks/error_bars.py [--runs 200]

In every run records, start and noise are new. A centre's interval should cover the exact mean of
the records that the model puts into its cluster, entry by entry; a size's interval their number.
Where records are clipped (farther out than the scale, which is 1.3 times their mean distance from
the middle), the mean of clipped records is released, and intervals are for that: the share of
clipped records stands beside. The plan "directions" (more than 50 columns) releases no means: its
errors are found by rehearsal.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpfedc import DPFedC, Schema
from dpfedc.model_file import CERTAIN
from dpfedc.tables.trial_records import TrialRecords
from dpfedc.tables.trial_tables import read_encoded

N_RECORDS, N_SITES = 5000, 5
Draw = Callable[[np.random.Generator], tuple[Any, int]]


def corners(distance: float, d: int = 5, shares: tuple[float, ...] = (0.25,) * 4) -> Draw:
    """Return clusters at equal distances from each other, and so from the middle."""

    def draw(rng: np.random.Generator) -> tuple[Any, int]:
        k = len(shares)
        centers = distance / np.sqrt(2) * np.eye(k, d)
        X = centers[rng.choice(k, N_RECORDS, p=shares)] + rng.standard_normal((N_RECORDS, d))
        return TrialRecords(X, np.arange(N_RECORDS) % N_SITES), k

    return draw


def scattered(rng: np.random.Generator) -> tuple[Any, int]:
    """Return clusters at all distances from the middle: the outer ones are clipped."""
    centers = 6 * rng.standard_normal((5, 6))
    X = centers[rng.integers(5, size=N_RECORDS)] + rng.standard_normal((N_RECORDS, 6))
    return TrialRecords(X, np.arange(N_RECORDS) % N_SITES), 5


def on_a_line(rng: np.random.Generator, n: int = N_RECORDS) -> tuple[Any, int]:
    """Return three clusters of which the outer two are clipped whole."""
    centers = np.array([[25.0, 115.0], [50.0, 160.0], [80.0, 130.0]])
    X = centers[rng.integers(3, size=n)] + 4 * rng.standard_normal((n, 2))
    return TrialRecords(X, np.arange(n) % N_SITES), 3


def one_farther_out(rng: np.random.Generator) -> tuple[Any, int]:
    """Return clusters of which a small one lies between one and two scales out."""
    centers = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [14.0, 14.0]])
    rows = rng.choice(4, N_RECORDS, p=(0.31, 0.31, 0.3, 0.08))
    X = centers[rows] + rng.standard_normal((N_RECORDS, 2))
    return TrialRecords(X, np.arange(N_RECORDS) % N_SITES), 4


def hospitals(rng: np.random.Generator) -> tuple[Any, int]:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from three_hospitals import write_hospitals

    with tempfile.TemporaryDirectory() as folder:
        files = write_hospitals(Path(folder), n_patients=4000, seed=int(rng.integers(2**31)))
        return read_encoded(files, Schema.read(Path(folder) / "schema.toml")), 4


CASES: dict[str, tuple[Draw, float]] = {
    "corners, 11 apart": (corners(11), 1.0),
    "corners, 5.7 apart": (corners(5.7), 1.0),
    "corners, 40, 30, 20 and 10 %": (corners(11, shares=(0.4, 0.3, 0.2, 0.1)), 1.0),
    "scattered": (scattered, 1.0),
    "ages 25, 50 and 80, little noise": (on_a_line, 8.0),
    "the same ages, 300 records": (partial(on_a_line, n=300), 8.0),
    "8 % farther out": (one_farther_out, 2.0),
    "three hospitals (a table)": (hospitals, 2.0),
    "corners, 60 columns (directions)": (corners(11, d=60), 1.0),
}


def covered(name: str, trust: str, seed: int) -> tuple[tuple[float, ...], list[Any]]:
    """Return the shares of covered entries of centres, of covered sizes, and of clipped records.

    Sizes are counted as the model does, and as the rounds do. Then for every cluster whether the
    summary names it as far out, and the share of its entries that are covered.
    """
    warnings.simplefilter("ignore")
    draw, epsilon = CASES[name]
    records, k = draw(np.random.default_rng(seed))
    estimator = DPFedC(k, epsilon=epsilon, trust=trust, random_state=seed).fit_records(records)
    if estimator.model_.center_errors is None:
        estimator.verdict_  # noqa: B018 - it fills in the errors
    model, labels = estimator.model_, estimator.record_labels_
    X = np.asarray(model.seen(records.X))
    there = slice(None) if records.present is None else records.present
    X, labels = X[there], labels[there]
    sizes = np.bincount(labels, minlength=k)
    exact = np.stack([X[labels == c].mean(axis=0) for c in range(k) if sizes[c]])
    reach = CERTAIN * model.center_errors * (model.scale or 1.0)
    inside = np.abs(exact - model.seen_centers[sizes > 0]) <= reach[sizes > 0]
    # In rounds a gap is at its column's mean; the model compares in the columns that are there.
    as_rounds = np.bincount(replace(model, schema=None, view={}).labels(X), minlength=k)
    right, in_rounds = (
        np.abs(some - model.sizes) <= CERTAIN * model.size_errors for some in (sizes, as_rounds)
    )
    far = np.linalg.norm((X - model.center) / model.scale, axis=1) > 1
    shares = tuple(float(part.mean()) for part in (inside, right, in_rounds, far))
    named = model.far_out[sizes > 0].tolist()
    return shares, list(zip(named, inside.mean(axis=1).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rehearsed", type=int, default=40, help="runs where errors take seconds")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    print(
        "| clusters | trust | epsilon | runs | centres covered | sizes covered | "
        "as rounds count | clipped |\n|" + "---|" * 8
    )
    clusters: list[Any] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for name, trust in itertools.product(CASES, ("secure-aggregation", "local")):
            runs = given.rehearsed if "directions" in name else given.runs
            done = list(pool.map(covered, [name] * runs, [trust] * runs, range(runs)))
            found = [shares for shares, _ in done]
            if "directions" not in name:
                clusters += [cluster for _, some in done for cluster in some]
            epsilon = CASES[name][1]
            centers, sizes, in_rounds, clipped = np.mean(found, axis=0)
            print(f"| {name} | {trust} | {epsilon:g} | {runs} | {centers:.1%} | {sizes:.1%} | "
                  f"{in_rounds:.1%} | "
                  f"{clipped:.0%} |", flush=True)  # fmt: skip
    print("\n| clusters | how many | centres covered |\n|---|---|---|")
    for what, is_far in (("not named as far out", False), ("named as far out", True)):
        some = [share for named, share in clusters if named == is_far]
        if some:
            print(f"| {what} | {len(some)} | {np.mean(some):.1%} |")


if __name__ == "__main__":
    main()
