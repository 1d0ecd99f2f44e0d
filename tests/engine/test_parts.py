"""Records used in place and cohorts worked through in parts give what one copied batch gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedc import DPFedC
from dpfedc.clustering.stage import SiteBatch
from dpfedc.engine import simulated
from dpfedc.engine.simulated import Sites
from dpfedc.errors import DPFedCError, InvalidInput, Refused
from dpfedc.kernels.row_views import Columns, Standardized
from dpfedc.kernels.rows import Runs, by_columns, chosen_rows, in_runs, weighted_rows
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=9), st.integers(0, 2**20))
def test_runs_do_what_the_copied_rows_do(lengths, seed):
    rng = np.random.default_rng(seed)
    gaps = rng.integers(0, 3, len(lengths))
    starts = np.cumsum(gaps) + np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(int)
    stops = starts + np.asarray(lengths)
    X = rng.standard_normal((int(stops[-1]) + 2, 5))
    rows = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)]).astype(int)
    copied, runs = X[rows], Runs(X, starts, stops)
    n = len(rows)
    assert runs.shape == copied.shape
    W, V = rng.standard_normal((3, 5)), rng.standard_normal((n, 3))
    np.testing.assert_allclose(by_columns(runs, W), copied @ W.T, atol=1e-12)
    np.testing.assert_allclose(weighted_rows(V, runs), V.T @ copied, atol=1e-12)
    index = rng.integers(0, n, 7) if n else np.arange(0)
    np.testing.assert_array_equal(chosen_rows(runs, index), copied[index])
    view = {"center": W[0], "factors": np.ones(n), "squared_norms": np.ones(n), "constant": 0.5}
    for name in ("products", "weighted_sums"):
        given_ = np.hstack([W, W[:, :1]]) if name == "products" else V
        a, b = (getattr(Standardized(x, **view), name)(given_) for x in (runs, copied))
        np.testing.assert_allclose(a, b, atol=1e-12)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=4),
    st.integers(1, 90),
    st.integers(1, 40),
    st.sampled_from(["float32", "float64"]),
    st.integers(1_000, 2_000_000),
    st.booleans(),
)
def test_products_in_blocks_are_the_whole_products(lengths, m, k, dtype, small, pays):
    rng = np.random.default_rng(len(lengths) + m)
    X = rng.standard_normal((sum(lengths) + 3 * len(lengths), m)).astype(dtype)
    stops = np.cumsum(np.asarray(lengths) + 3)
    runs = Runs(X, stops - lengths, stops)
    copied = runs.take(np.arange(sum(lengths)))
    W = rng.standard_normal((k, m)).astype(dtype)
    V = rng.standard_normal((len(copied), k)).astype(dtype)
    tolerance = 200 * np.finfo(dtype).eps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpfedc.kernels.rows.SMALL", small)
        patch.setattr("dpfedc.kernels.rows.small_products_pay", lambda: pays)
        for rows in (runs, copied):
            product, sums = by_columns(rows, W), weighted_rows(V, rows)
            assert product.dtype == sums.dtype == dtype
            np.testing.assert_allclose(product, copied @ W.T, atol=tolerance * np.sqrt(m) * 4)
            np.testing.assert_allclose(sums, V.T @ copied, atol=tolerance * len(copied) ** 0.5 * 4)


def test_neighbouring_runs_are_joined_and_short_ones_copied():
    X = np.zeros((400, 2))
    found = in_runs(X, np.array([0, 100, 300]), np.array([100, 200, 400]))
    assert found.starts.tolist() == [0, 300]
    assert found.stops.tolist() == [200, 400]
    assert in_runs(X, np.arange(0, 40, 4), np.arange(2, 42, 4)) is None


def test_a_batch_of_large_sites_is_not_a_copy():
    X = np.arange(4000.0).reshape(1000, 4)
    sites = Sites.of(X, np.arange(1000) // 100)
    batch = sites.batch(np.array([1, 4, 5]), {}, in_place=True)
    assert isinstance(batch.X, Runs)
    assert batch.X.X is sites.X
    assert np.shares_memory(sites.batch(np.array([3, 4]), {}).X, X)
    np.testing.assert_array_equal(batch.X.take(np.arange(300)), X[np.r_[100:200, 400:600]])


def test_a_light_method_has_large_parts_only_of_neighbours(monkeypatch):
    """Where sites are not neighbours an accelerator copies their records."""
    monkeypatch.setattr(simulated, "PART_RECORDS", 100)
    sites = Sites.of(np.zeros((400, 1)), np.arange(400) // 10)
    assert len(sites.split(np.arange(40), memory_factor=1 / 16)) == 1
    assert len(sites.split(np.arange(40), memory_factor=1.0)) == 4
    assert len(sites.split(np.arange(0, 40, 2), memory_factor=1 / 16)) == 2


def fitted(monkeypatch, part, min_run, **options):
    monkeypatch.setattr(simulated, "PART_RECORDS", part)
    monkeypatch.setattr("dpfedc.kernels.rows.MIN_RUN", min_run)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 4)) + 6 * rng.standard_normal((3, 4))[rng.integers(3, size=600)]
    sites = rng.integers(12, size=600)
    model = DPFedC(3, random_state=1, sites_per_round=5, n_rounds=6, **options)
    return model.fit(X, sites=sites)


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": None},
        {"epsilon": 4.0},
        {"epsilon": 4.0, "sampling_probability": 0.5, "trust": "secure-aggregation"},
        {"epsilon": 4.0, "extra_steps": 2},
        {"epsilon": 9.0, "subspace": 2},
    ],
)
@pytest.mark.parametrize(("part", "min_run"), [(1, 10**9), (130, 1)])
def test_a_fit_does_not_depend_on_its_parts(monkeypatch, options, part, min_run):
    """Parts and places change the rounding alone: noise and coins go by stage, round and site."""
    whole = fitted(monkeypatch, 10**9, 10**9, **options)
    parts = fitted(monkeypatch, part, min_run, **options)
    np.testing.assert_allclose(parts.cluster_centers_, whole.cluster_centers_, atol=1e-6)
    events = [[r.release for r in m.history_.rounds] for m in (whole, parts)]
    assert events[0] == events[1]


def part_of(sites, *, q=1.0, symmetric=False):
    """Return what sites with one record of zeros each contribute."""
    n = len(sites)
    batch = SiteBatch(np.zeros((n, 1)), np.arange(n + 1), np.asarray(sites))
    rows = Columns.of(np.zeros((n, 3)))
    total = OuterSum(np.ones((n, 1)), rows, np.zeros(n), shape=(3,))
    if symmetric:
        total = OuterSum(rows, rows, np.zeros(n), symmetric=True)
    return total, batch, RoundSample(q, 1)


def gate_of_one_round():
    plan = PrivacyPlan((PlannedRelease("mean", 1, 8, 1, 2.0),), 1e-5, "trusted-server", 8)
    return Gate(plan, SimulatedNoise(Randomness(0)), Randomness(0))


def let_out(gate, parts, sites):
    return gate.release(parts, np.array(sites), stage="mean", t=1, sensitivity=1.0)


def test_parts_must_be_for_the_sites_that_were_charged():
    for parts in ([[0]], [[0], [1], [2]], [[0], [0, 1]], [[1], [0]]):
        gate = gate_of_one_round()
        with pytest.raises(DPFedCError, match="for each site once"):
            let_out(gate, map(part_of, parts), [0, 1])
        assert gate.events == []


def test_parts_must_be_of_one_kind():
    parts = [part_of([0]), part_of([1], symmetric=True)]
    with pytest.raises(DPFedCError, match="of one kind"):
        let_out(gate_of_one_round(), parts, [0, 1])
    with pytest.raises(InvalidInput, match="must sample records with probability"):
        let_out(gate_of_one_round(), [part_of([0], q=0.5)], [0])


def test_parts_are_charged_before_the_first_is_made():
    gate = gate_of_one_round()
    made = []

    def parts():
        made.append(int(gate._charged["mean"].sum()))
        yield part_of([0, 1])

    let_out(gate, parts(), [0, 1])
    assert made == [2]
    with pytest.raises(Refused, match="after round 1"):
        let_out(gate, parts(), [0])
    assert len(made) == 1


def test_without_a_plan_parts_have_no_noise():
    released = let_out(OpenGate(), [part_of([0]), part_of([1])], [0, 1])
    assert released.value.tolist() == [0, 0, 0]
    assert released.n_sites == 2
