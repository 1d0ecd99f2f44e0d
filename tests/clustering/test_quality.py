"""The released quality of clusters against naive sums over the pooled records."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dpfedc import DPFedC
from dpfedc.clustering.quality import Quality
from dpfedc.deployment.proposal import read_plan
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.summary.cluster_quality import ClusterQuality, Measured, quality_from

N, SITES = 600, 5
KINDS = {
    "by centre": {"n_clusters": 4},
    "refined": {"n_clusters": 4, "refine_rounds": 2, "constant_feature": 0.5},
    "by membership": {"n_clusters": 4, "refine_rounds": 0},
    "in a subspace": {"n_clusters": 4, "refine_rounds": 0, "subspace": 3},
    "with a constant": {"n_clusters": 4, "refine_rounds": 0, "constant_feature": 0.5},
    "merged": {"n_clusters": 2, "shape": "any", "n_prototypes": 6},
    "by prototype": {"n_clusters": 2, "shape": "any", "n_prototypes": 12, "random_state": 1},
    "chosen": {"n_clusters": "auto", "k_range": (2, 7)},
    "one": {"n_clusters": 1},
}

BY_MEMBERSHIP = ("by membership", "in a subspace", "with a constant")


def corners():
    """Return clusters at equal distances from the middle: no record is clipped."""
    rng = np.random.default_rng(0)
    return 10 * np.eye(4)[rng.integers(4, size=N)] + 0.4 * rng.standard_normal((N, 4))


def arcs():
    """Return a long and a short arc of one circle: nearest centres do not tell them apart."""
    angles = np.pi * np.concatenate([np.linspace(0, 1.3, 450), np.linspace(1.45, 1.85, 150)])
    return 10 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def fitted(X=None, **settings):
    given = {"epsilon": None, "quality": True, "random_state": 0, **settings}
    X = corners() if X is None else X
    return DPFedC(**given).fit(X, sites=np.arange(len(X)) % SITES)


def naive(estimator, X):
    """Return squared distances and silhouettes, record by record, in units of the data."""
    model, found = estimator.model_, []
    for x, label in zip(X, estimator.predict(X), strict=True):
        places, groups = estimator.cluster_centers_, range(len(estimator.cluster_centers_))
        if model.by_prototype:
            places, groups = estimator.prototypes_, model.groups
        gaps = [math.dist(x, place) for place in places]
        a = min(gap for gap, group in zip(gaps, groups, strict=True) if group == label)
        others = [gap for gap, group in zip(gaps, groups, strict=True) if group != label]
        b = min(others, default=a)
        found.append((a**2, (b - a) / max(a, b)))
    return np.array(found).T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_without_noise_it_is_what_the_final_model_makes_of_the_records(kind):
    X = arcs() if kind == "by prototype" else corners()
    estimator = fitted(X, **KINDS[kind])
    assert estimator.model_.by_prototype == (kind == "by prototype")
    assert estimator.model_.by_membership == (kind in BY_MEMBERSHIP)
    quality, labels = estimator.quality_, estimator.labels_
    squares, silhouettes = naive(estimator, X)
    assert len(quality.clusters) == len(estimator.cluster_centers_)
    assert quality.silhouette == Measured(pytest.approx(silhouettes.mean(), abs=1e-9), 0.0)
    assert quality.cost == Measured(pytest.approx(squares.mean(), rel=1e-6), 0.0)
    for c, one in enumerate(quality.clusters):
        own = labels == c
        assert one.size == Measured(own.sum(), 0.0)
        if own.any():
            assert one.cost.value == pytest.approx(squares[own].mean(), rel=1e-6)
            assert one.silhouette.value == pytest.approx(silhouettes[own].mean(), abs=1e-9)
        else:
            assert one.cost is one.silhouette is None


def test_with_noise_the_errors_are_those_of_the_gates_noise():
    estimator = fitted(n_clusters=4, epsilon=20.0, trust="secure-aggregation")
    quality, plan = estimator.quality_, estimator.plan_
    (stage,) = [stage for stage in plan.stages if isinstance(stage, Quality)]
    assert stage is plan.stages[-1]
    noise = plan.privacy.noise_of_sum("quality", SITES) * stage.sensitivity({}, 1)
    for one in quality.clusters:
        assert one.size.error == pytest.approx(noise)
        bars = math.hypot(noise, one.silhouette.value * noise) / one.size.value
        assert one.silhouette.error == pytest.approx(bars)
    assert quality.silhouette.error == pytest.approx(2 * noise / N)


def test_a_cluster_within_the_noise_has_a_size_and_no_means():
    sums, noise = np.array([[100.0, 5.0, 50.0], [29.0, 5.0, 5.0]]), np.array([10.0, 1.0, 10.0])
    first, second = quality_from(sums, noise, 129.0, 2.0).clusters
    assert first.cost.value == pytest.approx(4 * 5 / 100)
    assert first.cost.error == pytest.approx(math.hypot(4.0, 0.2 * 10) / 100)
    assert second.size == Measured(29.0, 10.0)
    assert second.cost is second.silhouette is None
    assert quality_from(sums, noise, 129.0, 2.0).rows()[1][1][2:] == ["\N{EN DASH}"] * 2


def test_what_is_shown_is_never_impossible():
    quality = quality_from(np.array([[9.0, -1.0, 9.5]]), np.array([1.0, 1.0, 1.0]), 9, 1.0)
    assert [text.split(".")[0] for text in quality.sentences()][1].startswith("Cost: 0")
    assert "1.0" in next(quality.sentences())


@pytest.mark.filterwarnings("ignore")
def test_it_is_kept_with_the_model():
    estimator = fitted(n_clusters=4, epsilon=20.0)
    model = estimator.model_
    again = ClusterModel.from_bytes(model.to_bytes())
    assert again.quality == model.quality == estimator.quality_
    recorded = json.loads(json.dumps(estimator.history_.results["quality"]))
    assert ClusterQuality.from_plain(recorded) == model.quality
    with pytest.raises(InvalidInput, match="quality must be of 4 clusters"):
        replace(model, quality=replace(model.quality, clusters=()))


@pytest.mark.filterwarnings("ignore")
def test_it_is_released_only_if_asked_for():
    estimator = fitted(n_clusters=4, epsilon=20.0, quality=False)
    assert estimator.quality_ is None
    assert "quality" not in [stage.name for stage in estimator.plan_.stages]
    assert "quality" not in estimator.history_.results


def test_the_published_variant_does_not_have_it():
    with pytest.raises(InvalidInput, match="quality must be False"):
        fitted(n_clusters=4, variant="published")


@pytest.mark.parametrize("values", [[0, 1, 3], [0, -1, 2], [0, 0.5, 1], [0, np.nan, 1]])
def test_a_site_refuses_clusters_of_places_that_are_none(values):
    within = Quality(3, 3).starts({}, 2)["place_clusters"].within
    assert within(np.array([0.0, 0.0, 2.0]), {})
    assert not within(np.array(values, dtype=float), {})


def test_a_plan_in_toml_asks_for_it():
    text = """
        [run]
        name = "study"
        coordinator = "university"
        clusters = 3
        features = ["a", "b"]
        quality = true
        [privacy]
        epsilon = 1.0
        delta = 1e-6
    """
    assert read_plan(text, n_sites=3)["settings"]["quality"] is True
    with pytest.raises(InvalidInput, match="quality"):
        read_plan(text.replace("quality = true", 'quality = "yes"'), n_sites=3)
