"""Distributed k-median by coresets: naive loops, unbiased costs, and plain data."""

import array_api_strict
import numpy as np
import pytest
from scipy import stats
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
from dpfedc.research.kernels import kmedian
from dpfedc.research.rivals import coreset_kmedian_stages
from dpfedc.research.rivals.coreset_kmedian import CoresetKMedian
from dpfedc.research.rivals.coreset_kmedian_stages import Coreset
from support.naive_kmedian import cost, naive_centers, naive_nearest, naive_pick
from support.runs import opened, ran

ALL = RoundSample(1.0, 1)


@parametrize_with_checks(
    [
        CoresetKMedian(coreset_size=100),
        CoresetKMedian(n_clusters=3, coreset_size=40, diagnostics=True),
    ],
    expected_failed_checks=lambda estimator: {},  # none
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def sites_of(X, offsets):
    return Sites.of(X, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))


def run_once(X, offsets, seed, *, k=3, size=60, **settings):
    return ran([Coreset(k, size, **settings)], sites_of(X, offsets), Randomness(seed))


def test_shares_are_whole_and_right_on_average():
    costs = np.array([0.0, 3.7, 0.01, 12.0, 1.0, 0.0])
    exact = 50 * costs / costs.sum()
    coins = (np.arange(5000) + 0.5) / 5000
    shares = np.array([kmedian.coreset_shares(costs, 50, coin) for coin in coins])
    assert (shares.sum(axis=1) == 50).all()
    assert (shares >= 0).all()
    assert abs(shares - exact).max() < 1
    np.testing.assert_allclose(shares.mean(axis=0), exact, atol=1e-3)
    assert not kmedian.coreset_shares(np.zeros(3), 50, 0.5).any()


def test_records_are_drawn_in_proportion_to_their_distance(rng):
    """Chi-square over 20,000 draws at a false-alarm rate of 10^-6; told apart from d^2."""
    distances = np.concatenate([[0.0, 1.0, 0.0, 3.0, 2.0, 0.0], [0.0], rng.random(8), [0.0, 0.0]])
    offsets = np.array([0, 6, 7, 17])
    shares = np.array([10_000, 0, 10_000])
    rows = kmedian.coreset_draws(distances, offsets, shares, rng.random(20_000))
    counts = np.bincount(rows, minlength=17)
    assert (rows[:10_000] < 6).all()
    assert (rows[10_000:] >= 7).all()
    assert not counts[distances == 0].any()
    for start, end in ((0, 6), (7, 17)):
        mine, seen = distances[start:end], counts[start:end]
        for power, fits in ((1, True), (2, False)):
            p = mine[mine > 0] ** power
            alarm = stats.chisquare(seen[mine > 0], 10_000 * p / p.sum()).pvalue < 1e-6
            assert alarm != fits
    # The last coin below one stays in its site, whatever is rounded.
    last = kmedian.coreset_draws(distances, offsets, np.array([1, 0, 1]), np.full(2, 1 - 2**-53))
    assert last.tolist() == [4, 14]


def naive_coreset(X, offsets, seed, k, size, steps):
    """Both rounds, site by site and draw by draw, with the coins of the run."""
    randomness, n_sites = Randomness(seed), len(offsets) - 1
    rng = randomness.generator("coreset")
    share_coin = rng.random()

    def coin(purpose, t, i, slot):
        return randomness.uniform(purpose, t=t, sites=np.array([i]), slots=np.array([slot]))[0]

    records = [X[offsets[i] : offsets[i + 1]] for i in range(n_sites)]
    medians, near = [], []
    for i, mine in enumerate(records):
        coins = [
            [coin("k-median seeds", 1, i, 2 * b + trial) for trial in (0, 1)] for b in range(k)
        ]
        medians.append(naive_centers(mine, np.ones(len(mine)), coins, steps))
        near.append([naive_nearest(x, medians[i]) for x in mine])
    costs = [sum(distance for distance, _ in site) for site in near]
    points, weights, reached, shares = [], [], 0.0, []
    left = [[sum(label == b for _, label in site) for b in range(k)] for site in near]
    for i, mine in enumerate(records):
        before, reached = reached, reached + size * costs[i] / sum(costs)
        shares.append(int(np.floor(reached + share_coin) - np.floor(before + share_coin)))
        for slot in range(shares[i]):
            j = naive_pick([d for d, _ in near[i]], coin("coreset draws", 2, i, slot))
            distance, label = near[i][j]
            points.append(mine[j])
            weights.append(sum(costs) / (size * distance))
            left[i][label] -= weights[-1]
    coreset = np.concatenate([np.concatenate(medians), points])
    return coreset, np.concatenate([np.ravel(left), weights]), shares


@pytest.mark.parametrize("seed", range(3))
def test_the_coreset_is_that_of_a_loop(ragged, seed):
    X, offsets = ragged
    state = run_once(X, offsets, seed, k=2, size=30, local_steps=3)
    coreset, weights, shares = naive_coreset(X, offsets, seed, 2, 30, 3)
    assert state["shares"].tolist() == shares
    np.testing.assert_allclose(state["coreset"], coreset, atol=1e-6)
    np.testing.assert_allclose(state["coreset_weights"], weights, rtol=1e-5, atol=1e-5)
    assert state["coreset_weights"].sum() == pytest.approx(len(X))
    assert (state["coreset_weights"] < 0).any()  # as the reference allows


@pytest.fixture
def unsolved(monkeypatch):
    """Skip most of the server's work where only the coreset is looked at."""
    for name, value in (("RESTARTS", 1), ("FIRST_STEPS", 0), ("LAST_STEPS", 0)):
        monkeypatch.setattr(coreset_kmedian_stages, name, value)


@pytest.mark.usefixtures("unsolved")
def test_the_coresets_cost_is_unbiased(ragged):
    """120 coresets, five sets of random centres: a deviate beyond 5 comes once in 10^6 runs.

    Power: a bias of 2 % would be seen.
    """
    X, offsets = ragged
    rng = np.random.default_rng(5)
    centers = [3 * rng.standard_normal((3, 5)) for _ in range(5)]
    whole, drawn = [], []
    for seed in range(120):
        state = run_once(X, offsets, seed, k=2, size=25, local_steps=2)
        points, weights = state["coreset"], state["coreset_weights"]
        whole.append([cost(points, C, weights) / cost(X, C) for C in centers])
        drawn.append([cost(points[24:], C, weights[24:]) / cost(X, C) for C in centers])
    error = np.std(whole, axis=0, ddof=1) / 120**0.5
    assert (5 * error < 0.02).all()
    assert (abs(np.mean(whole, axis=0) - 1) < 5 * error).all()
    # What the medians are for: without them the mean is right too, but the error is larger.
    assert (np.std(whole, axis=0) < 0.8 * np.std(drawn, axis=0)).all()


@pytest.mark.usefixtures("unsolved")
def test_a_larger_coreset_is_nearer(ragged):
    """The error falls with the square root of the size: 16 times the points, a quarter of it."""
    X, offsets = ragged
    C = np.random.default_rng(1).standard_normal((3, 5))
    errors = {}
    for size in (40, 640):
        states = [run_once(X, offsets, seed, k=2, size=size, local_steps=2) for seed in range(40)]
        estimates = [cost(s["coreset"], C, s["coreset_weights"]) for s in states]
        errors[size] = np.sqrt(np.mean((np.array(estimates) / cost(X, C) - 1) ** 2))
    assert 0.1 < errors[640] / errors[40] < 0.5
    assert errors[640] < 0.05


def test_a_site_alone_uploads_what_it_uploads_among_others(ragged):
    X, offsets = ragged
    method, randomness = Coreset(3, 40, 3), Randomness(2)
    sites = sites_of(X, offsets)
    state = method.start({}, sites.public, randomness)
    together = SiteBatch(X, offsets, np.arange(12))
    alone = [
        SiteBatch(X[offsets[i] : offsets[i + 1]], offsets[i : i + 2] - offsets[i], np.array([i]))
        for i in range(12)
    ]
    for t in (1, 2):
        everyone = method.local(together, state, t, ALL, randomness).values
        mine = [method.local(batch, state, t, ALL, randomness).values[0] for batch in alone]
        np.testing.assert_allclose(mine, everyone, rtol=1e-9, atol=1e-9)
        _, released = opened(method, together, state, randomness, t=t)
        state = method.combine(state, released, t)


def test_null_records_have_no_say(ragged):
    """A null record changes nothing but n_i, whatever it holds."""
    X, offsets = ragged
    present = np.arange(len(X)) % 4 > 0
    found = []
    for fill in (0.0, 1e3):
        records = np.where(present[:, None], X, fill)
        method, randomness = Coreset(2, 40, 3), Randomness(0)
        state = method.start({}, sites_of(records, offsets).public, randomness)
        batch = SiteBatch(records, offsets, np.arange(12), present)
        for t in (1, 2):
            _, released = opened(method, batch, state, randomness, t=t)
            state = method.combine(state, released, t)
        found.append(state)
    np.testing.assert_array_equal(found[0]["shares"], found[1]["shares"])
    np.testing.assert_allclose(found[0]["coreset_weights"], found[1]["coreset_weights"])
    np.testing.assert_allclose(found[0]["centers"], found[1]["centers"])
    assert found[0]["coreset_weights"].sum() == pytest.approx(present.sum())


def pooled_kmedian(X, k, rng, starts):
    """Return the best of some plain k-medians: random k-median++ starts, smoothed medians."""
    best = None
    for _ in range(starts):
        C = X[rng.integers(len(X), size=1)]
        while len(C) < k:
            p = np.linalg.norm(X[:, None, :] - C, axis=2).min(axis=1)
            C = np.concatenate([C, X[rng.choice(len(X), size=1, p=p / p.sum())]])
        for _ in range(25):
            labels = np.linalg.norm(X[:, None, :] - C, axis=2).argmin(axis=1)
            for cluster in range(k):
                mine = X[labels == cluster]
                for _ in range(3):
                    pull = 1 / np.sqrt(((mine - C[cluster]) ** 2).sum(axis=1) + 1.0)
                    C[cluster] = pull @ mine / pull.sum()
        if best is None or cost(X, C) < cost(X, best):
            best = C
    return best


def test_digits_are_clustered_as_by_pooled_kmedian():
    """The mean over seeds; one seed alone moves by 0.04 in accuracy."""
    X, y = load_digits(return_X_y=True)
    sites = np.random.default_rng(0).integers(25, size=len(X))
    with threadpool_limits(1):
        ours = [CoresetKMedian(10, random_state=seed).fit(X, sites=sites) for seed in range(5)]
        pooled = pooled_kmedian(X, 10, np.random.default_rng(0), starts=5)
    labels = np.linalg.norm(X[:, None, :] - pooled, axis=2).argmin(axis=1)
    accuracy = np.mean([clustering_accuracy(y, model.labels_) for model in ours])
    assert accuracy > clustering_accuracy(y, labels) - 0.03
    assert np.mean([cost(X, m.cluster_centers_) for m in ours]) < 1.01 * cost(X, pooled)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.0, 1e4])
@pytest.mark.parametrize("by_cluster", [False, True])
def test_blobs_are_found(dtype, shift, by_cluster):
    X, y = make_blobs(n_samples=400, centers=6, n_features=3, cluster_std=0.5, random_state=3)
    sites = y if by_cluster else np.minimum(np.arange(400) // 3, 40)
    model = CoresetKMedian(6, coreset_size=200, random_state=0, diagnostics=True)
    model.fit((X + shift).astype(dtype), y, sites=sites)
    assert model.cluster_centers_.dtype == dtype
    assert adjusted_rand_score(y, model.labels_) > 0.97
    assert model.n_iter_ == 2
    assert "objective" not in model.history_.rounds[0].diagnostics
    exact = cost((X + shift).astype(dtype).astype(float), model.cluster_centers_) / 400
    last = model.history_.rounds[1].diagnostics
    assert last["objective"] == pytest.approx(exact, rel=1e-2 if dtype == np.float32 else 1e-9)
    assert last["accuracy"] == clustering_accuracy(y, model.labels_)


def test_a_seed_fixes_the_result_and_the_order_of_sites_does_not_matter(blobs):
    X, _, sites = blobs
    model = CoresetKMedian(3, random_state=5).fit(X, sites=sites)
    order = np.argsort(-sites, kind="stable")
    moved = CoresetKMedian(3, random_state=5).fit(X[order], sites=sites[order])
    np.testing.assert_array_equal(model.cluster_centers_, moved.cluster_centers_)
    assert model.history_.stamps == ("no noise was added: not private",)
    other = CoresetKMedian(3, random_state=6).fit(X, sites=sites)
    assert not np.array_equal(other.cluster_centers_, model.cluster_centers_)


def test_sites_without_cost_send_their_medians_alone(rng):
    """Sites of one record are their own coreset, and nothing is divided by their cost of zero."""
    X = rng.standard_normal((12, 2)) + 20 * np.repeat(np.eye(2), 6, axis=0)
    model = CoresetKMedian(2, random_state=0).fit(X, sites=np.arange(12))
    assert adjusted_rand_score(np.repeat([0, 1], 6), model.labels_) == 1
    state = run_once(X, np.arange(13), 0, k=2)
    assert not state["shares"].any()
    assert len(state["coreset"]) == 24
    assert state["coreset_weights"].sum() == 12


@pytest.mark.parametrize("name", ["CPU_DEVICE", "device1"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_arrays_of_the_standard_give_the_same(ragged, name, noise):
    X, offsets = ragged
    device = array_api_strict.Device(name)

    def final(records, bound):
        randomness = Randomness(1)
        gate = OpenGate(SimulatedNoise(randomness))
        stages = [Coreset(3, 40, 3, noise_multiplier=noise)]
        state = {"bound": bound} if noise else {}
        return ran(stages, sites_of(records, offsets), randomness, gate=gate, state=state)

    ours = final(*(array_api_strict.asarray(a, device=device) for a in (X, np.asarray(9.0))))
    theirs = final(X, np.asarray(9.0))
    cpu = array_api_strict.Device("CPU_DEVICE")
    for key in ("coreset", "centers"):
        np.testing.assert_allclose(np.asarray(ours[key].to_device(cpu)), theirs[key], rtol=1e-7)
    np.testing.assert_allclose(ours["coreset_weights"], theirs["coreset_weights"], rtol=1e-7)


BAD_SETTINGS = [
    ({"n_clusters": 0}, "n_clusters must be >= 1, got 0"),
    ({"n_clusters": 21}, "n_samples=20 should be >= n_clusters=21"),
    ({"coreset_size": 0}, "coreset_size must be >= 1, got 0"),
    ({"local_steps": -1}, "local_steps must be >= 0, got -1"),
    ({"norm_bound": "auto"}, "norm_bound must be a number > 0, got 'auto'"),
    ({"epsilon": 1.0}, "norm_bound must be a number when epsilon is set, got None"),
    ({"epsilon": -1.0, "norm_bound": 1.0}, "epsilon must be >= 1e-06 and <= 1000000, got -1"),
    ({"delta": 0.0}, "delta must be >= 1e-12 and < 1, got 0"),
    ({"diagnostics": 1}, "diagnostics must be True or False, got 1"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_bad_settings(rng, settings, message):
    model = CoresetKMedian(**{"n_clusters": 3, **settings})
    with pytest.raises(InvalidInput, match=message):
        model.fit(rng.standard_normal((20, 2)), sites=np.arange(20) % 4)
    assert not hasattr(model, "cluster_centers_")
