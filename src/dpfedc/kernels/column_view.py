"""Encoded records as stages see them: ranges applied, gaps filled, columns brought to like spread.

    e_jc = clip((x_jc - middle_c) / half_c, -1, 1)          where the range was found out in the run
    v_jc = (e_jc - mean_c) factor_c,   and 0 where x_jc is a gap (NaN)

A gap takes the released mean of its column, so it adds nothing to any distance from the mean. All
four arrays are public; a record's view depends on that record and on them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from array_api_compat import array_namespace

from dpfedc.kernels import Array
from dpfedc.kernels.rows import chunks

RANGE, SPREAD = ("column_middle", "column_half"), ("column_mean", "column_factor")
VIEW = (*RANGE, *SPREAD)
"""The names of the arrays in a run's state."""


def seen(X: Array, state: Mapping[str, Array]) -> Array:
    """Return the records as the state's arrays have them seen; X itself where it has none."""
    xp = array_namespace(X)
    if RANGE[0] in state:
        middle, half = (state[name] for name in RANGE)
        X = xp.clip((X - middle) / half, min=-1.0, max=1.0)
    if SPREAD[0] in state:
        mean, factor = (state[name] for name in SPREAD)
        X = (X - mean) * factor
        X = xp.where(xp.isnan(X), xp.zeros_like(X), X)
    return X


def unseen(V: Array, state: Mapping[str, Array]) -> Array:
    """Return what has the view V: the inverse of `seen` for points without gaps.

    A column that is left out (factor 0) has its mean.
    """
    xp = array_namespace(V)
    if SPREAD[0] in state:
        mean, factor = (state[name] for name in SPREAD)
        used = factor > 0
        V = mean + xp.where(used, V / xp.where(used, factor, xp.ones_like(factor)), 0.0)
    if RANGE[0] in state:
        middle, half = (state[name] for name in RANGE)
        V = middle + half * V
    return V


@dataclass(frozen=True)
class FormedRows:
    """Rows that a function makes of some records at a time, so that they are never all there."""

    X: Array
    form: Callable[[Array], Array]

    def weighted_sums(self, V: Array) -> Array:
        """Return V'R."""
        total: Array = 0.0
        for start, records in chunks(self.X):
            total = V[start : start + records.shape[0], :].T @ self.form(records) + total
        return total

    def formed(self, rows: slice) -> Array:
        """Return consecutive rows of R."""
        return self.form(self.X[rows, :])
