"""Products with many rows, used where they lie.

A round takes some of the sites, and their records are runs of rows of the whole. Copying them
together would cost as much time as a product with them, so products go run by run. For the same
reason products go in small blocks: a large product BLAS begins by copying both matrices into its
own order, which for tall and thin ones costs as much as the product. OpenBLAS has kernels for small
products on processors with AVX-512, where blocks take half the time; elsewhere they would take
longer, and are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, is_numpy_array
from threadpoolctl import threadpool_info

from dpfedc.kernels import Array
from dpfedc.kernels.threads import each

Int64 = npt.NDArray[np.int64]
Block = tuple[int, npt.NDArray[Any]]
"""Consecutive rows, and the place of the first among all."""

SMALL = 10**6
"""Multiplications in a product that OpenBLAS still takes for a small one."""
FEW = 32
"""Clusters up to which small products are the faster ones: with more, copying matters less."""
WITH_KERNELS = {"SkylakeX", "Cooperlake", "SapphireRapids"}
"""OpenBLAS's names for processors with AVX-512."""
MIN_ROWS, MIN_COLUMNS = 32, 16
"""Rows and columns of a small product: with fewer it would be all overhead."""
MIN_BLOCK, BLOCK, LARGE_BLOCK = 128, 256, 1024
"""Rows that are taken at a time: at least, where products are small, and where they are not."""
MIN_GROUP, MAX_GROUPS = 10**7, 16
"""Multiplications that are worth a thread of their own, and for how many threads there is work."""
MIN_RUN = 32
"""Runs shorter than this on average are copied together: the loop would cost more."""
_CACHED, _ON_DEVICE = 2**19, 2**27
"""Numbers in a temporary array: what a core's cache holds, and what keeps an accelerator busy."""


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

    def groups(self, most: int, k: int) -> list[list[Block]]:
        """Return the rows in blocks of at most `most`, in groups that are worth a thread each.

        `k` is the number of columns of the products to be made with them.
        """
        n, m = self.shape
        groups = min(MAX_GROUPS, max(n * m * k // MIN_GROUP, 1))
        most = min(most, max(-(-n // groups), MIN_BLOCK))
        blocks, at = [], 0
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            rows = _even(stop - start, most)
            for first in range(start, stop, rows):
                block = self.X[first : min(first + rows, stop)]
                blocks.append((at, block))
                at += len(block)
        ends = [len(blocks) * (i + 1) // groups for i in range(groups)]
        parts = [blocks[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=True)]
        return [part for part in parts if part]

    def take(self, index: Int64) -> npt.NDArray[Any]:
        """Return copies of the chosen ones among the stacked rows."""
        lengths = self.stops - self.starts
        ends = np.cumsum(lengths)
        run = np.searchsorted(ends, index, side="right")
        return np.asarray(self.X[index - (ends - lengths)[run] + self.starts[run]])


def by_columns(X: Array | Runs, V: Array, minus: Array | None = None) -> Array:
    """Return X V' (n x k), or (X - minus) V', in NumPy column after column in memory.

    What follows a product goes over one cluster's numbers of all records at a time, and is faster
    so. The product itself is fastest the other way round, from a transposed copy of V.
    """
    runs = _runs(X)
    if runs is None:
        if minus is None:
            return X @ V.T
        return array_namespace(X).concat([_less(some, minus) @ V.T for _, some in chunks(X)])
    flipped = np.ascontiguousarray(V.T)
    m, k = flipped.shape
    columns = np.empty((k, X.shape[0]), np.result_type(X.dtype, V.dtype))
    rows, features = LARGE_BLOCK, m
    if k <= FEW and small_products_pay():
        rows = max(SMALL // (m * k), MIN_ROWS)
        features = _even(m, SMALL // (rows * k))

    def multiply(blocks: list[Block]) -> None:
        began = blocks[0][0]
        product = np.empty((sum(len(block) for _, block in blocks), k), columns.dtype)
        for at, raw in blocks:
            block = _less(raw, minus)
            out = product[at - began : at - began + len(block)]
            few = _even(len(block), rows)
            whole = len(block) // few * few
            stacks = [(block[:whole].reshape(-1, few, m), out[:whole].reshape(-1, few, k))]
            if whole < len(block):
                stacks.append((block[whole:], out[whole:]))
            for stack, result in stacks:
                np.matmul(stack[..., :features], flipped[:features], out=result)
                for first in range(features, m, features):
                    some = slice(first, first + features)
                    np.add(result, stack[..., some] @ flipped[some], out=result)
        columns[:, began : began + len(product)] = product.T

    each(multiply, runs.groups(LARGE_BLOCK, k))
    return columns.T


def weighted_rows(V: Array, X: Array | Runs, minus: Array | None = None) -> Array:
    """Return V' X, or V' (X - minus) (k x m)."""
    runs = _runs(X)
    if runs is None:
        if minus is None:
            return V.T @ X
        xp = array_namespace(X)
        parts = [V[at : at + some.shape[0], :].T @ _less(some, minus) for at, some in chunks(X)]
        return xp.sum(xp.stack(parts), axis=0)
    k, m = V.shape[1], X.shape[1]
    dtype = np.result_type(X.dtype, V.dtype)
    # In double precision small ones are not faster here.
    small = k <= FEW and dtype == np.float32 and small_products_pay()

    def summed(blocks: list[Block]) -> npt.NDArray[Any]:
        total, part = np.zeros((k, m), dtype), np.empty((k, m), dtype)
        # Last rows first: a product with all rows has just gone by, and the last are still cached.
        for at, raw in reversed(blocks):
            block = _less(raw, minus)
            columns = _even(m, SMALL // (len(block) * k), least=MIN_COLUMNS) if small else m
            weights = V[at : at + len(block)].T
            for first in range(0, m, columns):
                some = slice(first, first + columns)
                np.matmul(weights, block[:, some], out=part[:, some])
            total += part
        return total

    total = np.zeros((k, m), dtype)
    most = max(SMALL // (m * k), BLOCK) if small else LARGE_BLOCK
    for part in each(summed, runs.groups(most, k)):
        total += part
    return total


def chunks(X: Array) -> Iterator[tuple[int, Array]]:
    """Yield rows that a temporary copy may be made of at a time, and the place of the first."""
    rows = max((_CACHED if is_numpy_array(X) else _ON_DEVICE) // X.shape[1], 1)
    for start in range(0, X.shape[0], rows):
        yield start, X[start : min(start + rows, X.shape[0]), :]


def _less(rows: Array, minus: Array | None) -> Array:
    """Return rows - minus, with zero in place of a difference that is too large for a number.

    Its record has no norm and weight zero, and zero times infinity would poison a sum.
    """
    if minus is None:
        return rows
    xp, difference = array_namespace(rows), rows - minus
    finite = xp.isfinite(difference)
    if is_numpy_array(rows) and finite.all():
        return difference
    return xp.where(finite, difference, xp.zeros_like(difference))


@cache
def small_products_pay() -> bool:
    """Return whether BLAS is known to have kernels for small products."""
    return any(library.get("architecture") in WITH_KERNELS for library in threadpool_info())


def _runs(X: Array | Runs) -> Runs | None:
    """Return all rows as one run, if they are not runs already; None if X is not NumPy's."""
    if is_numpy_array(X):
        return Runs(X, np.zeros(1, np.int64), np.full(1, X.shape[0]))
    return X if isinstance(X, Runs) else None


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
    if (ends - begins).sum() < MIN_RUN * len(begins):
        return None
    return Runs(X, begins, ends)
