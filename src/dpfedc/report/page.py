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
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.records import RunRecord
from dpfedc.report import figures

Row = tuple[str, str | float | None, str | float | None]
"""The name of a metric, its value in this run, and the reference; None is shown as a dash."""

PAGE_NAME = "report.html"
PICTURE_NAMES = ("objective", "accuracy", "centres", "sizes")


@dataclass(frozen=True, eq=False)
class ReportContent:
    """All that the page says. Every text is shown as it is: no markup, no formulas.

    `centres` is (clusters x features) and `sizes` (sites x clusters); leave out what must not be
    shown. `how_made` is the command that made the run.
    """

    title: str
    record: RunRecord
    summary: Sequence[str] = ()
    privacy: Sequence[str] = ()
    table_head: tuple[str, str, str] = ("metric", "this run", "reference")
    table_rows: Sequence[Row] = ()
    table_caption: str = "Results"
    centres: npt.ArrayLike | None = None
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
    if content.centres is not None:
        centres = np.asarray(content.centres)
        png = figures.centres_figure(centres, content.image_shape, content.feature_names)
        view = figures.centres_view(centres.shape[1], content.image_shape)
        what = f"The {centres.shape[0]} centres with {centres.shape[1]:,} features each"
        caption = f"{what}, {_CENTRES_SHOWN[view]}."
        yield _Picture("centres", "Cluster centres", png, caption, caption)
    if content.sizes is not None:
        sizes = np.asarray(content.sizes)
        png = figures.sizes_figure(sizes, content.site_names)
        totals = [_value(total) for total in (sizes.sum(axis=1).min(), sizes.sum(axis=1).max())]
        what = f"sites: {len(sizes):,}, records per site: {totals[0]} to {totals[1]}"
        alt = f"Stacked bars, one per site, one colour per cluster; {what}."
        caption = f"Each bar is a site, each colour a cluster; {what}."
        yield _Picture("sizes", "Cluster sizes per site", png, alt, caption)


_CENTRES_SHOWN = {
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
    privacy = [f"<p>{escape(text)}</p>" for text in content.privacy]
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
        _section("Privacy", "\n".join(privacy), kind="privacy"),
        _section("Results", _results(content)),
        _section("Figures", "".join(_figure(p) for p in pictures), kind="figures"),
        _section("Settings", _settings(record.settings)),
        _section("How this was made", command),
    ]
    lines = "\n".join(line for line in body if line)
    return _PAGE.substitute(title=escape(content.title), style=_STYLE, body=lines)


def _section(heading: str, inside: str, kind: str = "plain") -> str:
    """Return a section, or nothing if there is nothing inside."""
    if not inside:
        return ""
    return f'<section class="{kind}">\n<h2>{escape(heading)}</h2>\n{inside}\n</section>'


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


_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
$style</style></head>
<body><main>
$body
</main></body></html>
""")

_STYLE = """\
:root { color-scheme: light dark; --paper: #f6f8fa; --card: #fff; --ink: #1f2933; --soft: #56626c;
  --rule: #d5dce2; --accent: #0b62a4; --tint: #eaf3fa; --note: #7a4a00; --note-tint: #fff4dc; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #14191e; --card: #1c232a; --ink: #e4e9ed; --soft: #a3b0ba; --rule: #36414b;
    --accent: #6cb4ea; --tint: #17293a; --note: #f2c879; --note-tint: #3a2e14; }
  img { padding: .6rem; } }
* { box-sizing: border-box; } section { margin-top: 2.25rem; } p { margin: 0 0 .6rem; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: clamp(1rem, 4vw, 3rem); }
header, table, pre, .privacy { max-width: 48rem; }
h1 { font-size: clamp(1.5rem, 1.1rem + 2vw, 2.25rem); line-height: 1.2; margin: 0; }
h2 { font-size: 1.25rem; line-height: 1.3; } h3 { font-size: 1rem; } h2, h3 { margin: 0 0 .75rem; }
.made { color: var(--soft); margin: .35rem 0 1rem; } .summary { font-size: 1.0625rem; }
.stamps { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; margin: 0 0 1rem;
  padding: 0; }
.stamps li { background: var(--note-tint); color: var(--note); border: 1px solid currentcolor;
  border-radius: 1rem; padding: .1rem .75rem; font-size: .875rem; font-weight: 600; min-width: 0; }
.privacy { background: var(--tint); border-left: .3rem solid var(--accent); border-radius: .4rem;
  padding: 1.1rem 1.25rem .6rem; }
.privacy h2, summary { color: var(--accent); } .wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .45rem 0 .45rem .75rem; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: top; font-weight: 400; }
th:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-size: .875rem; border-bottom-width: 2px; }
.settings td { overflow-wrap: anywhere; min-width: 6rem; } .settings * { text-align: left; }
.figures { display: grid; gap: 1.25rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.figures h2 { grid-column: 1 / -1; margin: 0; }
figure, pre { margin: 0; padding: clamp(.75rem, 2vw, 1.25rem); background: var(--card);
  border: 1px solid var(--rule); border-radius: .5rem; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff;
  border-radius: .25rem; }
figcaption { color: var(--soft); font-size: .875rem; line-height: 1.5; margin-top: .75rem; }
summary { cursor: pointer; margin-bottom: .75rem; width: fit-content; }
pre { white-space: pre-wrap; font-size: .875rem; }
pre span { display: inline-block; max-width: 100%; }
@media print {
  :root { --paper: #fff; } main { max-width: none; padding: 0; }
  figure, tr, .privacy, pre { break-inside: avoid; } h2, h3, caption { break-after: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; } }
"""
