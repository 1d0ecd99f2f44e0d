"""Scalable k-means++ over sites: naive loops, scikit-learn, and plain data."""

from dataclasses import replace

import array_api_strict
import numpy as np
import pytest
from scipy import stats
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from dpfedc.clustering.stage import SiteBatch
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness
from dpfedc.research.kernels import candidate_draws
from dpfedc.research.rivals.kmeans_parallel import KMeansParallel
from dpfedc.research.rivals.kmeans_parallel_stages import (
    Candidates,
    Reclustering,
    StatedNoiseLloyd,
    reclustered,
)
from support.runs import opened, ran

ALL = RoundSample(1.0, 1)
STAGES = [Candidates(6.0, 7), Reclustering(3)]


@parametrize_with_checks(
    [KMeansParallel(), KMeansParallel(n_clusters=3, n_rounds=0, diagnostics=True)],
    expected_failed_checks=lambda estimator: {},  # none
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def sites_of(X, offsets):
    return Sites.of(X, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))


def naive_squares(X, C):
    return np.array([[sum((a - b) ** 2 for a, b in zip(x, c, strict=True)) for c in C] for x in X])


@pytest.mark.parametrize("shift", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_to_candidates_are_those_of_a_loop(rng, dtype, shift, monkeypatch):
    monkeypatch.setattr(candidate_draws, "CHUNK", 7)
    X = (rng.standard_normal((30, 4)) + shift).astype(dtype)
    C = np.concatenate([X[[3, 19]], (rng.standard_normal((3, 4)) + shift).astype(dtype)])
    squares, labels = candidate_draws.nearest_candidates(X, C)
    expected = naive_squares(X.astype(float), C.astype(float))
    tolerance = 1e-3 if dtype == np.float32 else 1e-7
    np.testing.assert_allclose(squares, expected.min(axis=1), atol=tolerance)
    np.testing.assert_array_equal(labels, expected.argmin(axis=1))
    # A record that is a candidate has no distance left, however its square was rounded.
    assert squares[3] == squares[19] == 0
    assert np.count_nonzero(squares == 0) == 2


def test_draws_have_the_probabilities_of_the_reference():
    squares = np.array([0.0, 0.5, 2.0, 7.5])
    probabilities = candidate_draws.draw_probabilities(squares, 10.0, 4.0)
    for p, square in zip(probabilities, squares, strict=True):
        assert p == min(1.0, 4.0 * square / 10.0)
    for nothing in (0.0, -1.0, np.nan):
        assert not candidate_draws.draw_probabilities(squares, nothing, 4.0).any()


@pytest.mark.parametrize("expected", [0.5, 6.0, 20.0, 200.0])
def test_slots_almost_always_suffice(expected):
    """Poisson draws have the heaviest tail of all independent ones with this mean."""
    assert stats.poisson.sf(candidate_draws.slot_count(expected), expected) < 2e-8
    assert candidate_draws.slot_count(expected) < 2 * expected + 36


def test_slots_hold_each_sites_draws_in_order(rng):
    offsets = np.array([0, 1, 5, 5 + 20, 26])
    drawn = rng.random(26) < 0.5
    slots = candidate_draws.slot_rows(drawn, offsets, 6)
    for i in range(4):
        mine = [row for row in range(offsets[i], offsets[i + 1]) if drawn[row]][:6]
        assert slots[i].tolist() == mine + [-1] * (6 - len(mine))
    assert np.flatnonzero(drawn[5:25]).size > 6  # one site had more than fit


def naive_candidates(X, offsets, seed, expected, n_rounds, n_clusters):
    """k-means|| record by record, with the coins that the records draw."""
    randomness = Randomness(seed)
    n = len(X)
    site = [i for i in range(len(offsets) - 1) for _ in range(offsets[i], offsets[i + 1])]
    slot = [j - offsets[site[j]] for j in range(n)]
    first = int(randomness.generator("first candidate").integers(n))
    candidates, costs = [X[first]], []
    for t in range(2, n_rounds + 1, 2):
        squares = naive_squares(X, candidates).min(axis=1)
        cost = sum(squares)
        costs.append(cost)
        for j in range(n):
            coin = randomness.uniform(
                "draw of candidates", t=t + 1, sites=np.array([site[j]]), slots=np.array([slot[j]])
            )[0]
            if coin < min(1.0, expected * squares[j] / cost):
                candidates.append(X[j])
    nearest = naive_squares(X, candidates).argmin(axis=1).tolist()
    return np.array(candidates), costs, [nearest.count(i) for i in range(len(candidates))]


@pytest.mark.parametrize("seed", range(4))
def test_candidates_costs_and_weights_are_those_of_a_loop(ragged, seed):
    X, offsets = ragged
    heard = []

    class Listening(Candidates):
        def combine(self, state, released, t):
            heard.append(np.asarray(released.value))
            return super().combine(state, released, t)

    stages = [Listening(6.0, 7), Reclustering(3)]
    state = ran(stages, sites_of(X, offsets), Randomness(seed))
    candidates, costs, weights = naive_candidates(X, offsets, seed, 6.0, 7, 3)
    np.testing.assert_array_equal(state["candidates"], candidates)
    np.testing.assert_allclose(heard[1::2], costs)
    np.testing.assert_array_equal(state["weights"], weights)
    assert {upload.shape for upload in heard[::2]} == {(12, candidate_draws.slot_count(6.0), 6)}
    assert 3 < len(candidates) < len(X) / 2


def test_records_are_drawn_as_often_as_expected(ragged):
    """Draws of one round over 400 seeds, of all records and of those farther than the median.

    A normal deviate beyond 5 comes once in 10^6 runs. Power: probabilities in proportion to d
    instead of d^2 are told apart.
    """
    X, offsets = ragged
    batch = SiteBatch(X, offsets, np.arange(12))
    squares = naive_squares(X, X[:1])[:, 0]
    batch.memory = {"squares": squares}
    state = {"cost": squares.sum(), "first": np.array([0, 0])}
    drawn = np.zeros(len(X))
    for seed in range(400):
        upload = Candidates(6.0).local(batch, state, 3, ALL, Randomness(seed)).values
        points = upload.reshape(-1, 6)
        drawn += (X[:, None, :] == points[points[:, -1] > 0, :-1]).all(axis=2).any(axis=1)
    far = squares > np.median(squares)

    def deviate(values, among):
        p = np.minimum(1, 6.0 * values / values.sum())[among]
        return (drawn[among].sum() - 400 * p.sum()) / np.sqrt(400 * (p * (1 - p)).sum())

    assert drawn[0] == 0
    assert abs(deviate(squares, slice(None))) < 5
    assert abs(deviate(squares, far)) < 5
    assert abs(deviate(np.sqrt(squares), far)) > 5


def test_a_site_alone_uploads_what_it_uploads_among_others(ragged):
    X, offsets = ragged
    method, randomness = Candidates(6.0), Randomness(3)
    squares = naive_squares(X, X[:1])[:, 0]
    state = {"cost": squares.sum(), "first": np.array([3, 17])}
    together = SiteBatch(X, offsets, np.arange(12), memory={"squares": squares})
    for t in (1, 3):
        everyone = method.local(together, state, t, ALL, randomness).values
        for i in range(12):
            rows = slice(offsets[i], offsets[i + 1])
            alone = SiteBatch(
                X[rows],
                np.array([0, offsets[i + 1] - offsets[i]]),
                np.array([i]),
                memory={"squares": squares[rows]},
            )
            mine = method.local(alone, state, t, ALL, randomness).values
            np.testing.assert_array_equal(mine[0], everyone[i])
        if t == 1:
            assert everyone[:, :, -1].sum() == 1
            np.testing.assert_array_equal(everyone[3, 0, :-1], X[offsets[3] + 17])


def test_null_records_are_neither_drawn_nor_counted(ragged):
    X, offsets = ragged
    present = np.arange(len(X)) % 3 > 0
    randomness = Randomness(0)
    squares = naive_squares(X, X[:2]).min(axis=1)
    state = {"candidates": X[:2], "fresh": X[:2], "cost": 1e-9, "first": np.array([0, 0])}
    batch = SiteBatch(X, offsets, np.arange(12), present, {"squares": squares})
    for t, method in ((2, Candidates(6.0)), (1, Reclustering(2))):
        _, released = opened(method, batch, state, randomness, t=t)
        expected = squares[present].sum() if t == 2 else present.sum()
        assert np.sum(released.value) == pytest.approx(expected)
    # Every record's probability is 1 at this cost, and only those present are uploaded.
    upload = Candidates(60.0).local(batch, state, 3, ALL, randomness).values
    assert upload[:, :, -1].sum() == present[squares > 0].sum()
    assert not Candidates(60.0).local(batch, state, 1, ALL, randomness).values.any()


def test_repeated_candidates_count_as_their_weight(rng):
    C = rng.standard_normal((40, 3)) + 5 * np.repeat(np.eye(3), [10, 10, 20], axis=0)
    weights = rng.integers(0, 4, size=40).astype(float)
    once = reclustered(C, weights, 3, seed=0)
    repeated = reclustered(
        np.repeat(C, weights.astype(int), axis=0), np.ones(int(weights.sum())), 3, seed=0
    )
    np.testing.assert_allclose(once[np.argsort(once[:, 0])], repeated[np.argsort(repeated[:, 0])])
    # Noise can leave a weight below zero, or too few candidates.
    np.testing.assert_allclose(reclustered(C, np.where(weights > 0, weights, -5), 3, seed=0), once)
    few = reclustered(C[[1, 1, 2]], np.ones(3), 5, seed=0)
    assert few.shape == (5, 3)
    assert {tuple(c) for c in few} == {tuple(C[1]), tuple(C[2])}
    assert reclustered(C, np.full(40, -1.0), 3, seed=0).shape == (3, 3)


def test_lloyd_rounds_are_scikit_learns():
    X, _ = load_digits(return_X_y=True)
    X, sites = X[:500], np.arange(500) % 7
    seeds = KMeansParallel(8, n_rounds=0, random_state=0).fit(X, sites=sites)
    ours = KMeansParallel(8, n_rounds=15, random_state=0).fit(X, sites=sites)
    theirs = KMeans(8, init=seeds.cluster_centers_, n_init=1, max_iter=15, tol=0).fit(X)
    assert theirs.n_iter_ <= 15
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-9)
    assert -ours.score(X) == pytest.approx(theirs.inertia_)
    assert ours.n_iter_ == seeds.n_iter_ + 15 == 11 + 1 + 15


def test_digits_are_clustered_as_by_kmeans():
    """Means over seeds. k-means++ itself moves by 0.04 in accuracy from seed to seed."""
    X, y = load_digits(return_X_y=True)
    sites = np.random.default_rng(0).integers(25, size=len(X))
    with threadpool_limits(1):
        ours = [KMeansParallel(10, random_state=s).fit(X, sites=sites) for s in range(6)]
        theirs = [KMeans(10, n_init=3, random_state=s).fit(X) for s in range(6)]
    accuracy = np.mean([clustering_accuracy(y, model.labels_) for model in ours])
    expected = np.mean([clustering_accuracy(y, model.labels_) for model in theirs])
    assert accuracy > expected - 0.03
    inertia = np.mean([-model.score(X) for model in ours])
    assert inertia < 1.01 * np.mean([model.inertia_ for model in theirs])


def test_the_seeding_alone_beats_random_records(rng):
    X, _ = load_digits(return_X_y=True)
    seeded = [-KMeansParallel(10, n_rounds=0, random_state=s).fit(X).score(X) for s in range(4)]
    random = [X[rng.choice(len(X), 10, replace=False)] for _ in range(4)]
    costs = [((X[:, None, :] - C) ** 2).sum(axis=2).min(axis=1).sum() for C in random]
    assert np.max(seeded) < 0.75 * np.min(costs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("by_cluster", "shift"), [(False, 0.0), (True, 0.0), (False, 1e4)])
def test_blobs_are_found(dtype, by_cluster, shift):
    X, y = make_blobs(n_samples=400, centers=6, n_features=3, cluster_std=0.5, random_state=3)
    sites = y if by_cluster else np.minimum(np.arange(400) // 3, 40)
    model = KMeansParallel(6, random_state=0).fit((X + shift).astype(dtype), sites=sites)
    theirs = KMeans(6, n_init=5, random_state=0).fit(X)
    assert model.cluster_centers_.dtype == dtype
    assert adjusted_rand_score(theirs.labels_, model.labels_) > 0.98
    assert clustering_accuracy(y, model.labels_) > clustering_accuracy(y, theirs.labels_) - 0.03


def test_a_seed_fixes_the_result_and_the_order_of_sites_does_not_matter(blobs):
    X, _, sites = blobs
    model = KMeansParallel(3, random_state=5, sites_per_round=4).fit(X, sites=sites)
    order = np.argsort(-sites, kind="stable")
    moved = KMeansParallel(3, random_state=5, sites_per_round=4).fit(X[order], sites=sites[order])
    np.testing.assert_array_equal(model.cluster_centers_, moved.cluster_centers_)
    np.testing.assert_array_equal(model.labels_[order], moved.labels_)
    n_sites = [entry.n_sites for entry in model.history_.rounds]
    assert n_sites == [10] * 12 + [4] * 20
    assert model.history_.stamps == ("no noise was added: not private",)
    other = KMeansParallel(3, random_state=6, n_rounds=0).fit(X, sites=sites)
    assert not np.array_equal(other.cluster_centers_, model.cluster_centers_)


def test_few_records_are_enough(rng):
    for n in (1, 3, 5):
        X = rng.standard_normal((n, 2))
        model = KMeansParallel(n, seeding_rounds=1, random_state=0).fit(X, sites=np.arange(n))
        assert model.cluster_centers_.shape == (n, 2)
        assert np.isfinite(model.cluster_centers_).all()


@pytest.mark.parametrize("name", ["CPU_DEVICE", "device1"])
def test_arrays_of_the_standard_give_the_same(ragged, name):
    X, offsets = ragged
    device = array_api_strict.Device(name)
    stages = [*STAGES, StatedNoiseLloyd(3, 3)]

    def final(records, noise, **state):
        randomness = Randomness(1)
        gate = OpenGate(SimulatedNoise(randomness) if noise else None)
        noisy = [replace(stage, noise_multiplier=noise) for stage in stages]
        return ran(noisy, sites_of(records, offsets), randomness, gate=gate, state=state)

    strict = array_api_strict.asarray(X, device=device)
    for noise in (0.0, 0.01):
        bound = {"bound": np.asarray(9.0)} if noise else {}
        ours = final(
            strict,
            noise,
            **{n: array_api_strict.asarray(v, device=device) for n, v in bound.items()},
        )
        theirs = final(X, noise, **bound)
        for key in ("candidates", "weights", "centers"):
            cpu = ours[key].to_device(array_api_strict.Device("CPU_DEVICE"))
            np.testing.assert_allclose(np.asarray(cpu), theirs[key], rtol=1e-9, atol=1e-12)


BAD_SETTINGS = [
    ({"n_clusters": 0}, "n_clusters must be >= 1, got 0"),
    ({"n_clusters": 21}, "n_samples=20 should be >= n_clusters=21"),
    ({"n_rounds": -1}, "n_rounds must be >= 0, got -1"),
    ({"seeding_rounds": 0}, "seeding_rounds must be >= 1, got 0"),
    ({"oversampling": 0.0}, "oversampling must be > 0, got 0"),
    ({"sites_per_round": 5}, "sites_per_round must be from 1 to 4, got 5"),
    ({"norm_bound": -1.0}, "norm_bound must be > 0, got -1"),
    ({"epsilon": 1.0}, "norm_bound must be a number when epsilon is set, got None"),
    ({"epsilon": 0.0, "norm_bound": 1.0}, "epsilon must be >= 1e-06 and <= 1000000, got 0"),
    ({"delta": 1.0}, "delta must be >= 1e-12 and < 1, got 1"),
    ({"diagnostics": "yes"}, "diagnostics must be True or False, got 'yes'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_bad_settings(rng, settings, message):
    model = KMeansParallel(**{"n_clusters": 3, **settings})
    with pytest.raises(InvalidInput, match=message):
        model.fit(rng.standard_normal((20, 2)), sites=np.arange(20) % 4)
    assert not hasattr(model, "cluster_centers_")
