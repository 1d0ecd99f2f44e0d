"""The clustering problem of the paper: objective, gradients and projected steps.

For one site with records X (n x m), centres W (k x m) and memberships H (n x k), H >= 0:

    F = |X - H W|^2 + rho/2 sum_j ((sum_l h_jl)^2 - |h_j|^2) + mu_h/2 |H|^2 + mu_w/2 |W|^2

The rho term is zero exactly when every h_j has at most one nonzero entry, that is, when every
record belongs to one cluster. The gradients are those of this objective (the paper's appendix
prints 2 rho where rho is right; docs/differences-from-the-paper.md, item 1).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, is_numpy_array, is_torch_array

from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_accelerator, on_host
from dpfedc.kernels.threads import each
from dpfedc.settings import Penalty

Float = npt.NDArray[Any]


class Products(Protocol):
    """Records that know their products with centres."""

    def products(self, W: Array) -> Array:
        """Return X W' (n x k)."""
        ...


TOGETHER = 2**13
"""Records whose memberships step together: what they need stays in a core's cache."""
SLACK = 8
"""Units of rounding, in proportion to the squared reach, that `residual_norms` adds."""


def record_losses(X: Array, W: Array, H: Array, *, rho: float, mu_h: float) -> Array:
    """Return each record's part of F (all but the mu_w term), formed from the residual itself."""
    xp = array_namespace(X, W, H)
    fit = xp.sum((X - H @ W) ** 2, axis=1)
    return fit + membership_penalties(H, rho=rho, mu_h=mu_h)


def membership_penalties(H: Array, *, rho: float, mu_h: float) -> Array:
    """Return rho/2 ((sum_l h_jl)^2 - |h_j|^2) + mu_h/2 |h_j|^2 for every record j.

    Clusters are along axis 1: H is n x k, or r x k x n for several starts.
    """
    xp = array_namespace(H)
    square = xp.sum(H**2, axis=1)
    return rho / 2 * (xp.sum(H, axis=1) ** 2 - square) + mu_h / 2 * square


def membership_curvature(W: Array, *, rho: float, mu_h: float) -> Array:
    """Return M = 2 W W' + rho (11' - I) + mu_h I, the Hessian (k x k) of F in one record's h."""
    return curvature_of_gram(W @ W.T, rho=rho, mu_h=mu_h)


def curvature_of_gram(gram: Array, *, rho: float, mu_h: float) -> Array:
    """Return the same from W W', for one matrix or each of a stack."""
    xp = array_namespace(gram)
    eye = xp.eye(gram.shape[-1], dtype=gram.dtype, device=device(gram))
    return 2 * gram + rho * (1 - eye) + mu_h * eye


def membership_gradient(A: Array, H: Array, M: Array) -> Array:
    """Return dF/dH = H M - 2 A, given A = X W' and M the curvature."""
    return H @ M - 2 * A


def centroid_gradient(X: Array, W: Array, H: Array, *, mu_w: float) -> Array:
    """Return dF/dW = 2 (H'H W - H'X) + mu_w W."""
    return 2 * ((H.T @ H) @ W - H.T @ X) + mu_w * W


def largest_eigenvalue(M: Array) -> Array:
    """Return the largest eigenvalue of a symmetric matrix, or of each matrix in a stack."""
    if on_accelerator(M):
        # Far faster here: small eigenproblems keep an accelerator waiting.
        xp = array_namespace(M)
        largest = np.linalg.eigvalsh(on_host(M))[..., -1]
        return xp.asarray(largest, dtype=M.dtype, device=device(M))
    return array_namespace(M).linalg.eigvalsh(M)[..., -1]


def membership_step_size(M: Array) -> float:
    """Return gamma = 0.51 L, L the Lipschitz constant of dF/dH: every projected step descends."""
    M = on_host(M) if on_accelerator(M) else M
    return max(0.51 * float(largest_eigenvalue(M)), 1e-30)


def membership_steps(A: Array, M: Array, steps: int, H: Array | None = None) -> Array:
    """Return H after `steps` projected gradient steps H <- [H - (H M - 2 A)/gamma]^+.

    A record's h depends on its own row of A (and of H), on M and on `steps` alone. H None starts
    at zero.
    """
    xp = array_namespace(A, M)
    gamma = membership_step_size(M)
    shrink = xp.eye(M.shape[0], dtype=M.dtype, device=device(M)) - M / gamma
    if is_numpy_array(A):
        return _steps_in_place(A, shrink, 2 / gamma, steps, H)
    drive = A * (2 / gamma)
    if H is None:
        H, steps = xp.clip(drive, min=0), steps - 1
    for _ in range(steps):
        if is_torch_array(H):
            H = xp.addmm(drive, H, shrink).clamp_(min=0)
        else:
            H = xp.clip(H @ shrink + drive, min=0)
    return H


def _steps_in_place(A: Float, shrink: Float, pull: float, steps: int, H: Float | None) -> Float:
    """Return H after the steps, from two buffers; in memory they lie as `by_columns` lays out A.

    The curvature is symmetric, so H M is the transpose of M H'.
    """

    def stepped(first: int) -> Float:
        rows = slice(first, first + TOGETHER)
        push = np.multiply(A[rows].T, pull, order="C")
        if H is None:
            old, left = np.maximum(push, 0), steps - 1
        else:
            old, left = np.array(H[rows].T, order="C"), steps
        new = np.empty_like(old)
        for _ in range(left):
            np.matmul(shrink, old, out=new)
            new += push
            np.maximum(new, 0, out=new)
            old, new = new, old
        return old

    parts = each(stepped, range(0, max(len(A), 1), TOGETHER))
    return (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)).T


def residual_norms(squared_norms: Array, A: Array, H: Array, gram: Array) -> Array:
    """Return |x_j - W'h_j| from |x_j|^2, A = X W' and gram = W W', rounded up.

    A, H and gram may be stacks, one entry for each W.

    The residual matrix is never formed. The three terms nearly cancel when the residual is small,
    so the rounding error they can carry is added, in proportion to (|x_j| + sum_l h_jl |w_l|)^2:
    the result is not below the true norm, which is what clipping needs, if A is right to the last
    digits of |x_j| |w_l|. That of the standardised view is, where its centre is subtracted first
    or no longer than twice the scale; up to where it is subtracted first (`is_far`) the result is
    low by at most a hundred-thousandth part or two, measured.
    """
    xp = array_namespace(squared_norms, A, H, gram)
    # |W'h|^2 - 2 x.W'h in one sum over the clusters; H gram is written so as to lie like A and H.
    change = xp.matrix_transpose(gram @ xp.matrix_transpose(H))
    change -= 2 * A
    change *= H
    change = xp.sum(change, axis=-1)
    lengths = xp.sqrt(xp.linalg.diagonal(gram))
    reach = xp.sqrt(squared_norms) + (H @ lengths[..., None])[..., 0]
    slack = SLACK * xp.finfo(A.dtype).eps * reach**2
    return xp.sqrt(xp.clip(squared_norms + change, min=0) + slack)


def unit_rows(W: Array) -> Array:
    """Return W with every row scaled to norm one; a zero row stays zero."""
    xp = array_namespace(W)
    norms = xp.sqrt(xp.sum(W**2, axis=-1, keepdims=True))
    return W / xp.where(norms > 0, norms, xp.ones_like(norms))


def membership_matrix(view: Products, W: Array, *, penalty: Penalty, steps: int) -> Array:
    """Return fresh memberships of the view's records for centres W.

    A record that no centre points towards has none. It gets next to nothing of the centre that
    points away from it least, so that the largest membership is that one's and not the first's.
    """
    M = membership_curvature(W, rho=penalty.orthogonality, mu_h=penalty.membership_ridge)
    A = view.products(W)
    xp, H = array_namespace(A), membership_steps(A, M, steps)
    largest = xp.max(A, axis=1, keepdims=True)
    next_to_nothing = xp.astype(largest == A, A.dtype) * xp.finfo(A.dtype).smallest_normal
    return xp.where(xp.max(H, axis=1, keepdims=True) > 0, H, next_to_nothing)
