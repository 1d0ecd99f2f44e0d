"""Theorem 4 of the paper: the convergence bound, and its constants measured on data.

The bound holds under assumptions that speak of all W and all H >= 0. A constant measured here is
the smallest that fits at ONE point (W, H), so it is a lower estimate of the constant that the
theorem needs. Measured constants are exact statistics of private data: for simulation only.

Records are rows: X (n x m), W (k x m), H (n x k); site i holds rows offsets[i] to offsets[i+1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.objective import largest_eigenvalue, membership_curvature, record_losses
from dpfedc.kernels.segments import segment_products, segment_sum
from dpfedc.privacy.sampling import site_of_row
from dpfedc.research.theory.theorems import (
    Outside,
    UnderConditions,
    require_counts,
    require_nonnegative,
    require_positive,
    require_probability,
    violated_conditions,
)

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ConvergenceBound(UnderConditions):
    """The four terms of Theorem 4's right-hand side; `total` (or `float()`) is their sum."""

    initial_gap: float
    noise: float
    gradient_variance: float
    heterogeneity: float

    @property
    def total(self) -> float:
        """The bound itself."""
        return self.initial_gap + self.noise + self.gradient_variance + self.heterogeneity

    def __float__(self) -> float:
        return self.total


@dataclass(frozen=True, kw_only=True)
class MeasuredConstants:
    """Theorem 4's constants as they are at one point; named as `convergence_bound` takes them."""

    initial_objective: float
    gradient_bound: float
    gradient_variance: float
    heterogeneity: float
    membership_lipschitz: float
    centroid_lipschitz: float
    least_centroid_lipschitz: float


def least_alpha_2(
    extra_steps: int, *, centroid_lipschitz: float, least_centroid_lipschitz: float
) -> float:
    """Return max_t Q2 sqrt(3 (1 + (L_W / l_W)^2)), the smallest alpha_2 that Theorem 4 allows.

    L_W and l_W are the two Lipschitz constants. Q2 is largest in round 1: extra_steps + 1.
    """
    require_counts(least=0, extra_steps=extra_steps)
    require_positive(least_centroid_lipschitz=least_centroid_lipschitz)
    if not least_centroid_lipschitz <= centroid_lipschitz < math.inf:
        expected = f"finite and >= least_centroid_lipschitz={least_centroid_lipschitz}"
        raise InvalidInput(f"centroid_lipschitz must be {expected}, got {centroid_lipschitz}")
    ratio = centroid_lipschitz / least_centroid_lipschitz
    return (extra_steps + 1) * math.sqrt(3 * (1 + ratio**2))


def convergence_bound(
    *,
    n_rounds: int,
    membership_steps: int,
    extra_steps: int,
    n_sites: int,
    sites_per_round: int,
    batch_size: int,
    n_features: int,
    n_clusters: int,
    initial_objective: float,
    gradient_bound: float,
    gradient_variance: float,
    heterogeneity: float,
    membership_lipschitz: float,
    centroid_lipschitz: float,
    least_centroid_lipschitz: float,
    alpha_1: float,
    alpha_2: float,
    least_objective: float = 0.0,
    epsilon: float | None = None,
    delta: float | None = None,
    average_noise: bool = False,
    outside_conditions: Outside = "raise",
) -> ConvergenceBound:
    """Return Theorem 4's bound on the mean squared size of the H and W gradients over R rounds.

    With T = R Q1 + sum_t Q2, A = 2 (alpha_1^2 L_H^2 + 1) / T and all sums over rounds t = 1..R:

        initial gap        A alpha_2 L_W (F_1 - F_low)
        noise              A 16 m k G^2 ln(1.25 / delta) sum Q2^3 / (alpha_2 epsilon^2)
        gradient variance  A L_W phi^2 sum Q2 / (2 alpha_2 K b l_W)
        heterogeneity      A zeta^2 (sum Q2 / K + 4 N sum Q2 (Q2-1) (2 Q2-1) / (alpha_2^2 K^2))

    `gradient_variance` is phi^2, `heterogeneity` is zeta (not squared), `gradient_bound` is G.
    `centroid_lipschitz` and `least_centroid_lipschitz` are L_W and l_W, the largest and smallest
    constant of any site. epsilon and delta are those of one round, with Theorem 2's noise taken at
    its largest (q = 1); epsilon None means no noise. F >= 0 wherever H >= 0.

    `average_noise=True` divides the noise by K: the mean of K independent noises has 1/K of their
    energy, which the paper's Appendix C forgets. The default is the bound as printed.

    Needs alpha_1 > 1 and alpha_2 >= `least_alpha_2`. The proof also uses
    eta >= 1 / ((alpha_1 - 1) L_H), which the theorem does not state; eta is alpha_2 l_W at least.
    """
    require_counts(
        n_rounds=n_rounds,
        membership_steps=membership_steps,
        n_sites=n_sites,
        sites_per_round=sites_per_round,
        batch_size=batch_size,
        n_features=n_features,
        n_clusters=n_clusters,
    )
    if sites_per_round > n_sites:
        raise InvalidInput(f"sites_per_round must be <= n_sites={n_sites}, got {sites_per_round}")
    require_positive(membership_lipschitz=membership_lipschitz, alpha_1=alpha_1, alpha_2=alpha_2)
    require_nonnegative(gradient_variance=gradient_variance, heterogeneity=heterogeneity)
    gap = initial_objective - least_objective
    named_gap = {"initial_objective - least_objective": gap}
    require_nonnegative(gradient_bound=gradient_bound, **named_gap)
    floor_2 = least_alpha_2(
        extra_steps,
        centroid_lipschitz=centroid_lipschitz,
        least_centroid_lipschitz=least_centroid_lipschitz,
    )
    descent = alpha_2 * least_centroid_lipschitz * (alpha_1 - 1) * membership_lipschitz
    violated = violated_conditions(
        [
            (alpha_1 > 1, f"Theorem 4 needs alpha_1 > 1, got {alpha_1}"),
            (alpha_2 >= floor_2, f"Theorem 4 needs alpha_2 >= {floor_2}, got {alpha_2}"),
            (
                alpha_1 <= 1 or descent >= 1,
                "Theorem 4's proof needs alpha_2 * least_centroid_lipschitz * (alpha_1 - 1)"
                f" * membership_lipschitz >= 1, got {descent}",
            ),
        ],
        outside_conditions,
    )

    steps, cubes, drift = _schedule_sums(extra_steps, n_rounds)
    A = 2 * (alpha_1**2 * membership_lipschitz**2 + 1) / (n_rounds * membership_steps + steps)
    K, N, ratio = sites_per_round, n_sites, centroid_lipschitz / least_centroid_lipschitz
    noise = n_features * n_clusters * gradient_bound**2 * _noise_level(epsilon, delta) * cubes
    spread = ratio * gradient_variance * steps / (2 * alpha_2 * K * batch_size)
    return ConvergenceBound(
        theorem="Theorem 4",
        violated=violated,
        initial_gap=A * alpha_2 * centroid_lipschitz * gap,
        noise=A * noise / (alpha_2 * K if average_noise else alpha_2),
        gradient_variance=A * spread,
        heterogeneity=A * heterogeneity**2 * (steps / K + 4 * N * drift / (alpha_2 * K) ** 2),
    )


def _noise_level(epsilon: float | None, delta: float | None) -> float:
    """Return 16 ln(1.25 / delta) / epsilon^2, and 0 for a run without noise."""
    if epsilon is None:
        return 0.0
    if delta is None:
        raise InvalidInput(f"delta must be in (0, 1) when epsilon is given ({epsilon}), got None")
    require_positive(epsilon=epsilon)
    require_probability(delta=delta)
    return 16 * math.log(1.25 / delta) / epsilon**2


def _schedule_sums(extra_steps: int, n_rounds: int) -> tuple[float, float, float]:
    """Return the sums over rounds of Q2, Q2^3 and Q2 (Q2 - 1) (2 Q2 - 1).

    Q2 = 1 after round `extra_steps`, so the cost does not grow with the number of rounds.
    """
    t = np.arange(1, min(extra_steps, n_rounds) + 1)
    Q = (extra_steps // t + 1).astype(np.float64)
    later = n_rounds - len(t)
    drift = float(np.sum(Q * (Q - 1) * (2 * Q - 1)))
    return float(np.sum(Q)) + later, float(np.sum(Q**3)) + later, drift


def heterogeneity(X: Array, W: Array, H: Array, offsets: Offsets) -> float:
    """Return zeta = max_i |dF_i/dW - dF/dW|_F, F the plain mean of the F_i over sites.

    The smallest zeta of Assumption 4 at this W and H. The ridge on W cancels.
    """
    _require_matching(X, W, H, offsets)
    xp = array_namespace(X, W, H)
    G = _site_gradients(X, W, H, offsets)
    deviations = xp.sum((G - xp.mean(G, axis=0, keepdims=True)) ** 2, axis=(1, 2))
    return math.sqrt(float(xp.max(deviations)))


def gradient_variance(X: Array, W: Array, H: Array, offsets: Offsets) -> float:
    """Return phi^2 = max_i (n_i sum_j |g_j|^2 - |sum_j g_j|^2), g_j = 2 h_j' (h_j W - x_j).

    The smallest phi^2 of Assumption 3 at this W and H: for b records drawn with replacement and
    their gradient scaled by n_i / b, E|mini-batch - full|^2 is phi_i^2 / b exactly. Without
    replacement it is smaller by the factor (n_i - b) / (n_i - 1).
    """
    _require_matching(X, W, H, offsets)
    xp = array_namespace(X, W, H)
    sizes = _site_sizes(H, offsets)
    squares = segment_sum(_record_squares(X, W, H), offsets)
    sums = xp.sum(_site_gradients(X, W, H, offsets) ** 2, axis=(1, 2))
    return max(0.0, float(xp.max(sizes * squares - sums)))


def gradient_bound(X: Array, W: Array, H: Array, offsets: Offsets, *, mu_w: float = 0.0) -> float:
    """Return G = max over records of |n_i g_j + mu_w W|_F: no mini-batch gradient is longer.

    A mini-batch gradient is the mean of n_i g_j + mu_w W over its records, and a batch of one
    record reaches the maximum.
    """
    _require_matching(X, W, H, offsets)
    require_nonnegative(mu_w=mu_w)
    xp = array_namespace(X, W, H)
    rows = xp.asarray(site_of_row(offsets), device=device(H))
    size = xp.take(_site_sizes(H, offsets), rows)
    fitted = H @ W
    inner = 2 * xp.sum(fitted * (fitted - X), axis=1)
    squares = size**2 * _record_squares(X, W, H) + 2 * mu_w * size * inner + mu_w**2 * xp.sum(W**2)
    return math.sqrt(max(0.0, float(xp.max(squares))))


def measured_constants(
    X: Array, W: Array, H: Array, offsets: Offsets, *, rho: float, mu_h: float, mu_w: float
) -> MeasuredConstants:
    """Return every constant of Theorem 4 that data determine, at this W and H.

    The Lipschitz constants are L_H = lambda_max(2 W W' + rho (11' - I) + mu_h I), the same at all
    sites, and the largest and smallest over sites of lambda_max(2 H_i' H_i) + mu_w.
    """
    _require_matching(X, W, H, offsets)
    require_nonnegative(rho=rho, mu_h=mu_h, mu_w=mu_w)
    xp = array_namespace(X, W, H)
    curvatures = 2 * largest_eigenvalue(segment_products(H, H, offsets)) + mu_w
    losses = float(xp.sum(record_losses(X, W, H, rho=rho, mu_h=mu_h)))
    return MeasuredConstants(
        initial_objective=losses / (len(offsets) - 1) + mu_w / 2 * float(xp.sum(W**2)),
        gradient_bound=gradient_bound(X, W, H, offsets, mu_w=mu_w),
        gradient_variance=gradient_variance(X, W, H, offsets),
        heterogeneity=heterogeneity(X, W, H, offsets),
        membership_lipschitz=float(largest_eigenvalue(membership_curvature(W, rho=rho, mu_h=mu_h))),
        centroid_lipschitz=float(xp.max(curvatures)),
        least_centroid_lipschitz=float(xp.min(curvatures)),
    )


def _site_gradients(X: Array, W: Array, H: Array, offsets: Offsets) -> Array:
    """Return dF_i/dW = 2 H_i' (H_i W - X_i) of every site (sites x k x m), less mu_w W."""
    return 2 * segment_products(H, H @ W - X, offsets)


def _record_squares(X: Array, W: Array, H: Array) -> Array:
    """Return |g_j|^2 = 4 |h_j|^2 |h_j W - x_j|^2 of every record."""
    xp = array_namespace(X, W, H)
    return 4 * xp.sum(H**2, axis=1) * xp.sum((H @ W - X) ** 2, axis=1)


def _site_sizes(like: Array, offsets: Offsets) -> Array:
    xp = array_namespace(like)
    return xp.asarray(np.diff(offsets), dtype=like.dtype, device=device(like))


def _require_matching(X: Array, W: Array, H: Array, offsets: Offsets) -> None:
    """Raise `InvalidInput` unless the shapes fit together and every site holds a record."""
    n, m, k = X.shape[0], X.shape[-1], W.shape[0]
    shapes = [tuple(array.shape) for array in (X, W, H)]
    if shapes != [(n, m), (k, m), (n, k)]:
        raise InvalidInput(f"X, W, H must have shapes (n, m), (k, m), (n, k), got {shapes}")
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != n:
        raise InvalidInput(f"offsets must run from 0 to n={n}, got {np.asarray(offsets)}")
    if np.min(np.diff(offsets)) < 1:
        site = int(np.argmin(np.diff(offsets)))
        raise InvalidInput(
            f"every site must hold >= 1 record, got {np.diff(offsets)[site]} at {site}"
        )
