"""Several gradient steps on a site's own copy of the centres, for many sites at once."""

from __future__ import annotations

import math

from array_api_compat import array_namespace

from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights, clipped_stack


def local_centroid_step(
    X: Array,
    W: Array,
    H: Array,
    real: Array,
    *,
    weight: Array,
    eta: Array,
    mu_w: float,
    record_bound: float = math.inf,
    share_bound: float = math.inf,
    gradient_bound: float = math.inf,
) -> Array:
    """Return every site's W_i (s x k x m) after one step on its mini-batch.

        W_i <- W_i - (1/eta_i) [ weight_i sum_{j in batch} clip(g_j, record_bound) + mu_w W_i ]

    with g_j = 2 (W_i'h_j - x_j) h_j'. `share_bound` limits a record's whole share of the sum,
    weight_i g_j. The bracket as a whole is clipped to `gradient_bound`.
    X (s x b x m) and H (s x b x k) hold the batches; `real` (s x b) is false for padding.
    """
    xp = array_namespace(X, W, H)
    residual = xp.matmul(H, W) - X
    keep = clip_weights(xp.zeros_like(H[:, :, 0]), 1.0, real)
    if not math.isinf(min(record_bound, share_bound)):
        norms = 2 * xp.sqrt(xp.sum(residual**2, axis=2) * xp.sum(H**2, axis=2))
        keep = xp.minimum(
            clip_weights(norms, record_bound, real),
            clip_weights(norms * weight[:, None], share_bound, real),
        )
    pull = H * (2 * keep * weight[:, None])[:, :, None]
    gradient = xp.matmul(xp.matrix_transpose(pull), residual) + mu_w * W
    if not math.isinf(gradient_bound):
        gradient = clipped_stack(gradient, xp.ones_like(eta) * gradient_bound)
    return W - gradient / eta[:, None, None]
