"""Theorem 4: the bound by hand, its rate, its conditions, and its constants against loops."""

import itertools
import math
from dataclasses import asdict

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput, OutsideConditions
from dpfedc.research import theory

SETTING = {
    "n_rounds": 2,
    "membership_steps": 3,
    "extra_steps": 1,
    "n_sites": 4,
    "sites_per_round": 2,
    "batch_size": 2,
    "n_features": 2,
    "n_clusters": 3,
    "initial_objective": 7.0,
    "least_objective": 2.0,
    "gradient_bound": 1.0,
    "gradient_variance": 4.0,
    "heterogeneity": 3.0,
    "membership_lipschitz": 1.0,
    "centroid_lipschitz": 1.0,
    "least_centroid_lipschitz": 1.0,
    "alpha_1": 2.0,
    "alpha_2": 5.0,
    "epsilon": 0.5,
    "delta": 1.25 / math.e,
}


def bound(**changes):
    return theory.convergence_bound(**(SETTING | changes))


def slope(rounds, values):
    return np.polyfit(np.log(rounds), np.log(values), 1)[0]


# The bound


def test_bound_by_hand():
    # Q2 is 2 then 1: sums 3, cubes 9, drift 6; T = 2*3 + 3 = 9; A = 2 (4 + 1) / 9.
    A = 10 / 9
    result = bound()
    assert result.holds
    assert result.initial_gap == pytest.approx(A * 5 * 1 * 5)
    assert result.noise == pytest.approx(A * 16 * 6 * 1 * 9 / (5 * 0.25))
    assert result.gradient_variance == pytest.approx(A * 4 * 3 / (2 * 5 * 2 * 2))
    assert result.heterogeneity == pytest.approx(A * 9 * (3 / 2 + 4 * 4 * 6 / (25 * 4)))
    assert result.total == pytest.approx(A * (25 + 691.2 + 0.3 + 22.14))
    assert float(result) == result.total


def test_lipschitz_constants_enter_where_the_theorem_has_them():
    wide = bound(centroid_lipschitz=3.0, least_centroid_lipschitz=2.0, alpha_2=10.0)
    plain = bound(alpha_2=10.0)
    assert wide.initial_gap == pytest.approx(3 * plain.initial_gap)
    assert wide.gradient_variance == pytest.approx(1.5 * plain.gradient_variance)
    assert (wide.noise, wide.heterogeneity) == (plain.noise, plain.heterogeneity)
    steep = bound(membership_lipschitz=4.0)
    assert float(steep) == pytest.approx(float(bound()) * (4 * 16 + 1) / (4 + 1))


@given(extra_steps=st.integers(0, 40), n_rounds=st.integers(1, 60))
def test_sums_over_rounds_match_a_loop(extra_steps, n_rounds):
    Q = [theory.centroid_steps(t, extra_steps) for t in range(1, n_rounds + 1)]
    alpha_2 = 10.0 * (extra_steps + 1)
    result = bound(extra_steps=extra_steps, n_rounds=n_rounds, alpha_2=alpha_2)
    A = 10 / (3 * n_rounds + sum(Q))
    drift = sum(q * (q - 1) * (2 * q - 1) for q in Q)
    assert result.noise == pytest.approx(A * 96 * sum(q**3 for q in Q) / (alpha_2 * 0.25))
    assert result.heterogeneity == pytest.approx(
        A * 9 * (sum(Q) / 2 + 4 * 4 * drift / (alpha_2**2 * 4))
    )


def test_without_epsilon_there_is_no_noise_and_nothing_else_changes():
    noiseless = bound(epsilon=None, delta=None)
    assert noiseless.noise == 0
    assert noiseless.total == pytest.approx(bound().total - bound().noise)


@pytest.mark.parametrize("K", [1, 2, 4])
def test_averaging_independent_noises_divides_by_the_sites(K):
    printed, corrected = bound(sites_per_round=K), bound(sites_per_round=K, average_noise=True)
    assert corrected.noise == pytest.approx(printed.noise / K)
    assert printed.noise == bound().noise
    assert corrected.total - corrected.noise == pytest.approx(printed.total - printed.noise)


def test_noise_term_is_the_energy_of_the_averaged_noise_of_theorem_2():
    """One round, one step, simulated; 4 standard errors: a false alarm in 16,000."""
    K, m, k, eta, draws = 4, 2, 3, 5.0, 20_000
    noise = theory.noise_variance(
        *(0.5, 1.25 / math.e),
        **{"gradient_bound": 1.0, "centroid_steps": 1, "eta": eta, "q": 1.0},
        outside_conditions="stamp",
    )
    std = math.sqrt(float(noise))
    noises = np.random.default_rng(3).normal(scale=std, size=(draws, K, m * k))
    energy = np.sum(noises.mean(axis=1) ** 2, axis=1)
    # Appendix C: the energy enters with eta L_W / 2 = 2.5, times A = 2 (4 + 1) / (3 + 1).
    simulated = 2.5 * 2.5 * energy
    error = 4 * simulated.std() / math.sqrt(draws)
    one = {"n_rounds": 1, "extra_steps": 0, "sites_per_round": K}
    assert bound(**one, average_noise=True).noise == pytest.approx(simulated.mean(), abs=error)
    assert bound(**one).noise != pytest.approx(simulated.mean(), abs=error)


@given(factor=st.floats(1.01, 50))
def test_remarks_on_privacy_and_heterogeneity(factor):
    """Remarks: the bound falls with epsilon and K, and rises with zeta."""
    assert bound(epsilon=0.5 * factor).total < bound().total
    assert bound(heterogeneity=3.0 * factor).total > bound().total
    assert bound(sites_per_round=4).total < bound(sites_per_round=2).total
    assert bound(membership_steps=4).total < bound(membership_steps=3).total


def test_rate_is_one_over_root_rounds_when_membership_steps_grow_as_root_rounds():
    rounds = np.logspace(2, 6, 9).round().astype(int)
    # Q1 = 10 sqrt(R) keeps R Q1 far above sum Q2, and a small gap leaves the lasting terms to rule.
    setting = {"extra_steps": 0, "initial_objective": 2.001}

    def totals(steps_of, **changes):
        return [
            float(bound(n_rounds=int(R), membership_steps=steps_of(int(R)), **setting, **changes))
            for R in rounds
        ]

    growing = totals(lambda R: 10 * math.isqrt(R))
    assert slope(rounds, growing) == pytest.approx(-0.5, abs=0.01)
    # With a fixed Q1 the lasting terms do not fall at all: the test above has something to see.
    assert slope(rounds, totals(lambda R: 10)) == pytest.approx(0, abs=0.01)
    alone = totals(
        lambda R: 10 * math.isqrt(R), epsilon=None, gradient_variance=0.0, heterogeneity=0.0
    )
    assert slope(rounds, alone) == pytest.approx(-1.5, abs=0.01)


def test_the_rate_survives_a_falling_number_of_centroid_steps():
    rounds = np.logspace(4, 6, 5).round().astype(int)
    totals = [
        float(bound(n_rounds=int(R), membership_steps=math.isqrt(R), extra_steps=10, alpha_2=50.0))
        for R in rounds
    ]
    assert slope(rounds, totals) == pytest.approx(-0.5, abs=0.1)


# Its conditions


def test_least_alpha_2_by_hand():
    ratio = {"centroid_lipschitz": 6.0, "least_centroid_lipschitz": 2.0}
    assert theory.least_alpha_2(10, **ratio) == pytest.approx(11 * math.sqrt(30))


OUTSIDE = [
    ({"alpha_1": 1.0}, ["Theorem 4 needs alpha_1 > 1, got 1.0"]),
    ({"alpha_2": 4.0}, [f"Theorem 4 needs alpha_2 >= {2 * math.sqrt(6)}, got 4.0"]),
    (
        {"alpha_1": 1.125},
        [
            "Theorem 4's proof needs alpha_2 * least_centroid_lipschitz * (alpha_1 - 1)"
            " * membership_lipschitz >= 1, got 0.625"
        ],
    ),
    (
        {"alpha_1": 0.5, "alpha_2": 2.0},
        [
            "Theorem 4 needs alpha_1 > 1, got 0.5",
            f"Theorem 4 needs alpha_2 >= {2 * math.sqrt(6)}, got 2.0",
        ],
    ),
]


@pytest.mark.parametrize(("changes", "sentences"), OUTSIDE)
def test_outside_the_conditions_it_raises_or_stamps(changes, sentences):
    with pytest.raises(OutsideConditions) as caught:
        bound(**changes)
    assert str(caught.value) == "; ".join(sentences)
    stamped = bound(**changes, outside_conditions="stamp")
    assert stamped.violated == tuple(sentences)
    assert not stamped.holds
    assert type(stamped) is type(bound())
    assert math.isfinite(stamped.total)


def test_the_least_alpha_2_is_allowed():
    least = theory.least_alpha_2(1, centroid_lipschitz=1.0, least_centroid_lipschitz=1.0)
    assert bound(alpha_2=least).holds


@pytest.mark.parametrize("option", ["raise", "stamp"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_rounds": 0}, "n_rounds must be an integer >= 1, got 0"),
        ({"extra_steps": -1}, "extra_steps must be an integer >= 0, got -1"),
        ({"sites_per_round": 5}, "sites_per_round must be <= n_sites=4, got 5"),
        ({"alpha_2": 0.0}, r"alpha_2 must be > 0, got 0\.0"),
        ({"heterogeneity": -1.0}, r"heterogeneity must be finite and >= 0, got -1\.0"),
        ({"gradient_variance": math.nan}, "gradient_variance must be finite and >= 0, got nan"),
        ({"gradient_bound": -1.0}, r"gradient_bound must be finite and >= 0, got -1\.0"),
        ({"least_centroid_lipschitz": 0.0}, r"least_centroid_lipschitz must be > 0, got 0\.0"),
        (
            {"centroid_lipschitz": 0.5},
            r"centroid_lipschitz must be finite and >= least_centroid_lipschitz=1\.0, got 0\.5",
        ),
        ({"initial_objective": 1.0}, r"initial_objective - least_objective must be .*, got -1\.0"),
        ({"epsilon": -1.0}, r"epsilon must be > 0, got -1\.0"),
        ({"delta": None}, r"delta must be in \(0, 1\) when epsilon is given \(0\.5\), got None"),
        ({"delta": 1.0}, r"delta must be in \(0, 1\), got 1\.0"),
    ],
)
def test_nonsense_is_invalid_with_and_without_the_stamp(changes, message, option):
    with pytest.raises(InvalidInput, match=message):
        bound(**changes, outside_conditions=option)


# Constants measured on data

RIDGES = {"rho": 0.3, "mu_h": 0.02, "mu_w": 0.7}


def sites(sizes, *, m=4, k=3, seed=0):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    offsets = np.cumsum([0, *sizes])
    return rng.normal(size=(n, m)), rng.normal(size=(k, m)), rng.random(size=(n, k)), offsets


def split(X, H, offsets):
    return [(X[a:b], H[a:b]) for a, b in itertools.pairwise(offsets)]


def objective(X, W, H, *, rho, mu_h, mu_w):
    """F_i from its definition, entry by entry in the penalty."""
    fit = np.linalg.norm(X - H @ W) ** 2
    penalty = sum(sum(h) ** 2 - sum(v**2 for v in h) for h in H)
    ridges = mu_h / 2 * np.sum(H**2) + mu_w / 2 * np.sum(W**2)
    return fit + rho / 2 * penalty + ridges


def numeric_gradient(function, at, step=1e-6):
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        nudge = np.zeros_like(at)
        nudge[index] = step
        gradient[index] = (function(at + nudge) - function(at - nudge)) / (2 * step)
    return gradient


def batch_gradient(X, W, H, rows, mu_w):
    """The mini-batch gradient, scaled by n_i / b, record by record."""
    total = sum(2 * np.outer(H[j], H[j] @ W - X[j]) for j in rows)
    return len(X) / len(rows) * total + mu_w * W


@pytest.mark.parametrize("sizes", [(5,), (1, 1), (3, 1, 8, 2, 5, 17)])
def test_heterogeneity_matches_a_loop_over_sites(sizes):
    X, W, H, offsets = sites(sizes)
    gradients = [2 * (H_i.T @ H_i @ W - H_i.T @ X_i) + 0.7 * W for X_i, H_i in split(X, H, offsets)]
    mean = sum(gradients) / len(gradients)
    naive = max(np.linalg.norm(G - mean) for G in gradients)
    assert theory.heterogeneity(X, W, H, offsets) == pytest.approx(naive, abs=1e-12)


def test_heterogeneity_is_that_of_the_objective_itself():
    X, W, H, offsets = sites((3, 2, 4))
    gradients = [
        numeric_gradient(lambda V, X_i=X_i, H_i=H_i: objective(X_i, V, H_i, **RIDGES), W)
        for X_i, H_i in split(X, H, offsets)
    ]
    naive = max(np.linalg.norm(G - sum(gradients) / 3) for G in gradients)
    assert theory.heterogeneity(X, W, H, offsets) == pytest.approx(naive, rel=1e-6)


def test_identical_sites_are_not_heterogeneous():
    X, W, H, _ = sites((6,))
    offsets = np.array([0, 6, 12, 18])
    three = np.tile(X, (3, 1)), W, np.tile(H, (3, 1))
    assert theory.heterogeneity(*three, offsets) == pytest.approx(0, abs=1e-12)
    assert theory.heterogeneity(*three, np.array([0, 7, 12, 18])) > 0.1


@pytest.mark.parametrize("b", [1, 2, 3])
def test_gradient_variance_is_exact_for_draws_with_replacement(b):
    """Every batch enumerated: E|mini-batch - full|^2 b, maximised over sites, is phi^2."""
    X, W, H, offsets = sites((4, 3, 1), m=2, k=2)
    energies = []
    for X_i, H_i in split(X, H, offsets):
        n = len(X_i)
        full = batch_gradient(X_i, W, H_i, range(n), 0.7)
        batches = itertools.product(range(n), repeat=b)
        errors = [np.sum((batch_gradient(X_i, W, H_i, rows, 0.7) - full) ** 2) for rows in batches]
        energies.append(b * np.mean(errors))
    assert theory.gradient_variance(X, W, H, offsets) == pytest.approx(max(energies))


def test_without_replacement_the_variance_is_smaller_by_the_stated_factor():
    X, W, H, offsets = sites((5,), m=2, k=2)
    full = batch_gradient(X, W, H, range(5), 0.0)
    batches = itertools.combinations(range(5), 2)
    errors = [np.sum((batch_gradient(X, W, H, rows, 0.0) - full) ** 2) for rows in batches]
    phi_squared = theory.gradient_variance(X, W, H, offsets)
    assert 2 * np.mean(errors) == pytest.approx(phi_squared * (5 - 2) / (5 - 1))


def test_gradient_variance_of_equal_records_is_zero():
    X, W, H, _ = sites((1,))
    equal = np.tile(X, (5, 1)), W, np.tile(H, (5, 1)), np.array([0, 5])
    assert theory.gradient_variance(*equal) == pytest.approx(0, abs=1e-9)


def test_gradient_bound_is_the_longest_mini_batch_gradient():
    X, W, H, offsets = sites((4, 2, 3), m=2, k=2)
    norms = [
        np.linalg.norm(batch_gradient(X_i, W, H_i, rows, 0.7))
        for X_i, H_i in split(X, H, offsets)
        for b in (1, 2, 3)
        for rows in itertools.product(range(len(X_i)), repeat=b)
    ]
    assert theory.gradient_bound(X, W, H, offsets, mu_w=0.7) == pytest.approx(max(norms))


def test_measured_constants_match_loops():
    X, W, H, offsets = sites((3, 1, 8, 2))
    measured = theory.measured_constants(X, W, H, offsets, **RIDGES)
    parts = split(X, H, offsets)
    mean = np.mean([objective(X_i, W, H_i, **RIDGES) for X_i, H_i in parts])
    assert measured.initial_objective == pytest.approx(mean)
    curvatures = [np.linalg.norm(2 * H_i.T @ H_i + 0.7 * np.eye(3), 2) for _, H_i in parts]
    assert measured.centroid_lipschitz == pytest.approx(max(curvatures))
    assert measured.least_centroid_lipschitz == pytest.approx(min(curvatures))
    hessian = 2 * W @ W.T + 0.3 * (np.ones((3, 3)) - np.eye(3)) + 0.02 * np.eye(3)
    assert measured.membership_lipschitz == pytest.approx(np.linalg.eigvalsh(hessian).max())
    assert measured.heterogeneity == theory.heterogeneity(X, W, H, offsets)
    assert measured.gradient_variance == theory.gradient_variance(X, W, H, offsets)
    assert measured.gradient_bound == theory.gradient_bound(X, W, H, offsets, mu_w=0.7)


def test_measured_constants_go_straight_into_the_bound():
    X, W, H, offsets = sites((30, 20, 25))
    constants = asdict(theory.measured_constants(X, W, H, offsets, **RIDGES))
    least = theory.least_alpha_2(
        1,
        centroid_lipschitz=constants["centroid_lipschitz"],
        least_centroid_lipschitz=constants["least_centroid_lipschitz"],
    )
    assert bound(**constants, least_objective=0.0, alpha_2=least).holds


def test_measures_run_on_any_array_library_and_leave_their_input_alone():
    X, W, H, offsets = sites((3, 1, 8, 2))
    before = [array.copy() for array in (X, W, H, offsets)]
    expected = asdict(theory.measured_constants(X, W, H, offsets, **RIDGES))
    for array, copy in zip((X, W, H, offsets), before, strict=True):
        np.testing.assert_array_equal(array, copy)
    strict = [array_api_strict.asarray(array) for array in (X, W, H)]
    assert asdict(theory.measured_constants(*strict, offsets, **RIDGES)) == pytest.approx(expected)


def test_arrays_that_do_not_match_are_named():
    X, W, H, offsets = sites((3, 2))
    with pytest.raises(InvalidInput, match=r"got \[\(5, 4\), \(3, 4\), \(5, 2\)\]"):
        theory.heterogeneity(X, W, H[:, :2], offsets)
    with pytest.raises(InvalidInput, match=r"got \[\(5,\), \(3, 4\), \(5, 3\)\]"):
        theory.heterogeneity(X[:, 0], W, H, offsets)
    with pytest.raises(InvalidInput, match=r"offsets must run from 0 to n=5, got \[0 3 4\]"):
        theory.gradient_variance(X, W, H, np.array([0, 3, 4]))
    with pytest.raises(InvalidInput, match="every site must hold >= 1 record, got 0 at 1"):
        theory.gradient_bound(X, W, H, np.array([0, 3, 3, 5]))
    with pytest.raises(InvalidInput, match=r"rho must be finite and >= 0, got -1\.0"):
        theory.measured_constants(X, W, H, offsets, rho=-1.0, mu_h=0.0, mu_w=0.0)
