"""Epsilon: from events, by three routes that must agree, and noise for an epsilon and back."""

import math
from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from dpfedc.clustering.local_steps import largest_batch_ratio
from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import (
    accountant_name,
    dp_event,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    guarantee,
    plan_epsilon,
    pld_epsilon,
    rdp_epsilon,
    releases_epsilon,
)
from dpfedc.privacy.calibration import StageBudget, calibrated_plan, calibrated_releases
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from support.noise_checks import plan_of

GOLDEN = {1: 0.313902, 2: 0.576585, 4: 1.043061, 8: 1.841366, 20: 3.711312}
"""At delta 1e-4: epsilon and the mu of the single Gaussian release that has it."""
GRID_ERROR = 2e-3
"""What rounding losses up to a grid of 1e-3 may add to epsilon, relative and absolute."""

epsilons = st.floats(0.05, 20)
deltas = st.floats(1e-9, 1e-2)


def gaussian(z, rounds=1, q=1.0, stage="mean"):
    return PlannedRelease(stage, rounds, 1, rounds, z, q)


def integrated_delta(mu, epsilon):
    """Return the integral of (p - e^epsilon q)^+ for the densities p, q of N(mu, 1) and N(0, 1)."""

    def excess(x):
        return max(stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x), 0.0)

    start = epsilon / mu + mu / 2  # where p = e^epsilon q
    return integrate.quad(excess, start, start + 40, points=[mu], epsabs=1e-15, limit=200)[0]


@pytest.mark.parametrize(("epsilon", "mu"), GOLDEN.items())
def test_golden_values(epsilon, mu):
    assert gaussian_mu(epsilon, 1e-4) == pytest.approx(mu, abs=5e-7)
    assert gaussian_epsilon(mu, 1e-4) == pytest.approx(epsilon, rel=1e-5)
    assert releases_epsilon((gaussian(1 / mu),), 1e-4) == pytest.approx(epsilon, rel=GRID_ERROR)


@pytest.mark.parametrize("mu", [0.1, 0.7, 1.5, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 9.0])
def test_the_delta_of_a_gaussian_is_the_integral_that_defines_it(mu, epsilon):
    exact = gaussian_delta(mu, epsilon)
    assert exact == pytest.approx(integrated_delta(mu, epsilon), rel=1e-6, abs=1e-13)


@given(epsilons, deltas)
def test_mu_and_epsilon_are_each_others_inverse(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 50.0, 1e3, 1e6])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-3])
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_the_closed_form_is_that_of_dp_accounting(epsilon, delta):
    theirs = pytest.importorskip("dp_accounting.gaussian_mechanism")
    mu = gaussian_mu(epsilon, delta)
    assert mu == pytest.approx(1 / theirs.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    assert gaussian_epsilon(mu, delta) == pytest.approx(
        theirs.get_epsilon_gaussian(1 / mu, delta), rel=1e-9
    )


@given(st.floats(1e-7, 1e-2), st.floats(1e-13, 1e-6))
def test_very_small_targets_have_a_mu_too(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert 0 < mu < 1
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-2)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1, 1)])
def test_targets_that_mean_nothing_are_refused(epsilon, delta):
    with pytest.raises(InvalidInput, match="must be"):
        gaussian_mu(epsilon, delta)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.floats(0.8, 30), st.integers(1, 20)), min_size=1, max_size=4), deltas)
def test_closed_form_pld_and_rdp_come_in_that_order(rows, delta):
    """Without sampling the closed form is exact; PLD rounds up a little, RDP a lot."""
    event = dp_event(gaussian(z, rounds) for z, rounds in rows)
    exact = gaussian_epsilon(math.sqrt(sum(rounds / z**2 for z, rounds in rows)), delta)
    by_pld = pld_epsilon(event, delta)
    assert exact <= by_pld + 1e-9
    assert by_pld <= exact * (1 + GRID_ERROR) + GRID_ERROR
    assert by_pld <= rdp_epsilon(event, delta) + GRID_ERROR


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("z", [0.8, 3.0])
def test_sampling_helps_and_rdp_confirms_it(q, z):
    event = dp_event([gaussian(z, 20, q), gaussian(5.0, stage="scale")])
    whole = dp_event([gaussian(z, 20), gaussian(5.0, stage="scale")])
    by_pld = pld_epsilon(event, 1e-5)
    assert by_pld < pld_epsilon(whole, 1e-5)
    assert by_pld <= rdp_epsilon(event, 1e-5) * (1 + GRID_ERROR)


def test_one_sampled_release_is_the_integral_that_defines_it():
    """Zero-out: N(0, z) against (1-q) N(0, z) + q N(1, z), whichever way round is worse."""
    q, z, epsilon = 0.3, 0.7, 1.0
    x = np.linspace(-12, 13, 400_001)
    p = (1 - q) * stats.norm.pdf(x, 0, z) + q * stats.norm.pdf(x, 1, z)
    null = stats.norm.pdf(x, 0, z)
    deltas = [np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, null), (null, p))]
    delta = max(deltas) * (x[1] - x[0])
    assert releases_epsilon((gaussian(z, 1, q),), delta) == pytest.approx(epsilon, abs=2e-3)


@settings(max_examples=6)
@given(st.floats(1.0, 20), st.integers(1, 30), st.sampled_from([1.0, 0.5]))
def test_epsilon_grows_with_rounds_and_falls_with_noise(z, rounds, q):
    epsilon = releases_epsilon((gaussian(z, rounds, q),), 1e-5)
    assert releases_epsilon((gaussian(z, rounds + 5, q),), 1e-5) > epsilon
    assert releases_epsilon((gaussian(z * 1.2, rounds, q),), 1e-5) < epsilon
    assert releases_epsilon((gaussian(z, rounds, q), gaussian(9.0)), 1e-5) > epsilon
    assert releases_epsilon((gaussian(z, rounds, q),), 1e-6) > epsilon


@st.composite
def budgets(draw, q=1.0):
    n_stages, n_sites = draw(st.integers(1, 4)), draw(st.integers(1, 50))
    shares = np.array(draw(st.lists(st.floats(0.02, 1), min_size=n_stages, max_size=n_stages)))
    shares = (shares / shares.sum()).tolist()
    rounds = draw(st.lists(st.integers(1, 60), min_size=n_stages, max_size=n_stages))
    stages = [StageBudget(f"stage {i}", r, n_sites, r, shares[i]) for i, r in enumerate(rounds)]
    return (*stages[:-1], replace(stages[-1], sampling_probability=q))


def require_tight(releases, epsilon, delta, loss):
    """The target is met, and with less noise it would not be."""
    assert releases_epsilon(releases, delta) <= epsilon
    less = tuple(replace(r, noise_multiplier=r.noise_multiplier * (1 - loss)) for r in releases)
    assert releases_epsilon(less, delta) > epsilon


@settings(max_examples=12)
@given(budgets(), epsilons, deltas)
def test_calibration_never_overshoots_and_wastes_little(stages, epsilon, delta):
    releases = calibrated_releases(stages, epsilon, delta)
    require_tight(releases, epsilon, delta, 0.01)
    total = sum(r.rounds_per_site / r.noise_multiplier**2 for r in releases)
    for stage, release in zip(stages, releases, strict=True):
        assert release.stage == stage.stage
        spent = release.rounds_per_site / release.noise_multiplier**2
        assert spent / total == pytest.approx(stage.share)  # each stage gets its own share


@settings(max_examples=3)
@given(st.sampled_from([0.9, 0.5, 0.1]).flatmap(budgets), st.floats(0.3, 8))
def test_calibration_with_sampling_never_overshoots_either(stages, epsilon):
    releases = calibrated_releases(stages, epsilon, 1e-5)
    require_tight(releases, epsilon, 1e-5, 0.01)
    whole = calibrated_releases((*stages[:-1], replace(stages[-1], sampling_probability=1.0)),
                                epsilon, 1e-5)  # fmt: skip
    assert releases[-1].noise_multiplier < whole[-1].noise_multiplier


def test_records_sampled_less_often_than_delta_still_get_noise():
    releases = calibrated_releases((StageBudget("rounds", 1, 1, 1, 1.0, 1e-7),), 1.0, 1e-5)
    assert releases_epsilon(releases, 1e-5) <= 1.0
    assert releases[0].noise_multiplier > 0.1


@pytest.mark.parametrize("shares", [(0.5, 0.6), (0.5, 0.4), (1.5, -0.5), (1.0, 0.0)])
def test_shares_that_do_not_add_up_are_refused(shares):
    stages = tuple(StageBudget(f"stage {i}", 1, 1, 1, share) for i, share in enumerate(shares))
    with pytest.raises(InvalidInput, match="budget shares must be > 0 and sum to 1"):
        calibrated_releases(stages, 1.0, 1e-5)


def test_two_sampled_stages_are_refused():
    stages = tuple(StageBudget(f"stage {i}", 1, 1, 1, 0.5, 0.5) for i in range(2))
    with pytest.raises(InvalidInput, match="at most one stage may sample its records, got 2"):
        calibrated_releases(stages, 1.0, 1e-5)


def test_delta_set_aside_is_not_spent_twice():
    about = {"trust": "local", "n_sites": 3, "epsilon": 1.0, "delta": 1e-4}
    stages = (StageBudget("mean", 1, 3, 1, 1.0),)
    plan = calibrated_plan(stages, spare_delta=5e-5, **about)
    assert plan_epsilon(plan) == releases_epsilon(plan.releases, 5e-5) <= 1
    noise = plan.releases[0].noise_multiplier
    assert noise == pytest.approx(1 / gaussian_mu(1.0, 5e-5), rel=1e-3)
    assert noise > calibrated_plan(stages, **about).releases[0].noise_multiplier
    assert plan_epsilon(plan, 5e-5) == plan_epsilon(plan, 1e-6) == math.inf


def test_the_guarantee_follows_from_its_event():
    plan = plan_of("secure-aggregation", rounds=3, q=0.5, min_survivors=6, colluding_sites=2)
    promise = guarantee(plan, "stamp")
    assert promise.epsilon == plan_epsilon(plan)
    finer = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    finer.compose(promise.event)
    assert finer.get_epsilon(1e-5) <= promise.epsilon
    assert finer.get_epsilon(1e-5) == pytest.approx(promise.epsilon, rel=GRID_ERROR)
    same = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3)
    same.compose(promise.event)
    assert same.get_epsilon(1e-5) == pytest.approx(promise.epsilon, rel=1e-9)
    assert (promise.unit, promise.relation) == ("record", "zero-out")
    assert (promise.delta, promise.trust, promise.stamp) == (1e-5, "secure-aggregation", "stamp")
    assert (promise.min_survivors, promise.colluding_sites) == (6, 2)
    assert promise.accountant == accountant_name()
    assert "dp-accounting" in promise.accountant
    assert promise.rounds_per_site == {r.stage: 3 for r in plan.releases}
    assert "event" not in promise.as_plain()


def test_epsilon_against_all_other_sites_together():
    """Only the site's own share of the noise is left: z / sqrt(K_min - c)."""
    plan = plan_of("secure-aggregation", rounds=3, q=0.5, min_survivors=6, colluding_sites=2)
    alone = tuple(
        replace(r, noise_multiplier=r.noise_multiplier / math.sqrt(6 - 2), sampling_probability=1.0)
        for r in plan.releases
    )
    epsilon = guarantee(plan, None).epsilon_if_others_collude
    assert epsilon == pytest.approx(releases_epsilon(alone, 1e-5), rel=GRID_ERROR)
    assert epsilon > guarantee(plan, None).epsilon
    for trust in ("local", "trusted-server"):
        promise = guarantee(plan_of(trust, rounds=3), None)
        assert promise.epsilon_if_others_collude == promise.epsilon


@pytest.mark.parametrize("q", [1.0, 0.3])
@pytest.mark.parametrize("extra_steps", [1, 4])
def test_parts_are_almost_never_larger_than_the_step_size_allows_for(q, extra_steps):
    """All parts' Pr[Bin(n_i - 1, q / Q2) > b_max] together are at most what is set aside."""
    sizes, rounds, failure = np.array([1, 7, 40, 41, 1000]), 30, 1e-6
    ratio = largest_batch_ratio(sizes, extra_steps, rounds, probability=q, failure=failure)
    for n in sizes.tolist():
        beta = 0.0
        for parts in [extra_steps // t + 1 for t in range(1, rounds + 1)]:
            most = math.floor(ratio * q * n / parts + 1e-9)
            if parts > 1 and q == 1:
                assert -(-n // parts) <= most
            elif parts > 1:
                beta += parts * float(stats.binom.sf(most, n - 1, q / parts))
        assert beta <= failure


def test_a_plan_without_releases_promises_epsilon_zero():
    assert plan_epsilon(PrivacyPlan((), 1e-5, "local", 1)) == 0
