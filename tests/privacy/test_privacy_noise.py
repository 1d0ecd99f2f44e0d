"""The noise that the gate adds: as large as stated, Gaussian, and never the same twice.

Every check fails on right noise with a rate of at most FALSE_ALARMS a comparison. Every check has
power: it rejects 2/3 and 3/2 of the stated variance, noise of another shape, and what is shared
(the last in test_privacy_planted_bugs.py).
"""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from dpfedc.privacy.sampling import sampled_by_coins
from dpfedc.privacy.sums import SiteValues
from dpfedc.randomness import Randomness
from support.noise_checks import (
    FALSE_ALARMS,
    NOISE,
    are_independent,
    empty_batch,
    entries_are_unrelated,
    gate_of,
    has_std,
    is_gaussian,
    let_out,
    noise_of,
    plan_of,
    rounds_are_unrelated,
    sites_are_unrelated,
    stages_are_unrelated,
    symmetric_noise_is_as_stated,
)
from support.sensitivity import batch_of, exact_release, part_of, released_by
from support.sensitivity_cases import local_steps, plain_case, stage_of

SHAPE = 4000
TRUST = {
    "each site its own": ("local", {}, 6, math.sqrt(6)),
    "one site": ("local", {}, 1, 1.0),
    "the server": ("trusted-server", {}, 6, 1.0),
    "together": ("secure-aggregation", {}, 6, 1.0),
    "two may drop out": ("secure-aggregation", {"min_survivors": 4}, 6, math.sqrt(6 / 4)),
    "two may collude": ("secure-aggregation", {"colluding_sites": 2}, 6, math.sqrt(6 / 4)),
    "both": (
        "secure-aggregation", {"min_survivors": 5, "colluding_sites": 3}, 6, math.sqrt(6 / 2),
    ),
    "fewer than survive": ("secure-aggregation", {"min_survivors": 7}, 2, 1.0),
}  # fmt: skip
"""Trust, assumptions, sites taking part, and the noise of their sum in units of z * S."""


def require_variance(noise, std):
    """Accept the stated variance; reject 2/3 and 3/2 of it."""
    assert has_std(noise, std)
    assert not has_std(noise, std * math.sqrt(2 / 3))
    assert not has_std(noise, std * math.sqrt(3 / 2))


@pytest.mark.parametrize("who", TRUST)
def test_noise_of_a_sum_over_records(who):
    trust, assumed, n_sites, factor = TRUST[who]
    gate = gate_of(plan_of(trust, **assumed))
    noise = noise_of(gate, SHAPE, sites=np.arange(n_sites), sensitivity=2.5)
    std = NOISE["mean"] * 2.5 * factor
    require_variance(noise, std)
    assert is_gaussian(noise, std)
    assert gate.events[-1].noise_std == pytest.approx(std)
    assert gate.events[-1].noise_multiplier == NOISE["mean"]


@pytest.mark.parametrize("who", TRUST)
def test_noise_of_a_sum_over_sites_values(who):
    trust, assumed, n_sites, factor = TRUST[who]
    gate = gate_of(plan_of(trust, **assumed))
    batch = empty_batch(np.arange(n_sites))
    values = SiteValues(np.ones((n_sites, SHAPE)))
    released = let_out(gate, values, batch, stage="factorisation", sensitivity=0.4)
    std = NOISE["factorisation"] * 0.4 * factor
    require_variance(released.value - n_sites, std)
    assert is_gaussian(released.value - n_sites, std)


@pytest.mark.parametrize("who", TRUST)
def test_noise_of_a_symmetric_release(who):
    trust, assumed, n_sites, factor = TRUST[who]
    std = NOISE["subspace"] * factor
    gate = partial(gate_of, plan_of(trust, **assumed))
    assert symmetric_noise_is_as_stated(gate(), std, np.arange(n_sites))
    for wrong in (math.sqrt(2 / 3), math.sqrt(3 / 2)):
        assert not symmetric_noise_is_as_stated(gate(), std * wrong, np.arange(n_sites))


def test_rounding_of_a_second_moment_does_not_leave():
    """Below the diagonal stands a copy, although x x' as computed is symmetric only nearly."""
    case = plain_case(*stage_of("subspace"), n=40, n_features=7, dtype=np.float32)
    contribution, batch, sample = part_of(case)
    crooked = np.triu(np.ones((7, 7), dtype=np.float32)) * 1e-3
    total = contribution.total
    object.__setattr__(contribution, "total", lambda weights: total(weights) + crooked)
    released = let_out(gate_of(plan_of()), contribution, batch, sample, stage="subspace")
    np.testing.assert_array_equal(released.value, released.value.T)


@pytest.mark.parametrize("n_parts", [1, 3])
def test_a_real_stage_gets_the_noise_that_is_stated(n_parts):
    """The factorisation: what leaves less what would leave without noise."""
    case = plain_case(local_steps(40, n_parts, (4, 8), q=1.0), n_features=100)
    gate = gate_of(plan_of("local", n_sites=10))
    gate.sample(batch_of(case), stage="factorisation", t=1, n_parts=n_parts)
    released = released_by(gate, case)
    std = NOISE["factorisation"] * case.bound * math.sqrt(2)
    require_variance(released.value - exact_release(case), std)
    assert gate.events[-1].sensitivity == case.bound


def test_the_checks_have_power():
    rng = np.random.default_rng(0)
    assert not is_gaussian(rng.laplace(scale=1 / math.sqrt(2), size=SHAPE), 1.0)
    assert not is_gaussian(rng.uniform(-math.sqrt(3), math.sqrt(3), SHAPE), 1.0)
    noise = rng.standard_normal(SHAPE)
    assert not are_independent(noise, noise)
    assert not are_independent(noise, 0.1 * noise + rng.standard_normal(SHAPE))


@pytest.mark.parametrize(
    "check",
    [rounds_are_unrelated, sites_are_unrelated, stages_are_unrelated, entries_are_unrelated],
)
@pytest.mark.parametrize("trust", ["local", "secure-aggregation", "trusted-server"])
def test_no_two_noises_have_anything_in_common(check, trust):
    assert check(gate_of(plan_of(trust)))


def test_neighbouring_entries_and_seeds_have_nothing_in_common():
    noise = noise_of(gate_of(plan_of(), seed=0), SHAPE)
    for lag in (1, 2, 3, 64):
        assert are_independent(noise[:-lag], noise[lag:])
    assert are_independent(noise, noise_of(gate_of(plan_of(), seed=1), SHAPE))
    np.testing.assert_array_equal(noise, noise_of(gate_of(plan_of(), seed=0), SHAPE))


def test_noise_has_nothing_in_common_with_coins_and_start():
    randomness = Randomness(0)
    coins = drawn(randomness, 1, np.array([0, SHAPE]), np.array([0]))
    noise = noise_of(gate_of(plan_of()), SHAPE, stage="factorisation", sites=0)
    assert are_independent(noise, stats.norm.ppf(coins))
    assert are_independent(noise, randomness.generator("start").standard_normal(SHAPE))


def drawn(randomness, t, offsets, sites):
    """Return the numbers that the records' coins are made of."""
    slots = np.concatenate([np.arange(n) for n in np.diff(offsets)])
    rows = np.repeat(sites, np.diff(offsets))
    return randomness.uniform("coins factorisation", t=t, sites=rows, slots=slots)


def coins(t, *, q, n_parts=1, sizes=(3000, 1, 999), sites=(4, 0, 7), seed=0):
    """Return the part that each record of three sites is dealt to in round t, or -1."""
    batch = empty_batch(np.array(sites))
    batch.offsets = np.concatenate([[0], np.cumsum(sizes)])
    gate = gate_of(plan_of(q=q), seed)
    return gate.sample(batch, stage="factorisation", t=t, n_parts=n_parts).part


@pytest.mark.parametrize("q", [0.02, 0.3, 0.9])
def test_each_record_is_in_a_round_with_the_stated_probability(q):
    inside = np.stack([coins(t, q=q) >= 0 for t in range(1, 11)])
    n = inside.size
    assert stats.binomtest(int(inside.sum()), n, q).pvalue > FALSE_ALARMS
    assert stats.binomtest(int(inside.sum()), n, 0.8 * q).pvalue < FALSE_ALARMS
    # Over the rounds each record's count is binomial, as that of independent coins is.
    counts = np.bincount(inside.sum(axis=0), minlength=11)
    expected = stats.binom.pmf(np.arange(11), 10, q) * inside.shape[1]
    likely = expected > 5
    seen = [*counts[likely], counts[~likely].sum()]
    wanted = [*expected[likely], expected[~likely].sum()]
    assert stats.chisquare(seen, wanted).pvalue > FALSE_ALARMS


@pytest.mark.parametrize("n_parts", [2, 3, 5])
def test_parts_are_uniform_and_independent_of_the_round_before(n_parts):
    q = 0.4
    rounds = [coins(t, q=q, n_parts=n_parts) for t in range(1, 11)]
    counts = np.bincount(np.concatenate(rounds) + 1, minlength=n_parts + 1)
    share = np.array([1 - q, *[q / n_parts] * n_parts])
    assert stats.chisquare(counts, share * counts.sum()).pvalue > FALSE_ALARMS
    table = np.zeros((n_parts + 1, n_parts + 1))
    for before, after in pairwise(rounds):
        np.add.at(table, (before + 1, after + 1), 1)
    wanted = np.outer(share, share) * table.sum()
    assert stats.chisquare(table.ravel(), wanted.ravel()).pvalue > FALSE_ALARMS


def test_neighbouring_records_and_sites_draw_independent_coins():
    inside = coins(1, q=0.5, sizes=(4000, 4000), sites=(0, 1)) >= 0
    first, second = inside[:4000], inside[4000:]
    assert are_independent(first[:-1], first[1:])
    assert are_independent(first, second)
    assert are_independent(inside, coins(1, q=0.5, sizes=(4000, 4000), sites=(0, 1), seed=1) >= 0)


def test_a_coin_depends_on_its_own_record_and_round_alone():
    """The same number whatever other sites take part, and however long they are."""
    alone = coins(3, q=0.3, n_parts=4, sizes=(50,), sites=(7,))
    among = coins(3, q=0.3, n_parts=4, sizes=(9, 50, 200), sites=(1, 7, 5))
    longer = coins(3, q=0.3, n_parts=4, sizes=(80,), sites=(7,))
    np.testing.assert_array_equal(alone, among[9:59])
    np.testing.assert_array_equal(alone, longer[:50])
    randomness = Randomness(0)
    batch = empty_batch(np.array([7]))
    batch.offsets = np.array([0, 50])
    dealt = sampled_by_coins(batch, 0.3, 4, randomness=randomness, stage="factorisation", t=3)
    numbers = drawn(randomness, 3, np.array([0, 50]), np.array([7]))
    np.testing.assert_array_equal(dealt.in_round, numbers < 0.3)
