"""k-means of a few weighted points, with many starts: the server's arithmetic on released sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedc.kernels.cluster_sums import cluster_means, squared_distances

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

N_STEPS = 30
ABOUT_AS_GOOD = 1.02
"""A clustering that costs so many times the best is no worse than noise makes it."""


@dataclass(frozen=True)
class Clustering:
    """What one start comes to; the cost is the weighted sum of squared distances."""

    cost: float
    centers: Float
    labels: Int


def clusterings(
    points: Float, weights: Float, n_clusters: int, n_starts: int, rng: np.random.Generator
) -> list[Clustering]:
    """Return what weighted k-means comes to from several starts."""
    found = []
    for _ in range(n_starts):
        centers = lloyd_steps(points, weights, _seeds(points, weights, n_clusters, rng), N_STEPS)
        distances = _distances(points, centers)
        cost = float((weights * distances.min(axis=1)).sum())
        found.append(Clustering(cost, centers, distances.argmin(axis=1)))
    return found


def grouped(points: Float, weights: Float, labels: Int) -> Clustering:
    """Return given groups of points as a clustering."""
    members = np.eye(int(labels.max()) + 1)[labels].T * weights
    centers = members @ points / members.sum(axis=1, keepdims=True)
    away = ((points - centers[labels]) ** 2).sum(axis=1)
    return Clustering(float(weights @ away), centers, labels)


def best_of(
    found: Sequence[Clustering], scores: Sequence[float], weights: Float
) -> tuple[Clustering, float]:
    """Return the clustering with the lowest score, and how stable it is.

    That is the mean `agreement` with it of all others that came out about as good: 1 where they
    all come to the same clusters, or are worse.
    """
    place = int(np.argmin(scores))
    best, least = found[place], scores[place]
    others = [
        other
        for i, (other, score) in enumerate(zip(found, scores, strict=True))
        if i != place and score <= ABOUT_AS_GOOD * least
    ]
    alike = [agreement(best.labels, other.labels, weights) for other in others]
    return best, float(np.mean(alike)) if alike else 1.0


def agreement(one: Int, other: Int, weights: Float) -> float:
    """Return how much two clusterings of weighted points agree: 1 is all, 0 what chance gives.

    The adjusted Rand index, for points that stand for very many records each.
    """
    k, total = int(max(one.max(), other.max())) + 1, float(weights.sum())
    table = np.bincount(k * one + other, weights, minlength=k * k).reshape(k, k) / total
    rows, columns = (float((table.sum(axis=axis) ** 2).sum()) for axis in (1, 0))
    most, chance = (rows + columns) / 2, rows * columns
    if most - chance <= 1e-12:
        return 1.0  # one cluster for all, twice
    return (float((table**2).sum()) - chance) / (most - chance)


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
