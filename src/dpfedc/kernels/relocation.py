"""Moving centres that are badly placed: the server's arithmetic on released sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[Any]


def relocated_centers(
    centers: Float,
    counts: Float,
    spread: Float,
    directions: Float,
    *,
    margin: float = 1.5,
    noise: float = 0.0,
) -> Float:
    """Move centres from where two share a cluster to where one serves two.

    `spread` is the sum of squared distances within each cluster. Merging clusters a and b costs
    n_a n_b / (n_a + n_b) |c_a - c_b|^2. Splitting cluster l gains about what its spread exceeds the
    typical one. While the best gain exceeds `margin` times the least cost by `noise`, the pair
    becomes one centre and the freed centre joins cluster l, both placed along directions_l. Lloyd's
    algorithm cannot make such a move. Uses released statistics only.
    """
    k = len(centers)
    centers, n = centers.copy(), np.maximum(counts, 0.0)
    spread = np.maximum(spread, 0.0)
    gain = spread - n * np.median(spread / np.maximum(n, 1.0))
    gaps = ((centers[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
    cost = n[:, None] * n[None, :] / np.maximum(n[:, None] + n[None, :], 1.0) * gaps
    free = np.ones(k, dtype=bool)
    cost[np.diag_indices(k)] = np.inf
    while free.sum() >= 3:
        split = int(np.argmax(np.where(free, gain, -np.inf)))
        usable = free.copy()
        usable[split] = False
        pairs = np.where(usable[:, None] & usable[None, :], cost, np.inf)
        a, b = divmod(int(np.argmin(pairs)), k)
        if not gain[split] > margin * pairs[a, b] + noise:
            break
        total = max(n[a] + n[b], 1.0)
        reach = 0.7 * np.sqrt(spread[split] / max(n[split], 1.0)) * directions[split]
        centers[a] = (n[a] * centers[a] + n[b] * centers[b]) / total
        centers[b] = centers[split] - reach
        centers[split] = centers[split] + reach
        free[[a, b, split]] = False
    return centers
