"""Tables and pictures of a page, and the page as HTML: every text is escaped by the templates."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpfedc.report import palette
from dpfedc.report.figures import PIXELS_PER_POINT
from dpfedc.report.summary_text import QUALITY_TITLE, as_sentence
from dpfedc.summary.number_text import shown

Cell = str | float | None


@dataclass(frozen=True)
class Table:
    """A table with the names of its rows in the first column.

    The columns in `text` hold words, the others numbers; None is shown as a dash. `marks` gives
    the style of cells with a certain text. With a `summary` the table is folded away under it,
    and shown at once only if it is `unfolded`. The `note` stands below.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text: frozenset[int] = frozenset()
    marks: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    unfolded: bool = False
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG file with the words that stand for it and under it; `pdf` is the same for print."""

    source: str
    heading: str
    png: bytes
    alt: str
    caption: str
    pdf: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height in points of the page."""
        width, height = struct.unpack(">II", self.png[16:24])
        return width // PIXELS_PER_POINT, height // PIXELS_PER_POINT


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("dpfedc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"shown": shown, "sentence": as_sentence}
    found.globals |= {"light": palette.LIGHT, "dark": palette.DARK, "quality_title": QUALITY_TITLE}
    return found


def rendered(template: str, **content: Any) -> bytes:
    """Return the page that a template makes of the content."""
    return _templates().get_template(template).render(**content).encode()
