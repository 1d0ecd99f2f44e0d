"""Clusters of any shape and number from Python: what the attributes hold, and what is refused."""

import array_api_strict
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC, Schema


def bows(n=1500, seed=0):
    """Return two bent clusters that lie within each other's reach, and sites."""
    rng = np.random.default_rng(seed)
    angle, kind = rng.uniform(0, np.pi, n), rng.integers(2, size=n)
    bow = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    X = np.where(kind[:, None], [1.0, 0.4] - bow, bow) * 10 + rng.normal(scale=0.4, size=(n, 2))
    return X, kind, np.arange(n) % 5


@pytest.fixture(scope="module")
def bent():
    X, kind, sites = bows()
    return DPFedC(2, shape="any", epsilon=None, random_state=0).fit(X, sites=sites), X, kind


def test_bent_clusters_are_groups_of_prototypes(bent):
    model, X, kind = bent
    assert model.model_.by_prototype
    assert adjusted_rand_score(kind, model.labels_) > 0.95
    assert model.prototypes_.shape == (12, 2)
    assert model.cluster_centers_.shape == (2, 2)
    assert model.choose_k_ is None
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    # By hand: the cluster of the nearest prototype, and of memberships the largest decides.
    gaps = ((X[:, None] - model.prototypes_) ** 2).sum(axis=2)
    groups = model.model_.groups.astype(int)
    np.testing.assert_array_equal(groups[gaps.argmin(axis=1)], model.labels_)
    shares = model.transform(X)
    assert shares.shape == (len(X), 2)
    np.testing.assert_array_equal(shares.argmax(axis=1), model.labels_)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    # Records far out are pulled in before they are compared.
    fitted = model.model_
    inside = np.linalg.norm((X - fitted.center) / fitted.scale, axis=1) <= 1
    assert inside.mean() > 0.5
    closeness = 1 / np.stack([gaps[:, groups == c].min(axis=1) for c in (0, 1)], axis=1)
    expected = closeness / closeness.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares[inside], expected[inside], rtol=1e-6)


def test_prototypes_are_looked_up_in_arrays_of_any_kind(bent):
    model, X, _ = bent
    strict = array_api_strict.asarray(X)
    np.testing.assert_array_equal(model.model_.labels(strict), model.labels_)
    np.testing.assert_allclose(model.model_.memberships(strict), model.transform(X))


def test_clusters_of_a_table_with_gaps_may_have_any_shape():
    X, kind, sites = bows()
    frame = pd.DataFrame(X, columns=["east", "north"])
    gaps = np.random.default_rng(1).random(len(X)) < 0.1
    frame.loc[gaps, "north"] = np.nan
    columns = [{"name": n, "kind": "number", "range": [-15, 25]} for n in ("east", "north")]
    schema = Schema.of({"column": columns})
    model = DPFedC(2, shape="any", epsilon=None, random_state=0)
    model.fit(frame, sites=sites, schema=schema)
    assert model.model_.by_prototype
    np.testing.assert_array_equal(model.predict(frame), model.labels_)
    assert adjusted_rand_score(kind[~gaps], model.labels_[~gaps]) > 0.8
    assert np.abs(model.prototypes_).max() < 25


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"k_range": (2, 4)}, "k_range must be None unless n_clusters is 'auto'"),
        ({"n_clusters": "auto", "k_range": 4}, "k_range must be two whole numbers"),
        ({"n_clusters": "auto", "k_range": (2.5, 4)}, "k_range's low"),
        ({"n_clusters": "auto", "k_range": (2, 10**6)}, "k_range's high"),
        ({"n_clusters": "most"}, "n_clusters"),
        ({"shape": "square"}, "shape"),
        ({"n_prototypes": 2}, "n_prototypes"),
        ({"n_prototypes": 0}, "n_prototypes"),
        ({"shape": "any", "variant": "published"}, "variant must be 'normalized'"),
        ({"shape": "any", "init": np.zeros((3, 2))}, "init must be None with shape='any'"),
    ],
)
def test_number_and_shape_that_cannot_be_are_refused(settings, word):
    X, _, sites = bows(n=60)
    with pytest.raises(ValueError, match=word):
        DPFedC(**{"n_clusters": 3, "epsilon": None, **settings}).fit(X, sites=sites)
