"""DP-FedC written as plainly as can be: NumPy, one site after the other.

It is a rival in the benchmark, the work of a site in Flower's simulation, and a check: without
noise it gives the same centres as the package (tests/test_benchmarks.py). Records are standardised
beforehand with the centre and scale of a fit, so it has less to do than a fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LABEL_STEPS = 50


@dataclass(frozen=True)
class Plain:
    """What a round needs to know. `noise_std` is that of one site's own noise (local trust)."""

    n_clusters: int
    n_rounds: int
    sites_per_round: int
    membership_steps: int
    clip_norm: float
    step: float
    momentum: float
    orthogonality: float
    noise_std: float
    reuse_products: bool = True
    """Whether X W' is computed once a round; or every step has its own residuals X - H W."""
    first_orthogonality: float = 0.1

    def rho(self, t: int) -> float:
        """Return the orthogonality weight of round t = 1, 2, ...: it rises in even steps."""
        first = min(self.first_orthogonality, self.orthogonality)
        return first + (self.orthogonality - first) * (t - 1) / max(self.n_rounds - 1, 1)

    def cohort(self, t: int, n_sites: int) -> Any:
        """Return the sites of round t: everyone in turn."""
        first = (t - 1) * self.sites_per_round
        return np.arange(first, first + self.sites_per_round) % n_sites


def standardised(X: Any, center: Any, scale: float) -> Any:
    """Return the records around the centre, in units of the scale, none longer than 1."""
    X = X - center
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), scale)


def memberships(X: Any, W: Any, rho: float, steps: int, *, reuse_products: bool = True) -> Any:
    """Return H after projected gradient steps from zero."""
    eye = np.eye(len(W), dtype=W.dtype)
    M = 2 * W @ W.T + rho * (1 - eye)
    gamma = 0.51 * float(np.linalg.eigvalsh(M)[-1])
    H = np.zeros((len(X), len(W)), dtype=X.dtype)
    A: Any = X @ W.T if reuse_products else None
    for _ in range(steps):
        if reuse_products:
            gradient = H @ M - 2 * A
        else:
            others = H.sum(axis=1, keepdims=True) - H
            gradient = 2 * (H @ W - X) @ W.T + rho * others
        H = np.maximum(H - gradient / gamma, 0)
    return H


def site_answer(X: Any, W: Any, t: int, plain: Plain, rng: np.random.Generator) -> Any:
    """Return one site's noisy sum of clipped gradients in round t."""
    steps, reuse = plain.membership_steps, plain.reuse_products
    H = memberships(X, W, plain.rho(t), steps, reuse_products=reuse)
    residuals = H @ W - X
    norms = 2 * np.linalg.norm(H, axis=1) * np.linalg.norm(residuals, axis=1)
    weights = np.minimum(1, plain.clip_norm / np.maximum(norms, 1e-30))
    total = 2 * (H * weights[:, None]).T @ residuals
    if plain.noise_std:
        total += plain.noise_std * rng.standard_normal(W.shape, dtype=W.dtype)
    return total


def server_step(W: Any, velocity: Any, total: Any, n_records: int, plain: Plain) -> tuple[Any, Any]:
    """Return the centres and the velocity after a round."""
    velocity = plain.momentum * velocity + total / n_records
    W = W - (1 - plain.momentum) * plain.step / plain.clip_norm * velocity
    return W / np.linalg.norm(W, axis=1, keepdims=True), velocity


def cluster(sites: Sequence[Any], plain: Plain, W: Any, seed: int = 0) -> Any:
    """Return the centres' directions after all rounds; `sites` holds each site's records."""
    rng, velocity = np.random.default_rng(seed), np.zeros_like(W)
    for t in range(1, plain.n_rounds + 1):
        chosen = plain.cohort(t, len(sites))
        total = np.zeros_like(W)
        for i in chosen:
            total += site_answer(sites[i], W, t, plain, rng)
        n_records = sum(len(sites[i]) for i in chosen)
        W, velocity = server_step(W, velocity, total, n_records, plain)
    return W


def start(n_clusters: int, n_features: int, seed: int = 0) -> Any:
    """Return random unit rows."""
    W = np.random.default_rng(seed).standard_normal((n_clusters, n_features), dtype=np.float32)
    return W / np.linalg.norm(W, axis=1, keepdims=True)


def labels(X: Any, W: Any, plain: Plain) -> Any:
    """Return each record's cluster: its largest membership."""
    return memberships(X, W, plain.orthogonality, LABEL_STEPS).argmax(axis=1)
