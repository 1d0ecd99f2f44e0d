"""Checks of what users hand to an estimator; every message says what was got and expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput


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
