"""The k-median kernels against loops and a general minimiser."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dpfedc.research.kernels import kmedian
from dpfedc.research.rivals.coreset_kmedian_stages import weighted_kmedian
from support.naive_kmedian import cost, naive_centers, naive_nearest, naive_seeds, naive_step


@pytest.fixture
def problem(rng):
    """Weighted points with repeats, some of weight zero: X, weights."""
    X = rng.standard_normal((25, 3)) + 4 * rng.integers(0, 2, size=(25, 3))
    X[10:13] = X[0]
    return X, rng.integers(0, 4, size=25).astype(float)


def test_seeds_and_steps_are_those_of_a_loop(problem, rng):
    X, weights = problem
    for _ in range(5):
        coins = rng.random((4, 3))
        C = kmedian.kmedian_seeds(X[None], weights[None], coins[None])[0]
        np.testing.assert_array_equal(C, naive_seeds(X, weights, coins))
        for _ in range(4):
            stepped = kmedian.weiszfeld_step(X, weights, C)
            np.testing.assert_allclose(stepped, naive_step(X, weights, C), rtol=1e-9, atol=1e-12)
            assert cost(X, stepped, weights) <= cost(X, C, weights) * (1 + 1e-12)
            C = stepped


def test_steps_end_at_the_median(problem):
    """From any record, also one where Weiszfeld's own step would be stuck."""
    X, weights = problem
    weights = weights + 0.1
    best = minimize(lambda c: cost(X, c[None], weights), X.mean(axis=0), tol=1e-12)
    for j in (0, 5, 20):
        C = X[j : j + 1]
        for _ in range(300):
            C = kmedian.weiszfeld_step(X, weights, C)
        np.testing.assert_allclose(C[0], best.x, atol=1e-4)
    # A record with more weight than all others together is the median, and is not left.
    weights[5] = 2 * weights.sum()
    np.testing.assert_array_equal(kmedian.weiszfeld_step(X, weights, X[5:6]), X[5:6])


def test_a_weight_is_a_number_of_repetitions(problem, rng):
    X, weights = problem
    C = X[[1, 4, 7]] + 0.1
    repeated = np.repeat(X, weights.astype(int), axis=0)
    for _ in range(3):
        expected = kmedian.weiszfeld_step(repeated, np.ones(len(repeated)), C)
        C = kmedian.weiszfeld_step(X, weights, C)
        np.testing.assert_allclose(C, expected)
    coins = rng.random((2, 3, 2))
    solution = weighted_kmedian(X, np.where(weights > 0, weights, -9.0), coins)
    np.testing.assert_allclose(
        solution, weighted_kmedian(X[weights > 0], weights[weights > 0], coins)
    )
    assert weighted_kmedian(X[:2], np.array([-1.0, 0.0]), coins).shape == (3, 3)


def test_sites_solve_their_own_problems(ragged, rng):
    X, offsets = ragged
    coins = rng.random((12, 3, 2))
    present = np.arange(len(X)) % 7 > 0
    present[[0, 3]] = True  # a site of one record, and one of three
    C, distances, labels = kmedian.site_kmedians(X, offsets, coins, 4, present)
    for i in range(12):
        rows = np.arange(offsets[i], offsets[i + 1])
        mine = rows[present[rows]]
        if not len(mine):
            assert not distances[rows].any()
            continue
        expected = naive_centers(X[mine], np.ones(len(mine)), coins[i], 4)
        np.testing.assert_allclose(C[i], expected, rtol=1e-7, atol=1e-7)
        for j in mine:
            distance, label = naive_nearest(X[j], expected)
            assert distances[j] == pytest.approx(distance, abs=1e-6)
            np.testing.assert_allclose(C[i][labels[j]], expected[label], atol=1e-7)
        assert not distances[rows[~present[rows]]].any()
    assert distances[0] == 0  # one record: its own median, exactly
