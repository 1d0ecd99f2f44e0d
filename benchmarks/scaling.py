"""Time of a fit against n, m, k, N and R, with fitted exponents and a plot.

python benchmarks/scaling.py [--quick] [--axes n m] [--output results/bench]

One quantity is varied at a time: records n, features m and rounds R over two decades, the number
of sites N over three with the records and the share of sites in a round fixed, clusters k over
one and a half. The other sizes are such that the varied one carries the cost. Random records,
float32, epsilon 20 (local trust), one BLAS thread; a round has 30 % of the sites unless said
otherwise (`share` in the JSON). Each time is the least of several fits after the first, which
calibrates the noise. The exponent is the slope of a least-squares line through log processor time
against log size; its standard error says how well a power law fits. --quick takes one decade, in
about a minute. Writes scaling.json and scaling.png.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, Settings
from measuring import Seconds, machine, timed, write_json
from threadpoolctl import threadpool_limits

ENOUGH_S, MAX_FITS = 3.0, 7
"""Fits of one size are repeated until they have taken so long, at least twice."""


@dataclass(frozen=True)
class Size:
    """The sizes of one fit; a round has `share` of the sites."""

    n: int
    m: int
    k: int
    N: int
    R: int
    share: float = 0.3

    def case(self) -> Case:
        """Return random records of this size."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((self.n, self.m), dtype=np.float32)
        sites = np.arange(self.n) * self.N // self.n
        per_round = max(round(self.share * self.N), 1)
        settings = Settings(self.k, n_rounds=self.R, sites_per_round=per_round)
        return Case("", X, sites, None, settings)


Axes = dict[str, tuple[Size, tuple[int, ...]]]
"""By name: the other sizes, and the values that it takes."""
AXES: Axes = {
    "n": (Size(0, 64, 10, 100, 10, 1.0), (20_000, 63_246, 200_000, 632_456, 2_000_000)),
    "m": (Size(1_000, 0, 10, 20, 10, 1.0), (2_000, 6_325, 20_000, 63_246, 200_000)),
    "R": (Size(1_500, 784, 10, 20, 0, 1.0), (30, 95, 300, 949, 3_000)),
    "k": (Size(5_000, 500, 0, 100, 20, 1.0), (4, 10, 25, 63, 128)),
    "N": (Size(30_000, 100, 10, 0, 50), (10, 32, 100, 316, 1_000, 3_162, 10_000)),
}
QUICK: Axes = {axis: (base, values[: 3 + (axis == "N")]) for axis, (base, values) in AXES.items()}
TINY: Axes = {"n": (Size(0, 8, 2, 5, 2), (100, 200, 400))}
PRESETS = {"full": AXES, "quick": QUICK, "tiny": TINY}


def least_time(case: Case) -> Seconds:
    """Return the least of several fits by each clock, the first left out."""
    case.fit()
    times: list[Seconds] = []
    while len(times) < 2 or (sum(t.wall for t in times) < ENOUGH_S and len(times) < MAX_FITS):
        times.append(timed(case.fit)[0])
    return Seconds(min(t.wall for t in times), min(t.cpu for t in times))


def exponent(sizes: Any, seconds: Any) -> tuple[float, float]:
    """Return the slope of log seconds against log size, and its standard error."""
    x, y = np.log(sizes), np.log(seconds)
    slope, height = np.polyfit(x, y, 1)
    residuals = y - (slope * x + height)
    variance = float(residuals @ residuals) / max(len(x) - 2, 1)
    return float(slope), math.sqrt(variance / float(((x - x.mean()) ** 2).sum()))


def measured(axis: str, base: Size, values: tuple[int, ...]) -> dict[str, Any]:
    """Return the times along one axis and the exponents fitted to them."""
    times = []
    for value in values:
        taken = least_time(replace(base, **{axis: value}).case())
        times.append(taken)
        print(f"  {axis} = {value:9,d}  {taken.cpu:9.4f} s ({taken.wall:.4f} wall)", flush=True)
    slope, error = exponent(values, [t.cpu for t in times])
    by_wall, wall_error = exponent(values, [t.wall for t in times])
    print(f"{axis}: exponent {slope:.3f} +- {error:.3f} (by wall time {by_wall:.3f})", flush=True)
    return {
        "others": {name: size for name, size in vars(base).items() if name != axis},
        "values": values,
        "times": times,
        "exponent": slope,
        "standard_error": error,
        "exponent_by_wall_time": by_wall,
        "standard_error_by_wall_time": wall_error,
    }


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw processor time against each size as multiples of its least, with the fitted lines."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    for (axis, result), marker in zip(results.items(), "osD^v", strict=False):
        sizes = np.asarray(result["values"]) / result["values"][0]
        seconds = np.array([t.cpu for t in result["times"]])
        _, height = np.polyfit(np.log(sizes), np.log(seconds), 1)
        label = f"{axis}: {result['exponent']:.2f} ± {result['standard_error']:.2f}"
        (dots,) = axes.plot(sizes, seconds, marker, ms=5, label=label)
        axes.plot(sizes, np.exp(height) * sizes ** result["exponent"], lw=1, color=dots.get_color())
    axes.set(xscale="log", yscale="log", ylabel="seconds of one fit (processor time)")
    axes.set_xlabel("size, as a multiple of the smallest one measured")
    axes.legend(title="exponent", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    print(f"written: {path}")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    preset = parser.add_mutually_exclusive_group()
    preset.add_argument("--quick", dest="preset", action="store_const", const="quick")
    preset.add_argument("--tiny", dest="preset", action="store_const", const="tiny")
    parser.add_argument("--axes", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    given = parser.parse_args()
    chosen = PRESETS[given.preset or "full"]
    with threadpool_limits(limits=1):
        results = {a: measured(a, *chosen[a]) for a in given.axes if a in chosen}
    content = {"preset": given.preset or "full", "axes": results, "machine": machine()}
    write_json(given.output / "scaling.json", content)
    plot(results, given.output / "scaling.png")


if __name__ == "__main__":
    main()
