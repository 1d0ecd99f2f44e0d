"""The folder of a run: its files, what may be replaced there, and the page made from them alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.report.content import report_content
from dpfedc.report.output_files import (
    Labels,
    centers_table,
    read_sizes,
    require_replaceable,
    require_writable,
    starts_with,
)
from dpfedc.report.page import PAGE_NAME, PICTURE_NAMES, write_report
from dpfedc.whole_files import write_together

RECORD_NAME, MODEL_NAME = "run.jsonl", "model.npz"
CENTERS_NAME, LABELS_NAME = "centres.csv", "labels.csv"
PAGE_NAMES = (PAGE_NAME, *(f"{name}.png" for name in PICTURE_NAMES))
FILE_NAMES = (RECORD_NAME, MODEL_NAME, CENTERS_NAME, LABELS_NAME, *PAGE_NAMES)


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
    page cannot be made, the run is not lost, and the page never is another run's.
    """
    files = {
        # The record marks the folder as ours even if moving the rest is interrupted.
        RECORD_NAME: record.to_bytes(),
        MODEL_NAME: model.to_bytes(),
        CENTERS_NAME: centers_table(model),
        LABELS_NAME: labels.to_bytes(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_together(folder, files, gone=PAGE_NAMES, private=(LABELS_NAME,))
    return write_page(folder)


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
