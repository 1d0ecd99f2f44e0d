"""Several starts in one batch: each is the run that it would be alone, and the best is kept."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest

from dpfedc import DPFedC
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.restarts import Choice, Restarts
from dpfedc.clustering.run_plan import Federation
from dpfedc.engine import simulated
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty
from support.runs import opened, ran

# For tests/kernels/test_torch.py, before Torch imports Triton.
os.environ.setdefault("TRITON_INTERPRET", "1")
PLACE = (Mean(), Scale())
SEARCHES = {
    "plain": Factorization(3, 6),
    "with a constant": Factorization(
        3, 5, constant=0.5, momentum=0.5, penalty=Penalty(0.7, 0.1, 0.0)
    ),
    "clamped, one step": Factorization(4, 4, clamp=True, membership_steps=1),
}


def libraries():
    yield pytest.param(np.asarray, id="numpy")
    try:
        import torch
    except ImportError:
        why = "torch is not installed (make test-torch installs it)"
        yield pytest.param(None, id="torch", marks=pytest.mark.skip(reason=why))
    else:
        yield pytest.param(torch.asarray, id="torch")


def final_state(X, ids, *stages):
    """Return the last state and the diagnostics of the rounds, without noise."""
    exact = []
    state = ran(
        stages,
        Sites.of(X, ids),
        Randomness(3),
        on_round=lambda entry: exact.append(entry.diagnostics),
        seen=lambda stage, batch, state: stage.diagnose(batch, state),
    )
    return state, exact


@pytest.fixture
def federation(ragged):
    """Return records and their sites, in no order."""
    X, offsets = ragged
    order = np.random.default_rng(1).permutation(len(X))
    return X[order], np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[order]


@pytest.mark.parametrize("make", [*libraries()])
@pytest.mark.parametrize("name", SEARCHES)
def test_every_start_of_a_batch_is_the_run_that_it_would_be_alone(federation, make, name):
    X, ids = federation
    search, r = SEARCHES[name], 4
    batch, told = final_state(make(X), ids, *PLACE, Restarts(search, r, 5))
    alone = []
    for i in range(r):
        single = replace(search, start_number=i, sites_per_round=5)
        state, exact = final_state(make(X), ids, *PLACE, single)
        alone.append(exact[-1]["objective"])
        for key, one in (("starts", "W"), ("velocities", "velocity")):
            np.testing.assert_allclose(
                np.asarray(batch[key])[i], np.asarray(state[one]), rtol=1e-8, atol=1e-10
            )
    assert len({round(x, 6) for x in alone}) > 1, "starts that end alike would show nothing"
    assert told[-1]["objective"] == pytest.approx(min(alone), rel=1e-9)


@pytest.mark.parametrize("make", [*libraries()])
def test_the_start_with_the_least_objective_is_kept(federation, make):
    X, ids = federation
    restarts = Restarts(SEARCHES["plain"], 5)
    state, _ = final_state(make(X), ids, *PLACE, restarts, Choice(restarts))
    sites = Sites.of(make(X), ids)
    batch = sites.batch(np.arange(sites.n_sites), {})
    singles, objectives = [], []
    for i in range(5):
        search = Factorization(3, 6, start_number=i)
        singles.append(final_state(make(X), ids, *PLACE, search)[0])
        batch.memory = search.prepare(batch, singles[i], Randomness(0))
        exact = replace(search, membership_steps=50).diagnose(batch, singles[i])
        objectives.append(exact["objective"] * sites.n_sites)
    np.testing.assert_allclose(np.asarray(state["objectives"]), objectives, rtol=1e-9)
    best = singles[int(np.argmin(objectives))]
    np.testing.assert_allclose(np.asarray(state["W"]), np.asarray(best["W"]), atol=1e-9)
    assert "starts" not in state


def test_a_batch_may_be_worked_through_in_parts(federation, monkeypatch):
    X, ids = federation
    restarts = Restarts(SEARCHES["plain"], 3, 5)
    stages = (*PLACE, restarts, Choice(restarts))
    whole, _ = final_state(X, ids, *stages)
    monkeypatch.setattr(simulated, "PART_RECORDS", 60)
    parts, _ = final_state(X, ids, *stages)
    np.testing.assert_allclose(parts["W"], whole["W"], atol=1e-10)
    sites = Sites.of(X, ids)
    factors = (1, restarts.memory_factor(X, {}))
    light, heavy = (len(sites.split(np.arange(12), memory_factor=f)) for f in factors)
    assert heavy > light > 1, "a record counts for every start"


def test_a_record_that_overflows_is_null_in_every_start(federation):
    X, ids = federation
    X = X.astype(np.float32)
    wild = X.copy()
    wild[7] = 1e30
    search = Factorization(3, 1)
    restarts = Restarts(search, 3)
    sites = Sites.of(wild, ids)
    state = {"data_mean": X.mean(axis=0), "scale": np.asarray(5.0, np.float32)}
    state = restarts.start(state, sites.public, Randomness(0))
    with np.errstate(over="ignore", invalid="ignore"):
        batch = sites.batch(np.arange(sites.n_sites), {})
        batch.memory = restarts.prepare(batch, state, Randomness(0))
        sums, released = opened(restarts, batch, state, Randomness(0))
    assert np.isfinite(released.value).all()
    row = int(np.flatnonzero(sites.row_order == 7)[0])
    assert not np.isfinite(sums.norms[:, row]).any()


def test_starts_are_of_use():
    """Twelve clusters: one start of this seed leaves some together, the best of 16 fewer."""
    rng = np.random.default_rng(0)
    X = np.repeat(6 * rng.standard_normal((12, 10)), 30, axis=0) + rng.standard_normal((360, 10))
    settings = {"epsilon": None, "refine_rounds": 0, "random_state": 0, "n_rounds": 25}
    one = DPFedC(12, **settings).fit(X)
    many = DPFedC(12, n_restarts=16, **settings).fit(X)
    assert many.score(X) > 0.7 * one.score(X)
    assert [entry.stage for entry in many.history_.rounds].count("choice") == 1
    assert many.n_iter_ == one.n_iter_ + 1
    again = DPFedC(12, n_restarts=16, **settings).fit(X)
    np.testing.assert_array_equal(again.labels_, many.labels_)
    assert many.labels_.dtype == one.labels_.dtype


def test_a_plan_of_several_starts_is_told_in_words():
    facts = Federation(4, np.array([50, 50]))
    plan = method_named("dp-fedc").plan({"n_clusters": 2, "n_restarts": 3}, facts, None)
    assert "rounds of search" in " ".join(plan.explain())


def test_one_start_is_the_run_without_restarts(blobs):
    X, _, sites = blobs
    one = DPFedC(3, epsilon=None, random_state=0).fit(X, sites=sites)
    same = DPFedC(3, epsilon=None, random_state=0, n_restarts=1).fit(X, sites=sites)
    np.testing.assert_array_equal(one.cluster_centers_, same.cluster_centers_)
    assert "choice" not in {entry.stage for entry in one.history_.rounds}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 1.0}, "n_restarts must be 1 unless epsilon is None, got 3"),
        ({"init": np.eye(3, 2)}, "n_restarts must be 1 with a given init, got 3"),
        ({"extra_steps": 2}, "n_restarts must be 1 with extra_steps, got 3"),
        ({"update": "sums-and-gram"}, "n_restarts must be 1 with update='sums-and-gram', got 3"),
        ({"variant": "published"}, "n_restarts must be 1 with variant='published', got 3"),
        ({"n_restarts": 0}, "n_restarts must be >= 1, got 0"),
        ({"n_restarts": 2.5}, "n_restarts must be a whole number >= 1, got 2.5"),
    ],
)
def test_what_several_starts_cannot_be_combined_with(blobs, settings, message):
    X, _, sites = blobs
    with pytest.raises(InvalidInput, match=message.replace("(", r"\(")):
        DPFedC(3, **{"epsilon": None, "n_restarts": 3, **settings}).fit(X, sites=sites)


def test_diagnostics_of_a_batch(blobs):
    X, y, sites = blobs
    model = DPFedC(3, epsilon=None, n_restarts=3, random_state=0, diagnostics=True)
    rounds = model.fit(X, y, sites=sites).history_.rounds
    search = [entry.diagnostics for entry in rounds if entry.stage == "factorisation"]
    assert search[-1]["objective"] < search[0]["objective"]
    assert rounds[-1].diagnostics["accuracy"] == 1.0


def test_a_gate_with_a_plan_charges_all_starts_and_refuses_the_choice(federation):
    """The planner refuses restarts with noise; were it not to, the gate would not be fooled."""
    X, ids = federation
    sites, restarts = Sites.of(X, ids), Restarts(SEARCHES["plain"], 4)
    releases = tuple(PlannedRelease(name, 6, 12, 6, 1.0) for name in ("factorisation", "choice"))
    noise = SimulatedNoise(Randomness(0))
    gate = Gate(PrivacyPlan(releases, 1e-5, "local", 12), noise, Randomness(0))
    state = {"data_mean": X.mean(axis=0), "scale": np.asarray(5.0)}
    state = restarts.start(state, sites.public, Randomness(0))
    batch = sites.batch(np.arange(12), {})
    batch.memory = restarts.prepare(batch, state, Randomness(0))
    opened(restarts, batch, state, Randomness(0), gate=gate)
    (event,) = gate.events
    assert event.sensitivity == pytest.approx(2 * SEARCHES["plain"].clip_norm)
    assert Choice(restarts).sensitivity(state, 1) == math.inf
    with pytest.raises(InvalidInput, match="'choice' must state a sensitivity"):
        opened(Choice(restarts), batch, state, Randomness(0), gate=gate)
    assert gate.events == [event]
