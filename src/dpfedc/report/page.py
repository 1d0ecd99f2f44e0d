"""One self-contained page about a run: `report.html` and its pictures, written together or not."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.privacy.statement import NOT_COVERED, split_subject
from dpfedc.report import figures
from dpfedc.report.style import PAGE, STYLE

Row = tuple[str, str | float | None, str | float | None]
"""The name of a metric, its value in this run, and the reference; None is shown as a dash."""

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
    stage_head: Sequence[str] = ()
    stage_rows: Sequence[Sequence[str]] = ()
    stage_caption: str = "Stages"
    table_head: tuple[str, str, str] = ("metric", "this run", "reference")
    table_rows: Sequence[Row] = ()
    table_caption: str = "Results"
    centers: npt.ArrayLike | None = None
    image_shape: Sequence[int] | None = None
    feature_names: Sequence[str] | None = None
    sizes: npt.ArrayLike | None = None
    site_names: Sequence[str] | None = None
    reference_accuracy: float | None = None
    how_made: str = ""


@dataclass(frozen=True)
class _Picture:
    """A PNG file with the words that stand for it and under it."""

    name: str
    heading: str
    png: bytes
    alt: str
    caption: str


def write_report(folder: Path, content: ReportContent) -> Path:
    """Write the page and its pictures into `folder` and return the path of the page.

    Everything is made in memory first: if anything about the content is wrong, nothing is written.
    Pictures of an earlier report in the same folder that this one does not have are removed, so
    that nothing of an old run is passed on with a new one.
    """
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"folder must be a directory, got the file {folder}")
    pictures = list(_pictures(content))
    files = {f"{picture.name}.png": picture.png for picture in pictures}
    files[PAGE_NAME] = _page(content, pictures).encode()
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / PAGE_NAME
    # A full disk is met in the draft, not half way through the files of an earlier report.
    with TemporaryDirectory(dir=folder, prefix=".report-") as draft:
        for name, data in files.items():
            (Path(draft) / name).write_bytes(data)
        if page.exists():
            for name in {f"{name}.png" for name in PICTURE_NAMES} - files.keys():
                (folder / name).unlink(missing_ok=True)
        for name in files:
            (Path(draft) / name).replace(folder / name)
    return page


def _pictures(content: ReportContent) -> Iterator[_Picture]:
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
        yield _Picture("centres", "Cluster centres", png, caption, caption)
    if content.sizes is not None:
        sizes = np.asarray(content.sizes)
        png = figures.sizes_figure(sizes, content.site_names)
        totals = [_value(total) for total in (sizes.sum(axis=1).min(), sizes.sum(axis=1).max())]
        what = f"sites: {len(sizes):,}, records per site: {totals[0]} to {totals[1]}"
        alt = f"Stacked bars, one per site, one colour per cluster; {what}."
        caption = f"Each bar is a site, each colour a cluster; {what}."
        yield _Picture("sizes", "Cluster sizes per site", png, alt, caption)


_CENTERS_SHOWN = {
    "pictures": "drawn as pictures on one common scale; the number above each is its cluster",
    "table": "one column per cluster; each row runs from its lowest value (light) to its highest "
    "(dark)",
    "map": "one row per cluster on one common colour scale; rare extreme values share its ends",
}


def _series_picture(
    record: RunRecord, name: str, what: str, reference: float | None
) -> Iterator[_Picture]:
    """Return the picture of a diagnostic, if any round has a finite value of it."""
    pairs = [pair for pair in zip(*record.series(name), strict=True) if math.isfinite(pair[1])]
    if not pairs:
        return
    rounds, values = [t for t, _ in pairs], [value for _, value in pairs]
    spans = _stage_spans(record)
    png = figures.line_figure(
        rounds, values, label=name, spans=spans, reference=reference, from_zero=name == "accuracy"
    )
    ends = [f"{_value(values[i], 3)} in round {rounds[i]}" for i in (0, -1)]
    course = ends[0] if len(pairs) == 1 else f"from {ends[0]} to {ends[1]}"
    line = "" if reference is None else f" Dashed: k-means on pooled data, {_value(reference, 3)}."
    better = "Lower" if name == "objective" else "Higher"
    where = [f"{s} ({a})" if a == b else f"{s} ({a} to {b})" for s, a, b in spans]
    stages = f" Stages and their rounds: {', '.join(where)}." if len(where) > 1 else ""
    exact = "Exact values of a simulation; deployed sites never send them."
    caption = f"{what}, {course}. {better} is better.{line}{stages} {exact}"
    alt = f"Line chart of the {name} per round: {course}.{line}"
    yield _Picture(name, f"{name.capitalize()} per round", png, alt, caption)


def _stage_spans(record: RunRecord) -> list[figures.Span]:
    """Return the stages with their first and last rounds, numbered as in `RunRecord.series`."""
    numbered = groupby(enumerate((r.stage for r in record.rounds), start=1), key=lambda p: p[1])
    groups = [(name, [t for t, _ in pairs]) for name, pairs in numbered]
    return [(name, rounds[0], rounds[-1]) for name, rounds in groups]


def _page(content: ReportContent, pictures: Sequence[_Picture]) -> str:
    record = content.record
    stamps = "".join(f"<li>{escape(stamp)}</li>" for stamp in record.stamps)
    # A word of the command is not to be broken at its hyphens.
    words = re.sub(r"\S+", lambda word: f"<span>{escape(word[0])}</span>", content.how_made)
    command = f"<pre><code>{words}</code></pre>" if words else ""
    body = [
        "<header>",
        f"<h1>{escape(content.title)}</h1>",
        f'<p class="made">{escape(record.method)}, dpfedc {escape(record.version)}</p>',
        f'<ul class="stamps" aria-label="Notes on this run">{stamps}</ul>' if stamps else "",
        *(f'<p class="summary">{escape(sentence)}</p>' for sentence in content.summary),
        "</header>",
        _section("Privacy", _privacy(content), kind="privacy"),
        _section("Results", _results(content)),
        _section("Figures", "".join(_figure(p) for p in pictures), kind="figures"),
        _section("Settings", _settings(record.settings)),
        _section("How this was made", command),
    ]
    lines = "\n".join(line for line in body if line)
    return PAGE.substitute(title=escape(content.title), style=STYLE, body=lines)


def _section(heading: str, inside: str, kind: str = "plain") -> str:
    """Return a section, or nothing if there is nothing inside."""
    if not inside:
        return ""
    return f'<section class="{kind}">\n<h2>{escape(heading)}</h2>\n{inside}\n</section>'


def _privacy(content: ReportContent) -> str:
    """Return the promise; what it does not cover is in red."""
    lines = []
    for paragraph in content.privacy:
        subject, rest = split_subject(paragraph)
        kind = ' class="open"' if subject.startswith(NOT_COVERED) else ""
        lead = f"<strong>{escape(subject)}:</strong> " if subject else ""
        lines.append(f"<p{kind}>{lead}{escape(rest)}</p>")
    if content.stage_rows:
        lines.append(
            _table(content.stage_caption, content.stage_head, content.stage_rows, "stages")
        )
    return "\n".join(lines)


def _results(content: ReportContent) -> str:
    rows = [(name, _value(value), _value(other)) for name, value, other in content.table_rows]
    return _table(content.table_caption, content.table_head, rows, "results") if rows else ""


def _settings(settings: Mapping[str, Any]) -> str:
    rows = list(_flat(settings))
    table = _table("All settings of the run", ("setting", "value"), rows, "settings")
    return f"<details><summary>Show all settings</summary>\n{table}\n</details>" if rows else ""


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], kind: str) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = ""
    for name, *cells in rows:
        inside = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines += f'<tr><th scope="row">{escape(name)}</th>{inside}</tr>\n'
    return (
        f'<div class="wide"><table class="{kind}">\n<caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>\n{lines}</tbody>\n</table></div>"
    )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return names and exact values; a name inside another is joined to it by a dot."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{prefix}{name}", "none" if value is None else text


def _figure(picture: _Picture) -> str:
    pixels = struct.unpack(">II", picture.png[16:24])
    width, height = (n // figures.PIXELS_PER_POINT for n in pixels)
    return (
        f"<figure><h3>{escape(picture.heading)}</h3>\n"
        f'<img src="{picture.name}.png" width="{width}" height="{height}" '
        f'alt="{escape(picture.alt)}">\n'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>\n"
    )


def _value(value: str | float | None, digits: int = 4) -> str:
    """Return a number in so many figures, a text as it is, and nothing as a dash."""
    if isinstance(value, str):
        return value
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    if isinstance(value, Integral) or abs(value) >= 1000:
        return f"{value:,.0f}"
    # Zeros at the end are kept, so that the numbers of a column line up.
    return f"{value:#.{digits}g}".rstrip(".") if abs(value) >= 0.001 else f"{value:.{digits}g}"
