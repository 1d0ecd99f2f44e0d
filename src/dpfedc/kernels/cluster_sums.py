"""Sums and counts: nearest centres, cluster means, and moving centres that are badly placed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.kernels import Array

Float = npt.NDArray[Any]


def squared_distances(A: Array, squared_norms: Array, centers: Array) -> Array:
    """Return |x_j - c_l|^2 (n x k) from A = X C' and |x_j|^2, never below zero."""
    xp = array_namespace(A, centers)
    return xp.clip(squared_norms[:, None] - 2 * A + xp.sum(centers**2, axis=1), min=0)


def one_hot(labels: Array, n_clusters: int, like: Array) -> Array:
    """Return rows with a single 1 in the column of each record's cluster, typed as `like`."""
    xp = array_namespace(labels, like)
    columns = xp.arange(n_clusters, dtype=labels.dtype, device=device(labels))
    return xp.astype(labels[:, None] == columns, like.dtype)


def cluster_means(sums: Float, counts: Float, fallback: Float, *, least: float = 1.0) -> Float:
    """Return sums / counts; a cluster with a count below `least` keeps its fallback."""
    filled = counts >= least
    return np.where(filled[:, None], sums / np.where(filled, counts, 1)[:, None], fallback)


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
