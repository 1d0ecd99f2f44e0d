"""What no implementation of the method can avoid: its products and its noise.

Per round, on arrays that lie ready: A = X W' and V' X over the round's records, Q1 products of
memberships (n x k) with a k x k matrix, and k x m standard normals. Every round has another window
of the rows, as it has in a fit, so that no round finds its records in the cache. W' is a copy that
lies as BLAS likes it best. After the rounds X W' over all records twice: the last release and the
labels need their memberships. Not counted: the passes for bound, mean and scale, gathering records,
clipping, projecting, the server's step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cases import Case


def floor(case: Case) -> Callable[[], None]:
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

    def work() -> None:
        for start in starts:
            part = X[start : start + rows]
            np.matmul(part, flipped, out=A)
            for _ in range(settings.membership_steps):
                np.matmul(A, square, out=H)
            np.matmul(A.T, part, out=sums)
            rng.standard_normal(out=noise, dtype=X.dtype)
        for _ in range(2):
            X @ flipped

    return work
