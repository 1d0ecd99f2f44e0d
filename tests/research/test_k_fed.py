"""k-FED and the local k-means under it: plain loops, scikit-learn, and heterogeneous sites."""

import math
from itertools import pairwise

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from dpfedc.engine.simulated import Sites
from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.privacy.accountant import gaussian_mu
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.randomness import Randomness
from dpfedc.research.kernels.local_clustering import (
    kmeans_centers,
    n_seeding_trials,
    seeded_centers,
)
from dpfedc.research.rivals.k_fed import KFed, fewest_local_clusters
from dpfedc.research.rivals.k_fed_stages import (
    KFedRound,
    assumed_center_sensitivity,
    averaged_groups,
    bounded_records,
    farthest_first,
    seeding_draws,
)
from support.runs import ran

CPU, OTHER = (array_api_strict.Device(name) for name in ("CPU_DEVICE", "device1"))


@parametrize_with_checks(
    [
        KFed(),
        KFed(n_clusters=3, epsilon=5.0, norm_bound=10.0, diagnostics=True),
    ],
    expected_failed_checks=lambda estimator: {},  # none
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# ---- the reference, by loops -----------------------------------------------------------------


def gap(x, c):
    return sum((x - c) ** 2)


def draw(weights, u):
    """The first record at which the running sum of weights exceeds u times their total."""
    running = 0.0
    for j, weight in enumerate(weights):
        running += weight
        if running > u * sum(weights):
            return j
    return 0


def check_seeding(X, chosen, draws):
    """Greedy k-means++: draws[l, c] decides candidate c for centre l, and the best one is taken.

    Two candidates can be equally good (outliers near each other), so what is checked is that each
    choice is a best one, given the earlier ones.
    """
    np.testing.assert_allclose(chosen[0], X[draw([1.0] * len(X), draws[0, 0])], rtol=1e-12)
    for cluster in range(1, min(len(chosen), len(X))):
        closest = [min(gap(x, c) for c in chosen[:cluster]) for x in X]
        candidates = [X[draw(closest, u)] for u in draws[cluster]]
        costs = [
            sum(min(near, gap(x, candidate)) for x, near in zip(X, closest, strict=True))
            for candidate in candidates
        ]
        taken = [gap(chosen[cluster], candidate) < 1e-12 for candidate in candidates]
        assert any(taken)
        assert costs[taken.index(True)] <= min(costs) * (1 + 1e-6) + 1e-6


def naive_lloyd(X, centers, steps):
    for _ in range(steps):
        labels = [int(np.argmin([gap(x, c) for c in centers])) for x in X]
        groups = [X[np.equal(labels, cluster)] for cluster in range(len(centers))]
        centers = np.array(
            [g.mean(axis=0) if len(g) else c for g, c in zip(groups, centers, strict=True)]
        )
    labels = np.array([int(np.argmin([gap(x, c) for c in centers])) for x in X])
    cost = sum(min(gap(x, c) for c in centers) for x in X)
    return centers, np.bincount(labels, minlength=len(centers)), cost


def naive_kmeans(X, draws, steps):
    """Lloyd from every seeding (checked above), of which the cheapest result is kept."""
    starts = [seeded_centers(X, np.array([0, len(X)]), start[None])[0] for start in draws]
    return min((naive_lloyd(X, start, steps) for start in starts), key=lambda found: found[2])


def naive_k_fed(blocks, k, local, starts, steps, randomness):
    """Algorithm 2 of the reference, with k-means++ and Lloyd at the sites."""
    uploads = []
    for i, block in enumerate(blocks):
        draws = seeding_draws(np.array([i]), starts, local, 1, randomness)[:, 0]
        uploads.append(list(naive_kmeans(block, draws, steps)[0])[: len(block)])
    everything = [center for upload in uploads for center in upload]
    largest = int(np.argmax([len(block) for block in blocks]))
    chosen = uploads[largest][:k]
    while len(chosen) < k:
        distances = [min(gap(point, c) for c in chosen) for point in everything]
        chosen.append(everything[int(np.argmax(distances))])
    groups = [[] for _ in chosen]
    for point in everything:
        groups[int(np.argmin([gap(point, c) for c in chosen]))].append(point)
    return np.array([np.mean(g, axis=0) if g else c for g, c in zip(groups, chosen, strict=True)])


def in_order(centers):
    """The rows in a fixed order: clusters have no order of their own."""
    return centers[np.lexsort(np.round(centers, 6).T)]


# ---- local k-means ---------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_local_kmeans_equals_the_loop(ragged, rng, k, offset):
    """Sites of 1 to 40 records: with k = 4 some have fewer records than clusters."""
    X, offsets = ragged[0] + offset, ragged[1]
    draws = rng.random((3, len(offsets) - 1, k, n_seeding_trials(k)))
    seeded = seeded_centers(X, offsets, draws[0])
    found = kmeans_centers(X, offsets, draws, 6)
    assert seeded.shape == (12, k, 5)
    assert found.shape == (12, k, 6)
    for i, (a, b) in enumerate(pairwise(offsets)):
        n = b - a
        check_seeding(X[a:b], seeded[i], draws[0, i])
        centers, counts, _ = naive_kmeans(X[a:b], draws[:, i], 6)
        # Beyond n distinct records the choice among records of distance 0 is free; and of two
        # starts that find the same clusters, rounding decides whose order is kept.
        expected = in_order(np.column_stack([centers, counts])[:n])
        np.testing.assert_allclose(in_order(found[i, :n]), expected, rtol=1e-9, atol=1e-9)


def test_local_kmeans_reaches_a_fixed_point(ragged, rng):
    X, offsets = ragged
    draws = rng.random((1, len(offsets) - 1, 3, 3))
    long = kmeans_centers(X, offsets, draws, 1000)
    np.testing.assert_array_equal(long, kmeans_centers(X, offsets, draws, 200))
    for i, (a, b) in enumerate(pairwise(offsets)):
        again, counts, _ = naive_lloyd(X[a:b], long[i, :, :-1], 1)
        np.testing.assert_allclose(again, long[i, :, :-1], atol=1e-9)
        np.testing.assert_array_equal(counts, long[i, :, -1])


def test_a_site_alone_gets_what_it_gets_among_others(ragged, rng):
    X, offsets = ragged
    draws = rng.random((2, len(offsets) - 1, 3, 3))
    together = kmeans_centers(X, offsets, draws, 10)
    for i in (0, 3, 9):
        rows = slice(offsets[i], offsets[i + 1])
        alone = kmeans_centers(X[rows], np.array([0, rows.stop - rows.start]), draws[:, [i]], 10)
        np.testing.assert_allclose(alone[0], together[i], atol=1e-9)


def test_null_records_are_as_good_as_absent(ragged, rng):
    X, offsets = ragged
    draws = rng.random((2, len(offsets) - 1, 2, 2))
    present = np.ones(len(X), dtype=bool)
    present[offsets[3] + 1 : offsets[4] : 3] = False
    nulled = np.where(present[:, None], X, np.nan)
    gone = np.array([present[a:b].sum() for a, b in pairwise(offsets)])
    less = np.concatenate([[0], np.cumsum(gone)])
    expected = kmeans_centers(X[present], less, draws, 8)
    np.testing.assert_allclose(kmeans_centers(nulled, offsets, draws, 8, present), expected)


@pytest.mark.parametrize("edge", [0.0, 1 - 2.0**-53])
def test_draws_at_the_edge_pick_records_that_can_be_picked(edge):
    """In single precision the upper edge rounds to 1."""
    X = np.array([[0.0], [1.0], [1.0], [5.0], [7.0]], np.float32)  # sites of 4 and 1 records
    draws = np.full((2, 3, 2), edge)
    seeded = seeded_centers(X, np.array([0, 4, 5]), draws)
    assert sorted(seeded[0].ravel().tolist()) == [0, 1, 5]
    assert seeded[1].ravel().tolist() == [7, 7, 7]


def test_equal_records_make_equal_centers(rng):
    X = np.full((9, 2), 0.1)
    found = kmeans_centers(X, np.array([0, 2, 9]), rng.random((2, 2, 3, 3)), 5)
    np.testing.assert_allclose(found[:, :, :2], 0.1)
    np.testing.assert_array_equal(found[:, :, 2].sum(axis=1), [2, 7])


def test_seeding_draws_in_proportion_to_squared_distance():
    """Records at 0, 1, 2 and 4: the pairs (first, second) against their exact probabilities.

    A chi-squared test over 16 pairs that fails by chance once in 10^6; drawing by plain distance
    is rejected by the same test.
    """
    n_sites, points = 20_000, np.array([0.0, 1.0, 2.0, 4.0])
    draws = seeding_draws(np.arange(n_sites), 1, 2, 1, Randomness(5))[0][:, :, :1]
    X, offsets = np.tile(points, n_sites)[:, None], 4 * np.arange(n_sites + 1)
    seeded = seeded_centers(X, offsets, draws)[:, :, 0]
    first, second = (np.searchsorted(points, np.round(seeded[:, c])) for c in (0, 1))
    observed = np.bincount(4 * first + second, minlength=16)

    def surprise(power):
        weights = np.abs(points[:, None] - points) ** power
        expected = (n_sites / 4 * weights / weights.sum(axis=1, keepdims=True)).ravel()
        off = expected > 0
        assert observed[~off].sum() == 0
        return ((observed[off] - expected[off]) ** 2 / expected[off]).sum()

    limit = chi2.isf(1e-6, df=11)
    assert surprise(2) < limit < surprise(1)


@pytest.mark.parametrize("device", [CPU, OTHER])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_on_strict_arrays_gives_the_same(blobs, dtype, device):
    X, _, sites = blobs
    X = X.astype(dtype)
    stage = KFedRound(3, 2, norm_bound=9.0)

    def centers(array):
        return ran([stage], Sites.of(array, sites), Randomness(3))["centers"]

    expected, strict = centers(X), centers(array_api_strict.asarray(X, device=device))
    assert strict.device == device
    assert expected.dtype == dtype
    np.testing.assert_allclose(np.asarray(strict.to_device(CPU)), expected, rtol=1e-5)


# ---- the server ------------------------------------------------------------------------------


def test_farthest_first():
    points = np.array([[0.0], [1.0], [10.0], [6.0], [-3.0]])
    chosen = farthest_first(points, points[:1], 4)
    np.testing.assert_array_equal(chosen.ravel(), [0, 10, 6, -3])
    np.testing.assert_array_equal(farthest_first(points, points[:3], 2).ravel(), [0, 1])


def test_averaged_groups_keep_an_empty_one():
    points = np.array([[0.0], [2.0], [9.0]])
    means = averaged_groups(points, np.array([[0.0], [50.0], [10.0]]))
    np.testing.assert_array_equal(means.ravel(), [1, 50, 9])


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_k_fed_equals_the_loop(sizes, seed):
    rng = np.random.default_rng(seed)
    blocks = [3 * rng.standard_normal((n, 2)) for n in sizes]
    k = min(sum(sizes), 4)
    model = KFed(k, local_steps=5, n_init=2, random_state=seed)
    model.fit(np.concatenate(blocks), sites=np.repeat(np.arange(len(sizes)), sizes))
    randomness = Randomness(int(check_random_state(seed).randint(2**31 - 1)))
    local = fewest_local_clusters(np.array(sizes), k)
    expected = naive_k_fed(blocks, k, local, 2, 5, randomness)
    np.testing.assert_allclose(in_order(model.cluster_centers_), in_order(expected), atol=1e-8)


@pytest.mark.parametrize(
    ("sizes", "k", "expected"),
    [
        ([50], 8, 8),
        ([50] * 4, 8, 3),
        ([50] * 4, 9, 3),
        ([50, 50], 100, 50),
        ([1] * 100, 100, 10),
        ([40, 1, 1], 9, 7),
        ([9, 9], 2, 2),
        ([5], 1, 1),
    ],
)
def test_sites_look_for_few_clusters_but_enough(sizes, k, expected):
    fewest = fewest_local_clusters(np.array(sizes), k)
    assert fewest == expected
    assert math.ceil(math.sqrt(k)) <= fewest <= k
    assert np.minimum(sizes, fewest).sum() >= k


# ---- quality ---------------------------------------------------------------------------------


def heterogeneous(seed, n_blobs=9, per_site=3, n_sites=30):
    """Blobs of which every site holds three: X, y, sites."""
    rng = np.random.default_rng(seed)
    grid = 12.0 * np.stack(np.meshgrid(np.arange(3), np.arange(3)), axis=-1).reshape(-1, 2)
    kinds = np.concatenate([rng.permutation(n_blobs)[:per_site] for _ in range(n_sites)])
    y = np.repeat(kinds, 15)
    return grid[y] + rng.standard_normal((len(y), 2)), y, np.repeat(np.arange(n_sites), 45)


@pytest.mark.parametrize("seed", range(3))
def test_heterogeneous_sites_are_recovered_in_one_round(seed):
    """sqrt(9) clusters at every site: the case that the reference proves."""
    X, y, sites = heterogeneous(seed)
    model = KFed(9, random_state=seed).fit(X, sites=sites)
    assert adjusted_rand_score(y, model.labels_) > 0.99
    assert model.n_iter_ == 1


def test_one_site_is_as_good_as_scikit_learn():
    """Mean cost over 5 seeds within 1 %, mean accuracy within 3 points, on digits."""
    X, y = load_digits(return_X_y=True)
    ours = [KFed(10, random_state=seed).fit(X) for seed in range(5)]
    with threadpool_limits(limits=1):
        theirs = [KMeans(10, n_init=4, random_state=seed).fit(X) for seed in range(5)]
    cost = np.mean([-model.score(X) for model in ours])
    assert cost < 1.01 * np.mean([model.inertia_ for model in theirs])
    accuracy = [[clustering_accuracy(y, m.labels_) for m in models] for models in (ours, theirs)]
    assert np.mean(accuracy[0]) > np.mean(accuracy[1]) - 0.03


def test_sites_that_hold_everything_look_for_everything():
    X, y = make_blobs(1200, centers=5, cluster_std=0.5, random_state=4)
    sites = np.arange(1200) % 20
    model = KFed(5, clusters_per_site=5, random_state=0).fit(X, sites=sites)
    pooled = KMeans(5, n_init=4, random_state=0).fit(X)
    ours, theirs = (clustering_accuracy(y, m.labels_) for m in (model, pooled))
    assert ours > theirs - 0.03


# ---- the estimator ---------------------------------------------------------------------------


def test_ragged_sites_with_single_records(ragged):
    X, offsets = ragged
    sites = np.repeat(np.arange(12), np.diff(offsets))
    for k in (1, 3, 30):
        model = KFed(k, random_state=0).fit(X, sites=sites)
        assert np.isfinite(model.cluster_centers_).all()
        assert model.cluster_centers_.shape == (k, 5)
    lonely = KFed(3, random_state=0).fit(X, sites=np.arange(len(X)))
    assert len(np.unique(lonely.labels_)) == 3


def test_the_order_of_rows_and_the_names_of_sites_do_not_matter(rng):
    X, sites = rng.standard_normal((300, 4)), np.repeat(np.arange(15), 20)
    expected = KFed(5, random_state=1).fit(X, sites=sites)
    order = np.concatenate([np.flatnonzero(sites == i) for i in rng.permutation(15)])
    names = np.array([f"clinic {i:02d}" for i in range(15)])
    model = KFed(5, random_state=1).fit(X[order], sites=names[sites[order]])
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(model.labels_, expected.labels_[order])
    other = KFed(5, random_state=2).fit(X, sites=sites)
    assert not np.array_equal(other.cluster_centers_, expected.cluster_centers_)


def test_what_is_stamped_and_recorded(blobs):
    X, y, sites = blobs
    heard = []
    model = KFed(
        3, random_state=0, diagnostics=True, on_round=lambda entry, n: heard.append((entry, n))
    ).fit(X, y, sites=sites)
    assert model.privacy_ is None
    assert "no noise was added: not private" in model.history_.stamps
    assert model.history_.method == "k-fed"
    [(entry, total)] = heard
    assert (entry.stage, entry.n_sites, total) == ("k-fed", 10, 1)
    assert entry.diagnostics["accuracy"] == pytest.approx(clustering_accuracy(y, model.labels_))
    assert entry.diagnostics["objective"] == pytest.approx(-model.score(X) / 10)
    assert model.history_.settings["clusters_per_site"] is None
    single = KFed(3, random_state=0).fit(X.astype(np.float32), sites=sites)
    assert single.cluster_centers_.dtype == np.float32


def test_noise_follows_the_stated_sensitivity(blobs):
    X, _, sites = blobs
    sites = np.minimum(sites, 3)  # 15, 15, 15 and 105 records
    model = KFed(4, epsilon=2.0, delta=1e-3, clusters_per_site=2, norm_bound=6.0, random_state=0)
    method = model.fit(X, sites=sites)._plan(Sites.of(X, sites)).stages[0]
    expected = 2 * 6.0 / (np.array([15, 15, 15, 105]) / (2 * 2)) / gaussian_mu(2.0, 1e-3)
    np.testing.assert_allclose(method.noise_std, expected)
    assert model.privacy_ is None
    assert "noise by an assumed sensitivity: not a proof" in model.history_.stamps
    assert "simulated noise: not a private release" in model.history_.stamps
    # A cluster of fewer than one record is not assumed: a centre stays in the ball of the bound.
    np.testing.assert_array_equal(assumed_center_sensitivity(np.array([1, 3]), 5, 6.0), 12.0)


def test_noise_is_added_at_every_site(blobs):
    """Without Lloyd's chance to hide it: the upload's noise has the stated standard deviation.

    400 x 6 values; the sample's deviation is within 7 % of the stated one, or fails by chance less
    than once in 10^5; half or twice the noise is far outside.
    """
    rng = np.random.default_rng(0)
    X, sites = rng.standard_normal((400, 6)), np.arange(400)
    heard = {}

    class Listening(KFedRound):
        def combine(self, state, released, t):
            heard["uploads"] = released.value
            return super().combine(state, released, t)

    noise = np.linspace(0.5, 2.0, 400)
    stages = [Listening(2, 1, noise_std=noise)]
    randomness = Randomness(11)
    gate = OpenGate(SimulatedNoise(randomness))
    ran(stages, Sites.of(X, sites), randomness, gate=gate)
    scaled = (heard["uploads"][:, 0, :] - X) / noise[:, None]
    assert abs(scaled.std() - 1) < 0.07
    assert abs(np.corrcoef(scaled[:-1].ravel(), scaled[1:].ravel())[0, 1]) < 0.1


def test_a_planned_gate_refuses_uploads_of_points(blobs):
    X, _, sites = blobs
    plan = PrivacyPlan((PlannedRelease("k-fed", 1, 10, 1, 1.0),), 1e-5, "local", 10)
    randomness = Randomness(0)
    noise, federation = SimulatedNoise(randomness), Sites.of(X, sites)
    with pytest.raises(InvalidInput, match="'k-fed' has no proof"):
        ran([KFedRound(3, 2)], federation, randomness, gate=Gate(plan, noise, randomness))

    class Claiming(KFedRound):
        proved = True

        def sensitivity(self, state, t):
            return 1.0

    stages = [Claiming(3, 2)]
    with pytest.raises(DPFedCError, match="uploaded points have no sum over records"):
        ran(stages, federation, randomness, gate=Gate(plan, noise, randomness))


def test_long_records_are_clipped(rng):
    X = 5 * rng.standard_normal((20, 3))
    clipped = bounded_records(X, 4.0)
    norms = np.linalg.norm(X, axis=1)
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), np.minimum(norms, 4.0))
    np.testing.assert_array_equal(clipped[norms <= 4], X[norms <= 4])
    assert bounded_records(X, math.inf) is X
    model = KFed(2, norm_bound=4.0, random_state=0).fit(X)
    assert np.linalg.norm(model.cluster_centers_, axis=1).max() <= 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be >= 1, got 0"),
        ({"clusters_per_site": 4}, "clusters_per_site must be from 1 to 3, got 4"),
        ({"n_clusters": 12, "clusters_per_site": 1}, "at least n_clusters=12 centres, got 10"),
        ({"local_steps": 0}, "local_steps must be >= 1, got 0"),
        ({"n_init": 1.5}, "n_init must be a whole number >= 1, got 1.5"),
        ({"norm_bound": -1.0}, "norm_bound must be > 0, got -1.0"),
        ({"epsilon": 1.0}, "norm_bound must be a number when epsilon is set, got None"),
        ({"epsilon": 0.0, "norm_bound": 1.0}, "epsilon must be >= 1e-06.* got 0"),
        ({"delta": 1.0}, "delta must be >= 1e-12 and < 1, got 1"),
        ({"n_clusters": 151}, "n_samples=150 should be >= n_clusters=151"),
        ({"diagnostics": "yes"}, "diagnostics must be True or False, got 'yes'"),
    ],
)
def test_bad_settings_are_refused(blobs, wrong, message):
    X, _, sites = blobs
    with pytest.raises(InvalidInput, match=message):
        KFed(**{"n_clusters": 3, **wrong}).fit(X, sites=sites)
