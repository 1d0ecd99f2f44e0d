"""Checks of what users hand to an estimator; every message says what was got and expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput


def plain(value: Any) -> Any:
    """Return a NumPy scalar as the Python number it stands for; JSON knows no other."""
    return value.item() if isinstance(value, np.generic) else value


def left_open(value: Any, free: tuple[str | None, ...]) -> bool:
    """Return whether a setting has one of the values that leave it to the plan."""
    return (value is None or isinstance(value, str)) and value in free


def checked_ranges(ranges: Any, n_features: int) -> npt.NDArray[np.float64]:
    """Return the least and largest values of the features, or say what was expected of them."""
    expected = f"finite numbers of shape ({n_features}, 2) with least < largest in every row"
    try:
        values = np.asarray(ranges, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"feature_ranges must hold {expected}, got {ranges!r}") from error
    if values.shape != (n_features, 2):
        raise InvalidInput(f"feature_ranges must hold {expected}, got shape {values.shape}")
    wrong = ~(np.isfinite(values).all(axis=1) & (values[:, 0] < values[:, 1]))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidInput(f"feature_ranges must hold {expected}, got {values[i]} in row {i}")
    return values


def checked_start(init: Any, n_clusters: int, n_features: int) -> npt.NDArray[np.float64]:
    """Return given public centres as an array, or say what was expected of them."""
    expected = (n_clusters, n_features)
    try:
        start = np.asarray(init, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"init must be None or an array of shape {expected}, got {init!r}"
        ) from error
    if start.shape != expected:
        raise InvalidInput(f"init must have shape {expected}, got {start.shape}")
    if not np.isfinite(start).all():
        raise InvalidInput("init must be finite, got NaN or infinity")
    return start


def check_records(X: npt.NDArray[Any], n_clusters: int, *, nonnegative: bool) -> None:
    """Say what makes records impossible to cluster."""
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
    if len(np.unique(some, axis=0)) >= max(n_clusters, 2):
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
