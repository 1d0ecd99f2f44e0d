"""The verdict on a plan, and on a run: usable, rough or useless, with the figures behind it.

Before a run it rests on the plan alone: reference mixtures are clustered with the planned noise and
without any. After it, the clusters that were released are taken for the truth, and looked for once
more: what cannot be found again was hardly found. The worse of the two counts. All of it follows
from public facts and released values, and costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.centers import DOUBTFUL_SIZE
from dpfedc.clustering.method import Method, Settings
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.tables.schema import Schema
from dpfedc.verdict.mixtures import (
    SEPARATIONS,
    SPREAD_IN_RANGE,
    reference_mixture,
    released_mixture,
)
from dpfedc.verdict.rehearsal import Outcome, Rehearsal

Float = npt.NDArray[np.float64]

USABLE, ROUGH, USELESS = "usable", "rough", "useless"
LEAST = {USABLE: 0.75, ROUGH: 0.4}
"""The part of a score without noise that a verdict asks for. Found on seeds 0 to 69 of
`benchmarks/verdict.py`, judged on others: see docs/decisions/0012-verdict.md."""
LEAST_WITHOUT_NOISE = 0.7
"""Below this mean score without noise a run is rough whatever noise does."""
TOO_LARGE = (
    "The plan is too large to be rehearsed (clusters, columns, rounds or steps), so nothing is "
    "known of what it would give."
)
GEOMETRIES, DRAWS = 2, 2
"""Reference mixtures of each separation, and draws of noise for each."""
FEW = 0.2
"""Of the clusters, so many may not stand out from the noise in their counts."""
AGAIN = 4
"""How often released clusters are looked for once more."""


@dataclass(frozen=True)
class Rehearsed:
    """What rehearsals at one separation came to: mean adjusted Rand index with noise and without.

    `lost` is the share of runs in which noise hid what a run must know, so that it stopped.
    """

    name: str
    separation: float
    score: float
    without_noise: float
    lost: float


@dataclass(frozen=True)
class Verdict:
    """One of three words, and why.

    `score` is the part of a score without noise that is to be expected. `center_std` is the
    standard deviation of a centre of average size in each column, in spreads of all records
    (None: not known); `again` how well released clusters were found once more.
    """

    word: str
    score: float
    sentences: tuple[str, ...]
    center_std: float | None = None
    rehearsed: tuple[Rehearsed, ...] = ()
    again: float | None = None

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `as_plain` wrote."""
        try:
            rehearsed = tuple(Rehearsed(**one) for one in plain["rehearsed"])
            return cls(**{**plain, "rehearsed": rehearsed, "sentences": tuple(plain["sentences"])})
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"not a verdict: {error}") from error

    def as_plain(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        plain = asdict(self)
        return {**plain, **{n: list(plain[n]) for n in ("sentences", "rehearsed")}}


def expected_verdict(method: Method, given: Settings, facts: Federation, plan: RunPlan) -> Verdict:
    """Return the verdict on a plan, from public facts alone."""
    hopeless = plan.hopeless(facts)
    if hopeless:
        return Verdict(USELESS, 0.0, (f"No run can succeed: {hopeless}.",))
    if plan.privacy is None:
        return Verdict(USABLE, 1.0, ("No noise is added, so none is in the way.",))
    noisy = Rehearsal(method, given, facts, plan)
    quiet = Rehearsal(method, given, facts, method.plan(given, facts, None))
    if noisy.too_large or quiet.too_large:
        return Verdict(ROUGH, 0.0, (TOO_LARGE,))
    found, pairs = [], []
    low, high = method.cluster_range(given, facts)
    invented = {**given, "n_clusters": round(math.sqrt(low * high))}
    for name, separation in SEPARATIONS.items():
        with_noise, without = [], []
        for geometry in range(GEOMETRIES):
            mixture = reference_mixture(name, invented, facts, seed=geometry)
            draws = [
                noisy.outcome(mixture, records=geometry, noise=100 * geometry + i)
                for i in range(DRAWS)
            ]
            with_noise += draws
            pairs.append(draws)
            without.append(quiet.outcome(mixture, records=geometry, noise=geometry))
        found.append(_rehearsed(name, separation, with_noise, without))
    score = sum(one.score for one in found) / max(sum(one.without_noise for one in found), 1e-9)
    score = min(score, 1.0)
    std = _typical_std(pairs)
    said = _reasons(found, score)
    quiet_score = float(np.mean([one.without_noise for one in found]))
    word = _word(score)
    if quiet.in_full and quiet_score < LEAST_WITHOUT_NOISE:
        word = _worse(word, ROUGH)
        said.append(
            f"Even without noise it scores only {quiet_score:.2f}: such clusters are hard to find "
            "from these settings. Where columns have different ranges, a schema makes them alike."
        )
    return Verdict(word, score, tuple(said), std, tuple(found))


def reached_verdict(
    expected: Verdict,
    method: Method,
    given: Settings,
    facts: Federation,
    plan: RunPlan,
    model: ClusterModel,
    doubts: Sequence[str] = (),
) -> tuple[Verdict, ClusterModel]:
    """Return the verdict on a run: no better than expected, nor than what it released allows.

    The model comes back with errors of its centres, where its stages could not tell them.
    """
    mixture = released_mixture(model, facts.layout)
    if mixture is None:
        word = _worse(expected.word, ROUGH if doubts else USABLE)
        return _doubted(replace(expected, word=word), doubts), model
    # They are looked for, not counted again: how clear their number is has been told.
    known = tuple(stage.finding(mixture.n_clusters) for stage in plan.stages)
    rehearsal = Rehearsal(method, given, facts, replace(plan, stages=known))
    if rehearsal.too_large:
        return _doubted(expected, doubts), model
    outcomes = [rehearsal.outcome(mixture, records=i, noise=i) for i in range(AGAIN)]
    again = float(np.mean([one.score for one in outcomes]))
    said = (
        f"Taken for the truth, the released clusters are found again with a score of {again:.2f} "
        f"of 1 ({AGAIN} rehearsals)."
    )
    if model.center_errors is None:
        model = replace(model, center_errors=_errors(outcomes, model))
    verdict = replace(
        expected,
        word=_worse(expected.word, _word(again), ROUGH if _many_empty(model) else USABLE),
        sentences=(*expected.sentences, said),
        again=again,
    )
    return _doubted(verdict, doubts), model


def verdict_in_words(verdict: Verdict, schema: Schema | None = None) -> list[str]:
    """Return paragraphs, each with its subject and a colon in front."""
    said = [f"Verdict: {verdict.word}. {' '.join(verdict.sentences)}"]
    if verdict.center_std is not None:
        columns = column_stds(verdict, schema)
        named = ", ".join(f"{name} {_digits(std)}" for name, std in columns.items())
        said.append(
            f"Centres: noise moves that of a cluster of average size by "
            f"{_digits(verdict.center_std)} of a column's spread (standard deviation); that of one "
            "half as large by twice as much."
            + (f" In units, for values that fill their ranges well: {named}." if named else "")
        )
    return said


def column_stds(verdict: Verdict, schema: Schema | None) -> dict[str, float]:
    """Return a centre's standard deviation in the units of each number whose range is declared.

    The spread of its values is not known before a run: it is taken to be the mixtures'.
    """
    if schema is None or verdict.center_std is None:
        return {}
    found: dict[str, float] = {}
    for column, at in schema.placed:
        ends = column.ends
        if column.kind == "number" and ends is not None:
            group = next(group for group in schema.layout if group.start == at.start)
            spread = SPREAD_IN_RANGE if group.typical is None else group.typical[1]
            half = (ends[1] - ends[0]) / 2
            std = verdict.center_std * spread * half
            if column.transform == "log":  # in units at the middle of the range
                std = math.expm1(std) * math.exp(sum(ends) / 2)
            found[column.name] = std
    return found


def _digits(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _worse(*words: str) -> str:
    return max(words, key=(USABLE, ROUGH, USELESS).index)


def _word(score: float) -> str:
    return next((word for word, least in LEAST.items() if score >= least), USELESS)


def _doubted(verdict: Verdict, doubts: Sequence[str]) -> Verdict:
    said = tuple(f"{doubt[0].upper()}{doubt[1:]}." for doubt in doubts)
    return replace(verdict, sentences=(*verdict.sentences, *said))


def _many_empty(model: ClusterModel) -> bool:
    """Return whether more clusters than a few do not stand out from the noise in their counts."""
    if model.sizes is None or model.size_errors is None:
        return False
    return float(np.mean(model.sizes < DOUBTFUL_SIZE * model.size_errors)) > FEW


def _errors(outcomes: Sequence[Outcome], model: ClusterModel) -> Float:
    """Return how far centres lie from the true means in rehearsals."""
    k, m = model.directions.shape[0], model.center.size
    gaps = [
        (one.centers - one.exact) / (model.scale or 1.0)
        for one in outcomes
        if one.centers is not None and one.exact is not None
    ]
    if not gaps:
        return np.full((k, m), np.inf)
    squares = np.square(gaps)
    typical = np.median(np.sqrt(squares.mean(axis=2)), axis=0)
    # Columns that set a cluster apart can be off by more than the others.
    return np.asarray(np.maximum(np.sqrt(squares.mean(axis=0)), typical[:, None]))


def _rehearsed(
    name: str, separation: float, noisy: Sequence[Outcome], quiet: Sequence[Outcome]
) -> Rehearsed:
    lost = float(np.mean([one.centers is None for one in noisy]))
    score, without = (float(np.mean([one.score for one in some])) for some in (noisy, quiet))
    return Rehearsed(name, separation, score, without, lost)


def _typical_std(pairs: Sequence[Sequence[Outcome]]) -> float | None:
    """Return a centre's standard deviation in a column, in spreads, from runs that differ in noise.

    The median over centres: a centre that went astray in one of the runs says nothing of it.
    """
    gaps = [
        np.sqrt(((one.columns - two.columns) ** 2).mean(axis=1) / 2)
        for one, two in pairs
        if one.columns is not None and two.columns is not None and one.columns.size
    ]
    return float(np.median(np.concatenate(gaps))) if gaps else None


def _reasons(found: Sequence[Rehearsed], score: float) -> list[str]:
    per = "; ".join(f"{one.name} {one.score:.2f} of {one.without_noise:.2f}" for one in found)
    said = [
        f"Rehearsed with invented clusters of these numbers, runs with the planned noise score "
        f"{score:.2f} of what runs without noise score ({per}). From {LEAST[USABLE]:g} on it is "
        f"usable, below {LEAST[ROUGH]:g} useless."
    ]
    lost = float(np.mean([one.lost for one in found]))
    if lost > 0:
        said.append(
            f"In {100 * lost:.0f} % of the rehearsals the run stopped, since noise hid how long "
            "records are, or in which range columns lie: declare it."
        )
    return said
