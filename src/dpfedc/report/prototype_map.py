"""Prototypes of clusters as dots on a map: places in a drawing, which a template makes SVG of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedc.kernels.merge_tree import shortest_trees
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.statement import counted, percent
from dpfedc.report.figures import cluster_colors
from dpfedc.summary.cluster_summary import ClusterSummary

Float = npt.NDArray[np.float64]

WIDTH, HEIGHT, EDGE = 400.0, 250.0, 24.0
_MANY_DOTS, _MANY_NAMES = 80, 40
"""From so many dots on they are small; so many clusters have their numbers beside them."""

_NEARLY_ALL = 0.95
"""Of squared distances: where a map shows so much, what looks close is close."""

Link = tuple[float, float, float, float, str]


@dataclass(frozen=True)
class Dot:
    """A prototype: where it is drawn, in which colour, and of which cluster it is."""

    x: float
    y: float
    color: str
    title: str


@dataclass(frozen=True)
class PrototypeMap:
    """What is drawn, and the words that stand for it and under it."""

    alt: str
    caption: str
    dots: tuple[Dot, ...]
    links: tuple[Link, ...]
    numbers: tuple[tuple[float, float, str], ...]
    radius: float
    across: str = ""
    upward: str = ""


def prototype_map(model: ClusterModel, summary: ClusterSummary) -> PrototypeMap | None:
    """Return the map of what clusters are made of; None where they are not made of several."""
    if model.prototypes is None or model.groups is None:
        return None
    groups = model.groups.astype(np.int64)
    flat, across, upward, how = _flat(model)
    places = _fitted(flat)
    colors = cluster_colors(len(summary.clusters))
    n, k = len(groups), len(summary.clusters)
    dots = tuple(
        Dot(x, y, colors[c], summary.clusters[c].title)
        for (x, y), c in zip(places.tolist(), groups.tolist(), strict=True)
    )
    links = tuple(
        (*places[i].tolist(), *places[j].tolist(), colors[groups[i]])
        for i, j in shortest_trees(model.prototypes, groups).tolist()
    )
    what = f"{counted(n, 'prototype')} in {counted(k, 'cluster')}"
    return PrototypeMap(
        f"Map of {what}.",
        f"Each dot is a prototype: {what}. Lines join those of a cluster that lie nearest to each "
        f"other. {how}",
        dots,
        links,
        tuple(_numbers(places, groups)) if k <= _MANY_NAMES else (),
        4.5 if n < _MANY_DOTS else 2.5,
        across,
        upward,
    )


def _flat(model: ClusterModel) -> tuple[Float, str, str, str]:
    """Return prototypes in two dimensions, what these are called, and how it was done."""
    places = np.asarray(model.prototypes, dtype=np.float64)
    m = places.shape[1]
    if m <= 2 and model.schema is None:
        names = [*(model.feature_names or [f"x{f}" for f in range(m)]), ""]
        return np.hstack([places, np.zeros((len(places), 2 - m))]), names[0], names[1], ""
    away = places - places.mean(axis=0)
    _, sizes, axes = np.linalg.svd(away, full_matrices=False)
    # The sign of a direction is arbitrary: its largest part points right or up.
    axes *= np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))
    held = float((sizes[:2] ** 2).sum() / max((sizes**2).sum(), np.finfo(float).tiny))
    lost = ": dots that look close may be far apart" if held < _NEARLY_ALL else ""
    how = (
        "They are seen from the side on which they differ most, which shows "
        f"{percent(held)} of their squared distances{lost}."
    )
    flat = away @ axes[:2].T
    return np.hstack([flat, np.zeros((len(flat), 2 - flat.shape[1]))]), "", "", how


def _fitted(flat: Float) -> Float:
    """Return places in the drawing, in true proportion."""
    low, high = flat.min(axis=0), flat.max(axis=0)
    room = np.array([WIDTH, HEIGHT]) - 2 * EDGE
    factor = 1 / max(float(((high - low) / room).max()), np.finfo(float).tiny)
    centred = (flat - (low + high) / 2) * factor
    return np.asarray(np.round(centred * [1, -1] + [WIDTH / 2, HEIGHT / 2], 1))


def _numbers(places: Float, groups: npt.NDArray[np.int64]) -> Iterator[tuple[float, float, str]]:
    """Yield each cluster's number, above the dot of it that is nearest to their middle."""
    for c in range(int(groups.max()) + 1):
        own = places[groups == c]
        x, y = own[((own - own.mean(axis=0)) ** 2).sum(axis=1).argmin()].tolist()
        yield x, round(y - 8, 1), str(c)
