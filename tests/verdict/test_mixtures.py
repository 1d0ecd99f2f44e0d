"""Invented records: where they lie, how far apart their clusters are, and in which shares."""

import math

import numpy as np
import pytest

from dpfedc.clustering.run_plan import Federation
from dpfedc.model_file import ClusterModel
from dpfedc.tables.layout import Group
from dpfedc.verdict.mixtures import (
    FAVOURITE,
    LEAST_WITHIN,
    OFFSET,
    SEPARATIONS,
    SPREAD_IN_RANGE,
    WIDE_DIRECTIONS,
    reference_mixture,
    released_mixture,
)
from support.summaries import bent_model

N = 20_000
LAYOUT = (
    Group("number", 0, 1, 1.0),
    Group("number", 1, 1, 1.0, auto=True),
    Group("gaps", 2, 1, 0.5),
    Group("shares", 3, 4, 1.0),
    Group("number", 7, 1, 1.0, typical=(0.4, 0.1)),
)


def facts_of(m, layout=None):
    return Federation(m, np.array([N]), layout)


def drawn(name="middling", k=4, m=3, layout=None, seed=0, **given):
    mixture = reference_mixture(name, {"n_clusters": k, **given}, facts_of(m, layout), seed=seed)
    assert (mixture.name, mixture.n_clusters) == (name, k)
    return mixture.draw(N, np.random.default_rng(1))


def means_of(X, y):
    return np.array([X[y == c].mean(axis=0) for c in np.unique(y)])


@pytest.mark.parametrize("name", SEPARATIONS)
@pytest.mark.parametrize("m", [1, 3, 20])
def test_centers_are_as_far_apart_as_stated(name, m):
    X, y = drawn(name, m=m)
    means = means_of(X, y)
    within = math.sqrt(np.mean((X - means[y]) ** 2))
    gaps = np.linalg.norm(means[:, None] - means, axis=2)
    np.fill_diagonal(gaps, np.inf)
    assert gaps.min(axis=1).mean() / within == pytest.approx(SEPARATIONS[name], rel=0.05)


def test_clusters_are_of_equal_size_and_records_in_random_order():
    _, y = drawn(k=3)
    assert np.ptp(np.bincount(y)) <= 1
    assert not np.array_equal(y, np.sort(y))


def test_columns_have_spread_one_and_lie_off_zero_unless_they_are_declared():
    X, _ = drawn()
    assert (X.var(axis=0)).mean() == pytest.approx(1, rel=0.05)
    # The centres' own mean comes on top: it is not far from zero.
    away = np.abs(X.mean(axis=0))
    assert (np.abs(away - OFFSET) < 1.2).all()


def test_values_lie_in_declared_ranges():
    ranges = np.array([[0.0, 1.0], [-50.0, 50.0], [1000.0, 1004.0]])
    X, _ = drawn(feature_ranges=ranges)
    assert (ranges[:, 0] <= X).all()
    assert (ranges[:, 1] >= X).all()
    spread = X.std(axis=0) / (ranges[:, 1] - ranges[:, 0]) * 2
    assert spread.mean() == pytest.approx(SPREAD_IN_RANGE, rel=0.15)


def test_no_record_is_longer_than_declared():
    X, _ = drawn(norm_bound=7.0)
    assert np.linalg.norm(X, axis=1).max() == pytest.approx(7.0)


def test_what_is_declared_nonnegative_lies_above_zero():
    X, y = drawn("far", m=6, nonnegative=True)
    assert means_of(X, y).min() > -0.5
    assert X.mean() > 1


def test_many_columns_differ_in_few_directions():
    X, y = drawn("near", k=2, m=80)
    inside = X - means_of(X, y)[y]
    values = np.linalg.svd(inside[:2000], compute_uv=False)
    assert values[WIDE_DIRECTIONS - 1] > 0.5 * values[0]
    assert values[WIDE_DIRECTIONS] < 0.05 * values[0]


def test_a_seed_names_a_mixture():
    (X, y), (again, _), (other, _) = drawn(seed=3), drawn(seed=3), drawn(seed=4)
    np.testing.assert_array_equal(X, again)
    assert not np.allclose(means_of(X, y), means_of(other, y))


def test_one_cluster_and_tables_without_numbers_are_drawn_too():
    X, y = drawn(k=1)
    assert (X.shape, set(y)) == ((N, 3), {0})
    X, _ = drawn(layout=(Group("shares", 0, 3, 1.0),))
    np.testing.assert_array_equal(X.sum(axis=1), 1.0)


@pytest.mark.parametrize("name", FAVOURITE)
def test_a_table_is_encoded_as_a_site_encodes_it(name):
    X, y = drawn(name, m=8, layout=LAYOUT)
    assert np.abs(X[:, [0, 7]]).max() <= 1
    assert X[:, 7].mean() == pytest.approx(0.4, abs=0.15)  # what the schema says is typical
    assert np.abs(X[:, 1]).mean() > 1  # its range is to be found out
    assert not X[:, 2].any()
    shares = X[:, 3:7]
    assert set(np.unique(shares)) == {0.0, 1.0}
    np.testing.assert_array_equal(shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(means_of(shares, y).max(axis=1), FAVOURITE[name], atol=0.03)


# --- what a run released -----------------------------------------------------------------------


def model_of(**changes):
    fields = {
        "directions": np.eye(3, 2),
        "center": np.array([10.0, -20.0]),
        "scale": 4.0,
        "centers": np.array([[0.5, 0.0], [-0.5, 0.2], [0.0, -0.6]]),
        "by_membership": False,
        "sizes": np.array([600.0, 300.0, 100.0]),
        "within": 0.08,
    }
    return ClusterModel(**{**fields, **changes})


def test_a_released_mixture_has_the_centers_sizes_and_spread_of_the_model():
    model = model_of()
    mixture = released_mixture(model, None)
    X, y = mixture.draw(N, np.random.default_rng(0))
    np.testing.assert_allclose(means_of(X, y), model.cluster_centers, atol=0.1)
    np.testing.assert_allclose(np.bincount(y) / N, [0.6, 0.3, 0.1], atol=0.01)
    squares = ((X - model.cluster_centers[y]) ** 2).sum(axis=1) / model.scale**2
    assert squares.mean() == pytest.approx(0.08, rel=0.03)


def test_noise_in_what_was_released_is_made_the_best_of():
    y = released_mixture(model_of(sizes=np.array([50.0, -9.0, 50.0])), None).draw(
        N, np.random.default_rng(0)
    )[1]
    assert set(y) == {0, 2}
    for sizes in (None, np.array([-5.0, -1.0, -2.0])):
        y = released_mixture(model_of(sizes=sizes), None).draw(N, np.random.default_rng(0))[1]
        np.testing.assert_allclose(np.bincount(y) / N, 1 / 3, atol=0.02)
    model = model_of(within=-0.2)
    X, y = released_mixture(model, None).draw(N, np.random.default_rng(0))
    squares = ((X - model.cluster_centers[y]) ** 2).sum(axis=1) / model.scale**2
    assert squares.mean() == pytest.approx(LEAST_WITHIN, rel=0.03)


def test_a_model_that_says_too_little_is_no_mixture():
    assert released_mixture(model_of(centers=None), None) is None
    assert released_mixture(model_of(scale=None, within=None), None) is None
    assert released_mixture(model_of(scale=None), None) is not None
    assert released_mixture(model_of(within=None), None) is not None


def test_a_released_mixture_of_a_table_holds_what_a_table_can_hold():
    m = 8
    centers = np.tile(np.linspace(-0.5, 0.5, m), (2, 1)) * [[1.0], [-1.0]]
    view = {"column_mean": np.full(m, 0.3), "column_factor": np.full(m, 2.0)}
    model = ClusterModel(
        np.eye(2, m), np.zeros(m), 3.0, centers, by_membership=False, view=view, within=0.4
    )
    X, _ = released_mixture(model, LAYOUT).draw(500, np.random.default_rng(0))
    assert np.abs(X[:, [0, 7]]).max() <= 1
    assert np.abs(X[:, 1]).max() > 1  # not clipped: its range was found out in the run
    assert not X[:, 2].any()
    assert set(np.unique(X[:, 3:7])) == {0.0, 1.0}
    np.testing.assert_array_equal(X[:, 3:7].sum(axis=1), 1.0)


def test_records_of_a_bent_cluster_lie_along_its_prototypes():
    """And all clusters together are as wide as the run released."""
    model = bent_model(within=5.0)
    X, y = released_mixture(model, None).draw(N, np.random.default_rng(0))
    gaps = np.linalg.norm(X[:, None] - model.prototypes, axis=2)
    # Around every prototype of the bow there are some, and hardly any far from all of them.
    near = np.bincount(gaps[y == 0].argmin(axis=1), minlength=5)[:4] / (y == 0).sum()
    assert near.min() > 0.1
    assert np.mean((X - model.centers[y]) ** 2) * 2 == pytest.approx(5.0, rel=0.05)
    assert (y == 0).mean() == pytest.approx(0.8, abs=0.02)
    narrow, y = released_mixture(bent_model(within=0.1), None).draw(N, np.random.default_rng(0))
    from_bow = np.linalg.norm(narrow[y == 0][:, None] - model.prototypes[:4], axis=2).min(axis=1)
    assert from_bow.max() < 2.0
    assert np.linalg.norm(narrow[y == 1] - model.prototypes[4], axis=1).max() < 1.0
