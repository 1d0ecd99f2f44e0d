"""Where the defaults stand: all sets of `frontier_sets.py`, at five epsilons, old and new.

python benchmarks/frontier.py [--half tuning] [--seeds 5] [--first-seed 1000] [--epsilons none,1]
    [--old PATH] [--jobs 2] [--trust secure-aggregation] [--sets a,b] [--output results/frontier]
    [--device cpu]

Defaults are found on the tuning half. The judging half is run once, when they are settled; later
sets (--half later) are for what is settled after that.
Records are dealt at random to 20 sites; delta is 1e-5 and everything else is at its default. A run
that refuses scores 0. Measures are the adjusted Rand index, normalised mutual information, and the
mean squared distance of records to the nearest released centre over that of pooled k-means (the
best of 10 starts). `--old` is the src folder of an older version: it gets the same records, sites
and seeds, so that differences are of pairs.

Fits are made by worker processes, `--jobs` at a time, with one thread for BLAS each; every one sees
one version of the package, copied when the study starts. With `--device cuda` records are tensors
on the GPU (needs torch), and fits of several epsilons and seeds go side by side there as processes:
give it more jobs. Writes one Markdown file per half, and every single run as a line of JSON. Runs
that are there already (same source, sets, seed, trust and device) are not made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

import numpy as np
from frontier_sets import HALVES, missing
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

EPSILONS = (None, 0.5, 1.0, 2.0, 8.0)
N_SITES, DELTA = 20, 1e-5
TRUST = ("local", "secure-aggregation", "trusted-server")
LOSS, UNSTEADY = 0.02, 0.05
POOLED = "pooled k-means"
HERE = Path(__file__).resolve()
KEY = ("half", "set", "seed", "epsilon", "version", "sets", "trust", "device")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
Row = dict[str, Any]


# What a worker does.


@lru_cache(maxsize=1)
def dealt(half: str, name: str, seed: int) -> tuple[Any, Any, int, Any]:
    """Return the records of a set, their classes, the number of clusters, and sites."""
    X, y, k = HALVES[half][name](seed)
    sites = np.random.default_rng([10, seed]).permutation(np.arange(len(X)) % N_SITES)
    return X, y, k, sites


def cost(X: Any, centers: Any) -> float:
    """Return the mean squared distance of records to the nearest centre."""
    middle = X.mean(axis=0)  # far from zero, squares would lose their digits
    X, centers = X - middle, centers - middle
    squares = (X**2).sum(axis=1)[:, None] + (centers**2).sum(axis=1) - 2 * X @ centers.T
    return float(np.maximum(squares.min(axis=1), 0.0).mean())


def pooled(job: Row) -> Row:
    X, y, k, _ = dealt(job["half"], job["set"], job["seed"])
    model = KMeans(k, n_init=10, random_state=job["seed"]).fit(X)
    return {**agreement(y, model.labels_), "cost": cost(X, model.cluster_centers_)}


def agreement(y: Any, labels: Any) -> Row:
    return {
        "ari": float(adjusted_rand_score(y, labels)),
        "nmi": float(normalized_mutual_info_score(y, labels)),
    }


def fitted(job: Row) -> Row:
    from dpfedc import DPFedC, errors

    # The oldest versions know no NotFound.
    refusals = (errors.InvalidInput, getattr(errors, "NotFound", errors.InvalidInput))
    X, y, k, sites = dealt(job["half"], job["set"], job["seed"])
    model = DPFedC(
        n_clusters=k, epsilon=job["epsilon"], delta=DELTA, trust=job["trust"],
        random_state=job["seed"], device=None if job["device"] == "cpu" else job["device"],
    )  # fmt: skip
    try:
        model.fit(X, sites=sites)
    except refusals as refusal:
        return {"ari": 0.0, "nmi": 0.0, "cost": None, "refused": str(refusal)}
    return {**agreement(y, model.labels_), "cost": cost(X, model.cluster_centers_)}


def work() -> None:
    """Read jobs from standard input, one JSON object per line, and write what they gave."""
    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        job = json.loads(line)
        X, _, k, _ = dealt(job["half"], job["set"], job["seed"])
        start = time.perf_counter()
        try:
            found = pooled(job) if job["version"] == POOLED else fitted(job)
        except Exception as error:  # to be told and run again, not to end the study
            found = {"error": f"{type(error).__name__}: {error}"}
        found["seconds"] = round(time.perf_counter() - start, 3)
        answer = {**job, "n": X.shape[0], "d": X.shape[1], "k": k, **found}
        print(json.dumps(answer), file=answers, flush=True)


# How workers are given their jobs.


def version_of(source: Path) -> str:
    """Return a hash of a src folder's *.py."""
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*.py")):
        digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def started(source: Path) -> subprocess.Popen[str]:
    """Return a worker that sees the package of a src folder."""
    before = [path for path in [os.environ.get("PYTHONPATH")] if path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *before])}
    env.update(dict.fromkeys(THREADS, "1"))
    pipe = subprocess.PIPE
    command = [sys.executable, str(HERE), "--worker"]
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)


class Runs:
    """Every single run of an output folder: a line of JSON each, added when it is done."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, Lock()
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        kept = [json.loads(line) for line in lines if line.endswith("\n")]  # not one cut off
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        self.rows: dict[tuple[Any, ...], Row] = {self._key(row): row for row in kept}
        self.errors: list[Row] = []

    @staticmethod
    def _key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in KEY)

    def has(self, job: Row) -> bool:
        """Return whether a job was done before."""
        return self._key(job) in self.rows

    def get(self, job: Row) -> Row | None:
        """Return what a job gave, if it was done."""
        return self.rows.get(self._key(job))

    def add(self, row: Row) -> None:
        """Keep a run; one that failed is only told, and made again next time."""
        with self._lock:
            if "error" in row:
                self.errors.append(row)
                return
            self.rows[self._key(row)] = row
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def run_all(jobs: list[Row], source: Path, n_workers: int, runs: Runs) -> None:
    """Let workers of one version do the jobs."""
    waiting: SimpleQueue[Row] = SimpleQueue()
    for job in jobs:
        waiting.put(job)

    def keep_busy() -> None:
        worker = None
        while True:
            try:
                job = waiting.get_nowait()
            except Empty:
                break
            worker = worker or started(source)
            worker.stdin.write(json.dumps(job) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            if not line:  # killed, for memory perhaps: a fresh one goes on with the next job
                line = json.dumps({**job, "error": f"the worker ended, status {worker.wait()}"})
                worker = None
            row = json.loads(line)
            runs.add(row)
            what = "-" if row["version"] == POOLED else shown_epsilon(row["epsilon"])
            told = row.get("error") or row.get("refused") or f"{row['ari']:.3f}"
            print(f"{row['version']} {row['set']}, epsilon {what}, seed {row['seed']}: {told}",
                  flush=True)  # fmt: skip
        if worker:
            worker.stdin.close()
            worker.wait()

    threads = [Thread(target=keep_busy) for _ in range(min(n_workers, len(jobs)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# What is written.


def shown_epsilon(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"


def mean_and_error(values: Any) -> tuple[float, float]:
    """Return the mean and its standard error: NaN with fewer than two values."""
    found = np.asarray(values, dtype=np.float64)
    if not len(found):
        return np.nan, np.nan
    error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.nan
    return float(found.mean()), float(error)


def shown(values: Any, sign: str = "") -> str:
    mean, error = mean_and_error(values)
    return f"{number(mean, sign)} ± {number(error)}" if np.isfinite(error) else number(mean, sign)


def number(value: float, sign: str = "") -> str:
    if not np.isfinite(value):
        return "-"
    return f"{value:{sign}.3f}" if abs(value) < 1000 else f"{value:{sign}.1e}"


class Study:
    """The runs of one half that belong to this study, as `report` needs them."""

    def __init__(self, runs: Runs, half: str, names: list[str], given: Any, common: Row) -> None:
        self.half, self.names, self.runs = half, names, runs
        self.seeds = range(given.first_seed, given.first_seed + given.seeds)
        self.epsilons: tuple[float | None, ...] = given.epsilons
        self.versions: dict[str, str] = given.versions
        self._common = common

    def job(self, name: str, seed: int, epsilon: float | None, version: str) -> Row:
        """Return what a worker is given."""
        where = {"half": self.half, "set": name, "seed": seed, "epsilon": epsilon}
        # k-means knows neither trust nor device: one of each is enough.
        plain = {"trust": "", "device": "cpu"} if version == POOLED else {}
        return {**where, "version": version, **self._common, **plain}

    def jobs(self, version: str) -> Iterator[Row]:
        """Yield all jobs of a version."""
        for name in self.names:
            for seed in self.seeds:
                for epsilon in [None] if version == POOLED else self.epsilons:
                    yield self.job(name, seed, epsilon, version)

    def rows(self, name: str, epsilon: float | None, label: str) -> dict[int, Row]:
        """Return the runs of a set by their seed; `label` is "old", "new" or that of k-means."""
        version = self.versions.get(label, label)
        found = {s: self.runs.get(self.job(name, s, epsilon, version)) for s in self.seeds}
        return {seed: row for seed, row in found.items() if row is not None}

    def values(self, name: str, epsilon: float | None, label: str, key: str = "ari") -> list[float]:
        """Return a measure of a set's runs."""
        return [row[key] for row in self.rows(name, epsilon, label).values()]

    def differences(self, name: str, epsilon: float | None) -> list[float]:
        """Return new less old, seed by seed."""
        old, new = (self.rows(name, epsilon, label) for label in ("old", "new"))
        return [row["ari"] - old[seed]["ari"] for seed, row in new.items() if seed in old]

    def ratios(self, name: str, epsilon: float | None, label: str) -> list[float]:
        """Return costs over those of k-means; runs that refused have none."""
        best = self.rows(name, None, POOLED)
        found = self.rows(name, epsilon, label)
        return [row["cost"] / best[seed]["cost"] for seed, row in found.items()
                if seed in best and row["cost"] is not None]  # fmt: skip

    def shape(self, name: str) -> Row | None:
        """Return a row with the n, d and k of a set."""
        return next(iter(self.rows(name, None, POOLED).values()), None)


def table(lines: list[str], head: list[str], rows: list[list[str]]) -> None:
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines.append("")


def scored(study: Study, name: str, epsilon: float | None, label: str) -> str:
    refused = sum("refused" in row for row in study.rows(name, epsilon, label).values())
    return shown(study.values(name, epsilon, label)) + (f" ({refused} refused)" if refused else "")


def shown_tables(study: Study, lines: list[str]) -> None:
    labels = list(study.versions)
    compared = ["difference"] if "old" in labels else []
    head = ["set", "n", "d", "k", "k-means ARI", *labels, *compared, "cost ratio"]
    for epsilon in study.epsilons:
        lines += [f"## Epsilon {shown_epsilon(epsilon)}", ""]
        rows = []
        for name in study.names:
            shape = study.shape(name)
            if shape is None:
                continue
            cells = [name, f"{shape['n']:,}", str(shape["d"]), str(shape["k"])]
            cells.append(number(mean_and_error(study.values(name, None, POOLED))[0]))
            cells += [scored(study, name, epsilon, label) for label in labels]
            cells += [shown(study.differences(name, epsilon), "+")] if compared else []
            rows.append([*cells, number(mean_and_error(study.ratios(name, epsilon, "new"))[0])])
        table(lines, head, rows)


def means(study: Study, epsilon: float | None, label: str, key: str) -> list[float]:
    """Return the mean of every set that was run."""
    found = [study.values(name, epsilon, label, key) for name in study.names]
    return [float(np.mean(values)) for values in found if values]


def shown_summary(study: Study, lines: list[str]) -> None:
    """Write what all sets say together; standard errors are over sets."""
    labels = list(study.versions)
    lines += ["## Summary", "", "Means over sets, with their standard errors over sets.", ""]
    head = ["epsilon", *(f"{key}, {label}" for key in ("ARI", "NMI") for label in labels)]
    head += ["ARI, difference"] if "old" in labels else []
    rows = []
    for epsilon in study.epsilons:
        cells = [shown_epsilon(epsilon)]
        for key in ("ari", "nmi"):
            cells += [number(mean_and_error(means(study, epsilon, label, key))[0])
                      for label in labels]  # fmt: skip
        if "old" in labels:
            pairs = [study.differences(name, epsilon) for name in study.names]
            cells.append(shown([np.mean(found) for found in pairs if found], "+"))
        rows.append(cells)
    table(lines, head, rows)
    if "old" in labels:
        shown_losses(study, lines)
    shown_spread(study, lines)
    shown_costs(study, lines)


def shown_losses(study: Study, lines: list[str]) -> None:
    lines += [f"Losses (below -{LOSS:g} and beyond two standard errors of the pairs' difference):"]
    lost, unknown = [], 0
    for epsilon in study.epsilons:
        for name in study.names:
            found = study.differences(name, epsilon)
            unknown += len(found) < 2
            mean, error = mean_and_error(found)
            if mean < -LOSS and -mean > 2 * error:
                lost.append(f"- {name}, epsilon {shown_epsilon(epsilon)}: {shown(found, '+')}")
    lines += ["", *(lost or ["none."]), ""]
    if unknown:
        every = len(study.names) * len(study.epsilons)
        lines += [f"Not to be told for {unknown} of {every}: fewer than two pairs.", ""]


def shown_spread(study: Study, lines: list[str]) -> None:
    for label, epsilon in [*((label, 1.0) for label in study.versions), (POOLED, None)]:
        found = [study.rows(name, epsilon, label).values() for name in study.names]
        repeated = [rows for rows in found if len(rows) > 1]
        stds = np.array([np.std([row["ari"] for row in rows], ddof=1) for rows in repeated])
        many = int((stds > UNSTEADY).sum())
        never = sum(all("refused" in row for row in rows) for rows in repeated)
        share = f" ({many / len(stds):.0%})" if len(stds) else ""
        steady = f"; {never} refused every time and count as steady" if never else ""
        where = "without privacy" if epsilon is None else f"at epsilon {epsilon:g}"
        lines.append(f"Standard deviation over seeds above {UNSTEADY:g} {where}, {label}: "
                     f"{many} of {len(stds)} sets{share}{steady}.")  # fmt: skip
        lines.append("")


def shown_costs(study: Study, lines: list[str]) -> None:
    which = "sets of at least 5,000 records and at most 50 columns"
    lines += [f"Cost ratios at epsilon 2, {which}; runs that refused do not count:", ""]
    shapes = {name: study.shape(name) for name in study.names}
    large = [n for n, s in shapes.items() if s is not None and s["n"] >= 5_000 and s["d"] <= 50]
    labels, rows = list(study.versions), []
    for name in large:
        rows.append([name, *(shown(study.ratios(name, 2.0, label)) for label in labels)])
    if not rows:
        lines += ["no such set.", ""]
        return
    for what, of in (("median", np.median), ("largest", np.max)):
        cells = [what]
        for label in labels:
            found = [study.ratios(name, 2.0, label) for name in large]
            every = [float(np.mean(ratios)) for ratios in found if ratios]
            cells.append(number(float(of(every))) if every else "-")
        rows.append(cells)
    table(lines, ["set", *labels], rows)


def shown_refusals(study: Study, lines: list[str]) -> None:
    reasons: dict[tuple[str, str, str], list[Row]] = {}
    for label in study.versions:
        for name in study.names:
            for epsilon in study.epsilons:
                for row in study.rows(name, epsilon, label).values():
                    if "refused" in row:
                        key = (label, name, shown_epsilon(epsilon))
                        reasons.setdefault(key, []).append(row)
    if reasons:
        lines += ["Refusals (they score 0, and have no cost), each with its first reason:", ""]
        for (label, name, epsilon), rows in reasons.items():
            lines.append(f"- {label}, {name}, epsilon {epsilon}: {len(rows)} of "
                         f"{len(study.seeds)}: {' '.join(rows[0]['refused'].split())}")  # fmt: skip
        lines.append("")


def report(study: Study, given: Any, sets: str, left_out: list[str]) -> str:
    versions = ", ".join(f"{label} {version}" for label, version in study.versions.items())
    lines = [
        f"# Frontier, {study.half} half", "",
        f"Seeds {study.seeds[0]} to {study.seeds[-1]}, {N_SITES} sites, delta {DELTA:g}, "
        f"{given.trust}, {given.device}. Sources: {versions}; sets {sets}. "
        "Adjusted Rand index: mean ± standard error over seeds.", "",
    ]  # fmt: skip
    if given.sets:
        lines += [f"Some sets only: {', '.join(study.names)}.", ""]
    lines += [f"Left out: {text}." for text in left_out] + ([""] if left_out else [])
    failed: dict[tuple[str, str, str], int] = {}
    for row in study.runs.errors:
        if row["half"] == study.half:
            key = (row["version"], row["set"], row["error"])
            failed[key] = failed.get(key, 0) + 1
    for (version, name, error), count in failed.items():
        lines.append(f"Failed, not counted: {count} runs of {name}, {version}: {error}.")
    lines += [""] if failed else []
    shown_tables(study, lines)
    shown_summary(study, lines)
    shown_refusals(study, lines)
    return "\n".join(lines).rstrip() + "\n"


def chosen(given: Any, parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the names asked for, by half."""
    halves = ["tuning", "judging"] if given.half == "both" else [given.half]
    asked = [name.strip() for name in given.sets.split(",")] if given.sets else None
    known = [name for half in halves for name in HALVES[half]]
    unknown = [name for name in asked or [] if name not in known]
    if unknown:
        parser.error(f"no such set in this half: {', '.join(unknown)}; known: {', '.join(known)}")
    return {h: [name for name in HALVES[h] if not asked or name in asked] for h in halves}


def epsilons(text: str) -> tuple[float | None, ...]:
    return tuple(None if word == "none" else float(word) for word in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=(*HALVES, "both"), default="tuning")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--epsilons", type=epsilons, default=EPSILONS, help="none,0.5,1 and so on")
    parser.add_argument("--old", type=Path, help="src folder of an older version")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--trust", choices=TRUST, default="secure-aggregation")
    parser.add_argument("--sets", help="names, with commas between them")
    parser.add_argument("--output", type=Path, default=Path("results/frontier"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work()
        return
    if given.old and not (given.old / "dpfedc").is_dir():
        parser.error(f"--old must be a src folder with dpfedc in it, got {given.old}")
    if given.seeds < 1 or given.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    names = chosen(given, parser)
    given.output.mkdir(parents=True, exist_ok=True)
    runs = Runs(given.output / "runs.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        make(given, names, runs, Path(folder))
    if runs.errors:
        sys.exit(f"{len(runs.errors)} runs failed")


def make(given: Any, names: dict[str, list[str]], runs: Runs, folder: Path) -> None:
    """Make the runs that are not there yet, and write what all of them say."""
    sources = {"old": given.old} if given.old else {}
    sources["new"] = HERE.parent.parent / "src"
    copies = {label: folder / label for label in sources}
    for label, source in sources.items():  # files may be edited while the study runs
        shutil.copytree(source, copies[label], ignore=shutil.ignore_patterns("__pycache__"))
    given.versions = {label: version_of(copy) for label, copy in copies.items()}
    sets = hashlib.sha256((HERE.parent / "frontier_sets.py").read_bytes()).hexdigest()[:12]
    common = {"sets": sets, "trust": given.trust, "device": given.device}
    for half, asked in names.items():
        there = [name for name in asked if not missing(name)]
        left_out = [f"{n} (no {' and '.join(missing(n))})" for n in asked if n not in there]
        found = Study(runs, half, there, given, common)
        for label, source in copies.items():
            versions = [given.versions[label], *([POOLED] if label == "new" else [])]
            jobs = [job for version in versions for job in found.jobs(version)]
            run_all([job for job in jobs if not runs.has(job)], source, given.jobs, runs)
        text = report(found, given, sets, left_out)
        (given.output / f"{half}.md").write_text(text)
        print(f"\n{text}")


if __name__ == "__main__":
    main()
