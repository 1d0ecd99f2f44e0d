"""What an operator is told of a table before it takes part: counts, no cell. None of it is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dpfedc.errors import DPFedCError
from dpfedc.tables.cells import UNREAD, words
from dpfedc.tables.ids import looks_like_id
from dpfedc.tables.persons import time_of
from dpfedc.tables.schema import Schema
from dpfedc.tables.schema_columns import AUTO, Column
from dpfedc.tables.stored import Block, Bools, Floats, StoredTable, Texts, listed

if TYPE_CHECKING:
    from dpfedc.tables.sources import DataSource

OK, WARNING, ERROR = "ok", "warning", "error"
MIN_RECORDS = 2
"""A site with fewer has nothing to hide a record among."""
NONE_HERE = "no column of the schema is here: is the first line a header, the delimiter right?"


@dataclass(frozen=True)
class Finding:
    """Something that was found in a column ("": in the table), and how serious it is."""

    column: str
    text: str
    severity: str = OK


@dataclass(frozen=True)
class Report:
    """What a check found. A table with an error cannot take part."""

    where: str
    n_records: int
    findings: tuple[Finding, ...]
    ids: Collection[str] = field(default=(), repr=False)
    """Of persons; never shown."""
    unread: tuple[str, ...] = ()
    """Columns without numbers, which are left aside where nobody wrote a schema."""
    n_gapped: int = 0
    """Rows that a gap makes null, where nobody wrote a schema."""

    @property
    def ok(self) -> bool:
        """Return whether nothing is an error."""
        return all(finding.severity != ERROR for finding in self.findings)


class Survey:
    """Counts over all rows: of gaps, words and values outside their ranges, of rows per id."""

    def __init__(self, schema: Schema, names: Sequence[str], *, decimal: str = ".") -> None:
        self.schema, self.decimal = schema, decimal
        self.columns = [c for c in schema.columns if c.name in names]
        self.numbers = [c.name for c in self.columns if c.kind == "number"]
        roles = (schema.person, schema.date, schema.site, schema.id)
        self.roles = [name for name in dict.fromkeys(roles) if name is not None and name in names]
        self.n_rows = self.n_empty = self.n_broken = self.n_incomplete = self.n_undated = 0
        self.n_undecoded = 0
        self.first_broken = self.first_empty = 0
        self.gaps = dict.fromkeys([c.name for c in self.columns] + self.roles, 0)
        self.first_gap = dict.fromkeys(self.gaps, 0)
        self.wrong = dict.fromkeys(self.gaps, 0)
        self.outside = dict.fromkeys(self.gaps, 0)
        self.commas = dict.fromkeys(self.gaps, 0)
        self.ids: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        """Return the columns that are read as texts: all of them."""
        return list(dict.fromkeys([*(column.name for column in self.columns), *self.roles]))

    def add(self, block: Block) -> None:
        """Count one block."""
        empty, complete = np.ones(block.n_rows, dtype=bool), np.ones(block.n_rows, dtype=bool)
        for name, cells in zip(self.texts, block.texts, strict=True):
            word = words(cells.distinct)
            unread = np.array([*(UNREAD in text for text in cells.distinct), False])
            self.n_undecoded += int(unread.sum())
            column = next((c for c in self.columns if c.name == name), None)
            if column is not None and column.kind == "category":
                known = np.array([*(text in column.values for text in cells.distinct), False])
                word |= known
                self.wrong[name] += int((word & ~known)[cells.codes].sum())
            if name == self.schema.person:
                word &= ~unread
            there = word[cells.codes]
            if column is not None and column.kind == "number":
                values = block.numbers[:, self.numbers.index(name)]
                read = np.isfinite(values)
                self.wrong[name] += int((there & ~read).sum())
                comma = np.array([*("," in text for text in cells.distinct), False])[cells.codes]
                self.commas[name] += int((there & ~read & comma).sum())
                outside = self._outside(values, column)
                self.outside[name] += int(outside.sum())
                there = read if isinstance(column.range, tuple) else read & ~outside
            if name == self.schema.date:
                timed = np.array([*(np.isfinite(time_of(t)) for t in cells.distinct), False])
                self.n_undated += int((word[cells.codes] & ~timed[cells.codes]).sum())
            if name == self.schema.site:
                there = cells.codes >= 0  # a site may be called NA
            gone = ~there
            if column is None:
                gone &= ~block.broken  # such a row is null as a whole, and counted below
            if gone.any() and not self.gaps[name]:
                self.first_gap[name] = self.n_rows + int(gone.argmax()) + 1
            self.gaps[name] += int(gone.sum())
            if column is not None:
                empty &= gone
                complete &= there
            if name == self.schema.person:
                self._count_rows(cells, there)
        if block.broken.any() and not self.n_broken:
            self.first_broken = self.n_rows + int(block.broken.argmax()) + 1
        if empty.any() and not self.n_empty:
            self.first_empty = self.n_rows + int(empty.argmax()) + 1
        self.n_empty += int(empty.sum())
        self.n_incomplete += int((~complete).sum())
        self.n_broken += int(block.broken.sum())
        self.n_rows += block.n_rows

    def _count_rows(self, cells: Texts, there: Bools) -> None:
        """Count the rows of each person."""
        counts = np.bincount(cells.codes[there], minlength=len(cells.distinct))
        for text, count in zip(cells.distinct, counts.tolist(), strict=True):
            if count:
                self.ids[text] = self.ids.get(text, 0) + count

    def _outside(self, values: Floats, column: Column) -> Bools:
        """Return which numbers are outside the range, or have no logarithm."""
        low, high = column.range if isinstance(column.range, tuple) else (-np.inf, np.inf)
        found = np.isfinite(values) & ((values < low) | (values > high))
        if column.range == AUTO and column.transform == "log":
            found |= np.isfinite(values) & (values <= 0)
        return np.asarray(found)

    @property
    def n_records(self) -> int:
        """Return how many records the table has: persons, or rows."""
        return self.n_rows if self.schema.person is None else len(self.ids)

    def findings(self) -> Iterator[Finding]:
        """Return the counts in words."""
        person, n = self.schema.person, self.n_rows
        yield Finding("", _rows(n), OK if n else ERROR)
        if person is not None and person in self.roles:
            most = max(self.ids.values(), default=0)
            persons = "1 person" if len(self.ids) == 1 else f"{len(self.ids):,} persons"
            yield Finding(person, f"{persons}, at most {_rows(most)} each")
        if self.n_records < MIN_RECORDS:
            least = f"there must be at least {MIN_RECORDS} {self.schema.unit}s"
            yield Finding("", f"{least}, got {self.n_records}", ERROR)
        elif self.n_empty == n:
            yield Finding("", "all rows are null: no column of the schema has a value", ERROR)
        if self.n_broken:
            text = f"{_rows(self.n_broken)} with too few or too many cells (first: row "
            done = "each keeps its place and adds nothing"
            if person is not None:
                done = "nobody can tell whose, so left out"
            yield Finding("", f"{text}{self.first_broken:,}); {done}", WARNING)
        if self.n_undecoded:
            text = "some letters cannot be read: is it another encoding, --encoding latin-1 say?"
            yield Finding("", text, WARNING)
        if self.n_empty and self.n_empty < n:
            text = f"{_rows(self.n_empty)} without any value (first: row {self.first_empty:,})"
            yield Finding("", f"{text}; each keeps its place and adds nothing", WARNING)
        for name, what in ((person, "an id"), (self.schema.site, "a site")):
            if name is not None and self.gaps.get(name):
                n_gaps, first = self.gaps[name], self.first_gap[name]
                text = f"{_rows(n_gaps)} without {what} (first: row {first:,})"
                yield Finding(name, f"{text}: fill them in, or take these rows out", ERROR)
        for column in self.columns:
            yield from self._column(column)
        if self.schema.date is not None and self.n_undated:
            text = f"{self.n_undated:,} values are no dates like 2024-12-31"
            yield Finding(self.schema.date, text, WARNING)

    def _column(self, column: Column) -> Iterator[Finding]:
        name, n = column.name, self.n_rows
        gaps, wrong, outside = self.gaps[name], self.wrong[name], self.outside[name]
        if gaps == n:
            what = "cells, but no numbers" if wrong else "no values: all gaps here"
            yield Finding(name, f"{what}{self._comma(name)}", ERROR if wrong else WARNING)
            return
        found = [f"{n - gaps:,} values"]
        if gaps:
            found.append(f"{gaps:,} gaps ({gaps / n:.0%})")
        if column.kind == "number":
            if wrong:
                found.append(f"{wrong:,} of them no numbers{self._comma(name)}")
            if outside:
                clipped = isinstance(column.range, tuple)
                what = "outside the range, clipped to it" if clipped else "of them not above 0"
                found.append(f"{outside:,} {what}")
            bad = wrong > 0 or outside > 0.05 * (n - gaps)
        else:
            if wrong:
                found.append(f"{wrong:,} that are not listed, counted as 'other'")
            bad = wrong > 0.05 * (n - gaps)
        yield Finding(name, "; ".join(found), WARNING if bad else OK)

    def _comma(self, name: str) -> str:
        asked = self.commas[name] and self.decimal != ","
        return " (a decimal comma? then --decimal ,)" if asked else ""


def checked_table(table: StoredTable, schema: Schema, *, plain: bool = False) -> Report:
    """Return what is in one table, by the schema; `plain` numbers allow for no gaps."""
    survey = Survey(schema, list(table.columns), decimal=table.decimal)
    findings: list[Finding] = []
    for role in ("person", "date", "site", "id"):
        name = getattr(schema, role)
        if name is not None and name not in table.columns:
            findings.append(Finding(name, f"there must be this column, the {role}'s", ERROR))
    here, n_gapped = {column.name for column in survey.columns}, 0
    absent = [column.name for column in schema.columns if column.name not in here]
    if not here:  # its names are not shown: they might be a row
        findings.append(Finding("", NONE_HERE, ERROR))
    try:
        if here and not any(finding.severity == ERROR for finding in findings):
            for block in table.blocks(survey.numbers, survey.texts):
                survey.add(block)
            findings += survey.findings()
            if plain and survey.n_incomplete and schema.person is None:
                n_gapped = survey.n_incomplete
                each = "each keeps its place and is null. With a --schema gaps are filled"
                findings.append(Finding("", f"{_rows(n_gapped)} with a gap; {each}", WARNING))
    except DPFedCError as error:
        findings.append(Finding("", str(error), ERROR))
    findings += [Finding(n, "not here: all gaps at this site", WARNING) for n in absent if here]
    if not plain:
        findings += _unread(table, schema)
    return Report(table.where, survey.n_records, tuple(findings), survey.ids, n_gapped=n_gapped)


def _rows(n: int) -> str:
    return "1 row" if n == 1 else f"{n:,} rows"


def _unread(table: StoredTable, schema: Schema) -> Iterator[Finding]:
    if not any(column.name in table.columns for column in schema.columns):
        return
    unread = [n for n in table.columns if n not in (*schema.named, *schema.ignored, *table.keys)]
    if unread:
        yield Finding("", f"not in the schema, so not read: {listed(unread)}")


def checked_source(source: DataSource, schema: Schema | None) -> Report:
    """Return what is in a site's table: by the schema, or its columns of numbers as they stand."""
    try:
        table = source.opened()
        unread: tuple[str, ...] = ()
        plain = schema is None
        report = checked_table(table, schema or source.plain_schema(), plain=plain)
        more = list(_ids(table, source)) if plain and source.columns is None else []
        if plain:
            taken = {column.name for column in source.plain_schema().columns}
            unread = tuple(name for name in source.offered(table) if name not in taken)
            more += _left_aside(table, unread, {*taken, source.person})
        if source.order_by is not None and not table.keys:
            more.append(_order(table, source.order_by))
    except DPFedCError as error:
        return Report(source.where, 0, (Finding("", str(error), ERROR),))
    return replace(report, findings=(*report.findings, *more), unread=unread)


def _left_aside(
    table: StoredTable, unread: Sequence[str], taken: Collection[str | None]
) -> Iterator[Finding]:
    """Return which columns are not read where nobody wrote a schema, and why."""
    if unread:
        text = f"no numbers, so not read: {listed(unread)}. --drop them, or use a --schema"
        yield Finding("", text, WARNING)
    others = [n for n in table.columns if n not in (*taken, *unread, *table.keys)]
    if others:
        yield Finding("", f"not read: {listed(others)}")


def _ids(table: StoredTable, source: DataSource) -> Iterator[Finding]:
    """Return which columns of numbers look like ids."""
    names = [column.name for column in source.plain_schema().columns]
    advice = "looks like ids or codes, which are no measurements: --drop it, or use a --schema"
    for name, values in zip(names, table.whole(names).numbers.T, strict=True):
        if looks_like_id(name, values):
            yield Finding(name, advice, ERROR)


def _order(table: StoredTable, name: str) -> Finding:
    """Return whether a column gives every row its own place."""
    cells = table.whole((), [name]).texts[0]
    repeats = len(cells.codes) - len(cells.distinct)
    if not repeats:
        return Finding(name, "gives every row its place")
    text = f"{repeats:,} rows have no value of their own, so their places may change"
    return Finding(name, text, ERROR)


def checked_tables(tables: Sequence[StoredTable], schema: Schema) -> list[Report]:
    """Return a report for each table; a column that nobody has is an error.

    Ids that are in more than one table may be the same persons.
    """
    reports = [checked_table(table, schema) for table in tables]
    counts = Counter(text for report in reports for text in report.ids)
    most = max(counts.values(), default=0)
    if schema.person is not None and most > schema.sites_per_person:
        n = sum(count > schema.sites_per_person for count in counts.values())
        text = f"{n:,} ids are in up to {most} tables: if they are the same persons, the promise "
        text += f"needs sites_per_person = {most}"
        shared = Finding(schema.person, text, WARNING)
        reports[0] = replace(reports[0], findings=(*reports[0].findings, shared))
    for column in schema.columns:
        if all(column.name not in table.columns for table in tables):
            nobody = Finding(column.name, "no file has this column of the schema", ERROR)
            reports[0] = replace(reports[0], findings=(*reports[0].findings, nobody))
    return reports
