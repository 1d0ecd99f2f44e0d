"""Every kernel against a loop that does the same thing slowly, or against finite differences."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.kernels.clipping import clip_weights, clipped_stack
from dpfedc.kernels.objective import (
    centroid_gradient,
    largest_eigenvalue,
    membership_curvature,
    membership_gradient,
    membership_penalties,
    membership_step_size,
    membership_steps,
    record_losses,
    residual_norms,
    unit_rows,
)
from dpfedc.kernels.site_steps import local_centroid_step

PENALTY = {"rho": 0.7, "mu_h": 0.4}
MU_W = 0.3
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture
def problem(rng):
    """X (9 x 4), W (3 x 4), H (9 x 3) >= 0."""
    shapes = (9, 4), (3, 4), (9, 3)
    X, W, H = (rng.standard_normal(shape) for shape in shapes)
    return X, W, np.abs(H)


def loss_by_loop(X, W, H, rho, mu_h, mu_w):
    """F, term by term, as the problem states it."""
    total = 0.0
    for x, h in zip(X, H, strict=True):
        for feature in range(len(x)):
            fitted = sum(h[cluster] * W[cluster, feature] for cluster in range(len(h)))
            total += (x[feature] - fitted) ** 2
        total += rho / 2 * (sum(h) ** 2 - sum(value**2 for value in h))
        total += mu_h / 2 * sum(value**2 for value in h)
    return total + mu_w / 2 * sum(value**2 for value in W.ravel())


def finite_differences(function, at, width=1e-5):
    slopes = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[index] += width
        down[index] -= width
        slopes[index] = (function(up) - function(down)) / (2 * width)
    return slopes


def test_losses_add_up_to_the_objective(problem):
    X, W, H = problem
    expected = loss_by_loop(X, W, H, **PENALTY, mu_w=MU_W)
    total = record_losses(X, W, H, **PENALTY).sum() + MU_W / 2 * (W**2).sum()
    assert total == pytest.approx(expected, rel=1e-12)


def test_penalty_is_zero_exactly_for_hard_memberships():
    H = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 3.0]])
    penalties = membership_penalties(H, rho=0.5, mu_h=0.0)
    np.testing.assert_array_equal(penalties[:2], 0)
    assert penalties[2] == pytest.approx(0.5 / 2 * (16 - 10))


def test_membership_gradient_is_the_slope_of_the_objective(problem):
    X, W, H = problem
    slopes = finite_differences(lambda P: loss_by_loop(X, W, P, **PENALTY, mu_w=MU_W), H)
    M = membership_curvature(W, **PENALTY)
    np.testing.assert_allclose(membership_gradient(X @ W.T, H, M), slopes, rtol=1e-7, atol=1e-7)
    # The appendix of the paper has twice the rho; that is not the slope.
    wrong = membership_curvature(W, rho=2 * PENALTY["rho"], mu_h=PENALTY["mu_h"])
    assert np.abs(membership_gradient(X @ W.T, H, wrong) - slopes).max() > 0.1


def test_centroid_gradient_is_the_slope_of_the_objective(problem):
    X, W, H = problem
    slopes = finite_differences(lambda V: loss_by_loop(X, V, H, **PENALTY, mu_w=MU_W), W)
    np.testing.assert_allclose(centroid_gradient(X, W, H, mu_w=MU_W), slopes, rtol=1e-7, atol=1e-7)


def test_curvature_is_the_slope_of_the_membership_gradient(problem):
    X, W, _ = problem
    M = membership_curvature(W, **PENALTY)
    for cluster in range(len(W)):
        h = np.zeros((1, len(W)))

        def slope(h, cluster=cluster):
            return membership_gradient(X[:1] @ W.T, h, M)[0, cluster]

        np.testing.assert_allclose(finite_differences(slope, h)[0], M[cluster], rtol=1e-8)
    np.testing.assert_allclose(largest_eigenvalue(np.stack([M, 2 * M])), np.array([1, 2]) *
                               np.linalg.norm(M, 2))  # fmt: skip
    assert membership_step_size(M) == pytest.approx(0.51 * np.linalg.norm(M, 2))


def steps_by_loop(X, W, H, steps, rho, mu_h):
    """Projected gradient steps, one entry of one record at a time."""
    k = len(W)
    M = 2 * W @ W.T + rho * (np.ones((k, k)) - np.eye(k)) + mu_h * np.eye(k)
    gamma = 0.51 * max(np.linalg.eigvalsh(M))
    H = H.copy()
    for _ in range(steps):
        for j, x in enumerate(X):
            residual = sum(H[j, u] * W[u] for u in range(k)) - x
            slope = [
                2 * residual @ W[u] + rho * (H[j].sum() - H[j, u]) + mu_h * H[j, u]
                for u in range(k)
            ]
            H[j] = [max(0.0, H[j, u] - slope[u] / gamma) for u in range(k)]
    return H


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_membership_steps_equal_the_loop(problem, steps):
    X, W, H = problem
    A, M = X @ W.T, membership_curvature(W, **PENALTY)
    before = A.copy(), M.copy(), H.copy()
    np.testing.assert_allclose(
        membership_steps(A, M, steps, H), steps_by_loop(X, W, H, steps, **PENALTY), atol=1e-12
    )
    zero = np.zeros_like(H)
    np.testing.assert_allclose(
        membership_steps(A, M, steps), steps_by_loop(X, W, zero, steps, **PENALTY), atol=1e-12
    )
    for kept, now in zip(before, (A, M, H), strict=True):
        np.testing.assert_array_equal(kept, now)


@given(seeds, st.integers(1, 6), st.integers(1, 8), st.floats(0, 3), st.floats(0, 2))
def test_every_membership_step_descends(seed, k, m, rho, mu_h):
    rng = np.random.default_rng(seed)
    X, W = rng.standard_normal((5, m)), rng.standard_normal((k, m))
    H = np.abs(rng.standard_normal((5, k)))
    A, M = X @ W.T, membership_curvature(W, rho=rho, mu_h=mu_h)
    losses = record_losses(X, W, H, rho=rho, mu_h=mu_h)
    for _ in range(20):
        H = membership_steps(A, M, 1, H)
        assert np.all(H >= 0)
        after = record_losses(X, W, H, rho=rho, mu_h=mu_h)
        assert np.all(after <= losses + 1e-12 * (1 + losses))
        losses = after


@pytest.mark.parametrize("rho", [0.0, 0.3, 2.0])
def test_membership_steps_end_at_a_stationary_point(problem, rho):
    """There h = [h - slope]^+: no slope where h > 0, none downhill where h = 0."""
    X, W, _ = problem
    A, M = X @ W.T, membership_curvature(W, rho=rho, mu_h=0.0)
    H = membership_steps(A, M, 3000)
    slope = membership_gradient(A, H, M)
    np.testing.assert_allclose(slope[H > 0], 0, atol=1e-9)
    assert slope[H == 0].min() >= -1e-9
    assert 0 < (H > 0).mean() < 1


@given(seeds, st.integers(1, 30), st.integers(1, 6), st.sampled_from([np.float32, np.float64]),
       st.floats(0, 1), st.sampled_from([1e-3, 1.0, 1e3]))  # fmt: skip
def test_residual_norms_are_never_below_the_true_norm(seed, m, k, dtype, share, size):
    """Also where the residual cancels (share near 1), and where centres cancel each other."""
    rng = np.random.default_rng(seed)
    W = unit_rows(rng.standard_normal((k, m)))
    if k > 1 and seed % 2:
        W[1] = -W[0]
    H = size * np.abs(rng.standard_normal((40, k)))
    X = share * (H @ W) + (1 - share) * rng.standard_normal((40, m))
    X, W, H = (array.astype(dtype) for array in (X, W, H))
    exact = X.astype(np.longdouble) - H.astype(np.longdouble) @ W.astype(np.longdouble)
    true = np.sqrt((exact**2).sum(axis=1))
    norms = residual_norms((X * X).sum(axis=1), X @ W.T, H, W @ W.T)
    assert norms.dtype == dtype
    assert np.all(norms >= true)
    # Never far above either: the slack is a few roundings of (|x| + sum of h |w|)^2.
    reach = np.linalg.norm(X, axis=1) + H.sum(axis=1)
    assert np.all(norms**2 <= true**2 * (1 + 1e-5) + 20 * np.finfo(dtype).eps * reach**2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_residual_norms_of_long_records(rng, dtype):
    H = np.abs(rng.standard_normal((50, 4))).astype(dtype)
    W = unit_rows(rng.random((4, 20_000))).astype(dtype)
    X = (H @ W + rng.standard_normal((50, 1)) * 1e-3).astype(dtype)
    exact = X.astype(np.float64) - H.astype(np.float64) @ W.astype(np.float64)
    norms = residual_norms((X * X).sum(axis=1), X @ W.T, H, W @ W.T)
    assert np.all(norms >= np.linalg.norm(exact, axis=1))
    np.testing.assert_allclose(norms, np.linalg.norm(exact, axis=1), atol=0.05)


def test_unit_rows():
    W = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])
    np.testing.assert_allclose(unit_rows(W), [[0.6, 0.8], [0, 0], [0, -1]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bound", [0.1, 1.0, 50.0])
def test_clip_weights(dtype, bound):
    norms = np.array([0, 1e-30, 0.05, 0.1, 1, 200, np.inf, np.nan], dtype=dtype)
    weights = clip_weights(norms, bound)
    assert weights.dtype == dtype
    expected = [min(1, bound / n) if n else 1 for n in norms[:6].astype(float)] + [0, 0]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    kept = weights[:6] * norms[:6]
    assert np.all(kept <= bound * (1 + 2 * np.finfo(dtype).eps))


def test_clip_weights_without_a_bound_keep_what_is_finite():
    weights = clip_weights(np.array([0.0, 3.0, np.inf, np.nan]), math.inf)
    np.testing.assert_array_equal(weights, [1, 1, 0, 0])


def test_a_null_record_is_selected_out():
    norms = np.array([1.0, np.inf, np.nan, 0.0, 5.0])
    present = np.array([True, False, False, False, True])
    np.testing.assert_array_equal(clip_weights(norms, 2.0, present), [1, 0, 0, 0, 0.4])
    np.testing.assert_array_equal(clip_weights(norms, math.inf, present), [1, 0, 0, 0, 1])


@given(seeds, st.floats(1e-3, 1e3))
def test_clip_weights_equal_the_formula(seed, bound):
    norms = np.exp(5 * np.random.default_rng(seed).standard_normal(50))
    np.testing.assert_allclose(
        clip_weights(norms, bound), [min(1, bound / n) for n in norms], rtol=1e-15
    )


def test_clipped_stack(rng):
    G = rng.standard_normal((4, 3, 5))
    G[1] = 0
    bounds = np.array([0.5, 10.0, 100.0, 1e-3])
    clipped = clipped_stack(G, bounds)
    for i, matrix in enumerate(G):
        norm = np.linalg.norm(matrix)
        expected = matrix if norm <= bounds[i] else matrix * bounds[i] / norm
        np.testing.assert_allclose(clipped[i], expected, rtol=1e-14)


def step_by_loop(X, W, H, real, weight, eta, mu_w, record_bound, gradient_bound):
    """One step of every site, one record at a time."""
    moved = W.copy()
    for i in range(len(X)):
        gradient = mu_w * W[i]
        for x, h, counts in zip(X[i], H[i], real[i], strict=True):
            if not counts:
                continue
            g = 2 * np.outer(h, h @ W[i] - x)
            norm = np.linalg.norm(g)
            gradient = gradient + weight[i] * g * (min(1, record_bound / norm) if norm else 1)
        norm = np.linalg.norm(gradient)
        moved[i] = W[i] - gradient * (min(1, gradient_bound / norm) if norm else 1) / eta[i]
    return moved


@pytest.mark.parametrize("record_bound", [math.inf, 0.8])
@pytest.mark.parametrize("gradient_bound", [math.inf, 2.5])
@pytest.mark.parametrize("mu_w", [0.0, 0.3])
def test_local_centroid_step_equals_the_loop(rng, record_bound, gradient_bound, mu_w):
    s, b, k, m = 5, 6, 3, 4
    X, W = rng.standard_normal((s, b, m)), rng.standard_normal((s, k, m))
    H = np.abs(rng.standard_normal((s, b, k)))
    real = np.arange(b) < np.array([6, 1, 0, 4, 5])[:, None]
    X[~real] = 1e6  # padding must not matter
    H[0, 0] = 0
    settings = {
        "weight": rng.random(s) + 0.5,
        "eta": rng.random(s) + 1,
        "mu_w": mu_w,
        "record_bound": record_bound,
        "gradient_bound": gradient_bound,
    }
    before = W.copy()
    moved = local_centroid_step(X, W, H, real, **settings)
    np.testing.assert_allclose(moved, step_by_loop(X, W, H, real, **settings), atol=1e-12)
    np.testing.assert_array_equal(W, before)
    if mu_w == 0:
        np.testing.assert_array_equal(moved[2], W[2])  # a site without records stays
