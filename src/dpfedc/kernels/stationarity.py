"""Exact measures of progress that both variants share. Simulation only; never released."""

from __future__ import annotations

from array_api_compat import array_namespace

from dpfedc.kernels import Array
from dpfedc.kernels.objective import membership_gradient, membership_step_size


def membership_stationarity(A: Array, H: Array, M: Array) -> dict[str, float]:
    """Return Theorem 4's G_H = gamma^2 |H - [H - dF/dH / gamma]^+|^2 and the share of hard h_j.

    A membership is hard if at most one of its entries exceeds a hundredth of their sum.
    """
    xp = array_namespace(A, H, M)
    gamma = membership_step_size(M)
    moved = xp.clip(H - membership_gradient(A, H, M) / gamma, min=0)
    shares = H / xp.clip(xp.sum(H, axis=1, keepdims=True), min=1e-30)
    large = xp.astype(shares > 0.01, H.dtype)
    return {
        "stationarity_h": float(gamma**2 * xp.sum((H - moved) ** 2)),
        "hard_share": float(xp.mean(xp.astype(xp.sum(large, axis=1) <= 1, H.dtype))),
    }
