"""Clipping: the step that bounds what one record can change."""

from __future__ import annotations

import math

from array_api_compat import array_namespace, is_numpy_array

from dpfedc.kernels import Array


def clip_weights(
    norms: Array, bound: float, present: Array | None = None, *, units: float | None = None
) -> Array:
    """Return w_j = min(1, bound / norm_j), and exactly 0 for an absent record.

    Then |w_j phi_j| <= bound. This is the one clip rule: the fast sums and the exact ones both ask
    it, the latter for weights after which the bound is so many `units` long. Absent or non-finite
    records are taken out by selection, not by multiplying: 0 times infinity would poison the sum.
    """
    xp = array_namespace(norms)
    weights = xp.ones_like(norms)
    if not math.isinf(bound):
        weights = (bound if units is None else units) / xp.clip(norms, min=bound)
    keep = xp.isfinite(norms) if present is None else xp.isfinite(norms) & present
    return xp.where(keep, weights, xp.zeros_like(weights))


def only_where(kept: Array, rows: Array) -> Array:
    """Return the rows with zeros in place of those not kept; the rows themselves if all are.

    An accelerator is not asked whether all are: the answer would be waited for.
    """
    xp = array_namespace(rows)
    if is_numpy_array(rows) and kept.all():
        return rows
    return xp.where(kept[:, None], rows, xp.zeros_like(rows))


def clipped_stack(G: Array, bounds: Array) -> Array:
    """Return each matrix of a stack (s x k x m) scaled down to Frobenius norm <= bounds_i."""
    xp = array_namespace(G)
    norms = xp.sqrt(xp.sum(G**2, axis=(1, 2)))
    return G * (bounds / xp.maximum(norms, bounds))[:, None, None]
