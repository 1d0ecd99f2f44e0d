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


MOST_CUT = 1.0
"""No entry of a step is cut by more than so many standard deviations of its noise."""


def shortened(steps: Float, noise: Float, n_noisy: int) -> Float:
    """Return steps (rows) less what noise makes of their length.

    James and Stein's rule: where `n_noisy` of a row's entries have noise, of standard deviation
    `noise`, a step that is cut to this part of itself comes nearer to the true one, on the mean and
    wherever that is. It takes three entries. Steps that stand far out from the noise stay as they
    are. Efron and Morris's limit: a single entry that differs from all others is cut, too, but by
    no more than MOST_CUT times its noise.
    """
    lengths = (steps**2).sum(axis=1)
    made = max(n_noisy - 2, 0) * noise**2
    cut = np.minimum(made, lengths) / np.where(lengths > 0, lengths, 1.0)
    most = MOST_CUT * noise[:, None]
    return np.asarray(steps - np.clip(cut[:, None] * steps, -most, most))


def cluster_means(sums: Float, counts: Float, fallback: Float, *, least: float = 1.0) -> Float:
    """Return sums / counts; a cluster with a count below `least` keeps its fallback."""
    filled = counts >= least
    return np.where(filled[:, None], sums / np.where(filled, counts, 1)[:, None], fallback)
