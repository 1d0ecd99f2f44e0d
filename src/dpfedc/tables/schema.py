"""The public schema: what a table's columns are, the same at every site and in every trial.

It is written in TOML by people who know the columns, and holds nothing that was looked up in the
data. The encoding of a row follows from it and from that row alone (`encode.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.settings import require_choice, require_integer
from dpfedc.tables.layout import Layout
from dpfedc.tables.schema_columns import (
    AUTO,
    ENTRIES,
    Column,
    checked_column,
    is_column_name,
    repeated,
)

ROW_RULES = ("mean", "first", "last")
MAX_COLUMNS = 20_000


@dataclass(frozen=True)
class Schema:
    """What the columns of a table are, and which rows belong to one person.

    `person` names the column with a person's id: all rows of a person become one record, by the
    rule `rows`, and the person is what epsilon protects. `date` puts a person's rows in order for
    the rules "first" and "last". `sites_per_person` is the most sites at which one person may have
    rows. `site` names the column of the site in a file that holds several, and `id` a column that
    tells records apart in labels.csv where there are no persons. `ignored` columns are not read.
    """

    columns: tuple[Column, ...]
    person: str | None = None
    rows: str = "mean"
    date: str | None = None
    sites_per_person: int = 1
    site: str | None = field(default=None, compare=False)
    id: str | None = field(default=None, compare=False)
    ignored: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Return the names of all features of an encoded record."""
        return tuple(name for column in self.columns for name in column.features)

    @cached_property
    def placed(self) -> tuple[tuple[Column, slice], ...]:
        """Return each column with the places of its features."""
        ends = list(accumulate((len(column.features) for column in self.columns), initial=0))
        return tuple(zip(self.columns, map(slice, ends[:-1], ends[1:]), strict=True))

    @cached_property
    def layout(self) -> Layout:
        """Return what planning may know of the features."""
        return tuple(group for column, at in self.placed for group in column.groups(at.start))

    @property
    def unit(self) -> str:
        """Return whom epsilon protects."""
        return "record" if self.person is None else "person"

    @property
    def named(self) -> tuple[str, ...]:
        """Return all columns of the table that are read."""
        others = (self.person, self.date, self.site, self.id)
        return (*(column.name for column in self.columns), *filter(None, others))

    def to_json(self) -> str:
        """Return the agreed part as canonical JSON: equal schemas have equal text."""
        content = {n: v for n, v in asdict(self).items() if n not in ("site", "id", "ignored")}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what `to_json` wrote; anything else is refused."""
        try:
            schema = cls.from_content(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"not a schema: {error}") from error
        if schema.to_json() != text:
            raise InvalidInput("a schema must be written in its canonical form")
        return schema

    @classmethod
    def from_content(cls, content: Any) -> Schema:
        """Return the schema from what its JSON holds."""
        try:
            entries = dict(content)
            tables = []
            for column in entries.pop("columns"):
                known = ("name", "kind", *ENTRIES[column["kind"]])
                tables.append({n: column[n] for n in known if column.get(n) is not None})
            return cls.of({**entries, "column": tables})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"not a schema: {error}") from error

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the agreed part."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a schema in TOML."""
        path = Path(path)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise DataUnavailable(
                f"{path} must be a schema in TOML, got: {error.strerror}"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path} must be a schema in TOML: {error}") from error
        try:
            return cls.of(content)
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from error

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Schema:
        """Return the schema that a TOML's content says, or what is wrong with it."""
        known = {f.name for f in fields(cls)} - {"columns", "ignored"}
        for name in content:
            require_choice("an entry of the schema", name, (*sorted(known), "column"))
        tables = content.get("column")
        if not isinstance(tables, list) or not 0 < len(tables) <= MAX_COLUMNS:
            raise InvalidInput(f"a schema must have from 1 to {MAX_COLUMNS:,} tables [[column]]")
        columns = [checked_column(table) for table in tables]
        given = {name: content[name] for name in known if content.get(name) is not None}
        schema = cls(
            tuple(column for column in columns if column.kind != "ignore"),
            ignored=tuple(column.name for column in columns if column.kind == "ignore"),
            **given,
        )
        schema._check([column.name for column in columns])
        return schema

    def _check(self, names: list[str]) -> None:
        if not self.columns:
            raise InvalidInput("a schema must have a column that is not ignored")
        for what in ("person", "date", "site", "id"):
            name = getattr(self, what)
            if name is not None and not is_column_name(name):
                raise InvalidInput(f"{what} must name a column, got {str(name)[:80]!r}")
            if name in [column.name for column in self.columns] and what != "date":
                raise InvalidInput(
                    f"column {name!r} must not be both the {what} and clustered: take its "
                    "[[column]] out"
                )
        twice = repeated(names)
        if twice:
            raise InvalidInput(f"column {twice[0]!r} must be described once, got it twice")
        if len(set(self.features)) < len(self.features):
            raise InvalidInput("columns and values must make features of different names")
        require_choice("rows", self.rows, ROW_RULES)
        if self.person is None and (self.rows, self.date, self.sites_per_person) != (
            "mean",
            None,
            1,
        ):
            raise InvalidInput("rows, date and sites_per_person need person, which is not given")
        if self.date is not None and self.rows == "mean":
            raise InvalidInput("date needs rows = 'first' or 'last', got rows = 'mean'")
        require_integer("sites_per_person", self.sites_per_person, least=1)

    def without(self, name: str | None) -> Schema:
        """Return the schema without a column, which is then not clustered."""
        left = tuple(column for column in self.columns if column.name != name)
        return self if len(left) == len(self.columns) else self.having(columns=left)

    def having(self, **roles: Any) -> Schema:
        """Return the schema with other roles of columns, checked again."""
        made = replace(self, **roles)
        made._check([*(column.name for column in made.columns), *self.ignored])
        return made

    @classmethod
    def plain(cls, names: Sequence[str], *, person: str | None = None) -> Schema:
        """Return the schema of numbers that are taken as they stand, without a range."""
        return cls(tuple(Column(name, "number", AUTO) for name in names), person=person)

    def without_persons(self) -> Schema:
        """Return the schema for rows that are records of their own."""
        return replace(self, person=None, rows="mean", date=None, sites_per_person=1)

    def for_site(self) -> Schema:
        """Return the schema of one site's own table."""
        return replace(self, site=None, id=None)


def difference(own: Schema, other: Schema) -> str | None:
    """Return the first entry in which two schemas differ, in words; None if they are the same."""
    for name in ("person", "rows", "date", "sites_per_person"):
        mine, theirs = getattr(own, name), getattr(other, name)
        if mine != theirs:
            return f"{name} is {mine!r} here and {theirs!r} there"
    here, there = ({column.name: column for column in s.columns} for s in (own, other))
    for name in (*here, *there):
        if name not in there or name not in here:
            where = "only here" if name in here else "only there"
            return f"column {name!r} is {where}"
        for entry in fields(Column):
            mine, theirs = (getattr(columns[name], entry.name) for columns in (here, there))
            if mine != theirs:
                return f"column {name!r} has {entry.name} {mine!r} here and {theirs!r} there"
    if own.columns != other.columns:
        return "the columns are in another order"
    return None
