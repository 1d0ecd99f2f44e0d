"""Every stage is held to what it says of itself, whichever it is.

The proved stages come from plans of the proved methods, the toy's among them, each with the state
that a run without noise has reached when it begins. A stage that is new in a plan is held here
without a line of its own; a class of stage that no plan here has fails `test_every_class_is_held`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from dpfedc.clustering import lloyd, local_steps, restarts, seeding
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Entry, Public, SiteBatch, Stage, contributed, known_to, sent
from dpfedc.deployment.exchanges import exchanges
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.errors import InvalidInput, Refused
from dpfedc.kernels.column_view import seen
from dpfedc.privacy.exact_sums import Upload, exact_sum, unit_of, unpacked
from dpfedc.privacy.gate import Gate, ReleaseEvent, received
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.sums import OuterSum, kept, summed
from dpfedc.randomness import Randomness
from dpfedc.research.published import algorithm
from dpfedc.research.rivals import (
    averaged_kmeans,
    coreset_kmedian_stages,
    fuzzy_cmeans_stages,
    k_fed_stages,
    kmeans_parallel_stages,
)
from dpfedc.settings import PrivacyTarget
from dpfedc.tables.layout import Group
from support.exact_checks import grid_error
from support.toy import HalvesMethod

M, SIZES = 4, np.array([30, 1, 17])
EPSILON = 100.0
"""Of the plans: so large that 48 records stand out from the noise where that is asked for."""
RNG = Randomness(3)
PLANS = {
    "plain": ("dp-fedc", {"n_clusters": 3, "refine_rounds": 0}),
    "counted": ("dp-fedc", {"n_clusters": 3, "refine_rounds": 0}),
    "refined": ("dp-fedc", {"n_clusters": 3, "refine_rounds": 3, "norm_bound": 9.0}),
    "subspace": ("dp-fedc", {"n_clusters": 3, "subspace": 2, "refine_rounds": 2}),
    "sums and Gram": ("dp-fedc", {"n_clusters": 3, "update": "sums-and-gram", "n_rounds": 2}),
    "constant": ("dp-fedc", {"n_clusters": 3, "constant_feature": 0.7, "refine_rounds": 0}),
    "ranges": ("dp-fedc", {"n_clusters": 2, "feature_ranges": [[-9.0, 11.0]] * M, "center": False}),
    "cells": ("dp-fedc", {"n_clusters": 2, "cells": 5}),
    "cells in some directions": ("dp-fedc", {"n_clusters": 2, "cells": 5, "subspace": 3}),
    "a start by links": ("dp-fedc", {"n_clusters": 2, "cells": 8, "n_prototypes": 5}),
    "a start by links, of any shape": (
        "dp-fedc",
        {"n_clusters": 3, "cells": 8, "n_prototypes": 5, "quality": True},
    ),
    "a start by links in some directions": (
        "dp-fedc",
        {"n_clusters": 2, "cells": 8, "n_prototypes": 5, "subspace": 3},
    ),
    "merged": ("dp-fedc", {"n_clusters": 2, "n_prototypes": 4, "refine_rounds": 0}),
    "merged in a subspace": ("dp-fedc", {"n_clusters": 2, "n_prototypes": 4, "subspace": 2}),
    "a choice": ("dp-fedc", {"n_clusters": "auto", "k_range": [2, 5], "cells": 8}),
    "quality by membership": ("dp-fedc", {"n_clusters": 3, "refine_rounds": 0, "quality": True}),
    "quality in a subspace": (
        "dp-fedc",
        {"n_clusters": 3, "refine_rounds": 0, "subspace": 2, "quality": True},
    ),
    "quality with a constant": (
        "dp-fedc",
        {"n_clusters": 3, "refine_rounds": 0, "constant_feature": 0.7, "quality": True},
    ),
    "quality by centre": ("dp-fedc", {"n_clusters": 2, "cells": 5, "quality": True}),
    "quality by prototype": (
        "dp-fedc",
        {"n_clusters": 2, "n_prototypes": 4, "shape": "any", "quality": True},
    ),
    "quality of a choice": (
        "dp-fedc",
        {"n_clusters": "auto", "k_range": [2, 5], "cells": 8, "quality": True},
    ),
    "local steps": ("dp-fedc", {"n_clusters": 3, "extra_steps": 3, "n_rounds": 3}),
    "lloyd": ("dp-lloyd", {"n_clusters": 3}),
    "toy": ("halves", {"n_clusters": 2}),
}
COLUMNS = (
    Group("number", 0, 1, 1.0, auto=True),
    Group("gaps", 1, 1, 0.5),
    Group("shares", 2, 2, 0.5),
)
TYPICAL = (
    Group("number", 0, 1, 2.0, typical=(0.1, 0.3)),
    Group("number", 1, 1, 1.0, typical=(0.0, 0.001)),
    Group("shares", 2, 2, 0.5, typical=(0.4, 0.6)),
)
TABLES = {
    "table": ("dp-fedc", COLUMNS, {"cells": None}),
    "table, cells": ("dp-fedc", COLUMNS, {}),
    "table, lloyd": ("dp-lloyd", COLUMNS, {}),
    "typical": ("dp-fedc", TYPICAL, {"cells": None}),
    "typical, lloyd": ("dp-lloyd", TYPICAL, {}),
}
UNPROVED = [
    seeding.SeedByDistance, restarts.Restarts, restarts.Choice, algorithm.Published,
    averaged_kmeans.AveragedMeans, k_fed_stages.KFedRound, coreset_kmedian_stages.Coreset,
    fuzzy_cmeans_stages.FuzzyCMeansRounds,
    kmeans_parallel_stages.Candidates, kmeans_parallel_stages.Reclustering,
    kmeans_parallel_stages.StatedNoiseLloyd,
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A stage at its first round: what is known, the state, and the records of three sites."""

    stage: Stage
    known: dict[str, Entry]
    state: dict[str, np.ndarray]
    batch: SiteBatch
    plan: object
    declared: dict[str, Entry]

    def part(self, state=None, batch=None):
        """Return what the sites contribute in round 1, and the gate that sampled them."""
        batch = self.batch if batch is None else batch
        gate = Gate(self.plan.privacy, SimulatedNoise(RNG), RNG)
        state = self.state if state is None else state
        batch = SiteBatch(seen(batch.X, state), batch.offsets, batch.sites, batch.present)
        batch.memory = self.stage.prepare(batch, state, RNG)
        return contributed(self.stage, batch, state, 1, gate, RNG)


@cache
def cases():
    """Return the stages of all plans, reached by runs without noise over the same records."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(SIZES.sum(), M)) + rng.integers(0, 3, size=(SIZES.sum(), 1)) * 3.0
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    batch, table = (SiteBatch(x, offsets, np.arange(3)) for x in (X, encoded(rng, len(X))))
    found = {}
    public = Public(M, SIZES, lambda values: np.asarray(values, dtype=np.float64))
    runs = {name: (method, settings, None) for name, (method, settings) in PLANS.items()}
    runs |= {name: (m, {"n_clusters": 3, **more}, on) for name, (m, on, more) in TABLES.items()}
    for name, (method, settings, layout) in runs.items():
        facts = Federation(M, SIZES, layout)
        chosen = HalvesMethod() if method == "halves" else method_named(method)
        plan = chosen.plan(settings, facts, PrivacyTarget(EPSILON, 1e-4))
        if name == "counted":  # as with very many features
            plan = replace(plan, stages=tuple(map(counted, plan.stages)))
        assert not plan.hopeless(facts)
        state = {"origin": np.zeros(M), **chosen.declared(settings, facts)}
        declared = {key: Entry(values.shape) for key, values in state.items() if key != "centers"}
        for one, known in zip(plan.stages, known_to(plan.stages, declared, M), strict=True):
            state = one.start(state, public, RNG)
            case = Case(one, known, dict(state), batch if layout is None else table, plan, declared)
            found[f"{name}: {one.name}"] = case
            for t in range(1, one.n_rounds + 1):
                state = one.combine(state, exactly(case, state, t), t)
    return found


def counted(stage):
    return replace(stage, counted=True) if stage.name == "factorisation" else stage


def encoded(rng, n):
    """Return a number with gaps, marks of the gaps, and shares of two values."""
    X = np.empty((n, M))
    X[:, 0] = np.where(rng.random(n) < 0.2, np.nan, rng.normal(30.0, 8.0, size=n))
    X[:, 1] = np.isnan(X[:, 0])
    X[:, 2] = rng.random(n).round()
    X[:, 3] = 1 - X[:, 2]
    X[rng.random(n) < 0.1, 2:] = np.nan
    return X


def exactly(case, state, t):
    """Return the sum of round t, clipped and without noise."""
    batch = SiteBatch(seen(case.batch.X, state), case.batch.offsets, case.batch.sites)
    batch.memory = case.stage.prepare(batch, state, RNG)
    gate = Gate(case.plan.privacy, SimulatedNoise(RNG), RNG)
    part = contributed(case.stage, batch, state, t, gate, RNG)
    q = case.stage.sampling_probability
    event = ReleaseEvent(case.stage.name, t, 3, int(SIZES.sum()), sampling_probability=q)
    return received([Upload(summed(part, case.stage.sensitivity(state, t)))], event)


@pytest.fixture(params=list(cases()))
def case(request):
    return cases()[request.param]


def test_every_class_is_held():
    def subclasses(kind):
        return {kind}.union(*map(subclasses, kind.__subclasses__()))

    here = {kind for kind in subclasses(Stage) if kind.__module__.startswith("dpfedc.")}
    held = {type(case.stage) for case in cases().values()} | {*UNPROVED}
    assert {kind for kind in here if not inspect.isabstract(kind)} <= held


def test_it_says_who_it_is(case):
    assert case.stage.name.isascii()
    assert case.stage.purpose
    assert not case.stage.purpose.endswith(".")
    assert case.stage.proved
    assert case.stage.n_rounds >= 1
    assert case.stage.told(0.1, 48).name == case.stage.name


def test_names_are_a_format():
    names = {case.stage.name for case in cases().values()}
    assert names == {
        "bound", "mean", "scale", "subspace", "factorisation", "centres", "lloyd", "halves",
        "ranges", "spread", "cells", "bound-2", "mean-2", "radius", "refine", "neighbours",
        "quality",
    }  # fmt: skip


def test_its_start_makes_what_it_says(case):
    for name, entry in case.stage.starts(case.known, M).items():
        assert case.state[name].shape == entry.shape
        assert entry.within(case.state[name], case.state)


def test_its_rounds_make_what_it_says(case):
    state = case.stage.combine(case.state, exactly(case, case.state, 1), 1)
    made = case.stage.makes(case.known, M)
    for name, entry in {**case.stage.starts(case.known, M), **made}.items():
        assert state[name].shape == entry.shape
        assert entry.within(state[name], state)


def test_noise_cannot_take_what_it_makes_out_of_range(case):
    """Whatever noise does to a sum, sites accept what the server makes of it."""
    released = exactly(case, case.state, 1)
    for size in (1.0, 1e3, 1e9):
        noise = size * np.random.default_rng(1).standard_normal(np.shape(released.value))
        noise = (
            (noise + noise.T) / 2 if noise.ndim == 2 and noise.shape[0] == noise.shape[1] else noise
        )
        noisy = received([Upload(released.value + noise)], released.event)
        state = case.stage.combine(case.state, noisy, 1)
        for name, entry in case.stage.makes(case.known, M).items():
            assert entry.within(state[name], state), name


def test_its_upload_has_the_form_it_says(case):
    if not case.stage.deployed:
        return
    form, (contribution, *_) = case.stage.upload(case.known, M), case.part()
    assert isinstance(contribution, OuterSum)
    assert contribution.total(np.ones(len(case.batch.X))).shape == form.shape
    assert contribution.symmetric == form.symmetric


def test_it_reads_what_it_says_and_nothing_else(case):
    """With the rest of the state missing, the sites' work is the same."""
    few = {name: case.state[name] for name in sent(case.stage, case.known)}
    bound = case.stage.sensitivity(case.state, 1)
    assert case.stage.sensitivity(few, 1) == bound
    np.testing.assert_array_equal(summed(case.part(few), bound), summed(case.part(), bound))


def test_no_record_moves_the_sum_by_more_than_it_says(case):
    bound = case.stage.sensitivity(case.state, 1)
    whole = summed(case.part(), bound)
    for j in range(len(case.batch.X)):
        present = np.ones(len(case.batch.X), bool)
        present[j] = False
        batch = SiteBatch(case.batch.X, case.batch.offsets, case.batch.sites, present)
        assert np.linalg.norm(summed(case.part(batch=batch), bound) - whole) <= bound * (1 + 1e-9)


def test_nothing_comes_from_records_that_are_null(case):
    bound = case.stage.sensitivity(case.state, 1)
    present = np.zeros(len(case.batch.X), bool)
    wild = np.full_like(case.batch.X, 1e300)
    with np.errstate(all="ignore"):
        for X in (case.batch.X, wild):
            batch = SiteBatch(X, case.batch.offsets, case.batch.sites, present)
            assert not np.any(summed(case.part(batch=batch), bound))


def test_the_exact_sum_is_the_fast_one_on_a_grid(case):
    if not case.stage.deployed:
        return
    bound = case.stage.sensitivity(case.state, 1)
    contribution, batch, sample = part = case.part()
    keep = kept(batch, sample, contribution.like)
    keep = np.ones(len(batch.X), bool) if keep is None else keep
    total = exact_sum(contribution, keep, bound) * unit_of(bound)
    total = unpacked(total) if contribution.symmetric else total
    np.testing.assert_allclose(total, summed(part, bound), atol=grid_error(contribution) * bound)


def test_a_site_takes_what_it_says_and_refuses_the_rest(case):
    if not case.stage.deployed:
        return
    (exchange,) = [e for e in exchanges_of(case) if e.stage == case.stage]
    arrays = exchange.sent(case.state)
    assert exchange.accepted(arrays, {}) is arrays
    for name, values in arrays.items():
        for wrong in (values * np.nan, values[..., None], values.astype(np.float32)):
            with pytest.raises(Refused):
                exchange.accepted({**arrays, name: wrong}, {})
        with pytest.raises(Refused):
            exchange.accepted({key: v for key, v in arrays.items() if key != name}, {})
        with pytest.raises(Refused, match="must be what was agreed"):
            exchange.accepted(arrays, {name: values + 1})
    far = {name: values * 1e30 + 1e30 for name, values in arrays.items()}
    checked = {
        name for name, entry in exchange.broadcast.items() if not entry.within(far[name], arrays)
    }
    for name in checked:
        with pytest.raises(Refused, match="must be in the range of its stage"):
            exchange.accepted({**arrays, name: far[name]}, {})
    ranged = {"data_mean", "scale", "basis", "W", "threshold", "column_half", "column_factor"}
    assert checked >= (set(arrays) & ranged) - set(case.declared)


def exchanges_of(case):
    return exchanges([one for one in case.plan.stages if one.deployed], case.declared, M)


@pytest.mark.parametrize("kind", UNPROVED)
def test_what_has_no_proof_says_so_and_cannot_be_deployed(kind):
    assert kind.proved is False
    assert not Stage.deployed.fget(object.__new__(kind))
    assert kind.purpose


def test_local_steps_take_the_parts_they_are_proved_for():
    case = next(c for c in cases().values() if isinstance(c.stage, local_steps.LocalSteps))
    gate = Gate(case.plan.privacy, SimulatedNoise(RNG), RNG)
    batch = SiteBatch(case.batch.X, case.batch.offsets, case.batch.sites)
    batch.memory = case.stage.prepare(batch, case.state, RNG)
    sample = gate.sample(batch, stage=case.stage.name, t=1, n_parts=30)
    with pytest.raises(InvalidInput, match="round 1 must have 4 parts, got 30"):
        case.stage.local(batch, case.state, 1, sample, RNG)


def test_a_gate_with_a_plan_refuses_a_stage_without_a_proof():
    case = cases()["plain: factorisation"]
    restarted = restarts.Restarts(case.stage, 2)
    gate = Gate(case.plan.privacy, SimulatedNoise(RNG))
    sites = SimulatedSites(Sites.of(case.batch.X), gate, RNG)
    with pytest.raises(InvalidInput, match="has no proof"):
        sites.round(restarted, case.state, 1, np.array([0]))


def test_local_steps_and_their_like_are_simulated_only():
    one = local_steps.LocalSteps(2, 1)
    assert one.proved
    assert not one.deployed
    with pytest.raises(InvalidInput, match="extra_steps must be 0"):
        exchanges([one], {}, M)
    assert lloyd.LloydSums(2, 1).deployed
