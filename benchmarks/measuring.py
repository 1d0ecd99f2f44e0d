"""Clocks, memory and machine facts, as all benchmarks take them.

The machine may be shared, so every time is taken twice: wall clock, and processor time of this
process, which does not count what others use. Ratios are of neighbours in time.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info


@dataclass(frozen=True)
class Seconds:
    """How long something took."""

    wall: float
    cpu: float


def timed(work: Callable[[], Any]) -> tuple[Seconds, Any]:
    """Return the time that `work` took, and its result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu), result


def summary(times: Sequence[Seconds]) -> dict[str, float]:
    """Return least and median of both clocks."""
    walls, cpus = [t.wall for t in times], [t.cpu for t in times]
    return {
        "least_wall_s": min(walls),
        "median_wall_s": statistics.median(walls),
        "least_cpu_s": min(cpus),
        "median_cpu_s": statistics.median(cpus),
    }


def ratios(over: Sequence[Seconds], under: Sequence[Seconds]) -> dict[str, float]:
    """Return `over` / `under`: median over neighbours, and least over least, by both clocks.

    `under` is measured before each of `over`, and once after the last: each of `over` is divided by
    the mean of the two on its sides.
    """
    result = {}
    for clock in ("wall", "cpu"):
        a, b = [getattr(t, clock) for t in over], [getattr(t, clock) for t in under]
        sides = [(left + right) / 2 for left, right in pairwise(b)]
        pairs = [x / side for x, side in zip(a, sides, strict=True)]
        result[f"median_{clock}"] = statistics.median(pairs)
        result[f"least_{clock}"] = min(a) / min(b)
    return result


def memory_mib(field: str) -> float:
    """Return a line of /proc/self/status in MiB: VmRSS, VmHWM (its peak), RssAnon; Linux only.

    RssAnon leaves out pages that belong to a file, such as memory-mapped records.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}")


def reset_peak() -> None:
    """Set VmHWM back to the memory now resident."""
    Path("/proc/self/clear_refs").write_text("5")


class AnonymousPeak:
    """The largest RssAnon while the context lasts, sampled by a thread, in MiB beyond the first."""

    def __init__(self, every_s: float = 0.005) -> None:
        self.every_s = every_s
        self.growth_mib = 0.0

    def __enter__(self) -> AnonymousPeak:
        self._before, self._done = memory_mib("RssAnon"), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            last = self._done.is_set()
            self.growth_mib = max(self.growth_mib, memory_mib("RssAnon") - self._before)
            if last:
                return
            self._done.wait(self.every_s)


def machine() -> dict[str, Any]:
    """Return what a figure must be read with."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    blas = [
        f"{b['internal_api']} {b['version']}" for b in threadpool_info() if b["user_api"] == "blas"
    ]
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": sorted(set(blas)),
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, default=_plain) + "\n")
    print(f"written: {path}")


def _plain(value: Any) -> Any:
    if isinstance(value, Seconds):
        return asdict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
