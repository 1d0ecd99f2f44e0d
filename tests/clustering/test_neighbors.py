"""Clusters of any shape, and their number: the graph against a naive loop, and what is found."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.clustering.least_parted import LeastParted
from dpfedc.clustering.merged_prototypes import _merged
from dpfedc.clustering.neighbors import Neighbors
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import SiteBatch
from dpfedc.errors import InvalidInput, UtilityWarning
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyTarget

PRIVATE = {"epsilon": 2.0, "trust": "secure-aggregation", "random_state": 3}


def fitted(X, n_clusters, n_sites=20, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UtilityWarning)
        return DPFedC(n_clusters, **settings).fit(X, sites=np.arange(len(X)) % n_sites)


def blobs(k, *, n=4000, m=4, gap=8.0, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((k, m))
    gaps = np.linalg.norm(centers[:, None] - centers, axis=2)
    centers *= gap / np.min(gaps + np.eye(k) * 99)
    y = np.arange(n) % k
    return centers[y] + rng.standard_normal((n, m)), y


def naive_graph(Z, prototypes):
    """Return the sum of h h' by a loop over records."""
    graph = np.zeros((len(prototypes), len(prototypes)))
    for z in Z:
        distances = ((prototypes - z) ** 2).sum(axis=1)
        a, b = np.argsort(distances, kind="stable")[:2]
        apart = ((prototypes[a] - prototypes[b]) ** 2).sum()
        h = np.zeros(len(prototypes))
        h[a] = 1.0
        h[b] = 0.5 * min(max(1 - (distances[b] - distances[a]) / apart, 0.0), 1.0)
        graph += np.outer(h, h)
    return graph


def test_the_graph_is_that_of_a_naive_loop():
    rng = np.random.default_rng(0)
    Z, prototypes = rng.uniform(-0.5, 0.5, (200, 3)), rng.uniform(-0.5, 0.5, (7, 3))
    stage = Neighbors(7, 2, 2)
    state = {"data_mean": np.zeros(3), "scale": np.asarray(1.0), "prototypes": prototypes}
    state["basis"] = np.eye(3)[:1]  # prototypes have all features, whatever a search was kept to
    batch = SiteBatch(Z, np.array([0, 200]), np.array([0]))
    batch.memory = stage.prepare(batch, state, Randomness(0))
    found = stage.local(batch, state, 1, RoundSample(None, None), Randomness(0))
    total = found.clipped(stage.sensitivity(state, 1), None)
    np.testing.assert_allclose(total, naive_graph(Z, prototypes), atol=1e-9)


def test_moons_come_apart():
    X, y = make_moons(6000, noise=0.06, random_state=1)
    model = fitted(X, 2, shape="any", **PRIVATE)
    assert adjusted_rand_score(y, model.labels_) > 0.9
    assert model.cluster_centers_.shape == (2, 2)
    assert model.prototypes_.shape == (12, 2)
    assert model.model_.by_prototype
    assert np.array_equal(model.predict(X), model.labels_)
    assert np.array_equal(model.transform(X).argmax(axis=1), model.labels_)
    assert adjusted_rand_score(y, fitted(X, 2, shape="round", **PRIVATE).labels_) < 0.5


def test_round_clusters_keep_the_borders_of_nearest_centres():
    X, y = blobs(3)
    model = fitted(X, 3, shape="any", **PRIVATE)
    assert not model.model_.by_prototype
    assert adjusted_rand_score(y, model.labels_) > 0.98


@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_the_number_of_clusters_is_found(k):
    X, y = blobs(k, seed=k)
    model = fitted(X, "auto", k_range=(2, 12), **{**PRIVATE, "epsilon": 4.0})
    assert model.choose_k_.n_clusters == len(model.cluster_centers_) == k
    assert model.choose_k_.clear
    assert [point.n_clusters for point in model.choose_k_.curve] == list(range(2, 13))
    assert adjusted_rand_score(y, model.labels_) > 0.95
    assert model.get_feature_names_out().shape == (k,)


def test_a_choice_that_records_do_not_support_is_said_to_be_none():
    X = np.random.default_rng(0).random((4000, 8))
    model = DPFedC("auto", k_range=(2, 12), **PRIVATE)
    with pytest.warns(UtilityWarning, match="number of clusters is not clear"):
        model.fit(X, sites=np.arange(4000) % 20)
    assert not model.choose_k_.clear
    assert model.choose_k_.n_clusters == len(model.cluster_centers_)


def test_bent_clusters_are_counted_too():
    X, y = make_moons(6000, noise=0.06, random_state=1)
    model = fitted(X, "auto", k_range=(2, 6), shape="any", **PRIVATE)
    assert model.choose_k_.n_clusters == 2
    assert adjusted_rand_score(y, model.labels_) > 0.9


def test_sizes_have_bars_where_they_are_those_of_the_clusters():
    """Prototypes were counted; where records go to the nearest centre, borders are others."""
    X, _ = blobs(3)
    model = fitted(X, 3, shape="any", **PRIVATE)
    assert model.model_.size_errors is None
    model = fitted(X, 3, shape="any", quality=True, **PRIVATE)
    low, high = np.array([one.size.interval for one in model.quality_.clusters]).T
    sizes = np.bincount(model.labels_)
    assert ((low <= sizes) & (sizes <= high)).all()
    np.testing.assert_allclose(model.model_.sizes, (low + high) / 2)


def test_the_verdict_looks_for_as_many_clusters_as_were_chosen():
    X, _ = blobs(3)
    model = fitted(X, "auto", k_range=(2, 12), **{**PRIVATE, "epsilon": 4.0})
    assert model.verdict_.again > 0.9


def test_all_of_it_is_one_budget():
    X, _ = blobs(3)
    model = fitted(X, "auto", k_range=(2, 6), **PRIVATE)
    assert model.privacy_.epsilon <= 2.0
    assert model.privacy_.rounds_per_site["neighbours"] == 1


def stages(n_features, n, settings, epsilon=2.0):
    target = None if epsilon is None else PrivacyTarget(epsilon, 1e-5, trust="secure-aggregation")
    plan = method_named("dp-fedc").plan(settings, Federation(n_features, np.full(20, n)), target)
    return {stage.name: stage for stage in plan.stages}


def test_the_default_is_any_shape_where_features_are_many():
    found = stages(784, 500, {"n_clusters": 10})
    assert found["neighbours"].n_prototypes == found["factorisation"].n_clusters == 20
    for settings in ({"n_rounds": 30}, {"shape": "round"}, {"sites_per_round": 5}):
        assert "neighbours" not in stages(784, 500, {"n_clusters": 10, **settings})
    by_cells = stages(60, 500, {"n_clusters": 3}, epsilon=8.0)
    assert "cells" in by_cells
    assert by_cells["neighbours"].any_shape
    # Of few features it is a start for round ones, and allowed where there are no gaps.
    assert isinstance(stages(8, 500, {"n_clusters": 10})["neighbours"], LeastParted)
    assert not stages(8, 500, {"n_clusters": 10, "shape": "round"})["neighbours"].any_shape
    assert stages(8, 500, {"n_clusters": 10, "shape": "any"})["neighbours"].any_shape


def test_two_clusters_are_of_any_shape_only_if_that_is_asked_for():
    for n_features in (8, 60, 784):
        assert "neighbours" not in stages(n_features, 500, {"n_clusters": 2})
        assert "neighbours" in stages(n_features, 500, {"n_clusters": 2, "shape": "any"})


def test_the_graph_gets_more_where_it_must_tell_a_number_among_few_records():
    def share(n, **settings):
        target = PrivacyTarget(2.0, 1e-5, trust="secure-aggregation")
        plan = method_named("dp-fedc").plan(settings, Federation(64, np.full(20, n)), target)
        shares = {r.stage: r.n_rounds / r.noise_multiplier**2 for r in plan.privacy.releases}
        return shares["neighbours"] / sum(shares.values())

    assert share(500, n_clusters="auto") == pytest.approx(0.05, rel=1e-3)
    assert 0.1 < share(90, n_clusters="auto") <= 0.2
    assert share(30, n_clusters="auto") == pytest.approx(0.2, rel=1e-3)
    assert share(200, n_clusters=5) == pytest.approx(0.05, rel=1e-3)


def test_where_noise_is_strong_there_are_no_more_prototypes_than_clusters():
    assert "neighbours" not in stages(784, 500, {"n_clusters": 10, "shape": "any"}, epsilon=0.2)
    few = stages(8, 30, {"n_clusters": 3, "shape": "any"})
    assert "neighbours" not in few
    some = stages(784, 500, {"n_clusters": 10}, epsilon=0.7)["neighbours"].n_prototypes
    assert 10 < some < 20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"k_range": (2, 5)}, "k_range must be None unless n_clusters is 'auto'"),
        ({"n_clusters": "auto", "k_range": 5}, "k_range must be two whole numbers"),
        ({"n_clusters": "auto", "k_range": (5, 2)}, "k_range's high must be"),
        ({"n_clusters": "auto", "k_range": (1, 2)}, "k_range's low must be"),
        ({"n_clusters": "auto", "init": np.zeros((3, 4))}, "init must be None with n_clusters"),
        ({"shape": "any", "init": np.zeros((3, 4))}, "init must be None with shape='any'"),
        ({"n_prototypes": 2}, "n_prototypes must be >= 3, got 2"),
        ({"shape": "any", "variant": "published"}, "variant must be 'normalized'"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, said):
    X, _ = blobs(3, n=300)
    with pytest.raises(InvalidInput, match=said):
        DPFedC(**{"n_clusters": 3, "epsilon": None, **settings}).fit(X)


def test_errors_of_merged_centres_are_those_of_their_noise():
    """Sums and counts of four prototypes with noise, 3,000 draws: to 10 %."""
    rng, noise, count_noise = np.random.default_rng(5), 3.0, 2.0
    centers, counts = rng.normal(size=(4, 2)), np.array([200.0, 90, 300, 150])
    groups, found = np.array([0, 0, 0, 1]), []
    for _ in range(3000):
        n = counts + count_noise * rng.normal(size=4)
        sums = counts[:, None] * centers + noise * rng.normal(size=(4, 2))
        sums += (n - counts)[:, None] * centers  # a record more is a record there
        means = sums / n[:, None]
        own = {
            "best_centers": means, "sizes": n, "size_errors": np.full(4, count_noise),
            "center_errors": np.full((4, 2), noise) / n[:, None],
        }  # fmt: skip
        merged = _merged(own, groups, np.ones(4, bool))
        found.append(merged["best_centers"])
    np.testing.assert_allclose(np.std(found, axis=0), merged["center_errors"], rtol=0.1)
    np.testing.assert_allclose(merged["size_errors"], [np.sqrt(3) * 2, 2])
