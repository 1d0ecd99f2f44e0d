"""Residual sums and cells: what the server makes of them, and that single precision is enough."""

import numpy as np
import pytest

from dpfedc.clustering.merged_cells import split
from dpfedc.clustering.record_cells import Cells
from dpfedc.clustering.residual_lloyd import (
    MAX_RESIDUAL,
    ClusterSums,
    ResidualLloyd,
    residual_bounds,
)
from dpfedc.clustering.stage import Public
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import ReleaseEvent, received
from dpfedc.privacy.sums import summed
from dpfedc.randomness import Randomness
from support.sensitivity import Case, batch_of, dealing_of, movement


def tight_clusters(n, dtype, bound):
    """Return records close to three centres that are far from each other, and their state."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 5))
    centers *= 0.7 / np.linalg.norm(centers, axis=1, keepdims=True)
    X = centers[rng.integers(0, 3, n)] + bound * rng.normal(size=(n, 5))
    state = {"data_mean": np.zeros(5), "scale": np.ones(()), "centers": centers}
    state["residual_bounds"] = np.full(3, bound)
    return X.astype(dtype), {name: np.asarray(v, dtype) for name, v in state.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_record_moves_sums_of_short_residuals_by_no_more_than_stated(dtype):
    """The centres are a thousand times as long as what is summed."""
    X, state = tight_clusters(300_000, dtype, 1e-3)
    case = Case(ResidualLloyd(3, 1, plain=True), state, X, (100_000, 200_000), 1)
    assert max(movement(case, j) for j in (0, 7, 20_000)) <= 1 + 1e-3


@pytest.mark.parametrize("longest", [1.0, 2.0])
def test_sums_are_those_of_a_loop(longest):
    X, state = tight_clusters(200, np.float64, 0.1)
    X[::5] *= 4
    state["residual_bounds"] = np.array([0.05, 0.1, 0.2])
    case = Case(ResidualLloyd(3, 1, plain=True, longest=longest), state, X, (200,), 1)
    batch = batch_of(case)
    part = case.stage.local(batch, state, 1, dealing_of(case, batch), None)
    found = summed((part, batch, dealing_of(case, batch)), case.stage.sensitivity(state, 1))
    expected = np.zeros((3, 7))
    for record in X:
        x = record / max(1.0, np.linalg.norm(record) / longest)
        gaps = ((x - state["centers"]) ** 2).sum(axis=1)
        nearest, length = gaps.argmin(), np.sqrt(gaps.min())
        bound = state["residual_bounds"][nearest]
        residual = (x - state["centers"][nearest]) / max(bound, length)
        square = min(length / bound, 1.0) ** 2
        expected[nearest] += np.concatenate([residual, [0.5, 0.5 * square]])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_halves_of_a_cell_share_its_weight_and_lie_apart():
    cells, weights = np.zeros((8, 1)), np.array([64.0, 0, 0, 0, 0, 0, 0, 0])
    spread = np.array([64.0, 0, 0, 0, 0, 0, 0, 0])
    found, shares = split(cells, weights, spread, np.ones((8, 1)))
    assert shares.sum() == pytest.approx(64)
    assert (shares > 0).all()
    assert len(np.unique(found.round(9))) == 8  # in one dimension, too


def test_the_bound_on_residuals_stays_in_the_range_that_sites_accept():
    stage = ResidualLloyd(3, 1, plain=True)
    entry = stage.starts({}, 4)["residual_bounds"]
    for square in (-1.0, 0.0, 1e-9, 0.01, 1e9):
        for factor in (3.0, 8.0):
            assert entry.within(residual_bounds(np.full(3, square), factor), {})
    assert not entry.within(np.array([0.1, 0.1, 2 * MAX_RESIDUAL]), {})


def found_in(counts, mean_squares, noise):
    """Return what a round says of clusters of these sizes and widths, without the noise itself."""
    counts = np.asarray(counts, dtype=float)
    squares = counts * np.asarray(mean_squares)
    return ClusterSums(np.zeros((len(counts), 4)), counts, squares, noise, np.ones(len(counts)), 4)


def test_a_wide_cluster_gets_a_wide_bound_if_it_can_be_told_from_noise():
    widths = [0.001, 0.001, 0.009]
    for noise in (0.0, 0.01):
        found = found_in([5000, 5000, 1000], widths, noise)
        bounds = found.next_bounds(found.mean_squares)
        assert bounds[0] == pytest.approx(bounds[1])
        assert bounds[2] / bounds[0] == pytest.approx(3, rel=0.1)
    # Of one record nothing can be told: it is taken for a cluster like the others.
    few = found_in([5000, 5000, 1], widths, 100.0).mean_squares
    alike = found_in([5000, 5000, 1], [0.001, 0.001, 0.001], 100.0).mean_squares
    np.testing.assert_allclose(few, alike, rtol=0.01)


def test_noise_does_not_make_clusters_look_as_if_they_had_no_width():
    """Where it hides all squares, a bound of next to nothing would hold centres where they are."""
    rng, counts, true, noise = np.random.default_rng(0), np.array([80, 65, 50]), 0.02, 2.0
    too_narrow = 0
    for _ in range(1000):
        sums, squares = np.zeros((3, 2)), counts * true + 2 * noise * rng.standard_normal(3)
        found = ClusterSums(sums, counts, squares, noise, np.ones(3), 2)
        too_narrow += (found.mean_squares < true).sum()
        assert found.mean_squares.min() > true / 4
    assert too_narrow < 3000 * 0.05


def test_a_cluster_that_was_clipped_as_a_whole_gets_room_to_move_out():
    """Clipped to one scale it looked small; its records are up to a scale farther out."""
    state = {
        "data_mean": np.zeros(2),
        "scale": np.asarray(1.0),
        "centers": np.array([[0.7, 0.7], [0.3, 0.0]]),
        "mean_squares": np.array([0.001, 0.001]),
        "residual_bounds": np.array([0.1, 0.1]),
    }
    public = Public(2, np.array([100]), np.asarray)
    for longest, expected in ((2.0, [1.0, 0.1]), (1.0, [0.1, 0.1])):
        stage = ResidualLloyd(2, 1, plain=True, longest=longest)
        told = stage.start(state, public, Randomness(0))
        np.testing.assert_allclose(told["residual_bounds"], expected, atol=0.01)


def test_residuals_are_clipped_less_where_noise_is_low():
    squares = np.full(2, 0.01)
    low, high = (found_in([500, 500], squares, noise).next_bounds(squares) for noise in (0.1, 50.0))
    np.testing.assert_allclose(high, 0.3)
    np.testing.assert_allclose(low, 0.8)


def errors_after(rounds, *, width, dropped=0, noise=40.0):
    """Return how far centres are from the means of 400 clusters, and what one round would leave.

    Every round releases sums of residuals with fresh noise; records keep their cluster.
    """
    rng, k, a = np.random.default_rng(0), 400, 0.5
    means = 0.3 * rng.standard_normal((k, width))
    means[:, width - dropped :] = 0.0
    counts, stage = np.full(k, 1000.0), ResidualLloyd(k, rounds)
    state, bound = {"centers": np.zeros((k, width))}, 0.5
    state["variances"] = np.where(np.arange(width) < width - dropped, 1.0, 0.0)
    for t in range(1, rounds + 1):
        state["residual_bounds"] = np.full(k, bound)
        sums = counts[:, None] * (means - state["centers"]) / bound
        value = np.column_stack([sums, a * counts, a * counts * 0.04 / bound**2])
        value[:, :width] += noise * rng.standard_normal((k, width))
        event = ReleaseEvent(stage.name, t, t, int(counts.sum()), noise_std=noise)
        state = stage.combine(state, received([Upload(value)], event), t)
    found = np.sqrt(((state["centers"] - means)[:, : width - dropped] ** 2).mean())
    return found, noise * bound / 1000, state


@pytest.mark.parametrize("dropped", [0, 6])
def test_rounds_count_together_where_noise_is_what_moves_a_centre(dropped):
    """Three rounds of equal noise: their mean has 1/sqrt(3) = .58 of it. One round alone has 1."""
    found, one_round, state = errors_after(3, width=16, dropped=dropped)
    assert 0.5 < found / one_round < 0.75
    assert not state["centers"][:, 16 - dropped :].any()  # where nothing is but noise
    first, one_round, _ = errors_after(1, width=16, dropped=dropped)
    assert first / one_round == pytest.approx(1.0, abs=0.05)  # a step that stands out is kept


def test_a_centre_of_two_columns_is_the_mean_of_its_last_round():
    found, one_round, _ = errors_after(3, width=2)
    assert found / one_round == pytest.approx(1.0, abs=0.1)


def test_cells_that_noise_has_moved_count_less():
    """A cell of few records that lies far out would be taken for a cluster of its own."""
    k, width, noise, counts = 5, 4, 10.0, np.array([1000.0, 1000, 1000, 1000, 40])
    state = {"centers": np.zeros((k, width)), "residual_bounds": np.ones(k)}
    value = np.column_stack([np.zeros((k, width)), 0.5 * counts, 0.5 * counts * 0.09])
    event = ReleaseEvent("cells", 1, 1, int(counts.sum()), noise_std=noise)
    for weighed in (False, True):
        stage = Cells(k, 1, weighed=weighed)
        found = stage.combine(state, received([Upload(value)], event), 1)
        if not weighed:
            np.testing.assert_allclose(found["cell_weights"], counts)
            continue
        # Noise has moved a mean by so much, squared; records lie .09 from it, and half is 1/2.
        moved = width * (noise / counts) ** 2
        np.testing.assert_allclose(found["cell_weights"] / counts, 0.09 / (0.09 + moved), rtol=1e-6)
        assert found["cell_weights"][-1] < 0.3 * counts[-1]


@pytest.mark.parametrize("spread", [0.0, 1e-9])
def test_cells_of_one_value_each_count_in_full(spread):
    """Without noise nothing has moved them, however little their records lie around."""
    counts, width = np.array([250.0, 120, 30]), 4
    state = {"centers": np.zeros((3, width)), "residual_bounds": np.ones(3)}
    value = np.column_stack([np.zeros((3, width)), 0.5 * counts, 0.5 * counts * spread**2])
    event = ReleaseEvent("cells", 1, 1, int(counts.sum()), noise_std=0.0)
    found = Cells(3, 1, weighed=True).combine(state, received([Upload(value)], event), 1)
    np.testing.assert_allclose(found["cell_weights"], counts)


def test_by_place_a_record_counts_for_the_cluster_of_the_nearest_place():
    """Against a loop: its residual is that from the cluster's centre, which need not be nearest."""
    X, state = tight_clusters(200, np.float64, 0.1)
    rng = np.random.default_rng(1)
    state["places"] = 0.5 * rng.normal(size=(7, 5))
    state["place_clusters"] = np.array([0.0, 1, 2, 2, 1, 0, 0])
    stage = ResidualLloyd(3, 1, plain=True, n_places=7)
    case = Case(stage, state, X, (200,), 1)
    batch = batch_of(case)
    found = summed(
        (
            stage.local(batch, state, 1, dealing_of(case, batch), None),
            batch,
            dealing_of(case, batch),
        ),
        stage.sensitivity(state, 1),
    )
    expected, elsewhere = np.zeros((3, 7)), 0
    for record in X:
        x = record / max(1.0, np.linalg.norm(record))
        cluster = int(state["place_clusters"][((x - state["places"]) ** 2).sum(axis=1).argmin()])
        gaps = np.linalg.norm(x - state["centers"], axis=1)
        elsewhere += gaps.argmin() != cluster
        bound, length = state["residual_bounds"][cluster], gaps[cluster]
        residual = (x - state["centers"][cluster]) / max(bound, length)
        square = min(length / bound, 1.0) ** 2
        expected[cluster] += np.concatenate([residual, [0.5, 0.5 * square]])
    assert elsewhere > 20
    np.testing.assert_allclose(found, expected, atol=1e-6)
