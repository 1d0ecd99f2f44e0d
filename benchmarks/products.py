"""The two products of a round: whole, in blocks, and in blocks over all threads.

python benchmarks/products.py [--repeats 15] [--output results/bench]

X W' (n x m times m x k, laid out by columns) and V'X (k x n times n x m), in single and double
precision. Whole ones and blocks have one BLAS thread, blocks over threads as many as the machine
has cores. They take turns, and ratios are of medians. OPENBLAS_CORETYPE=Haswell shows a processor
without AVX-512. Writes products.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, timed, write_json
from threadpoolctl import threadpool_limits

from dpfedc.kernels.rows import by_columns, weighted_rows
from dpfedc.kernels.threads import rows_over_threads

SHAPES = (
    (3_000, 784, 10), (2_212, 1_046, 20), (10_000, 784, 10), (32_768, 100, 20), (32_768, 784, 20),
    (1_000, 6_325, 10), (500, 100_000, 10), (4_000, 784, 100),
)  # fmt: skip
"""Records, features and clusters."""


def in_turn(works: dict[str, tuple[int, Callable[[], Any]]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each work, with its number of threads."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, (threads, work) in works.items():
            with threadpool_limits(limits=threads), rows_over_threads():
                work()  # starts the threads, which a fit does once
                times[name].append(timed(work)[0].wall)
    return {name: statistics.median(taken) for name, taken in times.items()}


def compared(whole: Callable[[], Any], blocks: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Return times, and what blocks and threads gain."""
    works = {"whole": (1, whole), "blocks": (1, blocks), "threads": (os.cpu_count() or 1, blocks)}
    found = in_turn(works, repeats)
    return {
        **{f"{name}_s": seconds for name, seconds in found.items()},
        "blocks_over_whole": found["blocks"] / found["whole"],
        "one_thread_over_all": found["blocks"] / found["threads"],
    }


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    given = parser.parse_args()
    rng, rows = np.random.default_rng(0), []
    for dtype in ("float32", "float64"):
        for n, m, k in SHAPES:
            X = rng.standard_normal((n, m)).astype(dtype)
            W = rng.standard_normal((k, m)).astype(dtype)
            V = np.asfortranarray(rng.random((n, k)).astype(dtype))
            flipped = np.ascontiguousarray(W.T)
            found = {
                "X W'": compared(
                    lambda X=X, B=flipped: np.asfortranarray(X @ B),
                    lambda X=X, W=W: by_columns(X, W),
                    given.repeats,
                ),
                "V'X": compared(
                    lambda X=X, V=V: V.T @ X, lambda X=X, V=V: weighted_rows(V, X), given.repeats
                ),
            }
            rows.append({"dtype": dtype, "n": n, "m": m, "k": k, **found})
            for name, times in found.items():
                print(
                    f"{dtype} {n:7,d} x {m:7,d}, k = {k:3d}  {name:5s} whole "
                    f"{1e3 * times['whole_s']:7.2f} ms, blocks {times['blocks_over_whole']:.2f} of "
                    f"it, all threads {times['one_thread_over_all']:.2f} times as fast",
                    flush=True,
                )
    write_json(given.output / "products.json", {"products": rows, "machine": machine()})


if __name__ == "__main__":
    main()
