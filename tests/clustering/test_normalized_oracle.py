"""The normalized variant's stages against plain loops over sites, records and steps."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dpfedc.clustering.centers import COUNT_WEIGHT, Centers
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.local_steps import LocalSteps, largest_batch_ratio
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.engine.simulated import Sites
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.schedule import schedule
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty
from support.runs import ran, released

K, ROUNDS = 3, 6


def standardized(X, constant):
    """Return the records the way the stages before the factorisation leave them."""
    center = sum(X) / len(X)
    lengths = [math.sqrt(sum((x - center) ** 2)) for x in X]
    scale = 1.3 * sum(lengths) / len(X)
    rows = [(x - center) / max(scale, length) for x, length in zip(X, lengths, strict=True)]
    return center, scale, [np.append(row, constant) if constant else row for row in rows]


def membership(x, W, steps, rho, mu_h):
    """Projected gradient steps from zero for one record."""
    M = 2 * W @ W.T + rho * (np.ones((K, K)) - np.eye(K)) + mu_h * np.eye(K)
    gamma = 0.51 * np.linalg.eigvalsh(M)[-1]
    h = np.zeros(K)
    for _ in range(steps):
        h = np.maximum(h - (M @ h - 2 * W @ x) / gamma, 0)
    return h


def clipped_gradient(x, h, W, bound):
    g = 2 * np.outer(h, W.T @ h - x)
    norm = np.linalg.norm(g)
    return g if norm <= bound else g * (bound / norm)


def parts_of(site, n, t, Q2, q, randomness):
    """Return the records of each part: all dealt by slot, or with chance q / Q2 in each."""
    if q == 1:
        return [list(range(part, n, Q2)) for part in range(Q2)]
    draws = randomness.uniform(
        "coins factorisation", t=t, sites=np.full(n, site), slots=np.arange(n)
    )
    edges = [q * part / Q2 for part in range(Q2 + 1)]
    return [
        [slot for slot in range(n) if low <= draws[slot] < high] for low, high in pairwise(edges)
    ]


def batch_ratio(sizes, extra_steps):
    """Return how much larger than n / Q2 a part can be that is dealt by slot."""
    ratios = [1.0]
    for Q2 in {extra_steps // t + 1 for t in range(1, ROUNDS + 1)} - {1}:
        ratios += [math.ceil(n / Q2) / (n / Q2) for n in sizes]
    return max(ratios)


def oracle(X, offsets, stage, per_round, randomness, q=1.0):
    """Return W after every round."""
    extra_steps = getattr(stage, "extra_steps", 0)
    _, _, rows = standardized(X, stage.constant)
    W = randomness.generator("start").standard_normal((K, len(rows[0])))
    W = np.maximum(W, 0) if stage.clamp else W
    W = W / np.linalg.norm(W, axis=1, keepdims=True)
    velocity, history = np.zeros_like(W), []
    sizes = np.diff(offsets)
    cohorts = schedule(
        len(sizes), per_round, ROUNDS, rng=randomness.generator("participation factorisation")
    )
    penalty = stage.penalty
    for t, cohort in enumerate(cohorts, start=1):
        Q2 = extra_steps // t + 1
        rise = (penalty.orthogonality - stage.first_orthogonality) / (ROUNDS - 1)
        rho = stage.first_orthogonality + rise * (t - 1)
        total = np.zeros_like(W)
        for i in cohort:
            site = rows[offsets[i] : offsets[i + 1]]
            H = [membership(x, W, stage.membership_steps, rho, penalty.membership_ridge)
                 for x in site]  # fmt: skip
            parts = parts_of(i, len(site), t, Q2, q, randomness)
            if Q2 == 1:
                for slot in parts[0]:
                    total += clipped_gradient(site[slot], H[slot], W, stage.clip_norm)
                continue
            eta = stage.batch_ratio + penalty.centroid_ridge / 2
            local = W.copy()
            for part in parts:
                gradient = penalty.centroid_ridge * local
                for slot in part:
                    h = H[slot] / max(1.0, np.linalg.norm(H[slot]))
                    g = clipped_gradient(site[slot], h, local, stage.clip_norm)
                    gradient = gradient + g / (q * len(site) / Q2)
                local = local - gradient / eta
            total += -eta / Q2 * q * len(site) * (local - W)
        velocity = stage.momentum * velocity + total / (q * sum(sizes[cohort]))
        # From the middle of the rounds on steps shorten by one factor a round, to the last one.
        n_shorter = max((t - 1) - (ROUNDS - 1) / 2, 0)
        step = stage.step * stage.last_step ** (2 * n_shorter / (ROUNDS - 1))
        W = W - (1 - stage.momentum) * step / stage.clip_norm * velocity
        W = np.maximum(W, 0) if stage.clamp else W
        norms = np.linalg.norm(W, axis=1, keepdims=True)
        W = W / np.where(norms > 0, norms, 1)
        history.append(W)
    return history


def rounds_of_the_library(X, offsets, stage, per_round, gate=None, state=None):
    """Return W after every round, and the last state."""
    history = []

    def keep(stage, batch, state):
        if stage.name == "factorisation":
            history.append(state["W"])
        return {}

    stages = [Mean(), Scale(), replace(stage, sites_per_round=per_round)]
    sites = Sites.of(X, np.repeat(np.arange(12), np.diff(offsets)))
    return history, ran(stages, sites, Randomness(2), gate=gate, state=state, seen=keep)


def factorization(extra_steps=0, batch_ratio=1.0, **settings):
    """Return the rounds with or without steps of the sites' own."""
    if not extra_steps:
        return Factorization(K, ROUNDS, **settings)
    return LocalSteps(K, ROUNDS, extra_steps=extra_steps, batch_ratio=batch_ratio, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.6, "constant": 0.5},
        {"extra_steps": 5},
        {"extra_steps": 2, "momentum": 0.5, "constant": 0.3,
         "penalty": Penalty(0.8, 0.1, 0.2)},
        {"clip_norm": 1e3, "step": 300.0},
        {"clamp": True},
        {"last_step": 0.1, "momentum": 0.5},
        {"last_step": 0.1, "extra_steps": 2},
    ],
    ids=["plain", "momentum, constant", "several steps", "everything", "no clipping", "clamped",
         "shorter steps", "several shorter steps"],
)  # fmt: skip
@pytest.mark.parametrize("per_round", [4, 12])
def test_rounds_agree_with_the_loops(ragged, settings, per_round):
    X, offsets = ragged
    sizes = np.diff(offsets)
    extra_steps = settings.get("extra_steps", 0)
    ratio = batch_ratio(sizes, extra_steps)
    stage = factorization(batch_ratio=ratio, **{"clip_norm": 0.1, "step": 1.0, **settings})
    assert ratio == pytest.approx(
        largest_batch_ratio(sizes, extra_steps, ROUNDS, probability=1.0, failure=0.0)
    )
    expected = oracle(X, offsets, stage, per_round, Randomness(2))
    history, state = rounds_of_the_library(X, offsets, stage, per_round)
    center, scale, _ = standardized(X, 0.0)
    np.testing.assert_allclose(state["data_mean"], center, rtol=1e-12)
    np.testing.assert_allclose(state["scale"], scale, rtol=1e-12)
    assert len(history) == ROUNDS
    for got, W in zip(history, expected, strict=True):
        np.testing.assert_allclose(got, W, atol=1e-8)
    assert np.abs(history[-1] - history[0]).max() > 1e-2


class Silence(SimulatedNoise):
    """A source of noise that adds none, to see what the noise would be added to."""

    def gaussian(self, shape, std, *, stage, t, sites):
        assert std > 0
        return np.zeros(shape)


@pytest.mark.parametrize("extra_steps", [0, 4])
@pytest.mark.parametrize("per_round", [4, 12])
def test_rounds_with_sampled_records_agree_with_the_loops(ragged, extra_steps, per_round):
    X, offsets = ragged
    q = 0.4
    stage = factorization(extra_steps, 3.0, clip_norm=0.1, step=1.0)
    # A mean is freed of what noise makes of its length: here of next to nothing.
    releases = [PlannedRelease(name, 1, 12, 1, 1e-6) for name in ("mean", "scale")]
    releases.append(PlannedRelease("factorisation", ROUNDS, per_round, ROUNDS, 1.0, q))
    plan = PrivacyPlan(tuple(releases), 1e-5, "local", 12)
    state = {"bound": np.asarray(1e3)}  # no record is clipped before the factorisation
    gate = Gate(plan, Silence(Randomness(2)), Randomness(2))
    history, _ = rounds_of_the_library(X, offsets, stage, per_round, gate, state)
    expected = oracle(X, offsets, stage, per_round, Randomness(2), q)
    for got, W in zip(history, expected, strict=True):
        np.testing.assert_allclose(got, W, atol=1e-8)
    everyone = oracle(X, offsets, stage, per_round, Randomness(2))
    assert np.abs(history[-1] - everyone[-1]).max() > 1e-2  # some records were left out


def centers_after(X, offsets, n_rounds, refine):
    """Run the default stages and return the state after every round of the last one."""
    states = []
    last = Centers(K, n_rounds=n_rounds, refine=refine)

    def keep(stage, batch, state):
        if stage is last:
            states.append(state)
        return {}

    sites = Sites.of(X, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    ran([Mean(), Scale(), Factorization(K, 10), last], sites, Randomness(4), seen=keep)
    return states


def test_the_first_round_of_centers_is_by_membership(ragged):
    X, offsets = ragged
    (state,) = centers_after(X, offsets, 1, refine=False)
    rows = np.array(standardized(X, 0.0)[2])
    H = np.array([membership(x, state["W"], 50, Penalty().orthogonality, 0.0) for x in rows])
    labels = H.argmax(axis=1)
    for cluster in range(K):
        members = rows[labels == cluster]
        assert state["counts"][cluster] == len(members)
        if len(members):
            np.testing.assert_allclose(state["best_centers"][cluster], members.mean(axis=0))
    means = state["best_centers"][labels]
    assert float(state["best_cost"]) == pytest.approx(((rows - means) ** 2).sum())


def test_two_rounds_of_centers_are_a_step_of_lloyd(ragged):
    X, offsets = ragged
    first, second = centers_after(X, offsets, 2, refine=True)
    rows = np.array(standardized(X, 0.0)[2])
    gaps = ((rows[:, None, :] - first["centers"][None]) ** 2).sum(axis=2)
    labels = gaps.argmin(axis=1)
    np.testing.assert_array_equal(second["counts"], np.bincount(labels, minlength=K))
    for cluster in np.unique(labels):
        np.testing.assert_allclose(
            second["centers"][cluster], rows[labels == cluster].mean(axis=0), atol=1e-12
        )


def test_a_move_that_makes_things_worse_is_taken_back():
    stage = Centers(2, n_rounds=4, refine=True)
    best = np.array([[0.0], [1.0]])
    state = {
        "centers": np.array([[0.2], [3.0]]),
        "best_centers": best,
        "best_cost": np.asarray(5.0),
        "directions": np.ones((4, 2, 1)),
    }
    sums, counts = np.array([[4.0], [6.0]]), np.array([2.0, 3.0])
    half = COUNT_WEIGHT * counts
    worse = np.column_stack([sums, half, COUNT_WEIGHT * np.array([14.0, 15.0])])
    # The cost is 14 - 8 + 15 - 12 = 9.
    after = stage.combine(state, released(worse), 2)
    np.testing.assert_array_equal(after["centers"], best)
    np.testing.assert_array_equal(after["best_centers"], best)
    assert float(after["best_cost"]) == 5
    np.testing.assert_array_equal(after["counts"], counts)
    better = np.column_stack([sums, half, COUNT_WEIGHT * np.array([9.0, 14.0])])  # 1 + 2 = 3
    after = stage.combine(state, released(better), 2)
    np.testing.assert_array_equal(after["best_centers"], [[2.0], [2.0]])
    np.testing.assert_array_equal(after["centers"], [[2.0], [2.0]])
    assert float(after["best_cost"]) == 3


def test_the_best_cost_never_rises(ragged):
    X, offsets = ragged
    costs = [float(state["best_cost"]) for state in centers_after(X, offsets, 8, refine=True)]
    assert costs == sorted(costs, reverse=True)
