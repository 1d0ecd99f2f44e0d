"""Numbers for people: no more figures than are known, and never with an exponent for large ones."""

from __future__ import annotations

import math
from numbers import Integral

MOST_PLACES = 6
"""More places after the point are not read: such a number is written in figures."""
SYMMETRIC = 1.25
"""Bars that reach so much farther to one side than to the other are written as two ends."""


def shown(value: str | float | None, digits: int = 4) -> str:
    """Return a number in so many figures, a text as it is, and nothing as a dash.

    >>> shown(0.489), shown(12345), shown(None)
    ('0.4890', '12,345', '–')
    """
    if isinstance(value, str):
        return value
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    if isinstance(value, Integral) or abs(value) >= 1000:
        return f"{value:,.0f}"
    # Zeros at the end are kept, so that the numbers of a column line up.
    return f"{value:#.{digits}g}".rstrip(".") if abs(value) >= 0.001 else f"{value:.{digits}g}"


def with_bars(value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """Return a number with its error bars, rounded to what they support.

    >>> with_bars(54.31, 53.11, 55.51), with_bars(3021, 2871, 3171, "%")
    ('54.3 ± 1.2', '3,020 ± 150 %')
    >>> with_bars(2.04, 0.0, 6.13, "%"), with_bars(54.31, None, None)
    ('2 % (0 to 6)', '54.3')
    """
    text, after, bars = beside(value, low, high), f" {unit}" if unit else "", bar(value, low, high)
    if bars.startswith("±"):
        return f"{text} {bars}{after}"
    return f"{text}{after} ({bars})" if bars else f"{text}{after}"


def bar(value: float, low: float | None, high: float | None) -> str:
    """Return the error bars of a number: how far they reach, or between what; "" if there are none.

    >>> bar(54.31, 53.11, 55.51), bar(2.04, 0.0, 6.13), bar(54.31, None, None)
    ('± 1.2', '0 to 6', '')
    """
    if low is None or high is None or not low < high:
        return ""
    places = _places((high - low) / 2)
    below, above = value - low, high - value
    if max(below, above) <= SYMMETRIC * min(below, above):
        return f"± {_at((high - low) / 2, places)}"
    return f"{_at(low, places)} to {_at(high, places)}"


def beside(value: float, low: float | None, high: float | None) -> str:
    """Return a number that stands beside one with these bars, with as many places.

    One that is exact has four figures, one of which nothing is known has three.

    >>> beside(56.40412, 53.1, 55.5), beside(56.40412, None, None)
    ('56.4', '56.4')
    """
    if low is None or high is None or not low < high:
        return shown(value, 3 if low is None else 4)
    return _at(value, _places((high - low) / 2))


def _places(reach: float) -> int:
    """Return the places at which a bar has two figures if it starts with 1 or 2, else one."""
    power = max(math.floor(math.log10(reach)), -300)  # 10 to the power of less is 0
    return (1 if reach / 10.0**power < 3 else 0) - power


def _at(value: float, places: int) -> str:
    if places > MOST_PLACES:
        return shown(value)
    rounded = round(value, places)
    return f"{rounded or 0.0:,.{max(places, 0)}f}"
