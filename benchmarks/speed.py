"""Time, memory and score of a fit, beside its floor and its rivals, in one run.

python benchmarks/speed.py [--cases mnist tcga] [--repeats 7] [--without flower diffprivlib]

Cases: MNIST 10,000 x 784 in 10 clusters and TCGA miRNA 7,373 x 1,046 in 20 (random numbers of that
shape where the data are absent), float32, 100 sites, 30 a round, 100 rounds, 10 membership steps,
epsilon 20 (local trust), one BLAS thread. The floor (floor.py) and the fit are timed in turn:
floor, fit, floor, fit, ..., floor. A ratio is the median over fits of the fit divided by the mean
of the floors on its sides. "cpu" is processor time of the process, which a busy machine disturbs
less than wall time. The fit with all threads and the fit with one follow, in turn. Memory is that
of a fit in a fresh process (memory.py). The rivals in this process take turns with the fit; Flower
and diffprivlib follow in environments of their own under results/envs, made on first use, or are
left out with a note. Writes one JSON file per case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from cases import CASES, Case
from environments import Unavailable
from floor import floor
from measuring import Seconds, machine, ratios, summary, timed, write_json
from rivals import diffprivlib, flower, in_process, scores
from threadpoolctl import threadpool_info, threadpool_limits

OTHERS = ("diffprivlib", "flower")


def peak_memory(case: Case) -> dict[str, float]:
    """Return the growth of memory during a fit, input excluded, from a fresh process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", case.X)
        np.save(folder / "sites.npy", case.sites)
        (folder / "settings.json").write_text(json.dumps(asdict(case.settings)))
        command = [sys.executable, str(Path(__file__).with_name("memory.py")), name]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def in_turn(case: Case, repeats: int) -> dict[str, Any]:
    """Return times, ratios and scores of the floor, the fit and the rivals in this process."""
    cold, fitted = timed(case.fit)
    lowest, others = floor(case), in_process(case, fitted)
    in_blocks = floor(case, in_blocks=True)
    lowest()
    floors: list[Seconds] = []
    floors_in_blocks: list[Seconds] = []
    times: dict[str, list[Seconds]] = {name: [] for name in ("DPFedC", *others)}
    found: dict[str, Any] = {}
    for _ in range(repeats):
        floors.append(timed(lowest)[0])
        floors_in_blocks.append(timed(in_blocks)[0])
        seconds, fitted = timed(case.fit)
        times["DPFedC"].append(seconds)
        found["DPFedC"] = fitted.labels_
    floors.append(timed(lowest)[0])
    floors_in_blocks.append(timed(in_blocks)[0])
    fits = [timed(case.fit)[0]]
    for _ in range(max(repeats // 2, 1)):
        for name, work in others.items():
            seconds, found[name] = timed(work)
            times[name].append(seconds)
        fits.append(timed(case.fit)[0])
    return {
        "first_fit": cold,
        "floor": summary(floors),
        "floor_in_blocks": summary(floors_in_blocks),
        "fit_over_floor": ratios(times["DPFedC"], floors),
        "fit_over_floor_in_blocks": ratios(times["DPFedC"], floors_in_blocks),
        "runs": {
            name: {
                **summary(taken),
                **scores(case, found[name]),
                **({"over_fit": ratios(taken, fits)} if name != "DPFedC" else {}),
            }
            for name, taken in times.items()
        },
        "fitted": fitted,
    }


def with_threads(case: Case, repeats: int) -> dict[str, Any]:
    """Return the time of a fit with one thread over that with all, in turn."""
    one: list[Seconds] = []
    many: list[Seconds] = []
    case.fit()
    for _ in range(repeats):
        with threadpool_limits(limits=1):
            one.append(timed(case.fit)[0])
        many.append(timed(case.fit)[0])
    with threadpool_limits(limits=1):
        one.append(timed(case.fit)[0])
    threads = max(library["num_threads"] or 1 for library in threadpool_info())
    return {"threads": threads, "all_over_one": ratios(many, one)}


def elsewhere(case: Case, result: dict[str, Any], without: list[str], rounds: int) -> None:
    """Add the rivals that have an environment of their own, or why they are left out."""
    fit = result["runs"]["DPFedC"]["median_wall_s"]
    if "diffprivlib" not in without:
        name = "diffprivlib KMeans, pooled"
        try:
            times, labels = diffprivlib(case, repeats=2)
            over = {"median_wall": summary(times)["median_wall_s"] / fit}
            result["runs"][name] = {**summary(times), **scores(case, labels), "over_fit": over}
        except Unavailable as error:
            result["left_out"][name] = str(error)
    if "flower" not in without:
        name = "Flower simulation"
        try:
            run = flower(case, result["fitted"], rounds)
            over = {"median_wall": run["seconds_of_all_rounds"] / fit}
            result["runs"][name] = {**run, "over_fit": over}
        except Unavailable as error:
            result["left_out"][name] = str(error)


def show(result: dict[str, Any]) -> None:
    """Print a case."""
    print(f"\n{result['case']}: wall seconds (processor seconds), medians")
    memory = result["memory"]
    for name in ("floor", "floor_in_blocks"):
        low, label = result[name], name.replace("_", " ")
        print(f"  {label:38s}{low['median_wall_s']:9.3f} ({low['median_cpu_s']:.3f})")
    for name, run in result["runs"].items():
        wall = run.get("median_wall_s", run.get("seconds_of_all_rounds"))
        line = f"  {name:38s}{wall:9.3f}"
        if "median_cpu_s" in run:
            line += f" ({run['median_cpu_s']:.3f})"
        if "over_fit" in run:
            line += f"  {run['over_fit']['median_wall']:7.2f} x the fit"
        if run.get("accuracy") is not None:
            line += f"  accuracy {run['accuracy']:.3f}"
        if "cost" in run:
            line += f"  cost {run['cost']:.4g}"
        if "note" in run:
            line += f"  ({run['note']}: {run['start_up_s']:.0f} s)"
        print(line)
    for name, why in result["left_out"].items():
        print(f"  {name}: left out, {why}")
    for name in ("floor", "floor_in_blocks"):
        over = result[f"fit_over_{name}"]
        print(
            f"  fit over {name.replace('_', ' ')}: {over['median_wall']:.2f} by wall time, "
            f"{over['median_cpu']:.2f} by processor time; least over least "
            f"{over['least_wall']:.2f} and {over['least_cpu']:.2f}"
        )
    spread = result["with_threads"]
    faster = 1 / spread["all_over_one"]["median_wall"]
    print(f"  with {spread['threads']} threads {faster:.2f} times as fast as with one")
    print(f"  first fit of the process, calibration included: {result['first_fit'].wall:.2f} s")
    print(
        f"  memory beyond the {memory['data_mib']:.1f} MiB of records: resident "
        f"{memory['resident_growth_over_data']:.2f} x the records (VmHWM), allocated "
        f"{memory['traced_peak_over_data']:.2f} x (tracemalloc); its score allocates "
        f"{memory['cost_peak_over_data']:.2f} x",
        flush=True,
    )


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["mnist", "tcga"])
    parser.add_argument("--repeats", type=int, default=7, help="pairs of floor and fit")
    parser.add_argument("--without", nargs="*", choices=OTHERS, default=[], help="leave out rivals")
    parser.add_argument("--flower-rounds", type=int, default=10, help="rounds to measure")
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    given = parser.parse_args()
    for name in given.cases:
        case = CASES[name]()
        with threadpool_limits(limits=1):
            result = {"case": case.name, **in_turn(case, given.repeats), "left_out": {}}
        result["with_threads"] = with_threads(case, given.repeats)
        elsewhere(case, result, given.without, given.flower_rounds)
        result["memory"] = peak_memory(case)
        show(result)
        del result["fitted"]
        about = {"machine": machine(), "settings": asdict(case.settings), "blas_threads": 1}
        write_json(given.output / f"speed-{name}.json", {**result, **about})


if __name__ == "__main__":
    main()
