"""A federation is a set of sites: no order, no batching and no dealing of records may matter."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpfedc import DPFedC
from dpfedc.clustering.bound import Bound
from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.local_steps import LocalSteps
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.stage import SiteBatch
from dpfedc.clustering.subspace import Subspace
from dpfedc.engine.simulated import Sites
from dpfedc.errors import DPFedCError
from dpfedc.privacy.gate import Released, ReleaseEvent
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.randomness import Randomness
from dpfedc.research.published.algorithm import Published
from dpfedc.settings import Penalty
from support.runs import opened, ran
from support.runs import released as let_out

RANDOMNESS = Randomness(3)
GATE = OpenGate(SimulatedNoise(RANDOMNESS))
STAGES = {
    "bound": Bound(5.0),
    "mean": Mean(),
    "mean, clipped": Mean(),
    "scale": Scale(),
    "scale, clipped": Scale(),
    "subspace": Subspace(3),
    "one step": Factorization(4, 1),
    "one step, constant": Factorization(4, 1, constant=0.5),
    "one step, counted": Factorization(4, 1, counted=True),
    "one step in a subspace": Factorization(4, 1),
    "four steps": LocalSteps(4, 1, extra_steps=3, penalty=Penalty(centroid_ridge=0.2)),
    "four steps in a subspace": LocalSteps(4, 1, extra_steps=3),
    "memberships": Centers(4),
    "memberships, clipped": Centers(4, bounded=True, constant=0.5),
    "memberships in a subspace": Centers(4, bounded=True),
    "nearest centres": Centers(4, n_rounds=3, refine=True),
    "lengths": Lengths(4),
    "lengths, constant": Lengths(4, constant=0.5),
    "lengths in a subspace": Lengths(4),
}


@pytest.fixture(scope="module")
def hundred_sites():
    rng = np.random.default_rng(8)
    sizes = rng.permutation(
        [1] * 40 + [2, 3, 4, 5] * 10 + list(range(10, 60, 3))[:17] + [80, 120, 200]
    )
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    centers = 3 * rng.standard_normal((4, 6))
    X = centers[rng.integers(4, size=offsets[-1])] + rng.standard_normal((offsets[-1], 6))
    return X, offsets


def state_before(stage, X, offsets, name=""):
    """Return a state in which the stage can work: the stages before it have been run."""
    sites = Sites.of(X, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    before = [Mean(), Scale()]
    if "in a subspace" in name:
        before.append(Subspace(3))
    if isinstance(stage, Centers | Lengths):
        before.append(Factorization(4, 3, constant=stage.constant))
    declared = {"bound": np.asarray(4.0)} if "clipped" in name else {}
    state = ran(before, sites, RANDOMNESS, gate=GATE, state=declared)
    state = stage.start(state, sites.public, RANDOMNESS)
    if isinstance(stage, Mean):
        state = {**state, "data_mean": np.ones(X.shape[1])}
    return state


def batch_of(stage, state, X, offsets, sites, present=None):
    batch = SiteBatch(X, np.asarray(offsets), np.asarray(sites), present)
    batch.memory = stage.prepare(batch, state, RANDOMNESS)
    return batch


def released(stage, state, batch, t=1):
    return opened(stage, batch, state, RANDOMNESS, t=t, gate=GATE)[1]


@pytest.mark.parametrize("name", STAGES)
def test_a_batch_of_a_hundred_sites_equals_a_hundred_batches_of_one(hundred_sites, name):
    X, offsets = hundred_sites
    stage = STAGES[name]
    state = state_before(stage, X, offsets, name)
    t = 2 if name == "nearest centres" else 1
    everyone = batch_of(stage, state, X, offsets, np.arange(100))
    together = released(stage, state, everyone, t)
    total, n_records = 0.0, 0
    for i, (a, b) in enumerate(pairwise(offsets)):
        one = released(stage, state, batch_of(stage, state, X[a:b], [0, b - a], [i]), t)
        assert (one.n_sites, one.n_records) == (1, b - a)
        total, n_records = total + one.value, n_records + one.n_records
    assert (together.n_sites, together.n_records) == (100, n_records)
    np.testing.assert_allclose(together.value, total, rtol=1e-10, atol=1e-10)
    assert np.abs(total).max() > 1e-3


@pytest.mark.parametrize("t", [1, 3])
def test_published_sites_do_not_see_each_other(hundred_sites, t):
    X, offsets = hundred_sites
    X = np.abs(X)
    stage = Published(4, 3, penalty=Penalty(0.1, 0.1, 0.1), batch_size=5, gradient_bound=20.0,
                       noise_rule=lambda steps, q, eta: q / eta)  # fmt: skip
    state = state_before(stage, X, offsets)
    everyone = batch_of(stage, state, X, offsets, np.arange(100))
    together, value = opened(stage, everyone, state, RANDOMNESS, t=t, gate=GATE)
    total = 0.0
    for i, (a, b) in enumerate(pairwise(offsets)):
        batch = batch_of(stage, state, X[a:b], [0, b - a], [i])
        alone, one = opened(stage, batch, state, RANDOMNESS, t=t, gate=GATE)
        np.testing.assert_allclose(together.values[i], alone.values[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(together.noise_std[i], alone.noise_std[0], rtol=1e-10)
        np.testing.assert_allclose(everyone.memory["H"][a:b], batch.memory["H"], atol=1e-12)
        total = total + one.value
    # Each site draws its own noise, so the noisy sums agree too.
    np.testing.assert_allclose(value.value, total, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("overflows", [False, True])
def test_a_null_record_contributes_nothing(hundred_sites, name, overflows):
    """It keeps its slot and its count, whatever its row holds, even if its norm overflows."""
    X, offsets = hundred_sites
    stage = STAGES[name]
    state = state_before(stage, X, offsets, name)
    t = 2 if name == "nearest centres" else 1
    present = np.ones(len(X), dtype=bool)
    nulls = [0, 17, len(X) - 1]
    present[nulls] = False
    values = []
    for row in (0.0, 5.0, 1e200 if overflows else -3.0):
        changed = X.copy()
        changed[nulls] = row
        with np.errstate(over="ignore", invalid="ignore"):
            batch = batch_of(stage, state, changed, offsets, np.arange(100), present)
            out = released(stage, state, batch, t)
        assert out.n_records == len(X)
        values.append(out.value)
    np.testing.assert_allclose(values[1], values[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(values[2], values[0], rtol=1e-12, atol=1e-12)
    everyone = released(stage, state, batch_of(stage, state, X, offsets, np.arange(100)), t)
    assert np.abs(everyone.value - values[0]).max() > 1e-6
    if "four steps" not in name:
        # Nulls are as good as gone: the same sum over the other records alone.
        kept = X[present]
        alone = released(stage, state, batch_of(stage, state, kept, [0, len(kept)], [0]), t)
        np.testing.assert_allclose(alone.value, values[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", STAGES)
def test_a_record_that_overflows_counts_as_null(hundred_sites, name):
    X, offsets = hundred_sites
    stage = STAGES[name]
    state = state_before(stage, X, offsets, name)
    changed, present = X.copy(), np.ones(len(X), dtype=bool)
    changed[[3, 90]], present[[3, 90]] = 1e200, False
    t = 2 if name == "nearest centres" else 1
    with np.errstate(over="ignore", invalid="ignore"):
        marked, unmarked = (
            released(stage, state, batch_of(stage, state, changed, offsets, range(100), mask), t)
            for mask in (present, None)
        )
    assert np.isfinite(unmarked.value).all()
    np.testing.assert_allclose(unmarked.value, marked.value, rtol=1e-12, atol=1e-12)


def test_no_record_contributes_more_than_the_bound(hundred_sites):
    X, offsets = hundred_sites
    stage = Factorization(4, 1, clip_norm=0.05)
    state = state_before(stage, X, offsets)
    full = released(stage, state, batch_of(stage, state, X, offsets, np.arange(100))).value
    moved = []
    for j in range(0, len(X), 29):
        present = np.arange(len(X)) != j
        batch = batch_of(stage, state, X, offsets, np.arange(100), present)
        moved.append(np.linalg.norm(full - released(stage, state, batch).value))
    assert max(moved) <= 0.05 * (1 + 1e-9)
    assert max(moved) > 0.049  # the bound is reached


def test_nothing_but_the_gate_makes_a_released_value():
    with pytest.raises(DPFedCError, match=r"made by Gate\.release only"):
        Released(np.ones(3), ReleaseEvent("test", 1, 1, 10), object())
    with pytest.raises(TypeError):
        Released(np.ones(3), ReleaseEvent("test", 1, 1, 10))
    out = let_out(2.0)
    assert float(out.value) == 2
    with pytest.raises((ValueError, TypeError)):
        dataclasses.replace(out, value=np.zeros(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        out.value = np.zeros(3)


RUNS = {
    "no noise": {"epsilon": None},
    "some sites": {"epsilon": None, "sites_per_round": 4, "n_rounds": 12},
    "several steps": {"epsilon": None, "sites_per_round": 4, "n_rounds": 6, "extra_steps": 4},
    "private": {"epsilon": 8.0, "norm_bound": 25.0},
    "private, memberships": {"epsilon": 8.0, "refine_rounds": 0, "trust": "trusted-server"},
    "private, some sites": {
        "epsilon": 8.0, "sites_per_round": 4, "n_rounds": 6, "extra_steps": 4,
        "trust": "secure-aggregation",
    },
    "private, some records": {
        "epsilon": 8.0, "n_rounds": 4, "extra_steps": 2, "sampling_probability": 0.5,
        "norm_bound": 25.0,
    },
    "published": {"epsilon": None, "variant": "published", "sites_per_round": 4, "n_rounds": 6},
    "published, noise": {
        "variant": "published", "sites_per_round": 4, "n_rounds": 4, "extra_steps": 1,
        "epsilon": 50.0, "gradient_bound": 1.0,
    },
}  # fmt: skip


def fitted(X, sites, **settings):
    return DPFedC(n_clusters=3, random_state=0, **settings).fit(X, sites=sites)


@pytest.mark.filterwarnings("ignore:cluster.* too few records:dpfedc.errors.UtilityWarning")
@pytest.mark.parametrize("name", RUNS)
def test_the_order_of_sites_does_not_matter(blobs, rng, name):
    X, _, sites = blobs
    X = X - X.min()
    expected = fitted(X, sites, **RUNS[name])
    by_site = np.argsort(sites, kind="stable")
    blocks = np.split(by_site, 10)
    for order in (by_site, np.concatenate([blocks[i] for i in rng.permutation(10)])):
        model = fitted(X[order], sites[order], **RUNS[name])
        np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
        np.testing.assert_array_equal(model.labels_, expected.labels_[order])


def test_rounds_say_how_they_were_protected(blobs):
    X, _, sites = blobs
    model = fitted(X, sites, epsilon=20.0, sites_per_round=4, n_rounds=3, clip_norm=0.2)
    planned = {r["stage"]: r for r in model.history_.results["privacy_plan"]["releases"]}
    for entry in model.history_.rounds:
        release, z = entry.release, planned[entry.stage]["noise_multiplier"]
        assert release["noise_multiplier"] == z
        assert release["sampling_probability"] == 1
        std = z * release["sensitivity"] * np.sqrt(entry.n_sites)  # every site adds its own
        assert release["noise_std"] == pytest.approx(std)
        if entry.stage == "factorisation":
            assert release["sensitivity"] == 0.2
    assert all(not entry.release for entry in fitted(X, sites, epsilon=None).history_.rounds)


@pytest.mark.filterwarnings("ignore:cluster.* too few records:dpfedc.errors.UtilityWarning")
@pytest.mark.parametrize("name", RUNS)
def test_the_names_of_sites_do_not_matter(blobs, name):
    X, _, sites = blobs
    X = X - X.min()
    expected = fitted(X, sites, **RUNS[name]).cluster_centers_
    for names in (np.arange(10) * 100 - 7, np.array([f"ward {i}" for i in range(10)]),
                  np.linspace(-1, 1, 10)):  # fmt: skip
        got = fitted(X, names[sites], **RUNS[name]).cluster_centers_
        np.testing.assert_array_equal(got, expected)


def test_with_all_sites_in_every_round_sites_may_swap_names(blobs, rng):
    X, _, sites = blobs
    # Sums are rounded differently, and large steps would blow that up.
    settings = {"epsilon": None, "clip_norm": 0.1, "step": 1.0, "n_rounds": 20}
    expected = fitted(X, sites, **settings).cluster_centers_
    got = fitted(X, rng.permutation(10)[sites], **settings).cluster_centers_
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_how_records_are_dealt_does_not_matter():
    """Two digits per site, or dealt at random, or all at one site: the same sums of records."""
    X, y = load_digits(return_X_y=True)
    by_label = np.argsort(y, kind="stable")
    two_digits = np.empty(len(X), dtype=int)
    for shard, rows in enumerate(np.array_split(by_label, 40)):
        two_digits[rows] = shard % 20
    assert max(len(np.unique(y[two_digits == i])) for i in range(20)) <= 4
    iid = np.random.default_rng(0).permutation(len(X)) % 20
    model = DPFedC(n_clusters=10, epsilon=None, n_rounds=15, random_state=1)
    centers = [
        model.fit(X, sites=sites).cluster_centers_.copy() for sites in (two_digits, iid, None)
    ]
    np.testing.assert_allclose(centers[1], centers[0], atol=1e-6)
    np.testing.assert_allclose(centers[2], centers[0], atol=1e-6)
