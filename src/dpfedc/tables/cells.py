"""What one cell is worth: its number and its text. Both depend on that cell alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, time
from decimal import Decimal
from typing import Any

import numpy as np

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Texts that say that there is no number, in lower case."""

UNREAD = "\ufffd"
"""What stands for a letter that could not be decoded."""

_NUMERIC = (str, int, float, Decimal)
_MOST_DIGITS = 400  # beyond them a whole number is not written out: it could take all memory


def number(cell: Any) -> float | None:
    """Return the number that a cell is or spells, NaN if it is missing, None if it is no number."""
    if cell is None:
        return math.nan
    if isinstance(cell, np.generic):
        cell = cell.item()
    try:
        return float(cell) if isinstance(cell, _NUMERIC) else None
    except ValueError:
        return math.nan if isinstance(cell, str) and cell.lower() in MISSING else None
    except OverflowError:
        return None


def text(cell: Any) -> str:
    """Return a cell as text, "" if it is missing or neither text, number, truth value nor date."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace").strip()
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, date | time):
        return cell.isoformat()
    return _digits(cell) if isinstance(cell, int | float | Decimal) else ""


def _digits(cell: float | Decimal) -> str:
    """Return a number as text: 3 and 3.0 are alike."""
    if isinstance(cell, int):
        return str(cell) if cell.bit_length() < 3 * _MOST_DIGITS else ""
    if cell.is_nan() if isinstance(cell, Decimal) else math.isnan(cell):
        return ""
    large = isinstance(cell, Decimal) and cell.is_finite() and cell.adjusted() > _MOST_DIGITS
    if large or abs(cell) == math.inf or cell != int(cell):
        return str(cell)
    return str(int(cell))


def is_word(cell: str) -> bool:
    """Return whether a text that spells no number stands for something, not for a gap."""
    return cell.lower() not in MISSING


def words(texts: Iterable[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which texts are words, and False at the end, for the rows that have no text."""
    return np.array([*map(is_word, texts), False], dtype=np.bool_)
