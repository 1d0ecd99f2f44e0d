"""k-means of a few weighted points, with many starts: the server's arithmetic on released sums."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpfedc.kernels.cluster_sums import cluster_means, squared_distances

Float = npt.NDArray[np.float64]

N_STEPS = 30


def weighted_kmeans(
    points: Float, weights: Float, n_clusters: int, n_starts: int, rng: np.random.Generator
) -> tuple[Float, float]:
    """Return the best of several weighted k-means clusterings, and its cost."""
    best, centers = np.inf, points[:n_clusters]
    for _ in range(n_starts):
        found = lloyd_steps(points, weights, _seeds(points, weights, n_clusters, rng), N_STEPS)
        cost = float((weights * _distances(points, found).min(axis=1)).sum())
        if cost < best:
            best, centers = cost, found
    return centers, best


def lloyd_steps(points: Float, weights: Float, centers: Float, n_steps: int) -> Float:
    """Return the centres after some steps of weighted Lloyd; a centre of no points stays."""
    for _ in range(n_steps):
        labels, k = _distances(points, centers).argmin(axis=1), len(centers)
        sums = [np.bincount(labels, weights * column, minlength=k) for column in points.T]
        counts = np.bincount(labels, weights, minlength=k)
        moved = cluster_means(np.stack(sums, axis=1), counts, centers, least=1e-9)
        if np.array_equal(moved, centers):
            break
        centers = moved
    return centers


def _seeds(points: Float, weights: Float, n_clusters: int, rng: np.random.Generator) -> Float:
    """Return points drawn one after the other, in proportion to weight and squared distance.

    Of a few candidates at a time the one that leaves the least cost is taken: greedy k-means++.
    """
    n, n_candidates = len(points), 2 + int(math.log(n_clusters))
    chosen = [int(rng.choice(n, p=weights / weights.sum()))]
    nearest = _distances(points, points[chosen])[:, 0]
    while len(chosen) < n_clusters:
        rates = weights * nearest + 1e-12 * weights
        candidates = rng.choice(n, n_candidates, p=rates / rates.sum())
        left = np.minimum(nearest[:, None], _distances(points, points[candidates]))
        best = int((weights @ left).argmin())
        chosen.append(int(candidates[best]))
        nearest = left[:, best]
    return points[chosen]


def _distances(points: Float, centers: Float) -> Float:
    return np.asarray(squared_distances(points @ centers.T, (points**2).sum(axis=1), centers))
