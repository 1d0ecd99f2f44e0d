"""Exact sums: one record moves them by at most 2^30 grid units, in integers, whatever is broadcast.

The properties are checked in Python's integers, with no allowance for rounding. Every planted bug
is found by the very check that the product passes.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from array_api_strict import asarray as strict
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput
from dpfedc.kernels.clipping import clip_weights
from dpfedc.privacy import exact
from dpfedc.privacy.exact import BOUND_UNITS, SENSITIVITY, Upload, exact_sum, on_grid
from dpfedc.privacy.gate import Gate, RecordSum, received
from dpfedc.randomness import Randomness
from dpfedc.research.rivals.kmeans_parallel_stages import Candidates, Reclustering
from support.exact_checks import Fixed, farthest, is_bounded, nothing, squared_distance, units
from support.noise_checks import empty_batch, plan_of
from support.sensitivity import Case, batch_of, contribution_of, distance, exact_release, rounding
from support.sensitivity_cases import STAGES, cases, method_of, plain_case

FEW, MANY = settings(max_examples=25), settings(max_examples=80)
ALL = Gate().sample(empty_batch([0]), stage="x", t=1)
FAR = "mean", "scale", "subspace", "one step", "clusters", "Lloyd"


def far_case(stage, n=40):
    """Return single-precision records far from the origin: where float sums lose most."""
    method, t = method_of(stage)
    rng = np.random.default_rng(1)
    place = np.full(3, 1000.0)
    W = rng.standard_normal((3, 3))
    state = {
        "origin": place, "center": place, "scale": 1.0, "bound": 1.0, "centres": place + W,
        "W": W / np.linalg.norm(W, axis=1, keepdims=True),
    }  # fmt: skip
    state = {name: np.asarray(value, dtype=np.float32) for name, value in state.items()}
    X = (place + 3 * rng.standard_normal((n, 3))).astype(np.float32)
    return Case(method, state, X, (n // 4, n - n // 4), t)


# What a term is


@pytest.mark.parametrize("stage", STAGES)
@MANY
@given(data=st.data())
def test_a_total_is_the_weighted_sum_of_its_terms(stage, data):
    case, _ = data.draw(cases(stage))
    batch, _, contribution = contribution_of(case)
    weights = clip_weights(contribution.norms, contribution.bound, batch.present)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    weights = (weights * rng.random(len(weights))).astype(case.X.dtype)
    cut = data.draw(st.integers(0, case.n_records))
    with np.errstate(all="ignore"):
        total = contribution.total(weights)
        parts = [contribution.terms(slice(*ends)) for ends in ((0, cut), (cut, case.n_records))]
    terms = np.concatenate(parts).astype(np.float64)
    assert terms.shape == (case.n_records, *total.shape)
    used = weights > 0
    expected = np.tensordot(weights[used].astype(np.float64), terms[used], axes=1)
    slack = rounding(case) * contribution.bound
    assert distance(expected, total.astype(np.float64), symmetric=False) <= slack


@pytest.mark.parametrize("method", [Candidates(5.0), Reclustering(2)])
def test_terms_of_the_sums_of_kmeans_parallel(rng, method):
    candidates = rng.standard_normal((4, 2))
    state = {"candidates": candidates, "fresh": candidates[1:]}
    batch = batch_of(Case(method, state, rng.standard_normal((9, 2)), (4, 5)))
    sums = method.local(batch, state, 2, ALL, Randomness(0))
    weights = rng.random(9)
    expected = np.tensordot(weights, sums.terms(slice(0, 9)), axes=1)
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
    case = plain_case(*method_of(stage))
    assert units(case.with_record(4, x)) == units(case, [4])


@pytest.mark.parametrize("stage", FAR)
def test_single_precision_far_from_the_origin_costs_no_privacy(stage):
    """There the simulator's own sums move by up to 1.75 times what is stated."""
    assert is_bounded(far_case(stage))


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_stated_is_what_a_long_record_does(stage):
    """The bound is reached but for truncation, so the properties above would notice more."""
    reached = math.sqrt(farthest(plain_case(*method_of(stage)))) / SENSITIVITY
    least = {"lengths": 0.75, "sums and Gram": 0.95}.get(stage, 0.999)
    assert least < reached < 1


# Each row on the grid

rows = st.integers(1, 6).flatmap(
    lambda d: st.lists(
        st.lists(st.floats(width=64), min_size=d, max_size=d), min_size=1, max_size=5
    )
)
bounds = st.floats(-140, 140).map(lambda x: 10.0**x)


@MANY
@given(rows, bounds)
def test_a_row_on_the_grid_is_never_longer_than_the_sensitivity(phi, bound):
    phi = np.array(phi)
    for row, units_of_row in zip(phi, on_grid(phi, np.ones(len(phi), bool), bound), strict=True):
        assert sum(int(u) ** 2 for u in units_of_row) <= SENSITIVITY**2
        norm = math.hypot(*row)  # does not overflow
        if not np.isfinite(row).all():
            assert not units_of_row.any()
        elif norm < 1e150:
            clipped = row * min(1.0, bound / norm) if norm else row
            off = units_of_row - clipped / bound * BOUND_UNITS
            assert np.abs(off).max() <= 1 + 1e-5  # one unit, and the rounding of these 2^30


@MANY
@given(st.integers(1, 40), bounds, st.integers(0, 2**32 - 1))
def test_no_finite_record_is_left_out(d, bound, seed):
    phi = np.random.default_rng(seed).standard_normal((20, d)) * 10 * bound
    kept = on_grid(phi, np.ones(20, bool), bound)
    lengths = np.sqrt((kept.astype(float) ** 2).sum(axis=1))
    norms = np.minimum(np.linalg.norm(phi, axis=1) / bound, 1)
    np.testing.assert_allclose(lengths / BOUND_UNITS, norms, atol=1e-8)


def test_rows_that_are_not_kept_add_nothing():
    keep = np.array([True, False, True])
    assert on_grid(np.full((3, 2), 0.1), keep, 1.0).any(axis=1).tolist() == keep.tolist()


# The sum


@pytest.mark.parametrize("numbers", [1, 7, 64, 2**20])
def test_order_and_chunks_do_not_change_a_bit(rng, numbers, monkeypatch):
    phi = rng.standard_normal((50, 3, 2))
    keep = rng.random(50) < 0.8
    whole = exact_sum(lambda r: phi[r], keep, 0.7)
    monkeypatch.setattr(exact, "NUMBERS_AT_A_TIME", numbers)
    for _ in range(5):
        order = rng.permutation(50)
        again = exact_sum(lambda r, o=order: phi[o][r], keep[order], 0.7)
        np.testing.assert_array_equal(again, whole)
    float_sums = {float(phi[rng.permutation(50)].sum(axis=0)[0, 0]) for _ in range(20)}
    assert len(float_sums) > 1  # what the integers are for


@pytest.mark.parametrize("stage", ["bound", "mean", "scale"])
def test_the_order_of_records_does_not_change_a_bit(stage, rng):
    case = plain_case(*method_of(stage), n=30, dtype=np.float32)
    assert units(replace(case, X=case.X[rng.permutation(30)])) == units(case)


@pytest.mark.parametrize("stage", STAGES)
@FEW
@given(data=st.data())
def test_an_exact_sum_is_the_sum(stage, data):
    """Against the simulator's own, up to its rounding and one unit a number and record."""
    case, _ = data.draw(cases(stage))
    case = replace(case, q=1.0)
    batch, sample, contribution = contribution_of(case)
    simulated, bound = exact_release(case)
    gate = Gate(noise=Fixed(), plan=plan_of("local", n_sites=9))
    with np.errstate(all="ignore"):
        released = gate.release(contribution, batch, sample, stage="centres", t=1)
    assert released.value.dtype == case.X.dtype
    got = released.value.astype(np.float64)
    step = bound / BOUND_UNITS * case.n_records * math.sqrt(got.size)
    slack = rounding(case) + 4 * float(np.finfo(case.X.dtype).eps) * case.n_records
    assert distance(got, simulated, symmetric=False) <= step + slack * bound


def test_other_array_libraries_give_the_same_bits(rng):
    phi = rng.standard_normal((12, 4)).astype(np.float32)
    keep = np.ones(12, bool)
    other = strict(phi)
    np.testing.assert_array_equal(
        exact_sum(lambda r: phi[r], keep, 1.0), exact_sum(lambda r: other[r, :], keep, 1.0)
    )


@pytest.mark.parametrize("bound", [np.nan, np.inf, 0.0, -1.0, 1e-17])
def test_a_bound_that_cannot_be_clipped_to_is_refused(bound):
    case = plain_case(*method_of("mean"), dtype=np.float32)
    batch, sample, sums = contribution_of(
        replace(case, state={**case.state, "bound": np.float32(bound)})
    )
    gate = Gate(noise=Fixed(), plan=plan_of("local", n_sites=9))
    with pytest.raises(InvalidInput, match="must state a sensitivity > "):
        gate.upload(sums, batch, sample, stage="mean", t=1)


def test_a_sum_that_could_wrap_is_refused(monkeypatch):
    monkeypatch.setattr(exact, "LARGEST_SUM", 4 * SENSITIVITY)
    gate = Gate(noise=Fixed(), plan=plan_of("local"))
    upload = gate.upload(nothing(3, (2,)), empty_batch([0, 1, 2]), ALL, stage="mean", t=1)
    assert upload.values.tolist() == [0, 0]
    with pytest.raises(InvalidInput, match="fewer than 4 records, got 4"):
        gate.upload(nothing(4, (2,)), empty_batch([0, 1, 2, 3]), ALL, stage="mean", t=2)


# Uploads


def uploads_of_sites(case, noise, stage="mean"):
    """Return the upload of each site of the case, as its own process would make it."""
    plan, made = plan_of("local", n_sites=9), []
    for i, (start, end) in enumerate(zip(case.offsets, case.offsets[1:], strict=False)):
        one = replace(case, X=case.X[start:end], sizes=(end - start,))
        batch, sample, sums = contribution_of(one)
        batch.sites = np.array([i])
        made.append(Gate(noise=noise, plan=plan).upload(sums, batch, sample, stage=stage, t=1))
    return made


@pytest.mark.parametrize("stage", ["bound", "mean", "scale", "subspace"])
def test_uploads_add_up_to_the_sum_of_one_process(stage):
    case = plain_case(*method_of(stage))
    gate = Gate(noise=Fixed(), plan=plan_of("local", n_sites=9))
    batch, sample, sums = contribution_of(case)
    together = gate.release(sums, batch, sample, stage=stage, t=1)
    apart = [
        Upload.from_arrays(upload.to_arrays())
        for upload in uploads_of_sites(case, Fixed(), stage=stage)
    ]
    total = received(apart, 2, 12.0)
    np.testing.assert_array_equal(total.value, together.value)
    assert (total.n_sites, total.n_records) == (2, 12.0)
    assert total.value.shape == exact_release(case)[0].shape
    cast = received(apart, 2, 12.0, asarray=lambda sums: np.asarray(sums, dtype=np.float32))
    assert cast.value.dtype == np.float32


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 5])
def test_noise_is_added_modulo_two_to_the_64(value):
    """What wraps at one site comes back in the sum; what sticks at the end would be lost."""
    case = plain_case(*method_of("mean"))
    quiet = uploads_of_sites(case, Fixed())
    for plain, noisy in zip(quiet, uploads_of_sites(case, Fixed(value=value)), strict=True):
        expected = [(int(u) + value) % 2**64 for u in plain.values]
        assert noisy.values.tolist() == expected
    back = Upload(np.full(3, (-2 * value) % 2**64, dtype=np.uint64), quiet[0].unit)
    noisy = uploads_of_sites(case, Fixed(value=value))
    np.testing.assert_array_equal(
        received([*noisy, back], 2, 12.0).value, received(quiet, 2, 12.0).value
    )
    stuck = [
        replace(u, values=np.array(saturated(u, value), dtype=np.int64).view(np.uint64))
        for u in quiet
    ]
    lost = received([*stuck, back], 2, 12.0).value - received(quiet, 2, 12.0).value
    assert (np.abs(lost).max() > 0) == (abs(value) > 5)


def saturated(upload, value):
    """Plant: integers that stick at the ends of their range."""
    signed = [int(u) for u in upload.values.view(np.int64)]
    return [min(max(u + value, -(2**63)), 2**63 - 1) for u in signed]


def test_uploads_of_different_kinds_are_refused():
    one = Upload(np.zeros(3, dtype=np.uint64), 0.5)
    others = [
        Upload(np.zeros(4, dtype=np.uint64), 0.5),
        Upload(np.zeros(3), 0.5),
        Upload(np.zeros(3, dtype=np.uint64), 0.25),
        Upload(np.zeros(3, dtype=np.uint64), 0.5, True),
    ]
    for other in others:
        with pytest.raises(InvalidInput, match="uploads must be of one kind"):
            received([one, other], 2, 2.0)
    with pytest.raises(InvalidInput, match="at least one upload"):
        received([], 0, 0.0)
    with pytest.raises(InvalidInput, match="1, 3, 6"):
        received([Upload(np.zeros(4, dtype=np.uint64), 0.5, True)], 1, 1.0)
    floats = received([Upload(np.ones(3)), Upload(np.ones(3))], 2, 2.0)
    assert floats.value.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": np.zeros(3, dtype=np.int64)}, "values must be uint64 or float64"),
        ({"values": np.array(["a"])}, "values must be uint64 or float64"),
        ({"unit": np.asarray(0.0)}, "unit must be"),
        ({"unit": np.asarray(np.inf)}, "unit must be"),
        ({"unit": np.asarray(np.nan)}, "unit must be"),
        ({"unit": np.ones(2)}, "unit must be"),
        ({"unit": np.asarray("1")}, "unit must be"),
        ({"symmetric": np.asarray(1)}, "symmetric must be true or false"),
        ({"symmetric": np.zeros(2, bool)}, "symmetric must be true or false"),
        ({"more": np.zeros(2)}, "an upload must be values, unit, symmetric"),
    ],
)
def test_arrays_that_are_not_an_upload_are_refused(change, message):
    arrays = Upload(np.zeros(3, dtype=np.uint64), 0.5).to_arrays()
    with pytest.raises(InvalidInput, match=message):
        Upload.from_arrays({**arrays, **change})


# Planted bugs


def to_nearest(phi, keep, bound):
    """Plant: each record rounded to nearest, at its full length and unchecked."""
    norms = np.sqrt((phi.reshape(len(phi), -1) ** 2).sum(axis=1))
    factors = SENSITIVITY / np.maximum(norms, bound)
    scaled = np.rint(phi * factors.reshape(-1, *(1,) * (phi.ndim - 1)))
    scaled[~keep] = 0
    return scaled.astype(np.int64)


def unchecked(phi, keep, bound):
    """Plant: nothing clips, because the method is trusted to."""
    return np.where(keep[:, None], np.trunc(phi / bound * BOUND_UNITS), 0).astype(np.int64)


@pytest.mark.parametrize("bug", [to_nearest, unchecked])
def test_a_record_that_is_not_checked_after_rounding(bug, monkeypatch):
    case = plain_case(*method_of("mean"), n=40, n_features=5)
    assert is_bounded(case)
    monkeypatch.setattr(exact, "on_grid", bug)
    assert not is_bounded(case)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_total_that_is_rounded(precision, monkeypatch):
    """Plant: the float total is put on the grid, in place of every record."""

    def rounded(terms, keep, bound, *, symmetric=False):
        phi = np.asarray(terms(slice(0, len(keep))))
        norms = np.sqrt((phi.reshape(len(phi), -1) ** 2).sum(axis=1))
        weights = np.where(keep, bound / np.maximum(norms, bound), 0).astype(phi.dtype)
        total = np.tensordot(weights, phi, axes=1)
        return np.rint(total.astype(np.float64) / bound * SENSITIVITY).astype(np.int64)

    case = plain_case(*method_of("mean"), n=40, n_features=5)
    case = far_case("mean") if precision == "single" else case
    assert is_bounded(case)
    monkeypatch.setattr(exact, "exact_sum", rounded)
    assert not is_bounded(case)


def test_the_check_of_the_norm_holds_where_the_clip_does_not(monkeypatch):
    """With a grid twice as fine as the clip allows for, long records are left out: still safe."""
    case = plain_case(*method_of("mean"), n=40, n_features=5)
    monkeypatch.setattr(exact, "BOUND_UNITS", 2 * SENSITIVITY)
    assert is_bounded(case)
    assert not any(units(case))


def test_a_triangle_without_its_factor(rng, monkeypatch):
    """Plant: off-diagonal entries are packed as they are. Then the norm is not the matrix's."""
    x = rng.standard_normal((6, 4))
    matrices = x[:, :, None] * x[:, None, :]

    def keeps_norms():
        lengths = np.linalg.norm(exact.packed(matrices), axis=1)
        return np.allclose(lengths, (x**2).sum(axis=1), rtol=1e-12)

    def comes_back():
        sums = exact.packed(matrices).sum(axis=0)
        return np.allclose(exact.unpacked(sums), matrices.sum(axis=0), rtol=1e-12)

    assert keeps_norms()
    assert comes_back()

    def plain(stack):
        i, j = np.triu_indices(stack.shape[-1])
        return stack[:, i, j]

    monkeypatch.setattr(exact, "packed", plain)
    assert not keeps_norms()
    assert not comes_back()


def test_a_sum_without_terms_has_no_exact_sum():
    gate = Gate(noise=Fixed(), plan=plan_of("local"))
    sums = RecordSum(np.zeros(1), 1.0, lambda _: np.zeros(3))
    with pytest.raises(InvalidInput, match="stage 'mean' must be a sum over records"):
        gate.upload(sums, empty_batch([0]), ALL, stage="mean", t=1)
