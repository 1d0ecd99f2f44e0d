"""The page about a run, in one file: its clusters first, then what is promised, then the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.engine.run_record import EXACT, RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.statement import NOT_COVERED, split_subject
from dpfedc.report.content import summary_sentences
from dpfedc.report.exact_values import ExactValues, exact_values
from dpfedc.report.groups import Groups, groups_of
from dpfedc.report.line_charts import LineChart, line_chart
from dpfedc.report.markup import Table, rendered
from dpfedc.report.promise import (
    STAGES_HEAD,
    privacy_in_short,
    privacy_paragraphs,
    stage_rows,
    stages_caption,
)
from dpfedc.report.summary_text import Reading
from dpfedc.whole_files import write_whole

PAGE_NAME = "report.html"

_MOVED = (
    "How far the released centres moved in each round, over how far they are apart. Where the line "
    "comes down to 0 the run settled. Where it stays high, noise moves the centres from round to "
    "round."
)
_MOVED_COSTS = " The verdict says what that costs."


@dataclass(frozen=True, eq=False)
class ReportContent:
    """All that the page says. Every text is shown as it is: no markup, no formulas.

    A paragraph on privacy starts with its subject and a colon. `how_made` is the command that made
    the run.
    """

    title: str
    record: RunRecord
    summary: Sequence[str]
    reading: Reading
    groups: Groups
    privacy: Sequence[str] = ()
    details: Sequence[str] = ()
    stages: Table | None = None
    movement: LineChart | None = None
    exact: ExactValues | None = None
    how_made: str = ""


def report_content(
    model: ClusterModel,
    record: RunRecord,
    sizes: npt.ArrayLike | None = None,
    site_names: Sequence[str] | None = None,
) -> ReportContent:
    """Return the content of the page about a run; `sizes` is (sites x clusters) where known."""
    results, stages = record.results, stage_rows(record)
    reading = Reading.of(model.summary(), results, model.quality)
    moved = [(t, r.moved) for t, r in enumerate(record.rounds, start=1) if r.moved is not None]
    return ReportContent(
        title=results.get("title") or f"Clusters by {record.method}",
        record=record,
        summary=summary_sentences(record, model),
        reading=reading,
        groups=groups_of(model, reading.summary, results.get("image_shape")),
        privacy=privacy_in_short(record),
        details=privacy_paragraphs(record),
        stages=Table(stages_caption(record), STAGES_HEAD, stages) if stages else None,
        movement=line_chart(
            record,
            moved,
            heading="Did it settle?",
            what="the movement of centres",
            caption=_MOVED + _MOVED_COSTS * (reading.verdict is not None),
        ),
        exact=exact_values(record, sizes, site_names),
        how_made=results.get("command", ""),
    )


def write_report(folder: Path, content: ReportContent) -> Path:
    """Write the page into `folder` and return its path."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"folder must be a directory, got the file {folder}")
    page = _page(content)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PAGE_NAME, page)
    return folder / PAGE_NAME


def _page(content: ReportContent) -> bytes:
    settings = Table(
        "All settings of the run",
        ("setting", "value"),
        list(_flat(content.record.settings)),
        summary="Show all settings",
    )
    return rendered(
        "run.html",
        content=content,
        stamps=[stamp for stamp in content.record.stamps if stamp != EXACT],
        privacy=with_subjects(content.privacy),
        details=with_subjects(content.details) if len(content.details) > 1 else [],
        settings=settings,
    )


def with_subjects(paragraphs: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Return subject and rest of each paragraph, and whether it says what is not covered."""
    pairs = [split_subject(paragraph) for paragraph in paragraphs]
    return [(subject, rest, subject.startswith(NOT_COVERED)) for subject, rest in pairs]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return names and values; a name inside another is joined to it by a dot."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, float) and math.isfinite(value):
            text = np.format_float_positional(value, precision=10, fractional=False, trim="-")
            yield f"{prefix}{name}", text
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{prefix}{name}", "none" if value is None else text
