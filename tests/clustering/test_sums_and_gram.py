"""The sums-and-Gram update: one round against a naive least squares, and as an estimator."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.clustering.stage import SiteBatch
from dpfedc.clustering.standardize import standardized_memory
from dpfedc.clustering.sums_and_gram import SumsAndGram
from dpfedc.errors import InvalidInput
from dpfedc.kernels.objective import membership_curvature, membership_steps
from dpfedc.randomness import Randomness
from support.runs import opened


def test_a_round_is_least_squares_on_the_memberships():
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(60, 5)), rng.normal(size=(3, 5))
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    state = {"data_mean": X.mean(axis=0), "scale": np.asarray(2.0), "W": W, "velocity": W * 0}
    stage = SumsAndGram(3, 1, ridge=1e-12)
    batch = SiteBatch(X, np.array([0, 20, 60]), np.arange(2))
    batch.memory = standardized_memory(batch, state, 0.0)
    _, released = opened(stage, batch, state, Randomness(0))
    found = stage.combine(state, released, 1)["W"]

    away = X - X.mean(axis=0)
    Z = away / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 2.0)
    M = membership_curvature(W, rho=stage.orthogonality(1), mu_h=0.0)
    H = membership_steps(Z @ W.T, M, stage.membership_steps)
    H = H / np.maximum(np.linalg.norm(H, axis=1, keepdims=True), 1.0)
    expected, *_ = np.linalg.lstsq(H, Z, rcond=None)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_it_clusters_blobs_and_promises_what_was_asked(epsilon):
    rng = np.random.default_rng(1)
    centers = np.array([[8.0, 0, 0], [0, 8, 0], [0, 0, 8]])
    y = np.arange(3000) % 3
    X = centers[y] + rng.normal(size=(3000, 3))
    model = DPFedC(3, epsilon=epsilon, update="sums-and-gram", random_state=0)
    model.fit(X, sites=rng.integers(0, 10, 3000))
    assert adjusted_rand_score(y, model.labels_) > 0.95
    if epsilon is not None:
        assert model.privacy_.epsilon <= epsilon


def test_local_steps_belong_to_the_gradient_update():
    with pytest.raises(InvalidInput, match="extra_steps must be 0 or None"):
        DPFedC(2, update="sums-and-gram", extra_steps=3).fit(np.eye(4))
