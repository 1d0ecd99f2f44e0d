"""The user's own files: one table with a site column, or one file per site.

Rows in messages are data rows, counted from 1. No message quotes a cell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.tables.cells import words
from dpfedc.tables.check import MIN_RECORDS, NONE_HERE
from dpfedc.tables.encode import Records
from dpfedc.tables.formats import StrPath, suffix_of
from dpfedc.tables.ids import looks_like_id
from dpfedc.tables.schema import Schema
from dpfedc.tables.sources import DataSource
from dpfedc.tables.stored import Floats, StoredTable, Texts, listed, worded
from dpfedc.tables.text_files import Dialect
from dpfedc.tables.trial_records import (
    TrialRecords,
    id_array,
    person_records,
    usable_records,
)

Array = npt.NDArray[Any]
Given = StrPath | Sequence[StrPath | DataSource] | Mapping[str, StoredTable]
"""Files, other sources, or tables that are open already, by the names of their sites."""


def read_tables(
    paths: Given,
    *,
    site_column: str | None = None,
    label_column: str | None = None,
    person_column: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    dialect: Dialect = Dialect(),  # noqa: B008
) -> TrialRecords:
    """Read one file, whose sites a column names, or several files, one per site.

    Every column must hold finite numbers, but for those with a role and those to `drop`. One that
    looks like ids is refused unless it is to `keep`. A single file without site ids is one site. A
    site that is a file is called by the file's stem.
    """
    tables = opened_tables(paths, site_column, dialect)
    roles = {"site": site_column, "label": label_column, "person": person_column}
    drop, keep = ([given] if isinstance(given, str) else given for given in (drop, keep))
    parts = [_plain(table, roles, set(drop), set(keep)) for table in tables.values()]
    first, files = parts[0], [table.where for table in tables.values()]
    if len(parts) > 1:
        parts = [_alike(f, part, files[0], first) for f, part in zip(files, parts, strict=True)]
    X = first.X if len(parts) == 1 else np.concatenate([part.X for part in parts])
    sites = first.sites if len(parts) == 1 and first.sites is not None else _by_file(tables, parts)
    y = (
        None
        if first.y is None
        else np.concatenate([part.y for part in parts if part.y is not None])
    )
    if person_column is None:
        return TrialRecords(X, sites, y, first.feature_names)
    persons = [text for part in parts for text in part.ids or ()]
    return person_records(X, sites, persons, y, names=first.feature_names)


def read_encoded(
    paths: Given,
    schema: Schema,
    *,
    label_column: str | None = None,
    dialect: Dialect = Dialect(),  # noqa: B008
    all_columns: bool = True,
) -> TrialRecords:
    """Read tables by a schema: one file, whose sites a column names, or several, one per site.

    What the schema allows to be missing or wrong is a gap. What nobody can mean is refused: a
    person without an id, a site without records and, with `all_columns`, a column that nobody has.
    """
    opened = opened_tables(paths, schema.site, dialect)
    tables = list(opened.values())
    for table in tables:  # its names are not shown: they might be a row
        if not any(column.name in table.columns for column in schema.columns):
            raise InvalidInput(f"{table.where}: {NONE_HERE}")
    for column in schema.columns if all_columns else ():
        if all(column.name not in table.columns for table in tables):
            raise InvalidInput(f"column {column.name!r} of the schema must be in a file")
    least = MIN_RECORDS if all_columns else 1
    parts = [usable_records(table, schema, label=label_column, least=least) for table in tables]
    if len(parts) == 1:
        sites = None if schema.site is not None else _by_file(opened, parts)
        return TrialRecords.of(parts[0], schema, sites)
    joined = Records(
        np.concatenate([part.X for part in parts]),
        np.concatenate([part.present for part in parts]),
        _rows(parts),
        ids=_chained(part.ids for part in parts),
        labels=_chained(part.labels for part in parts),
    )
    return TrialRecords.of(joined, schema, _by_file(opened, parts))


def _rows(parts: Sequence[Records]) -> npt.NDArray[np.int64] | None:
    """Return the record of each row of all tables, one after another."""
    starts = np.cumsum([0, *(len(part.X) for part in parts)])
    found = [s + p.rows for s, p in zip(starts, parts, strict=False) if p.rows is not None]
    return np.concatenate(found) if found else None


def _chained(parts: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    found = [part for part in parts if part is not None]
    return tuple(text for part in found for text in part) if found else None


def opened_tables(
    paths: Given,
    site_column: str | None = None,
    dialect: Dialect = Dialect(),  # noqa: B008
) -> dict[str, StoredTable]:
    """Return the tables by the names of their sites: the file's stem, the database table's name."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise InvalidInput("paths must name at least one file, got none")
    if len(given) > 1 and site_column is not None:
        raise InvalidInput(f"site_column must be None for several files, got {site_column!r}")
    if isinstance(paths, Mapping):
        return dict(paths)
    tables: dict[str, StoredTable] = {}
    for one in given:
        source = one if isinstance(one, DataSource) else DataSource(one, **asdict(dialect))
        file = None if source.path is None else Path(source.path)
        name = str(source.table) if file is None else file.name[: -len(suffix_of(file))]
        table = source.opened()
        if name in tables:
            alike = listed([tables[name].where, table.where])
            raise InvalidInput(f"file stems must differ, as they name the sites, got {alike}")
        tables[name] = table
    return tables


def _by_file(tables: Mapping[str, StoredTable], parts: Sequence[Any]) -> Array:
    return np.repeat(np.asarray(list(tables)), [len(part.X) for part in parts])


def _plain(
    stored: StoredTable, roles: Mapping[str, str | None], drop: set[str], keep: set[str]
) -> TrialRecords:
    """Read one table of numbers; persons' ids are in `ids`, row by row."""
    file = stored.where
    # In an archive, two arrays have their roles by name.
    named = {"site": "sites", "label": "y"}
    roles = {
        role: name or (named.get(role) if named.get(role) in stored.keys else None)
        for role, name in roles.items()
    }
    held = [name for name in roles.values() if name is not None]
    _check_present(stored, [*held, *sorted(drop), *sorted(keep)])
    unused = {*drop, *held, *stored.keys}
    names = [name for name in stored.columns if name not in unused]
    if not names:
        got = listed(stored.columns)
        raise InvalidInput(f"{file} must have a feature column, got only {got}")
    block = stored.whole(names, held)
    if block.n_rows == 0:
        raise InvalidInput(f"{file} must have at least one row of data, got none")
    if block.broken.any():
        row = int(block.broken.argmax()) + 1
        wanted = f"must have {len(stored.columns)} cells, one for each column"
        raise InvalidInput(f"{file}: row {row} {wanted}")
    _check_finite(stored, names, block.numbers)
    for j, name in enumerate(names):
        if name not in keep and looks_like_id(name, block.numbers[:, j]):
            raise InvalidInput(
                f"{file}: column {name!r} looks like ids or codes, which are no measurements: "
                f"--drop {name} leaves it out, --keep {name} clusters it all the same"
            )
    texts = {
        name: _filled(stored, name, t, names=name != roles["person"])
        for name, t in zip(held, block.texts, strict=True)
    }
    site, label, person = (None if n is None else texts[n] for n in roles.values())
    return TrialRecords(
        block.numbers.astype(np.float32 if stored.single else np.float64, copy=False),
        None if site is None else id_array(site),
        None if label is None else id_array(label),
        tuple(names),
        ids=person,
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
        wrong = worded(stored.whole([name], [name]))[:, 0]
        if stored.columns[name] is False or wrong.any():
            place = "" if stored.columns[name] is False else f" in row {int(wrong.argmax()) + 1}"
            advice = "drop it, or say what it is in a schema"
            raise InvalidInput(
                f"{stored.where}: column {name!r} must be numeric, got something else{place} "
                f"({advice})"
            )
    row, j = divmod(int(bad.argmax()), bad.shape[1])
    raise InvalidInput(
        f"{stored.where} must have finite numbers only, got {int(bad.sum())} missing or infinite, "
        f"the first in column {names[j]!r}, row {row + 1}; with a schema gaps are allowed"
    )


def _filled(stored: StoredTable, name: str, texts: Texts, *, names: bool) -> tuple[str, ...]:
    """Return a column of ids, of which none may be missing; a name may be NA, a person's not."""
    missing = texts.codes < 0 if names else ~words(texts.distinct)[texts.codes]
    if missing.any():
        got = f"got {int(missing.sum())} missing, the first in row {int(missing.argmax()) + 1}"
        raise InvalidInput(f"{stored.where}: {name!r} must have an id in every row, {got}")
    return tuple(texts.distinct[c] for c in texts.codes)


def _alike(file: str, part: TrialRecords, first_file: str, first: TrialRecords) -> TrialRecords:
    """Return a site's records with the columns of the first site, in their order."""
    if part.sites is not None:
        raise InvalidInput(f"{file} must have no array 'sites', as each of several files is a site")
    if (part.y is None) != (first.y is None):
        raise InvalidInput(f"{file} and {first_file} must both have labels, or neither")
    got, expected = part.feature_names or (), first.feature_names or ()
    if set(got) != set(expected):
        lost, new = ([n for n in a if n not in b] for a, b in ((expected, got), (got, expected)))
        raise InvalidInput(
            f"{file} must have the columns of {first_file}: missing {listed(lost)}, unexpected "
            f"{listed(new)}; --drop them, or use a --schema, in which columns may be missing"
        )
    return part.in_order(expected)
