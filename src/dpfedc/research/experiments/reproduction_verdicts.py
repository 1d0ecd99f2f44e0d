"""Verdicts on the paper's numbers and claims, from the runs of the experiment `reproduction`.

A number is reproduced if ours is within two standard errors of it and within two points, close if
it is within five points, and else not reproduced. The paper gives no spread: its number, a mean of
5 runs, is taken to have the spread of ours. A claim is judged in every setting it speaks of, seed
by seed (`claims.py`). It is reproduced if it is held in all of them, close if it is held in some
and contradicted in none, and else not reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from dpfedc.research.experiments.claims import HELD, NOT_HELD, UNDECIDED, Judgement, judged
from dpfedc.research.experiments.reproduction_readings import CLOSEST, DEFAULTS, FALLING
from dpfedc.research.experiments.result_tables import PAPER_TABLE
from dpfedc.research.experiments.results import Result, read_manifest, read_results, read_rounds
from dpfedc.research.spread import mean_and_error

REPRODUCED, CLOSE, NOT_REPRODUCED = "reproduced", "close", "not reproduced"
NOT_TESTABLE = "not testable"
PAPER_RUNS, EXACTLY, NEARLY = 5, 2.0, 5.0
"""Runs behind a number of the paper; points of accuracy within which ours is the same, or close."""


@dataclass(frozen=True)
class Row:
    """A row of Table I in one reading; without noise its cells may have another variant."""

    title: str
    method: str
    variant: str
    exact_variant: str
    paper_method: str
    guess: bool = False


TABLE_ROWS = (
    Row("DP-FedC, closest reading (G chosen with labels)", "dp-fedc", CLOSEST, CLOSEST, "dp-fedc"),
    Row("DP-FedC, our defaults", "dp-fedc", DEFAULTS, DEFAULTS, "dp-fedc"),
    Row("FZKM", "fuzzy-c-means", "per-round", "", "fuzzy-c-means"),
    Row("FKM, sums and counts (its reference)", "federated-k-means", "per-round", "",
        "federated-k-means"),
    Row("FKM, plain average of local means", "averaged-k-means", "", "", "federated-k-means", True),
    Row("DKM", "coreset-k-median", "per-round", "", "coreset-k-median"),
    Row("DK++, with Lloyd rounds", "k-means-parallel", "per-round", "", "k-means-parallel"),
    Row("DK++, without Lloyd rounds", "k-means-parallel", "no-lloyd-rounds", "no-lloyd-rounds",
        "k-means-parallel", True),
)  # fmt: skip
RIVALS = tuple(row for row in TABLE_ROWS if row.method != "dp-fedc")


@dataclass(frozen=True)
class Runs:
    """The finished runs of the experiment, and the mean log objective over each run's rounds."""

    results: Sequence[Result]
    mean_logs: Mapping[str, float]
    epsilon: float
    count: int | None
    """Sites in a round, where it is not what is compared."""

    @classmethod
    def of(cls, folder: Path) -> Runs:
        """Read the folder of the experiment."""
        read_manifest(folder)
        curves: dict[str, list[float]] = {}
        for row in read_rounds(folder):
            if row.objective is not None and row.objective > 0:
                curves.setdefault(row.cell, []).append(math.log(row.objective))
        results = read_results(folder)
        counts = [r.sites_per_round for r in results if r.variant == CLOSEST]
        logs = {cell: float(np.mean(curve)) for cell, curve in curves.items()}
        return cls(results, logs, 20.0, counts[0] if counts else None)

    def chosen(
        self,
        method: str,
        variant: str,
        *,
        epsilon: float | None,
        partition: str = "iid",
        count: int | None = None,
    ) -> list[Result]:
        """Return the runs of one setting."""
        wanted = (method, variant, epsilon, partition, count or self.count)
        return [
            r for r in self.results
            if (r.method, r.variant, r.epsilon, r.partition, r.sites_per_round) == wanted
        ]  # fmt: skip

    def row(self, row: Row, epsilon: float | None) -> list[Result]:
        """Return the runs of a row of Table I."""
        variant = row.exact_variant if epsilon is None else row.variant
        return self.chosen(row.method, variant, epsilon=epsilon)

    def gains(
        self,
        better: Sequence[Result],
        worse: Sequence[Result],
        measure: Callable[[Result], float | None] = lambda r: r.accuracy,
    ) -> list[float]:
        """Return better minus worse by seed."""
        a, b = ({r.seed: measure(r) for r in rows} for rows in (better, worse))
        pairs = [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]
        return [x - y for x, y in pairs if x is not None and y is not None]

    def speed(self, result: Result) -> float | None:
        """Return minus the mean log objective over the rounds: larger is faster."""
        log = self.mean_logs.get(result.cell)
        return None if log is None else -log


def low_objective(result: Result) -> float | None:
    """Return minus the log of the last objective: larger is better."""
    value = result.objective
    return -math.log(value) if value is not None and value > 0 else None


def number_verdict(accuracies: Sequence[float], paper: float) -> str:
    """Return the verdict on a number of Table I, in per cent.

    >>> number_verdict([50.0, 51.0, 52.0], 50.5), number_verdict([46.0, 46.1, 46.2], 50.5)
    ('reproduced', 'close')
    """
    mean, error = mean_and_error(accuracies)
    gap = abs(mean - paper)
    together = error * math.sqrt(1 + len(accuracies) / PAPER_RUNS)
    if gap <= min(2 * together, EXACTLY):
        return REPRODUCED
    return CLOSE if gap <= NEARLY else NOT_REPRODUCED


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, judged wherever it can be; none of it where `judged` is empty."""

    source: str
    words: str
    reading: str
    judged: tuple[Judgement, ...]

    @property
    def verdict(self) -> str:
        """Return the verdict over all settings."""
        found = {j.verdict for j in self.judged}
        if not found:
            return NOT_TESTABLE
        if found == {HELD}:
            return REPRODUCED
        return CLOSE if found == {HELD, UNDECIDED} else NOT_REPRODUCED

    @property
    def count(self) -> str:
        """Return in how many settings it was held, undecided and contradicted."""
        if not self.judged:
            return ""
        n = [sum(j.verdict == v for j in self.judged) for v in (HELD, UNDECIDED, NOT_HELD)]
        return " / ".join(map(str, n))


def all_claims(runs: Runs) -> list[Claim]:
    """Return every claim of Table I, Fig. 3 and Fig. 4 with its verdict."""
    return [*_table_claims(runs), *_figure_3(runs), *_figure_4(runs)]


def _judge(where: str, gains: Sequence[float], unit: str = "accuracy") -> Iterator[Judgement]:
    if gains:
        yield judged("", where, gains, least=0.0, unit=unit)


def _table_claims(runs: Runs) -> Iterator[Claim]:
    exact = {row: runs.row(row, None) for row in TABLE_ROWS}
    noisy = {row: runs.row(row, runs.epsilon) for row in TABLE_ROWS}
    costs = [j for r in TABLE_ROWS for j in _judge(r.title, runs.gains(exact[r], noisy[r]))]
    yield Claim("Table I", "all methods are better without noise", "all rows", tuple(costs))
    for ours in TABLE_ROWS[:2]:
        for level, rows in (("without noise", exact), (f"at {runs.epsilon:g}", noisy)):
            found = [
                j
                for rival in RIVALS
                for j in _judge(f"above {rival.title}", runs.gains(rows[ours], rows[rival]))
            ]
            words = f"DP-FedC is the most accurate {level}"
            yield Claim("Table I", words, ours.title, tuple(found))
        found = []
        for rival in RIVALS:
            lost = _losses(exact[ours], noisy[ours]), _losses(exact[rival], noisy[rival])
            gains = [lost[1][s] - lost[0][s] for s in sorted(lost[0].keys() & lost[1].keys())]
            found += _judge(f"less than {rival.title}", gains)
        words = "noise costs DP-FedC much less than the others"
        yield Claim("Table I", words, ours.title, tuple(found))
    yield Claim("Table I", "all of this on TCGA", "", ())


def _losses(exact: Sequence[Result], noisy: Sequence[Result]) -> dict[int, float]:
    before = {r.seed: r.accuracy for r in exact}
    return {r.seed: before[r.seed] - r.accuracy for r in noisy if r.seed in before}


def _figure_3(runs: Runs) -> Iterator[Claim]:
    levels = (None, 20.0, 2.0)
    measures = (
        ("a smaller objective", low_objective, "log objective"),
        ("a higher accuracy", lambda r: r.accuracy, "accuracy"),
        ("faster convergence", runs.speed, "mean log objective"),
    )
    for variant, reading in ((FALLING, "closest, falling steps"), (CLOSEST, "closest, Q2 = 5")):
        grid = {
            (e, p): runs.chosen("dp-fedc", variant, epsilon=e, partition=p)
            for e in levels
            for p in ("iid", "non-iid")
        }
        for words, measure, unit in measures:
            found = [
                j
                for p in ("iid", "non-iid")
                for more, less in pairwise(levels)
                for j in _judge(
                    f"{p}, {_noise(more)} against {_noise(less)}",
                    runs.gains(grid[more, p], grid[less, p], measure),
                    unit,
                )
            ]
            yield Claim("Fig. 3", f"a larger epsilon gives {words}", reading, tuple(found))
        for words, measure, unit in measures[:2]:
            found = [
                j
                for e in levels
                for j in _judge(
                    _noise(e), runs.gains(grid[e, "iid"], grid[e, "non-iid"], measure), unit
                )
            ]
            yield Claim("Fig. 3", f"IID has {words} than non-IID", reading, tuple(found))
        found = []
        for e in levels:
            alike, unlike = grid[e, "iid"], grid[e, "non-iid"]
            by_accuracy = runs.gains(alike, unlike, lambda r: math.log(r.accuracy))
            by_objective = runs.gains(alike, unlike, low_objective)
            gaps = [a - o for a, o in zip(by_accuracy, by_objective, strict=False)]
            found += _judge(_noise(e), gaps, "log ratio")
        words = "the gap between IID and non-IID is larger in accuracy than in the objective"
        yield Claim("Fig. 3", words, reading, tuple(found))
    for words in ("all of this on TCGA", "non-IID data cost more on TCGA than on MNIST"):
        yield Claim("Fig. 3", words, "", ())


def _figure_4(runs: Runs) -> Iterator[Claim]:
    counts = sorted({r.sites_per_round or 0 for r in runs.results if r.variant == FALLING})
    grid = {
        (k, p): runs.chosen("dp-fedc", FALLING, epsilon=runs.epsilon, partition=p, count=k)
        for k in counts
        for p in ("iid", "non-iid")
    }
    reading = "closest, falling steps"
    measures = (
        ("a smaller objective", low_objective, "log objective"),
        ("faster convergence", runs.speed, "mean log objective"),
        ("a higher accuracy", lambda r: r.accuracy, "accuracy"),
    )
    for words, measure, unit in measures:
        found = [
            j
            for p in ("iid", "non-iid")
            for few, many in pairwise(counts)
            for j in _judge(
                f"{p}, {many} against {few}", runs.gains(grid[many, p], grid[few, p], measure), unit
            )
        ]
        yield Claim("Fig. 4", f"a larger K gives {words}", reading, tuple(found))
        found = [
            j
            for k in counts
            for j in _judge(
                f"K = {k}", runs.gains(grid[k, "iid"], grid[k, "non-iid"], measure), unit
            )
        ]
        yield Claim("Fig. 4", f"IID has {words} than non-IID", reading, tuple(found))
    yield Claim("Fig. 4", "all of this on TCGA", "", ())


def _noise(epsilon: float | None) -> str:
    return "no noise" if epsilon is None else f"epsilon {epsilon:g}"


def ranking(runs: Runs, epsilon: float | None) -> tuple[list[str], int, int]:
    """Return the paper's order of methods, and in how many combinations of readings ours is it.

    Every reading of DP-FedC is combined with every reading of each rival.
    """
    paper = {m: row["mnist", epsilon] for m, row in PAPER_TABLE.items()}
    order = sorted(paper, key=lambda m: -paper[m])
    means: dict[str, list[float]] = {method: [] for method in order}
    own = dict.fromkeys(r.variant for r in runs.results if r.method == "dp-fedc")
    for variant in own:
        found = runs.chosen("dp-fedc", variant, epsilon=epsilon)
        means["dp-fedc"] += [float(np.mean([r.accuracy for r in found]))] if found else []
    for rival in RIVALS:
        found = runs.row(rival, epsilon)
        means[rival.paper_method] += [float(np.mean([r.accuracy for r in found]))] if found else []
    combinations = list(product(*(means[method] for method in order)))
    same = sum(list(c) == sorted(c, reverse=True) for c in combinations)
    return order, same, len(combinations)
