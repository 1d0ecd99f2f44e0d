"""Sums and counts: nearest centres, and cluster means."""

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


def mean_errors(means: Float, counts: Float, noise: float | Float, count_noise: float) -> Float:
    """Return the standard deviations of sums / counts, from the noise in sums and in counts.

    To first order: noise in a count stretches the mean. A mean of no records is not known at all.
    """
    spread = np.sqrt(noise**2 + (means * count_noise) ** 2)
    few = counts <= 0
    return np.where(few[:, None], np.inf, spread / np.where(few, 1.0, counts)[:, None])


def cluster_means(sums: Float, counts: Float, fallback: Float, *, least: float = 1.0) -> Float:
    """Return sums / counts; a cluster with a count below `least` keeps its fallback."""
    filled = counts >= least
    return np.where(filled[:, None], sums / np.where(filled, counts, 1)[:, None], fallback)
