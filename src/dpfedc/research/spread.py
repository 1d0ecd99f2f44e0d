"""The mean of repeated runs, and how far to trust it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def mean_and_error(values: npt.ArrayLike) -> tuple[Any, Any]:
    """Return the mean over the first axis and its standard error; values not finite do not count.

    The error is NaN with fewer than two values, the mean with none.

    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    """
    found = np.asarray(values, dtype=np.float64)
    counted = np.isfinite(found)
    n = counted.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(counted, found, 0.0).sum(axis=0) / n
        squares = np.where(counted, found - mean, 0.0) ** 2
        error = np.sqrt(squares.sum(axis=0) / (n - 1) / n)
    return (mean, error) if found.ndim > 1 else (float(mean), float(error))
