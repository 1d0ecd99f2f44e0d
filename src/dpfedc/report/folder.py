"""The folder of a run: its files, what may be replaced there, and the page made from them alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.report.output_files import (
    SHAREABLE_HEAD,
    Labels,
    centers_table,
    prototypes_table,
    read_sizes,
    require_replaceable,
    require_writable,
    starts_with,
)
from dpfedc.report.page import PAGE_NAME, report_content, write_report
from dpfedc.report.shareable import SHAREABLE_NAME, write_shareable
from dpfedc.report.summary_text import Reading
from dpfedc.whole_files import write_together

RECORD_NAME, MODEL_NAME = "run.jsonl", "model.npz"
CENTERS_NAME, PROTOTYPES_NAME, LABELS_NAME = "centres.csv", "prototypes.csv", "labels.csv"
PAGE_NAMES = (PAGE_NAME, SHAREABLE_NAME)
FILE_NAMES = (
    RECORD_NAME, MODEL_NAME, CENTERS_NAME, PROTOTYPES_NAME, LABELS_NAME, *PAGE_NAMES,
)  # fmt: skip


def require_results_folder(folder: Path, *, inputs: Iterable[Path] = ()) -> None:
    """Say why results cannot go into `folder`, before any time is spent on making them.

    A folder may hold other files, which stay. Files with the names of ours are replaced only if a
    run record lies among them, as in every folder that was written here, and never if the run
    reads them.
    """
    require_writable(folder)
    ours = [folder / name for name in FILE_NAMES if os.path.lexists(folder / name)]
    for path in ours:
        require_replaceable(path, inputs)
    if ours and not starts_with(folder / RECORD_NAME, '{"kind": "run"'):
        raise InvalidInput(
            f"the output must be a new folder or that of an earlier run, got {folder} with "
            f"another {ours[0].name}"
        )


def write_results(
    folder: Path,
    model: ClusterModel,
    record: RunRecord,
    labels: Labels,
) -> Path:
    """Write all files of the run into `folder` and return the path of the page.

    The run's own files come first, together, and take an earlier run's page away with them: if the
    page cannot be made, the run is not lost, and the page never is another run's. A page to share
    of an earlier run goes as well.
    """
    files = {
        # The record marks the folder as ours even if moving the rest is interrupted.
        RECORD_NAME: record.to_bytes(),
        MODEL_NAME: model.to_bytes(),
        **model_tables(model),
        LABELS_NAME: labels.to_bytes(),
    }
    gone = (*PAGE_NAMES, *({PROTOTYPES_NAME} - files.keys()))
    folder.mkdir(parents=True, exist_ok=True)
    write_together(folder, files, gone=gone, private=(LABELS_NAME,))
    return write_page(folder)


def model_tables(model: ClusterModel) -> dict[str, bytes]:
    """Return the tables of a model: its centres, and what they are made of if it is several."""
    found = {CENTERS_NAME: centers_table(model)}
    if model.prototypes is not None:
        found[PROTOTYPES_NAME] = prototypes_table(model)
    return found


def model_file(path: Path) -> Path:
    """Return the model that a path stands for: itself, or that of the run in a folder.

    A site's or a server's folder stands for its run, if it has one that is over.
    """
    if not path.is_dir():
        return path
    if (path / MODEL_NAME).exists():
        return path / MODEL_NAME
    runs = sorted(path.glob(f"runs/*/{MODEL_NAME}"))
    if len(runs) > 1:
        which = ", ".join(str(run.parent) for run in runs)
        raise InvalidInput(f"{path} must be the folder of one run, got those of several: {which}")
    if not runs:
        raise DataUnavailable(
            f"{path} must be the folder of a run that is over, got no {MODEL_NAME}"
        )
    return runs[0]


def read_clusters(path: Path) -> Reading:
    """Return the clusters of a model file or a run's folder, and what its record says of them."""
    file = model_file(path)
    record, results = file.with_name(RECORD_NAME), {}
    if file.name == MODEL_NAME and record.exists():
        results = dict(RunRecord.read(record).results)
    model = ClusterModel.read(file)
    return Reading.of(model.summary(), results, model.quality)


def name_cluster(path: Path, cluster: int, name: str) -> Path:
    """Name a cluster of a model file or a run's folder ("": take its name away).

    Other files of the run that are there are made anew. Returns the model's path.
    """
    file = model_file(path)
    model = ClusterModel.read(file).named(cluster, name)
    files, folder = {file.name: model.to_bytes()}, file.parent
    if file.name == MODEL_NAME and (folder / CENTERS_NAME).exists():
        files[CENTERS_NAME] = centers_table(model)
    write_together(folder, files)
    if file.name == MODEL_NAME and (folder / PAGE_NAME).exists():
        write_page(folder)
    if file.name == MODEL_NAME and starts_with(folder / SHAREABLE_NAME, SHAREABLE_HEAD):
        write_page_to_share(folder)
    return file


def write_page(folder: Path) -> Path:
    """Make the page of the run whose files lie in `folder`, and return its path.

    A deployed run has a model and a record. A trial has labels as well, which stay at the sites of
    a deployed one.
    """
    record = RunRecord.read(folder / RECORD_NAME)
    model = ClusterModel.read(folder / MODEL_NAME)
    labels = folder / LABELS_NAME
    sizes, names = read_sizes(labels, len(model.directions)) if labels.exists() else (None, None)
    return write_report(folder, report_content(model, record, sizes, names))


def write_page_to_share(folder: Path, output: Path | None = None) -> Path:
    """Make the page to share of the run in `folder`, there or at `output`; return its path."""
    record = RunRecord.read(folder / RECORD_NAME)
    model = ClusterModel.read(folder / MODEL_NAME)
    return write_shareable(output or folder / SHAREABLE_NAME, model, record)
