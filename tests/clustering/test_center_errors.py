"""Errors of sizes and centres, against the spread of what comes of the same sums with noise."""

import numpy as np
import pytest

from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.kernels.cluster_sums import mean_errors
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import ReleaseEvent, received
from support.runs import released

MEANS = np.array([[0.3, -0.2], [0.0, 0.5], [-0.6, 0.1]])
COUNTS = np.array([900.0, 300.0, 500.0])


def noisy_rounds(stage, state, value, noise, *, n=2000):
    """Return the state of one exact round, and centres and sizes of many with fresh noise."""
    event = ReleaseEvent(stage.name, 1, 1, int(COUNTS.sum()), noise_std=noise)
    rng = np.random.default_rng(0)
    runs = [
        stage.combine(
            state, received([Upload(value + noise * rng.standard_normal(value.shape))], event), 1
        )
        for _ in range(n)
    ]
    return stage.combine(state, received([Upload(value)], event), 1), runs


def test_errors_of_centres_and_sizes_are_those_of_repeated_noise():
    a = 0.5  # counts and squares are released at half size
    squares = COUNTS * ((MEANS**2).sum(axis=1) + 0.05)
    value = np.column_stack([COUNTS[:, None] * MEANS, a * COUNTS, a * squares])
    stage = Centers(3, bounded=True)
    state = {"centers": MEANS, "best_centers": MEANS, "best_cost": np.asarray(np.inf)}
    exact, runs = noisy_rounds(stage, state, value, 3.0)
    found = np.std([run["best_centers"] for run in runs], axis=0)
    np.testing.assert_allclose(exact["center_errors"], found, rtol=0.05)
    found = np.std([run["sizes"] for run in runs], axis=0)
    np.testing.assert_allclose(exact["size_errors"], found, rtol=0.05)
    np.testing.assert_allclose(exact["sizes"], COUNTS)


@pytest.mark.parametrize("bound", [1.0, 4.0])
def test_errors_of_lloyd_s_centres_are_in_units_of_the_data(bound):
    value = np.column_stack([COUNTS[:, None] * MEANS, COUNTS])
    stage, origin = LloydSums(3, 1), np.array([10.0, -3.0])
    state = {"origin": origin, "bound": np.asarray(bound), "centers": origin + bound * MEANS}
    exact, runs = noisy_rounds(stage, state, value, 3.0)
    found = np.std([run["centers"] for run in runs], axis=0)
    np.testing.assert_allclose(exact["center_errors"], found, rtol=0.05)
    found = np.std([run["sizes"] for run in runs], axis=0)
    np.testing.assert_allclose(exact["size_errors"], found, rtol=0.05)
    np.testing.assert_allclose(exact["sizes"], COUNTS)
    np.testing.assert_allclose(exact["centers"], origin + bound * MEANS)


def test_lengths_have_sizes_with_errors_and_none_of_centres():
    stage, W = Lengths(3), np.eye(3, 2)
    value = np.column_stack([0.4 * COUNTS, COUNTS])
    exact, runs = noisy_rounds(stage, {"W": W}, value, 3.0)
    np.testing.assert_allclose(exact["sizes"], COUNTS)
    found = np.std([run["sizes"] for run in runs], axis=0)
    np.testing.assert_allclose(exact["size_errors"], found, rtol=0.05)
    assert "center_errors" not in exact


def test_a_centre_that_is_no_mean_is_not_known_at_all():
    errors = mean_errors(MEANS, np.array([10.0, 0.0, -4.0]), 2.0, 1.0)
    assert np.isfinite(errors[0]).all()
    assert np.isinf(errors[1:]).all()
    value = np.column_stack([np.zeros((3, 2)), [0.5 * 900, 0.5 * 6.9, -2.0], np.zeros(3)])
    state = {"centers": MEANS, "best_centers": MEANS, "best_cost": np.asarray(np.inf)}
    after = Centers(3, bounded=True, noise_std=3.0).combine(state, released(value), 1)
    assert np.isinf(after["center_errors"]).all(axis=1).tolist() == [False, True, True]
    value = np.column_stack([np.zeros((3, 2)), [900, 6.9, -2.0]])
    state = {"origin": np.zeros(2), "bound": np.asarray(1.0), "centers": MEANS}
    after = LloydSums(3, 1, min_count=7.0).combine(state, released(value), 1)
    assert np.isinf(after["center_errors"]).all(axis=1).tolist() == [False, True, True]


def test_sizes_and_errors_are_of_the_round_whose_centres_are_kept():
    a = 0.5

    def round_of(counts, spread):
        counts = np.asarray(counts)
        squares = counts * (MEANS**2).sum(axis=1) + np.asarray(spread)
        return np.column_stack([counts[:, None] * MEANS, a * counts, a * squares])

    stage = Centers(3, n_rounds=2, refine=True, bounded=True)
    state = {"centers": MEANS, "best_centers": MEANS, "best_cost": np.asarray(np.inf)}
    good = stage.combine(state, released(round_of(COUNTS, [1, 1, 1])), 1)
    worse = stage.combine(good, released(round_of([5.0, 5.0, 5.0], [9, 9, 9])), 2)
    np.testing.assert_allclose(worse["sizes"], COUNTS)
    np.testing.assert_allclose(worse["counts"], [5, 5, 5])
    better = stage.combine(good, released(round_of([600.0, 600.0, 500.0], [0.5, 0.5, 0.5])), 2)
    np.testing.assert_allclose(better["sizes"], [600, 600, 500])


@pytest.mark.parametrize("lost", [1.0, 0.5])
def test_a_round_that_costs_more_by_no_more_than_noise_is_kept(lost):
    """The noise in the difference of two costs, from repeated rounds; some may lose half the sites.

    4,000 differences know their standard deviation to 1.1 %.
    """
    a, noise, stage = 0.5, 2.0, Centers(3, n_rounds=2, refine=True, bounded=True)
    rng, counts = np.random.default_rng(0), COUNTS * lost
    squares = counts * ((MEANS**2).sum(axis=1) + 0.02)
    exact = np.column_stack([counts[:, None] * MEANS, a * counts, a * squares])
    state = {"centers": MEANS, "best_centers": MEANS, "best_cost": np.asarray(np.inf)}

    def cost_of(value):
        event = ReleaseEvent("centres", 1, 1, int(counts.sum()), noise_std=noise)
        return float(stage.combine(state, received([Upload(value)], event), 1)["best_cost"])

    drawn = [cost_of(exact + noise * rng.standard_normal(exact.shape)) for _ in range(4000)]
    std = np.sqrt(2) * np.std(drawn) / lost  # as if all records were there
    kept = {"best_cost": np.asarray(0.02 * COUNTS.sum()), "best_records": np.asarray(COUNTS.sum())}
    for more, is_kept in ((1.8 * std, True), (2.2 * std, False)):
        worse = exact.copy()
        worse[0, -1] += a * more * lost
        event = ReleaseEvent("centres", 2, 2, int(counts.sum()), noise_std=noise)
        known = {**state, **kept, "sizes": COUNTS}
        after = stage.combine(known, received([Upload(worse)], event), 2)
        same = float(after["best_cost"]) == pytest.approx(float(kept["best_cost"]))
        assert same != is_kept


def test_later_rounds_of_centres_count_together():
    """Two rounds of equal noise: their mean has .71 of what one has, and a third round .58."""
    a, noise, k, width = 0.5, 20.0, 300, 12
    rng = np.random.default_rng(0)
    means, counts = 0.2 * rng.standard_normal((k, width)), np.full(k, 500.0)
    squares = counts * ((means**2).sum(axis=1) + 0.1)
    exact = np.column_stack([counts[:, None] * means, a * counts, a * squares])
    stage, found = Centers(k, n_rounds=3, refine=True, bounded=True, noise_std=noise), []
    state = {"centers": np.eye(k, width), "best_centers": means, "best_cost": np.asarray(np.inf)}
    state["directions"] = np.zeros((3, k, width))
    for t in (1, 2, 3):
        value = exact + noise * rng.standard_normal(exact.shape) * [*[1.0] * width, 0.0, 0.0]
        event = ReleaseEvent("centres", t, t, int(counts.sum()), noise_std=noise)
        state = stage.combine(state, received([Upload(value)], event), t)
        found.append(np.sqrt(((state["centers"] - means) ** 2).mean()) * 500 / noise)
    assert found[0] == pytest.approx(1.0, abs=0.05)
    assert 0.65 < found[1] < 0.8
    assert 0.5 < found[2] < found[1]
