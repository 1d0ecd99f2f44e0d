"""Balanced participation: exactly K sites a round, and no site more often than it must be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfedc.errors import InvalidInput
from dpfedc.privacy.schedule import most_rounds_of_a_site, schedule


def rounds_of(n_sites, sites_per_round, n_rounds, seed=0):
    rng = np.random.default_rng(seed)
    return list(schedule(n_sites, sites_per_round, n_rounds, rng=rng))


@st.composite
def federations(draw):
    n_sites = draw(st.integers(1, 40))
    return n_sites, draw(st.integers(1, n_sites)), draw(st.integers(1, 60))


@given(federations(), st.integers(0, 2**32 - 1))
def test_every_round_has_k_distinct_sites_and_all_sites_are_used_alike(federation, seed):
    n_sites, k, n_rounds = federation
    rounds = rounds_of(n_sites, k, n_rounds, seed)
    assert len(rounds) == n_rounds
    used = np.zeros(n_sites, dtype=int)
    for t, cohort in enumerate(rounds, start=1):
        assert cohort.dtype == np.int64
        assert len(cohort) == k
        assert np.all(np.diff(cohort) > 0)  # sorted, and so distinct
        assert cohort[0] >= 0
        assert cohort[-1] < n_sites
        used[cohort] += 1
        assert used.max() - used.min() <= 1
        assert used.max() <= most_rounds_of_a_site(n_sites, k, t)


@given(federations())
def test_most_rounds_is_the_rounded_up_share(federation):
    n_sites, k, n_rounds = federation
    assert most_rounds_of_a_site(n_sites, k, n_rounds) == math.ceil(n_rounds * k / n_sites)
    # It is reached: the total R K does not fit into fewer rounds per site.
    used = np.bincount(np.concatenate(rounds_of(n_sites, k, n_rounds)), minlength=n_sites)
    assert used.max() == most_rounds_of_a_site(n_sites, k, n_rounds)


def test_a_schedule_is_a_function_of_its_generator():
    first, again, other = (rounds_of(20, 7, 30, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_longer_run_starts_like_a_shorter_one():
    np.testing.assert_array_equal(rounds_of(20, 7, 30, 5)[:11], rounds_of(20, 7, 11, 5))


@pytest.mark.parametrize(("k", "got"), [(6, "got 6"), (0, "got 0"), (2.0, "got 2.0")])
def test_more_sites_than_there_are_is_refused(k, got):
    with pytest.raises(InvalidInput, match="sites_per_round must be .*from 1 to 5.*" + got):
        rounds_of(5, k, 1)


def test_a_bad_schedule_is_refused_when_it_is_made():
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="sites_per_round must be from 1 to 5, got 6"):
        schedule(5, 6, 1, rng=rng)
    with pytest.raises(InvalidInput, match="n_rounds must be >= 1, got 0"):
        schedule(5, 2, 0, rng=rng)


def uniformity(counts, n_draws, k):
    """Return the p-value of the counts if every K-subset of the sites is equally likely.

    The counts then have covariance M p (1-p) N/(N-1) (I - 11'/N), with p = K/N and M draws.
    """
    n = len(counts)
    p = k / n
    square = ((counts - n_draws * p) ** 2).sum() / (n_draws * p * (1 - p) * n / (n - 1))
    return stats.chi2.sf(square, n - 1)


def test_all_sites_are_equally_likely_in_every_round():
    """False-alarm rate 1e-6 a round; a site favoured by a half is found."""
    n, k, draws = 10, 3, 4000
    runs = np.array([rounds_of(n, k, 5, seed) for seed in range(draws)])
    for t in range(5):  # round 4 straddles two decks
        counts = np.bincount(runs[:, t].ravel(), minlength=n)
        assert uniformity(counts, draws, k) > 1e-6
    rng = np.random.default_rng(0)
    weights = np.where(np.arange(n) == 4, 1.5, 1.0) / (n + 0.5)
    unfair = [rng.choice(n, k, replace=False, p=weights) for _ in range(draws)]
    assert uniformity(np.bincount(np.ravel(unfair), minlength=n), draws, k) < 1e-6
