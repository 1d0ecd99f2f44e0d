"""Columns in different units, of which nothing is known: scale="columns" finds their spread."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.tables.trial_records import TrialRecords

UNITS = np.array([1e-2, 1.0, 1e4, 30.0])
CENTERS = 8.0 * np.array([[1, 1, 0, 0], [0, 0, 1, 1], [-1, 0, 0, -1]])


def records(seed, n=6000):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return (CENTERS[y] + rng.standard_normal((n, 4))) * UNITS, y


def fitted(X, **settings):
    model = DPFedC(n_clusters=3, trust="trusted-server", random_state=0, **settings)
    return model.fit(X, sites=np.arange(len(X)) % 5)


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_columns_in_all_units_count_alike(epsilon, tmp_path):
    X, y = records(0)
    model = fitted(X, epsilon=epsilon, scale="columns")
    assert adjusted_rand_score(y, model.labels_) > 0.98
    nearest = ((model.cluster_centers_ / UNITS)[:, None] - CENTERS) ** 2
    assert np.sqrt(nearest.sum(axis=2).min(axis=1)).max() < 0.3  # centres are in the data's units
    low, high = model.model_.center_interval()
    assert ((low <= model.cluster_centers_) & (model.cluster_centers_ <= high)).all()
    overall = [column.values[0].overall for column in model.summary().clusters[0].columns]
    np.testing.assert_allclose(np.array(overall, dtype=float) / UNITS, X.mean(0) / UNITS, atol=0.3)
    path = tmp_path / "model.npz"
    model.model_.write(path)
    np.testing.assert_array_equal(ClusterModel.read(path).labels(X), model.labels_)


def test_one_scale_for_all_is_worse_and_says_so():
    X, y = records(1)
    told = r"column {} takes 100% of the length .*scale='columns'"
    with pytest.warns(UserWarning, match=told.format(r"\d \(counted from 0\)")):
        model = fitted(X, epsilon=2.0)
    assert adjusted_rand_score(y, model.labels_) < 0.9
    names = tuple("abcd")
    with pytest.warns(UserWarning, match=told.format(f"[{''.join(names)}]")):
        model.fit_records(TrialRecords(records(4)[0], None, feature_names=names))


def test_ranges_and_spread_are_charged_before_the_clustering():
    X, _ = records(2)
    stages = [r.stage for r in fitted(X, epsilon=2.0, scale="columns").history_.rounds]
    assert stages[:2] == ["ranges", "spread"]
    assert not {"bound", "mean", "radius", "scale"} & set(stages)


@pytest.mark.parametrize(
    "given",
    [{"norm_bound": 3.0}, {"feature_ranges": [[0, 1]] * 4}, {"center": False},
     {"nonnegative": True}, {"constant_feature": 0.5}],
)  # fmt: skip
def test_what_is_declared_of_records_cannot_stand_beside_it(given):
    X, _ = records(3, 300)
    with pytest.raises(InvalidInput, match=f"{next(iter(given))} must be left out with scale="):
        fitted(X, epsilon=2.0, scale="columns", **given)


def test_the_published_variant_knows_no_columns():
    X, _ = records(4, 300)
    with pytest.raises(InvalidInput, match="scale must be True or False for published"):
        fitted(X, epsilon=None, scale="columns", variant="published")
