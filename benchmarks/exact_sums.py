"""Time one release of a site: float sums with simulated noise, exact sums with secure noise.

python benchmarks/exact_sums.py
"""

from __future__ import annotations

import time

import numpy as np

from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.stage import Stage, contributed
from dpfedc.clustering.standardize import Subspace
from dpfedc.engine.simulated import Sites
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SecureNoise, SimulatedNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.randomness import Randomness

RANDOMNESS, REPEATS = Randomness(0), 3
CASES: tuple[tuple[int, int, Stage], ...] = (
    (10_000, 784, Factorization(10, REPEATS)),
    (100_000, 20, Factorization(10, REPEATS)),
    (1_000, 200, Subspace(5)),
)


def seconds(n: int, m: int, stage: Stage, noise: SimulatedNoise | SecureNoise) -> float:
    """Return the shortest time of some uploads of n records with m features."""
    X = np.random.default_rng(0).random((n, m)).astype(np.float32)
    sites = Sites.of(X)
    plan = PrivacyPlan(
        (PlannedRelease(stage.name, REPEATS, 1, REPEATS, 1.0),), 1e-5, "local", n_sites=1
    )
    gate = Gate(plan, noise, RANDOMNESS)
    state = stage.start({}, sites.public, RANDOMNESS)
    batch = sites.batch(np.array([0]), {})
    batch.memory = stage.prepare(batch, state, RANDOMNESS)
    times = []
    for t in range(1, REPEATS + 1):
        part = contributed(stage, batch, state, t, gate, RANDOMNESS)
        sensitivity = stage.sensitivity(state, t)
        began = time.perf_counter()
        gate.upload([part], batch.sites, stage=stage.name, t=t, sensitivity=sensitivity)
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    print(f"{'records':>8} {'features':>8} {'stage':>14} {'simulated s':>12} {'secure s':>9}")
    for n, m, stage in CASES:
        simulated, secure = (
            seconds(n, m, stage, noise) for noise in (SimulatedNoise(RANDOMNESS), SecureNoise())
        )
        print(f"{n:>8} {m:>8} {stage.name:>14} {simulated:>12.3f} {secure:>9.2f}")
    began = time.perf_counter()
    SecureNoise().integers((20_000,), 2.0**30)
    print(f"{(time.perf_counter() - began) / 20_000 * 1e6:.0f} microseconds a number of noise")
