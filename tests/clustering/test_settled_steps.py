"""Steps of the factorisation that shorten in the second half, so that noise averages out."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.clustering import factorization_planner
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.factorization_planner import (
    FEW_SETTLED_STEP,
    MANY_FEATURES,
    SETTLED_STEP,
)
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import ReleaseEvent, received
from dpfedc.settings import PrivacyTarget


def search_of(n_features, n_records, epsilon, **settings):
    target = None if epsilon is None else PrivacyTarget(epsilon, 1e-5, trust="secure-aggregation")
    facts = Federation(n_features, np.full(20, n_records // 20))
    plan = method_named("dp-fedc").plan({"n_clusters": 3, **settings}, facts, target)
    return next(stage for stage in plan.stages if isinstance(stage, Factorization)), plan


@pytest.mark.parametrize(
    ("n_features", "n_records", "epsilon", "settings", "expected"),
    [
        (20, 400, 1.0, {}, SETTLED_STEP),
        (20, 400, None, {"cells": None}, 1.0),  # there is no noise to average
        (20, 2000, 1.0, {"cells": None}, 1.0),  # a refinement follows
        (20, 2000, 1.0, {"cells": None, "refine_rounds": 0}, SETTLED_STEP),
        (MANY_FEATURES - 1, 4000, 1.0, {"cells": None}, SETTLED_STEP),
        (MANY_FEATURES, 4000, 1.0, {"cells": None}, 1.0),
        (20, 400, 1.0, {"n_clusters": 2}, FEW_SETTLED_STEP),
        (20, 400, 1.0, {"step": 24.0}, 1.0),  # whoever sets it gets it
        (20, 400, 1.0, {"update": "sums-and-gram", "refine_rounds": 0}, 1.0),  # takes no steps
        (100, 2000, 0.5, {}, SETTLED_STEP),  # in a subspace
    ],
)
def test_steps_shorten_where_noise_stays_and_nothing_follows(
    n_features, n_records, epsilon, settings, expected
):
    search, plan = search_of(n_features, n_records, epsilon, **settings)
    assert search.last_step == expected
    told = " ".join(plan.explain())
    assert ("From half of them on steps shorten" in told) == (expected == SETTLED_STEP)
    assert ("From the first on steps shorten" in told) == (expected == FEW_SETTLED_STEP)


def test_one_round_has_no_steps_to_shorten():
    _, plan = search_of(20, 400, 1.0, n_rounds=1)
    assert "steps shorten" not in " ".join(plan.explain())


def moves(settles, n_rounds=5):
    """Return how far each round moves a centre, all gradients being the same small one."""
    stage = Factorization(1, n_rounds, clip_norm=1.0, step=1e-6, last_step=0.01, settles=settles)
    state = {"W": np.eye(1, 3), "velocity": np.zeros((1, 3))}
    found = []
    for t in range(1, n_rounds + 1):
        after = stage.stepped(state, np.eye(1, 3, k=1), t)
        found.append(float(np.linalg.norm(after["W"] - state["W"])) / 1e-6)
        state = after
    return found


def test_steps_shorten_evenly_from_where_they_are_to_settle():
    np.testing.assert_allclose(moves(0.0), 0.01 ** np.array([0, 0.25, 0.5, 0.75, 1]), rtol=1e-3)
    np.testing.assert_allclose(moves(0.5), 0.01 ** np.array([0, 0, 0, 0.5, 1]), rtol=1e-3)


def error_after(last_step, n_rounds=20, d=30, n_runs=200):
    """Return how far gradients with noise, which pull to one direction, leave centres from it."""
    rng, truth = np.random.default_rng(0), np.eye(1, d)
    stage = Factorization(n_runs, n_rounds, clip_norm=1.0, step=1.0, last_step=last_step)
    state = {"W": np.repeat(truth, n_runs, axis=0), "velocity": np.zeros((n_runs, d))}
    for t in range(1, n_rounds + 1):
        gradient = 0.5 * (state["W"] - truth) + 0.1 * rng.standard_normal((n_runs, d))
        event = ReleaseEvent("factorisation", t, t, 1, noise_std=0.1)
        state = stage.combine(state, received([Upload(gradient)], event), t)
    return float(np.linalg.norm(state["W"] - truth, axis=1).mean())


def test_noise_of_many_rounds_averages_out():
    """The mean of 200 runs each, with standard errors below 2 %."""
    assert error_after(SETTLED_STEP) < 0.7 * error_after(1.0)


def agreements(X, y):
    sites = np.arange(len(X)) % 10
    settings = {"epsilon": 1.0, "delta": 1e-5, "trust": "secure-aggregation"}
    for seed in range(16):
        model = DPFedC(2, random_state=seed, **settings).fit(X, sites=sites)
        yield adjusted_rand_score(y, model.labels_)


@pytest.mark.filterwarnings("ignore")
def test_few_records_of_two_groups_are_told_apart(monkeypatch):
    """Sixteen seeds: .96 +- .004 with shorter steps, .67 +- .06 with whole ones."""
    rng = np.random.default_rng(5)
    y = np.arange(320) % 2
    X = rng.standard_normal((320, 24)) + np.where(y, 0.55, -0.55)[:, None]
    settled = np.mean(list(agreements(X, y)))
    monkeypatch.setattr(factorization_planner, "FEW_SETTLED_STEP", 1.0)
    whole = np.mean(list(agreements(X, y)))
    assert settled > whole + 0.1
