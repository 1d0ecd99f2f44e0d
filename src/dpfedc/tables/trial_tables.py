"""The user's own files: one table with a site column, or one file per site.

Rows in messages are data rows, counted from 1. No message quotes a cell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.tables.formats import StrPath, file_table, suffix_of
from dpfedc.tables.stored import Floats, StoredTable, Texts, listed, worded
from dpfedc.tables.text_files import Dialect

Array = npt.NDArray[Any]

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
    dialect: Dialect = Dialect(),  # noqa: B008
) -> Table:
    """Read one file, whose sites a column names, or several files, one per site.

    A single file without site ids is one site. A site that is a file is called by the file's stem.
    """
    files = [Path(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise InvalidInput("paths must name at least one file, got none")
    stems = [file.name[: -len(suffix_of(file))] for file in files]
    if len(files) > 1 and site_column is not None:
        raise InvalidInput(f"site_column must be None for several files, got {site_column!r}")
    alike = [str(file) for file, stem in zip(files, stems, strict=True) if stems.count(stem) > 1]
    if alike:
        raise InvalidInput(f"file stems must differ, as they name the sites, got {listed(alike)}")
    options: dict[str, Any] = {"label_column": label_column, "drop": drop, "dialect": dialect}
    tables = [read_table(file, site_column=site_column, **options) for file in files]
    if len(tables) == 1 and tables[0].sites is not None:
        return tables[0]
    for file, table in zip(files, tables, strict=True):
        _check_alike(file, table, files[0], tables[0])
    labels = [table.y for table in tables if table.y is not None]
    return Table(
        X=tables[0].X if len(tables) == 1 else np.concatenate([table.X for table in tables]),
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
    dialect: Dialect = Dialect(),  # noqa: B008
) -> Table:
    """Read one file; every column that is not site, label or dropped must be numeric and finite."""
    stored = file_table(path, dialect)
    # In an archive, two arrays have their roles by name.
    site_column = "sites" if site_column is None and "sites" in stored.keys else site_column
    label_column = "y" if label_column is None and "y" in stored.keys else label_column
    unused = {drop} if isinstance(drop, str) else set(drop)
    roles = [role for role in (site_column, label_column) if role is not None]
    _check_present(stored, [*roles, *sorted(unused)])
    unused |= {*roles, *stored.keys}
    names = [name for name in stored.columns if name not in unused]
    if not names:
        got = listed(stored.columns)
        raise InvalidInput(f"{path} must have a feature column, got only {got}")
    block = stored.whole(names, roles)
    if block.n_rows == 0:
        raise InvalidInput(f"{path} must have at least one row of data, got none")
    if block.broken.any():
        row = int(block.broken.argmax()) + 1
        wanted = f"must have {len(stored.columns)} cells, one for each column"
        raise InvalidInput(f"{path}: row {row} {wanted}")
    _check_finite(stored, names, block.numbers)
    ids = {role: _ids(stored, role, t) for role, t in zip(roles, block.texts, strict=True)}
    return Table(
        X=block.numbers.astype(np.float32 if stored.single else np.float64, copy=False),
        sites=None if site_column is None else ids[site_column],
        y=None if label_column is None else ids[label_column],
        feature_names=tuple(names),
    )


def _check_present(stored: StoredTable, wanted: Iterable[str]) -> None:
    """Say which of the wanted columns is not there."""
    for name in wanted:
        if name not in stored.columns:
            got = listed(stored.columns)
            raise InvalidInput(f"{stored.where} must have column {name!r}, got {got}")


def _check_finite(stored: StoredTable, names: Sequence[str], X: Floats) -> None:
    """Raise unless all are finite numbers; the message says where the first is that is not."""
    bad = ~np.isfinite(X)
    if not bad.any():
        return
    # Words in a column are told from gaps; a type that holds no numbers is wrong as a whole.
    for name in (names[j] for j in np.flatnonzero(bad.any(axis=0)).tolist()):
        words = worded(stored.whole([name], [name]))[:, 0]
        if stored.columns[name] is False or words.any():
            place = "" if stored.columns[name] is False else f" in row {int(words.argmax()) + 1}"
            advice = "drop it, or make it site or label column"
            raise InvalidInput(
                f"{stored.where}: column {name!r} must be numeric, got something else{place} "
                f"({advice})"
            )
    row, j = divmod(int(bad.argmax()), bad.shape[1])
    raise InvalidInput(
        f"{stored.where} must have finite numbers only, got {int(bad.sum())} missing or infinite, "
        f"the first in column {names[j]!r}, row {row + 1}"
    )


def _ids(stored: StoredTable, name: str, texts: Texts) -> Array:
    """Return ids as int64 if all are whole numbers that fit, else as text ("007" stays text)."""
    missing = texts.codes < 0
    if missing.any():
        got = f"got {int(missing.sum())} missing, the first in row {int(missing.argmax()) + 1}"
        raise InvalidInput(f"{stored.where}: {name!r} must have an id in every row, {got}")
    fits = all(_WHOLE.fullmatch(t) and abs(int(t)) < 2**63 for t in texts.distinct)
    return np.asarray(texts.distinct, dtype=np.int64 if fits else np.str_)[texts.codes]


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
