"""The last stage: sums and counts of clusters, or only their lengths, against plain loops."""

import math

import numpy as np
import pytest

from dpfedc.clustering.centers import COUNT_WEIGHT, MOVE_NOISE, Centers, Lengths
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.subspace import Subspace
from dpfedc.engine.simulated import Sites
from dpfedc.kernels.relocation import relocated_centers
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty
from support.runs import opened, ran, released

K = 3
RANDOMNESS = Randomness(4)
PENALTY = Penalty(0.6, 0.1)


def after_factorization(ragged, constant, subspace):
    """Return the federation and the state that the last stage starts from."""
    X, offsets = ragged
    sites = Sites.of(X, np.repeat(np.arange(12), np.diff(offsets)))
    before = [Mean(), Scale(), *([Subspace(2)] if subspace else [])]
    before.append(Factorization(K, 5, constant=constant))
    return sites, ran(before, sites, RANDOMNESS)


def released_by(stage, sites, state, t=1):
    """Return the state that the stage starts with, and what all sites release."""
    state = stage.start(state, sites.public, RANDOMNESS)
    batch = sites.batch(np.arange(sites.n_sites), {})
    batch.memory = stage.prepare(batch, state, RANDOMNESS)
    _, out = opened(stage, batch, state, RANDOMNESS, t=t)
    return state, out


def plain_rows(X, state):
    differences = [x - state["data_mean"] for x in X]
    return np.array([d / max(float(state["scale"]), math.sqrt(sum(d**2))) for d in differences])


def seen_rows(X, state, constant):
    """Return the records as the factorisation sees them."""
    rows = plain_rows(X, state)
    if "basis" in state:
        return np.array([[sum(b * row) for b in state["basis"]] for row in rows])
    return np.column_stack([rows, np.full(len(X), constant)]) if constant else rows


def label_by_membership(x, W, steps=50):
    M = 2 * W @ W.T + PENALTY.orthogonality * (1 - np.eye(K)) + PENALTY.membership_ridge * np.eye(K)
    gamma = 0.51 * np.linalg.eigvalsh(M)[-1]
    h = np.zeros(K)
    for _ in range(steps):
        h = np.maximum(h - (M @ h - 2 * W @ x) / gamma, 0)
    return int(np.argmax(h if h.max() > 0 else W @ x))  # no direction is on its side


VIEWS = pytest.mark.parametrize(
    ("constant", "subspace"),
    [(0.0, False), (0.5, False), (1.5, False), (0.0, True)],
    ids=["plain", "constant", "large constant", "subspace"],
)


@VIEWS
def test_lengths_are_summed_by_cluster(ragged, constant, subspace):
    sites, state = after_factorization(ragged, constant, subspace)
    stage = Lengths(K, penalty=PENALTY, constant=constant)
    state, out = released_by(stage, sites, state)
    W, expected, longest = state["W"], np.zeros((K, 2)), 0.0
    for x in seen_rows(sites.X, state, constant):
        label = label_by_membership(x, W)
        along = sum(x * W[label])
        longest = max(longest, abs(along))
        expected[label] += min(max(along, -1), 1), 1
    assert stage.sensitivity(state, 1) == math.sqrt(2)
    np.testing.assert_allclose(out.value, expected, atol=1e-9)
    assert (longest > 1) == (constant == 1.5)  # only then a length had to be clipped
    after = stage.combine(state, out, 1)
    directions = W @ state["basis"] if subspace else W[:, :5]
    for cluster, (total, count) in enumerate(expected):
        mean = min(max(total / max(count, 1), 0), 1)
        np.testing.assert_allclose(
            after["best_centers"][cluster], mean * directions[cluster], atol=1e-9
        )
    np.testing.assert_allclose(after["counts"], expected[:, 1])


def test_noise_cannot_turn_or_stretch_a_center():
    W = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.0, -1.0]])
    noisy = [[-4.0, 10.0], [30.0, 10.0], [0.5, -7.0], [3.0, 4.0]]
    after = Lengths(4).combine({"W": W}, released(noisy), 1)
    np.testing.assert_allclose(after["best_centers"], [[0, 0], [0, 1], [0.3, 0.4], [0, -0.75]])


@VIEWS
@pytest.mark.parametrize("bounded", [True, False])
def test_sums_counts_and_squares_by_cluster(ragged, constant, subspace, bounded):
    sites, state = after_factorization(ragged, constant, subspace)
    stage = Centers(K, penalty=PENALTY, constant=constant, bounded=bounded)
    state, out = released_by(stage, sites, state)
    expected = np.zeros((K, 7))
    rows = plain_rows(sites.X, state)
    for seen, row in zip(seen_rows(sites.X, state, constant), rows, strict=True):
        square = sum(row**2)
        phi = np.array([*row, COUNT_WEIGHT, COUNT_WEIGHT * square])
        expected[label_by_membership(seen, state["W"])] += phi
        assert math.sqrt(sum(phi**2)) <= math.sqrt(1 + 2 * COUNT_WEIGHT**2) * (1 + 1e-12)
    np.testing.assert_allclose(out.value, expected, atol=1e-9)
    assert stage.sensitivity(state, 1) == (math.sqrt(1.5) if bounded else math.inf)
    # The first centres are the directions, among all features.
    first = state["W"] @ state["basis"] if subspace else state["W"][:, :5]
    np.testing.assert_allclose(state["centers"], first)


def test_later_rounds_go_to_the_nearest_center(ragged):
    sites, state = after_factorization(ragged, 0.0, True)
    stage = Centers(K, n_rounds=4, refine=True, bounded=True)
    state, out = released_by(stage, sites, state, t=2)
    expected = np.zeros((K, 7))
    for row in plain_rows(sites.X, state):
        label = np.argmin([sum((row - center) ** 2) for center in state["centers"]])
        expected[label] += [*row, COUNT_WEIGHT, COUNT_WEIGHT * sum(row**2)]
    np.testing.assert_allclose(out.value, expected, atol=1e-9)


def statistics(means, counts, spread):
    """Return released sums, counts and squares of clusters with these means and spreads."""
    means, counts = np.asarray(means, float), np.asarray(counts, float)
    squares = np.asarray(spread) + counts * (means**2).sum(axis=1)
    sums = counts[:, None] * means
    return np.column_stack([sums, COUNT_WEIGHT * counts, COUNT_WEIGHT * squares])


def state_of(centers, n_rounds=5):
    directions = np.tile([0.0, 1.0], (n_rounds, len(centers), 1))
    return {
        "centers": np.asarray(centers),
        "best_centers": np.asarray(centers),
        "best_cost": np.asarray(np.inf),
        "directions": directions,
    }


def test_a_count_lost_in_noise_leaves_its_center():
    """A count must exceed 1 by twice the noise of the sums, that is by its own noise."""
    before = [[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]]
    value = statistics([[0.1, 0.0], [0.2, 0.0], [0.3, 0.0]], [6.9, 7.1, 100], [1, 1, 1])
    after = Centers(3, bounded=True, noise_std=3.0).combine(state_of(before), released(value), 1)
    np.testing.assert_allclose(after["centers"], [[9, 9], [0.2, 0], [0.3, 0]])
    after = Centers(3, bounded=True).combine(state_of(before), released(value), 1)
    np.testing.assert_allclose(after["centers"], [[0.1, 0], [0.2, 0], [0.3, 0]])
    np.testing.assert_allclose(after["counts"], [6.9, 7.1, 100])


STUCK = [[0.0, 0.0], [0.1, 0.0], [0.9, 0.0], [0.0, 0.9]]
COUNTS, SPREAD = [50.0, 50.0, 100.0, 100.0], [0.5, 0.5, 1.0, 16.0]


def test_a_center_is_moved_where_the_gain_stands_out_from_the_noise():
    value, state = released(statistics(STUCK, COUNTS, SPREAD)), state_of(STUCK)
    # Cluster 3 has a spread of 15 over the typical one; merging 0 and 1 costs 25 * 0.01.
    slack = 15 - 1.5 * 0.25
    enough = slack * COUNT_WEIGHT / MOVE_NOISE
    for noise_std, moves in ((0.0, True), (0.99 * enough, True), (1.01 * enough, False)):
        stage = Centers(4, n_rounds=5, refine=True, bounded=True, noise_std=noise_std)
        after = stage.combine(state, value, 1)
        expected = np.array(STUCK)
        if moves:
            expected = relocated_centers(
                expected, np.array(COUNTS), np.array(SPREAD), state["directions"][0]
            )
            assert not np.allclose(expected, STUCK)
        np.testing.assert_allclose(after["centers"], expected, atol=1e-9)
        np.testing.assert_allclose(after["best_centers"], STUCK, atol=1e-12)
        assert float(after["best_cost"]) == pytest.approx(18.0)


@pytest.mark.parametrize(("t", "n_rounds", "refine"), [(1, 2, True), (3, 4, True), (1, 5, False)])
def test_no_center_is_moved_when_no_round_could_put_it_right(t, n_rounds, refine):
    stage = Centers(4, n_rounds=n_rounds, refine=refine)
    after = stage.combine(state_of(STUCK), released(statistics(STUCK, COUNTS, SPREAD)), t)
    np.testing.assert_allclose(after["centers"], STUCK, atol=1e-12)


def test_sizes_keep_the_errors_of_their_own_round():
    """The round with the least cost is kept whole: its centres, sizes and their errors."""
    means = [[0.1, 0.0], [0.5, 0.0]]
    best = released(statistics(means, [500, 300], [1, 1]), noise_std=20.0)
    worse = released(statistics(means, [400, 400], [90, 90]), noise_std=5.0)
    stage = Centers(2, n_rounds=2, refine=True, bounded=True)
    state = stage.combine(stage.combine(state_of(means), best, 1), worse, 2)
    np.testing.assert_allclose(state["sizes"], [500, 300])
    np.testing.assert_allclose(state["size_errors"], 20.0 / COUNT_WEIGHT)
