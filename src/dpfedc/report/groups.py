"""The clusters as a page shows them: a card for each, and every column of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpfedc.model_file import ClusterModel
from dpfedc.privacy.statement import counted, percent
from dpfedc.report.line_charts import LineChart, choice_chart
from dpfedc.report.pictures import center_pictures, inlined
from dpfedc.report.prototype_map import PrototypeMap, prototype_map
from dpfedc.summary.cluster_summary import (
    FEW,
    MISSING,
    Certainty,
    Cluster,
    ClusterSummary,
    ColumnSummary,
    Value,
)
from dpfedc.summary.cluster_text import foremost, named, size_text, value_text
from dpfedc.summary.number_text import bar, beside

Float = npt.NDArray[np.float64]

MAX_ROWS = 40
"""So many columns are shown at most, those first that tell the clusters apart."""
_FACTS_OF_MANY, _MANY = 2, 6
MAX_PICTURES = 12
"""Of the prototypes of a cluster."""
_DEEPEST = 2.0
"""A value so many spreads away from that of all has the strongest colour."""


@dataclass(frozen=True)
class Fact:
    """A column that sets a cluster apart: what is so in the cluster, and what it is for all."""

    column: str
    here: str
    overall: str
    above: bool


@dataclass(frozen=True)
class Card:
    """One cluster: how many are in it, and who they are."""

    title: str
    size: str
    share: str
    width: float
    facts: tuple[Fact, ...]
    more: int
    note: str
    picture: str
    made_of: str = ""
    prototypes: tuple[str, ...] = ()
    """Pictures of what it is made of."""


@dataclass(frozen=True)
class Cell:
    """A value with its error, and how far above (1) or below (-1) that of all it is."""

    value: str
    error: str = ""
    depth: float = 0.0


@dataclass(frozen=True)
class Row:
    """A column, a value of a category or the share of gaps; `inner` stands under the one before."""

    name: str
    overall: str
    cells: tuple[Cell, ...]
    inner: bool = False


@dataclass(frozen=True)
class Groups:
    """All that a page says about the clusters."""

    unit: str
    cards: tuple[Card, ...]
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    n_hidden: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    certainty: Certainty
    map: PrototypeMap | None = None
    choice: LineChart | None = None

    @property
    def bars_words(self) -> str:
        """Return what to say of the centres' error bars, behind their name."""
        return ", with 95 % error bars" if self.certainty == Certainty.BARS else ""

    @property
    def noise_words(self) -> str:
        """Return what to say of differences between clusters, behind them."""
        if self.certainty == Certainty.UNKNOWN:
            return ", be it by noise or not"
        return "; nothing where noise explains it" if self.certainty == Certainty.BARS else ""


def groups_of(
    model: ClusterModel, summary: ClusterSummary, image_shape: Sequence[int] | None = None
) -> Groups:
    """Return the clusters as a page shows them; with an `image_shape`, their centres as pictures.

    What clusters are made of is then shown as pictures as well, and else on a map.
    """
    k = len(summary.clusters)
    of_prototypes: list[tuple[str, ...]] = [()] * k
    pictures, n_facts, rows, n_hidden = [""] * k, FEW, list[Row](), 0
    if image_shape is not None:
        places = model.cluster_centers
        if model.groups is not None:
            places = np.vstack([places, model.prototype_centers])
        every, n_facts = [inlined(png) for png in center_pictures(places, image_shape)], 0
        pictures = every[:k]
        if model.groups is not None:
            of_prototypes = [_some(every[k:], model.groups == c) for c in range(k)]
    else:
        rows, n_hidden = _rows(summary)
        if len(summary.clusters) > _MANY:
            n_facts = _FACTS_OF_MANY
    return Groups(
        summary.unit,
        tuple(map(_card, summary.clusters, [n_facts] * k, pictures, of_prototypes)),
        tuple(c.name or f"Cluster {c.number}" for c in summary.clusters),
        tuple(rows),
        n_hidden,
        summary.left_out if rows else (),
        replace(summary, stamps=()).notes,  # the page shows them by itself
        summary.centers,
        prototype_map(model, summary) if image_shape is None else None,
        None if summary.choice is None else choice_chart(summary.choice),
    )


def _some(pictures: Sequence[str], of_cluster: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(pictures[i] for i in np.flatnonzero(of_cluster)[:MAX_PICTURES])


def _card(cluster: Cluster, n_facts: int, picture: str, prototypes: tuple[str, ...]) -> Card:
    size = "size not known"
    if cluster.size is not None:
        size = f"{size_text(cluster)} {cluster.unit}{'s' * (cluster.size != 1)}"
    n, made_of = cluster.n_prototypes, ""
    if n:
        made_of = f"made of {counted(n, 'prototype')}"
        if 0 < len(prototypes) < n:
            made_of += f", of which {len(prototypes)} are shown"
    facts = [_fact(column) for column in cluster.most_apart[:n_facts]]
    return Card(
        cluster.title,
        size,
        "" if cluster.share is None else percent(cluster.share),
        round(100 * (cluster.share or 0.0), 1),
        tuple(facts),
        len(cluster.apart) - len(facts) if n_facts else 0,
        cluster.note if not picture or not cluster.is_mean else "",
        picture,
        made_of,
        prototypes,
    )


def _fact(column: ColumnSummary) -> Fact:
    value = foremost(column)
    return Fact(named(column, value), *value_text(column, value), value.mean > value.overall)


def _rows(summary: ClusterSummary) -> tuple[list[Row], int]:
    """Return the rows of the columns that tell the clusters apart most, and how many are hidden."""
    columns = list(zip(*(c.columns for c in summary.clusters), strict=True))
    columns = [of_all for of_all in columns if of_all[0].compared]
    n = len(summary.clusters)
    shares = np.array([1 / n if c.share is None else c.share for c in summary.clusters])
    order = sorted(range(len(columns)), key=lambda i: -sum(c.apart for c in columns[i]))
    kept = sorted(order[:MAX_ROWS])
    rows = [row for i in kept for row in _column_rows(columns[i], summary.clusters, shares)]
    return rows, len(columns) - len(kept)


def _column_rows(
    of_all: Sequence[ColumnSummary], clusters: Sequence[Cluster], shares: Float
) -> Iterator[Row]:
    first = of_all[0]
    if first.kind == "category":
        yield Row(first.name, "", ())
        named = {v.category: v.overall for column in of_all for v in column.values}
        alike = []
        for category in sorted(named, key=lambda name: -named[name]):
            found = [next((v for v in c.values if v.category == category), None) for c in of_all]
            if all(v is None or v.stands_out is False for v in found):
                alike.append(category)
            else:
                yield _row(category, found, clusters, shares, is_share=True, inner=True)
        if alike:
            yield Row(f"{', '.join(alike)}: no difference beyond noise", "", (), inner=True)
        return
    yield _row(first.name, [column.values[0] for column in of_all], clusters, shares)
    if first.gaps is not None:
        gaps = [column.gaps for column in of_all]
        yield _row(MISSING, gaps, clusters, shares, is_share=True, inner=True)


def _row(
    name: str,
    values: Sequence[Value | None],
    clusters: Sequence[Cluster],
    shares: Float,
    *,
    is_share: bool = False,
    inner: bool = False,
) -> Row:
    known = [v for v in values if v is not None]
    overall = known[0].overall
    away = np.array([0.0 if v is None else v.mean - v.overall for v in values])
    spread = float(np.sqrt((overall * (1 - overall)) if is_share else (shares @ away**2)))
    cells = []
    for value, cluster, shift in zip(values, clusters, away, strict=True):
        if value is None or not cluster.is_mean:
            cells.append(Cell("\N{EN DASH}"))
            continue
        cell = _cell(value, is_share=is_share)
        depth = 0.0 if value.stands_out is False or spread <= 0 else shift / (_DEEPEST * spread)
        cells.append(Cell(cell.value, cell.error, round(float(np.clip(depth, -1, 1)), 2)))
    finest = min(known, key=lambda v: (v.high or 0.0) - (v.low or 0.0))
    return Row(name, _text(finest, finest.overall, is_share=is_share), tuple(cells), inner)


def _cell(value: Value, *, is_share: bool) -> Cell:
    factor = 100.0 if is_share else 1.0
    ends = (None if end is None else factor * end for end in (value.low, value.high))
    return Cell(_text(value, value.mean, is_share=is_share), bar(factor * value.mean, *ends))


def _text(like: Value, value: float, *, is_share: bool) -> str:
    """Return a value, or another one with as many places."""
    if not is_share:
        return beside(value, like.low, like.high)
    if like.low is None or like.high is None or not like.low < like.high:
        return percent(value)
    return f"{beside(100 * value, 100 * like.low, 100 * like.high)} %"
