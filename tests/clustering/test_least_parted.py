"""A start for round clusters: which of many the links speak for, and what comes of it."""

import math

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.clustering import merged_prototypes
from dpfedc.clustering.least_parted import LeastParted
from dpfedc.clustering.merged_prototypes import put_together, steadiness
from dpfedc.clustering.neighbors import Neighbors
from dpfedc.clustering.quality import _distance_bound
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.settings import PrivacyTarget

PRIVATE = {"epsilon": 4.0, "trust": "secure-aggregation", "random_state": 0}
CORNERS = np.array([[0.3, 0.3], [0.3, -0.3], [-0.3, 0.3], [-0.3, -0.3]])


def state_of(prototypes, sizes=None, error=1.0):
    """Return what a state holds of prototypes that were moved and counted."""
    p = len(prototypes)
    sizes = np.full(p, 500.0) if sizes is None else np.asarray(sizes, dtype=float)
    return {
        "best_centers": np.asarray(prototypes, dtype=float),
        "sizes": sizes,
        "size_errors": np.full(p, error),
        "mean_squares": np.full(p, 0.01),
        "best_cost": np.asarray(0.01 * sizes.sum()),
        "best_records": np.asarray(sizes.sum()),
    }


def graph_of(pairs, p=4, count=500.0):
    graph = np.diag(np.full(p, count))
    for i, j, weight in pairs:
        graph[i, j] = graph[j, i] = weight
    return graph


def together(found, prototypes):
    """Return which prototypes have the same nearest centre, as a matrix."""
    gaps = np.linalg.norm(prototypes[:, None] - found["centers"], axis=2)
    return np.equal.outer(gaps.argmin(axis=1), gaps.argmin(axis=1))


@pytest.mark.parametrize("side", [0, 1])
def test_of_starts_that_cost_the_same_links_decide(side):
    """A square may be cut in two ways that cost the same; records lie along two of its sides."""
    linked = ([(0, 1, 90.0), (2, 3, 90.0)], [(0, 2, 90.0), (1, 3, 90.0)])[side]
    found = put_together(graph_of(linked), 1.0, state_of(CORNERS), 2)
    same = CORNERS[:, side]
    assert np.array_equal(together(found, CORNERS), np.equal.outer(same, same))


def test_links_do_not_outweigh_what_costs_far_more():
    """All records between two prototypes far apart would not make them one round cluster."""
    far = np.array([[0.9, 0.0], [0.9, 0.02], [-0.9, 0.0], [-0.9, 0.02]])
    found = put_together(graph_of([(0, 2, 60.0), (1, 3, 60.0)]), 1.0, state_of(far), 2)
    assert np.array_equal(together(found, far), np.equal.outer(far[:, 0], far[:, 0]))


def test_centres_are_means_and_squares_are_those_of_the_records():
    sizes = [100.0, 300.0, 250.0, 250.0]
    found = put_together(graph_of([(0, 1, 60.0), (2, 3, 60.0)]), 1.0, state_of(CORNERS, sizes), 2)
    found = {name: values[np.argsort(-found["centers"][:, 0])] for name, values in found.items()
             if values.ndim}  # fmt: skip
    np.testing.assert_allclose(found["centers"], [[0.3, -0.15], [-0.3, 0.0]], atol=1e-9)
    spread = [0.25 * 0.45**2 + 0.75 * 0.15**2, 0.3**2]
    np.testing.assert_allclose(found["mean_squares"], 0.01 + np.array(spread))
    assert (found["residual_bounds"] >= 3 * np.sqrt(found["mean_squares"]) * 0.999).all()


def test_prototypes_that_may_be_noise_have_no_say():
    prototypes = np.vstack([CORNERS, [[5.0, 5.0]]])
    state = state_of(prototypes, [500.0, 500, 500, 500, 1.5])
    graph = graph_of([(0, 1, 90.0), (2, 3, 90.0)], p=5)
    found = put_together(graph, 1.0, state, 2)
    assert np.abs(found["centers"]).max() < 0.5
    swamped = put_together(graph, 1.0, state_of(prototypes, np.full(5, 0.5)), 3)
    assert np.isfinite(swamped["centers"]).all()


def test_records_of_a_few_values_cost_nothing_and_are_put_together_all_the_same():
    """Noise may leave no spread at all; what was released must not be lost for that."""
    state = {**state_of(CORNERS), "best_cost": np.asarray(0.0), "mean_squares": np.zeros(4)}
    found = put_together(graph_of([]), 1.0, state, 4)
    assert {tuple(row) for row in found["centers"].round(9)} == {tuple(row) for row in CORNERS}
    X = np.repeat(np.eye(3), 1000, axis=0)
    settings = {"epsilon": 2.0, "norm_bound": 2.0, "random_state": 3}
    model = DPFedC(3, **settings).fit(X, sites=np.arange(3000) % 3)
    assert np.isfinite(model.cluster_centers_).all()


def test_what_links_alone_give_is_not_called_stable_if_no_start_comes_to_it():
    prototypes = 0.2 * np.array([[0.0, 0.0], [0.8, 0.0], [2.0, 0.0], [2.9, 0.0]])
    state = {
        **state_of(prototypes),
        "best_cost": np.asarray(2000.0),
    }  # wide clusters: all cost alike
    found = put_together(graph_of([(1, 2, 200.0), (2, 3, 200.0)]), 1.0, state, 2)
    assert sorted(found["centers"][:, 0]) == pytest.approx([0.0, 0.2 * 5.7 / 3])
    assert found["stability"] < 0.5
    links = graph_of([(0, 1, 200.0), (2, 3, 200.0)])
    assert put_together(links, 1.0, state, 2)["stability"] == 1


LINE = 0.2 * np.array([[0.0, 0.0], [0.8, 0.0], [2.0, 0.0], [2.9, 0.0]])


@pytest.mark.parametrize("any_shape", [False, True])
def test_without_a_gap_records_belong_to_prototypes_if_any_shape_is_allowed(any_shape):
    """k-means parts all links there are; a fifth prototype is only noise, and joins the nearest."""
    prototypes = np.vstack([LINE, [[0.6, 0.1]]])
    state = state_of(prototypes, [500.0, 500, 500, 500, 1.5])
    state |= {"best_cost": np.asarray(2000.0), "prototypes": prototypes}
    graph = graph_of([(1, 2, 200.0), (2, 3, 200.0)], p=5)
    found = put_together(graph, 1.0, state, 2, any_shape=any_shape)
    assert sorted(found["centers"][:, 0]) == pytest.approx([0.0, 0.2 * 5.7 / 3])
    assert ("groups" in found) == ("by_prototype" in found) == any_shape
    if any_shape:
        groups = dict(zip(map(tuple, found["prototypes"]), found["groups"], strict=True))
        apart = [groups[tuple(row)] for row in prototypes]
        assert apart[1:] == [1 - apart[0]] * 4
        assert np.array_equal(np.sort(found["groups"]), found["groups"])
        own = found["centers"][int(apart[0])]
        np.testing.assert_allclose(own, prototypes[0], atol=1e-12)


@pytest.mark.parametrize(("noise", "tells"), [(28.0, True), (30.0, False)])
def test_links_that_may_be_noise_do_not_say_that_there_is_no_gap(noise, tells):
    """Links of 400 in all, among six pairs of prototypes: eight times their noise at 28.9."""
    state = {**state_of(LINE), "best_cost": np.asarray(2000.0), "prototypes": LINE}
    graph = graph_of([(1, 2, 200.0), (2, 3, 200.0)])
    assert ("groups" in put_together(graph, noise, state, 2, any_shape=True)) == tells


def test_without_noise_next_to_no_links_do_not_say_that_there_is_no_gap():
    """Of records of a few values there are links of rounding errors, and k-means parts them all."""
    rng = np.random.default_rng(0)
    y = np.r_[np.arange(20), rng.choice(20, 4980)]
    X = rng.normal(size=(20, 8))[y]
    for away in (0.0, 1e-3):
        near = X + away * rng.standard_normal(X.shape)
        model = DPFedC(20, epsilon=None, random_state=0).fit(near, sites=np.arange(5000) % 5)
        assert not model.model_.by_prototype
        assert adjusted_rand_score(y, model.labels_) == pytest.approx(1.0)


def test_of_two_prototypes_at_one_place_each_keeps_its_cluster():
    prototypes = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    state = {**state_of(prototypes), "prototypes": prototypes}
    state["best_cost"] = np.asarray(9e4)
    graph = graph_of([(1, 2, 100.0), (2, 3, 100.0), (1, 3, 100.0)])
    found = put_together(graph, 1.0, state, 2, any_shape=True)
    assert sorted(set(found["groups"])) == [0, 1]


def test_the_bound_of_the_quality_is_that_of_prototypes():
    """Distances are to those; the squares of the last round are to the cluster's centre."""
    state = {**state_of(LINE), "best_cost": np.asarray(2000.0), "prototypes": LINE}
    found = put_together(graph_of([(1, 2, 200.0), (2, 3, 200.0)]), 1.0, state, 2, any_shape=True)
    np.testing.assert_allclose(found["place_squares"], state["mean_squares"])
    found["mean_squares"] = np.full(2, 0.04)  # as the last round leaves it
    assert _distance_bound(found) == pytest.approx(3 * math.sqrt(0.01))
    in_all = {**state, "outside": np.asarray(0.02), "best_centers": LINE[:, :1]}
    found = put_together(graph_of([(1, 2, 200.0), (2, 3, 200.0)]), 1.0, in_all, 2, any_shape=True)
    np.testing.assert_allclose(found["place_squares"], 0.03)


def test_other_graphs_are_made_only_where_they_decide(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(merged_prototypes, "steadiness", never)
    state = {**state_of(CORNERS), "prototypes": CORNERS}
    put_together(graph_of([(0, 1, 60.0), (2, 3, 60.0)]), 1.0, state, 2, any_shape=True)


@pytest.mark.parametrize("across", [60.0, 30.0])
def test_with_a_gap_clusters_are_round_whatever_is_allowed(across):
    """k-means parts few of the links, or the tree costs far more."""
    state = {**state_of(CORNERS), "prototypes": CORNERS}
    graph = graph_of([(0, 1, 60.0), (2, 3, 60.0), (0, 3, across / 2)])
    found = put_together(graph, 1.0, state, 2, any_shape=True)
    assert "groups" not in found
    dear = graph_of([(0, 3, 60.0), (1, 2, 60.0)])
    assert "groups" not in put_together(dear, 1.0, state, 2, any_shape=True)


def stages(n_features, settings, epsilon=2.0):
    target = None if epsilon is None else PrivacyTarget(epsilon, 1e-5, trust="secure-aggregation")
    facts = Federation(n_features, np.full(20, 500))
    return method_named("dp-fedc").plan(settings, facts, target).stages


def test_three_clusters_and_more_are_put_together_of_prototypes():
    found = stages(8, {"n_clusters": 5})
    assert [s.name for s in found[-4:]] == ["cells", "refine", "neighbours", "centres"]
    refine, graph, last = found[-3:]
    assert isinstance(graph, LeastParted)
    assert refine.n_clusters == graph.n_prototypes == 12
    assert last.n_clusters == graph.n_clusters == 5
    for settings in ({"n_clusters": 2}, {"n_clusters": 5, "cells": None}):
        assert not any(isinstance(s, Neighbors) for s in stages(8, settings))
    assert any(isinstance(s, LeastParted) for s in stages(8, {"n_clusters": 5, "shape": "round"}))
    for settings in ({"shape": "any"}, {"n_clusters": "auto"}):
        graph = next(s for s in stages(8, {"n_clusters": 5} | settings) if s.name == "neighbours")
        assert not isinstance(graph, LeastParted)


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({}, True),
        ({"shape": "round"}, False),
        ({"n_clusters": 2}, False),
        ({"n_clusters": 2, "n_prototypes": 12}, True),
    ],
)
def test_records_may_belong_to_prototypes_unless_round_clusters_are_asked_for(settings, places):
    last = stages(8, {"n_clusters": 5, "quality": True} | settings)[-2:]
    graph = [s for s in stages(8, {"n_clusters": 5} | settings) if isinstance(s, LeastParted)]
    n_places = graph[0].n_prototypes if places else 0
    assert [stage.name for stage in last] == ["centres", "quality"]
    assert last[0].n_places == n_places
    assert last[1].n_places == (n_places or last[0].n_clusters)


def test_sites_do_for_it_what_they_do_for_any_graph():
    """So what is proved and tested of that release holds of this one."""
    for name in ("local", "prepare", "sensitivity", "upload", "starts", "reads"):
        assert getattr(LeastParted, name) is getattr(Neighbors, name)


@pytest.mark.parametrize("n_features", [3, 40])
def test_diagnostics_go_with_it_round_by_round(n_features):
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 4
    X = 8 * np.eye(4, n_features)[y] + rng.standard_normal((4000, n_features))
    model = DPFedC(4, diagnostics=True, **PRIVATE).fit(X, y, sites=np.arange(4000) % 5)
    assert model.cluster_centers_.shape == model.prototypes_.shape == (4, n_features)
    assert adjusted_rand_score(y, model.labels_) > 0.99
    accuracies = {r.stage: r.diagnostics["accuracy"] for r in model.history_.rounds[-2:]}
    assert list(accuracies) == ["neighbours", "centres"]
    assert accuracies["centres"] > 0.99
    assert model.model_.size_errors is not None
    assert model.model_.stability == pytest.approx(1.0)


def strips(seed, n=6000):
    """Return two long clusters side by side, and a ball: to cut both in two costs k-means less."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    X = rng.standard_normal((n, 2)) * 0.5 + np.array([[0.0, 2.45], [0.0, -2.45], [16.0, 0.0]])[y]
    X[:, 0] += np.where(y < 2, rng.uniform(-5, 5, n), 0.0)
    return X, y


def test_clusters_side_by_side_are_found_where_k_means_cuts_them_in_two():
    found, cut = [], []
    for seed in range(6):
        X, y = strips(seed)
        cut.append(adjusted_rand_score(y, KMeans(3, n_init=10, random_state=0).fit_predict(X)))
        model = DPFedC(3, **{**PRIVATE, "random_state": seed}).fit(X, sites=np.arange(len(X)) % 20)
        found.append(adjusted_rand_score(y, model.labels_))
    assert max(cut) < 0.6
    assert min(found) > 0.95


def on_a_line(seed, n=6000, k=10):
    """Return ten clusters side by side in one column, with gaps, and next to no links but noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    return 4.0 * y[:, None] + 0.7 * rng.standard_normal((n, 1)), y


def agreement_on_a_line():
    for seed in range(5):
        X, y = on_a_line(seed)
        model = DPFedC(10, epsilon=8.0, delta=1e-4, random_state=seed).fit(
            X, sites=np.arange(len(X)) % 100
        )
        yield adjusted_rand_score(y, model.labels_)


@pytest.mark.filterwarnings("ignore")
def test_noise_in_links_does_not_hide_gaps(monkeypatch):
    assert min(agreement_on_a_line()) > 0.93
    monkeypatch.setattr(merged_prototypes, "CLEAR_LINKS", 0.0)
    assert np.mean(list(agreement_on_a_line())) < 0.93


def cost_of_parts(X, model):
    """Return the mean squared distance from the means of the model's clusters."""
    parts = [X[model.labels_ == label] for label in np.unique(model.labels_)]
    return sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts) / len(X)


def test_a_cloud_without_clusters_is_cut_in_compact_parts(monkeypatch):
    """Links come out otherwise every time there: parts by links would cost a tenth more."""
    X = np.random.default_rng(0).standard_normal((6000, 8))
    given = {**PRIVATE, "random_state": 1}
    compact = DPFedC(4, **given).fit(X, sites=np.arange(len(X)) % 20)
    assert not compact.model_.by_prototype
    monkeypatch.setattr(merged_prototypes, "STEADY", 0.0)
    by_links = DPFedC(4, **given).fit(X, sites=np.arange(len(X)) % 20)
    assert by_links.model_.by_prototype
    assert cost_of_parts(X, compact) < 0.95 * cost_of_parts(X, by_links)


@pytest.mark.parametrize(("between", "is_steady"), [(200.0, True), (40.0, False)])
def test_links_are_steady_if_noise_once_more_leaves_the_groups(between, is_steady):
    """A chain of pairs: strong links in pairs, others between them, with 60 records of noise."""
    n = 8
    graph = np.diag(np.full(n, 3000.0))
    for i in range(n - 1):
        graph[i, i + 1] = graph[i + 1, i] = 900.0 if i % 2 == 0 and is_steady else between
    places = np.arange(n, dtype=float)[:, None]
    labels = np.arange(n) // 2
    found = steadiness(graph, 60.0, places, np.full(n, 3000.0), labels)
    assert (found > 0.95) == is_steady
    assert found > 0.95 or found < 0.75


def test_a_model_whose_records_belong_to_prototypes_says_so_everywhere(monkeypatch):
    """One cloud without gaps, cut in four."""
    monkeypatch.setattr(merged_prototypes, "STEADY", 0.0)
    X = np.random.default_rng(0).standard_normal((6000, 3))
    settings = {**PRIVATE, "random_state": 1}
    model = DPFedC(4, quality=True, **settings).fit(X, sites=np.arange(len(X)) % 20)
    assert len(model.prototypes_) > 4
    assert model.model_.by_prototype
    gaps = np.linalg.norm(X[:, None] - model.prototypes_, axis=2)
    expected = np.asarray(model.model_.groups, dtype=int)[gaps.argmin(axis=1)]
    assert np.array_equal(model.predict(X), expected)
    assert np.array_equal(model.labels_, expected)
    # The last round counts and moves by prototype, too: so do the error bars.
    sizes, errors = np.bincount(expected, minlength=4), model.model_.size_errors
    np.testing.assert_allclose(model.model_.sizes, sizes, atol=5 * errors.max())
    means = np.stack([X[expected == group].mean(axis=0) for group in range(4)])
    np.testing.assert_allclose(model.cluster_centers_, means, atol=0.1)
    told = [cluster.size.value for cluster in model.quality_.clusters]
    np.testing.assert_allclose(told, sizes, atol=400)
    round_ones = DPFedC(4, shape="round", **settings).fit(X, sites=np.arange(len(X)) % 20)
    assert len(round_ones.prototypes_) == 4
