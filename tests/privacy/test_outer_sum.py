"""The one sum over records: its total is the sum of its terms, for every kind of rows it is of."""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc.errors import DPFedCError
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.row_views import Columns, Residuals, Standardized
from dpfedc.privacy import sums
from dpfedc.privacy.sums import OuterSum
from support.exact_checks import terms as terms_of

LIBRARIES = {"numpy": np.asarray, "array_api_strict": array_api_strict.asarray}
RIGHTS = ("columns", "residuals", "standardized", "constant", "basis")


def right_rows(kind, rng, n, m, asarray):
    """Return rows of one kind."""
    if kind == "columns":
        return Columns.of(asarray(rng.standard_normal((n, m))), asarray(rng.standard_normal(n)))
    X, center = asarray(rng.standard_normal((n, m))), asarray(rng.standard_normal(m))
    basis = asarray(np.linalg.qr(rng.standard_normal((m, m)))[0][:1]) if kind == "basis" else None
    view = Standardized.of(
        X,
        center=center,
        scale=asarray(np.asarray(0.9)),
        constant=0.5 if kind == "constant" else 0.0,
        basis=basis,
    )
    if kind != "residuals":
        return view
    return Residuals(
        asarray(rng.standard_normal((n, 2))), asarray(rng.standard_normal((2, m))), view
    )


def naive(weights, terms):
    """Return the sum of w_j phi_j, record by record."""
    total = np.zeros(terms.shape[1:])
    for w, phi in zip(weights, terms, strict=True):
        total = total + w * phi
    return total


@st.composite
def outer_sums(draw):
    """Return an outer sum, its left and right rows formed in full, and a library's asarray."""
    asarray = LIBRARIES[draw(st.sampled_from(sorted(LIBRARIES)))]
    n, m = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    right = right_rows(draw(st.sampled_from(RIGHTS)), rng, n, m, asarray)
    kind = draw(st.sampled_from(["array", "view", "the same view"]))
    k = draw(st.integers(1, 3))
    left = {
        "array": lambda: asarray(rng.standard_normal((n, k))),
        "view": lambda: right_rows(draw(st.sampled_from(RIGHTS)), rng, n, k, asarray),
        "the same view": lambda: right,
    }[kind]()
    everyone = slice(0, n)
    h = np.asarray(left if kind == "array" else left.formed(everyone))
    r = np.asarray(right.formed(everyone))
    size = h.shape[1] * r.shape[1]
    shapes = [None, (size,), (r.shape[1], h.shape[1]), *([()] if size == 1 else [])]
    symmetric = kind == "the same view" and draw(st.booleans())
    norms = np.linalg.norm(h, axis=1) * np.linalg.norm(r, axis=1)
    factor = draw(st.sampled_from([1.0, 2.0, -0.5]))
    outer = OuterSum(
        left,
        right,
        asarray(abs(factor) * norms),
        factor=factor,
        shape=None if symmetric else draw(st.sampled_from(shapes)),
        symmetric=symmetric,
    )
    return outer, h, r, asarray


@settings(deadline=None, max_examples=200)
@given(outer_sums(), st.integers(1, 40), st.integers(0, 2**20))
def test_the_total_is_the_weighted_sum_of_the_terms(case, chunk, seed):
    """Terms are h_j r_j' as well, from left and right rows formed in full."""
    outer, h, r, asarray = case
    n = len(h)
    products = [outer.factor * np.outer(a, b) for a, b in zip(h, r, strict=True)]
    shape = products[0].shape if outer.shape is None else outer.shape
    expected = np.array([phi.reshape(shape) for phi in products])
    terms = terms_of(outer)
    assert terms.shape == (n, *shape)
    np.testing.assert_allclose(terms, expected, atol=1e-12)
    for some in (slice(0, 1), slice(n // 3, n), slice(n - 1, n)):
        left, right = outer.formed(some)
        np.testing.assert_allclose(np.asarray(left), h[some], atol=1e-12)
        np.testing.assert_allclose(np.asarray(right), r[some], atol=1e-12)

    rng = np.random.default_rng(seed)
    weights = rng.random(n) * (rng.random(n) < 0.8)  # some records are not kept
    kept = weights.copy()
    given_weights = asarray(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "CHUNK", chunk)
        total = np.asarray(outer.total(given_weights))
    assert total.shape == shape
    np.testing.assert_allclose(total, naive(weights, terms), atol=1e-10)
    np.testing.assert_array_equal(np.asarray(given_weights), kept)
    if outer.symmetric:
        np.testing.assert_allclose(total, total.T, atol=1e-12)


@settings(deadline=None)
@given(outer_sums(), st.sampled_from([0.05, 1.0, 50.0]), st.booleans())
def test_a_clipped_sum_is_that_of_terms_no_longer_than_the_bound(case, bound, all_kept):
    outer, h, _, asarray = case
    n = len(h)
    terms = terms_of(outer)
    keep = np.arange(n) % 3 != 1
    norms = np.sqrt((terms.reshape(n, -1) ** 2).sum(axis=1))
    np.testing.assert_allclose(np.asarray(outer.norms), norms, atol=1e-10)
    expected = np.zeros(terms.shape[1:])
    for phi, norm, kept in zip(terms, norms, keep, strict=True):
        if kept or all_kept:
            expected = expected + phi * min(1.0, bound / max(norm, 1e-300))
    got = outer.clipped(bound, None if all_kept else asarray(keep))
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-10)


@pytest.mark.parametrize("asarray", LIBRARIES.values(), ids=LIBRARIES)
def test_a_record_that_overflows_is_null(asarray):
    norms = np.array([1.0, np.inf, np.nan, 2.0])
    outer = OuterSum(asarray(np.ones((4, 1))), Columns.of(asarray(np.eye(4))), asarray(norms))
    np.testing.assert_array_equal(np.asarray(clip_weights(asarray(norms), 1.0)), [1, 0, 0, 0.5])
    np.testing.assert_array_equal(np.asarray(outer.clipped(1.0, None)), [[1, 0, 0, 0.5]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_keep_the_precision_of_their_records(rng, dtype):
    X = rng.standard_normal((9, 3)).astype(dtype)
    view = Standardized.of(X, center=X[0], scale=np.asarray(1.0, dtype))
    for left in (X, view):
        outer = OuterSum(left, view, view.squared_norms, factor=2.0)
        assert outer.total(np.ones(9, dtype)).dtype == dtype
        assert {rows.dtype for rows in outer.formed(slice(0, 9))} == {np.dtype(dtype)}


def test_a_symmetric_sum_has_one_kind_of_rows(rng):
    """The exact path takes the right ones for both: others would not be what is summed."""
    rows, norms = Columns.of(rng.standard_normal((5, 2))), np.ones(5)
    left, right = OuterSum(rows, rows, norms, symmetric=True).formed(slice(0, 3))
    assert left is right
    for wrong in ({"left": Columns.of(np.ones((5, 2)))}, {"shape": (4,)}):
        with pytest.raises(DPFedCError, match="the same rows on both sides, and no shape"):
            OuterSum(**{"left": rows, "right": rows, "norms": norms, "symmetric": True, **wrong})
