"""A model on its way to the sites: it comes back as it was sent, or is refused."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.deployment.messages import MAGIC, packed, unpacked
from dpfedc.deployment.model_message import MAX_STEPS, max_bytes, model_message, received_model
from dpfedc.errors import InvalidInput
from dpfedc.tables.schema import Schema
from support.deployment import SIZES, MemoryTransport, agreed

SCHEMA = Schema.of(
    {
        "column": [
            {"name": "age", "kind": "number", "range": [0, 100], "missing": "indicator"},
            {"name": "weight", "kind": "number", "range": "auto"},
            {"name": "smoker", "kind": "category", "values": ["yes", "no"]},
        ]
    }
)


def table():
    """Return encoded records of two kinds for every site."""
    rng = np.random.default_rng(1)
    found = {}
    for site, n in SIZES.items():
        kind = rng.integers(2, size=n)
        X = np.zeros((n, len(SCHEMA.features)))
        X[:, 0] = np.where(kind, 0.6, -0.6) + 0.1 * rng.normal(size=n)
        X[:, 2] = np.where(kind, 90.0, 60.0) + rng.normal(size=n)
        X[np.arange(n), 3 + kind] = 1.0
        gaps = rng.random(n) < 0.1
        X[gaps, 0], X[gaps, 1] = np.nan, 1.0
        found[site] = X
    return found


def with_schema(**more):
    return {"schema": SCHEMA, "features": SCHEMA.features, "epsilon": 500.0, **more}


RUNS = {
    "dp-lloyd": ("dp-lloyd", {}, {}),
    "federated-k-means": ("federated-k-means", {"norm_bound": 12.0}, {}),
    "dp-fedc": ("dp-fedc", {}, {}),
    "subspace": ("dp-fedc", {"subspace": 2, "refine_rounds": 0, "update": "sums-and-gram"}, {}),
    "constant": ("dp-fedc", {"norm_bound": 14.0, "constant_feature": 0.5}, {}),
    "nonnegative": ("dp-fedc", {"nonnegative": True, "norm_bound": 14.0}, {}),
    "some sites": ("dp-fedc", {"n_rounds": 7, "sites_per_round": 2, "refine_rounds": 0}, {}),
    "secure": ("dp-lloyd", {}, {"noise": "secure"}),
    "prototypes": ("dp-fedc", {"n_prototypes": 5, "shape": "any"}, {}),
    "a choice": (
        "dp-fedc",
        {"n_clusters": "auto", "k_range": [2, 4], "shape": "any", "n_prototypes": 6},
        {},
    ),
    "quality": ("dp-fedc", {"cells": 6, "quality": True}, {"noise": "secure"}),
    "a table": ("dp-fedc", {"n_clusters": 2, "quality": True}, with_schema()),
    "a table, cells": ("dp-fedc", {"n_clusters": 2, "cells": 5}, with_schema()),
    "a table, Lloyd": ("dp-lloyd", {"n_clusters": 2}, with_schema()),
}


def finished(folder, method, chosen, more):
    """Return an agreement and the model of its run, with names."""
    agreement = agreed(method, settings=chosen, **more)
    X = {"X": table()} if agreement.schema is not None else {}
    model = MemoryTransport(agreement, folder, **X).coordinator().run().model
    return agreement, model.named(1, "the second").named(0, "ältere")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_model_of_every_run_comes_back_as_it_was(tmp_path, run):
    """Also what the site knows for itself: columns, schema, promise and stamps."""
    agreement, model = finished(tmp_path, *run)
    for sent in (model, replace(model, names={}), replace(model, center_errors=None, sizes=None)):
        message = model_message(agreement, sent)
        assert received_model(message, agreement).to_bytes() == sent.to_bytes()
        assert len(message) < max_bytes(agreement)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("plain"), "dp-fedc", {}, {})


@pytest.fixture(scope="module")
def of_table(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("table"), *RUNS["a table"])


def test_errors_of_centers_that_are_no_means_are_infinite(plain):
    agreement, model = plain
    errors = np.where(np.eye(3) > 0, np.inf, 0.5)
    again = received_model(
        model_message(agreement, replace(model, center_errors=errors)), agreement
    )
    np.testing.assert_array_equal(again.center_errors, errors)


def test_it_is_of_its_run_only(plain, of_table):
    message = model_message(*plain)
    for other in (of_table[0], replace(plain[0], seed=8)):
        with pytest.raises(InvalidInput, match="of its run"):
            received_model(message, other)


HEADS = {
    "steps without end": {"steps": 10**12},
    "more steps than any model": {"steps": MAX_STEPS + 1},
    "no steps": {"steps": 0},
    "steps of a half": {"steps": 0.5},
    "a scale of zero": {"scale": 0.0},
    "a scale beyond squares": {"scale": 1e200},
    "a scale beyond floats": {"scale": 10**400},
    "a scale that is a text": {"scale": "1"},
    "another constant": {"constant": 0.5},
    "a negative constant": {"constant": -1.0},
    "a flag that is none": {"by_membership": 1},
    "another flag that is none": {"nonnegative": "no"},
    "a penalty that is none": {"penalty": [1, 2, 3]},
    "a negative penalty": {"penalty": {"orthogonality": -1.0}},
    "an unknown penalty": {"penalty": {"strength": 1.0}},
    "a spread that is a text": {"within": "wide"},
    "a long name": {"names": {"0": "x" * 61}},
    "a name that moves the cursor": {"names": {"0": "\x1b[2J"}},
    "a name that is a formula": {"names": {"0": "=1+1"}},
    "a name of no cluster": {"names": {"3": "x"}},
    "a name of what is no number": {"names": {"x": "x"}},
    "names that are a list": {"names": ["x"]},
    "a name that is a list": {"names": {"0": ["x"]}},
    "a long version": {"version": "1" * 300},
    "a version that moves the cursor": {"version": "\x1b[2J"},
    "a promise of its own": {"about": {"privacy": {"epsilon": 0.1}}},
    "a quality that was not agreed on": {
        "quality": {"cost": [1, 0], "silhouette": [1, 0], "clusters": [[[1, 0], None, None]] * 3}
    },
    "another kind": {"kind": "request"},
    "no run": {"run": None},
}


@pytest.mark.parametrize("change", HEADS.values(), ids=HEADS)
def test_a_head_that_no_model_of_the_run_has_is_refused(plain, change):
    agreement, model = plain
    head, arrays = unpacked(model_message(agreement, model))
    received_model(packed(head, arrays), agreement)
    with pytest.raises(InvalidInput):
        received_model(packed({**head, **change}, arrays), agreement)


@pytest.mark.parametrize(
    "change",
    [
        {"clusters": []},
        {"clusters": [[[1.0, 0.0], None]] * 3},
        {"clusters": [[[1.0, -1.0], None, None]] * 3},
        {"clusters": [["many", None, None]] * 3},
        {"clusters": {}},
        {"cost": [1e200, 0.0]},
        {"cost": None},
        {"silhouette": [True, 0.0]},
        {"more": 1},
    ],
)
def test_a_quality_that_cannot_be_one_is_refused(tmp_path, change):
    agreement, model = finished(tmp_path, *RUNS["quality"])
    head, arrays = unpacked(model_message(agreement, model))
    quality = {**head["quality"], **change}
    with pytest.raises(InvalidInput):
        received_model(packed({**head, "quality": quality}, arrays), agreement)


def test_the_constant_is_the_agreed_one(tmp_path):
    agreement, model = finished(tmp_path, *RUNS["constant"])
    head, arrays = unpacked(model_message(agreement, model))
    assert received_model(packed(head, arrays), agreement).constant == 0.5
    with pytest.raises(InvalidInput, match="constant must be what was agreed"):
        received_model(packed({**head, "constant": 0.75}, arrays), agreement)


def test_every_field_must_be_there(plain):
    agreement, model = plain
    head, arrays = unpacked(model_message(agreement, model))
    for name in head:
        with pytest.raises(InvalidInput, match="with its fields"):
            received_model(packed({n: head[n] for n in head if n != name}, arrays), agreement)


ARRAYS = {
    "no directions": {"directions": None},
    "no centre": {"center": None},
    "more features": {"directions": np.ones((3, 7)), "center": np.ones(7)},
    "more clusters": {"directions": np.ones((4, 3))},
    "fewer clusters": {"directions": np.ones((2, 3)), "centers": None},
    "other centres": {"centers": np.ones((2, 3))},
    "NaN": {"directions": np.full((3, 3), np.nan)},
    "infinite": {"center": np.array([0.0, np.inf, 0.0])},
    "beyond squares": {"centers": np.full((3, 3), 1e200)},
    "no errors": {"center_errors": np.full((3, 3), np.nan)},
    "negative errors": {"center_errors": np.full((3, 3), -1.0)},
    "infinitely negative errors": {"center_errors": np.full((3, 3), -np.inf)},
    "infinite errors of sizes": {"size_errors": np.full(3, np.inf)},
    "infinite sizes": {"sizes": np.full(3, np.inf)},
    "integers": {"center": np.zeros(3, np.uint64)},
    "another array": {"head": np.zeros(3)},
    "a field": {"scale": np.zeros(3)},
    "a view without a table": {"column_mean": np.zeros(3), "column_factor": np.ones(3)},
}


@pytest.mark.parametrize("change", ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_no_model_of_the_run_has_are_refused(plain, change):
    agreement, model = plain
    head, arrays = unpacked(model_message(agreement, model))
    changed = {n: values for n, values in {**arrays, **change}.items() if values is not None}
    with pytest.raises(InvalidInput, match=r"must (be|have)"):
        received_model(packed(head, changed), agreement)


@pytest.fixture(scope="module")
def of_choice(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("choice"), *RUNS["a choice"])


def choice(**changes):
    """Return a choice of three clusters, changed."""
    points = [[2, 0.0, 0.1], [3, 0.3, 0.1], [4, None, None]]
    return {"choice": {"n_clusters": 3, "step": 0.2, "needed": 0.1, "curve": points, **changes}}


FALSE_CHOICES = {
    "a text": {"choice": "clear"},
    "another number": choice(n_clusters=4),
    "a number outside": choice(n_clusters=9),
    "another field": choice(clear=True),
    "no curve": choice(curve=[]),
    "a curve that is a text": choice(curve="curve"),
    "points without end": choice(curve=[[2 + i, 0.0, 0.1] for i in range(1001)]),
    "not in order": choice(curve=[[3, 0.0, 0.1], [2, 0.3, 0.1]]),
    "a point twice": choice(curve=[[3, 0.0, 0.1], [3, 0.3, 0.1]]),
    "a point of four": choice(curve=[[3, 0.0, 0.1, 0.1]]),
    "a point that is none": choice(curve=[3]),
    "a link that is a text": choice(curve=[[3, "x", 0.1]]),
    "a link beyond all": choice(curve=[[3, 1e300, 0.1]]),
    "a negative error": choice(curve=[[3, 0.1, -0.1]]),
    "half a cluster": choice(curve=[[2.5, 0.1, 0.1]]),
    "a negative step": choice(step=-1.0),
    "a step that is a text": choice(step="x"),
    "a flag that is none": {"by_prototype": 1},
    "none though agreed": {"choice": None},
    "another range": choice(curve=[[3, 0.3, 0.1], [4, None, None]]),
    "a longer range": choice(curve=[[2 + i, 0.0, 0.1] for i in range(9)]),
    "records that count farther out": {"longest": 1e9},
}


@pytest.mark.parametrize("change", FALSE_CHOICES.values(), ids=FALSE_CHOICES)
def test_a_choice_that_is_none_is_refused(of_choice, change):
    agreement, model = of_choice
    assert len(model.directions) == 3
    head, arrays = unpacked(model_message(agreement, model))
    received_model(packed({**head, **choice()}, arrays), agreement)
    with pytest.raises(InvalidInput):
        received_model(packed({**head, **change}, arrays), agreement)


FALSE_PROTOTYPES = {
    "a cluster too many": {"groups": np.array([0.0, 0, 1, 1, 2, 3])},
    "a cluster too few": {"groups": np.zeros(6)},
    "a cluster below zero": {"groups": np.array([-1.0, 0, 0, 1, 1, 2])},
    "half a cluster": {"groups": np.array([0.0, 0, 0.5, 1, 2, 2])},
    "not in order": {"groups": np.array([0.0, 1, 0, 1, 2, 2])},
    "NaN": {"groups": np.full(6, np.nan)},
    "fewer": {"groups": np.arange(3.0), "prototypes": np.ones((3, 3))},
    "more": {"groups": np.repeat(np.arange(3.0), 4), "prototypes": np.ones((12, 3))},
    "other features": {"prototypes": np.ones((6, 2))},
    "places beyond squares": {"prototypes": np.full((6, 3), 1e200)},
    "no groups": {"groups": None},
    "no prototypes": {"prototypes": None},
    "neither, though records go by them": {"groups": None, "prototypes": None},
    "more clusters than agreed": {"directions": np.ones((5, 3)), "centers": np.ones((5, 3))},
    "one cluster": {"directions": np.ones((1, 3)), "centers": np.ones((1, 3))},
}


@pytest.mark.parametrize("change", FALSE_PROTOTYPES.values(), ids=FALSE_PROTOTYPES)
def test_prototypes_that_no_model_of_the_run_has_are_refused(of_choice, change):
    agreement, model = of_choice
    head, arrays = unpacked(model_message(agreement, model))
    head["by_prototype"] = True
    received_model(packed(head, arrays), agreement)
    changed = {n: values for n, values in {**arrays, **change}.items() if values is not None}
    with pytest.raises(InvalidInput, match=r"must (be|have)"):
        received_model(packed(head, changed), agreement)


def test_a_run_without_prototypes_has_no_model_with_them(plain):
    agreement, model = plain
    head, arrays = unpacked(model_message(agreement, model))
    more = {**arrays, "prototypes": np.ones((3, 3)), "groups": np.arange(3.0)}
    with pytest.raises(InvalidInput, match="no other arrays"):
        received_model(packed({**head, "by_prototype": True}, more), agreement)


def test_a_table_is_seen_through_the_view_that_its_run_makes(of_table):
    agreement, model = of_table
    head, arrays = unpacked(model_message(agreement, model))
    assert set(model.view) == {"column_middle", "column_half", "column_mean", "column_factor"}
    for name in model.view:
        less = {n: values for n, values in arrays.items() if n != name}
        with pytest.raises(InvalidInput, match=f"must have {name}"):
            received_model(packed(head, less), agreement)
        longer = {**arrays, name: np.append(arrays[name], 0.0)}
        with pytest.raises(InvalidInput, match=f"{name} must be floats of shape"):
            received_model(packed(head, longer), agreement)


def test_nothing_longer_than_a_model_of_the_run_is_looked_at(plain):
    agreement, model = plain
    head, arrays = unpacked(model_message(agreement, model))
    long = packed(head, {**arrays, "sizes": np.zeros(max_bytes(agreement) // 8)})
    with pytest.raises(InvalidInput, match="at most"):
        received_model(long, agreement)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_changed_bytes_are_a_model_of_the_run_or_refused(plain, data):
    agreement, model = plain
    raw = bytearray(model_message(agreement, model))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(len(MAGIC), len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidInput):  # anything else fails the test
        again = received_model(bytes(raw), agreement)
        assert again.directions.shape == (3, 3)
        assert again.steps <= MAX_STEPS
        assert again.about["privacy"] == model.about["privacy"]
        again.labels(np.zeros((2, 3)))
