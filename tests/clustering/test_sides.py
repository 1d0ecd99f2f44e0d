"""Clusters beside the mean: where it is, how directions start, and which side a record is on."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.clustering import placing
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Public
from dpfedc.errors import UtilityWarning
from dpfedc.kernels.objective import membership_curvature, membership_matrix, membership_steps
from dpfedc.kernels.row_views import Standardized
from dpfedc.model_file import ClusterModel
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty, PrivacyTarget

PENALTY = Penalty(1.0)


def records_and_directions(seed, n=60, d=3, k=3):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((k, d))
    return rng.standard_normal((n, d)), W / np.linalg.norm(W, axis=1, keepdims=True)


@given(st.integers(0, 10_000))
def test_a_record_on_no_side_goes_where_it_is_least_far_off(seed):
    X, W = records_and_directions(seed)
    view = Standardized.of(X, center=np.zeros(3), scale=None)
    found = membership_matrix(view, W, penalty=PENALTY, steps=20)
    products = view.products(W)
    M = membership_curvature(W, rho=1.0, mu_h=0.0)
    for row, own, along in zip(found, membership_steps(products, M, 20), products, strict=True):
        if max(own) > 0:
            np.testing.assert_array_equal(row, own)  # all others are as they were
            continue
        assert np.flatnonzero(row).tolist() == [np.argmax(along)]
        assert 0 < row.max() < 1e-30


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_order_of_directions_does_not_decide(dtype):
    X, W = records_and_directions(0)
    nowhere = (X @ W.T < 0).all(axis=1)
    assert nowhere.sum() > 3
    order = np.array([2, 0, 1])
    labels, turned = (
        ClusterModel(directions=some, center=np.zeros(3), scale=None, penalty=PENALTY)
        .labels(X.astype(dtype))
        for some in (W, W[order])
    )  # fmt: skip
    np.testing.assert_array_equal(labels, order[turned])
    assert len(set(labels[nowhere])) > 1


def plan_of(n_records, n_features=16, epsilon=1.0, **settings):
    target = PrivacyTarget(epsilon, 1e-5, trust="secure-aggregation")
    facts = Federation(n_features, np.full(20, n_records // 20))
    return method_named("dp-fedc").plan(settings, facts, target)


def search_of(plan):
    return next(stage for stage in plan.stages if isinstance(stage, Factorization))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"n_clusters": 2}, True),
        ({"n_clusters": 3}, False),
        ({"n_clusters": 2, "center": False}, False),  # both may lie to one side of the origin
    ],
)
def test_two_directions_start_as_two_sides_of_the_mean(settings, expected):
    stage = search_of(plan_of(360, **settings))
    assert stage.opposite == expected


def directions_at_the_start(stage):
    state = {"data_mean": np.zeros(4), "scale": np.asarray(1.0)}
    public = Public(4, np.array([10]), np.asarray)
    return stage.start(state, public, Randomness(3))["W"]


def test_opposite_directions_start_so_from_every_start():
    for number in range(3):
        W = directions_at_the_start(Factorization(2, 5, opposite=True, start_number=number))
        np.testing.assert_array_equal(W[0], -W[1])
    apart = directions_at_the_start(Factorization(2, 5))
    assert np.abs(apart[0] + apart[1]).max() > 0.1
    init = np.eye(2, 4)
    given_ones = directions_at_the_start(Factorization(2, 5, opposite=True, init=init))
    np.testing.assert_allclose(given_ones, init)  # whoever gives centres gets them


def scores(n_records, n_features, epsilon, gap, offset):
    """Return how well two clusters of unequal sizes are found, in 20 runs."""

    def score(seed):
        rng = np.random.default_rng(seed)
        y = (rng.random(n_records) < 0.35).astype(int)
        X = rng.standard_normal((n_records, n_features)) + offset
        X[:, 0] += gap * y
        settings = {"epsilon": epsilon, "delta": 1e-5, "trust": "trusted-server"}
        model = DPFedC(2, **settings, random_state=seed)
        return adjusted_rand_score(y, model.fit(X, sites=np.arange(n_records) % 5).labels_)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UtilityWarning)
        return np.array([score(seed) for seed in range(20)])


def test_few_records_far_from_the_origin_are_clustered_as_well_as_those_around_it(monkeypatch):
    near, far = (scores(600, 30, 0.5, gap=6, offset=offset) for offset in (0.0, 5.0))
    assert near.mean() > 0.9
    assert far.mean() > 0.85
    once = tuple((most, passes[-1:]) for most, passes in placing.PLACING)
    monkeypatch.setattr(placing, "PLACING", once)
    assert scores(600, 30, 0.5, gap=6, offset=5.0).mean() < 0.8
