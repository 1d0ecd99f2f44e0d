"""Rows of one array in several runs, used where they lie.

A round takes some of the sites, and their records are runs of rows of the whole. Copying them
together would cost as much time as a product with them, so products go run by run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, is_numpy_array

from dpfedc.kernels import Array

Int64 = npt.NDArray[np.int64]

LEAST_RUN = 128
"""Runs shorter than this on average are copied together: the loop would cost more."""


@dataclass(frozen=True)
class Runs:
    """Rows starts[i] to stops[i] of X, for all i, as if stacked.

    Knows what the standardised view needs: products from both sides, and chosen rows.
    """

    X: npt.NDArray[Any]
    starts: Int64
    stops: Int64

    __array_ufunc__ = None
    """Makes NumPy leave `array @ runs` to us."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape that the stacked rows would have."""
        return int((self.stops - self.starts).sum()), int(self.X.shape[1])

    @property
    def dtype(self) -> Any:
        """Return the type of the entries."""
        return self.X.dtype

    @property
    def device(self) -> Any:
        """Return where the entries are."""
        return "cpu"

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Return the library that arrays made from these rows belong to."""
        return array_namespace(self.X)

    def blocks(self) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield each run's rows, with their place among the stacked rows."""
        at = 0
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield slice(at, at + stop - start), self.X[start:stop]
            at += stop - start

    def __rmatmul__(self, other: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a matrix times the stacked rows."""
        shape = (other.shape[0], self.X.shape[1])
        total = np.zeros(shape, np.result_type(self.X, other))
        for at, block in self.blocks():
            total += other[:, at] @ block
        return total

    def take(self, index: Int64) -> npt.NDArray[Any]:
        """Return copies of the chosen ones among the stacked rows."""
        lengths = self.stops - self.starts
        ends = np.cumsum(lengths)
        run = np.searchsorted(ends, index, side="right")
        return np.asarray(self.X[index - (ends - lengths)[run] + self.starts[run]])


def by_columns(X: Array | Runs, V: Array) -> Array:
    """Return X V' (n x k), in NumPy column after column in memory.

    What follows a product goes over one cluster's numbers of all records at a time, and is faster
    so. The product itself is fastest the other way round, from a transposed copy of V.
    """
    if isinstance(X, Runs):
        blocks, n = X.blocks(), X.shape[0]
    elif is_numpy_array(X):
        blocks, n = iter([(slice(None), X)]), X.shape[0]
    else:
        return X @ V.T
    flipped = np.ascontiguousarray(V.T)
    columns = np.empty((V.shape[0], n), np.result_type(X.dtype, V.dtype))
    for at, block in blocks:
        columns[:, at] = (block @ flipped).T
    return columns.T


def chosen_rows(X: Array | Runs, index: Array) -> Array:
    """Return copies of the rows with the given numbers."""
    return X.take(index) if isinstance(X, Runs) else array_namespace(X).take(X, index, axis=0)


def in_runs(X: Array, starts: Int64, stops: Int64) -> Runs | None:
    """Return the rows in runs, neighbours joined; None where a copy would be better."""
    if not is_numpy_array(X):
        return None
    first = np.concatenate([[True], starts[1:] != stops[:-1]])
    begins = starts[first]
    ends = stops[np.concatenate([first[1:], [True]])]
    if (ends - begins).sum() < LEAST_RUN * len(begins):
        return None
    return Runs(X, begins, ends)
