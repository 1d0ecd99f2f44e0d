"""How fast Theorem 4's measure falls with the number of rounds, from run records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpfedc.engine.run_record import RunRecord
from dpfedc.research.spread import mean_and_error

THEOREM_SLOPE = -0.5


@dataclass(frozen=True)
class Fall:
    """The measure of one partition: a row per seed, a column per number of rounds.

    `slope` is that of the line through the logarithms of the means; `heterogeneity` is the mean of
    zeta over all runs, each measured at its own end.
    """

    data: str
    partition: str
    n_rounds: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    slope: float
    heterogeneity: float


def mean_stationarity(record: RunRecord) -> float:
    """Return the mean over rounds of G_H + G_W, the left-hand side of Theorem 4."""
    sums = [
        r.diagnostics["stationarity_h"] + r.diagnostics["stationarity_w"]
        for r in record.rounds
        if "stationarity_h" in r.diagnostics and "stationarity_w" in r.diagnostics
    ]
    return math.fsum(sums) / len(sums) if sums else math.nan


def log_log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line through (log x, log y); NaN without two places.

    >>> round(log_log_slope([1.0, 4.0, 16.0], [8.0, 4.0, 2.0]), 6)
    -0.5
    """
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a > 0 and b > 0 and math.isfinite(b)]
    if len({a for a, _ in pairs}) < 2:
        return math.nan
    logs = np.log(np.asarray(pairs, dtype=np.float64))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def falls(records: Iterable[RunRecord]) -> list[Fall]:
    """Return the fall of the measure for every data set and partition among the records."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        key = (record.settings["data"]["name"], record.settings["partition"])
        groups.setdefault(key, []).append(record)
    found = []
    for (data, partition), members in groups.items():
        rounds = sorted({int(r.settings["n_rounds"]) for r in members})
        seeds = sorted({int(r.settings["random_state"]) for r in members})
        at = {
            (int(r.settings["random_state"]), int(r.settings["n_rounds"])): mean_stationarity(r)
            for r in members
        }
        values = [[at.get((seed, n), math.nan) for n in rounds] for seed in seeds]
        means, _ = mean_and_error(values)
        zetas = [float(r.results["heterogeneity"]) for r in members]
        found.append(
            Fall(
                data,
                partition,
                tuple(rounds),
                tuple(tuple(row) for row in values),
                log_log_slope(rounds, means),
                math.fsum(zetas) / len(zetas),
            )
        )
    return found
