"""A table as it is stored: its columns, and its rows in a fixed order, in blocks.

No value makes reading fail: a cell that is no number is NaN, a cell without text is -1, and a row
that does not fit is broken. What a cell becomes never depends on another row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpfedc.errors import DataUnavailable, DPFedCError, InvalidInput
from dpfedc.tables.cells import number, text, words

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Cells = Sequence[Any] | npt.NDArray[Any]
T = TypeVar("T")

BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Texts:
    """A column of texts: what is distinct in it, and which of these each row has.

    The code -1 is an empty or broken cell.
    """

    distinct: tuple[str, ...]
    codes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, cells: Iterable[str], codes: npt.ArrayLike | None = None) -> Texts:
        """Return the column of these texts; with codes, of those that each row has."""
        seen: dict[str, int] = {}
        order = [seen.setdefault(cell, len(seen)) if cell else -1 for cell in cells]
        places = np.array(order, dtype=np.int64)
        if codes is not None:
            places = np.append(places, -1)[np.asarray(codes)]
        return cls(tuple(seen), places)


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive rows.

    `numbers` has a column for each that was asked for, NaN where there is no number. `broken` rows
    have too few or too many cells, which only text files can have.
    """

    numbers: Floats
    texts: tuple[Texts, ...]
    broken: Bools

    @property
    def n_rows(self) -> int:
        """Return how many rows there are."""
        return len(self.broken)


Read = Callable[[Sequence[str], Sequence[str]], Iterator[Block]]
"""From the columns read as numbers, and those read as texts, to all rows."""


@dataclass(frozen=True, eq=False)
class StoredTable:
    """A table that was found.

    Messages call it `where`. `columns` says which columns hold numbers (None: only the values
    tell); `keys` are no features unless asked for. `single` says that its numbers are float32, and
    `decimal` what stands before their fractions.
    """

    where: str
    columns: Mapping[str, bool | None]
    keys: frozenset[str]
    read: Read
    single: bool = False
    decimal: str = "."

    def blocks(self, numbers: Sequence[str] = (), texts: Sequence[str] = ()) -> Iterator[Block]:
        """Read the named columns of all rows, in a fixed order."""
        absent = [name for name in (*numbers, *texts) if name not in self.columns]
        if absent:
            raise InvalidInput(f"{self.where} must have columns {listed(absent)}")
        return self.read(tuple(numbers), tuple(texts))

    def whole(self, numbers: Sequence[str] = (), texts: Sequence[str] = ()) -> Block:
        """Read the named columns of all rows as one block."""
        X = GrowingRows(len(numbers))
        columns: list[list[npt.NDArray[np.int64]]] = [[] for _ in texts]
        seen: list[dict[str, int]] = [{} for _ in texts]
        broken = [np.zeros(0, dtype=np.bool_)]
        for block in self.blocks(numbers, texts):
            X.room(block.n_rows)[:] = block.numbers
            broken.append(block.broken)
            for column, known, part in zip(columns, seen, block.texts, strict=True):
                places = [known.setdefault(cell, len(known)) for cell in part.distinct]
                column.append(np.array([*places, -1])[part.codes])
        codes = [np.concatenate([np.zeros(0, dtype=np.int64), *column]) for column in columns]
        joined = (Texts(tuple(known), c) for known, c in zip(seen, codes, strict=True))
        return Block(X.whole(), tuple(joined), np.concatenate(broken))


class GrowingRows:
    """A matrix to which rows are added, without ever being there twice."""

    def __init__(self, n_columns: int) -> None:
        self._X, self._n = np.empty((0, n_columns)), 0

    def room(self, n_rows: int) -> Floats:
        """Return new rows to be filled, which must not be kept."""
        start, self._n = self._n, self._n + n_rows
        if self._n > len(self._X):  # the system moves pages, so growing copies nothing
            rows = max(self._n, len(self._X) * 5 // 4)
            self._X.resize((rows, self._X.shape[1]), refcheck=False)
        return self._X[start : self._n]

    def whole(self) -> Floats:
        """Return all rows."""
        self._X.resize((self._n, self._X.shape[1]), refcheck=False)
        return self._X


def column_table(
    where: str,
    columns: Mapping[str, Cells],
    *,
    keys: Iterable[str] = (),
    kinds: Mapping[str, bool | None] | None = None,
) -> StoredTable:
    """Return a table of columns that are in memory: arrays, or sequences of any values."""
    sizes = {len(cells) for cells in columns.values()}
    if len(sizes) > 1:
        raise InvalidInput(f"{where}: columns must be of one length, got {sorted(sizes)}")
    n = max(sizes, default=0)

    def read(numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        for i in range(0, n, BLOCK_ROWS):
            part = {name: columns[name][i : i + BLOCK_ROWS] for name in {*numbers, *texts}}
            yield cell_block(
                [part[name] for name in numbers],
                [part[name] for name in texts],
                min(BLOCK_ROWS, n - i),
            )

    found = {name: _kind(cells) for name, cells in columns.items()}
    single = {str(getattr(columns[name], "dtype", "")) for name in set(columns).difference(keys)}
    return StoredTable(
        where, {**found, **(kinds or {})}, frozenset(keys), read, single == {"float32"}
    )


def frame_table(frame: Any) -> StoredTable:
    """Open a pandas data frame; its index is not read."""
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput("the data frame must have column names that are text")
    columns: dict[str, Any] = {}
    kinds: dict[str, bool | None] = {}
    for j, name in enumerate(names):
        series = frame.iloc[:, j]
        kind = getattr(series.dtype, "kind", "O")
        kinds[name] = True if kind in "biuf" else False if kind in "mM" else None
        if isinstance(series.dtype, np.dtype) and kind in "biuf":
            columns[name] = series.to_numpy()
        else:
            gaps = series.isna().tolist()
            cells = series.to_numpy(dtype=object).tolist()
            columns[name] = [None if g else c for g, c in zip(gaps, cells, strict=True)]
    by_name("the data frame", names, names)
    return column_table("the data frame", columns, kinds=kinds)


def cell_block(numbers: Sequence[Cells], texts: Sequence[Cells], n_rows: int) -> Block:
    """Return a block of whole columns of cells, whose types say what they are."""
    X = np.empty((n_rows, len(numbers)))
    for j, cells in enumerate(numbers):
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
            with np.errstate(over="ignore"):  # beyond float64 lies infinity
                X[:, j] = cells
        else:
            X[:, j] = [number(cell) for cell in cells]  # None becomes NaN
    columns = (cells.tolist() if isinstance(cells, np.ndarray) else cells for cells in texts)
    read = tuple(Texts.of(map(text, cells)) for cells in columns)
    return Block(X, read, np.zeros(n_rows, dtype=np.bool_))


def _kind(cells: Cells) -> bool | None:
    if not isinstance(cells, np.ndarray):
        return None
    return {"b": True, "i": True, "u": True, "f": True, "M": False, "m": False}.get(
        cells.dtype.kind
    )


def word_columns(table: StoredTable, names: Sequence[str]) -> list[str]:
    """Return which columns hold no numbers: by type, or else by most of their filled cells."""
    unsure = [name for name in names if table.columns[name] is None]
    n_words, n_numbers = np.zeros(len(unsure)), np.zeros(len(unsure))
    for block in table.blocks(unsure, unsure) if unsure else ():
        n_words += worded(block).sum(axis=0)
        n_numbers += (~np.isnan(block.numbers)).sum(axis=0)
    mostly = dict(zip(unsure, n_words > n_numbers, strict=True))
    return [name for name in names if table.columns[name] is False or mostly.get(name, False)]


def worded(block: Block) -> Bools:
    """Return where a word stands for a number; the first texts are those of the numbers."""
    found = np.isnan(block.numbers)
    for j in range(found.shape[1]):
        column = block.texts[j]
        found[:, j] &= words(column.distinct)[column.codes]
    return found


@contextmanager
def readable(where: object) -> Iterator[None]:
    """Turn whatever a parser raises into one line: the file is missing or damaged.

    A parser's own words are not repeated, as they may quote a cell.
    """
    try:
        yield
    except DPFedCError:
        raise
    except Exception as error:
        reason = f"a file that is damaged or of another format ({type(error).__name__})"
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror.lower()
        raise DataUnavailable(f"{where} must be a readable file, got: {reason}") from error


def is_header(names: list[str]) -> bool:
    """Return whether a first row names columns: numbers are data, unless they count the columns."""
    counts = [[str(j) for j in range(start, start + len(names))] for start in (0, 1)]
    is_data = names not in counts and all(number(name) is not None for name in names)
    return bool(names) and "" not in names and not is_data


def by_name(where: object, names: Sequence[str], values: Iterable[T]) -> dict[str, T]:
    """Return one value per column by the column's name, if names are unique."""
    columns = dict(zip(names, values, strict=True))
    if len(columns) < len(names):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        raise InvalidInput(f"{where}: column names must differ, got twice {listed(twice)}")
    return columns


def listed(names: Iterable[str]) -> str:
    """Return the names for a message, at most ten of them."""
    names = list(names)
    more = f", ... ({len(names)} in all)" if len(names) > 10 else ""
    return (", ".join(repr(name) for name in names[:10]) or "none") + more
