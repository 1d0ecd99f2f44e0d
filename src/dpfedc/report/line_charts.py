"""A value per round as a line chart: places in a drawing, which a template makes SVG of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dpfedc.engine.run_record import RunRecord

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
    top = max(1.05 * max(tops), _LEAST)
    upward = _ticks(top, 4)

    def x(t: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (t - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * max(value, 0.0) / top, 1)

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
        tuple((y(value), f"{value:,.10g}") for value in upward),
        None if reference is None else y(reference),
    )


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
