"""Federated fuzzy c-means: plain loops, pooled fuzzy c-means, and the scikit-learn contract."""

from itertools import pairwise

import array_api_strict
import numpy as np
import pytest
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.datasets import load_digits
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpfedc.engine.simulated import Sites
from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.privacy.accountant import gaussian_mu
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.randomness import Randomness
from dpfedc.research.kernels.fuzzy_memberships import fuzzy_centers, fuzzy_losses, fuzzy_memberships
from dpfedc.research.kernels.local_clustering import seeded_centers
from dpfedc.research.rivals.fuzzy_cmeans import FederatedFuzzyCMeans
from dpfedc.research.rivals.fuzzy_cmeans_stages import FuzzyCMeansRounds
from dpfedc.research.rivals.k_fed_stages import seeding_draws
from support.runs import ran

CPU, OTHER = (array_api_strict.Device(name) for name in ("CPU_DEVICE", "device1"))
FUZZIFIERS = [1.25, 2.0, 3.0]


@parametrize_with_checks(
    [
        FederatedFuzzyCMeans(),
        FederatedFuzzyCMeans(
            n_clusters=3,
            n_rounds=3,
            weighted=True,
            epsilon=500.0,
            norm_bound=10.0,
            diagnostics=True,
        ),
    ],
    expected_failed_checks=lambda estimator: {},  # none
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# ---- the reference, by loops -----------------------------------------------------------------


def naive_memberships(x, centers, fuzzifier):
    """u_l = 1 / sum_c (d_l / d_c)^(2 / (f - 1)); equal parts of the centres that x lies on."""
    d = [np.sqrt(sum((x - c) ** 2)) for c in centers]
    if min(d) == 0:
        return [float(each == 0) / d.count(0) for each in d]
    return [1 / sum((near / far) ** (2 / (fuzzifier - 1)) for far in d) for near in d]


def naive_fuzzy_cmeans(X, centers, steps, fuzzifier):
    """Return the centres after `steps` steps, and the sizes of their clusters."""
    for _ in range(steps):
        U = np.array([naive_memberships(x, centers, fuzzifier) for x in X]) ** fuzzifier
        sums = [sum(u * x for u, x in zip(w, X, strict=True)) for w in U.T]
        centers = np.array(
            [s / sum(w) if sum(w) else c for s, w, c in zip(sums, U.T, centers, strict=True)]
        )
    return centers, sum(np.array(naive_memberships(x, centers, fuzzifier)) for x in X)


def quick_fuzzy_cmeans(X, centers, steps, fuzzifier):
    """The same for large data: whole arrays, no code shared with the package; no zero distance."""
    for _ in range(steps):
        d = np.stack([np.linalg.norm(X - c, axis=1) for c in centers], axis=1)
        closeness = d ** (-2 / (fuzzifier - 1))
        weights = (closeness / closeness.sum(axis=1, keepdims=True)) ** fuzzifier
        centers = weights.T @ X / weights.sum(axis=0)[:, None]
    return centers


def in_order(centers):
    """The rows in a fixed order: clusters have no order of their own."""
    return centers[np.lexsort(np.round(centers, 5).T)]


def run_randomness(seed):
    """The randomness that an estimator with this random_state draws from."""
    return Randomness(int(check_random_state(seed).randint(2**31 - 1)))


def nearest(X, centers):
    return np.argmin([((X - c) ** 2).sum(axis=1) for c in centers], axis=0)


# ---- kernels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fuzzifier", FUZZIFIERS)
def test_memberships_equal_the_formula(rng, fuzzifier):
    X, centers = rng.standard_normal((20, 3)), rng.standard_normal((4, 3))
    X[0], X[1] = centers[2], centers[3]
    centers[1] = centers[3]  # record 1 lies on two centres
    squares = ((X[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
    expected = np.array([naive_memberships(x, centers, fuzzifier) for x in X])
    memberships = fuzzy_memberships(squares, fuzzifier)
    np.testing.assert_allclose(memberships, expected, atol=1e-12)
    np.testing.assert_array_equal(memberships[:2], [[0, 0, 1, 0], [0, 0.5, 0, 0.5]])
    np.testing.assert_allclose(memberships.sum(axis=1), 1)
    losses = (expected**fuzzifier * squares).sum(axis=1)
    np.testing.assert_allclose(fuzzy_losses(squares, fuzzifier), losses, atol=1e-12)


def test_extreme_distances_and_powers_stay_finite():
    squares = np.array([[1e-300, 1e300, 1.0], [0.0, 1e-300, 1e300], [5e-324, 5e-324, 1.0]])
    for fuzzifier in (1.0001, 1.1, 2.0, 50.0):
        memberships = fuzzy_memberships(squares, fuzzifier)
        np.testing.assert_allclose(memberships.sum(axis=1), 1)
        assert memberships.min() >= 0
    np.testing.assert_allclose(fuzzy_memberships(squares[2:], 1.0001), [[0.5, 0.5, 0]])


@pytest.mark.parametrize("fuzzifier", FUZZIFIERS)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_local_fuzzy_cmeans_equals_the_loop(ragged, rng, fuzzifier, offset):
    X, offsets = ragged[0] + offset, ragged[1]
    start = offset + 2 * rng.standard_normal((12, 3, 5))
    kept = start.copy()
    found = fuzzy_centers(X, offsets, start, 4, fuzzifier=fuzzifier)
    assert found.shape == (12, 3, 6)
    for i, (a, b) in enumerate(pairwise(offsets)):
        centers, sizes = naive_fuzzy_cmeans(X[a:b], start[i], 4, fuzzifier)
        if b - a > 3:  # else centres coincide, and rounding decides who has the record
            np.testing.assert_allclose(found[i, :, -1], sizes, atol=1e-6)
        np.testing.assert_allclose(found[i, :, :-1], centers, rtol=1e-7, atol=1e-7)
    # Memberships sum to one, so sizes sum to the number of records.
    np.testing.assert_allclose(found[:, :, -1].sum(axis=1), np.diff(offsets))
    np.testing.assert_array_equal(start, kept)


def test_null_records_are_as_good_as_absent(ragged, rng):
    X, offsets = ragged
    start = rng.standard_normal((12, 3, 5))
    present = np.ones(len(X), dtype=bool)
    present[offsets[3] + 1 : offsets[4] : 3] = False
    present[offsets[5]] = False  # a site of one record: nothing is left
    nulled = np.where(present[:, None], X, np.nan)
    found = fuzzy_centers(nulled, offsets, start, 3, present=present)
    rows = np.arange(offsets[3], offsets[4])
    expected, sizes = naive_fuzzy_cmeans(X[rows[present[rows]]], start[3], 3, 2.0)
    np.testing.assert_allclose(found[3, :, :-1], expected)
    np.testing.assert_allclose(found[3, :, -1], sizes)
    np.testing.assert_array_equal(found[5], np.column_stack([start[5], np.zeros(3)]))


@pytest.mark.parametrize("device", [CPU, OTHER])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_on_strict_arrays_gives_the_same(blobs, dtype, device):
    X, _, sites = blobs
    X = X.astype(dtype)
    stage = FuzzyCMeansRounds(3, n_rounds=3, weighted=True, norm_bound=9.0, sites_per_round=4)

    def centers(array):
        return ran([stage], Sites.of(array, sites), Randomness(3))["centers"]

    expected, strict = centers(X), centers(array_api_strict.asarray(X, device=device))
    assert strict.device == device
    assert expected.dtype == dtype
    np.testing.assert_allclose(np.asarray(strict.to_device(CPU)), expected, rtol=1e-4)


# ---- the method ------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_rounds_equal_the_loop(ragged, weighted, given):
    """The reference by loops; both use scikit-learn's k-means for the server."""
    X, offsets = ragged
    sites, k, seed = np.repeat(np.arange(12), np.diff(offsets)), 3, 4
    blocks = [X[a:b] for a, b in pairwise(offsets)]
    init = X[[5, 20, 60]] + 0.1
    model = FederatedFuzzyCMeans(
        k, n_rounds=3, local_steps=2, weighted=weighted, init=init if given else None,
        random_state=seed,
    ).fit(X, sites=sites)  # fmt: skip
    randomness = run_randomness(seed)
    centers = init if given else None
    for t in range(1, 4):
        points, sizes = [], []
        for i, block in enumerate(blocks):
            start = centers
            if start is None:  # a site seeds itself as if it were alone
                draws = seeding_draws(np.array([i]), 1, k, 1, randomness)[0]
                start = seeded_centers(block, np.array([0, len(block)]), draws)[0]
            local, size = naive_fuzzy_cmeans(block, start, 2, 2.0)
            points.append(local)
            sizes.append(size)
        if t == 1:
            server_seed = int(randomness.generator("server k-means").integers(2**24))
            server = KMeans(k, n_init=4, random_state=server_seed)
        else:
            server = KMeans(k, init=centers, n_init=1)
        weights = np.concatenate(sizes) if weighted else None
        centers = server.fit(np.concatenate(points), sample_weight=weights).cluster_centers_
    np.testing.assert_allclose(model.cluster_centers_, centers, atol=1e-6)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("fuzzifier", [1.3, 2.0])
def test_one_site_is_pooled_fuzzy_cmeans(blobs, fuzzifier, weighted):
    X, _, _ = blobs
    init = X[[0, 1, 2]]
    model = FederatedFuzzyCMeans(
        3, n_rounds=4, local_steps=3, fuzzifier=fuzzifier, weighted=weighted, init=init,
        random_state=0,
    ).fit(X)  # fmt: skip
    expected, _ = naive_fuzzy_cmeans(X, init + 1e-12, 12, fuzzifier)
    np.testing.assert_allclose(in_order(model.cluster_centers_), in_order(expected), atol=1e-6)


def test_coinciding_centers_are_no_error(blobs):
    """Every record alone: each site uploads one point three times."""
    X, y, _ = blobs
    model = FederatedFuzzyCMeans(3, n_rounds=3, random_state=0).fit(X, sites=np.arange(150))
    assert clustering_accuracy(y, model.labels_) > 0.97
    # With many features alike, memberships become equal and all centres the mean.
    X = np.random.default_rng(0).standard_normal((200, 50))
    flat = FederatedFuzzyCMeans(3, random_state=0).fit(X)
    np.testing.assert_allclose(flat.cluster_centers_, np.tile(X.mean(axis=0), (3, 1)), atol=1e-3)


# ---- quality ---------------------------------------------------------------------------------


def test_blobs_are_found_as_well_as_by_pooled_fuzzy_cmeans(blobs):
    X, y, sites = blobs
    for seed in range(3):
        start = kmeans_plusplus(X, 3, random_state=seed)[0] + 1e-9
        pooled = clustering_accuracy(y, nearest(X, quick_fuzzy_cmeans(X, start, 50, 2.0)))
        model = FederatedFuzzyCMeans(3, random_state=seed).fit(X, sites=sites)
        assert clustering_accuracy(y, model.labels_) > pooled - 0.03


def test_digits_are_found_as_well_as_by_pooled_fuzzy_cmeans():
    """Mean accuracy over 3 starts within 3 points, 10 sites, from the same starts.

    The fuzzifier is 1.2: with 2, pooled fuzzy c-means itself makes all centres of 64 features one.
    """
    X, y = load_digits(return_X_y=True)
    sites = np.random.default_rng(0).integers(10, size=len(X))
    ours, pooled = [], []
    for seed in range(3):
        start = kmeans_plusplus(X, 10, random_state=seed)[0] + 1e-9
        centers = quick_fuzzy_cmeans(X, start, 30, 1.2)
        pooled.append(clustering_accuracy(y, nearest(X, centers)))
        model = FederatedFuzzyCMeans(
            10, fuzzifier=1.2, n_rounds=6, local_steps=5, init=start, random_state=seed
        ).fit(X, sites=sites)
        ours.append(clustering_accuracy(y, model.labels_))
    assert np.mean(pooled) > 0.7
    assert np.mean(ours) > np.mean(pooled) - 0.03


def test_heterogeneous_sites_are_clustered(rng):
    """Two of six blobs at each site."""
    centers = 10.0 * np.array([[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]])
    y = np.concatenate([np.repeat(rng.permutation(6)[:2], 20) for _ in range(24)])
    X, sites = centers[y] + rng.standard_normal((len(y), 2)), np.repeat(np.arange(24), 40)
    model = FederatedFuzzyCMeans(6, weighted=True, random_state=0).fit(X, sites=sites)
    assert clustering_accuracy(y, model.labels_) > 0.97


# ---- the estimator ---------------------------------------------------------------------------


def test_ragged_sites_with_single_records(ragged):
    X, offsets = ragged
    sites = np.repeat(np.arange(12), np.diff(offsets))
    for k, per_round in ((1, None), (3, 1), (30, 5)):
        model = FederatedFuzzyCMeans(k, sites_per_round=per_round, random_state=0)
        model.fit(X, sites=sites)
        assert np.isfinite(model.cluster_centers_).all()
        assert model.cluster_centers_.shape == (k, 5)
    mean = FederatedFuzzyCMeans(1, weighted=True, random_state=0).fit(X, sites=sites)
    np.testing.assert_allclose(mean.cluster_centers_[0], X.mean(axis=0))


def test_the_order_of_rows_and_the_names_of_sites_do_not_matter(rng):
    X, sites = rng.standard_normal((300, 4)), np.repeat(np.arange(15), 20)
    settings = {"n_clusters": 5, "n_rounds": 4, "sites_per_round": 6}
    expected = FederatedFuzzyCMeans(**settings, random_state=1).fit(X, sites=sites)
    order = np.concatenate([np.flatnonzero(sites == i) for i in rng.permutation(15)])
    names = np.array([f"clinic {i:02d}" for i in range(15)])
    model = FederatedFuzzyCMeans(**settings, random_state=1)
    model.fit(X[order], sites=names[sites[order]])
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(model.labels_, expected.labels_[order])
    other = FederatedFuzzyCMeans(**settings, random_state=2).fit(X, sites=sites)
    assert not np.array_equal(other.cluster_centers_, expected.cluster_centers_)


def test_what_is_stamped_and_recorded(blobs):
    X, y, sites = blobs
    heard = []
    model = FederatedFuzzyCMeans(
        3, n_rounds=5, sites_per_round=4, fuzzifier=1.5, random_state=0, diagnostics=True,
        on_round=lambda entry, total: heard.append((entry, total)),
    ).fit(X, y, sites=sites)  # fmt: skip
    assert model.privacy_ is None
    assert "no noise was added: not private" in model.history_.stamps
    assert model.n_iter_ == 5
    assert [(e.stage, e.n_sites, total) for e, total in heard] == [("fuzzy-c-means", 4, 5)] * 5
    last = heard[-1][0].diagnostics
    assert last["accuracy"] == pytest.approx(clustering_accuracy(y, model.labels_))
    U = np.array([naive_memberships(x, model.cluster_centers_, 1.5) for x in X])
    squares = ((X[:, None, :] - model.cluster_centers_[None, :, :]) ** 2).sum(axis=2)
    assert last["objective"] == pytest.approx((U**1.5 * squares).sum() / 10)
    single = FederatedFuzzyCMeans(3, random_state=0).fit(X.astype(np.float32), sites=sites)
    assert single.cluster_centers_.dtype == np.float32


def test_transform_gives_the_memberships_of_fuzzifier_two(blobs):
    X, _, sites = blobs
    model = FederatedFuzzyCMeans(3, random_state=0).fit(X, sites=sites)
    expected = [naive_memberships(x, model.cluster_centers_, 2.0) for x in X]
    np.testing.assert_allclose(model.transform(X), expected, atol=1e-9)


# ---- noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [True, False])
def test_noise_follows_the_stated_sensitivity(blobs, weighted):
    X, _, sites = blobs
    sites = np.minimum(sites, 3)  # 15, 15, 15 and 105 records
    model = FederatedFuzzyCMeans(
        2, epsilon=2.0, delta=1e-3, n_rounds=6, sites_per_round=2, norm_bound=6.0,
        weighted=weighted, random_state=0,
    )  # fmt: skip
    method = model.fit(X, sites=sites)._plan(Sites.of(X, sites)).stages[0]
    centers = 2 * 6.0 / (np.array([15, 15, 15, 105]) / (2 * 2))
    size = 2 * 6.0 / (150 / 4 / (2 * 2))
    sensitivity = np.sqrt(centers**2 + size**2) if weighted else centers
    # Two of four sites in six rounds: three uploads of each.
    np.testing.assert_allclose(method.noise_std, sensitivity * 3**0.5 / gaussian_mu(2.0, 1e-3))
    assert method.size_unit == pytest.approx(size if weighted else 1.0)
    assert model.privacy_ is None
    assert "noise by an assumed sensitivity: not a proof" in model.history_.stamps
    assert "simulated noise: not a private release" in model.history_.stamps


def test_uploaded_sizes_survive_their_unit(blobs):
    """With next to no noise a weighted run gives what it gives without."""
    X, _, sites = blobs
    settings = {"n_clusters": 3, "n_rounds": 3, "weighted": True, "random_state": 0}
    plain = FederatedFuzzyCMeans(**settings, norm_bound=20.0).fit(X, sites=sites)
    noisy = FederatedFuzzyCMeans(**settings, norm_bound=20.0, epsilon=1e6).fit(X, sites=sites)
    np.testing.assert_allclose(noisy.cluster_centers_, plain.cluster_centers_, atol=0.05)
    assert not np.array_equal(noisy.cluster_centers_, plain.cluster_centers_)
    swamped = FederatedFuzzyCMeans(**settings, norm_bound=20.0, epsilon=0.01).fit(X, sites=sites)
    assert np.isfinite(swamped.cluster_centers_).all()
    assert np.abs(swamped.cluster_centers_).max() > 100


def test_a_planned_gate_refuses_uploads_of_points(blobs):
    X, _, sites = blobs
    plan = PrivacyPlan((PlannedRelease("fuzzy-c-means", 1, 10, 1, 1.0),), 1e-5, "local", 10)
    randomness = Randomness(0)
    noise, federation = SimulatedNoise(randomness), Sites.of(X, sites)
    with pytest.raises(InvalidInput, match="'fuzzy-c-means' has no proof"):
        ran(
            [FuzzyCMeansRounds(3, n_rounds=1)],
            federation,
            randomness,
            gate=Gate(plan, noise, randomness),
        )

    class Claiming(FuzzyCMeansRounds):
        proved = True

        def sensitivity(self, state, t):
            return 1.0

    stages = [Claiming(3, n_rounds=1)]
    with pytest.raises(DPFedCError, match="uploaded points have no sum over records"):
        ran(stages, federation, randomness, gate=Gate(plan, noise, randomness))


def test_long_records_are_clipped(rng):
    X = 5 * rng.standard_normal((20, 3))
    model = FederatedFuzzyCMeans(2, norm_bound=1.0, random_state=0).fit(X)
    assert np.linalg.norm(model.cluster_centers_, axis=1).max() <= 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be >= 1, got 0"),
        ({"n_rounds": 0}, "n_rounds must be >= 1, got 0"),
        ({"sites_per_round": 11}, "sites_per_round must be from 1 to 10, got 11"),
        ({"fuzzifier": 1}, "fuzzifier must be > 1, got 1"),
        ({"local_steps": "many"}, "local_steps must be a whole number >= 1, got 'many'"),
        ({"weighted": 1}, "weighted must be True or False, got 1"),
        ({"n_init": 0}, "n_init must be >= 1, got 0"),
        ({"norm_bound": 0}, "norm_bound must be > 0, got 0"),
        ({"epsilon": 1.0}, "norm_bound must be a number when epsilon is set, got None"),
        ({"epsilon": -1.0, "norm_bound": 1.0}, "epsilon must be >= 1e-06.* got -1"),
        ({"delta": 0.0}, "delta must be >= 1e-12 and < 1, got 0"),
        ({"init": [[1.0, 2.0]]}, r"init must have shape \(3, 2\), got \(1, 2\)"),
        ({"n_clusters": 151}, "n_samples=150 should be >= n_clusters=151"),
    ],
)
def test_bad_settings_are_refused(blobs, wrong, message):
    X, _, sites = blobs
    with pytest.raises(InvalidInput, match=message):
        FederatedFuzzyCMeans(**{"n_clusters": 3, **wrong}).fit(X, sites=sites)
