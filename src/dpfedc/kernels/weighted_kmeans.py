"""k-means of a few weighted points, with many starts: the server's arithmetic on released sums."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpfedc.kernels.cluster_sums import cluster_means, one_hot

N_STEPS = 50


def weighted_kmeans(
    points: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    draws: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return the best of several weighted k-means clusterings; `draws` are those of k-means++."""
    best, centers = np.inf, points[:1]
    for starts in draws:
        found = _seeds(points, weights, starts)
        for _ in range(N_STEPS):
            distances = _distances(points, found)
            members = one_hot(distances.argmin(axis=1), len(found), points) * weights[:, None]
            moved = cluster_means(members.T @ points, members.sum(axis=0), found, least=1e-9)
            if np.array_equal(moved, found):
                break
            found = moved
        cost = float((weights * distances.min(axis=1)).sum())
        if cost < best:
            best, centers = cost, found
    return centers


def _seeds(
    points: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    draws: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return points drawn one after the other, in proportion to weight and squared distance."""
    rates, chosen = weights, []
    for draw in draws:
        total = np.cumsum(rates)
        chosen.append(min(int(np.searchsorted(total, draw * total[-1])), len(points) - 1))
        rates = weights * _distances(points, points[chosen]).min(axis=1) + 1e-12 * weights
    return points[chosen]


def _distances(
    points: npt.NDArray[np.float64], centers: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return all squared distances, from the differences themselves: there are few of them."""
    return np.asarray(((points[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2))
