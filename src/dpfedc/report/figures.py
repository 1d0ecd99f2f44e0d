"""The figure of cluster sizes per site, as the bytes of a PNG file.

It is 520 points of a page wide, drawn at twice that, and leaves no global state behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.report.palette import CLUSTERS, INK, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = npt.NDArray[np.float64]

PIXELS_PER_POINT = 2
"""How many pixels of a picture one point (CSS pixel) of the page shows."""

_WIDTH, _DPI = 5.2, 100 * PIXELS_PER_POINT
_NAMED_SITES, _LONGEST_NAME = 24, 26


def sizes_figure(
    sizes: npt.ArrayLike, site_names: Sequence[str] | None = None, *, unit: str = "record"
) -> bytes:
    """Draw `sizes` (sites x clusters) as stacked bars: up to 24 named rows, or thin columns."""
    counts = _matrix("sizes", sizes)
    n_sites, n_clusters = counts.shape
    if counts.min() < 0:
        raise InvalidInput(f"sizes must be >= 0, got {counts.min():g}")
    names = [str(i) for i in range(n_sites)] if site_names is None else site_names
    if len(names) != n_sites:
        raise InvalidInput(f"site_names must name each of {n_sites} sites, got {len(names)}")
    in_rows = n_sites <= _NAMED_SITES
    where, below = np.arange(n_sites), np.zeros(n_sites)
    edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6 if n_sites <= 60 else 0}
    # Beyond 40 clusters three keys of the colour scale tell more than a wall of them.
    keys = range(n_clusters) if n_clusters <= 40 else (0, n_clusters // 2, n_clusters - 1)
    figure, axes = _blank((1.1 + 0.27 * n_sites if in_rows else 3.2) + 0.02 * len(keys))
    for c, color in enumerate(cluster_colors(n_clusters)):
        style: dict[str, Any] = {"color": color, "label": str(c) if c in keys else "_"}
        above = below + counts[:, c]
        if in_rows:
            axes.barh(where, counts[:, c], 0.74, left=below, **style, **edge)
        elif n_sites <= 120 and counts.size <= 2000:
            axes.bar(where, counts[:, c], 0.84, bottom=below, **style, **edge)
        else:  # one area instead of a patch per site, which would take seconds
            low, high = np.append(below, below[-1]), np.append(above, above[-1])
            axes.fill_between(np.arange(n_sites + 1) - 0.5, low, high, step="post", lw=0, **style)
        below = above
    shown = range(0, n_sites, 1 if in_rows else -(-n_sites // 10))
    ticks = [_short(names[i]) for i in shown]
    most = 1.03 * float(below.max()) or 1.0
    # A dollar sign in a name starts no formula.
    style = {"parse_math": False}
    if in_rows:
        axes.set_yticks(shown, ticks, **style)
        axes.set(ylim=(n_sites - 0.5, -0.5), xlim=(0, most), xlabel=f"{unit}s")
    else:
        if max(map(len, ticks)) > 5:
            style |= {"rotation": 35, "ha": "right"}
            figure.set_figheight(figure.get_figheight() + 0.6)
        axes.set_xticks(shown, ticks, **style)
        axes.set(xlim=(-0.8, n_sites - 0.2), ylim=(0, most), xlabel="site", ylabel=f"{unit}s")
    axes.tick_params(axis="y" if in_rows else "x", length=0)
    (axes.xaxis if in_rows else axes.yaxis).set_major_formatter("{x:,.10g}")
    _write_legend(figure)
    return _png(figure)


def _write_legend(figure: Figure) -> None:
    keys, names = figure.axes[0].get_legend_handles_labels()
    style: dict[str, Any] = {"handleheight": 0.9, "handletextpad": 0.5, "columnspacing": 1.1}
    style |= {"fontsize": 9.5, "title_fontsize": 9.5, "frameon": False}
    style |= {"loc": "outside lower center", "title": "cluster", "handlelength": 1.1}
    legend = figure.legend(keys, names, ncols=10, **style)
    for text in (legend.get_title(), *legend.get_texts()):
        text.set(parse_math=False, color=INK)


def cluster_colors(n_clusters: int) -> list[str]:
    """Return a colour for each cluster: distinct ones, or a scale where there are many."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if n_clusters <= len(CLUSTERS):
        return list(CLUSTERS[:n_clusters])
    return [to_hex(color) for color in colormaps["viridis"](np.linspace(0, 0.97, n_clusters))]


def _blank(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor="white", layout="constrained")
    axes = figure.add_subplot(facecolor="white")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(RULE)
    axes.tick_params(labelsize=9.5, labelcolor=INK, color=RULE)
    axes.xaxis.label.set(fontsize=10, color=INK)
    axes.yaxis.label.set(fontsize=10, color=INK)
    return figure, axes


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _matrix(name: str, values: npt.ArrayLike) -> Matrix:
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise InvalidInput(f"{name} must be a non-empty matrix, got shape {matrix.shape}")
    _require_finite(name, matrix)
    return matrix


def _require_finite(name: str, values: Matrix) -> None:
    n_bad = int((~np.isfinite(values)).sum())
    if n_bad:
        raise InvalidInput(f"{name} must be finite, got {n_bad} entries that are not")
