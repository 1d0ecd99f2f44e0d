"""What a trial clusters: numbers as they are, or records made of a table's rows by a schema."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.tables.cells import is_word, text
from dpfedc.tables.check import MIN_RECORDS
from dpfedc.tables.encode import Records, encoded_table, owners
from dpfedc.tables.persons import per_person
from dpfedc.tables.schema import Schema
from dpfedc.tables.stored import StoredTable, frame_table

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class TrialRecords:
    """Records of all sites, with the site of each.

    `y` are true labels. `present` says which records are not null (None: all). `unit` is what one
    record stands for, and `sites_per_person` at how many sites a person may be. `rows` holds the
    record of each row that was given, -1 for none (None: each row is a record). `ids` are the
    records' ids as they stand in the table, for whoever holds it.
    """

    X: Array
    sites: Array | None
    y: Array | None = None
    feature_names: tuple[str, ...] | None = None
    present: npt.NDArray[np.bool_] | None = None
    schema: Schema | None = None
    unit: str = "record"
    sites_per_person: int = 1
    rows: npt.NDArray[np.int64] | None = None
    ids: tuple[str, ...] | None = None

    @classmethod
    def of(cls, records: Records, schema: Schema, sites: Array | None) -> TrialRecords:
        """Return encoded records; sites are named by the table, unless they are given."""
        if sites is None and records.sites is not None:
            sites = id_array(records.sites)
        y = None if records.labels is None else id_array(records.labels)
        return cls(
            records.X, sites, y, schema.features, records.present, schema, schema.unit,
            schema.sites_per_person, records.rows, records.ids,
        )  # fmt: skip

    def in_order(self, names: Sequence[str]) -> TrialRecords:
        """Return the same records with their features in another order."""
        got = self.feature_names or ()
        if got == tuple(names):
            return self
        X = self.X[:, [got.index(name) for name in names]]
        return replace(self, X=X, feature_names=tuple(names))


_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")


def id_array(texts: Sequence[str]) -> Array:
    """Return ids as whole numbers if all are written as such ("007" is not), else as texts."""
    whole = all(_WHOLE.fullmatch(text) for text in set(texts))
    return np.array(texts, dtype=np.int64 if whole else np.str_)


def as_schema(schema: Any) -> Schema:
    """Return a schema from what users hand over: itself, a file's path, or a TOML's content."""
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, (str, os.PathLike)):
        return Schema.read(Path(schema))
    if isinstance(schema, Mapping):
        return Schema.of(schema)
    raise InvalidInput(f"schema must be a Schema, a path or a mapping, got {type(schema).__name__}")


def usable_records(
    table: StoredTable, schema: Schema, *, label: str | None = None, least: int = MIN_RECORDS
) -> Records:
    """Return a table's records; says which rows nobody can use."""
    records = encoded_table(table, schema, label=label)
    unit = schema.unit
    lost = np.zeros(0, dtype=np.bool_)
    if records.rows is not None and records.broken is not None:
        lost = (records.rows < 0) & ~records.broken  # a broken row is null, as at a site
    if lost.any():
        row = int(lost.argmax()) + 1
        advice = "fill it in, or take the row out"
        raise InvalidInput(f"{table.where}: row {row} has no {schema.person!r}: {advice}")
    if records.sites is None and len(records.X) < least:
        got = f"got {len(records.X)}"
        raise InvalidInput(f"{table.where} must have at least {least} {unit}s, {got}")
    for site, count in Counter(records.sites or ()).items():
        if count < least:
            record = (records.sites or ()).index(site)
            row = record if records.rows is None else int((records.rows == record).argmax())
            got = f"got {count} at the site of row {row + 1}"
            raise InvalidInput(
                f"{table.where} must have at least {least} {unit}s at every site, {got}"
            )
    if not records.present.any():
        raise InvalidInput(f"{table.where} must have a value in a column of the schema, got none")
    return records


def frame_records(
    frame: Any,
    schema: Schema,
    *,
    sites: Any = None,
    persons: Any = None,
    y: Any = None,
    least: int = MIN_RECORDS,
) -> TrialRecords:
    """Return the records of a DataFrame; `sites` and `persons` name columns, or hold the ids."""
    if not hasattr(frame, "assign"):
        raise InvalidInput(f"X must be a DataFrame with a schema, got {type(frame).__name__}")
    named: dict[str, str | None] = {}
    for role, given in (("site", sites), ("person", persons), ("label", y)):
        named[role] = given if given is None or isinstance(given, str) else f"{role} of each row"
        if given is not None and not isinstance(given, str):
            frame = _assigned(frame, f"{role} of each row", given)
    site, person, label = named.values()
    schema = schema.without(label).having(site=site or schema.site, person=person or schema.person)
    records = usable_records(frame_table(frame), schema, label=label, least=least)
    return TrialRecords.of(records, schema, None)


def _assigned(frame: Any, name: str, values: Any) -> Any:
    if np.shape(values) != (len(frame),):
        raise InvalidInput(
            f"the {name} must be given: expected shape ({len(frame)},), got {np.shape(values)}"
        )
    # Among texts in a list, NumPy would spell a NaN.
    kind = None if hasattr(values, "dtype") else object
    return frame.assign(**{name: np.asarray(values, dtype=kind)})


def named_columns(X: Any, sites: Any, persons: Any) -> tuple[Any, Any, Any]:
    """Return X without the columns that `sites` and `persons` name, and what these hold."""
    found = []
    for role, given in (("sites", sites), ("persons", persons)):
        if isinstance(given, str):
            if given not in getattr(X, "columns", ()):
                raise InvalidInput(f"{role} must name a column of X or hold the ids, got {given!r}")
            found.append(np.asarray(X[given]))
            X = X.drop(columns=given)
        else:
            found.append(given)
    return X, *found


def of_rows(labels: npt.NDArray[np.int32], records: TrialRecords) -> npt.NDArray[np.int32]:
    """Return the label of each row that was given, -1 for one that has no record or a null one."""
    if records.present is not None:
        labels = np.where(records.present, labels, -1).astype(np.int32)
    if records.rows is None:
        return labels
    return np.where(records.rows >= 0, labels[records.rows], -1).astype(np.int32)


def person_records(
    X: Array, sites: Any, persons: Any, y: Any = None, *, names: tuple[str, ...] | None = None
) -> TrialRecords:
    """Return the mean of each person's rows; a person is one at every site anew."""
    ids = np.asarray(persons)
    if ids.shape != X.shape[:1]:
        raise InvalidInput(
            f"persons must hold one id per row: expected shape {X.shape[:1]}, got {ids.shape}"
        )
    texts = np.array([text(cell) for cell in ids.tolist()], dtype=np.str_)
    known = np.array([is_word(cell) for cell in texts.tolist()], dtype=np.bool_)
    if not known.all():
        row = int(known.argmin()) + 1
        raise InvalidInput(f"persons must hold an id for every row, got none in row {row}")
    at = np.zeros(len(X), dtype=np.int64)
    if sites is not None:
        at = np.unique(np.asarray(sites), return_inverse=True)[1]
    rows, first = owners(np.unique(texts, return_inverse=True)[1], at)
    means = per_person(X.astype(np.float64), rows, len(first), "mean")
    return TrialRecords(
        means.astype(np.float32 if X.dtype == np.float32 else np.float64, copy=False),
        None if sites is None else np.asarray(sites)[first],
        None if y is None else np.asarray(y)[first],
        names,
        unit="person",
        rows=rows,
        ids=tuple(texts[first].tolist()),
    )
