"""Ragged sums, the standardised view, and the sums-and-counts kernels, against plain loops."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.kernels import rows
from dpfedc.kernels.cluster_sums import cluster_means, one_hot, squared_distances
from dpfedc.kernels.relocation import relocated_centers
from dpfedc.kernels.row_views import Standardized, centered_norms
from dpfedc.kernels.segments import padded_rows, segment_products, segment_sum
from dpfedc.privacy import sums as privacy_sums
from dpfedc.privacy.sampling import site_of_row, slot_of_row
from dpfedc.privacy.sums import OuterSum

site_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def offsets_of(sizes):
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@given(site_sizes)
def test_rows_know_their_site_and_slot(sizes):
    pairs = [(site, slot) for site, size in enumerate(sizes) for slot in range(size)]
    offsets = offsets_of(sizes)
    assert list(zip(site_of_row(offsets), slot_of_row(offsets), strict=True)) == pairs


@given(site_sizes, st.sampled_from([(), (3,), (2, 2)]))
def test_segment_sums_equal_the_loop(sizes, trailing):
    offsets = offsets_of(sizes)
    rng = np.random.default_rng(sum(sizes))
    values = rng.standard_normal((offsets[-1], *trailing))
    left, right = rng.standard_normal((offsets[-1], 2)), rng.standard_normal((offsets[-1], 3))
    sites = [slice(a, b) for a, b in pairwise(offsets)]
    sums = segment_sum(values, offsets)
    products = segment_products(left, right, offsets)
    assert sums.shape == (len(sizes), *trailing)
    assert products.shape == (len(sizes), 2, 3)
    for i, site in enumerate(sites):
        np.testing.assert_allclose(sums[i], sum(values[site]), atol=1e-12)
        expected = sum(np.outer(a, b) for a, b in zip(left[site], right[site], strict=True))
        np.testing.assert_allclose(products[i], expected, atol=1e-12)


def test_segment_sums_of_one_to_a_hundred_thousand_records(rng):
    sizes = rng.permutation([1] * 300 + [2, 3, 1000, 1024, 1025, 65_536, 65_537, 100_000])
    offsets = offsets_of(sizes)
    values = rng.standard_normal((offsets[-1], 2)).astype(np.float32)
    sums, products = segment_sum(values, offsets), segment_products(values, values, offsets)
    assert sums.dtype == products.dtype == np.float32
    for i, (a, b) in enumerate(pairwise(offsets)):
        block = values[a:b].astype(np.float64)
        room = 1e-4 * np.sqrt(b - a)
        np.testing.assert_allclose(sums[i], block.sum(axis=0), atol=room)
        np.testing.assert_allclose(products[i], block.T @ block, rtol=1e-4, atol=room)


def test_padding_never_reaches_a_sum():
    values = np.array([[1.0], [np.inf], [2.0], [3.0], [4.0]])
    sums = segment_sum(values, np.array([0, 1, 2, 5]))
    np.testing.assert_array_equal(sums, [[1], [np.inf], [9]])


def test_padded_rows_can_all_be_gathered():
    rows, real = padded_rows(np.array([0, 4, 5]), np.array([4, 1, 2]), 4)
    np.testing.assert_array_equal(rows, [[0, 1, 2, 3], [4, 4, 4, 4], [5, 6, 5, 5]])
    np.testing.assert_array_equal(real.sum(axis=1), [4, 1, 2])


def formed_by_loop(X, center, scale, constant):
    """The standardised records, formed one by one."""
    rows = []
    for x in X:
        difference = x - center
        length = np.sqrt(sum(difference**2))
        row = difference if scale is None else difference / max(scale, length)
        rows.append(np.append(row, constant) if constant else row)
    return np.array(rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("constant", [0.0, 0.5])
@pytest.mark.parametrize("scale", [None, 0.01, 2.0, 1e3])
def test_the_standardised_view_equals_the_records_it_stands_for(rng, dtype, constant, scale):
    """scale 0.01 clips every record, 2 some of them, 1000 none."""
    X = rng.standard_normal((30, 4)) + 1
    center = rng.standard_normal(4)
    formed = formed_by_loop(X, center, scale, constant)
    if scale is not None:
        assert np.all(np.linalg.norm(formed[:, :4], axis=1) <= 1 + 1e-12)
    view = Standardized.of(
        X.astype(dtype),
        center=center.astype(dtype),
        scale=None if scale is None else np.asarray(scale, dtype),
        constant=constant,
    )
    assert view.n_features == formed.shape[1]
    W, V = rng.standard_normal((3, formed.shape[1])), rng.standard_normal((30, 3))
    index = np.array([7, 0, 29, 7])
    room = {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-13}
    before = W.copy(), V.copy()
    for got, expected in (
        (view.squared_norms, (formed**2).sum(axis=1)),
        (view.products(W.astype(dtype)), formed @ W.T),
        (view.weighted_sums(V.astype(dtype)), V.T @ formed),
        (view.rows(index), formed[index]),
    ):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, **room)
    np.testing.assert_array_equal(before[0], W)
    np.testing.assert_array_equal(before[1], V)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [None, 0.01, 2.0])
@pytest.mark.parametrize("dimensions", [1, 3, 5])
def test_a_view_with_a_basis_equals_explicit_projection(rng, dtype, scale, dimensions):
    X, center = rng.standard_normal((30, 5)) + 1, rng.standard_normal(5)
    basis = np.linalg.qr(rng.standard_normal((5, dimensions)))[0].T
    rows = formed_by_loop(X, center, scale, 0.0)
    formed = np.array([[sum(b * row) for b in basis] for row in rows])
    view = Standardized.of(
        X.astype(dtype),
        center=center.astype(dtype),
        scale=None if scale is None else np.asarray(scale, dtype),
        basis=basis.astype(dtype),
    )
    assert view.n_features == dimensions
    W, V = rng.standard_normal((3, dimensions)), rng.standard_normal((30, 3))
    index = np.array([7, 0, 29, 7])
    room = {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-13}
    for got, expected in (
        (view.squared_norms, (formed**2).sum(axis=1)),
        (view.products(W.astype(dtype)), formed @ W.T),
        (view.weighted_sums(V.astype(dtype)), V.T @ formed),
        (view.rows(index), formed[index]),
    ):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, **room)
    if dimensions == 5:  # nothing is lost: lengths are those of the records themselves
        np.testing.assert_allclose(view.squared_norms, (rows**2).sum(axis=1), **room)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("chunk", [1, 7, 30, 4096])
def test_the_second_moment_equals_the_loop(rng, monkeypatch, dtype, chunk):
    monkeypatch.setattr(privacy_sums, "CHUNK", chunk)
    X, center, weights = rng.standard_normal((30, 4)) + 1, rng.standard_normal(4), rng.random(30)
    weights[3] = 0
    rows = formed_by_loop(X, center, 1.5, 0.0)
    expected = sum(w * np.outer(row, row) for w, row in zip(weights, rows, strict=True))
    view = Standardized.of(
        X.astype(dtype), center=center.astype(dtype), scale=np.asarray(1.5, dtype)
    )
    outer = OuterSum(view, view, view.squared_norms, symmetric=True)
    got = outer.total(weights.astype(dtype))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=1e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("basis", [None, np.eye(2, 3)])
def test_a_record_whose_norm_overflows_is_known_by_it(basis):
    X = np.array([[1e200, 0.0, 1.0], [1.0, 2.0, 2.0]])
    with np.errstate(over="ignore", invalid="ignore"):
        view = Standardized.of(X, center=np.zeros(3), scale=np.asarray(6.0), basis=basis)
    assert not np.isfinite(view.squared_norms[0])
    assert view.squared_norms[1] == pytest.approx((5 if basis is not None else 9) / 36)
    assert np.isfinite(view.rows(np.array([0, 1]))).all()


def test_centered_norms_do_not_depend_on_the_chunks(rng, monkeypatch):
    X, center = rng.standard_normal((23, 3)) + 100, np.full(3, 100.0)
    expected = np.linalg.norm(X - center, axis=1)
    for chunk in (1, 7, 23, 4096):
        monkeypatch.setattr(rows, "_CACHED", 3 * chunk)
        np.testing.assert_allclose(centered_norms(X, center), expected, rtol=1e-13)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_squared_distances_equal_the_loop(seed, k):
    rng = np.random.default_rng(seed)
    X, centers = rng.standard_normal((20, 3)), rng.standard_normal((k, 3))
    X[0] = centers[0]
    distances = squared_distances(X @ centers.T, (X**2).sum(axis=1), centers)
    expected = [[sum((x - c) ** 2) for c in centers] for x in X]
    np.testing.assert_allclose(distances, expected, atol=1e-12)
    assert distances.min() >= 0


def test_one_hot():
    labels = np.array([2, 0, 2])
    coded = one_hot(labels, 4, np.zeros(1, np.float32))
    assert coded.dtype == np.float32
    np.testing.assert_array_equal(coded, [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0]])


def test_cluster_means_leave_an_empty_cluster_where_it_was():
    sums = np.array([[6.0, 2.0], [0.3, 0.4], [0.0, 0.0], [-3.0, 0.0]])
    counts = np.array([2.0, 0.4, 0.0, 1.0])  # with noise a count need not be whole
    before = np.arange(8.0).reshape(4, 2)
    means = cluster_means(sums, counts, before)
    np.testing.assert_array_equal(means, [[3, 1], [2, 3], [4, 5], [-3, 0]])
    # With noise a small count means nothing.
    means = cluster_means(sums, counts, before, least=1.5)
    np.testing.assert_array_equal(means, [[3, 1], [2, 3], [4, 5], [6, 7]])


def sums_and_counts(X, centers):
    """Labels, counts, means and spread of one Lloyd step, by a loop."""
    labels = np.array([np.argmin([sum((x - c) ** 2) for c in centers]) for x in X])
    groups = [X[labels == cluster] for cluster in range(len(centers))]
    means = np.array(
        [g.mean(axis=0) if len(g) else c for g, c in zip(groups, centers, strict=True)]
    )
    spread = np.array([((g - c) ** 2).sum() for g, c in zip(groups, means, strict=True)])
    return means, np.array([float(len(g)) for g in groups]), spread


def lloyd_cost(X, centers, steps):
    for _ in range(steps):
        centers, _, spread = sums_and_counts(X, centers)
    return spread.sum()


@pytest.fixture
def four_blobs(rng):
    truth = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    return truth, np.repeat(truth, 25, axis=0) + 0.5 * rng.standard_normal((100, 2))


def test_relocation_repairs_what_lloyd_cannot(four_blobs, rng):
    truth, X = four_blobs
    # Two centres share blob 0, one serves blobs 2 and 3: a fixed point of Lloyd's algorithm.
    stuck = np.array([[-0.5, 0.0], [0.5, 0.0], [10.0, 0.0], [5.0, 10.0]])
    good = lloyd_cost(X, truth, 1)
    assert lloyd_cost(X, stuck, 50) > 10 * good
    means, counts, spread = sums_and_counts(X, stuck)
    directions = rng.standard_normal((4, 2))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    arguments = means, counts, spread, directions
    kept = [array.copy() for array in arguments]
    moved = relocated_centers(*arguments)
    for before, now in zip(kept, arguments, strict=True):
        np.testing.assert_array_equal(before, now)
    assert lloyd_cost(X, moved, 5) == pytest.approx(good)
    # The pair became its weighted mean; the centre of the other blob did not move.
    shared = (counts[0] * means[0] + counts[1] * means[1]) / (counts[0] + counts[1])
    np.testing.assert_allclose(moved[0], shared)
    np.testing.assert_array_equal(moved[2], means[2])


def test_relocation_needs_a_gain_above_the_noise(four_blobs):
    _, X = four_blobs
    stuck = np.array([[-0.5, 0.0], [0.5, 0.0], [10.0, 0.0], [5.0, 10.0]])
    means, counts, spread = sums_and_counts(X, stuck)
    arguments = means, counts, spread, np.tile([1.0, 0.0], (4, 1))
    # Splitting the cluster of two blobs gains its spread over the typical one; merging costs.
    gain = spread[3] - counts[3] * np.median(spread / counts)
    a, b = counts[:2]
    cost = a * b / (a + b) * ((means[0] - means[1]) ** 2).sum()
    slack = gain - 1.5 * cost
    assert slack > 0
    assert not np.array_equal(relocated_centers(*arguments, noise=0.999 * slack), means)
    np.testing.assert_array_equal(relocated_centers(*arguments, noise=1.001 * slack), means)


def test_relocation_leaves_a_good_solution_alone(four_blobs):
    truth, X = four_blobs
    means, counts, spread = sums_and_counts(X, truth)
    directions = np.tile([1.0, 0.0], (4, 1))
    np.testing.assert_array_equal(relocated_centers(means, counts, spread, directions), means)


@pytest.mark.parametrize("k", [1, 2])
def test_relocation_needs_three_centers(k):
    centers = np.arange(2.0 * k).reshape(k, 2)
    counts, spread = np.ones(k), np.arange(k) * 1e6
    moved = relocated_centers(centers, counts, spread, np.ones((k, 2)))
    np.testing.assert_array_equal(moved, centers)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_relocation_takes_any_statistics(seed, k):
    """Noise may make counts and spreads negative; centres stay finite and inputs untouched."""
    rng = np.random.default_rng(seed)
    arguments = [rng.standard_normal(shape) * 5 for shape in ((k, 3), k, k, (k, 3))]
    kept = [array.copy() for array in arguments]
    moved = relocated_centers(*arguments)
    assert moved.shape == (k, 3)
    assert np.isfinite(moved).all()
    for before, now in zip(kept, arguments, strict=True):
        np.testing.assert_array_equal(before, now)
