"""Figures of a run, each returned as the bytes of a PNG file.

Every figure is 520 points of a page wide, drawn at twice that, and leaves no global state behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.report.palette import ACCENT, CLUSTERS, GRID, INK, RULE, SHADE, SOFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = npt.NDArray[np.float64]
Span = tuple[str, int, int]
"""A stage: its name, its first and its last round, numbered from 1 through the whole run."""

PIXELS_PER_POINT = 2
"""How many pixels of a picture one point (CSS pixel) of the page shows."""

_WIDTH, _DPI = 5.2, 100 * PIXELS_PER_POINT
_NAMED_FEATURES, _NAMED_SITES, _LONGEST_NAME = 40, 24, 26


def line_figure(
    rounds: Sequence[int],
    values: Sequence[float],
    *,
    label: str,
    spans: Sequence[Span] = (),
    reference: float | None = None,
    reference_label: str = "pooled k-means",
    from_zero: bool = False,
) -> bytes:
    """Draw a value per round; stages are shaded in turn, the reference is a dashed line.

    The line is broken between stages, because they may measure different things. A positive value
    that falls or grows more than fiftyfold gets a logarithmic axis, unless it starts `from_zero`.
    """
    x, y = np.asarray(rounds, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise InvalidInput(
            f"rounds and values must be vectors of one length > 0, got {x.shape} and {y.shape}"
        )
    _require_finite(label, y)
    figure, axes = _blank(2.9 if reference is None else 3.15)
    low, high = float(x[0]) - 0.5, float(x[-1]) + 0.5
    axes.set_xlim(low, high)
    seen = [(name, max(start - 0.5, low), min(end + 0.5, high)) for name, start, end in spans]
    seen = [span for span in seen if span[1] < span[2]] or [("", low, high)]
    for i, (_, left, right) in enumerate(seen):
        if i % 2:
            axes.axvspan(left, right, color=SHADE, lw=0)
        part = (x > left) & (x < right)
        marker = "o" if part.sum() < 40 else ""
        name = "_" if i else label
        axes.plot(x[part], y[part], color=ACCENT, lw=1.8, marker=marker, ms=3.2, label=name)
    if len(seen) > 1:
        _write_stage_names(axes, seen, low, high)
    if reference is not None:
        _require_finite("reference", np.asarray(reference))
        name = f"{reference_label} ({reference:.3g})"
        axes.axhline(reference, color=SOFT, lw=1.3, ls=(0, (5, 3)), label=name)
        _write_legend(figure, n_columns=2, handlelength=2.2)
    if from_zero:
        highest = max(float(y.max()), -np.inf if reference is None else reference)
        axes.set_ylim(0, 1.12 * highest if highest > 0 else 1)
    elif y.min() > 0 and y.max() > 50 * y.min():
        axes.set_yscale("log")
    axes.set(xlabel="round", ylabel=label)
    axes.grid(axis="y", color=GRID, lw=0.7)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    return _png(figure)


def centers_view(
    n_features: int, image_shape: Sequence[int] | None
) -> Literal["pictures", "table", "map"]:
    """Return how `centres_figure` draws centres: as pictures, a coloured table, or a heat map."""
    if image_shape is not None:
        return "pictures"
    return "table" if n_features <= _NAMED_FEATURES else "map"


def centers_figure(
    centers: npt.ArrayLike,
    image_shape: Sequence[int] | None = None,
    feature_names: Sequence[str] | None = None,
) -> bytes:
    """Draw the centres (k x m) in the way `centres_view` says.

    Pictures share one grey scale; an `image_shape` (height, width, 3) means colours from 0 to the
    largest value. In the table each feature is coloured by its own range over the centres, so that
    features in different units can be read side by side. The heat map has one scale for all.
    """
    matrix = _matrix("centres", centers)
    names = [f"feature {f}" for f in range(matrix.shape[1])]
    if feature_names is not None and len(feature_names) != len(names):
        raise InvalidInput(
            f"feature_names must name each of {len(names)} features, got {len(feature_names)}"
        )
    if image_shape is not None:
        return _png(_pictures(matrix, tuple(image_shape)))
    if centers_view(len(names), image_shape) == "map":
        return _png(_heat_map(matrix))
    return _png(_table(matrix, names if feature_names is None else feature_names))


def sizes_figure(sizes: npt.ArrayLike, site_names: Sequence[str] | None = None) -> bytes:
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
    for c, color in enumerate(_cluster_colors(n_clusters)):
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
        axes.set(ylim=(n_sites - 0.5, -0.5), xlim=(0, most), xlabel="records")
    else:
        if max(map(len, ticks)) > 5:
            style |= {"rotation": 35, "ha": "right"}
            figure.set_figheight(figure.get_figheight() + 0.6)
        axes.set_xticks(shown, ticks, **style)
        axes.set(xlim=(-0.8, n_sites - 0.2), ylim=(0, most), xlabel="site", ylabel="records")
    axes.tick_params(axis="y" if in_rows else "x", length=0)
    (axes.xaxis if in_rows else axes.yaxis).set_major_formatter("{x:,.10g}")
    _write_legend(figure, n_columns=10, handlelength=1.1, title="cluster")
    return _png(figure)


def _pictures(centers: Matrix, shape: tuple[int, ...]) -> Figure:
    k, m = centers.shape
    if len(shape) not in {2, 3} or (len(shape) == 3 and shape[2] != 3) or np.prod(shape) != m:
        raise InvalidInput(
            f"image_shape must be (height, width) or (height, width, 3) of {m} values, got {shape}"
        )
    # As few empty places as can be; of equal ones, the wider grid.
    n_columns = k if k < 5 else min((-k % c, -c, c) for c in (4, 5, 6))[2]
    n_rows = -(-k // n_columns)
    cell = _WIDTH / max(n_columns, 4)
    figure, axes = _blank(n_rows * (0.92 * cell * shape[0] / shape[1] + 0.26))
    axes.remove()
    low, high = float(centers.min()), float(centers.max())
    values = centers if len(shape) == 2 else np.clip(centers / (high if high > 0 else 1.0), 0, 1)
    places = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for c, place in enumerate(places):
        place.set_axis_off()
        if c < k:
            place.imshow(values[c].reshape(shape), cmap="gray", vmin=low, vmax=high)
            place.set_title(str(c), fontsize=9.5, color=SOFT, pad=3)
    return figure


def _table(centers: Matrix, names: Sequence[str]) -> Figure:
    k, m = centers.shape
    figure, axes = _blank(0.75 + 0.27 * m)
    # A feature on which all centres agree gets the middle colour.
    shift, spread = centers - centers.min(axis=0), np.ptp(centers, axis=0)
    place = np.divide(shift, spread, out=np.full((k, m), 0.5), where=spread > 0)
    axes.imshow(place.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for c, f in np.ndindex(k, m) if k <= 8 else ():
        ink = "white" if place[c, f] > 0.55 else INK
        axes.text(c, f, f"{centers[c, f]:.3g}", fontsize=8.5, color=ink, ha="center", va="center")
    axes.set_yticks(range(m), [_short(name) for name in names], parse_math=False)
    axes.set_yticks(np.arange(m - 1) + 0.5, minor=True)
    axes.set_xticks(range(0, k, -(-k // 25)))
    axes.set_xticks(np.arange(k - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=1.2)
    axes.set_xlabel("cluster")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    return figure


def _heat_map(centers: Matrix) -> Figure:
    figure, axes = _blank(1.15 + max(1.2, min(0.2 * len(centers), 4.0)))
    # A few extreme entries would leave all others in one colour.
    low, high = (float(v) for v in np.quantile(centers, [0.005, 0.995]))
    colors = "Blues"
    if low < 0 < high:
        low, high, colors = min(low, -high), max(high, -low), "RdBu_r"
    drawn = axes.imshow(centers, cmap=colors, vmin=low, vmax=high, aspect="auto")
    axes.set(xlabel="feature", ylabel="cluster")
    axes.locator_params(axis="y", integer=True, min_n_ticks=1)
    axes.tick_params(length=0)
    bar = figure.colorbar(drawn, ax=axes, pad=0.02, aspect=22, extend="both", extendfrac=0.03)
    bar.ax.tick_params(labelsize=9, labelcolor=INK, length=0)
    bar.ax.spines[:].set_visible(False)
    return figure


def _write_stage_names(
    axes: Axes, spans: Sequence[tuple[str, float, float]], low: float, high: float
) -> None:
    """Write the names of the stages above the axes, those of long stages first, if they fit."""
    per_round, taken = 1 / (high - low), list[tuple[float, float]]()
    for name, left, right in sorted(spans, key=lambda span: span[1] - span[2]):
        width = 0.015 * len(name) + 0.02  # in shares of the axes, as measured for this type size
        start = min(max(((left + right) / 2 - low) * per_round - width / 2, 0), 1 - width)
        free = all(start + width <= a or start >= b for a, b in taken)
        if free and width <= 2 * (right - left) * per_round:
            taken.append((start, start + width))
            at = start + width / 2
            text = axes.text(at, 1.02, name, ha="center", va="bottom", transform=axes.transAxes)
            text.set(fontsize=8.5, color=SOFT, parse_math=False)


def _write_legend(figure: Figure, n_columns: int, handlelength: float, title: str = "") -> None:
    keys, names = figure.axes[0].get_legend_handles_labels()
    style: dict[str, Any] = {"handleheight": 0.9, "handletextpad": 0.5, "columnspacing": 1.1}
    style |= {"fontsize": 9.5, "title_fontsize": 9.5, "frameon": False}
    style |= {"loc": "outside lower center", "title": title, "handlelength": handlelength}
    legend = figure.legend(keys, names, ncols=n_columns, **style)
    for text in (legend.get_title(), *legend.get_texts()):
        text.set(parse_math=False, color=INK)


def _cluster_colors(n_clusters: int) -> list[Any]:
    from matplotlib import colormaps

    if n_clusters <= len(CLUSTERS):
        return list(CLUSTERS[:n_clusters])
    return list(colormaps["viridis"](np.linspace(0, 0.97, n_clusters)))


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
