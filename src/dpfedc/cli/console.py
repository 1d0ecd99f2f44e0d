"""What the user sees: a bar while rounds run, tables of results, plain sentences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from dpfedc.errors import printable
from dpfedc.privacy.statement import NOT_COVERED, split_subject
from dpfedc.summary.number_text import shown

if TYPE_CHECKING:
    from dpfedc.model_file import ClusterModel
    from dpfedc.summary.cluster_quality import ClusterQuality
    from dpfedc.tables.check import Report

_WIDE = 60
"""From so many columns on, the subject of a paragraph stands beside it."""


@contextmanager
def progress_bar(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on the terminal, from the first news on; hand out what to tell (done, total).

    It goes to stderr, and only if that is a terminal.
    """
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task(what, total=None)

    def tell(done: int, total: int) -> None:
        if console.is_terminal:
            bar.start()
            bar.update(task, completed=done, total=total)

    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal that something is being done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"{what} ..."):
        yield


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], *, words: bool = False
) -> None:
    """Print a table: names on the left, values on the right, unless they are words."""
    table = Table(box=box.ROUNDED, header_style="bold")
    for i, name in enumerate(head):
        right = i > 0 and not words
        table.add_column(showable(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    Console().print(table)


def print_reports(reports: Sequence[Report], *, quiet: bool = False) -> None:
    """Print what was found in one or more tables; `quiet`: only what is worth a look."""
    marks = {"ok": "", "warning": "look at this", "error": "cannot be used"}
    rows = [
        (Path(report.where).name, finding.column, finding.text, marks[finding.severity])
        for report in reports
        for finding in report.findings
        if marks[finding.severity] or not quiet
    ]
    if rows:
        print_table(("table", "column", "found", ""), rows, words=True)


def print_sizes(rows: Sequence[Mapping[str, object]], unit: str) -> None:
    """Print a table with a row per cluster; `unit` is what lies in them."""
    head = tuple(f"{unit}s" if name == "records" else name for name in rows[0])
    print_table(head, [tuple(row.values()) for row in rows])


def print_sentence(text: str, *, style: str = "") -> None:
    """Print a sentence, broken between words where the line ends."""
    Console(highlight=False).print(showable(text), style=style, markup=False)


def showable(text: str) -> str:
    """Return text with only letters that the output has; others have a say in what is printed."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, errors="backslashreplace").decode(encoding)


def print_paragraphs(paragraphs: Iterable[str]) -> None:
    """Print paragraphs with their subjects in bold, beside them if the terminal is wide enough.

    What a promise does not cover is in red.
    """
    console = Console(highlight=False)
    pairs = [split_subject(showable(text)) for text in paragraphs]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=max((len(subject) for subject, _ in pairs), default=0))
    grid.add_column(overflow="fold")  # a long word, such as a digest, is shown whole
    for i, (subject, rest) in enumerate(pairs):
        style = "red" if subject.startswith(NOT_COVERED) else ""
        if console.width >= _WIDE:
            grid.add_row(Text(subject, style=f"bold {style}"), Text(rest, style=style))
        else:
            lead = (f"{subject}: ", f"bold {style}") if subject else ""
            console.print(Text.assemble("\n" if i else "", lead, (rest, style)))
    console.print(grid, end="\n" if grid.rows else "")


def confirmed(question: str) -> bool:
    """Return whether somebody is there and says yes."""
    try:
        return typer.confirm(question)
    except typer.Abort:  # nobody is there to ask
        return False


def print_path(what: str, path: Path) -> None:
    """Print where something is; the path is never broken, so that it can be copied."""
    text = showable(f"{what}: {path}")
    Console(highlight=False).print(text, markup=False, soft_wrap=True)


def _cell(value: object) -> Text:
    """Return a value as text; as `Text`, since brackets in a name are no markup."""
    known = value if isinstance(value, (int, float)) or value is None else str(value)
    return Text(showable(printable(shown(known))))


def print_clusters(model: ClusterModel) -> None:
    """Print how many clusters there are and why, each in a row, and how good they are."""
    from dpfedc.report.summary_text import made_of_words
    from dpfedc.summary.cluster_text import brief_rows

    summary = model.summary()
    if model.choice is not None:
        print_paragraphs(model.choice.paragraphs())
    print_table(*brief_rows(summary), words=True)
    if summary.assignment:
        print_paragraphs([f"Made of: {made_of_words(summary)} {summary.assignment}"])
    print_quality(model.quality, summary.unit)


def print_quality(quality: ClusterQuality | None, unit: str) -> None:
    """Print how good the clusters are, if that was released."""
    if quality is not None:
        print_paragraphs(list(quality.sentences(unit)))
        print_table(*quality.rows())
