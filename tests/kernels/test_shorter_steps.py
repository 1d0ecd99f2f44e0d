"""Steps less what noise makes of them: against a loop, and in mean squared error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.kernels.shorter_steps import MOST_CUT, shortened


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([np.float32, np.float64]))
def test_a_step_is_shortened_by_what_noise_adds_to_its_length(seed, n_noisy, dtype):
    rng = np.random.default_rng(seed)
    steps, noise = rng.normal(size=(5, 9)), rng.exponential(0.5, 5)
    steps[0] = 0.0
    steps, noise = steps.astype(dtype), noise.astype(dtype)
    found = shortened(steps, noise, n_noisy)
    for step, std, less in zip(steps, noise, found, strict=True):
        part = min(max(n_noisy - 2, 0) * std**2 / max(sum(step**2), 1e-30), 1)
        for entry, kept in zip(step, less, strict=True):
            cut = min(abs(part * entry), MOST_CUT * std)
            assert kept == pytest.approx(entry - np.sign(entry) * cut, abs=1e-5)
    np.testing.assert_array_equal(shortened(steps, noise * 0, 9), steps)


@pytest.mark.parametrize("length", [0.0, 1.0, 3.0, 30.0])
def test_shortened_steps_are_nearer_to_the_true_one_however_long_it_is(length):
    """Mean squared errors of 20,000 draws; 12 without shortening, and 2 for a step of nothing.

    The limit on what is cut from an entry gives some of that away. The standard error of a mean is
    below .05, so false alarms are below 1e-6.
    """
    rng, truth = np.random.default_rng(0), np.zeros(12)
    truth[:3] = length / np.sqrt(3)
    steps = truth + rng.standard_normal((20_000, 12))
    kept = shortened(steps, np.ones(len(steps)), 12)
    plain, error = (((found - truth) ** 2).sum(axis=1).mean() for found in (steps, kept))
    assert plain == pytest.approx(12, abs=0.3)
    assert error < 12.1 if length == 30 else error < plain - 0.5
    if length == 0:
        assert error < 4


def test_an_entry_that_differs_from_all_others_is_cut_by_no_more_than_its_noise():
    """Without the limit the mean would be half of it, and no interval would hold it."""
    rng, truth = np.random.default_rng(0), np.zeros(50)
    truth[7] = np.sqrt(50)
    steps = truth + rng.standard_normal((20_000, 50))
    errors = shortened(steps, np.ones(len(steps)), 50)[:, 7] - truth[7]
    assert -MOST_CUT - 0.05 < errors.mean() < 0
    assert (np.abs(errors) < 1.96).mean() > 0.8
