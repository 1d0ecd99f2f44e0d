"""Runs the cells of an experiment: in parallel, resumable, each cell on its own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

from dpfedc import __version__
from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import DataUnavailable
from dpfedc.kernels.metrics import scores
from dpfedc.research.datasets import LOADERS, Dataset, load
from dpfedc.research.experiments.compared_methods import METHODS, estimator, variant_setting
from dpfedc.research.experiments.experiment_spec import Cell, DataSpec, Experiment
from dpfedc.research.experiments.results import Folder
from dpfedc.research.partition import iid, kmeans_cells, label_shards
from dpfedc.research.theory import heterogeneity

DELTA = 1e-4
"""The paper's delta, for all methods."""
_POOLED_STARTS = 10


@dataclass(frozen=True)
class Progress:
    """How far a run has come, after a cell: `error` is empty if the cell is finished."""

    n_done: int
    n_cells: int
    cell: Cell
    error: str = ""


@dataclass(frozen=True)
class Summary:
    """What became of the cells: already there, finished now, failed, or without data."""

    n_cells: int
    n_found: int
    n_finished: int
    n_failed: int
    skipped: Mapping[str, str]
    """The reason for every data set that is not available."""


Done = tuple[Cell, RunRecord | None, dict[str, float], str]
"""A cell with its record and scores, or with the error that stopped it."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    quick: bool = False,
    jobs: int = 1,
    on_cell: Callable[[Progress], None] | None = None,
    command: str = "",
) -> Summary:
    """Run the cells that are not finished yet and add each to the folder as soon as it is.

    Results do not depend on `jobs`: a cell has its own seed and one BLAS thread. An interruption
    loses the cells that were running, and nothing else.
    """
    cells = experiment.quick_cells if quick else experiment.cells
    manifest = {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "shown": experiment.shown,
        "quick": quick,
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "version": __version__,
        "seeds": sorted({cell.seed for cell in cells}),
        "data": sorted({cell.data.name for cell in cells}),
        "n_cells": len(cells),
    }
    output = Folder.opened(folder, manifest)
    found = output.finished()
    skipped = _unavailable({cell.data for cell in cells})
    available = [cell for cell in cells if cell.data.name not in skipped]
    todo = [cell for cell in available if cell.id not in found]
    n_done = n_found = len(available) - len(todo)
    n_failed = 0
    for cell, record, measured, error in _outcomes(todo, experiment.track, jobs):
        if record is None:
            output.add_failure(cell, error)
            n_failed += 1
        else:
            output.add(cell, record, measured)
        n_done += 1
        if on_cell is not None:
            on_cell(Progress(n_done, len(available), cell, error))
    return Summary(len(cells), n_found, len(todo) - n_failed, n_failed, skipped)


def run_cell(cell: Cell, track: str = "nothing") -> tuple[RunRecord, dict[str, float]]:
    """Return the run record of a cell and its scores, with the seconds that the fit took."""
    track = cell.track or track
    data = _dataset(cell.data, cell.seed)
    sites = _sites(cell.data, cell.partition, cell.seed)
    shared: dict[str, Any] = {
        "n_clusters": cell.data.n_clusters,
        "delta": DELTA,
        "trust": cell.trust or "local",
        "sites_per_round": cell.sites_per_round,
        "random_state": cell.seed,
        "diagnostics": track != "nothing",
    }
    if cell.variant in METHODS[cell.method].variants:
        shared |= variant_setting(cell.variant)
    if cell.method == "pooled-k-means":
        shared["n_init"] = _POOLED_STARTS
    model = estimator(cell.method, shared, dict(cell.settings), cell.epsilon)
    truth = data.y if track == "objective and accuracy" else None
    federated = {"sites": sites} if cell.method != "pooled-k-means" else {}
    start = time.perf_counter()
    model.fit(data.X, truth, **federated)
    seconds = time.perf_counter() - start
    found = scores(data.X, model.labels_, data.y)
    record = _record(cell, model)
    results: dict[str, Any] = {"scores": found}
    if cell.variant == "published":
        results["heterogeneity"] = _heterogeneity(model, data.X, sites)
    experiment = {
        "partition": cell.partition,
        "data": asdict(cell.data),
        "cell_settings": dict(cell.settings),
    }
    settings = {**record.settings, **experiment}
    stamps = (*record.stamps, *cell.stamps)
    record = replace(record, settings=settings, stamps=stamps).with_exact(**results)
    return record, {**found, "seconds": seconds}


def _record(cell: Cell, model: Any) -> RunRecord:
    """Return the estimator's record; pooled k-means has none, so one without rounds is made."""
    history = getattr(model, "history_", None)
    if isinstance(history, RunRecord):
        return history
    settings = {"n_clusters": cell.data.n_clusters, "random_state": cell.seed}
    return RunRecord(cell.method, __version__, settings)


def _heterogeneity(model: Any, X: npt.NDArray[Any], sites: npt.NDArray[np.int64]) -> float:
    """Return zeta at the final centres, with the memberships that go with them."""
    order = np.argsort(sites, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(sites))])
    H, W = model.model_.memberships(X), model.model_.directions.astype(X.dtype)
    return heterogeneity(X[order], W, H[order], offsets)


def _outcomes(cells: Sequence[Cell], track: str, jobs: int) -> Iterator[Done]:
    """Yield what became of the cells, in their order, as they are done."""
    if jobs == 1 or len(cells) < 2:
        yield from (_attempt(cell, track) for cell in cells)
        return
    with parallel_config("loky", inner_max_num_threads=1):
        run = Parallel(n_jobs=min(jobs, len(cells)), return_as="generator", pre_dispatch="n_jobs")
        yield from run(delayed(_attempt)(cell, track) for cell in cells)


def _attempt(cell: Cell, track: str) -> Done:
    """Return the outcome of a cell: whatever goes wrong in it must not stop the others."""
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Poor utility and overflows are what some cells are there to show.
        warnings.simplefilter("ignore")
        try:
            record, measured = run_cell(cell, track)
        except Exception as error:
            return cell, None, {}, f"{type(error).__name__}: {' '.join(str(error).split())}"
    return cell, record, measured, ""


def _unavailable(specs: set[DataSpec]) -> dict[str, str]:
    """Return the reason for every data set that cannot be loaded."""
    reasons = {}
    for name in sorted({spec.name for spec in specs}):
        try:
            LOADERS[name]()
        except DataUnavailable as error:
            reasons[name] = str(error)
    return reasons


@lru_cache(maxsize=2)
def _dataset(spec: DataSpec, seed: int) -> Dataset:
    """Return the records: the seed draws the subset where one is asked for."""
    options = {} if spec.n_records is None else {"n_records": spec.n_records, "seed": seed}
    data = load(spec.name, **options)
    return data if spec.unit == 1 else replace(data, X=data.X * np.float32(spec.unit))


@lru_cache(maxsize=4)
def _sites(spec: DataSpec, partition: str, seed: int) -> npt.NDArray[np.int64]:
    """Return the site of each record: the same for all methods of one seed."""
    data = _dataset(spec, seed)
    rng = np.random.default_rng(seed)
    if partition == "iid":
        return iid(len(data.X), spec.n_sites, rng=rng)
    if spec.non_iid == "two-labels":
        labels = np.zeros(len(data.X)) if data.y is None else data.y
        return label_shards(labels, spec.n_sites, 2, rng=rng)
    return kmeans_cells(data.X, spec.n_sites, rng=rng)
