"""From a table to records: a pure function of each person's (or each single) row and the schema.

A number becomes (value - middle) / half of its range, after the transform, in [-1, 1]; a category
one 1 among zeros; a gap NaN. What is not as the schema says is a gap, and nothing is raised: how
many records there are, and what the others become, depends on no cell of this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpfedc.errors import InvalidInput
from dpfedc.tables.cells import UNREAD, is_word
from dpfedc.tables.layout import GAPS
from dpfedc.tables.persons import Ints, per_person, time_of
from dpfedc.tables.schema import Schema
from dpfedc.tables.schema_columns import Column
from dpfedc.tables.stored import Bools, Floats, GrowingRows, StoredTable, Texts, listed

Ids = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Records:
    """What is clustered: X is n x m, and a record that is not `present` is null.

    `rows` holds the record of each row of the table, -1 for none (None: every row is a record);
    `broken` rows have too few or too many cells.
    `ids` are the ids of persons or records as they stand in the table, `sites` and `labels` the
    texts of these columns; None where no column holds them.
    """

    X: Floats
    present: Bools
    rows: Ints | None = None
    ids: Ids | None = None
    sites: Ids | None = None
    labels: Ids | None = None
    broken: Bools | None = None


class Numbering:
    """Numbers for texts, in the order in which they first appear, over many blocks.

    With `fixed` texts, those have numbers and no others; they are known by `key`. With `names`,
    texts such as "NA" are names like any other, not gaps.
    """

    def __init__(
        self,
        fixed: Sequence[str] | None = None,
        *,
        key: Callable[[str], str] = str,
        names: bool = False,
    ) -> None:
        self.numbers = {text: i for i, text in enumerate(fixed or ())}
        self._is_fixed, self._key, self._names = fixed is not None, key, names

    def of(self, column: Texts) -> Ints:
        """Return the number of each row's text; -1 for a gap, or if it has none."""
        return np.array([*map(self._number, column.distinct), -1])[column.codes]

    def texts(self, numbers: Ints) -> Ids:
        """Return the texts with these numbers; "" for -1."""
        known = (*self.numbers, "")
        return tuple(known[i] for i in numbers)

    def _number(self, text: str) -> int:
        if not self._names and (not is_word(text) or UNREAD in text):
            return -1  # ids that cannot be read might be one
        if self._is_fixed:
            return self.numbers.get(self._key(text), -1)
        return self.numbers.setdefault(text, len(self.numbers))


def encoded_numbers(values: Floats, column: Column) -> Floats:
    """Return a column of numbers encoded; one whose range is not known is only transformed."""
    x = np.where(np.isfinite(values), values, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        if isinstance(column.range, tuple):
            x = np.clip(x, *column.range)
        if column.transform == "log":
            x = np.log(np.where(x > 0, x, np.nan))
    if column.ends is None:
        return x
    low, high = column.ends
    return np.clip((x - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0)


def decoded_numbers(encoded: Floats, column: Column) -> Floats:
    """Return encoded numbers in the units of the table."""
    x = np.asarray(encoded, dtype=np.float64)
    if column.ends is not None:
        low, high = column.ends
        x = (low + high) / 2 + np.clip(x, -1.0, 1.0) * ((high - low) / 2)
    return np.exp(x) if column.transform == "log" else x


def decoded(E: Floats, schema: Schema, *, whole: bool = True) -> Floats:
    """Return encoded points in the units of the table, within what the schema allows.

    Shares are those of a category's values: the nearest ones that sum to 1, unless `whole` is off
    (the ends of intervals do not); of a mark, the share of gaps.
    """
    out = np.array(E, dtype=np.float64)
    for column, at in schema.placed:
        some = out[:, at]
        if column.kind == "number":
            some[:, 0] = decoded_numbers(some[:, 0], column)
            some[:, 1:] = some[:, 1:].clip(0.0, 1.0)
        else:
            some[:] = _nearest_shares(some) if whole else some.clip(0.0, 1.0)
    return out


def balanced(E: Floats, schema: Schema) -> Floats:
    """Return encoded points whose shares sum to 1, each moved as far: some may be below 0.

    Equal noise in all shares has made them sum to something else.
    """
    out = np.array(E, dtype=np.float64)
    for column, at in schema.placed:
        if column.kind == "category":
            out[:, at] -= (out[:, at].sum(axis=1, keepdims=True) - 1) / (len(column.values) + 1)
    return out


def _nearest_shares(rows: Floats) -> Floats:
    """Return for every row the nearest point whose entries are from 0 on and sum to 1."""
    largest_first = -np.sort(-rows, axis=1)
    numbers = np.arange(1, rows.shape[1] + 1)
    shifts = (largest_first.cumsum(axis=1) - 1) / numbers
    # The shift is that of the most entries that all stay above 0.
    last = (largest_first > shifts).sum(axis=1, keepdims=True) - 1
    return np.clip(rows - np.take_along_axis(shifts, last, axis=1), 0.0, 1.0)


def encoded_category(column: Texts, of: Column) -> Floats:
    """Return a column of texts as one 1 among zeros; all NaN for a gap."""
    places = {value: i for i, value in enumerate(of.values)}
    rows = np.zeros((len(column.distinct) + 1, len(of.values) + 1))
    rows[-1] = np.nan
    for i, text in enumerate(column.distinct):
        if text in places or is_word(text):
            rows[i, places.get(text, len(of.values))] = 1.0
        else:
            rows[i] = np.nan
    return rows[column.codes]


def encode_rows(
    X: Floats, numbers: Mapping[str, Floats], texts: Mapping[str, Texts], schema: Schema
) -> None:
    """Encode some rows into X, from their columns; a column that is not there is all gaps."""
    X.fill(np.nan)
    for column, at in schema.placed:
        if column.name in numbers:
            X[:, at.start] = encoded_numbers(numbers[column.name], column)
        elif column.kind == "category" and column.name in texts:
            X[:, at] = encoded_category(texts[column.name], column)


def encoded_table(
    table: StoredTable,
    schema: Schema,
    *,
    label: str | None = None,
    persons: Sequence[str] | None = None,
    key: Callable[[str], str] = str,
) -> Records:
    """Return the records of a table: one per person, or per row where the schema has no persons.

    Persons have the order of their first rows, site by site; or they are the declared `persons`
    (by `key` of their ids), whether they have rows or not, and nobody else. `label` names a column
    of true labels. Every other column is left unread. Sites and labels, which only trials have, may
    not have gaps.
    """
    roles = {"id": schema.person or schema.id, "site": schema.site, "label": label}
    held = {role: name for role, name in roles.items() if name is not None}
    wanted = [*held.values(), *([] if schema.date is None else [schema.date])]
    absent = [name for name in wanted if name not in table.columns]
    if absent:
        raise InvalidInput(f"{table.where} must have column {listed(absent)}")
    here = [column for column in schema.columns if column.name in table.columns]
    numbers = [column.name for column in here if column.kind == "number"]
    texts = list(dict.fromkeys([c.name for c in here if c.kind == "category"] + wanted))
    names = {role: Numbering(names=role != "id") for role in held}
    if persons is not None:
        names["id"] = Numbering(persons, key=key)
    encoded = GrowingRows(len(schema.features))
    codes: dict[str, list[Ints]] = {role: [] for role in held}
    times: list[Floats] = []
    broken = [np.zeros(0, dtype=np.bool_)]
    for block in table.blocks(numbers, texts):
        cells = dict(zip(texts, block.texts, strict=True))
        columns = dict(zip(numbers, block.numbers.T, strict=True))
        encode_rows(encoded.room(block.n_rows), columns, cells, schema)
        broken.append(block.broken)
        for role, name in held.items():
            codes[role].append(names[role].of(cells[name]))
        if schema.date is not None:
            date = cells[schema.date]
            times.append(np.array([*map(time_of, date.distinct), math.nan])[date.codes])
    X = encoded.whole()
    of_row = {role: np.concatenate([np.zeros(0, np.int64), *c]) for role, c in codes.items()}
    _check_filled(table.where, {held[role]: of_row[role] for role in held if role != "id"})
    rows = None
    if schema.person is not None:
        rows, first = of_row["id"], np.zeros(len(persons or ()), np.int64)
        if persons is None:
            rows, first = owners(of_row["id"], of_row.get("site"))
        X = per_person(X, rows, len(first), schema.rows, np.concatenate(times) if times else None)
        of_row = {} if persons is not None else {role: c[first] for role, c in of_row.items()}
    found = {role: names[role].texts(c) for role, c in of_row.items()}
    present = _marked(X, schema)
    texts_of = (found.get("id"), found.get("site"), found.get("label"))
    return Records(X, present, rows, *texts_of, np.concatenate(broken))


def _check_filled(where: str, columns: Mapping[str, Ints]) -> None:
    """Say in which row a column of names has none."""
    for name, codes in columns.items():
        if (codes < 0).any():
            row = int((codes < 0).argmax()) + 1
            raise InvalidInput(f"{where}: row {row} has no {name!r}: fill it in, or take it out")


def owners(ids: Ints, sites: Ints | None) -> tuple[Ints, Ints]:
    """Return each row's person, and each person's first row; a person is one at every site anew."""
    sites = np.zeros_like(ids) if sites is None else sites
    pairs = np.where(ids >= 0, sites * (ids.max(initial=0) + 1) + ids, -1)
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    if len(pairs) and pairs.min() < 0:  # the first "person" is nobody
        first, inverse = first[1:], inverse - 1
    rank = np.empty(len(first) + 1, dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    rank[-1] = -1
    return rank[inverse], np.sort(first)


def _marked(X: Floats, schema: Schema) -> Bools:
    """Mark gaps where the schema asks for it, and return which records have any value."""
    marks = [group.start for group in schema.layout if group.kind == GAPS]
    there = np.isfinite(X)
    there[:, marks] = False
    for mark in marks:
        X[:, mark] = ~there[:, mark - 1]
    return np.asarray(there.any(axis=1))
