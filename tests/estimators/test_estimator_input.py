"""Bad input: every message says what was got and what was expected."""

import re

import numpy as np
import pandas as pd
import pytest

from dpfedc import DPFedC, stack_sites
from dpfedc.errors import DPFedCError, InvalidInput, OutsideConditions, UtilityWarning

X = np.random.default_rng(0).normal(size=(20, 2))


def with_value(value):
    changed = X.copy()
    changed[7, 1] = value
    return changed


def constant(n, m, dtype):
    return np.tile(np.random.default_rng(1).standard_normal(m).astype(dtype), (n, 1))


BAD_DATA = {
    "NaN": (with_value(np.nan), "contains NaN"),
    "infinity": (with_value(np.inf), "contains infinity"),
    "too large": (1e200 * X, r"must be at most .*overflow float64, got 2\.3e\+200"),
    "too large for its dtype": (
        (1e25 * X).astype(np.float32),
        r"must be at most .*overflow float32, got 2\.3e\+25",
    ),
    "too small": (1e-200 * X, r"must differ by at least .*underflow float64, got"),
    "text": (np.full((20, 2), "a"), "could not convert string to float: .*'a'"),
    "complex numbers": (1j * X, "Complex data not supported"),
    "one dimension": (X[:, 0], "Expected 2D array, got 1D array"),
    "no features": (X[:, :0], r"0 feature\(s\) .*minimum of 1"),
    "no records": (X[:0], r"0 sample\(s\) .*minimum of 1"),
    "fewer records than clusters": (X[:2], "n_samples=2 should be >= n_clusters=3"),
    "constant data": (np.ones((20, 2)), "all 20 records are equal, expected at least 2 distinct"),
    "duplicate rows": (
        np.repeat(X[:2], 10, axis=0),
        "2 distinct records, expected at least n_clusters=3",
    ),
}


@pytest.mark.parametrize(("data", "message"), BAD_DATA.values(), ids=BAD_DATA)
@pytest.mark.parametrize("variant", ["normalized", "published"])
def test_bad_data(data, message, variant):
    model = DPFedC(n_clusters=3, variant=variant)
    with pytest.raises(ValueError, match=message):
        model.fit(data)
    assert not hasattr(model, "cluster_centers_")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(17, 2), (1003, 33), (1003, 64), (5, 784)])
def test_equal_rows_are_equal_however_they_are_multiplied(shape, dtype):
    """A matrix product may round the same row differently in different places."""
    for k in (1, 2, 3):
        with pytest.raises(InvalidInput, match="X is constant"):
            DPFedC(n_clusters=k).fit(constant(*shape, dtype))
    two = np.concatenate([constant(*shape, dtype), 2 * constant(*shape, dtype)])
    with pytest.raises(InvalidInput, match="2 distinct records, expected at least n_clusters=4"):
        DPFedC(n_clusters=4).fit(two)


def test_duplicates_are_fine_while_enough_rows_differ():
    data = np.repeat(X[:4], 30, axis=0)
    labels = DPFedC(n_clusters=2, epsilon=None, random_state=0).fit(data).labels_
    assert len(np.unique(labels[:30])) == 1
    rare = np.concatenate([np.repeat(X[:1], 1000, axis=0), X[1:4]])
    model = DPFedC(n_clusters=4, epsilon=None, random_state=0).fit(rare)
    assert model.cluster_centers_.shape == (4, 2)


BAD_SETTINGS = {
    "n_clusters": [(0, "from 1 to 10000"), (2.0, "whole number from 1"), (True, "whole number")],
    "n_rounds": [(0, "from 1 to"), (-3, "from 1 to"), ("many", "whole number"), (None, "whole")],
    "sites_per_round": [(0, "from 1 to 4"), (5, "from 1 to 4"), (1.5, "from 1 to 4")],
    "refine_rounds": [(-1, "from 0 to"), ("some", "whole number from 0 to")],
    "membership_steps": [(0, "from 1 to"), (10**9, "from 1 to 10000")],
    "extra_steps": [(-1, ">= 0"), (0.5, "whole number >= 0")],
    "batch_size": [(0, ">= 1")],
    "epsilon": [
        (value, ">= 1e-06 and <= 1000000") for value in (0, -1.0, np.nan, "1", np.inf, 1e7)
    ],
    "delta": [(0, ">= 1e-12 and < 1"), (1, ">= 1e-12 and < 1"), (None, "number >= 1e-12")],
    "trust": [("nobody", "local, secure-aggregation, trusted-server")],
    "variant": [("printed", "normalized, published")],
    "orthogonality": [(-0.1, ">= 0"), ("hard", ">= 0")],
    "clip_norm": [(0, ">= 1e-06"), (-1.0, ">= 1e-06")],
    "step": [(0.0, "> 0")],
    "momentum": [(1.0, ">= 0 and < 1"), (-0.1, ">= 0 and < 1")],
    "constant_feature": [(-1, ">= 0")],
    "gradient_bound": [(0, "> 0")],
    "norm_bound": [(0, "> 0"), ("large", "> 0"), (np.inf, "> 0"), (None, "> 0")],
    "subspace": [(0, "from 1 to 2"), (3, "from 1 to 2"), (1.5, "from 1 to 2"), ("yes", "whole")],
    "sampling_probability": [(0, "> 0 and <= 1"), (1.5, "> 0 and <= 1"), ("half", "<= 1")],
    "min_survivors": [(0, ">= 1"), (2.5, "whole number >= 1")],
    "colluding_sites": [(-1, ">= 0"), (None, "whole number >= 0")],
    "center": [(1, "True or False"), ("no", "True or False"), (None, "True or False")],
    "scale": [(0.5, "True or False"), ("auto", "True or False")],
    "nonnegative": [(1, "True or False"), (np.array([True]), "True or False")],
    "diagnostics": [("yes", "True or False"), (0, "True or False")],
    "feature_ranges": [
        (np.ones((3, 2)), "shape (2, 2) with least < largest in every row, got shape (3, 2)"),
        (np.ones((2, 2)), "least < largest in every row, got [1. 1.] in row 0"),
        (np.array([[0, 1], [0, np.inf]]), "finite numbers of shape (2, 2)"),
        (np.array([[0, 1], [np.nan, 2]]), "in row 1"),
        ("wide", "finite numbers of shape (2, 2)"),
    ],
    "init": [
        (np.ones((2, 2)), r"shape (3, 2), got (2, 2)"),
        (np.full((3, 2), np.inf), "finite"),
        ("k-means++", "an array of shape (3, 2)"),
    ],
}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [(name, *case) for name, cases in BAD_SETTINGS.items() for case in cases],
)
def test_bad_settings(name, value, expected):
    model = DPFedC(**{"n_clusters": 3, name: value})
    with pytest.raises(InvalidInput, match=re.escape(expected)) as caught:
        model.fit(X, sites=np.arange(20) % 4)
    message = str(caught.value)
    assert message.startswith(name)
    assert "got" in message
    if not isinstance(value, np.ndarray):
        assert str(value) in message
    assert not hasattr(model, "cluster_centers_")


@pytest.mark.parametrize("truth", [True, np.True_, False, np.False_])
def test_booleans_of_either_kind_are_taken(truth):
    settings = {"center": truth, "scale": truth, "diagnostics": truth, "nonnegative": truth}
    model = DPFedC(n_clusters=3, epsilon=None, n_rounds=2, random_state=0, **settings)
    model.fit(abs(X))
    assert model.history_.settings["center"] is bool(truth)


def test_a_subspace_has_no_constant_feature():
    with pytest.raises(InvalidInput, match=r"subspace must be None or 'auto' .*got 1"):
        DPFedC(n_clusters=3, subspace=1, constant_feature=0.5).fit(X)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_survivors": 5}, "min_survivors must be from 1 to 4, got 5"),
        ({"min_survivors": 2, "colluding_sites": 2}, "min_survivors must be from 3 to 4, got 2"),
        ({"colluding_sites": 4}, "colluding_sites must be from 0 to 3, got 4"),
        (
            {"colluding_sites": 2, "sites_per_round": 2},
            "more survivors than colluding_sites=2, got 2",
        ),
    ],
)
def test_secure_aggregation_needs_enough_honest_sites(settings, message):
    model = DPFedC(n_clusters=3, trust="secure-aggregation", **settings)
    with pytest.raises(InvalidInput, match=message):
        model.fit(X, sites=np.arange(20) % 4)


def test_poor_results_are_announced():
    rng = np.random.default_rng(3)
    data = rng.normal(size=(2000, 2))
    with (
        pytest.warns(UtilityWarning, match=r"likely to swamp the clusters: .* expected below"),
        pytest.warns(
            UtilityWarning, match=r"clusters 0, 1 and 2 hold too few records to stand out"
        ),
    ):
        DPFedC(n_clusters=3, norm_bound=3.0, random_state=0).fit(X)
    with pytest.warns(UtilityWarning, match=r"well below 1 / n_records = 0\.0005, got 0\.001"):
        DPFedC(n_clusters=3, epsilon=8.0, delta=1e-3, random_state=0).fit(data)
    DPFedC(n_clusters=3, epsilon=8.0, random_state=0).fit(data)  # nothing to announce
    DPFedC(n_clusters=3, epsilon=None, delta=0.5, random_state=0).fit(X)


def test_published_noise_needs_a_gradient_bound():
    with pytest.raises(InvalidInput, match=r"needs gradient_bound > 0, got None"):
        DPFedC(n_clusters=3, epsilon=1.0, variant="published").fit(X)


def test_published_noise_needs_sites_large_enough():
    with pytest.raises(OutsideConditions, match=r"needs q < 1, got 5\.5"):
        DPFedC(n_clusters=3, epsilon=1.0, variant="published", gradient_bound=1.0).fit(
            abs(X), sites=np.arange(20) % 10
        )


def test_negative_data_declared_nonnegative():
    with pytest.raises(InvalidInput, match=r"every value >= 0, got a least value of -2\.3"):
        DPFedC(n_clusters=3, nonnegative=True).fit(X)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (np.zeros(19), r"expected shape \(20,\), got \(19,\)"),
        (np.zeros((20, 1)), r"expected shape \(20,\), got \(20, 1\)"),
        (7, r"expected shape \(20,\), got \(\)"),
        ([None] * 20, "ids of one kind, none missing, got NoneType"),
        (np.array([1, "a"] * 10, dtype=object), "ids of one kind, none missing, got int, str"),
        ([np.nan] * 20, "one id per record, got NaN for some"),
    ],
)
def test_bad_site_ids(sites, message):
    with pytest.raises(InvalidInput, match=message):
        DPFedC(n_clusters=3).fit(X, sites=sites)


def test_mismatched_labels():
    with pytest.raises(InvalidInput, match=r"expected shape \(20,\), got \(3,\)"):
        DPFedC(n_clusters=3, epsilon=None, diagnostics=True).fit(X, np.ones(3))


@pytest.mark.parametrize("call", ["predict", "transform", "score"])
def test_other_features_than_fitted(call):
    model = DPFedC(n_clusters=3, epsilon=None, random_state=0).fit(X)
    with pytest.raises(ValueError, match="has 1 features, but DPFedC is expecting 2"):
        getattr(model, call)(X[:, :1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "at least one array, got none"),
        ([X, X[:0]], r"non-empty 2-D array, got shape \(0, 2\) for site 1"),
        ([X[0]], r"non-empty 2-D array, got shape \(2,\) for site 0"),
        ([X, X[:, :1]], "expected 2, got 1 for site 1"),
    ],
)
def test_bad_stacks_of_sites(arrays, message):
    with pytest.raises(InvalidInput, match=message):
        stack_sites(arrays)


def test_errors_belong_to_one_tree():
    assert issubclass(InvalidInput, DPFedCError)
    assert issubclass(InvalidInput, ValueError)  # scikit-learn's convention


TABLE = {"column": [{"name": "age", "kind": "number", "range": [0, 100]}]}


def test_ids_at_more_sites_than_is_promised_for_are_warned_of():
    frame = pd.DataFrame({"age": np.linspace(1, 99, 40), "who": list(range(10)) * 4})
    sites = np.repeat([0, 1, 2, 3], 10)
    with pytest.warns(UtilityWarning, match="at 4 sites.*sites_per_person=4"):
        DPFedC(2, epsilon=None).fit(frame, sites=sites, schema=TABLE, persons="who")
    with pytest.warns(UtilityWarning, match="at 4 sites"):
        DPFedC(2, epsilon=None).fit(frame[["age"]], sites=sites, persons=frame["who"])


def test_ranges_that_leave_nothing_are_warned_of():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(100, 900, 40), "lab": rng.uniform(0, 1, 40)})
    lab = {"name": "lab", "kind": "number", "range": [0, 1]}
    with pytest.warns(UtilityWarning, match="most values of column 'age' are clipped"):
        DPFedC(2, epsilon=None).fit(frame, schema={"column": [*TABLE["column"], lab]})


def test_what_a_table_of_numbers_must_not_hold_is_refused_in_one_line():
    ages = np.linspace(1, 99, 40)
    for more, words in (
        ({"patient_id": np.arange(40)}, "column 'patient_id' looks like ids or codes"),
        ({"sex": ["F", "M"] * 20}, "column 'sex' must hold numbers without gaps"),
        ({"lab": [np.nan, *ages[1:]]}, "column 'lab' must hold numbers without gaps"),
    ):
        with pytest.raises(InvalidInput, match=words):
            DPFedC(2, epsilon=None).fit(pd.DataFrame({"age": ages, **more}))


def test_a_model_of_a_table_wants_a_table():
    frame = pd.DataFrame({"age": np.linspace(1, 99, 40)})
    model = DPFedC(2, epsilon=None, random_state=0).fit(frame, schema=TABLE)
    np.testing.assert_array_equal(model.predict(frame), model.labels_)
    with pytest.raises(InvalidInput, match="X must be a DataFrame, as in fit, got ndarray"):
        model.predict(frame.to_numpy())
    gone = model.predict(pd.DataFrame({"age": [None, 5.0]}))
    assert gone.tolist() == [-1, model.labels_[0]]
