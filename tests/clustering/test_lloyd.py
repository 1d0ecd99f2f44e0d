"""Federated k-means and DP-Lloyd: scikit-learn from the same start, and what they promise."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpfedc.clustering.lloyd import LloydSums, spread_points
from dpfedc.clustering.seeding import SeedByDistance
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput
from dpfedc.estimators.federated_kmeans import DPLloyd, FederatedKMeans
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.randomness import Randomness
from support.runs import ran

SMALL = "50 records are too few for a clustering at this epsilon"


@parametrize_with_checks(
    [FederatedKMeans(n_clusters=3), DPLloyd(n_clusters=3, epsilon=1.0, norm_bound=20.0)],
    expected_failed_checks=lambda estimator: (
        {"check_clustering": SMALL} if isinstance(estimator, DPLloyd) else {}
    ),
)
@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_equals_pooled_lloyd_from_the_same_start(rng):
    X = rng.normal(size=(400, 4))
    start = X[:5].copy()
    ours = FederatedKMeans(5, init=start, n_rounds=60).fit(X, sites=rng.integers(0, 9, 400))
    theirs = KMeans(5, init=start, n_init=1, max_iter=60, tol=0).fit(X)
    assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-12)
    assert_array_equal(ours.labels_, theirs.labels_)


def test_is_as_accurate_as_scikit_learn_on_digits():
    X, y = load_digits(return_X_y=True)
    sites = np.arange(len(X)) % 20

    def mean(fit):
        return np.mean([clustering_accuracy(y, fit(seed)) for seed in range(8)])

    ours = mean(lambda s: FederatedKMeans(10, random_state=s).fit(X, sites=sites).labels_)
    theirs = mean(lambda s: KMeans(10, n_init=1, random_state=s).fit_predict(X))
    assert ours > theirs - 0.03


def test_seeding_draws_in_proportion_to_the_squared_distance():
    # After a first centre at 0 or elsewhere, the second is x with probability d^2(x) / sum d^2.
    X = np.array([[0.0], [1.0], [2.0], [4.0]])
    sites = Sites.of(X, [0, 0, 1, 1])
    counts, expected = np.zeros((4, 4)), np.zeros((4, 4))
    for seed in range(4000):
        state = ran([SeedByDistance(2)], sites, Randomness(seed))
        first, second = (int(np.flatnonzero(X[:, 0] == c)[0]) for c in state["centers"][:, 0])
        counts[first, second] += 1
    squares = (X - X.T) ** 2
    expected = 1000 * squares / squares.sum(axis=1, keepdims=True)
    off = ~np.eye(4, dtype=bool)
    scaled = expected[off] * counts.sum() / expected[off].sum()
    assert chisquare(counts[off], scaled).pvalue > 1e-6  # the false-alarm rate
    assert np.diag(counts).sum() == 0


def test_spread_points_keep_apart_in_the_unit_ball(rng):
    points = spread_points(8, 3, rng=rng)
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)[np.triu_indices(8, 1)]
    assert np.linalg.norm(points, axis=1).max() <= 1
    assert gaps.min() > 0.4


@pytest.mark.parametrize("trust", ["local", "secure-aggregation", "trusted-server"])
@pytest.mark.parametrize("bound", ["auto", 20.0])
def test_dp_lloyd_promises_what_was_asked_and_finds_clear_clusters(trust, bound):
    rng = np.random.default_rng(0)
    y = np.arange(20_000) % 3
    X = np.array([[-9.0, 0], [9, 0], [0, 9]])[y] + rng.normal(size=(20_000, 2))
    model = DPLloyd(3, epsilon=2.0, delta=1e-6, trust=trust, norm_bound=bound, random_state=1)
    model.fit(X, sites=y % 5)
    assert 1.9 < model.privacy_.epsilon <= 2.0
    assert adjusted_rand_score(y, model.labels_) > 0.95


def test_a_bound_that_moves_in_mid_stage_is_refused(rng):
    X = rng.normal(size=(30, 2))
    sites = Sites.of(X)
    stage, randomness = LloydSums(2, 2), Randomness(0)
    state = stage.start({"bound": np.asarray(3.0)}, sites.public, randomness)
    batch = sites.batch(np.arange(1), {})
    batch.memory = stage.prepare(batch, state, randomness)
    sample = OpenGate().sample(batch, stage="lloyd", t=1)
    stage.local(batch, state, 1, sample, randomness)
    with pytest.raises(InvalidInput, match="the stage began with"):
        stage.local(batch, {**state, "bound": np.asarray(1e-3)}, 1, sample, randomness)


def test_diagnostics_and_bad_input(rng):
    X = rng.normal(size=(60, 2))
    model = FederatedKMeans(3, diagnostics=True, random_state=0).fit(X, np.arange(60) % 3)
    assert "accuracy" in model.history_.rounds[-1].diagnostics
    with pytest.raises(InvalidInput, match="n_rounds must be from 1 to 100000, got 0"):
        FederatedKMeans(3, n_rounds=0).fit(X)
    with pytest.raises(InvalidInput, match=r"init must have shape \(3, 2\)"):
        FederatedKMeans(3, init=np.zeros((2, 2))).fit(X)
    with pytest.raises(InvalidInput, match="norm_bound must be > 0"):
        DPLloyd(3, norm_bound=-1.0).fit(X)
