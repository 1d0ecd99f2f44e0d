"""The cells of a file, column by column, whatever its format; read alike in trials and at sites.

Formats go by suffix: .csv (with a header row), .parquet, .npz (array `X`, optionally `sites`, `y`
and `feature_names`) and .npy (one array of records as rows). Pickled content is never loaded.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpfedc.errors import DataUnavailable, DPFedCError, InvalidInput, MissingExtra

StrPath = str | os.PathLike[str]
Array = npt.NDArray[Any]
Columns = Mapping[str, Array]
T = TypeVar("T")

_NUMERIC = (str, int, float, Decimal)
_MISSING = {"", "na", "n/a", "nan", "null", "none"}


def read_columns(file: Path) -> tuple[Columns, Columns]:
    """Return the columns that may be features, and those that may hold site ids or labels."""
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise InvalidInput(f"{file} must end in {', '.join(READERS)}; got suffix {file.suffix!r}")
    with readable(file):
        if file.stat().st_size == 0:
            raise InvalidInput(f"{file} must hold a table, got an empty file")
        return reader(file)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn whatever a parser raises into one line: the file is missing or damaged."""
    try:
        yield
    except DPFedCError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataUnavailable(f"{file} must be a readable file, got: {reason}") from error


def _read_csv(file: Path) -> tuple[Columns, Columns]:
    """Read a CSV file, in which every cell is text."""
    with file.open(newline="", encoding="utf-8-sig") as stream:
        rows = [[cell.strip() for cell in row] for row in csv.reader(stream, strict=True)]
    while rows and not rows[-1]:
        rows.pop()
    names = rows.pop(0) if rows else []
    if not is_header(names):
        raise InvalidInput(f"{file} must start with a row of column names, got {listed(names)}")
    for row, cells in enumerate(rows, start=1):
        if len(cells) != len(names):
            raise InvalidInput(f"{file}: row {row} must have {len(names)} cells, got {len(cells)}")
    table = np.asarray(rows, dtype=object).reshape(len(rows), len(names))
    columns = by_name(file, names, table.T)
    return columns, columns


def is_header(names: list[str]) -> bool:
    """Return whether a first row names columns: numbers are data, unless they count the columns."""
    counts = [[str(j) for j in range(start, start + len(names))] for start in (0, 1)]
    is_data = names not in counts and all(number(name) is not None for name in names)
    return bool(names) and "" not in names and not is_data


def _read_parquet(file: Path) -> tuple[Columns, Columns]:
    """Read a Parquet file, whose columns are typed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra(f"{file} needs pyarrow: pip install 'dpfedc[parquet]'") from error

    def values(column: Any) -> Array:
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            return np.asarray(column.to_numpy())
        return np.fromiter(column.to_pylist(), dtype=object, count=len(column))

    with pq.ParquetFile(file) as source:
        table = source.read()
    columns = by_name(file, table.column_names, [values(column) for column in table.columns])
    return columns, columns


def _read_npz(file: Path) -> tuple[Columns, Columns]:
    """Read the named arrays of an .npz file."""
    arrays = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    if isinstance(arrays, np.ndarray):
        raise InvalidInput(f"{file} must be an archive of arrays, got one array (.npy)")
    check_present(file, arrays, ["X"])
    names = named_array(file, arrays, "feature_names") if "feature_names" in arrays else None
    return _matrix_columns(file, named_array(file, arrays, "X"), names), arrays


def _read_npy(file: Path) -> tuple[Columns, Columns]:
    """Read one array of records as rows; there are no other columns."""
    X = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    if not isinstance(X, np.ndarray):
        raise InvalidInput(f"{file} must be one array, got an archive of arrays (.npz)")
    return _matrix_columns(file, X, None), {}


READERS: dict[str, Callable[[Path], tuple[Columns, Columns]]] = {
    ".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz, ".npy": _read_npy,
}  # fmt: skip
"""By suffix, what reads a file: the columns that may be features, and those that may be ids. They
are the same columns where a format does not tell them apart."""


def _matrix_columns(file: Path, X: Array, names: Array | None) -> Columns:
    """Return the columns of an array; without names they are called x0, x1, ..."""
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise InvalidInput(f"{file}: X must be numbers in 2-D, got {X.dtype} of shape {X.shape}")
    names = np.asarray([f"x{j}" for j in range(X.shape[1])]) if names is None else names
    if names.shape != X.shape[1:]:
        raise InvalidInput(f"{file}: feature_names must be {X.shape[1:]}, got shape {names.shape}")
    return by_name(file, [str(name) for name in names], X.T)


def by_name(file: Path, names: Sequence[str], values: Iterable[T]) -> dict[str, T]:
    """Return one value per column by the column's name, if names are unique."""
    columns = dict(zip(names, values, strict=True))
    if len(columns) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidInput(f"{file}: column names must differ, got twice {listed(twice)}")
    return columns


def number(cell: Any) -> float | None:
    """Return the number that a cell is or spells, NaN if it is missing, None if it is no number."""
    if cell is None:
        return math.nan
    try:
        return float(cell) if isinstance(cell, _NUMERIC) else None
    except ValueError:
        return math.nan if isinstance(cell, str) and cell.lower() in _MISSING else None
    except OverflowError:
        return None


def named_array(file: Path, arrays: Columns, name: str) -> Array:
    """Return a column; those of an archive are read only now."""
    try:
        return arrays[name]
    except ValueError as error:
        wanted = "must hold numbers or text (astype(str))"
        raise InvalidInput(f"{file}: array {name!r} {wanted}, got: {error}") from error


def listed(names: Iterable[str]) -> str:
    """Return the names for a message, at most ten of them."""
    names = list(names)
    more = f", ... ({len(names)} in all)" if len(names) > 10 else ""
    return (", ".join(repr(name) for name in names[:10]) or "none") + more


def check_present(file: Path, names: Iterable[str], wanted: Iterable[str | None]) -> None:
    """Say which of the wanted columns is not there."""
    there = list(names)
    for name in wanted:
        if name is not None and name not in there:
            got = listed(there) if there else "none: this format has no column names; use .npz"
            raise InvalidInput(f"{file} must have column {name!r}, got {got}")
