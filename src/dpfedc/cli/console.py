"""What the user sees: a bar while rounds run, tables of results, plain sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from dpfedc.records import RoundRecord


@contextmanager
def progress_bar() -> Iterator[Callable[[RoundRecord, int], None]]:
    """Show a bar on the terminal, from the first round on; hand out what to call after each round.

    It goes to stderr, and only if that is a terminal.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _, __: None
        return
    progress = Progress(
        TextColumn("Clustering"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        console=console,
    )

    def advance(_: RoundRecord, n_rounds: int) -> None:
        if not progress.tasks:
            progress.add_task("", total=n_rounds)
            progress.start()
        progress.advance(progress.tasks[0].id)

    try:
        yield advance
    finally:
        if progress.tasks:
            progress.stop()


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: names on the left, values on the right."""
    table = Table(box=box.ROUNDED, header_style="bold")
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(value) for value in row))
    Console().print(table)


def print_sizes(rows: Sequence[Mapping[str, int]]) -> None:
    """Print a table with a row per cluster."""
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def print_sentence(text: str, *, style: str = "") -> None:
    """Print a sentence, broken between words where the line ends."""
    Console(highlight=False).print(text, style=style, markup=False)


def print_path(what: str, path: Path) -> None:
    """Print where something is; the path is never broken, so that it can be copied."""
    Console(highlight=False).print(f"{what}: {path}", markup=False, soft_wrap=True)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
