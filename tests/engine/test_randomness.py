"""Keyed random numbers: a function of their key alone, uniform, and independent between keys.

Every test is seeded; its false-alarm rate is what it would be for a fresh seed.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfedc.randomness import Randomness

FALSE_ALARM = 1e-6


def grid(n_sites, n_slots):
    """Return the keys of n_sites sites with n_slots records each."""
    sites, slots = np.divmod(np.arange(n_sites * n_slots), n_slots)
    return {"sites": sites, "slots": slots}


def largest_correlation(n, tests=1):
    """Return what |correlation| of n independent pairs exceeds with probability FALSE_ALARM."""
    return stats.norm.isf(FALSE_ALARM / tests / 2) / np.sqrt(n)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=30),
       st.integers(0, 50), st.integers(1, 30))  # fmt: skip
def test_a_record_draws_the_same_alone_and_among_others(keys, t, cut):
    sites, slots = np.array(keys).T
    randomness = Randomness(7)
    together = randomness.uniform("coin", t=t, sites=sites, slots=slots)
    assert together.shape == (len(keys),)
    assert np.all((together >= 0) & (together < 1))
    parts = [
        randomness.uniform("coin", t=t, sites=sites[part], slots=slots[part])
        for part in (slice(None, cut), slice(cut, None))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), together)
    back = randomness.uniform("coin", t=t, sites=sites[::-1], slots=slots[::-1])
    np.testing.assert_array_equal(back[::-1], together)


@pytest.mark.parametrize("shape", [(1, 20_000), (20_000, 1), (200, 100)])
def test_numbers_are_uniform(shape):
    """By Kolmogorov and Smirnov; the same test finds u^1.1."""
    numbers = Randomness(1).uniform("coin", t=3, **grid(*shape))
    assert len(np.unique(numbers)) == len(numbers)
    assert stats.kstest(numbers, "uniform").pvalue > FALSE_ALARM
    assert stats.kstest(numbers**1.1, "uniform").pvalue < FALSE_ALARM


@pytest.mark.parametrize("axis", ["slots", "sites"])
@pytest.mark.parametrize("lag", [1, 2, 64])
def test_neighbouring_records_and_sites_are_independent(axis, lag):
    numbers = Randomness(2).uniform("coin", t=0, **grid(200, 200)).reshape(200, 200)
    if axis == "sites":
        numbers = numbers.T
    pairs = numbers[:, lag:].ravel(), numbers[:, :-lag].ravel()
    limit = largest_correlation(len(pairs[0]))
    for transform in (np.asarray, lambda u: np.abs(u - 0.5)):  # dependence need not be linear
        assert abs(np.corrcoef(*map(transform, pairs))[0, 1]) < limit


def test_rounds_purposes_and_seeds_are_independent():
    keys = grid(100, 100)
    series = [
        Randomness(seed).uniform(purpose, t=t, **keys)
        for seed in (0, 1, 2)
        for purpose in ("coin", "coins", "mini-batch", "membership 0", "membership 1")
        for t in (0, 1, 2, 3)
    ]
    correlations = np.corrcoef(series)[np.triu_indices(len(series), 1)]
    assert np.abs(correlations).max() < largest_correlation(100 * 100, len(correlations))


def test_generators_differ_by_purpose_site_round_and_seed():
    draws = {
        key: Randomness(key[0]).generator(key[1], site=key[2], t=key[3]).random(4).tobytes()
        for key in [
            (seed, purpose, site, t)
            for seed in (0, 1)
            for purpose in ("start", "noise", "noise x")
            for site in range(10)
            for t in range(10)
        ]
    }
    assert len(set(draws.values())) == len(draws) == 600
    again = Randomness(1).generator("noise", site=3, t=4).random(4).tobytes()
    assert again == draws[1, "noise", 3, 4]


def test_generators_of_different_sites_are_independent():
    """Noise of two sites must not cancel or repeat."""
    noise = np.array(
        [
            Randomness(0).generator("noise", site=site, t=1).standard_normal(2000)
            for site in range(40)
        ]
    )
    correlations = np.corrcoef(noise)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < largest_correlation(2000, len(correlations))
    assert stats.kstest(noise.ravel(), "norm").pvalue > FALSE_ALARM
