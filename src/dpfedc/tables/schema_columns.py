"""One column of a schema: what it is, which features it becomes, and what may be said of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from dpfedc.errors import InvalidInput
from dpfedc.settings import require_choice, require_number
from dpfedc.tables.layout import GAPS, NUMBER, SHARES, Group

KINDS, TRANSFORMS, GAP_RULES = (
    ("number", "category", "ignore"),
    ("none", "log"),
    ("mean", "indicator"),
)
AUTO, OPEN, OTHER = "auto", "?", "other"
"""A range that the run finds out, one that somebody must still fill in, and the value of a category
that stands for all that are not listed."""
WEIGHTS = {"number": 1.0, "category": 0.5}
"""How much a column counts by default. At half weight categories do not drown the numbers."""
MAX_WEIGHT, MAX_VALUES, MAX_NAME = 100.0, 1000, 200
ENTRIES = {
    "number": ("range", "transform", "missing", "weight", "typical"),
    "category": ("values", "weight", "typical"),
    "ignore": (),
}
"""What a column of each kind may have, beside its name and kind."""


@dataclass(frozen=True)
class Column:
    """A column that is read: a number with its range, or a category with its values."""

    name: str
    kind: str
    range: tuple[float, float] | str | None = None
    transform: str = "none"
    missing: str = "mean"
    values: tuple[str, ...] = ()
    weight: float = 1.0
    typical: tuple[float, ...] | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """Return the range after the transform; None if the run finds it out."""
        if not isinstance(self.range, tuple):
            return None
        low, high = self.range
        return (math.log(low), math.log(high)) if self.transform == "log" else (low, high)

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the features that the column becomes."""
        if self.kind == "category":
            return tuple(f"{self.name}={value}" for value in (*self.values, OTHER))
        return (self.name, f"{self.name} missing")[: 1 + (self.missing == "indicator")]

    def groups(self, start: int) -> Iterator[Group]:
        """Return the features as public facts, from place `start` on."""
        if self.kind == "category":
            shares = None if self.typical is None else (*self.typical, 1 - sum(self.typical))
            yield Group(SHARES, start, len(self.values) + 1, self.weight, shares)
            return
        typical = None
        if self.typical is not None and self.ends is not None:
            (low, high), to = self.ends, math.log if self.transform == "log" else float
            a, b = (to(end) for end in self.typical)
            typical = ((a + b - low - high) / (high - low), (b - a) / (high - low))
        yield Group(NUMBER, start, 1, self.weight, typical, auto=self.range == AUTO)
        if self.missing == "indicator":
            # A mark is a category with two values, so it counts as one.
            known = None if typical is None else (0.5,)
            yield Group(GAPS, start + 1, 1, WEIGHTS["category"] * self.weight, known)


def is_column_name(name: Any) -> TypeGuard[str]:
    """Return whether a column may be called so: a short text."""
    return isinstance(name, str) and bool(name.strip()) and len(name) <= MAX_NAME


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once, sorted."""
    return sorted(name for name, n in Counter(names).items() if n > 1)


def checked_column(table: Any) -> Column:
    """Return a checked column."""
    if not isinstance(table, Mapping):
        raise InvalidInput(f"[[column]] must be a table, got {table!r}")
    name = table.get("name")
    if not is_column_name(name) or name != name.strip():
        raise InvalidInput(f"a column's name must be a short text, got {str(name)[:80]!r}")
    where = f"column {name!r}"
    kind = require_choice(f"{where}: kind", table.get("kind"), KINDS)
    for entry in table:
        if entry not in ("name", "kind", *ENTRIES[kind]):
            may = ", ".join(ENTRIES[kind]) or "nothing else"
            raise InvalidInput(f"{where}: a {kind} may have {may}, got {entry!r}")
    if kind == "ignore":
        return Column(name, kind)
    weight = table.get("weight", WEIGHTS[kind])
    weight = require_number(f"{where}: weight", weight, above=0, most=MAX_WEIGHT)
    if kind == "category":
        values = _values(where, table.get("values"))
        typical = _shares(where, table.get("typical"), len(values))
        return Column(name, kind, values=values, weight=weight, typical=typical)
    transform = require_choice(f"{where}: transform", table.get("transform", "none"), TRANSFORMS)
    missing = require_choice(f"{where}: missing", table.get("missing", "mean"), GAP_RULES)
    ends: tuple[float, float] | str = AUTO
    if table.get("range") != AUTO:
        ends = _ends(f"{where}: range", table.get("range"), positive=transform == "log")
    typical = None
    if table.get("typical") is not None:
        if ends == AUTO:
            raise InvalidInput(f"{where}: typical needs a range of two numbers, got 'auto'")
        typical = _ends(f"{where}: typical", table["typical"], positive=transform == "log")
        if not ends[0] <= typical[0] < typical[1] <= ends[1]:  # type: ignore[operator]
            raise InvalidInput(f"{where}: typical must lie in the range, got {list(typical)}")
    return Column(name, kind, ends, transform, missing, weight=weight, typical=typical)


def _ends(what: str, value: Any, *, positive: bool) -> tuple[float, float]:
    """Return two ends, the lower first."""
    if value == OPEN:
        raise InvalidInput(
            f"{what} must be filled in: [least, largest] as publicly known, or 'auto'"
        )
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise InvalidInput(f"{what} must be [least, largest] or 'auto', got {value!r}")
    low, high = (require_number(what, end, least=-1e100, most=1e100) for end in value)
    if not low < high:
        raise InvalidInput(f"{what} must have its lower end first, got [{low:g}, {high:g}]")
    if positive and low <= 0:
        raise InvalidInput(f"{what} must be above 0 for transform = 'log', got {low:g}")
    return low, high


def _values(where: str, values: Any) -> tuple[str, ...]:
    """Return the values of a category as texts."""
    if not isinstance(values, (list, tuple)) or not 0 < len(values) <= MAX_VALUES:
        raise InvalidInput(f"{where}: values must be a list of 1 to {MAX_VALUES:,} values")
    texts = []
    for value in values:
        if not isinstance(value, (str, int)):
            raise InvalidInput(f"{where}: values must be texts or whole numbers, got {value!r}")
        texts.append(str(value).lower() if isinstance(value, bool) else str(value).strip())
    twice = repeated(texts)
    if twice or "" in texts or OTHER in texts:
        got = f"{twice[0]!r} twice" if twice else "an empty one or 'other', which is there anyway"
        raise InvalidInput(f"{where}: values must differ and not be empty, got {got}")
    return tuple(texts)


def _shares(where: str, shares: Any, n_values: int) -> tuple[float, ...] | None:
    if shares is None:
        return None
    if not isinstance(shares, (list, tuple)) or len(shares) != n_values:
        raise InvalidInput(f"{where}: typical must be one share for each of {n_values} values")
    numbers = tuple(require_number(f"{where}: typical", share, least=0, most=1) for share in shares)
    if sum(numbers) > 1 + 1e-9:
        raise InvalidInput(f"{where}: typical shares must sum to at most 1, got {sum(numbers):g}")
    return numbers


def in_words(column: Column) -> str:
    """Return a column and what is read of it, in short.

    >>> in_words(Column("age", "number", (0.0, 110.0)))
    'age (0 to 110)'
    """
    if column.kind == "category":
        return f"{column.name} ({', '.join(column.values[:6])}{', ...' * (len(column.values) > 6)})"
    if not isinstance(column.range, tuple):
        return f"{column.name} (its range is found out)"
    low, high = column.range
    return f"{column.name} ({low:g} to {high:g})"
