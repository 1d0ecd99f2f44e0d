"""`variant="published"` against Algorithm 1 as one would write it from the paper, in plain loops.

The oracle keeps the paper's orientation: records and centres are columns. It has the corrections
of docs/differences-from-the-paper.md: the true slope in H, a step constant that cannot diverge,
mini-batches with a sampling ratio of at most 1/2 where the site is large enough, each site's own
step constant for W, and gradients clipped to G. Only what is not part of the algorithm comes from
the library: the start, who takes part, which records make a batch, and standard normal draws.
"""

import math

import numpy as np
import pytest
from sklearn.utils import check_random_state

from dpfedc import DPFedC
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput
from dpfedc.privacy.schedule import schedule
from dpfedc.randomness import Randomness
from dpfedc.research.published.algorithm import Published
from dpfedc.settings import Penalty
from support.runs import ran

K_CLUSTERS, N_FEATURES, N_ROUNDS = 3, 4, 10


def federation(sizes, seed=0):
    """Return non-negative records of ragged sites: X by rows, and the site of each row."""
    rng = np.random.default_rng(seed)
    centers = 3 * rng.random((K_CLUSTERS, N_FEATURES))
    sites = np.repeat(np.arange(len(sizes)), sizes)
    X = centers[rng.integers(K_CLUSTERS, size=len(sites))]
    return np.abs(X + 0.2 * rng.standard_normal(X.shape)), sites


def top_eigenvalue(M):
    return float(np.linalg.eigvalsh(M)[-1])


def oracle(X, sites, randomness, *, rho, mu_h, mu_w, steps_h, extra, batch_size, per_round,
           G=None, epsilon=None, delta=None):  # fmt: skip
    """Return the list of (W, [H_1, ..., H_N]) after each round."""
    blocks = [X[sites == i].T for i in range(sites.max() + 1)]  # m x n_i
    N, k, m = len(blocks), K_CLUSTERS, N_FEATURES
    W = randomness.generator("start").random((k, m)).T
    H = []
    for i, block in enumerate(blocks):
        n_i = block.shape[1]
        draws = [
            randomness.uniform(f"membership {u}", t=0, sites=np.full(n_i, i), slots=np.arange(n_i))
            for u in range(k)
        ]
        H.append(np.array(draws) / k)
    cohorts = schedule(
        N, per_round, N_ROUNDS, rng=randomness.generator("participation factorisation")
    )
    local_epsilon = None
    if epsilon is not None:
        local_epsilon = epsilon_of_a_round(epsilon, blocks, extra, batch_size, per_round / N)
    history = []
    for t, cohort in enumerate(cohorts, start=1):
        for i in range(N):
            H[i] = memberships_after(W, H[i], blocks[i], steps_h, rho, mu_h)
        Q2 = math.floor(extra / t) + 1
        uploads = []
        for i in cohort:
            n_i = blocks[i].shape[1]
            b = max(1, min(batch_size, math.floor(n_i / (2 * Q2))))
            eta = 5 * top_eigenvalue(H[i] @ H[i].T)
            local = W.copy()
            for batch in batches_of(i, n_i, Q2, b, t, randomness):
                gradient = mu_w * local
                for j in batch:
                    x, h = blocks[i][:, j], H[i][:, j]
                    gradient = gradient + n_i / b * 2 * np.outer(local @ h - x, h)
                norm = math.sqrt(sum(value**2 for value in gradient.ravel()))
                if G is not None and norm > G:
                    gradient = gradient * (G / norm)
                local = local - gradient / eta
            if local_epsilon is not None:
                q = Q2 * b / n_i
                variance = 32 * G**2 * Q2**2 * q**2 * math.log(1.25 * q / delta)
                variance /= eta**2 * local_epsilon**2
                rng = randomness.generator("noise factorisation", site=int(i), t=t)
                local = local + math.sqrt(variance) * rng.standard_normal((k, m)).T
            uploads.append(local)
        W = sum(uploads) / per_round
        history.append((W, [block.copy() for block in H]))
    return history


def memberships_after(W, H, X, steps, rho, mu_h):
    """Q1 projected steps, record by record."""
    k = W.shape[1]
    one = np.ones((k, 1))
    gamma = 0.51 * top_eigenvalue(2 * W.T @ W + rho * (one @ one.T - np.eye(k)) + mu_h * np.eye(k))
    H = H.copy()
    for _ in range(steps):
        for j in range(H.shape[1]):
            h, x = H[:, j].copy(), X[:, j]
            for u in range(k):
                slope = sum(2 * (W[f] @ h - x[f]) * W[f, u] for f in range(len(x)))
                slope += rho * (sum(h) - h[u]) + mu_h * h[u]
                H[u, j] = max(0.0, h[u] - slope / gamma)
    return H


def batches_of(site, n, Q2, b, t, randomness):
    """Q2 b records without replacement, divided into Q2 batches (Remark 1)."""
    keys = randomness.uniform("mini-batch", t=t, sites=np.full(n, site), slots=np.arange(n))
    drawn = sorted(range(n), key=lambda j: keys[j])
    return [[drawn[(r * b + place) % n] for place in range(b)] for r in range(Q2)]


def epsilon_of_a_round(total, blocks, extra, batch_size, p):
    """Theorem 3 solved for the loss of one round, with c0 = 1 and the largest ratio."""
    ratios = []
    for t in range(1, N_ROUNDS + 1):
        Q2 = math.floor(extra / t) + 1
        for block in blocks:
            n = block.shape[1]
            ratios.append(Q2 * max(1, min(batch_size, n // (2 * Q2))) / n)
    q = max(ratios)
    return total / (q**2 * math.sqrt(p * N_ROUNDS / (1 - q)))


def library(X, sites, randomness, stage):
    """Return the same history from the library."""
    history = []

    def keep(stage, batch, state):
        ends = batch.offsets[1:-1]
        H = [block.T.copy() for block in np.split(batch.memory["H"], ends)]
        history.append((np.asarray(state["W"]).T, H))
        return {}

    ran([stage], Sites.of(X, sites), randomness, seen=keep)
    return history


RAGGED = [1, 40, 2, 7, 23, 1, 31, 12]
SETTINGS = {"rho": 0.3, "mu_h": 0.1, "mu_w": 0.05, "steps_h": 6, "extra": 10, "batch_size": 4}


@pytest.mark.parametrize("per_round", [3, 8], ids=["3 of 8 sites", "all sites"])
@pytest.mark.parametrize("G", [None, 1.5], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("mu_w", [0.0, 0.05], ids=["no ridge", "ridge"])
def test_ten_rounds_agree_with_the_paper(per_round, G, mu_w):
    X, sites = federation(RAGGED)
    settings = {**SETTINGS, "mu_w": mu_w}
    expected = oracle(X, sites, Randomness(11), **settings, per_round=per_round, G=G)
    stage = Published(
        K_CLUSTERS,
        N_ROUNDS,
        penalty=Penalty(settings["rho"], settings["mu_h"], mu_w),
        membership_steps=settings["steps_h"],
        extra_steps=settings["extra"],
        batch_size=settings["batch_size"],
        gradient_bound=G or math.inf,
        sites_per_round=per_round,
    )
    got = library(X, sites, Randomness(11), stage)
    assert len(got) == len(expected) == N_ROUNDS
    for (W, H), (W_expected, H_expected) in zip(got, expected, strict=True):
        np.testing.assert_allclose(W, W_expected, atol=1e-6)
        for block, block_expected in zip(H, H_expected, strict=True):
            np.testing.assert_allclose(block, block_expected, atol=1e-6)
    assert np.abs(got[-1][0] - got[0][0]).max() > 1e-2  # something happened


def fitted(X, sites, seed, **settings):
    """Return the fitted estimator and the randomness that its seed stands for."""
    settings = {"epsilon": None, "n_rounds": N_ROUNDS, **settings}
    model = DPFedC(n_clusters=K_CLUSTERS, variant="published", random_state=seed, **settings)
    model.fit(X, sites=sites)
    return model, Randomness(int(check_random_state(seed).randint(2**31 - 1)))


def paper_penalties(X, n_sites):
    energy = sum(value**2 for value in X.ravel())
    return {"rho": 1e-7 * energy / n_sites, "mu_h": 1e-10 * energy / n_sites, "mu_w": 0.0}


@pytest.mark.parametrize("G", [None, 2.0])
def test_the_estimator_runs_the_paper_with_its_penalties(G):
    X, sites = federation(RAGGED, seed=1)
    model, randomness = fitted(X, sites, 4, sites_per_round=3, gradient_bound=G)
    expected = oracle(
        X, sites, randomness, **paper_penalties(X, 8), steps_h=10, extra=10, batch_size=50,
        per_round=3, G=G,
    )  # fmt: skip
    np.testing.assert_allclose(model.model_.directions.T, expected[-1][0], atol=1e-6)


def test_the_estimator_adds_the_noise_of_theorems_2_and_3():
    X, sites = federation([23, 40, 30, 25, 36, 29], seed=2)
    settings = {"epsilon": 5.0, "delta": 1e-4}
    model, randomness = fitted(X, sites, 9, sites_per_round=4, gradient_bound=0.5, **settings)
    arguments = {
        **paper_penalties(X, 6), "steps_h": 10, "extra": 10, "batch_size": 50, "per_round": 4,
        "G": 0.5,
    }  # fmt: skip
    noisy = oracle(X, sites, randomness, **arguments, **settings)
    quiet = oracle(X, sites, randomness, **arguments)
    np.testing.assert_allclose(model.model_.directions.T, noisy[-1][0], atol=1e-6)
    assert np.abs(noisy[-1][0] - quiet[-1][0]).max() > 1e-2  # the noise is not lost in tolerance
    assert "as published; not a proof" in model.history_.stamps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sites_without_memberships_cannot_have_this_noise(dtype):
    """Records on the far side of every centre: H becomes 0, and with it the step constant."""
    X, sites = federation([30] * 6, seed=3)
    X[sites >= 4] *= -1
    settings = {"n_rounds": 1, "epsilon": 5.0, "gradient_bound": 0.5}
    message = r"overflows in round 1: noise_std must be at most .*, got .* at 2 of 6 sites, where "
    with pytest.raises(InvalidInput, match=message + "memberships are all near zero"):
        fitted(X.astype(dtype), sites, 0, **settings)
    # Without noise such sites leave the centres where they are.
    model, _ = fitted(X.astype(dtype), sites, 0, **{**settings, "epsilon": None})
    assert np.isfinite(model.cluster_centers_).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_that_feeds_itself_is_refused_before_it_overflows(dtype):
    """Large noise makes large centres, these small memberships, and these larger noise."""
    X, sites = federation([30] * 6, seed=3)
    settings = {"n_rounds": 40, "epsilon": 1.0, "gradient_bound": 300.0}
    with pytest.raises(InvalidInput, match=r"the noise of Theorem 2 overflows in round \d+"):
        fitted(X.astype(dtype), sites, 0, **settings)


@pytest.mark.parametrize("steps", [1, 2, 11])
def test_batches_keep_the_sampling_ratio_at_one_half(steps):
    method = Published(3, 1, penalty=Penalty(), batch_size=50)
    sizes = np.array([1, 5, 21, 22, 23, 100, 1100, 10_000])
    b = method.batch_sizes(sizes, steps)
    assert np.all(b >= 1)
    assert np.all(b <= 50)
    large = sizes >= 2 * steps
    assert np.all(steps * b[large] / sizes[large] <= 0.5)
    assert np.all(b[~large] == 1)


def test_the_printed_step_constant_does_not_converge():
    """gamma = lambda_max(W'W) / 2 is a quarter of what the slope needs: H swings to and fro."""
    X, _ = federation([30])
    W = np.random.default_rng(0).random((N_FEATURES, K_CLUSTERS))
    gamma = top_eigenvalue(W.T @ W) / 2
    H = np.full((K_CLUSTERS, 30), 0.1)
    for _ in range(60):
        H = np.maximum(H - 2 * W.T @ (W @ H - X.T) / gamma, 0)
    ours = memberships_after(W, np.full((K_CLUSTERS, 30), 0.1), X.T, 60, 0.0, 0.0)
    loss, best = (np.sum((X.T - W @ M) ** 2) for M in (H, ours))
    assert loss > 5 * best
