"""Data far from the origin: every sum is as good, and one record moves it as little, as near it.

Centres are subtracted before products where they are far (`is_far`): after them, rounding would be
in proportion to the distance, and one record would move a release by many times its sensitivity.
"""

import math

import numpy as np
import pytest
from scipy.stats import beta

from dpfedc import DPFedC
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.mean_and_scale import Mean
from dpfedc.clustering.stage import SiteBatch
from dpfedc.kernels.row_views import Standardized, is_far
from dpfedc.kernels.rows import Runs
from dpfedc.privacy import gate
from support.sensitivity import Case, exact_release, length, movement, wide
from support.sensitivity_cases import STAGES, stage_of

PLACES = [
    (np.float32, 0.0), (np.float32, 10.0), (np.float32, 1e3), (np.float32, 1e4), (np.float32, 1e5),
    (np.float32, 1e6), (np.float64, 0.0), (np.float64, 1e6), (np.float64, 1e12), (np.float64, 1e13),
]  # fmt: skip
FAR = [(np.float32, 1e5), (np.float32, 1e6), (np.float64, 1e13)]
DIGITS = {np.float32: 1e-5, np.float64: 1e-12}


def records(dtype, far, n=2000, m=5):
    """Return records around `far`, that place, and the directions of their clusters."""
    rng = np.random.default_rng(0)
    means = rng.uniform(-2, 2, (3, m))
    X = means[np.arange(n) % 3] + rng.standard_normal((n, m)) + far
    X[::50] += 30  # to be clipped
    return X.astype(dtype), np.full(m, far, dtype), (means / length(means)[:, None]).astype(dtype)


def formed(X, center, scale):
    """Return the standardised records in double precision, from the same records."""
    D = wide(X) - wide(center)
    return D / np.maximum(length(D), scale)[:, None]


def assert_close(found, expected, dtype, size):
    """Right to the last digits of the largest number that is summed."""
    np.testing.assert_allclose(wide(found), expected, rtol=0, atol=DIGITS[dtype] * size)


@pytest.mark.parametrize("in_runs", [False, True])
@pytest.mark.parametrize("dimensions", [None, 2])
@pytest.mark.parametrize(("dtype", "far"), FAR)
def test_products_and_weighted_sums_equal_those_of_formed_records(dtype, far, dimensions, in_runs):
    X, center, W = records(dtype, far)
    basis = None
    if dimensions is not None:
        turned = np.linalg.qr(np.random.default_rng(2).standard_normal((5, dimensions)))[0]
        basis = turned.T.astype(dtype)
    W = W if basis is None else W[:, :dimensions]
    view = Standardized.of(X, center=center, scale=np.asarray(3, dtype), basis=basis)
    rows = formed(X, center, 3.0)
    rows = rows if basis is None else rows @ wide(basis).T
    assert_close(view.squared_norms, (rows**2).sum(axis=1), dtype, 1)
    if in_runs:
        runs = Runs(X, np.array([0, 700]), np.array([500, 2000]))
        kept = np.r_[0:500, 700:2000]
        squares = view.squared_norms[kept]
        view = Standardized(runs, center, view.factors[kept], squares, 0.0, basis, view.far)
        rows = rows[kept]
    V = np.random.default_rng(1).random((len(rows), 3)).astype(dtype)
    assert_close(view.products(W), rows @ wide(W).T, dtype, 1)
    assert_close(view.weighted_sums(V), wide(V).T @ rows, dtype, len(rows))


@pytest.mark.parametrize(("dtype", "far"), FAR)
def test_the_mean_and_lloyds_sums_equal_those_of_formed_records(dtype, far):
    X, origin, W = records(dtype, far)
    state = {"origin": origin, "bound": np.asarray(9, dtype), "centers": origin + 3 * W}
    rows = formed(X, origin, 9.0)
    released = exact_release(Case(Mean(), state, X, (len(X),)))
    assert_close(released, 9 * rows.sum(axis=0), dtype, 9 * len(X))
    released = exact_release(Case(LloydSums(3, 2), state, X, (len(X),), 2))
    centers = (wide(state["centers"]) - wide(origin)) / 9
    gaps = ((rows[:, None, :] - centers) ** 2).sum(axis=2)
    members = np.eye(3)[gaps.argmin(axis=1)]
    expected = np.column_stack([members.T @ rows, members.sum(axis=0)])
    assert_close(released, expected, dtype, len(X))


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize(("dtype", "far"), PLACES)
def test_nulling_a_record_moves_a_release_by_its_sensitivity_at_any_place(name, dtype, far):
    X, center, W = records(dtype, far)
    numbers = {"bound": 9.0, "scale": 3.0}
    state = {name: np.asarray(value, dtype) for name, value in numbers.items()}
    state |= {"origin": center, "data_mean": center, "W": W}
    state["residual_bounds"] = np.full(3, 0.5, dtype)
    state["centers"] = center + 3 * W if name == "Lloyd" else W
    stage, t = stage_of(name)
    places = np.concatenate([W, -W])[: getattr(stage, "n_places", 3)]
    state |= {"prototypes": W, "places": places, "distance_bound": np.asarray(0.5, dtype)}
    state["place_clusters"] = np.arange(len(places), dtype=dtype) % 3
    case = Case(stage, state, X, (500, 1500), t)
    tiny = 1e-3 if dtype == np.float32 else 1e-6
    assert max(movement(case, j) for j in (0, 1, 17, 950)) <= 1 + tiny


def test_what_is_far_depends_on_the_broadcast_and_the_precision_alone():
    for dtype, most in ((np.float32, 4.0), (np.float64, 2.0**20)):
        scale = np.asarray(3, dtype)
        center = np.array([0, -3 * most], dtype)
        assert not is_far(center, scale)
        assert is_far(center * dtype(1.001), scale)
        assert not is_far(center * dtype(1.001), None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_difference_that_overflows_is_that_of_a_null_record(dtype):
    most = np.finfo(dtype).max
    X = np.array([[most, 1.0], [-most * 0.9, 0.0], [-most * 0.9, 0.0]], dtype)
    center = np.array([-most * 0.9, 0], dtype)
    with np.errstate(all="ignore"):
        view = Standardized.of(X, center=center, scale=np.asarray(1, dtype))
        sums = view.weighted_sums(np.array([[0.0], [1.0], [1.0]], dtype))
    assert view.far
    np.testing.assert_array_equal(sums, [[0.0, 0.0]])


def test_an_attack_on_a_run_far_from_the_origin_finds_no_more_than_was_promised(monkeypatch):
    """The best attack there is, that knows all records but whether one is null, on whole runs."""
    X, center, _ = records(np.float32, 1e6, m=3)
    ranges = np.column_stack([center - 8.0, center + 8.0])
    found = [
        [attacked_run(monkeypatch, X, ranges, present=present, seed=2 * i + present)
         for i in range(25)]
        for present in (False, True)
    ]  # fmt: skip
    (absent, there), claimed = [[run[0] > 0 for run in runs] for runs in found], found[0][0][1]
    lower = beta.ppf(0.05, sum(there), len(there) - sum(there) + 1) if any(there) else 0.0
    upper = beta.ppf(0.95, sum(absent) + 1, len(absent) - sum(absent)) if not all(absent) else 1.0
    assert claimed == pytest.approx(1.0, abs=1e-3)
    assert lower <= math.exp(claimed) * upper + 1e-6


def attacked_run(monkeypatch, X, ranges, *, present, seed):
    """Return the log-likelihood ratio of record 17 being present, and the promised epsilon."""
    real_sum, real_noise = gate.summed, gate.with_noise
    sums, gaps = {}, []

    def both_sums(part, bound):
        contribution, batch, sample = part
        kept = np.arange(batch.n_records) != 17
        without = SiteBatch(batch.X, batch.offsets, batch.sites, kept, batch.memory)
        sums[True] = real_sum(part, bound)
        sums[False] = real_sum((contribution, without, sample), bound)
        return sums[present]

    def seen(*arguments, **more):
        value = real_noise(*arguments, **more)
        apart = {world: ((wide(value) - wide(sums[world])) ** 2).sum() for world in sums}
        gaps.append(apart[False] - apart[True])
        return value

    with monkeypatch.context() as patch:
        patch.setattr(gate, "summed", both_sums)
        patch.setattr(gate, "with_noise", seen)
        model = DPFedC(2, epsilon=1.0, delta=1e-6, random_state=seed, feature_ranges=ranges)
        model.fit(X)
    stds = [entry.release["noise_std"] for entry in model.history_.rounds]
    ratio = sum(gap / (2 * std**2) for gap, std in zip(gaps, stds, strict=True))
    return ratio, model.privacy_.epsilon
