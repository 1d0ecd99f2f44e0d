"""Values per round, or per number of clusters, as a line chart: places in a drawing.

A template makes SVG of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from dpfedc.engine.run_record import RunRecord
from dpfedc.summary.choice_of_k import ChoiceOfK
from dpfedc.summary.summarizing import CERTAIN

WIDTH, HEIGHT = 400, 190
LEFT, RIGHT, TOP, BOTTOM = 38.0, 392.0, 20.0, 160.0
"""The drawing, and the edges of the axes in it."""
_MARKED, _PER_LETTER, _LEAST = 40, 6.0, 0.01

Point = tuple[float, float]
Pairs = Sequence[tuple[int, float]]
"""Numbers of rounds, from 1 through the whole run, and values."""


@dataclass(frozen=True)
class LineChart:
    """What is drawn, and the words that stand for it and under it.

    A line is broken between stages, which may measure different things; every second stage is
    shaded. Ticks are places along an axis and their texts.
    """

    heading: str
    alt: str
    caption: str
    lines: tuple[tuple[Point, ...], ...]
    marked: bool
    shades: tuple[tuple[float, float], ...]
    stages: tuple[tuple[float, str], ...]
    across: tuple[tuple[float, str], ...]
    upward: tuple[tuple[float, str], ...]
    reference: float | None = None
    axis: str = "round"
    bars: tuple[tuple[float, float, float], ...] = ()
    """Error bars: where along the axis, from where, up to where."""
    chosen: Point | None = None


def line_chart(
    record: RunRecord,
    pairs: Pairs,
    *,
    heading: str,
    what: str,
    caption: str,
    reference: float | None = None,
) -> LineChart | None:
    """Return the chart of values per round, all at least 0; None if there are none."""
    pairs = [(t, value) for t, value in pairs if math.isfinite(value)]
    if not pairs:
        return None
    first, last = pairs[0][0] - 0.5, pairs[-1][0] + 0.5
    tops = [value for _, value in pairs] + ([] if reference is None else [reference])
    x, y, upward = _places(first, last, max(tops))

    parts, shades, names = [], [], []
    stages = [(name, list(group)) for name, group in groupby(pairs, lambda p: _stage(record, p))]
    for i, (name, group) in enumerate(stages):
        parts.append(tuple((x(t), y(value)) for t, value in group))
        left, right = x(group[0][0] - 0.5), x(group[-1][0] + 0.5)
        if i % 2:
            shades.append((left, round(right - left, 1)))
        if len(stages) > 1 and right - left > _PER_LETTER * len(name):
            names.append((round((left + right) / 2, 1), name))
    ends = [f"{value:.2f} in round {t:,}" for t, value in (pairs[0], pairs[-1])]
    course = ends[0] if len(pairs) == 1 else f"{ends[0]}, {ends[1]}"
    rounds = [t for t in _ticks(last, 6) if first < t < last and t == int(t)]
    return LineChart(
        heading,
        f"Line chart of {what} per round: {course}.",
        caption,
        tuple(parts),
        len(pairs) <= _MARKED,
        tuple(shades),
        tuple(names),
        tuple((x(t), f"{t:,.0f}") for t in rounds),
        upward,
        None if reference is None else y(reference),
    )


def choice_chart(choice: ChoiceOfK) -> LineChart | None:
    """Return the curve behind a choice of k with its error bars; None if nothing of it is known."""
    known = [
        (p.n_clusters, p.link, CERTAIN * (p.error or 0.0))
        for p in choice.curve
        if p.link is not None
    ]
    if not known:
        return None
    first, last = choice.curve[0].n_clusters - 0.5, choice.curve[-1].n_clusters + 0.5
    x, y, upward = _places(first, last, max(link + error for _, link, error in known))
    points = {k: (x(k), y(link)) for k, link, _ in known}
    word = "clear" if choice.clear else "not clear"
    return LineChart(
        "How many clusters?",
        f"Line chart of the link between the closest two clusters, for {known[0][0]} to "
        f"{known[-1][0]} clusters; {choice.n_clusters} are chosen, which is {word}.",
        f"How strongly the closest two clusters hang together: at 0 there is a gap between them, "
        f"from about 0.2 on they are parts of one cloud. The choice, {choice.n_clusters} (ringed), "
        f"is {word}: beyond it links are stronger by {choice.step:.2f} on average, and from "
        f"{choice.needed:.2f} on that is clear. Bars hold 95 % of the noise.",
        (tuple(points.values()),),
        len(points) <= _MARKED,
        (),
        (),
        tuple((x(k), f"{k:,.0f}") for k in _ticks(last, 10) if first < k < last and k == int(k)),
        upward,
        axis="number of clusters",
        bars=tuple((x(k), y(link - error), y(link + error)) for k, link, error in known if error),
        chosen=points.get(choice.n_clusters),
    )


def _places(
    first: float, last: float, most: float
) -> tuple[Callable[[float], float], Callable[[float], float], tuple[tuple[float, str], ...]]:
    """Return where numbers lie across, where values lie upward, and the ticks of these."""
    top = max(1.05 * most, _LEAST)

    def x(t: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (t - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * max(value, 0.0) / top, 1)

    return x, y, tuple((y(value), f"{value:,.10g}") for value in _ticks(top, 4))


def _stage(record: RunRecord, pair: tuple[int, float]) -> str:
    return record.rounds[pair[0] - 1].stage


def _ticks(top: float, most: int) -> list[float]:
    """Return round numbers from 0 up to at most `top`.

    >>> _ticks(0.9, 4), _ticks(30, 6)
    ([0.0, 0.5], [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0])
    """
    size = 10.0 ** math.floor(math.log10(top / most))
    step = next(size * f for f in (1, 2, 5, 10) if top / (size * f) <= most)
    return [round(i * step, 12) for i in range(math.floor(top / step + 1e-9) + 1)]
