"""Products with many rows, used where they lie.

A round takes some of the sites, and their records are runs of rows of the whole. Copying them
together would cost as much time as a product with them, so products go run by run. For the same
reason products go in blocks: a large product BLAS begins by copying both matrices into its own
order, which for tall and thin ones costs as much as the product. Where it has kernels for small
products (OpenBLAS with AVX-512) blocks take half the time, elsewhere as long as the whole.
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

SMALL = 10**6
"""Multiplications in a product that OpenBLAS still takes for a small one."""
LEAST_ROWS, MOST_ROWS = 16, 256
"""Rows of a block: with fewer a block is all overhead, with more its columns are too few."""
LEAST_RUN = 32
"""Runs shorter than this on average are copied together: the loop would cost more."""


@dataclass(frozen=True)
class Runs:
    """Rows starts[i] to stops[i] of X, for all i, as if stacked.

    Has what the standardised view asks of an array beside the functions below.
    """

    X: npt.NDArray[Any]
    starts: Int64
    stops: Int64

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

    def runs(self) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield each run's rows, with their place among the stacked rows."""
        at = 0
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield slice(at, at + stop - start), self.X[start:stop]
            at += stop - start

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
    runs = _runs(X)
    if runs is None:
        return X @ V.T
    flipped = np.ascontiguousarray(V.T)
    m, k = flipped.shape
    product = np.empty((X.shape[0], k), np.result_type(X.dtype, V.dtype))
    for at, run in runs:
        rows = _even(len(run), SMALL // (m * k), least=LEAST_ROWS)
        whole = len(run) // rows * rows
        out = product[at]
        np.matmul(run[:whole].reshape(-1, rows, m), flipped, out=out[:whole].reshape(-1, rows, k))
        if whole < len(run):
            np.matmul(run[whole:], flipped, out=out[whole:])
    return np.asfortranarray(product)


def weighted_rows(V: Array, X: Array | Runs) -> Array:
    """Return V' X (k x m)."""
    runs = _runs(X)
    if runs is None:
        return V.T @ X
    k, m = V.shape[1], X.shape[1]
    total = np.zeros((k, m), np.result_type(X.dtype, V.dtype))
    part = np.empty_like(total)
    # Last rows first: a product with all rows has just gone by, and the last are still cached.
    for at, run in reversed(runs):
        rows = _even(len(run), MOST_ROWS)
        columns = _even(m, SMALL // (rows * k), least=LEAST_ROWS)
        for start in reversed(range(0, len(run), rows)):
            block = run[start : start + rows]
            weights = V[at.start + start : at.start + start + len(block)].T
            for first in range(0, m, columns):
                some = slice(first, first + columns)
                np.matmul(weights, block[:, some], out=part[:, some])
            total += part
    return total


def _runs(X: Array | Runs) -> list[tuple[slice, npt.NDArray[Any]]] | None:
    """Return the runs of rows with their places; None for an array that is not NumPy's."""
    if isinstance(X, Runs):
        return list(X.runs())
    return [(slice(0, X.shape[0]), X)] if is_numpy_array(X) else None


def _even(size: int, most: int, least: int = 1) -> int:
    """Return a size for blocks: about even, at most `most`; if that is below `least`, the whole."""
    if size <= most or most < least:
        return max(size, 1)
    even = -(-size // -(-size // most))
    return min(-(-even // 16) * 16, most)


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
