"""The user's own files: one table with a site column, or one file per site.

Formats go by suffix: .csv (with a header row), .parquet, .npz (array `X`, optionally `sites`, `y`
and `feature_names`) and .npy (one array of records as rows). Pickled content is never loaded.
Rows in messages are data rows, counted from 1.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpfedc.errors import DataUnavailable, DPFedCError, InvalidInput, MissingExtra

StrPath = str | os.PathLike[str]
Array = npt.NDArray[Any]
Columns = Mapping[str, Array]
Roles = tuple[str | None, str | None]
T = TypeVar("T")

_NUMERIC = (str, int, float, Decimal)
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_WHOLE = re.compile("0|-?[1-9][0-9]{0,18}")


@dataclass(frozen=True, eq=False)
class Table:
    """Records as rows: `X` is n x m, float32 where the source is float32, else float64.

    `sites` and `y` hold one id per record, as text or int64, or are None.
    """

    X: npt.NDArray[np.floating[Any]]
    sites: Array | None
    y: Array | None
    feature_names: tuple[str, ...]


def read_tables(
    paths: StrPath | Sequence[StrPath],
    *,
    site_column: str | None = None,
    label_column: str | None = None,
    drop: Sequence[str] = (),
) -> Table:
    """Read one file, whose sites a column names, or several files, one per site.

    A single file without site ids is one site. A site that is a file is called by the file's stem.
    """
    files = [Path(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    stems = [file.stem for file in files]
    if not files:
        raise InvalidInput("paths must name at least one file, got none")
    if len(files) > 1 and site_column is not None:
        raise InvalidInput(f"site_column must be None for several files, got {site_column!r}")
    alike = [str(file) for file in files if stems.count(file.stem) > 1]
    if alike:
        raise InvalidInput(f"file stems must differ, as they name the sites, got {listed(alike)}")
    options: dict[str, Any] = {"label_column": label_column, "drop": drop}
    tables = [read_table(file, site_column=site_column, **options) for file in files]
    if len(tables) == 1 and tables[0].sites is not None:
        return tables[0]
    for file, table in zip(files, tables, strict=True):
        _check_alike(file, table, files[0], tables[0])
    labels = [table.y for table in tables if table.y is not None]
    return Table(
        X=np.concatenate([table.X for table in tables]),
        sites=np.repeat(np.asarray(stems), [len(table.X) for table in tables]),
        y=np.concatenate(labels) if labels else None,
        feature_names=tables[0].feature_names,
    )


def read_table(
    path: StrPath,
    *,
    site_column: str | None = None,
    label_column: str | None = None,
    drop: Sequence[str] = (),
) -> Table:
    """Read one file; every column that is not site, label or dropped must be numeric and finite."""
    file = Path(path)
    with readable(file):
        features, others = read_columns(file)
        _check_present(file, others, (site_column, label_column))
        if others is not features:  # in an archive, two arrays have their roles by name
            site_column = "sites" if site_column is None and "sites" in others else site_column
            label_column = "y" if label_column is None and "y" in others else label_column
        unused = {drop} if isinstance(drop, str) else set(drop)
        return _table(file, features, others, (site_column, label_column), unused)


def read_columns(file: Path) -> tuple[Columns, Columns]:
    """Return the columns that may be features, and those that may hold site ids or labels."""
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise InvalidInput(f"{file} must end in {', '.join(_READERS)}; got suffix {file.suffix!r}")
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
    _check_present(file, arrays, ["X"])
    names = _array(file, arrays, "feature_names") if "feature_names" in arrays else None
    return _matrix_columns(file, _array(file, arrays, "X"), names), arrays


def _read_npy(file: Path) -> tuple[Columns, Columns]:
    """Read one array of records as rows; there are no other columns."""
    X = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    if not isinstance(X, np.ndarray):
        raise InvalidInput(f"{file} must be one array, got an archive of arrays (.npz)")
    return _matrix_columns(file, X, None), {}


_READERS: dict[str, Callable[[Path], tuple[Columns, Columns]]] = {
    ".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz, ".npy": _read_npy,
}  # fmt: skip


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


def _table(file: Path, features: Columns, others: Columns, roles: Roles, drop: set[str]) -> Table:
    """Return the table with these roles if it has rows, finite numbers and one id per row."""
    _check_present(file, features, sorted(drop))
    unused = {*drop, *roles} if others is features else drop
    names = [name for name in features if name not in unused]
    if not names:
        raise InvalidInput(f"{file} must have a feature column, got only {listed(features)}")
    X = np.column_stack([_numbers(file, name, features[name]) for name in names])
    with np.errstate(over="ignore"):  # too large a number becomes inf, and is refused below
        X = X.astype(np.float32 if X.dtype == np.float32 else np.float64, copy=False)
    if len(X) == 0:
        raise InvalidInput(f"{file} must have at least one row of data, got none")
    bad = ~np.isfinite(X)
    if bad.any():
        row, j = divmod(int(bad.argmax()), bad.shape[1])
        raise InvalidInput(
            f"{file} must have finite numbers only, got {int(bad.sum())} missing or infinite, "
            f"the first in column {names[j]!r}, row {row + 1}"
        )
    sites, y = (None if role is None else _ids(file, role, others, len(X)) for role in roles)
    return Table(X=X, sites=sites, y=y, feature_names=tuple(names))


def _numbers(file: Path, name: str, column: Array) -> Array:
    """Return a column as numbers, with NaN where a value is missing."""
    if column.dtype.kind in "biuf":
        return column
    values = [number(cell) for cell in column]
    if None in values:
        j = values.index(None)
        got = f"{str(column[j])[:40]!r} in row {j + 1} (drop it, or make it site or label column)"
        raise InvalidInput(f"{file}: column {name!r} must be numeric, got {got}")
    return np.asarray(values, dtype=np.float64)


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


def _ids(file: Path, name: str, columns: Columns, n_rows: int) -> Array:
    """Return ids as int64 if all are whole numbers that fit, else as text ("007" stays text)."""
    column = _array(file, columns, name)
    if column.shape != (n_rows,):
        raise InvalidInput(f"{file}: {name!r} must have shape {(n_rows,)}, got {column.shape}")
    texts = [_id_text(cell) for cell in column.tolist()]
    for kind, wrong in (("missing", ""), ("neither text nor whole number", None)):
        if wrong in texts:
            got = f"got {texts.count(wrong)} {kind}, the first in row {texts.index(wrong) + 1}"
            raise InvalidInput(f"{file}: {name!r} must have an id in every row, {got}")
    fits = all(_WHOLE.fullmatch(str(t)) and abs(int(str(t))) < 2**63 for t in texts)
    return np.asarray(texts, dtype=np.int64 if fits else np.str_)


def _id_text(cell: Any) -> str | None:
    """Return an id as text, "" if it is missing, None if it can be no id."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, bytes):
        return cell.decode()
    whole = int(cell) if isinstance(cell, float) and cell.is_integer() else cell
    return str(whole) if isinstance(whole, str | int) else None


def _array(file: Path, arrays: Columns, name: str) -> Array:
    """Return a column; those of an archive are read only now."""
    try:
        return arrays[name]
    except ValueError as error:
        wanted = "must hold numbers or text (astype(str))"
        raise InvalidInput(f"{file}: array {name!r} {wanted}, got: {error}") from error


def _check_present(file: Path, names: Iterable[str], wanted: Iterable[str | None]) -> None:
    there = list(names)
    for name in wanted:
        if name is not None and name not in there:
            got = listed(there) if there else "none: this format has no column names; use .npz"
            raise InvalidInput(f"{file} must have column {name!r}, got {got}")


def _check_alike(file: Path, table: Table, first_file: Path, first: Table) -> None:
    """Raise unless a site's file has the columns of the first one, in the same order."""
    if table.sites is not None:
        raise InvalidInput(f"{file} must have no array 'sites', as each of several files is a site")
    if (table.y is None) != (first.y is None):
        raise InvalidInput(f"{file} and {first_file} must both have labels, or neither")
    got, expected = table.feature_names, first.feature_names
    if got != expected:
        j = next(j for j in range(len(got) + 1) if got[j : j + 1] != expected[j : j + 1])
        raise InvalidInput(
            f"{file} must have the columns of {first_file} in the same order: from feature {j + 1} "
            f"on expected {listed(expected[j:])}, got {listed(got[j:])}"
        )


def listed(names: Iterable[str]) -> str:
    """Return the names for a message, at most ten of them."""
    names = list(names)
    more = f", ... ({len(names)} in all)" if len(names) > 10 else ""
    return (", ".join(repr(name) for name in names[:10]) or "none") + more
