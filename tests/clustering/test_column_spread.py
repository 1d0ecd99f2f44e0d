"""Ranges and spreads of a table's columns, against what NumPy finds in the same records."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.clustering.column_spread import (
    N_BINS,
    ColumnRanges,
    Spread,
    _bins,
    _edges,
    column_stages,
    declared_columns,
)
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import SiteBatch
from dpfedc.errors import InvalidInput
from dpfedc.kernels.column_view import seen, unseen
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import ReleaseEvent, received
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import summed
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyTarget
from dpfedc.tables.layout import Group
from support.exact_checks import terms

LAYOUT = (
    Group("number", 0, 1, 1.0),
    Group("number", 1, 1, 2.0),
    Group("gaps", 2, 1, 0.5),
    Group("shares", 3, 3, 0.5),
)


def table(n=500, seed=0):
    rng = np.random.default_rng(seed)
    X = np.zeros((n, 6))
    X[:, 0] = rng.uniform(-0.4, 0.6, size=n)
    X[:, 1] = np.where(rng.random(n) < 0.3, np.nan, rng.normal(0.2, 0.1, size=n).clip(-1, 1))
    X[:, 2] = np.isnan(X[:, 1])
    X[np.arange(n), 3 + rng.choice(3, size=n, p=[0.6, 0.3, 0.1])] = 1
    X[rng.random(n) < 0.1, 3:] = np.nan
    return X


def released(stage, X, state=None, *, noise=0.0):
    """Return the state after the stage's round, from records at one site."""
    state = state or {}
    batch = SiteBatch(seen(X, state), np.array([0, len(X)]), np.array([0]))
    part = stage.local(batch, state, 1, None, Randomness(0)), batch, RoundSample(1.0, 1)
    total = summed(part, stage.sensitivity(state, 1))
    total = total + noise * np.random.default_rng(1).standard_normal(total.shape)
    event = ReleaseEvent(stage.name, 1, 1, len(X))
    return stage.combine(state, received([Upload(total)], event), 1)


def test_means_and_spreads_are_those_of_the_values_that_are_there():
    X = table()
    state = released(Spread(LAYOUT), X)
    shares = np.nanmean(X[:, 3:], axis=0)
    np.testing.assert_allclose(state["column_mean"][:3], np.nanmean(X, axis=0)[:3], atol=1e-12)
    np.testing.assert_allclose(state["column_mean"][3:], shares, atol=1e-12)
    np.testing.assert_allclose(
        state["column_factor"][:3], [1, 2, 0.5] / np.nanstd(X, axis=0)[:3], rtol=1e-9
    )
    np.testing.assert_allclose(
        state["column_factor"][3:], 0.5 / math.sqrt(1 - (shares**2).sum()), rtol=1e-9
    )


def test_every_column_gets_its_weight_and_gaps_get_the_mean():
    X = table()
    V = seen(X, released(Spread(LAYOUT), X))
    assert np.isfinite(V).all()
    np.testing.assert_array_equal(V[np.isnan(X)], 0.0)
    there = np.isfinite(X[:, 1])
    assert V[there, 1].std() == pytest.approx(2.0)
    block = V[np.isfinite(X[:, 3]), 3:]
    assert block.var(axis=0).sum() == pytest.approx(0.25)
    np.testing.assert_allclose(V.mean(axis=0), 0.0, atol=1e-12)


def test_the_scale_is_the_typical_length():
    X = table()
    state = released(Spread(LAYOUT), X)
    lengths = np.linalg.norm(seen(X, state), axis=1)
    assert float(state["scale"]) == pytest.approx(1.3 * np.sqrt((lengths**2).mean()), rel=1e-9)
    assert "bound" not in state
    assert float(released(Spread(LAYOUT, bounded=True), X)["bound"]) == float(state["scale"])


def test_a_column_that_noise_swamps_is_left_out():
    X = table(n=60)
    X[5:, 1] = np.nan
    stage = Spread(LAYOUT).told(5.0, 60)
    state = released(stage, X, noise=stage.noise_std)
    assert state["column_factor"][1] == 0.0
    assert not seen(X, state)[:, 1].any()
    assert np.isfinite(unseen(np.ones((2, 6)), state)).all()


def test_sites_that_did_not_answer_are_not_counted_as_gaps():
    X = table()
    planned = Spread(LAYOUT).told(0.0, 5 * len(X))
    np.testing.assert_allclose(released(planned, X)["column_mean"][2], np.isnan(X[:, 1]).mean())


def test_nobody_has_the_column():
    X = table()
    X[:, 1] = np.nan
    X[:, 3:] = np.nan
    state = released(Spread(LAYOUT), X)
    np.testing.assert_array_equal(state["column_factor"][[1, 3, 4, 5]], 0.0)
    assert np.isfinite(seen(X, state)).all()


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0, 37.0, 1990.0, 3e6])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ranges_hold_the_values_and_little_more(size, sign):
    rng = np.random.default_rng(0)
    layout = (Group("number", 0, 1, 1.0, auto=True),)
    X = sign * size * rng.uniform(1.0, 1.3, size=(2000, 1))
    state = released(ColumnRanges(layout).told(1.0, 2000), X)
    low, high = (float(state["column_middle"][0] + s * state["column_half"][0]) for s in (-1, 1))
    if size < 2**-10:
        assert (low, high) == (-(2.0**-10), 2.0**-10)
    else:
        assert low <= np.quantile(X, 0.05) < np.quantile(X, 0.95) <= high
        assert high - low <= 0.8 * size
    E = seen(X, state)
    assert np.abs(E).max() <= 1.0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_lies_in_its_bin(value):
    row = _bins(np.array([value]))[0]
    assert row.sum() == 1.0
    low, high = _edges(int(np.argmax(row)))
    if abs(value) < 2.0**30 * (1 - 1e-6):
        assert low <= value <= high
    assert not _bins(np.array([np.nan, np.inf])).any()


def test_bins_are_in_order_and_meet():
    ends = [_edges(i) for i in range(N_BINS)]
    for (_, high), (low, _) in pairwise(ends):
        assert high == pytest.approx(low)


def test_what_is_typical_is_not_released():
    typical = (
        Group("number", 0, 1, 1.0, typical=(0.1, 0.25)),
        Group("gaps", 1, 1, 0.5, typical=(0.5,)),
        Group("shares", 2, 2, 0.5, typical=(0.5, 0.5)),
    )
    assert column_stages(typical) == []
    known = declared_columns(typical)
    np.testing.assert_allclose(known["column_mean"], [0.1, 0.0, 0.5, 0.5])
    np.testing.assert_allclose(known["column_factor"], [4.0, 1.0, 0.5**0.5, 0.5**0.5])
    assert declared_columns(LAYOUT) == {}
    some = Spread((*typical, Group("number", 4, 1, 1.0)))
    assert some.width == 3
    assert some.sensitivity({}, 1) == pytest.approx(math.sqrt(3))


@given(st.integers(0, 499), st.floats(-1, 1))
def test_the_view_of_a_record_depends_on_no_other(j, value):
    X = table()
    state = released(Spread(LAYOUT), X)
    other = X.copy()
    other[j] = value
    rest = np.arange(len(X)) != j
    np.testing.assert_array_equal(seen(other, state)[rest], seen(X, state)[rest])


@pytest.mark.parametrize("stage", [
    Spread(LAYOUT), ColumnRanges(tuple(replace(g, auto=g.kind == "number") for g in LAYOUT))
])  # fmt: skip
def test_a_record_beyond_its_ranges_is_clipped_by_its_true_norm(stage):
    """No stage rests on what the encoding promised."""
    X = table(60)
    X[:20] *= 1e6
    X[20] = np.nan
    batch = SiteBatch(X, np.array([0, len(X)]), np.array([0]))
    contribution = stage.local(batch, {}, 1, None, Randomness(0))
    lengths = np.linalg.norm(terms(contribution).reshape(len(X), -1), axis=1)
    np.testing.assert_allclose(contribution.norms, lengths, rtol=1e-12)
    bound = stage.sensitivity({}, 1)
    whole = contribution.clipped(bound, None)
    for j in range(0, len(X), 7):
        without = contribution.clipped(bound, np.arange(len(X)) != j)
        assert np.linalg.norm(whole - without) <= bound * (1 + 1e-9)


def test_a_table_needs_no_bound_mean_or_scale():
    facts = Federation(6, np.array([800, 600]), LAYOUT)
    plan = method_named("dp-fedc").plan({"n_clusters": 3}, facts, PrivacyTarget(1.0, 1e-5))
    names = ["spread", "subspace", "cells", "refine", "centres"]
    assert [stage.name for stage in plan.stages] == names
    lloyd = method_named("dp-lloyd").plan({"n_clusters": 3}, facts, PrivacyTarget(1.0, 1e-5))
    assert [stage.name for stage in lloyd.stages] == ["spread", "lloyd"]


@pytest.mark.parametrize(
    "given",
    [{"norm_bound": 3.0}, {"feature_ranges": [[0, 1]] * 6}, {"init": np.zeros((3, 6))},
     {"nonnegative": True}, {"center": False}, {"constant_feature": 0.5}],
)  # fmt: skip
def test_settings_that_speak_of_plain_features_are_refused(given):
    facts = Federation(6, np.array([400, 300]), LAYOUT)
    with pytest.raises(InvalidInput, match=f"{next(iter(given))} must be left out with a schema"):
        method_named("dp-fedc").plan({"n_clusters": 3, **given}, facts, None)
    with pytest.raises(InvalidInput, match="takes numbers alone"):
        method_named("published").plan({"n_clusters": 3}, facts, None)
