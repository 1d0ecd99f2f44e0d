"""Which records are in a round and in which part, against loops over sites and slots."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfedc.clustering.local_steps import largest_batch_ratio
from dpfedc.privacy.sampling import RoundSample, Unused, sampled_by_coins, sampled_by_slot
from dpfedc.randomness import Randomness

site_sizes = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@dataclass(frozen=True)
class Rows:
    """Sites with these numbers and sizes."""

    offsets: np.ndarray
    sites: np.ndarray

    @classmethod
    def of(cls, sizes, sites=None):
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(offsets, np.arange(len(sizes)) if sites is None else np.asarray(sites))


@given(site_sizes, st.integers(1, 6))
def test_records_dealt_by_slot_take_turns(sizes, n_parts):
    sample = sampled_by_slot(Rows.of(sizes), n_parts)
    assert (sample.probability, sample.n_parts, sample.in_round) == (1.0, n_parts, None)
    if n_parts == 1:
        assert sample.part is None
        return
    assert sample.part.tolist() == [slot % n_parts for size in sizes for slot in range(size)]


@given(site_sizes, st.floats(0.01, 0.99), st.integers(1, 6), st.integers(1, 50))
def test_records_dealt_by_coins_are_in_the_part_their_number_says(sizes, q, n_parts, t):
    sites = 3 * np.arange(len(sizes)) + 5
    sample = sampled_by_coins(
        Rows.of(sizes, sites), q, n_parts, randomness=Randomness(1), stage="x", t=t
    )
    expected = []
    for site, size in zip(sites, sizes, strict=True):
        for slot in range(size):
            (draw,) = Randomness(1).uniform("coins x", t=t, sites=[site], slots=[slot])
            inside = [p for p in range(n_parts) if p <= draw * n_parts / q < p + 1]
            assert bool(inside) == (draw < q)
            expected.append(inside[0] if inside else -1)
    assert (sample.probability, sample.n_parts) == (q, n_parts)
    assert sample.part.tolist() == expected
    assert sample.in_round.tolist() == [part >= 0 for part in expected]


def test_parts_are_equally_likely_and_a_share_q_is_in_the_round():
    """False-alarm rate 1e-6; parts of 0.9 and 1.1 times their chance are found."""
    q, n_parts, n = 0.3, 4, 40_000
    sample = sampled_by_coins(Rows.of([n]), q, n_parts, randomness=Randomness(4), stage="x", t=2)
    counts = np.bincount(sample.part + 1, minlength=n_parts + 1)
    chances = np.array([1 - q, *[q / n_parts] * n_parts])
    assert stats.chisquare(counts, n * chances).pvalue > 1e-6
    uneven = chances * np.array([1, 0.9, 1.1, 0.9, 1.1])
    assert stats.chisquare(counts, n * uneven).pvalue < 1e-6


def test_a_record_is_in_the_round_with_probability_one_when_all_are():
    assert RoundSample(1.0, 2, np.array([0, 1, 0])).in_round is None
    assert RoundSample(0.5, 1).in_round is None
    np.testing.assert_array_equal(RoundSample(0.5, 1, np.array([0, -1])).in_round, [True, False])


def test_stages_do_not_use_up_each_others_dealings():
    unused, rows = Unused(), Rows.of([2, 3])
    dealings = {stage: RoundSample(0.5, 1, np.zeros(5, dtype=np.int64)) for stage in ("x", "y")}
    for t, (stage, sample) in enumerate(dealings.items(), start=1):
        unused.keep(sample, rows, stage=stage, t=t)
    assert not unused.take(dealings["x"], rows, stage="y", t=2)
    assert unused.take(dealings["x"], rows, stage="x", t=1)
    assert not unused.take(dealings["x"], rows, stage="x", t=1)
    assert unused.take(dealings["y"], rows, stage="y", t=2)


@given(site_sizes, st.integers(0, 12), st.integers(1, 9))
def test_the_batch_ratio_is_the_largest_that_dealing_by_slot_makes(sizes, extra_steps, n_rounds):
    ratio = largest_batch_ratio(
        np.array(sizes), extra_steps, n_rounds, probability=1.0, failure=1e-9
    )
    seen = [1.0]
    for t in range(1, n_rounds + 1):
        n_parts = extra_steps // t + 1
        if n_parts == 1:
            continue
        for size in sizes:
            part = sampled_by_slot(Rows.of([size]), n_parts).part
            seen.append(np.bincount(part).max() / (size / n_parts))
    assert ratio == pytest.approx(max(seen))


def tail(most, n, chance):
    """Pr[Bin(n, chance) > most], term by term."""
    return math.fsum(
        math.comb(n, b) * chance**b * (1 - chance) ** (n - b) for b in range(most + 1, n + 1)
    )


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("sizes", "extra_steps", "n_rounds"), [([40], 3, 5), ([1, 7, 60], 5, 3)])
def test_the_batch_ratio_of_coins_is_the_least_that_fails_rarely_enough(
    sizes, extra_steps, n_rounds, q
):
    failure = 1e-4
    parts_of_rounds = [extra_steps // t + 1 for t in range(1, n_rounds + 1)]
    n_parts = sum(parts_of_rounds)
    ratios = []
    for Q2 in {parts for parts in parts_of_rounds if parts > 1}:
        for n in sizes:
            most = next(b for b in range(1, n + 1) if n_parts * tail(b, n - 1, q / Q2) <= failure)
            ratios.append(most / (q * n / Q2))
    ratio = largest_batch_ratio(
        np.array(sizes), extra_steps, n_rounds, probability=q, failure=failure
    )
    assert ratio == pytest.approx(max(ratios))


def test_without_extra_steps_there_are_no_parts():
    for q in (0.5, 1.0):
        assert largest_batch_ratio(np.array([3, 9]), 0, 20, probability=q, failure=1e-9) == 1.0


def test_parts_dealt_by_coins_exceed_the_ratio_as_rarely_as_stated():
    """With failure 0.2 at most a fifth of the runs may: 65 of 200 have a chance below 1e-4."""
    n, q, extra_steps, n_rounds = 40, 0.5, 3, 3
    ratio = largest_batch_ratio(np.array([n]), extra_steps, n_rounds, probability=q, failure=0.2)
    failed = 0
    for seed in range(200):
        worst = 0.0
        for t in range(1, n_rounds + 1):
            Q2 = extra_steps // t + 1
            sample = sampled_by_coins(
                Rows.of([n]), q, Q2, randomness=Randomness(seed), stage="x", t=t
            )
            if Q2 > 1:
                sizes = np.bincount(sample.part[sample.in_round], minlength=Q2)
                worst = max(worst, sizes.max() / (q * n / Q2))
        failed += worst > ratio + 1e-12
    assert 0 < failed < 65


def test_what_was_drawn_cannot_be_changed():
    sample = RoundSample(0.5, 1, np.array([0, -1, 0]))
    with pytest.raises(ValueError, match="read-only"):
        sample.part[1] = 0
