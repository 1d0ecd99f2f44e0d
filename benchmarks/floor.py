"""What no implementation of the method can avoid: its products and its noise.

Per round, on arrays that lie ready: A = X W' and V' X over the round's records, Q1 products of
memberships (n x k) with a k x k matrix, and k x m standard normals. Every round has another window
of the rows, as it has in a fit, so that no round finds its records in the cache. W' is a copy that
lies as BLAS likes it best. After the rounds X W' over all records twice: the last release and the
labels need their memberships. Not counted: the passes for bound, mean and scale, gathering records,
clipping, projecting, the 49 further membership steps of the last release and of the labels, the
server's step.

There are two floors. In one every product is one call of BLAS. In the other the products with
records go in blocks of at most a million multiplications, which OpenBLAS with AVX-512 does faster:
the way the package goes, and the fastest we know.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cases import Case, Float

SMALL = 10**6


def floor(case: Case, *, in_blocks: bool = False) -> Callable[[], None]:
    """Return a function that does the products and draws of one fit."""
    X, settings = case.X, case.settings
    k, (n, m) = settings.n_clusters, X.shape
    rows = n * settings.sites_per_round // (len(case.offsets) - 1)
    starts = [t * rows % (n - rows + 1) for t in range(settings.n_rounds)]
    rng = np.random.default_rng(0)
    flipped = rng.standard_normal((m, k), dtype=X.dtype)
    square = rng.standard_normal((k, k), dtype=X.dtype)
    A, H = np.empty((rows, k), X.dtype), np.empty((rows, k), X.dtype)
    sums, noise = np.empty((k, m), X.dtype), np.empty((k, m), X.dtype)
    labels = np.empty((n, k), X.dtype)
    tall, thin = (_tall_in_blocks, _thin_in_blocks) if in_blocks else (np.matmul, np.matmul)

    def work() -> None:
        for start in starts:
            part = X[start : start + rows]
            tall(part, flipped, out=A)
            for _ in range(settings.membership_steps):
                np.matmul(A, square, out=H)
            thin(A.T, part, out=sums)
            rng.standard_normal(out=noise, dtype=X.dtype)
        for _ in range(2):
            tall(X, flipped, out=labels)

    return work


def _tall_in_blocks(X: Float, W: Float, *, out: Float) -> None:
    """Write X W (n x k) to `out`, some rows at a time."""
    step = SMALL // W.size
    for i in range(0, len(X), step):
        np.matmul(X[i : i + step], W, out=out[i : i + step])


def _thin_in_blocks(V: Float, X: Float, *, out: Float) -> None:
    """Write V X (k x m) to `out`, 250 rows and some columns at a time."""
    step, columns = 250, max(SMALL // (250 * len(V)) // 16, 1) * 16
    part = np.empty_like(out)
    out[:] = 0
    for i in range(0, len(X), step):
        for j in range(0, out.shape[1], columns):
            some = slice(j, j + columns)
            np.matmul(V[:, i : i + step], X[i : i + step, some], out=part[:, some])
        out += part
