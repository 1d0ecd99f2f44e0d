"""Fuzzy c-means at every site on its own records (Dunn 1973, Bezdek 1981).

It lowers sum_j sum_l u_jl^f |x_j - c_l|^2 over memberships u >= 0 that sum to one per record, and
centres c, in turn. f > 1 is the fuzzifier: near 1 memberships are hard, as in k-means; far above
it they are nearly equal. With many features, where all distances are alike, 2 is far above it, and
all centres become the mean of the records.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from dpfedc.kernels import Array
from dpfedc.kernels.segments import Int64, by_size
from dpfedc.research.kernels.local_clustering import SiteBlock


def fuzzy_memberships(squared_distances: Array, fuzzifier: float = 2.0) -> Array:
    """Return u_l = 1 / sum_c (d_l / d_c)^(2 / (f - 1)) along the last axis.

    With f = 2 that is in inverse proportion to the squared distances. A record that lies on some
    centres belongs to these alone, in equal parts.
    """
    xp = array_namespace(squared_distances)
    least = xp.min(squared_distances, axis=-1, keepdims=True)
    apart = squared_distances > 0
    # Ratios of at most 1: neither a large power nor a zero distance can overflow.
    ratios = xp.where(apart, least / xp.where(apart, squared_distances, 1.0), 1.0)
    closeness = ratios ** (1 / (fuzzifier - 1))
    return closeness / xp.sum(closeness, axis=-1, keepdims=True)


def fuzzy_losses(squared_distances: Array, fuzzifier: float = 2.0) -> Array:
    """Return sum_l u_l^f d_l^2 along the last axis, at the best memberships."""
    xp = array_namespace(squared_distances)
    weights = fuzzy_memberships(squared_distances, fuzzifier) ** fuzzifier
    return xp.sum(weights * squared_distances, axis=-1)


def fuzzy_centers(
    X: Array,
    offsets: Int64,
    start: Array,
    steps: int,
    *,
    fuzzifier: float = 2.0,
    present: Array | None = None,
) -> Array:
    """Return the k centres of every site and, in a last column, their sizes (sites x k x (m+1)).

    From `start` (sites x k x m), `steps` times: memberships, then c_l = sum_j u_jl^f x_j /
    sum_j u_jl^f. The size of a cluster is sum_j u_jl. A centre to which no record belongs stays
    where it was.
    """

    def moved(rows: Array, real: Array) -> Array:
        xp = array_namespace(X)
        block = SiteBlock.of(X, rows, real, offsets, present)
        centers = xp.take(start, block.sites, axis=0) - block.origin
        for _ in range(steps):
            U = _used_memberships(block, centers, fuzzifier)
            # A cluster's weights may be scaled: at most 1, they do not all underflow.
            most = xp.max(U, axis=1, keepdims=True)
            centers = block.weighted_means(
                (U / xp.where(most > 0, most, 1.0)) ** fuzzifier, centers
            )
        sizes = xp.sum(_used_memberships(block, centers, fuzzifier), axis=1)[:, :, None]
        return xp.concat([centers + block.origin, sizes], axis=2)

    return by_size(moved, X, offsets)


def _used_memberships(block: SiteBlock, centers: Array, fuzzifier: float) -> Array:
    xp = array_namespace(centers)
    U = fuzzy_memberships(block.squared_distances(centers), fuzzifier)
    return xp.where(block.used[:, :, None], U, xp.zeros_like(U))
