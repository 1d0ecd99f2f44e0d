"""One self-contained page about a run: `report.html` and its pictures, written together or not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.privacy.statement import NOT_COVERED, split_subject
from dpfedc.report import figures
from dpfedc.report.markup import Picture, Table, rendered, shown
from dpfedc.whole_files import write_together

PAGE_NAME = "report.html"
PICTURE_NAMES = ("objective", "accuracy", "centres", "sizes")


@dataclass(frozen=True, eq=False)
class ReportContent:
    """All that the page says. Every text is shown as it is: no markup, no formulas.

    A paragraph on privacy starts with its subject and a colon; the table of stages stands below.
    `centres` is (clusters x features) and `sizes` (sites x clusters); leave out what must not be
    shown. `how_made` is the command that made the run.
    """

    title: str
    record: RunRecord
    summary: Sequence[str] = ()
    privacy: Sequence[str] = ()
    stages: Table | None = None
    scores: Table | None = None
    centers: npt.ArrayLike | None = None
    image_shape: Sequence[int] | None = None
    feature_names: Sequence[str] | None = None
    sizes: npt.ArrayLike | None = None
    site_names: Sequence[str] | None = None
    reference_accuracy: float | None = None
    how_made: str = ""


def write_report(folder: Path, content: ReportContent) -> Path:
    """Write the page and its pictures into `folder` and return the path of the page.

    Everything is made in memory first: if anything about the content is wrong, nothing is written.
    Pictures of an earlier report in the same folder that this one does not have are removed, so
    that nothing of an old run is passed on with a new one.
    """
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"folder must be a directory, got the file {folder}")
    pictures = list(_pictures(content))
    files = {picture.source: picture.png for picture in pictures}
    files[PAGE_NAME] = _page(content, pictures)
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / PAGE_NAME
    old = {f"{name}.png" for name in PICTURE_NAMES} - files.keys() if page.exists() else ()
    write_together(folder, files, gone=old)
    return page


def _pictures(content: ReportContent) -> Iterator[Picture]:
    """Return the pictures for which there are data, in the order of the page."""
    yield from _series_picture(content.record, "objective", "What the method minimises", None)
    what = "Share of records whose cluster matches their label"
    yield from _series_picture(content.record, "accuracy", what, content.reference_accuracy)
    if content.centers is not None:
        centers = np.asarray(content.centers)
        png = figures.centers_figure(centers, content.image_shape, content.feature_names)
        view = figures.centers_view(centers.shape[1], content.image_shape)
        what = f"The {centers.shape[0]} centres with {centers.shape[1]:,} features each"
        caption = f"{what}, {_CENTERS_SHOWN[view]}."
        yield Picture("centres.png", "Cluster centres", png, caption, caption)
    if content.sizes is not None:
        sizes = np.asarray(content.sizes)
        png = figures.sizes_figure(sizes, content.site_names)
        totals = [shown(total) for total in (sizes.sum(axis=1).min(), sizes.sum(axis=1).max())]
        what = f"sites: {len(sizes):,}, records per site: {totals[0]} to {totals[1]}"
        alt = f"Stacked bars, one per site, one colour per cluster; {what}."
        caption = f"Each bar is a site, each colour a cluster; {what}."
        yield Picture("sizes.png", "Cluster sizes per site", png, alt, caption)


_CENTERS_SHOWN = {
    "pictures": "drawn as pictures on one common scale; the number above each is its cluster",
    "table": "one column per cluster; each row runs from its lowest value (light) to its highest "
    "(dark)",
    "map": "one row per cluster on one common colour scale; rare extreme values share its ends",
}


def _series_picture(
    record: RunRecord, name: str, what: str, reference: float | None
) -> Iterator[Picture]:
    """Return the picture of a diagnostic, if any round has a finite value of it."""
    pairs = [pair for pair in zip(*record.series(name), strict=True) if math.isfinite(pair[1])]
    if not pairs:
        return
    rounds, values = [t for t, _ in pairs], [value for _, value in pairs]
    spans = _stage_spans(record)
    png = figures.line_figure(
        rounds, values, label=name, spans=spans, reference=reference, from_zero=name == "accuracy"
    )
    ends = [f"{shown(values[i], 3)} in round {rounds[i]}" for i in (0, -1)]
    course = ends[0] if len(pairs) == 1 else f"from {ends[0]} to {ends[1]}"
    line = "" if reference is None else f" Dashed: k-means on pooled data, {shown(reference, 3)}."
    better = "Lower" if name == "objective" else "Higher"
    where = [f"{s} ({a})" if a == b else f"{s} ({a} to {b})" for s, a, b in spans]
    stages = f" Stages and their rounds: {', '.join(where)}." if len(where) > 1 else ""
    exact = "Exact values of a simulation; deployed sites never send them."
    caption = f"{what}, {course}. {better} is better.{line}{stages} {exact}"
    alt = f"Line chart of the {name} per round: {course}.{line}"
    yield Picture(f"{name}.png", f"{name.capitalize()} per round", png, alt, caption)


def _stage_spans(record: RunRecord) -> list[figures.Span]:
    """Return the stages with their first and last rounds, numbered as in `RunRecord.series`."""
    numbered = groupby(enumerate((r.stage for r in record.rounds), start=1), key=lambda p: p[1])
    groups = [(name, [t for t, _ in pairs]) for name, pairs in numbered]
    return [(name, rounds[0], rounds[-1]) for name, rounds in groups]


def _page(content: ReportContent, pictures: Sequence[Picture]) -> bytes:
    settings = Table(
        "All settings of the run",
        ("setting", "value"),
        list(_flat(content.record.settings)),
        summary="Show all settings",
    )
    pairs = [split_subject(paragraph) for paragraph in content.privacy]
    return rendered(
        "run.html",
        title=content.title,
        record=content.record,
        summary=content.summary,
        privacy=[(subject, rest, subject.startswith(NOT_COVERED)) for subject, rest in pairs],
        stages=content.stages,
        scores=content.scores,
        pictures=pictures,
        settings=settings,
        how_made=content.how_made,
    )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return names and exact values; a name inside another is joined to it by a dot."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{prefix}{name}", "none" if value is None else text
