"""`variant="published"` against Algorithm 1 as one would write it from the paper, in plain loops.

The oracle keeps the paper's orientation: records and centres are columns. It has the corrections
of docs/differences-from-the-paper.md: the true slope in H, a step constant that cannot diverge,
mini-batches with a sampling ratio of at most 1/2 where the site is large enough, each site's own
step constant for W, and gradients clipped to G; and for each of these the other reading that a
setting offers. Only what is not part of the algorithm comes from the library: the start, who takes
part, which records make a batch, and standard normal draws.
"""

import math
import re
from itertools import product

import numpy as np
import pytest
from sklearn.utils import check_random_state

from dpfedc import DPFedC
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput
from dpfedc.privacy.schedule import schedule
from dpfedc.randomness import Randomness
from dpfedc.research.published.algorithm import Published
from dpfedc.research.published.published_planner import NOT_ENFORCED
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
           G=None, epsilon=None, delta=None, Q2_constant=None, cycling=False, scaled=True,
           bound_on="mini-batch", printed=False):  # fmt: skip
    """Return the list of (W, [H_1, ..., H_N]) after each round."""

    def steps_of(t):
        return math.floor(extra / t) + 1 if Q2_constant is None else Q2_constant

    def batch_of(n_i, Q2):
        return batch_size if cycling else max(1, min(batch_size, math.floor(n_i / (2 * Q2))))

    def ratio(n_i, Q2):
        q = Q2 * batch_of(n_i, Q2) / n_i
        return min(q, 1 / 2) if cycling else q

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
        # Theorem 3 solved for the loss of one round, with c0 = 1 and the largest ratio.
        sizes = [block.shape[1] for block in blocks]
        q = max(ratio(n, steps_of(t)) for n in sizes for t in range(1, N_ROUNDS + 1))
        local_epsilon = epsilon / (q**2 * math.sqrt(per_round / N * N_ROUNDS / (1 - q)))
    history = []
    for t, cohort in enumerate(cohorts, start=1):
        for i in range(N):
            H[i] = memberships_after(W, H[i], blocks[i], steps_h, rho, mu_h, printed)
        Q2 = steps_of(t)
        uploads = []
        for i in cohort:
            n_i = blocks[i].shape[1]
            b = batch_of(n_i, Q2)
            weight = n_i / b if scaled else 1.0
            eta = 5 * top_eigenvalue(H[i] @ H[i].T)
            local = W.copy()
            for batch in batches_of(i, n_i, Q2, b, t, randomness):
                gradient = mu_w * local
                for j in batch:
                    x, h = blocks[i][:, j], H[i][:, j]
                    part = weight * 2 * np.outer(local @ h - x, h)
                    gradient = gradient + (within(G, part) if bound_on == "record" else part)
                if bound_on == "mini-batch":
                    gradient = within(G, gradient)
                local = local - gradient / eta
            if local_epsilon is not None:
                q = ratio(n_i, Q2)
                variance = 32 * G**2 * Q2**2 * q**2 * math.log(1.25 * q / delta)
                variance /= eta**2 * local_epsilon**2
                rng = randomness.generator("noise factorisation", site=int(i), t=t)
                local = local + math.sqrt(variance) * rng.standard_normal((k, m)).T
            uploads.append(local)
        W = sum(uploads) / per_round
        history.append((W, [block.copy() for block in H]))
    return history


def within(G, gradient):
    """Return the gradient, or the one of length G in its direction if it is longer."""
    norm = math.sqrt(sum(value**2 for value in gradient.ravel()))
    return gradient * (G / norm) if G is not None and norm > G else gradient


def memberships_after(W, H, X, steps, rho, mu_h, printed=False):
    """Q1 projected steps, record by record; `printed`: by Appendix E, 2 rho 11'H + (mu_h - rho) H.

    The step constant is 0.51 times the largest curvature of the slope that is followed.
    """
    k = W.shape[1]
    one = np.ones((k, 1))
    curvature = 2 * W.T @ W + rho * (one @ one.T - np.eye(k)) + mu_h * np.eye(k)
    gamma = 0.51 * top_eigenvalue(curvature + (rho * one @ one.T if printed else 0))
    H = H.copy()
    for _ in range(steps):
        for j in range(H.shape[1]):
            h, x = H[:, j].copy(), X[:, j]
            for u in range(k):
                slope = sum(2 * (W[f] @ h - x[f]) * W[f, u] for f in range(len(x)))
                slope += (
                    2 * rho * sum(h) + (mu_h - rho) * h[u]
                    if printed
                    else (rho * (sum(h) - h[u]) + mu_h * h[u])
                )
                H[u, j] = max(0.0, h[u] - slope / gamma)
    return H


def batches_of(site, n, Q2, b, t, randomness):
    """Q2 b records without replacement, divided into Q2 batches (Remark 1)."""
    keys = randomness.uniform("mini-batch", t=t, sites=np.full(n, site), slots=np.arange(n))
    drawn = sorted(range(n), key=lambda j: keys[j])
    return [[drawn[(r * b + place) % n] for place in range(b)] for r in range(Q2)]


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


READINGS = {
    "defaults": {},
    "constant Q2": {"Q2_constant": 3},
    "cycling": {"cycling": True},
    "batches as sums": {"scaled": False},
    "bound on records": {"bound_on": "record"},
    "bound on nothing": {"bound_on": "nothing"},
    "printed slope in H": {"printed": True},
    "closest": {
        "Q2_constant": 5, "cycling": True, "scaled": False, "bound_on": "record", "printed": True,
    },
}  # fmt: skip
CLOSEST = {
    "centroid_steps": 5, "batches": "cycling", "batch_gradient": "sum", "bound_on": "record",
    "membership_gradient": "printed",
}  # fmt: skip
FIELDS = {"Q2_constant": "constant_steps", "printed": "printed_slope"}


CASES = [("defaults", *case) for case in product([3, 8], [None, 1.5], [0.0, 0.05])]
CASES += [(reading, 3, 1.5, 0.05) for reading in READINGS if reading != "defaults"]
CASES += [("closest", 3, None, 0.0)]


@pytest.mark.parametrize(("reading", "per_round", "G", "mu_w"), CASES)
def test_ten_rounds_agree_with_the_paper(reading, per_round, G, mu_w):
    X, sites = federation(RAGGED)
    settings, how = {**SETTINGS, "mu_w": mu_w}, READINGS[reading]
    expected = oracle(X, sites, Randomness(11), **settings, per_round=per_round, G=G, **how)
    stage = Published(
        K_CLUSTERS,
        N_ROUNDS,
        penalty=Penalty(settings["rho"], settings["mu_h"], mu_w),
        membership_steps=settings["steps_h"],
        extra_steps=settings["extra"],
        batch_size=settings["batch_size"],
        gradient_bound=G or math.inf,
        sites_per_round=per_round,
        **{FIELDS.get(name, name): value for name, value in how.items()},
    )
    got = library(X, sites, Randomness(11), stage)
    assert len(got) == len(expected) == N_ROUNDS
    for (W, H), (W_expected, H_expected) in zip(got, expected, strict=True):
        np.testing.assert_allclose(W, W_expected, atol=1e-6)
        for block, block_expected in zip(H, H_expected, strict=True):
            np.testing.assert_allclose(block, block_expected, atol=1e-6)
    assert np.abs(got[-1][0] - got[0][0]).max() > 1e-2  # something happened


def test_every_reading_gives_other_centres():
    """So the oracle above can tell each of them from the defaults."""
    X, sites = federation(RAGGED)
    found = {
        reading: oracle(X, sites, Randomness(11), **SETTINGS, per_round=3, G=1.5, **how)[-1][0]
        for reading, how in READINGS.items()
    }
    for reading in READINGS.keys() - {"defaults"}:
        assert np.abs(found[reading] - found["defaults"]).max() > 1e-3, reading


def fitted(X, sites, seed, **settings):
    """Return the fitted estimator and the randomness that its seed stands for."""
    settings = {"epsilon": None, "n_rounds": N_ROUNDS, **settings}
    model = DPFedC(n_clusters=K_CLUSTERS, variant="published", random_state=seed, **settings)
    model.fit(X, sites=sites)
    return model, Randomness(int(check_random_state(seed).randint(2**31 - 1)))


def paper_penalties(X, n_sites):
    energy = sum(value**2 for value in X.ravel())
    return {"rho": 1e-7 * energy / n_sites, "mu_h": 1e-10 * energy / n_sites, "mu_w": 0.0}


def test_the_scale_of_records_and_that_of_the_start_are_one_choice():
    """c times the records is 1 / c times the start: W and G grow with c, and H is the same."""
    X, sites = federation(RAGGED, seed=1)
    start = np.random.default_rng(0).random((K_CLUSTERS, N_FEATURES))
    how = {**CLOSEST, "sites_per_round": 3}
    large, _ = fitted(255 * X, sites, 4, init=start, gradient_bound=255 * 0.5, **how)
    small, _ = fitted(X, sites, 4, init=start / 255, gradient_bound=0.5, **how)
    np.testing.assert_allclose(large.cluster_centers_ / 255, small.cluster_centers_, rtol=1e-9)
    np.testing.assert_array_equal(large.labels_, small.labels_)


@pytest.mark.parametrize("G", [None, 2.0])
def test_the_estimator_runs_the_paper_with_its_penalties(G):
    X, sites = federation(RAGGED, seed=1)
    model, randomness = fitted(X, sites, 4, sites_per_round=3, gradient_bound=G)
    expected = oracle(
        X, sites, randomness, **paper_penalties(X, 8), steps_h=10, extra=10, batch_size=50,
        per_round=3, G=G,
    )  # fmt: skip
    np.testing.assert_allclose(model.model_.directions.T, expected[-1][0], atol=1e-6)


@pytest.mark.parametrize(
    ("how", "reading", "G"),
    [
        ({}, "defaults", 0.5),
        (CLOSEST, "closest", 0.2),
        ({"bound_on": "nothing"}, "bound on nothing", 0.5),
    ],
)
def test_the_estimator_adds_the_noise_of_theorems_2_and_3(how, reading, G):
    X, sites = federation([23, 40, 30, 25, 36, 29], seed=2)
    settings = {"epsilon": 5.0, "delta": 1e-4}
    model, randomness = fitted(X, sites, 9, sites_per_round=4, gradient_bound=G, **settings, **how)
    arguments = {
        **paper_penalties(X, 6), "steps_h": 10, "extra": 10, "batch_size": 50, "per_round": 4,
        "G": G, **READINGS[reading],
    }  # fmt: skip
    noisy = oracle(X, sites, randomness, **arguments, **settings)
    quiet = oracle(X, sites, randomness, **arguments)
    np.testing.assert_allclose(model.model_.directions.T, noisy[-1][0], atol=1e-6)
    assert np.abs(noisy[-1][0] - quiet[-1][0]).max() > 1e-2  # the noise is not lost in tolerance
    stamps = model.history_.stamps
    assert "as published; not a proof" in stamps
    assert (NOT_ENFORCED in stamps) == (reading == "bound on nothing")
    assert any("more than once in a round" in stamp for stamp in stamps) == (reading == "closest")


def test_what_the_notes_say_of_the_noise():
    X, sites = federation([23, 40, 30, 25, 36, 29], seed=2)
    settings = {"epsilon": 5.0, "delta": 1e-4, "gradient_bound": 0.05, "batch_size": 5}

    def note(**how):
        model, _ = fitted(X, sites, 9, **settings, **how)
        return model.history_.results["privacy_notes"][1]

    assert "it would give epsilon infinite at delta" in note(bound_on="nothing")
    assert re.search(r"give epsilon [\d.]+ at delta", note())
    assert re.search(
        r"epsilon [\d.]+ for a record made null, [\d.]+ for one replaced, and [\d.]+ by the ",
        note(bound_on="record", batch_gradient="sum"),
    )


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
