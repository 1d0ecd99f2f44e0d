"""Whether the intervals of released sizes, costs and silhouettes hold what they say.

python benchmarks/quality.py [--runs 200]

In every run records, start and noise are new. The 95 % intervals of `quality_` should cover what
the pooled records and the fitted model's labels give: of each cluster, and of all. Clusters lie at
equal distances from the middle, so that hardly a record is clipped.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from dpfedc import DPFedC
from dpfedc.summary.cluster_quality import Measured

N_RECORDS, N_SITES = 3000, 5
Float = np.ndarray[Any, np.dtype[np.float64]]
Draw = Callable[[np.random.Generator], Float]


def corners(d: int, distance: float = 11.0) -> Draw:
    """Return four clusters at equal distances from each other, and so from the middle."""

    def draw(rng: np.random.Generator) -> Float:
        centers = distance / np.sqrt(2) * np.eye(4, d)
        return centers[rng.integers(4, size=N_RECORDS)] + rng.standard_normal((N_RECORDS, d))

    return draw


def arcs(rng: np.random.Generator) -> Float:
    """Return a long and a short arc of one circle: nearest centres do not tell them apart."""
    turns = rng.random(N_RECORDS)
    angles = np.pi * np.where(turns < 0.75, 1.3 * turns / 0.75, 1.45 + 0.4 * (turns - 0.75) / 0.25)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return 10 * circle + 0.3 * rng.standard_normal((N_RECORDS, 2))


CASES: dict[str, tuple[Draw, int, dict[str, Any]]] = {
    "corners, 5 columns, round": (corners(5, 20.0), 4, {"shape": "round"}),
    "arcs, 2 columns, any shape": (arcs, 2, {"shape": "any"}),
    "corners, 60 columns, directions": (corners(60), 4, {"shape": "round", "cells": None}),
    "corners, 60 columns, any shape": (corners(60), 4, {"shape": "any", "cells": None}),
}
TRUSTS = (("secure-aggregation", 1.0), ("local", 8.0))
HEAD = (
    *("clusters", "trust", "epsilon", "runs", "sizes", "costs", "silhouettes", "cost of all"),
    *("silhouette of all", "with an interval", "assigned by", "clipped"),
)


def exact(estimator: DPFedC, X: Float) -> tuple[Float, Float]:
    """Return squared distances to what records are assigned by, and their silhouettes."""
    model, labels = estimator.model_, estimator.labels_
    places, groups = estimator.cluster_centers_, np.arange(len(estimator.cluster_centers_))
    if model.by_prototype:
        places, groups = estimator.prototypes_, model.groups.astype(int)
    squares = np.stack([((X - place) ** 2).sum(axis=1) for place in places], axis=1)
    own = groups == labels[:, None]
    a, b = (np.where(some, squares, np.inf).min(axis=1) ** 0.5 for some in (own, ~own))
    return a**2, (b - a) / np.maximum(a, b)


def covers(measured: Measured, value: float) -> bool:
    low, high = measured.interval
    return low <= value <= high


def covered(name: str, trust: str, epsilon: float, seed: int) -> tuple[list[float], str]:
    """Return the shares of covered sizes, costs and silhouettes, and of what they are of."""
    warnings.simplefilter("ignore")
    draw, k, settings = CASES[name]
    seed += 1000 * (2 * list(CASES).index(name) + (trust == "local"))
    X = draw(np.random.default_rng(seed))
    estimator = DPFedC(
        k, epsilon=epsilon, trust=trust, quality=True, random_state=seed, **settings
    ).fit(X, sites=np.arange(N_RECORDS) % N_SITES)
    model, labels, quality = estimator.model_, estimator.labels_, estimator.quality_
    assert quality is not None
    squares, silhouettes = exact(estimator, X)
    sizes = [covers(one.size, int((labels == c).sum())) for c, one in enumerate(quality.clusters)]
    known = [
        (one.cost, one.silhouette, labels == c)
        for c, one in enumerate(quality.clusters)
        if one.cost is not None and (labels == c).any()
    ]
    found = [
        np.mean(sizes),
        np.mean([covers(cost, squares[own].mean()) for cost, _, own in known] or [np.nan]),
        np.mean([covers(some, silhouettes[own].mean()) for _, some, own in known] or [np.nan]),
        covers(quality.cost, squares.mean()),
        covers(quality.silhouette, silhouettes.mean()),
        len(known) / len(quality.clusters),
        np.mean(np.linalg.norm(X - model.center, axis=1) > model.scale),
    ]
    way = "membership" if model.by_membership else "centre"
    return [float(share) for share in found], "prototype" if model.by_prototype else way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n|" + "---|" * len(HEAD))
    with ProcessPoolExecutor(given.jobs) as pool:
        for name in CASES:
            for trust, epsilon in TRUSTS:
                arguments = ([what] * given.runs for what in (name, trust, epsilon))
                done = list(pool.map(covered, *arguments, range(given.runs)))
                *shares, with_bars, clipped = np.nanmean([found for found, _ in done], axis=0)
                by = " or ".join(sorted({way for _, way in done}))
                told = " | ".join(f"{share:.1%}".replace("%", " %") for share in shares)
                print(f"| {name} | {trust} | {epsilon:g} | {given.runs} | {told} | "
                      f"{with_bars:.0%} | {by} | {clipped:.1%} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
