"""What a fit achieves on plain data: it descends, finds blobs, and ignores units and shifts."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from dpfedc import DPFedC
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation

NO_NOISE = {"epsilon": None}
SMALL_STEPS = {**NO_NOISE, "clip_norm": 0.1, "step": 1.0}


@pytest.mark.parametrize("settings", [SMALL_STEPS, {**NO_NOISE, "variant": "published"}])
@pytest.mark.parametrize("seed", range(3))
def test_the_objective_falls_on_blobs(blobs, settings, seed):
    X, _, sites = blobs
    model = DPFedC(n_clusters=3, n_rounds=40, random_state=seed, diagnostics=True, **settings)
    _, objective = model.fit(X - X.min(), sites=sites).history_.series("objective")
    assert objective[-1] < 0.8 * objective[0]
    assert np.mean(objective[-10:]) < np.mean(objective[:10])


def test_the_objective_falls_on_images():
    X, _ = load_digits(return_X_y=True)
    model = DPFedC(n_clusters=10, epsilon=None, n_rounds=15, random_state=0, diagnostics=True)
    _, objective = model.fit(X[:600], sites=np.arange(600) % 10).history_.series("objective")
    assert objective[-1] < 0.85 * objective[0]
    assert np.mean(np.diff(objective) < 0) > 0.8


def test_the_units_of_the_data_do_not_matter(blobs):
    """Powers of two scale every number exactly, so little may change but the exponent."""
    X, _, sites = blobs
    expected = DPFedC(n_clusters=3, epsilon=None, random_state=0).fit(X, sites=sites)
    for size in (2.0**-20, 2.0**20):
        model = DPFedC(n_clusters=3, epsilon=None, random_state=0).fit(size * X, sites=sites)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        # The edges of histograms are made by powers with fractions, which round.
        centers = model.cluster_centers_ / size
        np.testing.assert_allclose(centers, expected.cluster_centers_, rtol=1e-9)


@pytest.mark.parametrize("size", [2.0**-300, 2.0**-60, 2.0**60, 2.0**300])
def test_units_beyond_the_grid_of_histograms_do_not_matter_either(blobs, size):
    X, y, sites = blobs
    model = DPFedC(n_clusters=3, epsilon=None, random_state=0).fit(size * X, sites=sites)
    assert adjusted_rand_score(y, model.labels_) > 0.95
    if abs(np.log2(size)) > 100:
        return
    known = {"epsilon": 200.0, "norm_bound": 15 * size, "random_state": 0}
    model = DPFedC(n_clusters=3, **known).fit(size * X, sites=sites)
    assert adjusted_rand_score(y, model.labels_) > 0.95


def test_many_clusters_need_no_more_memory_than_there_is():
    X = np.random.default_rng(0).normal(size=(3000, 3))
    model = DPFedC(n_clusters=300, epsilon=None, random_state=0).fit(X)
    assert len(np.unique(model.labels_)) > 200
    plan = method_named("dp-fedc").plan(
        {"n_clusters": 900}, Federation(4, np.array([90_000])), None
    )
    assert max(getattr(stage, "n_clusters", 0) for stage in plan.stages) <= 1000


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_common_shift_does_not_matter(blobs, dtype):
    X, y, sites = blobs
    for shift in (-1e4, 100.0, 1e4):
        shifted = (X + shift).astype(dtype)
        model = DPFedC(n_clusters=3, epsilon=None, random_state=0).fit(shifted, sites=sites)
        assert adjusted_rand_score(y, model.labels_) > 0.95


def test_public_centers_are_where_the_run_starts(rng):
    """From the true centres the clusters come out in their order, whatever the seed."""
    truth = np.array([[0.0, 20.0], [20.0, 0.0], [-20.0, -5.0], [5.0, -20.0]])
    y = rng.integers(4, size=200)
    X = truth[y] + rng.standard_normal((200, 2))
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        for seed in range(3):
            model = DPFedC(
                n_clusters=4, n_rounds=3, init=truth[order], random_state=seed, **SMALL_STEPS
            ).fit(X)
            np.testing.assert_array_equal(np.array(order)[model.labels_], y)
    published = DPFedC(
        n_clusters=4, variant="published", n_rounds=1, init=truth, extra_steps=0, random_state=0,
        epsilon=None,
    ).fit(X)  # fmt: skip
    np.testing.assert_allclose(published.model_.directions, truth, atol=2)


def separated_blobs(m, k, seed, gap=7.0, size=50):
    """Unit Gaussians whose centres are at least `gap` apart."""
    rng = np.random.default_rng(seed)
    side = 1.5 * gap * k ** (1 / m)
    centers: list[np.ndarray] = []
    while len(centers) < k:
        center = rng.uniform(-side, side, m)
        if all(np.linalg.norm(center - other) >= gap for other in centers):
            centers.append(center)
    y = np.repeat(np.arange(k), size)
    return np.array(centers)[y] + rng.standard_normal((k * size, m)), y


def test_blobs_are_found_as_by_kmeans():
    """One to ten dimensions, three to ten clusters, everything at its default."""
    shares = []
    with threadpool_limits(1):
        for m in (1, 2, 3, 5, 10):
            for k in (3, 6, 10):
                for seed in range(2):
                    X, y = separated_blobs(m, k, seed)
                    sites = np.arange(len(X)) % 10
                    ours = DPFedC(n_clusters=k, epsilon=None, random_state=seed).fit(X, sites=sites)
                    theirs = KMeans(k, n_init=5, random_state=seed).fit(X)
                    shares.append(
                        adjusted_rand_score(y, ours.labels_)
                        / adjusted_rand_score(y, theirs.labels_)
                    )
    assert np.mean(shares) >= 0.9
    assert np.median(shares) >= 0.99
