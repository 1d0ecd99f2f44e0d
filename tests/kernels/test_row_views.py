"""Rows that are not formed: their weighted sums, and a few at a time, against plain loops."""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.kernels.row_views import Columns, Residuals, Standardized
from dpfedc.kernels.rows import Runs

N, M, K = 23, 4, 3
SLICES = (slice(0, N), slice(0, 1), slice(5, 12), slice(N - 1, N), slice(7, 7))
LIBRARIES = pytest.mark.parametrize("asarray", [np.asarray, array_api_strict.asarray])
VIEWS = {
    "plain": {"scale": 1.5},
    "no scale": {"scale": None},
    "everything clipped": {"scale": 0.01},
    "constant": {"scale": 1.5, "constant": 0.5},
    "basis": {"scale": 1.5, "basis": True},
    "far": {"scale": 1e-7},
}


@pytest.fixture
def arrays(rng):
    """Return records, memberships, centres and weights."""
    shapes = {"X": (N, M), "H": (N, K), "W": (K, M), "V": (N, 2), "more": (N, 2), "column": (N,)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def summed(rows, V):
    """Return the sum of v_j r_j', record by record."""
    return sum(np.outer(v, row) for v, row in zip(V, rows, strict=True))


def assert_are(view, rows, asarray, V):
    """The view stands for these rows, whichever way it is asked."""
    assert_close(view.weighted_sums(asarray(V)), summed(rows, V))
    for some in SLICES:
        assert_close(view.formed(some), rows[some])


def assert_close(got, expected):
    got = np.asarray(got)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def standardized(arrays, asarray, *, scale, constant=0.0, basis=False):
    """Return the view and the rows that it stands for, formed one by one."""
    X, center = arrays["X"] + 1, np.arange(M) / 2
    B = np.linalg.qr(arrays["W"].T)[0][:, :2].T.copy()
    view = Standardized.of(
        asarray(X),
        center=asarray(center),
        scale=None if scale is None else asarray(np.asarray(scale)),
        constant=constant,
        basis=asarray(B) if basis else None,
    )
    rows = []
    for x in X:
        row = x - center
        row = row if scale is None else row / max(scale, np.sqrt(sum(row**2)))
        row = np.array([sum(b * row) for b in B]) if basis else row
        rows.append(np.append(row, constant) if constant else row)
    return view, np.array(rows)


@LIBRARIES
@pytest.mark.parametrize("kind", VIEWS)
def test_standardized_records(arrays, asarray, kind):
    view, rows = standardized(arrays, asarray, **VIEWS[kind])
    assert view.far == (kind == "far")
    assert_are(view, rows, asarray, arrays["V"])


def test_standardized_records_that_lie_in_runs(arrays):
    X, starts, stops = np.repeat(arrays["X"], 2, axis=0), np.array([2, 20]), np.array([13, 32])
    taken = np.r_[2:13, 20:32]
    assert len(taken) == N
    factors = arrays["column"]
    view = Standardized(Runs(X, starts, stops), np.ones(M), factors, factors, 0.5)
    rows = [[*(factor * (x - 1)), 0.5] for x, factor in zip(X[taken], factors, strict=True)]
    assert_are(view, np.array(rows), np.asarray, arrays["V"])


@LIBRARIES
def test_columns_side_by_side(arrays, asarray):
    view, rows = standardized(arrays, asarray, scale=1.5, constant=0.5)
    column, more = arrays["column"], arrays["more"]
    for parts, formed in (
        ((asarray(more),), more),
        ((asarray(column),), column[:, None]),
        ((view,), rows),
        ((asarray(column), asarray(more)), np.column_stack([column, more])),
        ((view, asarray(column), asarray(more)), np.column_stack([rows, column, more])),
        ((asarray(more), Columns.of(view, asarray(column))), np.column_stack([more, rows, column])),
    ):
        assert_are(Columns.of(*parts), formed, asarray, arrays["V"])


@LIBRARIES
@pytest.mark.parametrize("kind", VIEWS)
def test_residuals_of_memberships(arrays, asarray, kind):
    records, rows = standardized(arrays, asarray, **VIEWS[kind])
    H, W = arrays["H"], np.resize(arrays["W"], (K, rows.shape[1]))
    residuals = [sum(h[i] * W[i] for i in range(K)) - x for h, x in zip(H, rows, strict=True)]
    view = Residuals(asarray(H), asarray(W), records)
    assert_are(view, np.array(residuals), asarray, arrays["V"])


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**20))
def test_views_of_any_shape_are_the_sum_of_what_they_form(n, m, k, seed):
    rng = np.random.default_rng(seed)
    H, W, X, V = (rng.standard_normal(s) for s in ((n, k), (k, m), (n, m), (n, 2)))
    records = Standardized.of(X, center=W[0], scale=np.asarray(0.7), constant=0.3)
    wide = np.hstack([W, W[:, :1]])
    for view in (records, Residuals(H, wide, records), Columns.of(records, H, X[:, 0])):
        rows = view.formed(slice(0, n))
        np.testing.assert_allclose(view.weighted_sums(V), summed(rows, V), atol=1e-10)
        halves = [view.formed(slice(0, n // 2)), view.formed(slice(n // 2, n))]
        np.testing.assert_allclose(np.concatenate(halves), rows, atol=1e-14)
