"""Where a site's records are: a file or a database table, as its configuration says.

`check` is for the operator: it looks at values and may count them. `load` is for the deployed site:
what it raises depends on the table's structure alone. A cell that is not as it should be is a gap,
and nothing tells that it is there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedc.errors import InvalidInput
from dpfedc.tables.encode import Records, encoded_table
from dpfedc.tables.formats import StrPath, file_table
from dpfedc.tables.schema import Schema
from dpfedc.tables.stored import StoredTable, listed, word_columns
from dpfedc.tables.text_files import Dialect

if TYPE_CHECKING:
    from dpfedc.tables.check import Report

_TEXTS = (
    "path", "url", "table", "table_schema", "order_by", "person", "password_env", "delimiter",
    "encoding", "decimal",
)  # fmt: skip
_DATABASE_ONLY = ("table", "table_schema", "order_by", "password_env")
_TEXT_ONLY = ("delimiter", "encoding", "decimal")


@dataclass(frozen=True)
class DataSource:
    """A file (see `tables.formats`), or a database URL and a table or view.

    A schema says which columns are read, and how. Without one, `columns` are the features in order;
    None means every column of numbers that is not in `drop`, the primary key, `order_by` or
    `person`, the column with a person's id. A table without a primary key needs `order_by`, a
    column of distinct values, as a record is known by its place. A password comes from the
    environment variable `password_env`, never from the URL. `delimiter`, `encoding` and `decimal`
    are those of a text file.
    """

    path: StrPath | None = None
    url: str | None = None
    table: str | None = None
    table_schema: str | None = None
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    order_by: str | None = None
    person: str | None = None
    password_env: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    decimal: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.path, os.PathLike):
            object.__setattr__(self, "path", os.fspath(self.path))
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise InvalidInput(f"{name} must be text, got {value!r}")
        if (self.path is None) == (self.url is None):
            raise InvalidInput("a data source must have either a path or a url")
        if self.columns is not None:
            object.__setattr__(self, "columns", _names("columns", self.columns))
        object.__setattr__(self, "drop", _names("drop", self.drop) if self.drop else ())
        if self.columns is not None and self.drop:
            raise InvalidInput("drop must be empty where columns are given")
        if self.url is None:
            given = [name for name in _DATABASE_ONLY if getattr(self, name) is not None]
            if given:
                raise InvalidInput(f"{given[0]} must be left out for a file, it is for a database")
            _ = self.dialect
        elif self.table is None:
            raise InvalidInput("table must name a table of the database, got none")
        else:
            _database().parsed_url(self.url)
            given = [name for name in _TEXT_ONLY if getattr(self, name) is not None]
            if given:
                raise InvalidInput(f"{given[0]} must be left out for a database")

    @property
    def dialect(self) -> Dialect:
        """Return how the file is written, if it is text."""
        given = {name: getattr(self, name) for name in _TEXT_ONLY}
        return Dialect(**{name: value for name, value in given.items() if value is not None})

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, folder: Path) -> DataSource:
        """Return the source that a configuration in `folder` describes; paths are relative to it.

        So is the file of a SQLite URL.
        """
        names = [f.name for f in fields(cls)]
        unknown = [name for name in settings if name not in names]
        if unknown:
            raise InvalidInput(
                f"a data source must have settings of {listed(names)}, got {unknown[0]!r}"
            )
        source = cls(**settings)
        if source.path is not None:
            return replace(source, path=str(folder / source.path))
        url = _database().parsed_url(str(source.url))
        if url.get_backend_name() == "sqlite" and url.database:
            url = url.set(database=str(folder / url.database))
        return replace(source, url=url.render_as_string())

    @property
    def where(self) -> str:
        """Return the place for messages."""
        if self.url is None:
            return str(self.path)
        table = self.table if self.table_schema is None else f"{self.table_schema}.{self.table}"
        return f"table {table} of {_database().parsed_url(self.url).render_as_string()}"

    def plain_schema(self, features: Sequence[str] | None = None) -> Schema:
        """Return the schema of columns of numbers as they stand, where nobody wrote one.

        Which columns hold numbers follows from their values where storage has no types, as in CSV:
        at least half of the filled cells must be numbers.
        """
        if features is None:
            table = self.opened()
            offered = self.offered(table)
            words = word_columns(table, offered)
            if words and self.columns is not None:
                raise InvalidInput(f"{self.where}: columns must hold numbers, got {listed(words)}")
            features = tuple(name for name in offered if name not in words)
            if not features:
                got = listed(words)
                raise InvalidInput(f"{self.where} must have a column of numbers, got {got}")
        return Schema.plain(_names("features", features), person=self.person)

    def load(
        self,
        expected: Schema | Sequence[str],
        *,
        persons: Sequence[str] | None = None,
        key: Callable[[str], str] = str,
    ) -> Records:
        """Return the site's records, in an order that does not change.

        By a schema, which is public; or the expected columns of numbers as they stand, where a
        record with a gap is null. `persons` are those that were declared, by `key` of their ids.
        """
        table = self.opened()
        if isinstance(expected, Schema):
            return encoded_table(table, expected.for_site(), persons=persons, key=key)
        names, offered = _names("expected", expected), self.offered(table)
        absent = [name for name in names if name not in offered or table.columns[name] is False]
        if absent:
            raise InvalidInput(f"{self.where} must offer columns of numbers {listed(absent)}")
        records = encoded_table(table, self.plain_schema(names), persons=persons, key=key)
        present = np.asarray(np.isfinite(records.X).all(axis=1))
        records.X[~present] = 0
        return replace(records, present=present)

    def check(self, schema: Schema | None = None) -> Report:
        """Return what an operator should know before taking part; it is never sent."""
        from dpfedc.tables.check import checked_source

        return checked_source(self, schema)

    def opened(self) -> StoredTable:
        """Return the table as it is stored."""
        if self.path is not None:
            return file_table(Path(self.path), self.dialect)
        database = _database()
        found: StoredTable = database.database_table(
            database.parsed_url(str(self.url)), str(self.table), schema=self.table_schema,
            order_by=self.order_by, password_env=self.password_env, where=self.where,
        )  # fmt: skip
        return found

    def offered(self, table: StoredTable) -> tuple[str, ...]:
        """Return the columns that may be features, if all that the settings name are there."""
        named = (*(self.columns or ()), *self.drop, *filter(None, (self.person,)))
        absent = [name for name in named if name not in table.columns]
        if absent:
            raise InvalidInput(f"{self.where} must have columns {listed(absent)}")
        unused = {*self.drop, *table.keys, self.order_by, self.person}
        return self.columns or tuple(name for name in table.columns if name not in unused)


def _database() -> Any:
    """Return what reads databases, which only they need."""
    from dpfedc.tables import database

    return database


def _names(setting: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return column names as a tuple, if they are names and differ."""
    plain = () if isinstance(names, str) else tuple(names)
    if not plain or not all(isinstance(name, str) for name in plain):
        raise InvalidInput(f"{setting} must be a list of column names, got {names!r}")
    twice = [name for name, count in Counter(plain).items() if count > 1]
    if twice:
        raise InvalidInput(f"{setting} must differ, got twice {listed(twice)}")
    return plain
