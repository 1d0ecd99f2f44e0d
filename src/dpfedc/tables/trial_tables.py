"""The user's own files: one table with a site column, or one file per site.

Rows in messages are data rows, counted from 1.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.tables.formats import (
    Array,
    Columns,
    StrPath,
    check_present,
    listed,
    named_array,
    number,
    read_columns,
    readable,
)

Roles = tuple[str | None, str | None]

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
        check_present(file, others, (site_column, label_column))
        if others is not features:  # in an archive, two arrays have their roles by name
            site_column = "sites" if site_column is None and "sites" in others else site_column
            label_column = "y" if label_column is None and "y" in others else label_column
        unused = {drop} if isinstance(drop, str) else set(drop)
        return _table(file, features, others, (site_column, label_column), unused)


def _table(file: Path, features: Columns, others: Columns, roles: Roles, drop: set[str]) -> Table:
    """Return the table with these roles if it has rows, finite numbers and one id per row."""
    check_present(file, features, sorted(drop))
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


def _ids(file: Path, name: str, columns: Columns, n_rows: int) -> Array:
    """Return ids as int64 if all are whole numbers that fit, else as text ("007" stays text)."""
    column = named_array(file, columns, name)
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
