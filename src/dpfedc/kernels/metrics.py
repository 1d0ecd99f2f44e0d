"""Scores of a clustering: against known labels, and by k-means cost.

All of them are exact. They read the records or their labels, and are not private.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput

_CHUNK_BYTES = 16 * 2**20
"""The size of one temporary. The cost holds two at a time, so it stays below 50 MB."""


def clustering_accuracy(labels_true: npt.ArrayLike, labels_pred: npt.ArrayLike) -> float:
    """Return the share of records that the best matching of clusters to labels gets right.

    The maximum over one-to-one matchings M of sum_c |{j : pred_j = c, true_j = M(c)}| / n. When
    there are more clusters than labels, or fewer, the ones left over match nothing. Labels may be
    of any kind that can be sorted; only which of them are equal matters.

    >>> clustering_accuracy([0, 0, 1, 1], ["b", "b", "a", "b"])
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    true, pred = _paired("labels_true", labels_true, "labels_pred", labels_pred)
    names, rows = np.unique(true, return_inverse=True)
    clusters, columns = np.unique(pred, return_inverse=True)
    counts = np.zeros((len(names), len(clusters)), dtype=np.int64)
    np.add.at(counts, (rows, columns), 1)
    matched = linear_sum_assignment(counts, maximize=True)
    return float(counts[matched].sum() / len(true))


def kmeans_cost(
    X: npt.ArrayLike, labels: npt.ArrayLike, centers: npt.ArrayLike | None = None
) -> float:
    """Return the mean over records of |x_j - c(label_j)|^2.

    `centers` holds one centre per row, and `labels` are its row numbers. Without `centers`, each
    centre is the mean of its cluster in X, which is the least cost these labels can have; the
    labels may then be of any kind.
    """
    records = _matrix("X", X)
    given = _column("labels", labels)
    if len(given) != len(records):
        raise InvalidInput(
            f"labels must hold one entry per record of X ({len(records)}), got {len(given)}"
        )
    if centers is None:
        rows = np.unique(given, return_inverse=True)[1]
        points = _cluster_means(records, rows)
    else:
        points = _matrix("centers", centers).astype(np.float64)
        if points.shape[1] != records.shape[1]:
            raise InvalidInput(
                f"centers must have as many columns as X ({records.shape[1]}), "
                f"got {points.shape[1]}"
            )
        rows = _indices("labels", given, len(points))
    total = 0.0
    for part in _chunks(records):
        gap = np.array(records[part], dtype=np.float64)
        gap -= points[rows[part]]
        total += float(np.einsum("jf,jf->", gap, gap))
    if not np.isfinite(total):
        raise InvalidInput(f"X and centers must be finite, got a total cost of {total}")
    return total / len(records)


def cluster_sizes(
    labels: npt.ArrayLike, sites: npt.ArrayLike, n_clusters: int, *, n_sites: int | None = None
) -> npt.NDArray[np.int64]:
    """Return the number of records of each cluster (column) at each site (row).

    `sites` holds the number of the site of each record. Without `n_sites`, the highest site
    number fixes the number of rows; give it when the last sites may be empty.
    """
    if n_clusters < 1:
        raise InvalidInput(f"n_clusters must be >= 1, got {n_clusters}")
    of_record, clusters = _column("sites", sites), _column("labels", labels)
    if len(clusters) != len(of_record):
        raise InvalidInput(
            f"labels and sites must have the same length, got {len(clusters)} and {len(of_record)}"
        )
    columns = _indices("labels", clusters, n_clusters)
    rows = _indices("sites", of_record, n_sites)
    n_rows = int(rows.max()) + 1 if n_sites is None else n_sites
    counts = np.bincount(rows * n_clusters + columns, minlength=n_rows * n_clusters)
    return counts.reshape(n_rows, n_clusters).astype(np.int64)


def scores(
    X: npt.ArrayLike, labels: npt.ArrayLike, y: npt.ArrayLike | None = None
) -> dict[str, float]:
    """Return `cost`, and with the true labels `y` also `accuracy`, `nmi` and `ari`.

    The cost is that of the clusters' own means (`kmeans_cost` without centres). NMI is normalised
    by the arithmetic mean of the entropies.
    """
    found: dict[str, float] = {}
    if y is not None:
        from sklearn.metrics import (
            adjusted_rand_score,
            normalized_mutual_info_score,
        )

        true, pred = _paired("y", y, "labels", labels)
        found["accuracy"] = clustering_accuracy(true, pred)
        found["nmi"] = float(normalized_mutual_info_score(true, pred))
        found["ari"] = float(adjusted_rand_score(true, pred))
    return found | {"cost": kmeans_cost(X, labels)}


def _cluster_means(
    records: npt.NDArray[Any], rows: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64]:
    """Return the mean of the records of each cluster 0, 1, ..., none of which is empty."""
    from scipy.sparse import csr_array

    n_clusters = int(rows.max()) + 1
    sums = np.zeros((n_clusters, records.shape[1]))
    for part in _chunks(records):
        chosen = rows[part]
        # One 1 per record: the product adds up the records of each cluster in O(n m).
        member = csr_array(
            (np.ones(len(chosen)), (chosen, np.arange(len(chosen)))),
            shape=(n_clusters, len(chosen)),
        )
        sums += member @ np.asarray(records[part], dtype=np.float64)
    return np.asarray(sums / np.bincount(rows)[:, None])


def _chunks(records: npt.NDArray[Any]) -> Iterator[slice]:
    """Return slices that cover the rows, each small enough for one temporary."""
    step = max(1, _CHUNK_BYTES // (8 * max(1, records.shape[1])))
    return (slice(start, start + step) for start in range(0, len(records), step))


def _paired(
    first: str, labels_true: npt.ArrayLike, second: str, labels_pred: npt.ArrayLike
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return both label vectors, checked to be of one length; errors use the given names."""
    true, pred = _column(first, labels_true), _column(second, labels_pred)
    if len(true) != len(pred):
        raise InvalidInput(
            f"{first} and {second} must have the same length, got {len(true)} and {len(pred)}"
        )
    return true, pred


def _column(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    column = np.asarray(values)
    if column.ndim != 1 or not len(column):
        raise InvalidInput(f"{name} must be a non-empty vector, got shape {column.shape}")
    return column


def _matrix(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    matrix = np.asarray(values)
    if matrix.ndim != 2 or not matrix.size:
        raise InvalidInput(f"{name} must be a non-empty matrix, got shape {matrix.shape}")
    if matrix.dtype.kind not in "buif":
        raise InvalidInput(f"{name} must hold real numbers, got dtype {matrix.dtype}")
    return matrix


def _indices(name: str, values: npt.NDArray[Any], bound: int | None) -> npt.NDArray[np.intp]:
    """Return values as indices 0 .. bound - 1 (no upper bound if None)."""
    if values.dtype.kind not in "ui":
        raise InvalidInput(f"{name} must hold integers, got dtype {values.dtype}")
    low, high = int(values.min()), int(values.max())
    if low < 0 or (bound is not None and high >= bound):
        expected = ">= 0" if bound is None else f"between 0 and {bound - 1}"
        raise InvalidInput(f"{name} must be {expected}, got values from {low} to {high}")
    return values.astype(np.intp)
