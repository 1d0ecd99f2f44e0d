"""The grid of exact sums: no row is too long, no order changes a bit, no triangle its norm."""

import math

import numpy as np
import pytest
from array_api_strict import asarray as strict
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.privacy import exact_sums as exact
from dpfedc.privacy.exact_sums import BOUND_UNITS, SENSITIVITY, exact_sum, on_grid

MANY = settings(max_examples=80)
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


def test_other_array_libraries_give_the_same_bits(rng):
    phi = rng.standard_normal((12, 4)).astype(np.float32)
    keep = np.ones(12, bool)
    other = strict(phi)
    np.testing.assert_array_equal(
        exact_sum(lambda r: phi[r], keep, 1.0), exact_sum(lambda r: other[r, :], keep, 1.0)
    )


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
