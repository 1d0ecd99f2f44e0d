"""From the arrays of a model to its summary: intervals, shares, and what noise does not explain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import printable
from dpfedc.kernels.column_view import SPREAD, unseen
from dpfedc.summary.cluster_summary import (
    MISSING,
    Certainty,
    Cluster,
    ClusterSummary,
    ColumnSummary,
    Value,
)
from dpfedc.tables.encode import decoded
from dpfedc.tables.schema import Schema
from dpfedc.tables.schema_columns import OTHER

Float = npt.NDArray[Any]
Interval = tuple[Float, Float]

CERTAIN = 1.96
"""Intervals reach so many standard deviations to either side: 95 % of normal noise."""
MAX_SHOWN = 200
"""Letters of a column's name; more hide all else."""
CHANCE = 0.05
"""How often a cluster that noise alone sets apart is called set apart, at most."""
ROUNDING = 1e-9
"""Exact values that differ by less, of how large they are, are the same."""


def summarized(
    centers: Float,
    *,
    interval: Interval | None,
    seen: Float,
    seen_errors: Float | None,
    sizes: Float | None,
    size_errors: Float | None,
    names: Mapping[int, str],
    feature_names: Sequence[str] | None,
    schema: Schema | None,
    view: Mapping[str, Float],
    about: Mapping[str, Any],
    far_out: npt.NDArray[np.bool_],
    stability: float | None = None,
    n_prototypes: Sequence[int] | None = None,
) -> ClusterSummary:
    """Return the summary of clusters from their `centers` in data units.

    `seen` are the centres as the clustering saw them, with standard deviations `seen_errors`
    (infinite for a centre that is no mean). `n_prototypes` is how many each cluster is made of.
    """
    k, m = centers.shape
    known = np.ones((k, m)) if seen_errors is None else np.isfinite(seen_errors)
    is_mean = np.asarray(np.all(known, axis=1))
    counts = np.ones(k) if sizes is None else np.clip(sizes, 0, None)
    weights = _weights(np.where(is_mean, counts, 0))
    middle = weights @ seen
    overall = np.asarray(unseen(middle[None], view))[0]
    if schema is not None:
        overall = decoded(overall[None], schema)[0]
    out = _beyond_noise(seen, seen_errors, weights)
    low, high = _ends(interval, centers)
    squares = (seen - middle) ** 2
    squares /= np.maximum(squares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    table = schema or Schema.plain(feature_names or [f"x{f}" for f in range(m)])
    compared = np.asarray(view.get(SPREAD[1], np.ones(m))) > 0
    unit = _unit(about, schema)
    clusters = []
    for c in range(k):
        values = [
            Value(
                float(centers[c, f]),
                _known(low[c, f]),
                _known(high[c, f]),
                float(overall[f]),
                None if out is None else bool(out[c, f] and compared[f]),
            )
            for f in range(m)
        ]
        columns = tuple(_columns(table, values, squares[c], compared))
        size = _size(c, sizes, size_errors)
        share = None if sizes is None else float(_weights(counts)[c])
        name = names.get(c, "")
        made_of = 0 if n_prototypes is None else n_prototypes[c]
        clusters.append(Cluster(c, name, unit, *size, share, bool(is_mean[c]), columns, made_of))
    return ClusterSummary(
        unit,
        _certainty(None if sizes is None else size_errors),
        _certainty(seen_errors),
        tuple(about.get("stamps") or ()),
        tuple(clusters),
        far_out=tuple(np.flatnonzero(far_out).tolist()),
        of_table=schema is not None,
        stability=stability,
    )


def _columns(
    table: Schema, values: Sequence[Value], apart: Float, compared: npt.NDArray[np.bool_]
) -> Iterator[ColumnSummary]:
    """Yield the columns of one cluster, from one value per feature."""
    for column, at in table.placed:
        own, gaps = list(values[at]), None
        if column.kind == "category":
            named = zip((*column.values, OTHER), own, strict=True)
            own = [
                replace(value, category=category)
                for category, value in named
                if _shown(category, value)
            ]
            own.sort(key=lambda value: -value.mean)
        elif len(own) > 1:
            gaps = replace(own.pop(), category=MISSING)
        part, used = float(apart[at].sum()), bool(compared[at].any())
        # Names may come with a model from elsewhere, and go to terminals.
        own = [replace(value, category=printable(value.category)) for value in own]
        name = printable(column.name)[:MAX_SHOWN]
        yield ColumnSummary(name, column.kind, tuple(own), gaps, part, used)


def _ends(interval: Interval | None, centers: Float) -> Interval:
    """Return intervals that hold their centres: shares were made to sum to 1 after theirs."""
    if interval is None:
        return (np.full_like(centers, np.nan),) * 2
    low, high = interval
    known = ~np.isnan(low)
    return (
        np.where(known, np.minimum(low, centers), np.nan),
        np.where(known, np.maximum(high, centers), np.nan),
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _shown(category: str, value: Value) -> bool:
    """Return whether a share is worth a line: that of `other` only where it is not noise."""
    return category != OTHER or (value.mean if value.low is None else value.low) > 0


def _weights(counts: Float) -> Float:
    """Return what part of all each cluster is; equal parts where nothing is known."""
    total = counts.sum()
    return np.asarray(counts / total if total > 0 else np.full(len(counts), 1 / len(counts)))


def _beyond_noise(
    seen: Float, errors: Float | None, weights: Float
) -> npt.NDArray[np.bool_] | None:
    """Return which centres differ from the mean of all by more than noise, for every feature.

    The mean of all has the noise of every centre in it. Many features are compared at once, so
    each must pass a higher bar: that noise alone passes any of a cluster's has chance CHANCE.
    """
    if errors is None:
        return None
    own = np.eye(len(seen)) - weights  # row c: centre c minus the mean of all
    known = np.isfinite(errors)
    variances = own**2 @ np.where(known, errors, 0.0) ** 2
    bar = NormalDist().inv_cdf(1 - CHANCE / (2 * seen.shape[1]))
    apart = np.abs(seen - weights @ seen)
    least = np.maximum(bar * np.sqrt(variances), ROUNDING * np.abs(seen).max(initial=0.0))
    return np.asarray(known & (apart > least))


def _size(
    c: int, sizes: Float | None, errors: Float | None
) -> tuple[int | None, int | None, int | None]:
    """Return a cluster's size as it can be, and between what it lies."""
    if sizes is None:
        return None, None, None
    shown = max(round(float(sizes[c])), 0)
    if errors is None:
        return shown, None, None
    reach = CERTAIN * float(errors[c])
    low, high = (max(round(float(sizes[c]) + end), 0) for end in (-reach, reach))
    return shown, low, high


def _certainty(errors: Float | None) -> Certainty:
    if errors is None:
        return Certainty.UNKNOWN
    return Certainty.BARS if (errors > 0).any() else Certainty.EXACT


def _unit(about: Mapping[str, Any], schema: Schema | None) -> str:
    """Return what is counted: records as such, or persons."""
    known = (about.get("privacy") or {}).get("unit")
    return printable(str(known or ("record" if schema is None else schema.unit)))
