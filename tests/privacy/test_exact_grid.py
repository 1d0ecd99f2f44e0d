"""The grid of exact sums: no record is too long, and no order, block or thread changes a bit.

What is checked of single records is checked in Python's integers.
"""

import math

import numpy as np
import pytest
from array_api_strict import asarray as strict
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from dpfedc.kernels.row_views import Columns
from dpfedc.kernels.threads import rows_over_threads
from dpfedc.privacy import exact_sums as exact
from dpfedc.privacy.exact_sums import BOUND_UNITS, SENSITIVITY, exact_sum, on_grid
from dpfedc.privacy.sums import OuterSum
from support.exact_checks import as_integers, terms

MANY = settings(max_examples=150)
bounds = st.floats(-140, 140).map(lambda x: 10.0**x)
HOSTILE = (0.0, 5e-324, 1e-310, 1e-170, 1e-30, 1e30, 1e150, 1e170, 1.7e308, math.inf, math.nan)
numbers = st.one_of(st.sampled_from(HOSTILE), st.floats(width=64), st.floats(-10, 10))


def tables(n, width):
    row = st.lists(numbers, min_size=width, max_size=width)
    return st.lists(row, min_size=n, max_size=n).map(np.array)


@st.composite
def hostile_sums(draw):
    """Return a sum of records whose factors are as large, small and wrong as floats can be."""
    n, k, m = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    factor = draw(st.sampled_from([1.0, 2.0, -0.5, 1e-3]))
    right = Columns.of(draw(tables(n, m)))
    if draw(st.booleans()):
        return OuterSum(right, right, np.ones(n), factor=factor, symmetric=True)
    return OuterSum(draw(tables(n, k)), right, np.ones(n), factor=factor)


def random_sum(rng, n, k=3, m=2, *, symmetric=False, **rest):
    right = Columns.of(rng.standard_normal((n, m)))
    left = right if symmetric else rng.standard_normal((n, k))
    return OuterSum(left, right, np.ones(n), symmetric=symmetric, **rest)


def gridded(contribution, bound, keep=None):
    """Return the whole numbers of all records."""
    n = len(contribution.norms)
    keep = np.ones(n, bool) if keep is None else keep
    space = np.empty((n, contribution.formed(slice(0, 1))[1].shape[1]))
    return on_grid(contribution, slice(0, n), keep, bound, space)


def squared(row):
    return sum(int(u) ** 2 for u in row)


def by_integers(contribution, bound, keep=None):
    """Return the sum of a_j b_j' modulo nothing, in Python's integers."""
    a, b = gridded(contribution, bound, keep)
    rows = [
        ([int(u) for u in one], [int(u) for u in other]) for one, other in zip(a, b, strict=True)
    ]
    k, m = a.shape[1], b.shape[1]
    return [sum(one[i] * other[c] for one, other in rows) for i in range(k) for c in range(m)]


@MANY
@given(hostile_sums(), bounds)
def test_a_record_on_the_grid_is_never_longer_than_the_sensitivity(contribution, bound):
    with np.errstate(all="ignore"):
        phi = terms(contribution).reshape(len(contribution.norms), -1)
    left, right = contribution.formed(slice(0, len(phi)))
    for j, (a, b) in enumerate(zip(*gridded(contribution, bound), strict=True)):
        assert np.isfinite([*a, *b]).all()
        np.testing.assert_array_equal([*a, *b], np.rint([*a, *b]))
        assert squared(a) * squared(b) <= SENSITIVITY**2
        if contribution.symmetric:
            np.testing.assert_array_equal(np.abs(a), np.abs(b))
        h, r = math.hypot(*left[j]), math.hypot(*right[j])  # these do not overflow
        if not math.isfinite(h * r):
            assert not np.outer(a, b).any()
        elif max(h, r) < 1e150 and min(h, r) > 1e-150:
            norm = abs(contribution.factor) * h * r
            due = phi[j] * min(1 / bound, 1 / norm) * BOUND_UNITS
            off = np.linalg.norm(np.outer(a, b).ravel() - due) / SENSITIVITY
            assert off <= math.sqrt(len(a)) / 2**17 + math.sqrt(len(b)) / 2**21


@MANY
@given(hostile_sums(), bounds)
def test_a_sum_is_that_of_python_integers(contribution, bound):
    n = len(contribution.norms)
    total = exact_sum(contribution, np.ones(n, bool), bound)
    assert total.dtype == np.int64
    assert as_integers(total, symmetric=contribution.symmetric) == by_integers(contribution, bound)


@pytest.mark.parametrize(("k", "m"), [(1, 1), (1, 40), (30, 1), (7, 3), (1024, 2), (2, 20_000)])
@pytest.mark.parametrize("signs", ["random", "worst"])
def test_no_finite_record_is_left_out(rng, k, m, signs):
    """Nor where rounding makes every number of a factor longer by half a unit."""
    left, right = rng.standard_normal((20, k)), rng.standard_normal((20, m)) * 10
    if signs == "worst":
        left = np.full((20, k), 1.0)
        # So that a number of the clipped row is half a unit more than a whole one.
        right = np.full((20, m), (np.floor(exact.RIGHT_UNITS / math.sqrt(m)) + 0.5000001))
    a, b = gridded(OuterSum(left, Columns.of(right), np.ones(20)), 1.0)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    np.testing.assert_allclose(lengths / BOUND_UNITS, np.minimum(norms, 1), atol=2.0**-12)


def test_a_square_of_many_numbers_is_not_left_out(rng):
    rows = Columns.of(np.concatenate([rng.standard_normal((5, 16_000)), np.ones((5, 16_000))]))
    a, _ = gridded(OuterSum(rows, rows, np.ones(10), symmetric=True), 1.0)
    np.testing.assert_allclose((a**2).sum(axis=1) / BOUND_UNITS, 1, atol=2.0**-12)


def test_records_that_are_not_kept_add_nothing(rng):
    keep = np.array([True, False, True])
    for symmetric in (False, True):
        a, b = gridded(random_sum(rng, 3, symmetric=symmetric), 1.0, keep)
        assert a.any(axis=1).tolist() == b.any(axis=1).tolist() == keep.tolist()


@pytest.mark.parametrize("zero", [0.0, 5e-324, 1e-200])
def test_a_left_row_of_nothing_adds_nothing(zero):
    """There is no direction to divide by."""
    left = np.array([[zero, 0.0], [1.0, 0.0]])
    contribution = OuterSum(left, Columns.of(np.ones((2, 1))), np.ones(2))
    total = exact_sum(contribution, np.ones(2, bool), 1.0)
    assert total.tolist() == [[BOUND_UNITS], [0]]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("numbers", [1, 7, 64, 2**20])
def test_order_blocks_and_threads_do_not_change_a_bit(rng, numbers, symmetric, monkeypatch):
    X, H, keep = rng.standard_normal((60, 4)), rng.standard_normal((60, 3)), rng.random(60) < 0.8

    def total(order):
        right = Columns.of(X[order])
        left = right if symmetric else H[order]
        return exact_sum(OuterSum(left, right, np.ones(60), symmetric=symmetric), keep[order], 0.7)

    whole = total(np.arange(60))
    monkeypatch.setattr(exact, "NUMBERS_AT_A_TIME", numbers)
    monkeypatch.setattr(exact, "MIN_ROWS", 1)
    for groups in (1, 5):
        monkeypatch.setattr(exact, "MIN_GROUP", 60 * 12 // groups)
        with threadpool_limits(limits=2), rows_over_threads():
            for _ in range(3):
                np.testing.assert_array_equal(total(rng.permutation(60)), whole)
    float_sums = {float((H[o].T @ X[o])[0, 0]) for o in map(rng.permutation, [60] * 20)}
    assert len(float_sums) > 1  # what the integers are for


def test_a_block_that_floats_cannot_add(monkeypatch):
    """Plant: more records in one product than keep its sums below 2^53. The last bits go."""
    n = 2**16 + 1
    left, odd = np.tile([0.6, 0.8], (n, 1)), exact.RIGHT_UNITS - 1
    right = Columns.of(np.full((n, 1), odd / exact.RIGHT_UNITS))
    contribution = OuterSum(left, right, np.ones(n))
    a, b = gridded(contribution, 1.0)
    due = [n * int(u) * int(b[0, 0]) for u in a[0]]
    assert any(entry > 2**53 and entry % 2 for entry in due)
    monkeypatch.setattr(exact, "NUMBERS_AT_A_TIME", 2**22)
    assert exact_sum(contribution, np.ones(n, bool), 1.0).ravel().tolist() == due
    monkeypatch.setattr(exact, "EXACT", 2**60)
    assert exact_sum(contribution, np.ones(n, bool), 1.0).ravel().tolist() != due


def test_the_largest_block_is_exact():
    """Every record is as long as it may be, all in one entry: the sum is 2^53 less the hair."""
    n = exact.EXACT // SENSITIVITY
    contribution = OuterSum(np.ones((n, 1)), Columns.of(np.ones((n, 1))), np.ones(n))
    total = exact_sum(contribution, np.ones(n, bool), 1.0)
    assert total.tolist() == [[n * BOUND_UNITS]]
    assert n * SENSITIVITY <= 2**53


@pytest.mark.parametrize("symmetric", [False, True])
def test_other_array_libraries_give_the_same_bits(rng, symmetric):
    X, H = (rng.standard_normal((12, d)).astype(np.float32) for d in (4, 3))
    sums = []
    for asarray in (np.asarray, strict):
        right = Columns.of(asarray(X))
        left = right if symmetric else asarray(H)
        contribution = OuterSum(left, right, np.ones(12), factor=2.0, symmetric=symmetric)
        sums.append(exact_sum(contribution, np.ones(12, bool), 1.0))
    np.testing.assert_array_equal(*sums)


@pytest.mark.parametrize("kind", ["random", "the same", "of few values"])
def test_rounding_moves_a_mean_by_less_than_a_hundred_thousandth_of_the_bound(rng, kind):
    """Rounded to nearest, errors of many records cancel; alike, they are all there is of one."""
    n, k, m = 2000, 10, 784
    left, right = np.abs(rng.standard_normal((n, k))), rng.standard_normal((n, m))
    if kind == "the same":
        left[:], right[:] = left[0], right[0]
    elif kind == "of few values":
        left, right = np.eye(k)[rng.integers(k, size=n)], (right > 0) / math.sqrt(m)
    contribution = OuterSum(left, Columns.of(right), np.ones(n))
    a = exact_sum(contribution, np.ones(n, bool), 1.0) * exact.unit_of(1.0)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    true = (left / np.maximum(norms, 1.0)[:, None]).T @ right
    off = np.linalg.norm(a - true) / n
    assert off < {"random": 1e-6}.get(kind, 1e-5)


def test_a_triangle_comes_back_as_its_matrix(rng):
    contribution = random_sum(rng, 30, m=4, symmetric=True)
    total = exact_sum(contribution, np.ones(30, bool), 100.0) * exact.unit_of(100.0)
    matrix = exact.unpacked(total)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix, terms(contribution).sum(axis=0), atol=100 * 30 * 1e-5)
