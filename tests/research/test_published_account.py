"""The paper's noise before the accountant: multipliers and epsilon computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpfedc.clustering.run_plan import Federation
from dpfedc.errors import InvalidInput
from dpfedc.kernels.site_steps import local_centroid_step
from dpfedc.research.published.algorithm import BOUND_ON, Published
from dpfedc.research.published.published_account import published_epsilon, reach, worst_rounds
from dpfedc.research.published.published_planner import (
    PUBLISHED,
    published_loss,
    published_noise,
    published_noise_multipliers,
)
from dpfedc.settings import Penalty, PrivacyTarget

PAPER = {
    "n_clusters": 10, "n_rounds": 100, "sites_per_round": 30, "batch_size": 50, "extra_steps": 10,
}  # fmt: skip
SITES = Federation(784, np.full(100, 100))
TARGET = PrivacyTarget(20.0, 1e-4)


def exact_delta(mu, epsilon):
    """Return the delta of one Gaussian release (Balle and Wang 2018), written out anew."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_multipliers_of_the_papers_own_settings():
    z, violated = published_noise_multipliers(PAPER, SITES, TARGET)
    assert z.shape == (100, 100)
    # q = Q2 b / 100 with b = min(50, floor(100 / (2 Q2))): .44, then .48 four times, then .5.
    ratios = [11 * 4, 6 * 8, 4 * 12, 3 * 16, 3 * 16, 2 * 25, 2 * 25, 2 * 25, 2 * 25, 2 * 25]
    per_round = 20 / (0.5**2 * math.sqrt(0.3 * 100 / (1 - 0.5)))  # Theorem 3 at the largest q
    assert per_round == pytest.approx(10.328, abs=1e-3)
    for t, ratio in enumerate([*ratios, *[50] * 90]):
        q = ratio / 100
        by_hand = 2 * q * math.sqrt(2 * math.log(1.25 * q / 1e-4)) / per_round
        np.testing.assert_allclose(z[t], by_hand, rtol=1e-12)
    assert z[0, 0] == pytest.approx(0.35363, abs=1e-5)
    assert z[99, 0] == pytest.approx(0.40482, abs=1e-5)
    assert len(violated) == 3


def test_the_claim_of_20_is_144_for_the_same_noise():
    z, _ = published_noise_multipliers(PAPER, SITES, TARGET)
    # The worst 30 rounds: 1 with z = .35363, 4 with .38772, 25 with .40482.
    mu = math.sqrt(1 / 0.353629**2 + 4 / 0.387721**2 + 25 / 0.404823**2)
    assert mu == pytest.approx(13.6804, abs=1e-4)
    epsilon = published_epsilon(z, rounds_per_site=30, delta=1e-4, clipped=True)
    assert epsilon == pytest.approx(143.57, abs=0.01)
    assert exact_delta(mu, epsilon) == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("bound", [0.1, 7.0])
def test_multipliers_depend_on_neither_the_bound_nor_the_step(bound):
    method = Published(10, 100, penalty=Penalty(), gradient_bound=bound)
    rule, _ = published_noise(method, SITES, 30, TARGET)
    z, _ = published_noise_multipliers(PAPER, SITES, TARGET)
    for t in (1, 3, 50):
        steps = method.centroid_steps(t)
        eta = np.linspace(0.5, 20, 100)
        q = steps * method.batch_sizes(SITES.records_per_site, steps) / 100
        std = rule(steps, q, eta)
        np.testing.assert_allclose(std / (2 * bound * steps / eta), z[t - 1], rtol=1e-12)


def test_the_worst_off_site_counts_for_all():
    facts = Federation(2, np.array([100, 12, 100]))
    given = {"n_clusters": 2, "n_rounds": 4, "extra_steps": 2, "batch_size": 8}
    z, _ = published_noise_multipliers(given, facts, PrivacyTarget(5.0, 1e-3))
    assert z.shape == (4, 3)

    def epsilon(multipliers):
        return published_epsilon(multipliers, rounds_per_site=3, delta=1e-3, clipped=True)

    alone = [epsilon(z[:, [site]]) for site in range(3)]
    assert len(set(alone)) == 2
    assert epsilon(z) == max(alone)


def test_a_huge_epsilon_costs_no_more_than_a_small_one():
    found = published_epsilon([[0.005]], rounds_per_site=1, delta=1e-4, clipped=True)
    # For mu = 200: epsilon = mu^2 / 2 + mu * 3.719 to first order (a tail of 1e-4).
    assert found == pytest.approx(200**2 / 2 + 200 * norm.isf(1e-4), rel=1e-3)


def test_the_worst_rounds_of_the_worst_site():
    z = [[3.0, 1.0], [2.0, 9.0], [2.0, 9.0], [5.0, 9.0]]
    # Of two rounds: 1/4 + 1/4 at the first site, 1 + 1/81 at the second.
    assert worst_rounds(z, 2).tolist() == [1.0, 9.0]
    assert worst_rounds(z, 1).tolist() == [1.0]
    assert worst_rounds([[2.0, 1.9], [2.0, 9.0]], 2).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("epsilon", "mu"), [(1, 0.313902), (8, 1.841366), (20, 3.711312)])
def test_golden_values_at_delta_1e_4(epsilon, mu):
    found = published_epsilon([[1 / mu], [50.0]], rounds_per_site=1, delta=1e-4, clipped=True)
    assert found == pytest.approx(epsilon, rel=1e-3)


def test_rounds_compose_as_one_gaussian():
    z = [[1.0], [2.0], [2.0], [4.0]]
    found = published_epsilon(z, rounds_per_site=2, delta=1e-5, clipped=True)
    assert exact_delta(math.sqrt(1.25), found) == pytest.approx(1e-5, rel=0.01)


def test_nothing_clipped_or_no_noise_is_infinite():
    z = [[5.0], [6.0]]
    assert published_epsilon(z, rounds_per_site=2, delta=1e-4, clipped=False) == math.inf
    bare = [[5.0, 5.0], [5.0, 0.0]]
    assert published_epsilon(bare, rounds_per_site=1, delta=1e-4, clipped=True) == math.inf


@pytest.mark.parametrize(
    ("z", "rounds", "message"),
    [
        ([1.0, 2.0], 1, r"must be a matrix of numbers >= 0, got shape \(2,\)"),
        ([[-1.0]], 1, "matrix of numbers >= 0"),
        ([[math.nan]], 1, "matrix of numbers >= 0"),
        ([[1.0]], 2, "rounds_per_site must be from 1 to 1, got 2"),
        ([[1.0]], 0, "rounds_per_site must be from 1 to 1, got 0"),
    ],
)
def test_bad_multipliers_are_named(z, rounds, message):
    with pytest.raises(InvalidInput, match=message):
        worst_rounds(z, rounds)


def test_clipped_steps_reach_no_farther_than_the_stated_sensitivity(rng):
    """Whatever the records are, W_local moves by at most 2 G Q2 / eta; without the clip it does."""
    bound, eta, steps, k, m = 0.7, 3.0, 4, 3, 5
    W = rng.standard_normal((1, k, m))

    def local(scale, clip, sign):
        moved = W
        for _ in range(steps):
            H = np.abs(rng.standard_normal((1, 6, k)))
            X = sign * scale * np.ones((1, 6, m))
            moved = local_centroid_step(
                X, moved, H, np.ones((1, 6), dtype=bool), weight=np.ones(1),
                eta=np.full(1, eta), mu_w=0.0, gradient_bound=clip,
            )  # fmt: skip
        return moved

    limit = 2 * bound * steps / eta
    gaps = [np.linalg.norm(local(s, bound, 1) - local(s, bound, -1)) for s in (0.1, 1, 10, 1e3)]
    assert max(gaps) <= limit * (1 + 1e-12)
    assert max(gaps) > 0.9 * limit  # opposite records come close: the bound is not slack
    assert np.linalg.norm(local(1e3, math.inf, 1) - local(1e3, math.inf, -1)) > limit


# ---- the bound on each record's part of a gradient -------------------------------------------

CLOSEST = {
    **PAPER, "centroid_steps": 5, "batches": "cycling", "batch_gradient": "sum",
    "bound_on": "record",
}  # fmt: skip


def test_the_noise_of_the_closest_reading():
    loss = published_loss(CLOSEST, SITES, TARGET)
    # One z in all rounds, that of q = 1/2; 30 rounds; 10 G / eta, or 6 replaced, or 3 made null.
    z = math.sqrt(2 * math.log(0.625 / 1e-4)) / (20 / (0.25 * math.sqrt(60)))
    for epsilon, reaches in ((loss.stated, 10), (loss.replaced, 6), (loss.null, 3)):
        mu = math.sqrt(30) / (z * 10 / reaches)
        assert exact_delta(mu, epsilon) == pytest.approx(1e-4, rel=0.01)
    found = [loss.stated, loss.replaced, loss.null]
    assert found == pytest.approx([140.97, 62.32, 22.63], abs=0.01)


def test_settings_and_rounds_know_the_same_bounds():
    assert PUBLISHED.settings["bound_on"].limits["choices"] == BOUND_ON


def test_without_a_bound_there_is_no_epsilon():
    loss = published_loss({**CLOSEST, "bound_on": "nothing"}, SITES, TARGET)
    assert {loss.stated, loss.null, loss.replaced} == {math.inf}


@pytest.mark.parametrize(
    ("scaled", "b", "proved"),
    [
        (True, 20, True),
        (True, 19, False),
        (False, 19, True),
        (False, 500, True),
        (False, 501, False),
    ],
)
def test_a_reach_is_known_where_no_step_expands(scaled, b, proved):
    """At a site of 100: weights n_i / b up to 5, and batches with a record up to 5 times."""
    method = Published(
        3, 1, Penalty(), constant_steps=2, batch_size=b, cycling=True, scaled=scaled,
        bound_on="record",
    )  # fmt: skip
    assert math.isfinite(reach(method, np.array([100]), 2)[0]) == proved


def moved_by_a_record(rng, *, n, b, steps, eta_factor=5.0):
    """Return how far a record made null moves a site's W, in units of G / eta, and its places."""
    k, m, G = 2, 3, float(rng.choice([0.01, 0.3, 5.0, 100.0]))
    X, H = rng.normal(size=(n, m)) * 3, rng.random((n, k)) * (rng.random((n, k)) < 0.6)
    H[0] = rng.random(k) + 0.1
    X[0] *= float(rng.choice([1.0, 100.0]))
    eta = eta_factor * np.linalg.eigvalsh(H.T @ H)[-1]
    start, order = rng.normal(size=(k, m)), rng.permutation(n)
    batches = [[int(order[(r * b + place) % n]) for place in range(b)] for r in range(steps)]
    ends = []
    for null in (False, True):
        W = start[None]
        for rows in batches:
            real = np.array([[not (null and j == 0) for j in rows]])
            W = local_centroid_step(
                X[rows][None], W, H[rows][None], real, weight=np.ones(1), eta=np.array([eta]),
                mu_w=0.0, share_bound=G,
            )  # fmt: skip
        ends.append(W)
    return float(np.linalg.norm(ends[0] - ends[1])) * eta / G, sum(r.count(0) for r in batches)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 8),
    b=st.integers(1, 10),
    steps=st.integers(1, 6),
)
def test_a_record_made_null_moves_an_upload_no_farther_than_its_places(seed, n, b, steps):
    method = Published(
        2, 1, Penalty(), constant_steps=steps, batch_size=b, cycling=True, scaled=False,
        bound_on="record",
    )  # fmt: skip
    moved, places = moved_by_a_record(np.random.default_rng(seed), n=n, b=b, steps=steps)
    most = reach(method, np.array([n]), steps)[0] * 2 * steps  # in units of G / eta
    assert places <= most
    assert moved <= places * (1 + 1e-9) + 1e-9


def test_the_bound_is_reached_and_does_not_hold_for_steps_that_expand():
    def worst(**how):
        cases = [moved_by_a_record(np.random.default_rng(seed), **how) for seed in range(300)]
        return max(moved / places for moved, places in cases if places)

    assert 0.9 < worst(n=8, b=2, steps=4) <= 1 + 1e-9
    assert worst(n=8, b=2, steps=4, eta_factor=0.2) > 1.1
