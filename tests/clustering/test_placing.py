"""How long records are, where they lie, how far they spread and in which subspace: by loops."""

import math

import numpy as np
import pytest

from dpfedc.clustering.bound import N_BINS, Bound
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.stage import Public, SiteBatch
from dpfedc.clustering.subspace import Subspace
from dpfedc.engine.simulated import Sites
from dpfedc.errors import NotFound
from dpfedc.randomness import Randomness
from support.runs import opened, ran, released

RANDOMNESS = Randomness(0)


def started(stage, state, n_features=3):
    return stage.start(state, Public(n_features, np.array([10]), np.asarray), RANDOMNESS)


def sum_of(stage, state, X, present=None):
    """Return what one site with records X would release, and the bound on one record."""
    batch = SiteBatch(X, np.array([0, len(X)]), np.array([0]), present)
    batch.memory = stage.prepare(batch, state, RANDOMNESS)
    _, out = opened(stage, batch, state, RANDOMNESS)
    return out.value, stage.sensitivity(state, 1)


def length(x):
    return math.sqrt(sum(value**2 for value in x))


def upper_edge(place):
    """Return where half octave number `place` of the grid ends: the grid starts at 2^-40."""
    return 2.0 ** (-40 + (place + 1) / 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_norms_are_counted_in_half_octaves(rng, dtype):
    directions = rng.standard_normal((500, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    X = (directions * 10 ** rng.uniform(-14, 14, (500, 1)) + 1).astype(dtype)
    origin = np.ones(3, dtype)
    X[7] = origin  # a norm of zero belongs to the lowest bin
    expected = np.zeros(N_BINS)
    edges = [upper_edge(place) for place in range(N_BINS)]
    for x in X:
        norm = length((x - origin).astype(np.float64))
        expected[next((i for i, edge in enumerate(edges) if norm < edge), N_BINS - 1)] += 1
    assert expected[0] >= 2  # both ends are used
    assert expected[-1] >= 2
    counts, bound = sum_of(Bound(0.0), {"origin": origin}, X)
    assert counts.dtype == dtype
    np.testing.assert_array_equal(counts, expected)
    assert bound == 1
    present = np.arange(500) % 3 > 0
    fewer, _ = sum_of(Bound(0.0), {"origin": origin}, X, present)
    assert fewer.sum() == present.sum()


def test_the_bound_is_the_end_of_the_highest_bin_that_counts():
    state = started(Bound(5.0), {})
    np.testing.assert_array_equal(state["origin"], np.zeros(3))
    counts = np.zeros(N_BINS)
    counts[[80, 83, 90, 120]] = 400.0, 5.1, 5.0, 4.9  # few records far out, or only noise
    bound = Bound(5.0).combine(state, released(counts), 1)["bound"]
    assert float(bound) == upper_edge(83)
    assert float(Bound(399.0).combine(state, released(counts), 1)["bound"]) == upper_edge(80)
    assert upper_edge(80) == pytest.approx(math.sqrt(2))


def test_a_later_pass_that_finds_nothing_leaves_the_bound_of_the_first():
    state = {"origin": np.zeros(3), "data_mean": np.ones(3), "bound": np.asarray(4.0)}
    counts = np.full(N_BINS, 3.0)
    later = Bound(5.0, noise_std=2.0, around="data_mean", name="bound-2")
    assert float(later.combine(state, released(counts), 1)["bound"]) == 4.0
    counts[80] = 400.0
    assert float(later.combine(state, released(counts), 1)["bound"]) == upper_edge(80)
    with pytest.raises(NotFound):
        Bound(5.0, noise_std=2.0).combine({"origin": np.zeros(3)}, released(np.zeros(N_BINS)), 1)


def test_a_declared_origin_is_kept():
    origin = np.array([1.0, 2.0, 3.0])
    for stage in (Bound(1.0), Mean()):
        np.testing.assert_array_equal(started(stage, {"origin": origin})["origin"], origin)
    np.testing.assert_array_equal(started(Scale(), {"origin": origin})["data_mean"], origin)
    released_center = started(Scale(), {"origin": origin, "data_mean": 2 * origin})["data_mean"]
    np.testing.assert_array_equal(released_center, 2 * origin)


def clipped_mean(X, origin, bound):
    total = np.zeros(len(origin))
    for x in X:
        difference = x - origin
        total += difference * min(1, bound / max(length(difference), 1e-300))
    return origin + total / len(X)


def clipped_scale(X, center, bound, factor=1.3):
    return factor * sum(min(length(x - center), bound) for x in X) / len(X)


@pytest.mark.parametrize("bound", [0.5, 3.0, 100.0])
def test_mean_and_scale_clip_every_record_to_the_bound(rng, bound):
    X, origin = 2 * rng.standard_normal((40, 3)) + 1, np.array([0.5, 0.0, -1.0])
    X[0] = origin
    state = {"origin": origin, "bound": np.asarray(bound)}
    value, sensitivity = sum_of(Mean(), state, X)
    assert sensitivity == bound
    center = clipped_mean(X, origin, bound)
    np.testing.assert_allclose(value, 40 * (center - origin), atol=1e-12)
    state = Mean().combine(state, released(value, 40), 1)
    np.testing.assert_allclose(state["data_mean"], center, atol=1e-12)
    value, sensitivity = sum_of(Scale(), state, X)
    assert sensitivity == bound
    scale = Scale().combine(state, released(value, 40), 1)["scale"]
    assert float(scale) == pytest.approx(clipped_scale(X, center, bound))
    wide = Scale(factor=2.0).combine(state, released(value, 40), 1)["scale"]
    assert float(wide) == pytest.approx(clipped_scale(X, center, bound, 2.0))


def test_without_a_bound_nothing_is_clipped(rng):
    X = 1e3 * rng.standard_normal((20, 3))
    state = started(Mean(), {})
    value, sensitivity = sum_of(Mean(), state, X)
    assert sensitivity == math.inf
    np.testing.assert_allclose(value, sum(X))
    state = Mean().combine(state, released(value, 20), 1)
    np.testing.assert_allclose(state["data_mean"], X.mean(axis=0))
    _, sensitivity = sum_of(Scale(), state, X)
    assert sensitivity == math.inf


def test_noise_cannot_carry_the_center_beyond_the_bound():
    state = {"origin": np.ones(2), "bound": np.asarray(2.0)}
    center = Mean().combine(state, released([300.0, 400.0]), 1)["data_mean"]
    np.testing.assert_allclose(center, [1 + 1.2, 1 + 1.6])
    center = Mean().combine(state, released([3.0, 4.0]), 1)["data_mean"]
    np.testing.assert_allclose(center, [1.3, 1.4])


@pytest.mark.parametrize(
    ("noisy", "expected"),
    [(-50.0, 8 * 2.0**-10), (0.0, 8 * 2.0**-10), (40.0, 1.3 * 4), (1e9, 1.3 * 8)],
)
def test_noise_cannot_make_the_scale_vanish_or_grow_without_limit(noisy, expected):
    state = {"bound": np.asarray(8.0), "data_mean": np.zeros(2)}
    assert float(Scale().combine(state, released(noisy), 1)["scale"]) == pytest.approx(expected)


def test_without_a_bound_the_scale_stays_above_zero():
    scale = Scale().combine({"data_mean": np.zeros(2)}, released(0.0), 1)["scale"]
    assert 0 < float(scale) < 1e-100
    assert np.isfinite(float(scale) ** -2)


def standardized(X, center, scale):
    return np.array([(x - center) / max(scale, length(x - center)) for x in X])


def assert_leading(basis, rows, n_dimensions):
    """The basis is orthonormal, spans the leading eigenvectors, the largest first."""
    moment = sum(np.outer(row, row) for row in rows)
    values, vectors = np.linalg.eigh(moment)
    leading = vectors[:, ::-1][:, :n_dimensions].T
    np.testing.assert_allclose(basis @ basis.T, np.eye(n_dimensions), atol=1e-12)
    np.testing.assert_allclose(basis.T @ basis, leading.T @ leading, atol=1e-9)
    along = np.einsum("df,fg,dg->d", basis, moment, basis)
    np.testing.assert_allclose(along, values[::-1][:n_dimensions])


@pytest.mark.parametrize("n_dimensions", [1, 2, 5])
def test_the_subspace_holds_the_leading_directions(rng, n_dimensions):
    X = rng.standard_normal((60, 5)) * [3, 2, 1, 0.5, 0.1] + 7
    center, scale = X.mean(axis=0), 2.5
    rows = standardized(X, center, scale)
    stage = Subspace(n_dimensions)
    state = started(stage, {"data_mean": center, "scale": np.asarray(scale)}, 5)
    value, sensitivity = sum_of(stage, state, X)
    assert sensitivity == 1
    np.testing.assert_allclose(value, sum(np.outer(row, row) for row in rows), atol=1e-12)
    basis = stage.combine(state, released(value, 60), 1)["basis"]
    assert basis.shape == (n_dimensions, 5)
    assert_leading(basis, rows, n_dimensions)


@pytest.mark.parametrize(
    ("declared", "center", "scale"),
    [({}, 0.0, 1.0), ({"origin": np.full(4, 2.0), "bound": np.asarray(3.0)}, 2.0, 3.0)],
)
def test_a_subspace_needs_no_stage_before_it(rng, declared, center, scale):
    X = rng.standard_normal((50, 4)) * [3, 2, 1, 0.5] + 1
    state = started(Subspace(2), declared, 4)
    value, _ = sum_of(Subspace(2), state, X)
    rows = standardized(X, np.full(4, center), scale)
    assert_leading(Subspace(2).combine(state, released(value, 50), 1)["basis"], rows, 2)


def test_all_stages_in_a_row_equal_the_loops(ragged):
    X, offsets = ragged
    X[0] = 1e6  # one record far out neither sets the bound nor moves the rest
    sites = Sites.of(X, np.repeat(np.arange(12), np.diff(offsets)))
    state = ran((Bound(2.5), Mean(), Scale(), Subspace(2)), sites, RANDOMNESS)
    lengths = [length(x) for x in X]
    counted = [
        upper_edge(place)
        for place in range(N_BINS)
        if sum(upper_edge(place - 1) <= norm < upper_edge(place) for norm in lengths) > 2.5
    ]
    bound = max(counted)
    assert float(state["bound"]) == bound
    assert bound < 100
    center = clipped_mean(X, np.zeros(5), bound)
    np.testing.assert_allclose(state["data_mean"], center, rtol=1e-9)
    scale = clipped_scale(X, center, bound)
    assert float(state["scale"]) == pytest.approx(scale)
    assert_leading(state["basis"], standardized(X, center, scale), 2)
