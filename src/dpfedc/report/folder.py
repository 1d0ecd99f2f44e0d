"""The folder of a run: model, centres, labels, run record and page, written together or not."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from dpfedc.errors import InvalidInput
from dpfedc.report.content import Outcome
from dpfedc.report.output_files import (
    nearest_folder,
    require_replaceable,
    require_writable,
    starts_with,
    write_centers,
    write_labels,
)
from dpfedc.report.page import PAGE_NAME, PICTURE_NAMES, ReportContent, write_report

RECORD_NAME, MODEL_NAME = "run.jsonl", "model.npz"
CENTERS_NAME, LABELS_NAME = "centres.csv", "labels.csv"
# The record comes first: it marks the folder as ours even if moving the rest is interrupted.
FILE_NAMES = (
    RECORD_NAME,
    MODEL_NAME,
    CENTERS_NAME,
    LABELS_NAME,
    PAGE_NAME,
    *(f"{name}.png" for name in PICTURE_NAMES),
)


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


def write_results(folder: Path, outcome: Outcome, content: ReportContent) -> Path:
    """Write all files of the run into `folder` and return the path of the page.

    They are made in a draft and then moved, so a failure to make them leaves an earlier run's
    results as they were. Pictures of an earlier run that this one does not have are removed.
    """
    model = outcome.model
    centers = model.cluster_centers
    names = model.feature_names or [f"x{f}" for f in range(centers.shape[1])]
    with TemporaryDirectory(dir=nearest_folder(folder), prefix=".dpfedc-") as home:
        draft = Path(home) / "run"
        write_report(draft, content)
        outcome.record.write(draft / RECORD_NAME)
        model.write(draft / MODEL_NAME)
        write_centers(draft / CENTERS_NAME, names, centers)
        write_labels(draft / LABELS_NAME, outcome.sites, outcome.labels)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILE_NAMES:
            if (draft / name).exists():
                (draft / name).replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    return folder / PAGE_NAME
