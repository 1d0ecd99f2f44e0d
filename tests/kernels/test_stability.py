"""Whether other starts of the server's k-means would give other clusters."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.kernels.weighted_kmeans import agreement, best_of, clusterings, grouped


@pytest.mark.parametrize("seed", range(5))
def test_agreement_is_the_adjusted_rand_index_of_the_records_that_points_stand_for(seed):
    rng = np.random.default_rng(seed)
    one, other = rng.integers(0, 4, (2, 60))
    other = np.where(rng.random(60) < 0.5, one, other)
    counts = rng.integers(500, 3000, 60)
    expected = adjusted_rand_score(np.repeat(one, counts), np.repeat(other, counts))
    assert agreement(one, other, counts.astype(float)) == pytest.approx(expected, abs=2e-3)
    assert agreement(one, one, counts.astype(float)) == pytest.approx(1)


def test_clusters_apart_are_stable_and_a_ring_cut_in_two_is_not():
    rng = np.random.default_rng(0)
    turns = 2 * np.pi * np.arange(60) / 60
    ring = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    unstable = stability(ring, 2, rng)
    apart = 0.1 * ring + np.array([[0.0, 0], [5, 0], [0, 5]])[np.arange(60) % 3]
    assert unstable < 0.7
    assert stability(apart, 3, rng) == 1


def stability(points, k, rng):
    weights = np.ones(len(points))
    found = clusterings(points, weights, k, 20, rng)
    return best_of(found, [one.cost for one in found], weights)[1]


def test_given_groups_cost_what_a_loop_says():
    rng = np.random.default_rng(2)
    points, weights, labels = rng.random((20, 3)), rng.random(20), np.arange(20) % 4
    found = grouped(points, weights, labels)
    cost = 0.0
    for group in range(4):
        own = labels == group
        mean = np.average(points[own], axis=0, weights=weights[own])
        np.testing.assert_allclose(found.centers[group], mean)
        cost += float(weights[own] @ ((points[own] - mean) ** 2).sum(axis=1))
    assert found.cost == pytest.approx(cost)


def test_the_summary_says_whether_clusters_are_stable():
    rng = np.random.default_rng(1)
    ring = rng.standard_normal((4000, 2))
    ring /= np.linalg.norm(ring, axis=1, keepdims=True)
    apart = 8 * np.eye(3, 2)[rng.integers(0, 3, 4000)] + rng.standard_normal((4000, 2))
    said = {}
    for name, X, k in (("ring", ring, 2), ("apart", apart, 3)):
        model = DPFedC(n_clusters=k, epsilon=8.0, trust="trusted-server", random_state=0)
        said[name] = str(model.fit(X, sites=np.arange(4000) % 4).summary())
    assert "Not stable: other clusters fit" in said["ring"]
    assert "Stable: from other starts" in said["apart"]
