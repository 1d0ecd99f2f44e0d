"""Seeding by distance: probabilities in proportion to d^2, and uploads of a fixed size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from dpfedc.kernels import Array
from dpfedc.kernels.segments import Int64
from dpfedc.privacy.sampling import site_of_row
from dpfedc.privacy.sums import CHUNK


def squared_gaps(X: Array, C: Array) -> Array:
    """Return |x_j - c_l|^2, exactly zero where it cannot be told from zero.

    X is (..., n, m) and C (..., k, m), stacked alike. The expansion |x|^2 - 2 x.c + |c|^2 leaves a
    rounding error even where x = c; what is below it is set to zero, so that a record which is a
    centre has no distance left.
    """
    xp = array_namespace(X, C)
    x_squares = xp.sum(X * X, axis=-1)[..., None]
    c_squares = xp.sum(C * C, axis=-1)[..., None, :]
    gaps = x_squares - 2 * xp.matmul(X, xp.matrix_transpose(C)) + c_squares
    rounding = (8 + math.sqrt(X.shape[-1])) * xp.finfo(X.dtype).eps * (x_squares + c_squares)
    return xp.where(gaps > rounding, gaps, xp.zeros_like(gaps))


def nearest_candidates(X: Array, C: Array) -> tuple[Array, Array]:
    """Return d^2(x_j, C) and the number of the nearest candidate, a chunk of rows at a time.

    Distances are measured from the middle of the candidates, so a shift of all data costs no
    precision.
    """
    xp, n = array_namespace(X, C), X.shape[0]
    origin = xp.mean(C, axis=0)
    squares, labels = [], []
    for start in range(0, n, CHUNK):
        gaps = squared_gaps(X[start : min(start + CHUNK, n), :] - origin, C - origin)
        squares.append(xp.min(gaps, axis=1))
        labels.append(xp.argmin(gaps, axis=1))
    return xp.concat(squares), xp.concat(labels)


def draw_probabilities(
    squares: npt.NDArray[Any], cost: float, expected: float
) -> npt.NDArray[np.float64]:
    """Return p_j = min(1, expected d_j^2 / cost); 0 for all if the cost is not above zero.

    At most `expected` records are drawn on average, if the cost is the sum of all d_j^2.

    >>> draw_probabilities(np.array([0.0, 1.0, 3.0]), 4.0, 2.0).tolist()
    [0.0, 0.5, 1.0]
    """
    if not cost > 0:
        return np.zeros(len(squares))
    return np.minimum(np.asarray(squares, dtype=np.float64) * (expected / cost), 1.0)


def slot_count(expected: float) -> int:
    """Return a number of slots that almost always holds a round's draws, all sites together.

    With l expected draws, more than l + x records are drawn with probability at most
    exp(-x^2 / (2l + 2x/3)) (Bernstein). At x = 6 sqrt(l) + 12 that is below 2e-8 for every l.
    """
    return math.ceil(expected + 6 * math.sqrt(expected) + 12)


def slot_rows(drawn: npt.NDArray[np.bool_], offsets: Int64, n_slots: int) -> Int64:
    """Return the rows that each site drew (sites x n_slots), in order; -1 marks an empty slot.

    What does not fit into a site's slots is left out.
    """
    rows = np.flatnonzero(drawn)
    site = site_of_row(offsets)[rows]
    rank = np.arange(len(rows)) - np.searchsorted(site, site)
    fits = rank < n_slots
    slots = np.full((len(offsets) - 1, n_slots), -1, dtype=np.int64)
    slots[site[fits], rank[fits]] = rows[fits]
    return slots


def rows_in_ball(X: Array, bound: Array) -> Array:
    """Return the rows of X scaled down to norm <= bound."""
    xp = array_namespace(X)
    norms = xp.sqrt(xp.sum(X * X, axis=-1, keepdims=True))
    return X * (bound / xp.maximum(norms, xp.ones_like(norms) * bound))
