"""Checks of what users hand to an estimator; every message says what was got and expected."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput, UtilityWarning
from dpfedc.tables.ids import looks_like_id
from dpfedc.tables.trial_records import TrialRecords

MAX_CLIPPED = 0.5


def refuse_ids(X: Any) -> None:
    """Refuse a DataFrame with a column that looks like ids or codes."""
    for name in getattr(X, "columns", ()):
        values = np.asarray(X[name])
        if isinstance(name, str) and values.dtype.kind in "iuf" and looks_like_id(name, values):
            raise InvalidInput(
                f"column {name!r} looks like ids or codes, which are no measurements: drop it, or "
                "pass a schema that says what it is"
            )


def refuse_gaps(X: Any) -> None:
    """Refuse a DataFrame with gaps or words, in one line that says what helps."""
    for name in getattr(X, "columns", ()):
        column = X[name]
        if getattr(column.dtype, "kind", "O") == "O" or bool(column.isna().any()):
            raise InvalidInput(
                f"column {name!r} must hold numbers without gaps, got others: pass a schema, which "
                "says what to do with them, or drop it"
            )


def warn_of_columns(records: TrialRecords) -> None:
    """Warn of numbers that a schema's ranges leave nothing of."""
    if records.schema is None:
        return
    X = records.X[records.present]
    for column, at in records.schema.placed:
        values = X[:, at.start]
        filled = values[np.isfinite(values)]
        if column.kind == "number" and len(filled) == 0:
            warnings.warn(f"column {column.name!r} has no numbers", UtilityWarning, stacklevel=3)
        elif column.ends is not None and (np.abs(filled) == 1).mean() > MAX_CLIPPED:
            text = f"most values of column {column.name!r} are clipped to the ends of its range"
            warnings.warn(text, UtilityWarning, stacklevel=3)


def warn_of_persons(records: TrialRecords) -> None:
    """Warn of ids at more sites than is promised for: they may be the same persons."""
    if records.unit != "person" or records.ids is None or records.sites is None:
        return
    most = max(Counter(records.ids).values(), default=0)
    if most > records.sites_per_person:
        warnings.warn(
            f"some ids of persons are at {most} sites: if they are the same persons, the promise "
            f"for them needs sites_per_person={most}",
            UtilityWarning,
            stacklevel=3,
        )


def check_records(
    X: npt.NDArray[Any],
    n_clusters: int,
    *,
    nonnegative: bool,
    present: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Say what makes records impossible to cluster; a table's encoding leaves little of that."""
    if present is not None:
        X = np.nan_to_num(X[present], nan=2.0)  # a gap is like no value
    n = len(X)
    if n < n_clusters:
        raise InvalidInput(f"n_samples={n} should be >= n_clusters={n_clusters}")
    least, most = float(X.min()), float(X.max())
    if nonnegative and least < 0:
        raise InvalidInput(f"nonnegative=True needs every value >= 0, got a least value of {least}")
    limits = np.finfo(X.dtype)
    largest, low = float(np.sqrt(limits.max / (8.0 * X.size))), 1e3 * float(np.sqrt(limits.tiny))
    if max(-least, most) > largest:
        raise InvalidInput(
            f"values of X must be at most {largest:.1e} in size, or their squares overflow "
            f"{X.dtype}, got {max(-least, most):.1e}"
        )
    if 0 < most - least < low:
        raise InvalidInput(
            f"values of X must differ by at least {low:.1e}, or their squares underflow "
            f"{X.dtype}, got {most - least:.1e}"
        )
    # A few rows settle it for almost all data; only if too few differ are all rows compared.
    some = X[np.linspace(0, n - 1, min(n, 64 + 4 * n_clusters)).astype(int)]
    # Adding zero makes -0 and 0 the same.
    if len({row.tobytes() for row in some + 0.0}) >= max(n_clusters, 2):
        return
    distinct = len(np.unique(X, axis=0))
    if distinct == 1 and n > 1:
        raise InvalidInput(
            f"X is constant: all {n} records are equal, expected at least 2 distinct ones"
        )
    if distinct < n_clusters:
        raise InvalidInput(
            f"X has {distinct} distinct records, expected at least n_clusters={n_clusters}"
        )
