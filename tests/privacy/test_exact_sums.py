"""Exact sums: one record moves them by at most 2^38 grid units, in integers, whatever is broadcast.

The properties are checked in Python's integers, with no allowance for rounding. Every planted bug
is found by the very check that the product passes.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput
from dpfedc.kernels.clipping import clip_weights
from dpfedc.privacy import exact_sums as exact
from dpfedc.privacy.exact_sums import SENSITIVITY
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness
from dpfedc.research.rivals.kmeans_parallel_stages import Candidates, Reclustering
from support.exact_checks import (
    Fixed,
    farthest,
    grid_error,
    is_bounded,
    squared_distance,
    terms,
    units,
)
from support.noise_checks import plan_of
from support.sensitivity import (
    Case,
    batch_of,
    distance,
    exact_release,
    length,
    part_of,
    released_by,
    rounding,
)
from support.sensitivity_cases import LEAST_REACHED, STAGES, cases, plain_case, stage_of

FEW, MANY = settings(max_examples=25), settings(max_examples=80)
FAR = "mean", "scale", "subspace", "one step", "clusters", "Lloyd"


def far_case(name, n=40):
    """Return single-precision records far from the origin: where float sums lose most."""
    stage, t = stage_of(name)
    rng = np.random.default_rng(1)
    place = np.full(3, 1000.0)
    W = rng.standard_normal((3, 3))
    state = {
        "origin": place, "data_mean": place, "scale": 1.0, "bound": 1.0, "centers": place + W,
        "W": W / np.linalg.norm(W, axis=1, keepdims=True),
    }  # fmt: skip
    state = {name: np.asarray(value, dtype=np.float32) for name, value in state.items()}
    X = (place + 3 * rng.standard_normal((n, 3))).astype(np.float32)
    return Case(stage, state, X, (n // 4, n - n // 4), t)


# What a term is


@pytest.mark.parametrize("stage", STAGES)
@MANY
@given(data=st.data())
def test_a_total_is_the_weighted_sum_of_its_terms(stage, data):
    case, _ = data.draw(cases(stage))
    contribution, batch, _ = part_of(case)
    weights = clip_weights(contribution.norms, case.bound, batch.present)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    weights = (weights * rng.random(len(weights))).astype(case.X.dtype)
    with np.errstate(all="ignore"):
        total = contribution.total(weights)
        phi = terms(contribution).astype(np.float64)
    assert phi.shape == (case.n_records, *total.shape)
    used = weights > 0
    expected = np.tensordot(weights[used].astype(np.float64), phi[used], axes=1)
    slack = rounding(case) * case.bound
    assert distance(expected, total.astype(np.float64), symmetric=False) <= slack


@pytest.mark.parametrize("stage", [Candidates(5.0), Reclustering(2)])
def test_terms_of_the_sums_of_kmeans_parallel(rng, stage):
    candidates = rng.standard_normal((4, 2))
    state = {"candidates": candidates, "fresh": candidates[1:]}
    batch = batch_of(Case(stage, state, rng.standard_normal((9, 2)), (4, 5)))
    sums = stage.local(batch, state, 2, RoundSample(1.0, 1), Randomness(0))
    weights = rng.random(9)
    expected = np.tensordot(weights, terms(sums), axes=1)
    np.testing.assert_allclose(sums.total(weights), expected, rtol=1e-12)


# What one record can do


@pytest.mark.parametrize("stage", STAGES)
@MANY
@given(data=st.data())
def test_nulling_a_record_moves_the_integers_by_at_most_the_sensitivity(stage, data):
    case, j = data.draw(cases(stage))
    assert squared_distance(units(case), units(case, [j])) <= SENSITIVITY**2


@pytest.mark.parametrize("stage", STAGES)
@FEW
@given(data=st.data())
def test_a_null_record_adds_nothing_whatever_stands_in_its_row(stage, data):
    case, j = data.draw(cases(stage))
    without = units(case, [j])
    largest = float(np.finfo(case.X.dtype).max)
    for x in (0.0, 1e6, largest / 100, largest, np.inf, np.nan):
        assert units(case.with_record(j, x), [j]) == without


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("x", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_is_null(stage, x):
    case = plain_case(*stage_of(stage))
    assert units(case.with_record(4, x)) == units(case, [4])


@pytest.mark.parametrize("stage", FAR)
def test_single_precision_far_from_the_origin_costs_no_privacy(stage):
    """There the simulator's own sums move by up to 1.75 times what is stated."""
    assert is_bounded(far_case(stage))


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_stated_is_what_a_long_record_does(stage):
    """The bound is reached but for truncation, so the properties above would notice more."""
    reached = math.sqrt(farthest(plain_case(*stage_of(stage)))) / SENSITIVITY
    assert LEAST_REACHED.get(stage, 0.999) < reached < 1


# The sum


@pytest.mark.parametrize("stage", ["bound", "mean", "scale"])
def test_the_order_of_records_does_not_change_a_bit(stage, rng):
    case = plain_case(*stage_of(stage), n=30, dtype=np.float32)
    assert units(replace(case, X=case.X[rng.permutation(30)])) == units(case)


@pytest.mark.parametrize("stage", STAGES)
@FEW
@given(data=st.data())
def test_an_exact_sum_is_the_sum(stage, data):
    """Against the simulator's own, up to its rounding and one unit a number of each factor.

    The simulator clips by stated norms. Those of residuals are rounded up, which shows in single
    precision where x and W'h nearly cancel; none is low.
    """
    case, _ = data.draw(cases(stage))
    case = replace(case, q=1.0)
    released = released_by(Gate(plan_of("local", n_sites=9), Fixed()), case, stage="centres", t=1)
    assert released.value.dtype == case.X.dtype
    got = released.value.astype(np.float64)
    contribution, _, _ = part_of(case)
    step = case.bound * grid_error(contribution)
    with np.errstate(all="ignore"):
        phi = terms(contribution).reshape(case.n_records, -1)
    clipped = np.isfinite(contribution.norms) & (contribution.norms > case.bound)
    over = 1 - length(phi[clipped]) / contribution.norms[clipped]
    assert over.min(initial=0.0) > -1e-4
    assert over.max(initial=0.0) < (1e-4 if case.X.dtype == np.float64 else 1)
    slack = (
        rounding(case) + 4 * float(np.finfo(case.X.dtype).eps) * case.n_records + np.abs(over).sum()
    )
    assert distance(got, exact_release(case), symmetric=False) <= step + slack * case.bound


@pytest.mark.parametrize("bound", [np.nan, np.inf, 0.0, -1.0, 1e-17])
def test_a_bound_that_cannot_be_clipped_to_is_refused(bound):
    case = plain_case(*stage_of("mean"), dtype=np.float32)
    case = replace(case, state={**case.state, "bound": np.float32(bound)})
    with pytest.raises(InvalidInput, match="must state a sensitivity > "):
        released_by(Gate(plan_of("local", n_sites=9), Fixed()), case)


# Planted bugs


def to_nearest(contribution, rows, keep, bound, space):
    """Plant: each record at its full length, rounded to nearest and unchecked."""
    h, r = (np.asarray(some, dtype=np.float64) for some in contribution.formed(rows))
    sizes, lengths = length(h), length(r)
    a = np.rint(h * (exact.LEFT_UNITS / np.maximum(sizes, 1e-100))[:, None])
    longest = SENSITIVITY // exact.LEFT_UNITS
    b = np.rint(r * (sizes * longest / np.maximum(sizes * lengths, bound))[:, None])
    return a * keep[:, None], b * keep[:, None]


def unchecked(contribution, rows, keep, bound, space):
    """Plant: nothing clips, because the method is trusted to."""
    h, r = (np.asarray(some, dtype=np.float64) for some in contribution.formed(rows))
    a, b = np.rint(h * exact.LEFT_UNITS), np.rint(r * (exact.RIGHT_UNITS / bound))
    return a * keep[:, None], b * keep[:, None]


@pytest.mark.parametrize("bug", [to_nearest, unchecked])
@pytest.mark.parametrize("stage", ["mean", "one step"])
def test_a_record_that_is_not_checked_after_rounding(bug, stage, monkeypatch):
    case = plain_case(*stage_of(stage), n=40, n_features=5)
    assert is_bounded(case)
    monkeypatch.setattr(exact, "on_grid", bug)
    assert not is_bounded(case)


def test_a_matrix_whose_rows_differ_from_its_columns(monkeypatch):
    """Plant: a square is put on two grids, as if it were any product. It is no longer one."""
    case = plain_case(*stage_of("subspace"), n=40, n_features=5)
    assert is_bounded(case)

    def on_two_grids(contribution, rows, keep, bound, space):
        r = np.asarray(contribution.formed(rows)[1], dtype=np.float64)
        units = (r / np.maximum(length(r), 1.0)[:, None]) * keep[:, None]
        a, b = np.rint(units * 2.0**4), np.rint(units * 2.0**34)
        too_long = length(a) * length(b) > SENSITIVITY
        a[too_long] = b[too_long] = 0
        return a, b

    monkeypatch.setattr(exact, "on_grid", on_two_grids)
    assert not is_bounded(case)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_total_that_is_rounded(precision, monkeypatch):
    """Plant: the float total is put on the grid, in place of every record."""

    def rounded(contribution, keep, bound):
        phi = terms(contribution)
        norms = np.sqrt((phi.reshape(len(phi), -1) ** 2).sum(axis=1))
        weights = np.where(keep, bound / np.maximum(norms, bound), 0).astype(phi.dtype)
        total = np.tensordot(weights, phi, axes=1)
        return np.rint(total.astype(np.float64) / bound * SENSITIVITY).astype(np.int64)

    case = plain_case(*stage_of("mean"), n=40, n_features=5)
    case = far_case("mean") if precision == "single" else case
    assert is_bounded(case)
    monkeypatch.setattr("dpfedc.privacy.gate.exact_sum", rounded)
    assert not is_bounded(case)


@pytest.mark.parametrize(("stage", "name"), [("mean", "RIGHT"), ("subspace", "BOUND")])
def test_the_check_of_the_norm_holds_where_the_clip_does_not(stage, name, monkeypatch):
    """With a grid twice as fine as the clip allows for, long records are left out: still safe."""
    case = plain_case(*stage_of(stage), n=40, n_features=5)
    monkeypatch.setattr(exact, f"{name}_UNITS", 2 * getattr(exact, f"{name}_UNITS"))
    assert is_bounded(case)
    assert not any(units(case))
