"""The exact measures of progress, recomputed from their definitions by loops."""

import numpy as np
import pytest

from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.subspace import Subspace
from dpfedc.engine.simulated import Sites
from dpfedc.kernels.stationarity import membership_stationarity
from dpfedc.randomness import Randomness
from dpfedc.research.published.algorithm import Published
from dpfedc.settings import Penalty
from support.runs import ran

PENALTY = Penalty(0.7, 0.2, 0.1)


def measured(X, offsets, stages):
    """Return the last batch, state and diagnostics of a run."""
    seen = []

    def keep(stage, batch, state):
        seen.append((batch, state, stage.diagnose(batch, state)))
        return {}

    sites = Sites.of(X, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    ran(stages, sites, Randomness(6), seen=keep)
    return seen[-1]


def definitions(X, offsets, W, H, mu_w):
    """F = mean_i F_i, its slope in W, and Theorem 4's G_H, site by site."""
    rho, mu_h = PENALTY.orthogonality, PENALTY.membership_ridge
    n_sites, k = len(offsets) - 1, len(W)
    M = 2 * W @ W.T + rho * (np.ones((k, k)) - np.eye(k)) + mu_h * np.eye(k)
    gamma = 0.51 * np.linalg.eigvalsh(M)[-1]
    F, slope, G_H = 0.0, np.zeros_like(W), 0.0
    for i in range(n_sites):
        F += mu_w / 2 * (W**2).sum() / n_sites
        slope += mu_w * W / n_sites
        for x, h in zip(
            X[offsets[i] : offsets[i + 1]], H[offsets[i] : offsets[i + 1]], strict=True
        ):
            F += ((x - h @ W) ** 2).sum() / n_sites
            F += (rho / 2 * (h.sum() ** 2 - (h**2).sum()) + mu_h / 2 * (h**2).sum()) / n_sites
            slope += 2 * np.outer(h, h @ W - x) / n_sites
            moved = np.maximum(
                h - (2 * W @ (h @ W - x) + rho * (h.sum() - h) + mu_h * h) / gamma, 0
            )
            G_H += gamma**2 * ((h - moved) ** 2).sum()
    return F, slope, G_H


def test_published_measures(ragged):
    X, offsets = abs(ragged[0]), ragged[1]
    stage = Published(3, 2, penalty=PENALTY, membership_steps=3, sites_per_round=5)
    batch, state, exact = measured(X, offsets, [stage])
    F, slope, G_H = definitions(X, offsets, state["W"], batch.memory["H"], 0.1)
    assert exact["objective"] == pytest.approx(F)
    assert exact["stationarity_w"] == pytest.approx((slope**2).sum())
    assert exact["stationarity_h"] == pytest.approx(G_H)
    assert G_H > 1e-3


@pytest.mark.parametrize(("constant", "before"), [(0.0, []), (0.5, []), (0.0, [Subspace(2)])])
def test_normalized_measures(ragged, constant, before):
    X, offsets = ragged
    stage = Factorization(
        3, 2, penalty=PENALTY, membership_steps=3, constant=constant, sites_per_round=5
    )
    _, state, exact = measured(X, offsets, [Mean(), Scale(), *before, stage])
    W, differences = state["W"], X - state["data_mean"]
    lengths = np.maximum(np.linalg.norm(differences, axis=1, keepdims=True), state["scale"])
    rows = differences / lengths
    if before:
        assert W.shape == (3, 2)
        rows = rows @ state["basis"].T
    if constant:
        rows = np.column_stack([rows, np.full(len(X), constant)])
    H = np.zeros((len(X), 3))
    M = 2 * W @ W.T + 0.7 * (np.ones((3, 3)) - np.eye(3)) + 0.2 * np.eye(3)
    for _ in range(3):
        H = np.maximum(H - (H @ M - 2 * rows @ W.T) / (0.51 * np.linalg.eigvalsh(M)[-1]), 0)
    F, slope, G_H = definitions(rows, offsets, W, H, 0.0)
    tangent = slope - (slope * W).sum(axis=1, keepdims=True) * W
    assert exact["objective"] == pytest.approx(F, rel=1e-9)
    assert exact["stationarity_w"] == pytest.approx((tangent**2).sum())
    assert exact["stationarity_h"] == pytest.approx(G_H)


def test_a_membership_is_hard_if_one_entry_has_nearly_all():
    H = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.005, 0.0], [0.5, 0.5, 0.0]])
    exact = membership_stationarity(np.zeros((4, 3)), H, np.eye(3))
    assert exact["hard_share"] == 0.75
