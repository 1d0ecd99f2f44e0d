"""Exact sums of a site beside float sums of the same records, and what rounding does to them.

python benchmarks/exact_sums.py [--repeats 15] [--output results/bench]

Each sum is that of one release, clipped, noise apart. Float and exact sums take turns, and ratios
are of medians: of processor time with one thread, of wall clock with as many as the machine has
cores. The bias is the distance of the two sums, over the number of records and the bound; in single
precision the float sum's own rounding is in it. Noise is timed for itself. Writes exact_sums.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, timed, write_json
from threadpoolctl import threadpool_limits

from dpfedc.clustering.bound import Bound
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.stage import Stage, contributed
from dpfedc.clustering.subspace import Subspace
from dpfedc.clustering.sums_and_gram import SumsAndGram
from dpfedc.engine.simulated import Sites
from dpfedc.kernels.threads import rows_over_threads
from dpfedc.privacy.exact_sums import exact_sum, noise_in_units, unit_of, unpacked
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SecureNoise, SimulatedNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sums import OuterSum, Part, summed
from dpfedc.randomness import Randomness

RANDOMNESS = Randomness(0)
CASES: tuple[tuple[int, int, Stage, str], ...] = (
    (10_000, 784, Factorization(10, 1), "float64"),
    (10_000, 784, Factorization(10, 1), "float32"),
    (10_000, 784, SumsAndGram(10, 1), "float64"),
    (10_000, 784, LloydSums(10, 1), "float64"),
    (10_000, 784, Mean(), "float64"),
    (10_000, 784, Scale(), "float64"),
    (10_000, 784, Bound(), "float64"),
    (10_000, 784, Subspace(5), "float64"),
    (100_000, 20, Factorization(10, 1), "float64"),
    (100_000, 20, LloydSums(10, 1), "float64"),
    (1_000, 20_000, Factorization(10, 1), "float64"),
    (1_000, 200, Subspace(5), "float64"),
)
"""Records, features, stage, precision. Deployed sites compute in double precision."""


def contribution_of(n: int, m: int, stage: Stage, dtype: str) -> tuple[Part, float]:
    """Return what a site contributes to the stage's first round, and the sensitivity."""
    X = np.random.default_rng(0).random((n, m)).astype(dtype)
    sites = Sites.of(X)
    release = PlannedRelease(stage.name, 1, 1, 1, 1.0)
    gate = Gate(
        PrivacyPlan((release,), 1e-5, "local", n_sites=1), SimulatedNoise(RANDOMNESS), RANDOMNESS
    )
    bound = sites.public.asarray(np.asarray(m**0.5))
    state = stage.start({"bound": bound}, sites.public, RANDOMNESS)
    batch = sites.batch(np.array([0]), {})
    batch.memory = stage.prepare(batch, state, RANDOMNESS)
    return contributed(stage, batch, state, 1, gate, RANDOMNESS), stage.sensitivity(state, 1)


def compared(part: Part, bound: float, repeats: int) -> dict[str, float]:
    """Return medians of both sums by number of threads, their ratios and the bias."""
    contribution = part[0]
    assert isinstance(contribution, OuterSum)
    n = contribution.norms.shape[0]
    keep = np.ones(n, bool)
    found: dict[str, float] = {}
    works = {
        "float": lambda: summed(part, bound),
        "exact": lambda: exact_sum(contribution, keep, bound),
    }
    for clock, threads in (("cpu", 1), ("wall", os.cpu_count() or 1)):
        times: dict[str, list[float]] = {name: [] for name in works}
        with threadpool_limits(limits=threads), rows_over_threads():
            for _ in range(repeats):
                for name, work in works.items():
                    times[name].append(getattr(timed(work)[0], clock))
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        found |= {f"{name}_{clock}_{threads}_s": taken for name, taken in medians.items()}
        found[f"ratio_{clock}_{threads}"] = medians["exact"] / medians["float"]
    total = works["exact"]() * unit_of(bound)
    total = unpacked(total) if contribution.symmetric else total
    found["bias"] = float(np.linalg.norm(total - works["float"]()) / (n * bound))
    return found


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    choices = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for n, m, stage, dtype in CASES:
        part, bound = contribution_of(n, m, stage, dtype)
        row = {"records": n, "features": m, "stage": type(stage).__name__, "dtype": dtype}
        rows.append({**row, **compared(part, bound, choices.repeats)})
        print(" ".join(f"{v:.2g}" if isinstance(v, float) else str(v) for v in rows[-1].values()))
    taken, _ = timed(lambda: SecureNoise().integers((784, 10), noise_in_units(1.0)))
    print(f"noise of 784 x 10 numbers: {taken.wall:.3f} s")
    write_json(
        choices.output / "exact_sums.json",
        {"machine": machine(), "sums": rows, "noise_784_x_10_s": taken.wall},
    )


if __name__ == "__main__":
    main()
