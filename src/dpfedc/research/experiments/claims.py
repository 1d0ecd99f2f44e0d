"""The paper's qualitative claims, judged from results: held, not held, or undecided.

A claim compares two kinds of runs, seed by seed. Its margin is the mean over seeds of the
difference in the claim's favour, its standard error that of this mean. With a threshold t (0 where
the paper says better; minus one point of accuracy where it says no worse):

    held       margin - 2 standard errors > t
    not held   margin + 2 standard errors < t
    undecided  otherwise, and with fewer than two seeds
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpfedc.research.experiments.compared_methods import METHODS, PER_ROUND
from dpfedc.research.experiments.results import Result
from dpfedc.research.spread import mean_and_error

HELD, NOT_HELD, UNDECIDED = "held", "not held", "undecided"
TOLERANCE = 0.01
"""One point of accuracy counts as no worse."""

LOWER_OBJECTIVE = "larger epsilon: lower objective"
NO_LOWER_ACCURACY = "larger epsilon: no lower accuracy"
IID_NO_WORSE = "iid no worse than non-iid"
MORE_SITES_NO_WORSE = "more sites in a round: no worse"
MOST_ACCURATE = "DP-FedC most accurate"
HURT_LEAST = "DP-FedC hurt least by noise"

_PAPER_RIVALS = {name for name, entry in METHODS.items() if entry.paper_name} - {"dp-fedc"}

Key = tuple[str, ...]
Measure = Callable[[Result], float | None]


@dataclass(frozen=True)
class Judgement:
    """A claim in one setting. `margin` is in the unit named; None where nothing could be paired."""

    claim: str
    where: str
    verdict: str
    margin: float | None
    standard_error: float | None
    n_seeds: int
    unit: str = "accuracy"


def judgements(results: Sequence[Result]) -> list[Judgement]:
    """Return every claim in every setting that the results have something to say about."""
    ours = [r for r in results if r.method == "dp-fedc"]
    return [
        *_larger_epsilon(ours),
        *_partitions(ours),
        *_sites_per_round(ours),
        *_against_rivals(results),
    ]


def judged(
    claim: str, where: str, differences: Sequence[float], *, least: float, unit: str = "accuracy"
) -> Judgement:
    """Return the judgement of paired differences in the claim's favour; `least` is the threshold.

    >>> judged("a", "b", [0.05, 0.06, 0.07], least=0.0).verdict
    'held'
    """
    n = len(differences)
    if n == 0:
        return Judgement(claim, where, UNDECIDED, None, None, 0, unit)
    margin, error = mean_and_error(differences)
    if n == 1 or not all(map(math.isfinite, differences)):
        return Judgement(claim, where, UNDECIDED, margin, None, n, unit)
    verdict = UNDECIDED
    if margin - 2 * error > least:
        verdict = HELD
    elif margin + 2 * error < least:
        verdict = NOT_HELD
    return Judgement(claim, where, verdict, margin, error, n, unit)


def _larger_epsilon(ours: Sequence[Result]) -> Iterator[Judgement]:
    """Yield both claims on epsilon, for each pair of neighbouring levels in one setting.

    The published variant, however it is read, is judged by its objective. The normalized one states
    its objective in units that depend on the noise, so the k-means cost, which has one meaning at
    every epsilon, stands for it. Both are compared by the logarithm of their ratio, since they
    differ in scale.
    """
    noisy = {r.trust for r in ours if r.epsilon is not None}
    for trust in sorted(noisy):
        some = [r for r in ours if r.trust == trust or r.epsilon is None]
        groups = _groups(
            some, lambda r: (r.data, r.partition, r.variant, _count(r.sites_per_round))
        )
        for key, rows in groups:
            levels = sorted({_level(r) for r in rows})
            for small, large in pairwise(levels):
                less = [r for r in rows if _level(r) == small]
                more = [r for r in rows if _level(r) == large]
                where = f"{', '.join(key)}, {trust}: {_epsilon(large)} against {_epsilon(small)}"
                published = key[2] != "normalized"
                unit = "log ratio of the objective" if published else "log ratio of the cost"
                measure = _log_objective if published else _log_cost
                gains = _differences(less, more, measure)
                if gains or not published:
                    yield judged(LOWER_OBJECTIVE, where, gains, least=0.0, unit=unit)
                gains = _differences(more, less, _accuracy)
                yield judged(NO_LOWER_ACCURACY, where, gains, least=-TOLERANCE)


def _partitions(ours: Sequence[Result]) -> Iterator[Judgement]:
    """Yield the claim that records dealt at random serve at least as well as unlike sites."""
    groups = _groups(ours, lambda r: (r.data, r.variant, _count(r.sites_per_round), _noise(r)))
    for key, rows in groups:
        alike = [r for r in rows if r.partition == "iid"]
        unlike = [r for r in rows if r.partition == "non-iid"]
        if alike and unlike:
            gains = _differences(alike, unlike, _accuracy)
            yield judged(IID_NO_WORSE, ", ".join(key), gains, least=-TOLERANCE)


def _sites_per_round(ours: Sequence[Result]) -> Iterator[Judgement]:
    """Yield the claim on K, for each pair of neighbouring K in one setting."""
    for key, rows in _groups(ours, lambda r: (r.data, r.partition, r.variant, _noise(r))):
        counts = sorted({r.sites_per_round for r in rows if r.sites_per_round is not None})
        for few, many in pairwise(counts):
            gains = _differences(
                [r for r in rows if r.sites_per_round == many],
                [r for r in rows if r.sites_per_round == few],
                _accuracy,
            )
            where = f"{', '.join(key)}: {many} against {few}"
            yield judged(MORE_SITES_NO_WORSE, where, gains, least=-TOLERANCE)


def _against_rivals(results: Sequence[Result]) -> Iterator[Judgement]:
    """Yield both claims on the paper's rivals; each is judged against the best of them.

    The best is the rival with the highest mean accuracy, or with the least mean loss by noise. A
    rival with the paper's noise in every round counts as one more.
    """
    for key, rows in _groups(results, lambda r: (r.data, r.partition)):
        variants = sorted({r.variant for r in rows if r.method == "dp-fedc"})
        rivals = sorted({(r.method, r.variant) for r in rows if r.method in _PAPER_RIVALS})
        for level in sorted({_level(r) for r in rows}, reverse=True):
            here = [r for r in rows if _level(r) == level and r.trust in ("", "local")]
            known = [rival for rival in rivals if _of(here, *rival)]
            for variant in variants if known else ():
                best = max(
                    known, key=lambda rival: np.mean([r.accuracy for r in _of(here, *rival)])
                )
                gains = _differences(_of(here, "dp-fedc", variant), _of(here, *best), _accuracy)
                yield judged(MOST_ACCURATE, _place(key, variant, level, best), gains, least=0.0)
        for level in sorted({_level(r) for r in rows if r.epsilon is not None}, reverse=True):
            by_rival = {rival: _losses(rows, *rival, level) for rival in rivals}
            by_rival = {rival: lost for rival, lost in by_rival.items() if lost}
            for variant in variants if by_rival else ():
                own = _losses(rows, "dp-fedc", variant, level)
                best = min(by_rival, key=lambda rival: np.mean([*by_rival[rival].values()]))
                gains = [by_rival[best][seed] - own[seed] for seed in own if seed in by_rival[best]]
                yield judged(HURT_LEAST, _place(key, variant, level, best), gains, least=0.0)


def _losses(rows: Sequence[Result], method: str, variant: str, level: float) -> dict[int, float]:
    """Return what noise at the sites costs in accuracy, by seed."""
    exact = {r.seed: r.accuracy for r in _of(rows, method, variant) if r.epsilon is None}
    if variant == PER_ROUND:
        exact = {r.seed: r.accuracy for r in _of(rows, method, "") if r.epsilon is None}
    noisy = {
        r.seed: r.accuracy
        for r in _of(rows, method, variant)
        if r.epsilon == level and r.trust == "local"
    }
    return {seed: exact[seed] - noisy[seed] for seed in sorted(exact.keys() & noisy.keys())}


def _place(key: Key, variant: str, level: float, rival: tuple[str, str]) -> str:
    per_round = " with noise per round" if rival[1] == PER_ROUND else ""
    title = METHODS[rival[0]].title + per_round
    return f"{', '.join(key)}, {variant}, {_epsilon(level)}: against {title}"


def _groups(
    results: Iterable[Result], key: Callable[[Result], Key]
) -> list[tuple[Key, list[Result]]]:
    found: dict[Key, list[Result]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return list(found.items())


def _differences(
    first: Sequence[Result], second: Sequence[Result], measure: Measure
) -> list[float]:
    """Return first minus second, for the seeds that both have a value of."""
    a, b = ({r.seed: measure(r) for r in rows} for rows in (first, second))
    pairs = [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]
    return [x - y for x, y in pairs if x is not None and y is not None]


def _of(rows: Sequence[Result], method: str, variant: str) -> list[Result]:
    return [r for r in rows if (r.method, r.variant) == (method, variant)]


def _accuracy(result: Result) -> float:
    return result.accuracy


def _log_objective(result: Result) -> float | None:
    value = result.objective
    return math.log(value) if value is not None and value > 0 else None


def _log_cost(result: Result) -> float | None:
    return math.log(result.cost) if result.cost > 0 else None


def _level(result: Result) -> float:
    return math.inf if result.epsilon is None else result.epsilon


def _epsilon(level: float) -> str:
    return "no noise" if math.isinf(level) else f"epsilon {level:g}"


def _noise(result: Result) -> str:
    return " ".join(word for word in (_epsilon(_level(result)), result.trust) if word)


def _count(sites: int | None) -> str:
    return "all sites" if sites is None else f"K {sites}"
