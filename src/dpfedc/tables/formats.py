"""Tables in files, which are read alike in trials and at sites.

Formats go by suffix: text (.csv, .tsv, also .gz), .parquet, .arrow and .feather, .xlsx (the first
sheet), .npz (array `X`, optionally `sites`, `y` and `feature_names`) and .npy (one array of records
as rows). Pickled content is never loaded.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput, MissingExtra
from dpfedc.tables import text_files
from dpfedc.tables.cells import text
from dpfedc.tables.stored import (
    Block,
    StoredTable,
    by_name,
    column_table,
    is_header,
    listed,
    readable,
)
from dpfedc.tables.text_files import Dialect

StrPath = str | os.PathLike[str]
Array = npt.NDArray[Any]


def file_table(path: StrPath, dialect: Dialect = Dialect()) -> StoredTable:  # noqa: B008
    """Open a file; its rows have the order they are in."""
    file = Path(path)
    suffix = suffix_of(file)
    with readable(file):
        if file.stat().st_size == 0:
            raise InvalidInput(f"{file} must hold a table, got an empty file")
        if suffix in text_files.SUFFIXES:
            return text_files.text_table(file, dialect)
        if dialect != Dialect():
            raise InvalidInput(f"{file}: delimiter, encoding and decimal are for text files only")
        return READERS[suffix](file)


def suffix_of(file: Path) -> str:
    """Return the part of a file's name that tells its format, such as .csv.gz."""
    known = (*text_files.SUFFIXES, *READERS)
    ends = [suffix for suffix in known if file.name.lower().endswith(suffix)]
    if not ends:
        raise InvalidInput(f"{file} must end in {', '.join(known)}; got suffix {file.suffix!r}")
    return max(ends, key=len)


def _parquet(file: Path) -> StoredTable:
    try:
        from dpfedc.tables.arrow_files import parquet_table
    except ImportError as error:
        raise _missing(file, "pyarrow") from error
    return parquet_table(file)


def _arrow(file: Path) -> StoredTable:
    try:
        from dpfedc.tables.arrow_files import arrow_table
    except ImportError as error:
        raise _missing(file, "pyarrow") from error
    return arrow_table(file)


def _xlsx(file: Path) -> StoredTable:
    """Open the first sheet of a workbook, whose first row names the columns."""
    try:
        from python_calamine import CalamineWorkbook
    except ImportError as error:
        raise _missing(file, "python-calamine") from error
    book = CalamineWorkbook.from_path(str(file))
    rows = book.get_sheet_by_index(0).to_python(skip_empty_area=False)
    names = [text(cell) for cell in rows[0]] if rows else []
    while names and not names[-1]:  # a column without a name cannot be asked for
        names.pop()
    if not is_header(names):
        raise InvalidInput(f"{file} must start with a row of column names, one for each column")
    cells = [[row[j] for row in rows[1:]] for j in range(len(names))]
    return column_table(str(file), by_name(file, names, cells))


def _npz(file: Path) -> StoredTable:
    """Open an archive of arrays; all but X hold ids, not features."""
    arrays = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    if isinstance(arrays, np.ndarray):
        raise InvalidInput(f"{file} must be an archive of arrays, got one array (.npy)")
    if "X" not in arrays:
        raise InvalidInput(f"{file} must have column 'X', got {listed(arrays)}")
    names = _array(file, arrays, "feature_names") if "feature_names" in arrays else None
    features = _matrix_columns(file, _array(file, arrays, "X"), names)
    others = [name for name in arrays if name not in ("X", "feature_names")]
    both = [name for name in others if name in features]
    if both:
        raise InvalidInput(f"{file}: features and other arrays must differ, got {listed(both)}")
    known = column_table(str(file), features)
    n_rows = len(arrays["X"])

    def read(numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        with readable(file):  # other arrays are looked at only now
            wanted = [name for name in others if name in (*numbers, *texts)]
            asked = {name: _array(file, arrays, name) for name in wanted}
        for name, cells in asked.items():
            if cells.shape != (n_rows,):
                got = f"must have shape {(n_rows,)}, got {cells.shape}"
                raise InvalidInput(f"{file}: {name!r} {got}")
        return column_table(str(file), {**features, **asked}).read(numbers, texts)

    kinds = {**known.columns, **dict.fromkeys(others, False)}
    return StoredTable(str(file), kinds, frozenset(others), read, known.single)


def _npy(file: Path) -> StoredTable:
    """Open one array of records as rows; there are no other columns."""
    X = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    if not isinstance(X, np.ndarray):
        raise InvalidInput(f"{file} must be one array, got an archive of arrays (.npz)")
    return column_table(str(file), _matrix_columns(file, X, None))


READERS: dict[str, Callable[[Path], StoredTable]] = {
    ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow, ".xlsx": _xlsx, ".npz": _npz,
    ".npy": _npy,
}  # fmt: skip
"""By suffix, what opens a file that is not text."""


def _array(file: Path, arrays: Mapping[str, Array], name: str) -> Array:
    """Return an array of an archive; it is read only now."""
    try:
        return arrays[name]
    except ValueError as error:
        wanted = "must hold numbers or text (astype(str))"
        raise InvalidInput(f"{file}: array {name!r} {wanted}, got: {error}") from error


def _matrix_columns(file: Path, X: Array, names: Array | None) -> dict[str, Array]:
    """Return the columns of an array; without names they are called x0, x1, ..."""
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise InvalidInput(f"{file}: X must be numbers in 2-D, got {X.dtype} of shape {X.shape}")
    names = np.asarray([f"x{j}" for j in range(X.shape[1])]) if names is None else names
    if names.shape != X.shape[1:]:
        raise InvalidInput(f"{file}: feature_names must be {X.shape[1:]}, got shape {names.shape}")
    return by_name(file, [str(name) for name in names], X.T)


def _missing(file: Path, package: str) -> MissingExtra:
    return MissingExtra(f"{file} needs {package}: pip install 'dpfedc[tables]'")
