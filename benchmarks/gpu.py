"""Times on one GPU: a MNIST run, 64 starts in one batch, and a round of 10^8 records.

python benchmarks/gpu.py [--only checks mnist ...] [--device cuda] [--records 100000000]

Parts, each on its own, so that one that fails does not lose the others:

checks    one round by the fused kernel, by plain Torch and by NumPy, against double precision; and
          records one by one, none of which may be longer than the bound
mnist     10,000 x 784 (random numbers without the data), 100 sites, 30 a round, 100 rounds, 10
          membership steps, epsilon 20: the first fit, then warm ones, with seconds by stage
restarts  the same without noise, from 64 starts in one batch and from one
large     10^8 records (64 features, 16 clusters) made on the GPU: one round by the bare kernel and
          by the federation, over the time to read the records once
tiling    the kernel with other tiles, on 2^25 records

Times are wall times between synchronisations, after warm-ups. Prints JSON part by part, and writes
all of it to --output.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import mnist_case

from dpfedc import DPFedC
from dpfedc.clustering import factorization
from dpfedc.clustering.factorization import Factorization
from dpfedc.engine.rounds import run
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.errors import BudgetWarning, UtilityWarning
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.devices import fused_kernels, on_host
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.kernels.objective import (
    membership_curvature,
    membership_step_size,
    membership_steps,
    residual_norms,
    unit_rows,
)
from dpfedc.kernels.row_views import Standardized
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.torch_noise import TorchNoise
from dpfedc.randomness import Randomness

FEATURES, CLUSTERS, STEPS, BOUND = 64, 16, 10, 0.03
SHAPES = (
    (5000, 64, 16, 0), (4999, 64, 10, 30), (3001, 20, 20, 0), (777, 784, 10, 0),
    (2000, 100, 40, 0), (100_003, 64, 16, 0), (900, 1000, 64, 0),
)  # fmt: skip
"""Records, features, clusters, and how far from the origin, of the checks."""


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any], repeats: int = 5, warm: int = 2) -> dict[str, float]:
    """Return least and median time of `work`, after warm-ups."""
    times = []
    for i in range(warm + repeats):
        wait()
        began = time.perf_counter()
        work()
        wait()
        if i >= warm:
            times.append(time.perf_counter() - began)
    return {"least_s": min(times), "median_s": statistics.median(times)}


def attempt(result: dict[str, Any], name: str, work: Callable[[], Any]) -> None:
    """Put what `work` returns, or how it failed, into the result, and print it."""
    try:
        result[name] = work()
    except Exception:
        result[name] = {"failed": traceback.format_exc()}
    print(json.dumps({name: result[name]}), flush=True)


class Round:
    """One round of the factorisation on given records."""

    def __init__(self, X: Any, k: int, *, bound: float = BOUND, rho: float = 0.5) -> None:
        self.bound = bound
        some = X[: 2**16]
        self.center = torch.mean(some, dim=0)
        self.scale = 1.3 * torch.mean(torch.linalg.norm(some - self.center, dim=1))
        self.view = Standardized.of(X, center=self.center, scale=self.scale)
        self.squares = self.rounded()
        W = np.random.default_rng(0).standard_normal((k, X.shape[1]))
        self.W = torch.asarray(unit_rows(W), dtype=X.dtype, device=X.device)
        self.M = membership_curvature(self.W, rho=rho, mu_h=0.0)
        self.gamma = membership_step_size(self.M)

    def rounded(self) -> Any:
        """Return the squared norms of the records as the fused kernel rounds them."""
        kernels, view = fused_kernels(self.view.X), self.view
        return kernels and kernels.rounded_squares(view.X, view.center, view.factors)

    def fused(self, keep: Any = None, tiling: Any = None) -> Any:
        """Return the sum by the fused kernel."""
        view = self.view
        return fused_kernels(view.X).clipped_gradients(
            view.X, center=view.center, factors=view.factors, squares=self.squares, W=self.W,
            curvature=on_host(self.M), gamma=self.gamma, steps=STEPS, bound=self.bound, keep=keep,
            tiling=tiling,
        )  # fmt: skip

    def plain(self, to: Callable[[Any], Any] = lambda x: x) -> Any:
        """Return the sum by the general kernels, with arrays turned into others by `to`."""
        old, W, M = self.view, to(self.W), to(self.M)
        view = Standardized(
            to(old.X), to(old.center), to(old.factors), to(old.squared_norms), old.constant
        )
        A = view.products(W)
        H = membership_steps(A, M, STEPS)
        norms = 2 * residual_norms(view.squared_norms, A, H, W @ W.T) * (H**2).sum(1) ** 0.5
        V = H * (2 * clip_weights(norms, self.bound))[:, None]
        return (V.T @ H) @ W - view.weighted_sums(V)


def clustered(n: int, m: int, k: int, device: str, *, far: float = 0.0) -> Any:
    """Return float32 records around k centres, made on the device a chunk at a time."""
    generator = torch.Generator(device).manual_seed(0)
    like = {"device": device, "generator": generator}
    centers = 3 * torch.randn((k, m), **like)
    X = torch.empty((n, m), device=device)
    for start in range(0, n, 2**22):
        part = X[start : start + 2**22]
        part.normal_(generator=generator)
        part += centers[torch.randint(k, (len(part),), **like)] + far
    return X


def checks(given: Any) -> Any:
    kernels, rows = fused_kernels(torch.empty(1, device=given.device)), []
    for n, m, k, far in SHAPES:
        work = Round(clustered(n, m, k, given.device, far=float(far)), k)
        exact = work.plain(lambda x: x.to(torch.float64))
        size = float(torch.max(torch.abs(exact)))

        def off(value: Any, exact: Any = exact, size: float = size) -> float:
            value = torch.asarray(value, dtype=torch.float64, device=exact.device)
            return float(torch.max(torch.abs(value - exact))) / size

        row = {"n": n, "m": m, "k": k, "far": far, "plain": off(work.plain())}
        row["numpy"] = off(work.plain(lambda x: x.cpu().numpy()))
        if kernels:
            attempt(row, "fused", lambda work=work, off=off: off(work.fused()))
            attempt(
                row,
                "deterministic",
                lambda work=work: bool(torch.equal(work.fused(), work.fused())),
            )
        rows.append(row)
        print(json.dumps(row), flush=True)
    result: dict[str, Any] = {"largest_difference_over_largest_entry": rows}
    if kernels:
        attempt(result, "longest_record_over_bound", lambda: longest_record(given.device))
    return result


def longest_record(device: str, n: int = 400) -> float:
    """Return the longest clipped gradient of records that nearly cancel, one by one."""
    rng = np.random.default_rng(0)
    work = Round(clustered(n, FEATURES, CLUSTERS, device), CLUSTERS, bound=1e-3, rho=1.0)
    W = torch.linalg.qr(work.W.T).Q.T.contiguous()
    rest = 10 ** rng.uniform(-3.5, -1.5, (n, 1)) * unit_rows(rng.standard_normal((n, FEATURES)))
    near = torch.asarray(rest, dtype=torch.float32, device=device)
    near += (
        W[torch.arange(n, device=device) % CLUSTERS]
        * torch.linspace(0.2, 0.95, n, device=device)[:, None]
    )
    X = work.center + work.scale * near
    work.view = Standardized.of(X, center=work.center, scale=work.scale)
    work.squares = work.rounded()
    work.W, work.M = W, membership_curvature(W, rho=1.0, mu_h=0.0)
    work.gamma = membership_step_size(work.M)
    alone = torch.eye(n, dtype=torch.bool, device=device)
    found = [torch.linalg.norm(work.fused(alone[j]).to(torch.float64)) for j in range(n)]
    return float(max(found)) / work.bound


def fit(case: Any, given: Any, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UtilityWarning)
        warnings.simplefilter("ignore", BudgetWarning)
        settings = {**asdict(case.settings), "device": given.device, **more}
        return DPFedC(**settings).fit(case.X, sites=case.sites)


def told(case: Any, model: Any, taken: dict[str, float]) -> dict[str, Any]:
    """Return times with the seconds of each stage in the last fit, and the score."""
    stages: dict[str, float] = {}
    for entry in model.history_.rounds:
        stages[entry.stage] = stages.get(entry.stage, 0.0) + entry.seconds
    accuracy = None if case.y is None else clustering_accuracy(case.y, model.labels_)
    return {**taken, "by_stage_s": stages, "accuracy": accuracy}


def mnist(given: Any) -> Any:
    case = mnist_case()
    wait()
    began = time.perf_counter()
    model = fit(case, given)
    wait()
    result: dict[str, Any] = {"data": case.name, "first_s": time.perf_counter() - began}
    result["warm"] = told(case, model, seconds(lambda: fit(case, given), 7))
    result["assigning_s"] = seconds(lambda: model.predict(case.X))
    kernels = fused_kernels(torch.empty(1, device=given.device))
    if kernels:
        least, kernels.MIN_RECORDS = kernels.MIN_RECORDS, 1
        attempt(
            result,
            "with_fused_rounds",
            lambda: told(case, fit(case, given), seconds(lambda: fit(case, given), 5)),
        )
        kernels.MIN_RECORDS = least
    numpy = fit(case, given, device=None)
    result["numpy"] = told(case, numpy, seconds(lambda: fit(case, given, device=None), 3, 0))
    result["needed"] = "warm median at most 0.3 s"
    return result


def restarts(given: Any) -> Any:
    case, result = mnist_case(), {}
    for r in (1, 64):
        model = fit(case, given, epsilon=None, n_restarts=r)
        times = seconds(lambda r=r: fit(case, given, epsilon=None, n_restarts=r), 5)
        result[f"{r} starts"] = told(case, model, times)
    result["ratio"] = result["64 starts"]["median_s"] / result["1 starts"]["median_s"]
    return {**result, "needed": "ratio at most 4"}


def reading(X: Any) -> dict[str, float]:
    """Return the time to read the records once, by the faster of a sum and a copy of half."""
    half, size = X[: len(X) // 2], X.numel() * X.element_size()
    copy = torch.empty_like(half)
    total, copied = seconds(lambda: torch.sum(X)), seconds(lambda: copy.copy_(half))
    least = min(total["least_s"], copied["least_s"])  # a copy reads half and writes half
    return {"sum_s": total["least_s"], "copy_of_half_s": copied["least_s"], "read_once_s": least,
            "terabytes_a_second": size / least / 1e12}  # fmt: skip


def by_federation(X: Any, given: Any, n_sites: int, *, noise: bool) -> dict[str, float]:
    """Return the time of a round of the federation, all sites in it, from synchronised rounds."""
    n, rounds, ends = len(X), 12, []
    offsets = np.linspace(0, n, n_sites + 1).astype(np.int64)
    sites = Sites(X, offsets, np.arange(n_sites), None)
    some = X[: 2**16]
    center = torch.mean(some, dim=0)
    scale = 1.3 * torch.mean(torch.linalg.norm(some - center, dim=1))
    randomness = Randomness(0)
    gate: Gate | OpenGate = OpenGate()
    if noise:
        release = PlannedRelease("factorisation", rounds, n_sites, rounds, 1.0)
        plan = PrivacyPlan((release,), 1e-5, "local", n_sites)
        gate = Gate(plan, TorchNoise(randomness, device=given.device), randomness)
    stage = Factorization(CLUSTERS, rounds, membership_steps=STEPS, clip_norm=BOUND)

    def done(_: Any) -> None:
        wait()
        ends.append(time.perf_counter())

    state = {"data_mean": center, "scale": scale}
    backend = SimulatedSites(sites, gate, randomness)
    run([stage], backend, randomness=randomness, state=state, on_round=done)
    times = [b - a for a, b in itertools.pairwise(ends[2:])]
    return {"least_s": min(times), "median_s": statistics.median(times)}


def large(given: Any) -> Any:
    n, n_sites = given.records, 1000
    X = clustered(n, FEATURES, CLUSTERS, given.device)
    result: dict[str, Any] = {"records": n, "reading": reading(X)}
    floor = result["reading"]["read_once_s"]

    def over(taken: dict[str, float], share: float = 1.0) -> dict[str, float]:
        return {**taken, "over_reading": taken["median_s"] / (floor * share)}

    if fused_kernels(X):
        attempt(result, "bare kernel", lambda: over(seconds(Round(X, CLUSTERS).fused, 7)))
    for name, noise in (("federation", False), ("federation with noise", True)):
        attempt(
            result, name, lambda noise=noise: over(by_federation(X, given, n_sites, noise=noise))
        )
    part = X[: min(n, 2**24)]
    kept, factorization.fused_kernels = factorization.fused_kernels, lambda _: None
    attempt(
        result,
        f"plain Torch, {len(part)} records",
        lambda: over(by_federation(part, given, n_sites, noise=False), len(part) / n),
    )
    factorization.fused_kernels = kept
    return {**result, "needed": "federation over reading at most 2"}


def tiling(given: Any) -> Any:
    kernels = fused_kernels(torch.empty(1, device=given.device))
    if not kernels:
        return {"skipped": "no CUDA or no Triton"}
    work = Round(clustered(min(given.records, 2**25), FEATURES, CLUSTERS, given.device), CLUSTERS)
    floor, rows = reading(work.view.X)["read_once_s"], []
    for (tile, warps), registers in itertools.product(((16, 1), (32, 1), (64, 4)), (None, 128)):
        for programs in (4, 16, 32, 64):
            plan = kernels.Tiling(tile, warps, programs, registers)
            try:
                taken = seconds(lambda plan=plan: work.fused(tiling=plan), 5)["median_s"]
            except Exception as error:
                rows.append({**asdict(plan), "failed": repr(error)[:200]})
                break
            rows.append({**asdict(plan), "median_s": taken, "over_reading": taken / floor})
    rows.sort(key=lambda row: row.get("median_s", float("inf")))
    return {"read_once_s": floor, "best first": rows}


def machine(given: Any) -> dict[str, Any]:
    about = {"torch": torch.__version__, "python": platform.python_version(),
             "numpy": np.__version__, "device": given.device}  # fmt: skip
    try:
        import triton

        about["triton"] = triton.__version__
    except ImportError as error:
        about["triton"] = repr(error)
    if not torch.cuda.is_available():
        return about
    found = torch.cuda.get_device_properties(0)
    about |= {
        "gpu": found.name,
        "cores": found.multi_processor_count,
        "memory_gib": found.total_memory / 2**30,
        "cuda": torch.version.cuda,
    }
    query = "--query-gpu=driver_version,clocks.max.sm"
    try:
        words = ["nvidia-smi", query, "--format=csv,noheader"]
        done = subprocess.run(words, capture_output=True, check=True, text=True)
        about["driver"] = done.stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        about["driver"] = repr(error)
    return about


PARTS = {"checks": checks, "mnist": mnist, "restarts": restarts, "large": large, "tiling": tiling}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--records", type=int, default=10**8, help="of the part `large`")
    parser.add_argument("--output", type=Path, default=Path("results/bench/gpu.json"))
    given = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(given)}
    print(json.dumps(result["machine"]), flush=True)
    failed = False
    for name in given.only:
        began = time.perf_counter()
        try:
            result[name] = PARTS[name](given)
        except Exception:
            failed = True
            result[name] = {"failed": traceback.format_exc()}
        result[name]["whole_part_s"] = time.perf_counter() - began
        print(json.dumps({name: result[name]}, indent=1), flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(result, indent=1))
    sys.exit(failed)


if __name__ == "__main__":
    main()
