"""Where a site's records are: a file or a database table, as its configuration says.

`schema` and `check` are for the operator: they look at values and may speak of them. `load` is for
the deployed site: what it raises depends on the table's structure alone. A row that has no finite
number in every column becomes null: it keeps its slot, and nothing tells that it is there.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpfedc.data.files import StrPath, by_name, is_header, listed, number, read_columns, readable
from dpfedc.errors import DataUnavailable, DPFedCError, InvalidInput, MissingExtra

if TYPE_CHECKING:
    from sqlalchemy import URL

T = TypeVar("T")
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Block = Sequence[Sequence[Any] | npt.NDArray[Any]]
"""Some rows of a table, as one sequence of cells per column."""

Line = tuple[str, str, str]
"""A label, a value, and how serious it is: ok, warning or error."""

_BLOCK_ROWS = 4096
_BROKEN = float("nan")  # told from other missing cells by identity: its row is no row of the table
_FLAWS = ("missing", "not a number", "infinite")
_TEXTS = ("path", "url", "table", "table_schema", "order_by", "record_id", "password_env")
_DATABASE_ONLY = ("table", "table_schema", "order_by", "password_env")


@dataclass(frozen=True)
class Schema:
    """The columns that a site offers or a federation agrees on, in order; all hold numbers."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _names("names", self.names))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return what each column holds."""
        return ("number",) * len(self.names)

    @property
    def fingerprint(self) -> str:
        """Return a SHA-256 that is equal for equal columns in equal order, however stored."""
        text = json.dumps({"names": self.names, "kinds": self.kinds}, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Records:
    """What a site works on: X is n x m, and a row that is not `present` is null and zero."""

    X: Floats
    present: Bools


@dataclass(frozen=True)
class Report:
    """What `DataSource.check` found. A source with an error cannot take part."""

    n_rows: int
    n_null_rows: int
    lines: tuple[Line, ...]

    @property
    def ok(self) -> bool:
        """Return whether no line is an error."""
        return all(severity != "error" for _, _, severity in self.lines)


@dataclass(frozen=True)
class DataSource:
    """A file (.csv, .parquet, .npz, .npy), or a database URL and a table or view.

    `columns` are the features in order; None means every column of numbers that is not in `drop`,
    the primary key, `order_by` or `record_id`. A table without a primary key needs `order_by`, a
    column of distinct values, as a record is known by its place. `record_id` tells `check` which
    rows belong together. A password comes from the environment variable `password_env`, never from
    the URL.
    """

    path: StrPath | None = None
    url: str | None = None
    table: str | None = None
    table_schema: str | None = None
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    order_by: str | None = None
    record_id: str | None = None
    password_env: str | None = None

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
        elif self.table is None:
            raise InvalidInput("table must name a table of the database, got none")
        else:
            _parsed(self.url)

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
        url = _parsed(str(source.url))
        if url.get_backend_name() == "sqlite" and url.database:
            url = url.set(database=str(folder / url.database))
        return replace(source, url=url.render_as_string())

    @property
    def where(self) -> str:
        """Return the place for messages."""
        if self.url is None:
            return str(self.path)
        table = self.table if self.table_schema is None else f"{self.table_schema}.{self.table}"
        return f"table {table} of {_parsed(self.url).render_as_string()}"

    def schema(self) -> Schema:
        """Return the features; needs their values where storage has no types, as in CSV.

        There a column holds numbers if at least half of its filled cells do: a typing error makes
        its row null, not its column vanish.
        """
        table = self._open()
        offered = self._offered(table)
        words = _words(table, offered)
        if words and self.columns is not None:
            raise InvalidInput(f"{self.where}: columns must hold numbers, got {listed(words)}")
        names = tuple(name for name in offered if name not in words)
        if not names:
            raise InvalidInput(f"{self.where} must have a column of numbers, got {listed(words)}")
        return Schema(names)

    def load(self, expected: Schema | Sequence[str]) -> Records:
        """Return the expected columns of every row, in an order that does not change."""
        names, table = _expected_names(expected), self._open()
        offered = self._offered(table)
        absent = [name for name in names if name not in offered or table.columns[name] is False]
        if absent:
            raise InvalidInput(f"{self.where} must offer columns of numbers {listed(absent)}")
        parts: list[tuple[Floats, Bools]] = []
        for block in table.blocks(names):
            X, _ = _values(block)
            present: Bools = np.all(np.isfinite(X), axis=1)
            X[~present] = 0
            parts.append((X, present))
        return _joined(parts, len(names))

    def check(self, expected: Schema | Sequence[str] | None = None) -> Report:
        """Return what an operator should know before taking part; it is never sent."""
        try:
            names = self.schema().names if expected is None else _expected_names(expected)
            table = self._open()
            offered = self._offered(table)
            used = [name for name in names if name in offered and table.columns[name] is not False]
            ids = [name for name in (self.record_id, self.order_by) if name is not None]
            survey = _Survey(used, ids)
            for block in table.blocks([*used, *ids]) if used else ():
                survey.add(block)
        except DPFedCError as error:
            return Report(0, 0, (("data", str(error), "error"),))
        lines = [("data", self.where, "ok"), *survey.lines()]
        lines.append(("fingerprint of the columns", Schema(names).fingerprint, "ok"))
        absent = [name for name in names if name not in used]
        if absent:
            lines.append(("expected columns of numbers that are not here", listed(absent), "error"))
        unread = [name for name in offered if name not in used]
        if unread:
            why = "not numbers" if expected is None else "not expected"
            lines.append((f"columns that are not read, as they are {why}", listed(unread), "ok"))
        if self.record_id is not None:
            lines.append(survey.rows_per_id(self.record_id))
        if self.order_by is not None and not table.keys:
            lines.append(survey.order(self.order_by))
        return Report(survey.n_rows, survey.n_null_rows, tuple(lines))

    def _open(self) -> _Table:
        return _file_table(Path(self.path)) if self.path is not None else _sql_table(self)

    def _offered(self, table: _Table) -> tuple[str, ...]:
        """Return the columns that may be features, if all that the settings name are there."""
        named = (*(self.columns or ()), *self.drop, *filter(None, (self.record_id,)))
        absent = [name for name in named if name not in table.columns]
        if absent:
            raise InvalidInput(f"{self.where} must have columns {listed(absent)}")
        unused = {*self.drop, *table.keys, self.order_by, self.record_id}
        return self.columns or tuple(name for name in table.columns if name not in unused)


@dataclass(frozen=True)
class _Table:
    """A table that was found: `blocks` reads the named columns of all rows, in a fixed order.

    `columns` says which columns hold numbers (None: only the values tell); `keys` are no features
    unless asked for.
    """

    columns: Mapping[str, bool | None]
    keys: frozenset[str]
    blocks: Callable[[Sequence[str]], Iterator[Block]]


def _file_table(file: Path) -> _Table:
    """Open a file; its rows have the order they are in."""
    if file.suffix.lower() == ".csv":
        return _csv_table(file)
    features, others = read_columns(file)

    def blocks(names: Sequence[str]) -> Iterator[Block]:
        with readable(file):
            block = [features[name] if name in features else others[name] for name in names]
        if len({len(cells) for cells in block}) > 1:
            raise InvalidInput(f"{file}: arrays must have one value per record")
        yield block

    kinds = {name: cells.dtype.kind in "biuf" or None for name, cells in features.items()}
    keys = frozenset(others).difference(features)  # the other arrays of an archive
    return _Table({**kinds, **dict.fromkeys(keys, False)}, keys, blocks)


def _csv_table(file: Path) -> _Table:
    """Open a CSV file; whatever a row is, nothing is raised: it is read, or it is broken."""

    def parsed() -> Iterator[list[str]]:
        with readable(file), file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
            rows = csv.reader(lines)
            while True:
                try:
                    yield next(rows)
                except StopIteration:
                    return
                except csv.Error:  # a cell beyond the parser's limit
                    yield [""]

    names = [name.strip() for name in next(parsed(), [])]
    if not is_header(names):
        raise InvalidInput(f"{file} must start with a row of column names, one for each column")
    places = by_name(file, names, range(len(names)))

    def rows(wanted: Sequence[str]) -> Iterator[list[Any]]:
        chosen, blank = [places[name] for name in wanted], 0
        for row in islice(parsed(), 1, None):
            if not row:
                blank += 1  # at the end of the file blank lines are no rows
                continue
            yield from [[_BROKEN] * len(wanted)] * blank
            blank = 0
            whole = len(row) == len(names)
            yield [row[j].strip() for j in chosen] if whole else [_BROKEN] * len(wanted)

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        left = rows(wanted)
        while block := list(islice(left, _BLOCK_ROWS)):
            yield list(zip(*block, strict=True))

    return _Table(dict.fromkeys(names), frozenset(), blocks)


def _sql_table(source: DataSource) -> _Table:
    """Open a database table; its rows are ordered by `order_by`, then by the primary key."""
    sa = _sqlalchemy()
    url = _with_password(_parsed(str(source.url)), source.password_env)
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite and not Path(url.database or "").is_file():  # SQLite would make an empty one
        raise DataUnavailable(f"{url.database or 'a SQLite URL'} must be a database file")

    def found() -> tuple[Any, Any]:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        if sqlite:
            sa.event.listen(engine, "connect", _read_any_text)
        with warnings.catch_warnings():  # a column of a type that SQLAlchemy does not know
            warnings.simplefilter("ignore", sa.exc.SAWarning)
            return engine, sa.Table(
                source.table, sa.MetaData(), schema=source.table_schema,
                autoload_with=engine, resolve_fks=False,
            )  # fmt: skip

    def reason(error: Exception) -> str:
        if isinstance(error, sa.exc.NoSuchTableError):
            return "no such table"
        text = " ".join(str(getattr(error, "orig", error)).split())
        return text.replace(str(url.password), "***") if url.password else text

    engine, table = _answer(found, source.where, reason)
    keys = list(table.primary_key.columns)
    if source.order_by is not None and source.order_by not in table.c:
        raise InvalidInput(f"{source.where} must have the column order_by={source.order_by!r}")
    order = keys if source.order_by is None else [table.c[source.order_by], *keys]
    if not order:
        raise InvalidInput(f"{source.where} must have a primary key, or else order_by")

    def rows(names: Sequence[str]) -> Iterator[Block]:
        chosen = [table.c[name] for name in names]
        # Without a type, values come as the driver has them: SQLAlchemy's own conversions fail on
        # what SQLite lets into any column. Rows that tie are ordered by what is read of them.
        query = sa.select(*(sa.type_coerce(column, sa.types.NullType()) for column in chosen))
        query = query.order_by(*order, *([] if keys else chosen))
        with engine.connect() as connection:
            result = connection.execution_options(yield_per=_BLOCK_ROWS).execute(query)
            yield from (list(zip(*block, strict=True)) for block in result.partitions())

    def blocks(names: Sequence[str]) -> Iterator[Block]:
        left = rows(names)
        # Of an error among the rows only its kind is told, as its text may quote a value.
        while (
            block := _answer(lambda: next(left, None), source.where, lambda e: type(e).__name__)
        ) is not None:
            yield block

    numeric = (sa.Integer, sa.Numeric, sa.Float, sa.Boolean)
    kinds = {column.name: isinstance(column.type, numeric) for column in table.c}
    return _Table(kinds, frozenset(column.name for column in keys), blocks)


def _read_any_text(connection: Any, _: Any) -> None:
    connection.text_factory = lambda text: text.decode(errors="replace")


def _answer(ask: Callable[[], T], where: str, reason: Callable[[Exception], str]) -> T:
    """Return what `ask` returns; its error does not get further, as it may hold the password."""
    try:
        return ask()
    except ImportError as error:
        driver = error.name or "its driver"
    except Exception as error:
        driver, text = None, reason(error)
    if driver is not None:
        raise MissingExtra(f"{where} needs {driver}: pip install 'dpfedc[sql]', or that driver")
    raise DataUnavailable(f"{where} must be readable, got: {text}")


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
        import sqlalchemy.event
        import sqlalchemy.pool
    except ImportError as error:
        raise MissingExtra("a database needs SQLAlchemy: pip install 'dpfedc[sql]'") from error
    return sqlalchemy


def _parsed(text: str) -> URL:
    """Return the URL, without a password; messages do not repeat it, as it might hold one."""
    sa = _sqlalchemy()
    url: URL | None = None
    with suppress(sa.exc.ArgumentError, ValueError):
        url = sa.make_url(text)
    if url is None:
        raise InvalidInput("url must be dialect://user@host:port/database, got something else")
    if url.password is not None or any("pass" in key.lower() for key in url.query):
        raise InvalidInput("url must hold no password: name its environment variable, password_env")
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _with_password(url: URL, variable: str | None) -> URL:
    if variable is not None and not os.environ.get(variable):
        raise InvalidInput(f"environment variable {variable} must hold the password, got nothing")
    return url if variable is None else url.set(password=os.environ[variable])


def _values(block: Block) -> tuple[Floats, Bools]:
    """Return the numbers of a block, NaN where there is none, and where there is a word instead.

    A cell's number depends on that cell alone: a faster way for cells that look alike would let
    one record change how another is read.
    """
    shape = (len(block[0]), len(block))
    X, words = np.empty(shape), np.zeros(shape, dtype=np.bool_)
    for j, cells in enumerate(block):
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
            with np.errstate(over="ignore"):  # beyond float64 lies infinity
                X[:, j] = cells
        else:
            numbers = [number(cell) for cell in cells]
            X[:, j] = numbers  # None becomes NaN
            words[:, j] = [value is None for value in numbers]
    return X, words


def _joined(parts: list[tuple[Floats, Bools]], n_columns: int) -> Records:
    """Return the parts as one, each freed once it is copied."""
    n = sum(len(present) for _, present in parts)
    X, present, end = np.empty((n, n_columns)), np.empty(n, dtype=np.bool_), n
    while parts:
        values, there = parts.pop()
        start = end - len(there)
        X[start:end], present[start:end], end = values, there, start
    return Records(X, present)


def _words(table: _Table, names: Sequence[str]) -> list[str]:
    """Return which columns hold no numbers: by type, or else by most of their filled cells."""
    unsure = [name for name in names if table.columns[name] is None]
    n_words, n_numbers = np.zeros(len(unsure)), np.zeros(len(unsure))
    for block in table.blocks(unsure) if unsure else ():
        X, words = _values(block)
        n_words += words.sum(axis=0)
        n_numbers += (~np.isnan(X)).sum(axis=0)
    mostly = dict(zip(unsure, n_words > n_numbers, strict=True))
    return [name for name in names if table.columns[name] is False or mostly.get(name, False)]


def _names(setting: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return column names as a tuple, if they are names and differ."""
    plain = () if isinstance(names, str) else tuple(names)
    if not plain or not all(isinstance(name, str) for name in plain):
        raise InvalidInput(f"{setting} must be a list of column names, got {names!r}")
    twice = [name for name, count in Counter(plain).items() if count > 1]
    if twice:
        raise InvalidInput(f"{setting} must differ, got twice {listed(twice)}")
    return plain


def _expected_names(expected: Schema | Sequence[str]) -> tuple[str, ...]:
    return expected.names if isinstance(expected, Schema) else _names("expected", expected)


@dataclass
class _Survey:
    """Counts over all rows: of missing cells, words and infinities per column, of rows per id."""

    names: Sequence[str]
    ids: Sequence[str]
    n_rows: int = 0
    n_null_rows: int = 0
    n_broken_rows: int = 0
    flaws: npt.NDArray[np.int64] = field(init=False)
    low: Floats = field(init=False)
    high: Floats = field(init=False)
    seen: dict[str, Counter[Any]] = field(init=False)

    def __post_init__(self) -> None:
        m = len(self.names)
        self.flaws = np.zeros((len(_FLAWS), m), dtype=np.int64)
        self.low, self.high = np.full(m, np.inf), np.full(m, -np.inf)
        self.seen = {name: Counter() for name in self.ids}

    def add(self, block: Block) -> None:
        """Count one block: the features, then the columns of ids."""
        m = len(self.names)
        X, words = _values(block[:m])
        finite = np.isfinite(X)
        self.n_rows += len(X)
        self.n_null_rows += int((~finite.all(axis=1)).sum())
        self.n_broken_rows += sum(cell is _BROKEN for cell in block[0])
        flaws = (np.isnan(X) & ~words, words, np.isinf(X))
        self.flaws += np.stack([flaw.sum(axis=0) for flaw in flaws])
        self.low = np.where(finite, X, np.inf).min(axis=0, initial=np.inf).clip(max=self.low)
        self.high = np.where(finite, X, -np.inf).max(axis=0, initial=-np.inf).clip(min=self.high)
        for counter, cells in zip(self.seen.values(), block[m:], strict=True):
            plain = cells.tolist() if isinstance(cells, np.ndarray) else cells
            counter.update(cell for cell in plain if cell not in (None, "") and cell is not _BROKEN)

    def lines(self) -> Iterator[Line]:
        """Return the counts in words."""
        some = self.n_null_rows < self.n_rows
        yield "rows", f"{self.n_rows:,}", "ok" if self.n_rows else "error"
        if self.n_null_rows:
            text = f"{self.n_null_rows:,}; each keeps its place and adds nothing to any sum"
            yield "rows that count as null", text, "warning" if some else "error"
        if self.n_broken_rows:
            yield "rows with too few or too many cells", f"{self.n_broken_rows:,}", "warning"
        for j, name in enumerate(self.names):
            found = [
                f"{self.flaws[i, j]:,} {what}" for i, what in enumerate(_FLAWS) if self.flaws[i, j]
            ]
            low, high = float(self.low[j]), float(self.high[j])
            span = f"from {low:g} to {high:g}" if low < high else f"always {low:g}"
            span = "no number" if low > high else span
            severity = "warning" if found or low >= high else "ok"
            yield f"column {name!r}", "; ".join([span, *found]), severity

    def rows_per_id(self, name: str) -> Line:
        """Return how often an id occurs: the guarantee is for one row."""
        most = max(self.seen[name].values(), default=0)
        text = f"{len(self.seen[name]):,} ids, at most {most:,} rows each"
        if most <= 1:
            return f"ids in {name!r}", text, "ok"
        return f"ids in {name!r}", f"{text}; what is promised covers one row, not all", "warning"

    def order(self, name: str) -> Line:
        """Return whether a column gives every row its own place."""
        repeats = self.n_rows - len(self.seen[name])
        text = f"{repeats:,} rows have no value of their own, so their places may change"
        return f"order by {name!r}", text if repeats else "fixed", "error" if repeats else "ok"
