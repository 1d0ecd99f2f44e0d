"""Figures of experiments: lines with bands of one standard error, as PNG and PDF."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedc.report.figures import PIXELS_PER_POINT
from dpfedc.report.palette import GRID, INK, LINES, RULE, SOFT
from dpfedc.research.spread import mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 100 * PIXELS_PER_POINT
_STYLES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


@dataclass(frozen=True)
class Line:
    """A named line: values per seed (rows) at the places x (columns); NaN where there is none.

    `colour` and `style` number a line's look, so that it is the same in every panel.
    """

    name: str
    x: Sequence[float]
    values: Sequence[Sequence[float]]
    color: int = 0
    style: int = 0
    markers: bool = False


@dataclass(frozen=True)
class Panel:
    """One set of axes. `level` is a dashed horizontal line with a name."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    level: tuple[str, float] | None = None
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False


def panels_figure(panels: Sequence[Panel], *, n_columns: int) -> dict[str, bytes]:
    """Return the panels side by side with one common legend, as {"png": ..., "pdf": ...}."""
    from matplotlib.figure import Figure

    n_rows = math.ceil(len(panels) / n_columns)
    names = _looks(panels)
    size = (max(3.4 * n_columns, 5.2), 2.6 * n_rows + 0.25 * math.ceil(len(names) / 4) + 0.1)
    figure = Figure(figsize=size, dpi=_DPI, facecolor="white", layout="constrained")
    for i, panel in enumerate(panels):
        _draw(figure.add_subplot(n_rows, n_columns, i + 1, facecolor="white"), panel)
    _write_legend(figure, names)
    files = {}
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        buffer = BytesIO()
        figure.savefig(buffer, format=kind, dpi=_DPI, facecolor="white", metadata=metadata)
        files[kind] = buffer.getvalue()
    return files


def _looks(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """Return the look of every name in the legend, in the order of appearance."""
    names: dict[str, dict[str, Any]] = {}
    for panel in panels:
        for line in panel.lines:
            names.setdefault(line.name, _look(line))
        if panel.level is not None:
            names.setdefault(panel.level[0], {"color": SOFT, "ls": (0, (5, 3)), "lw": 1.3})
    return names


def _look(line: Line) -> dict[str, Any]:
    look: dict[str, Any] = {"color": LINES[line.color % len(LINES)], "lw": 1.7}
    look |= {"ls": _STYLES[line.style % len(_STYLES)]}
    return look | ({"marker": "o", "ms": 3.5} if line.markers else {})


def _draw(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        x, mean, error = _summary(line)
        look = _look(line)
        axes.plot(x, mean, **look)
        axes.fill_between(x, mean - error, mean + error, color=look["color"], alpha=0.15, lw=0)
    if panel.level is not None:
        axes.axhline(panel.level[1], color=SOFT, lw=1.3, ls=(0, (5, 3)))
    if panel.log_x:
        axes.set_xscale("log")
        ticks = sorted({float(v) for line in panel.lines for v in line.x})
        axes.set_xticks(ticks, [f"{v:g}" for v in ticks])
        axes.minorticks_off()
    if panel.log_y or _spans(panel):
        axes.set_yscale("log")
    elif panel.from_zero:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_title(panel.title, fontsize=10, color=INK, loc="left")
    axes.grid(axis="y", color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(RULE)
    axes.tick_params(labelsize=8.5, labelcolor=INK, color=RULE)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(fontsize=9.5, color=INK)


def _summary(line: Line) -> tuple[Any, Any, Any]:
    """Return the places with any value, the mean there over seeds and its standard error."""
    mean, error = mean_and_error(line.values)
    kept = np.isfinite(mean)
    return np.asarray(line.x, dtype=np.float64)[kept], mean[kept], error[kept]


def _spans(panel: Panel) -> bool:
    """Return whether the values are positive and differ more than fiftyfold."""
    means = [_summary(line)[1] for line in panel.lines]
    values = np.concatenate([m for m in means if len(m)] or [np.ones(1)])
    return bool(not panel.from_zero and values.min() > 0 and values.max() > 50 * values.min())


def _write_legend(figure: Figure, names: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], **look) for look in names.values()]
    # A letter of this size is about 0.075 inches wide, a key with its space 0.65.
    widest = 0.65 + 0.075 * max(map(len, names))
    columns = max(1, min(len(names), 4, int(figure.get_figwidth() / widest)))
    legend = figure.legend(
        keys, list(names), ncols=columns, loc="outside lower center", frameon=False, fontsize=9,
        handlelength=2.6, columnspacing=1.3,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(parse_math=False, color=INK)
