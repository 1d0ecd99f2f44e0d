"""Which lines the figures of an experiment show, from its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfedc.research.experiments.compared_methods import METHODS
from dpfedc.research.experiments.fitted_slopes import THEOREM_SLOPE, Fall, falls
from dpfedc.research.experiments.line_figures import Line, Panel, panels_figure
from dpfedc.research.experiments.results import (
    Result,
    RoundRow,
    read_record,
    read_results,
    read_rounds,
)

DATA_TITLES = {"mnist": "MNIST", "tcga-mirna": "TCGA miRNA", "digits": "digits"}
_BAND = "Lines are means over the seeds, bands one standard error."


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return every value once, in the order of first appearance."""
    return list(dict.fromkeys(values))


@dataclass(frozen=True)
class Chart:
    """A figure in two formats, with its name, its heading and the words under it."""

    name: str
    heading: str
    caption: str
    files: dict[str, bytes]


def charts(folder: Path, shown: str) -> list[Chart]:
    """Return the figures for which the folder has data."""
    results = read_results(folder)
    if shown == "rounds":
        return list(_round_charts(results, read_rounds(folder)))
    if shown == "frontier":
        return list(_frontier_charts(results))
    if shown == "convergence":
        found = falls(read_record(folder, r.cell) for r in results)
        return list(_convergence_charts(found))
    return []


def _round_charts(results: Sequence[Result], rounds: Sequence[RoundRow]) -> Iterator[Chart]:
    """Yield one figure per data set and variant: a column per partition, a line per setting."""
    # The last row of a run is the final release of centres, and has no objective.
    series: dict[str, list[RoundRow]] = {}
    for row in rounds:
        if row.objective is not None or row.accuracy is not None:
            series.setdefault(row.cell, []).append(row)
    by_count = len({r.sites_per_round for r in results}) > 1
    names = _setting_names(results, by_count)
    for data, variant in distinct((r.data, r.variant) for r in results):
        here = [r for r in results if (r.data, r.variant) == (data, variant) and r.cell in series]
        partitions = distinct(r.partition for r in here)
        panels = []
        for measure in ("objective", "accuracy"):
            for partition in partitions:
                chosen = [r for r in here if r.partition == partition]
                lines = [
                    _round_line(name, i, [r for r in chosen if key(r)], series, measure)
                    for i, (name, key) in enumerate(names)
                    if any(key(r) for r in chosen)
                ]
                title = f"{DATA_TITLES[data]}, {partition}"
                zero = measure == "accuracy"
                panels.append(Panel(title, "round", measure, lines, from_zero=zero))
        if panels:
            files = panels_figure(panels, n_columns=len(partitions))
            heading = f"{DATA_TITLES[data]}, {variant} variant"
            caption = f"Objective (lower is better) and accuracy (higher) per round. {_BAND}"
            if variant == "normalized":
                caption += " Objectives of this variant are in units that depend on the noise."
            yield Chart(f"{data}-{variant}", heading, caption, files)


def _setting_names(
    results: Sequence[Result], by_count: bool
) -> list[tuple[str, Callable[[Result], bool]]]:
    """Return what the lines of one panel are called, with a test for their results."""
    if by_count:
        counts = sorted({r.sites_per_round or 0 for r in results})
        return [
            (f"K = {count}" if count else "all sites", _is("sites_per_round", count or None))
            for count in counts
        ]
    levels = sorted({math.inf if r.epsilon is None else r.epsilon for r in results}, reverse=True)
    return [
        ("no noise", _is("epsilon", None))
        if math.isinf(level)
        else (f"epsilon {level:g}", _is("epsilon", level))
        for level in levels
    ]


def _is(name: str, value: Any) -> Callable[[Result], bool]:
    return lambda result: bool(getattr(result, name) == value)


def _round_line(
    name: str,
    number: int,
    chosen: Sequence[Result],
    series: dict[str, list[RoundRow]],
    measure: str,
) -> Line:
    """Return the measure per round, numbered from the first round that has one."""
    curves = [[getattr(row, measure) for row in series[r.cell]] for r in chosen]
    curves = [[v for v in curve if v is not None] for curve in curves]
    length = max(map(len, curves))
    values = [[*curve, *[math.nan] * (length - len(curve))] for curve in curves]
    return Line(name, range(1, length + 1), values, color=number, style=number)


def _frontier_charts(results: Sequence[Result]) -> Iterator[Chart]:
    """Yield one figure per data set: accuracy, NMI and cost against epsilon."""
    kinds = distinct((r.method, r.trust) for r in results if r.epsilon is not None)
    methods = distinct(method for method, _ in kinds)
    trusts = distinct(trust for _, trust in kinds)
    for data in distinct(r.data for r in results):
        here = [r for r in results if r.data == data]
        panels = []
        for measure, label in (("accuracy", "accuracy"), ("nmi", "NMI"), ("cost", "k-means cost")):
            lines = []
            for method, trust in kinds:
                chosen = [r for r in here if (r.method, r.trust) == (method, trust)]
                x = sorted({r.epsilon for r in chosen if r.epsilon is not None})
                values = [
                    [_one(chosen, measure, epsilon=e, seed=s) for e in x]
                    for s in distinct(r.seed for r in chosen)
                ]
                name = f"{METHODS[method].title}, {trust}"
                look = {"color": methods.index(method), "style": trusts.index(trust)}
                if x:
                    lines.append(Line(name, x, values, markers=True, **look))
            pooled = [getattr(r, measure) for r in here if r.method == "pooled-k-means"]
            level = ("pooled k-means, no noise", float(np.mean(pooled))) if pooled else None
            zero = measure != "cost"
            title = DATA_TITLES[data]
            panels.append(Panel(title, "epsilon", label, lines, level, log_x=True, from_zero=zero))
        caption = (
            f"One accountant for all lines, delta 1e-4. Cost: lower is better. {_BAND} "
            "Dashed grey: k-means on pooled records."
        )
        files = panels_figure(panels, n_columns=3)
        yield Chart(f"{data}-frontier", f"{DATA_TITLES[data]}: what privacy costs", caption, files)


def _convergence_charts(found: Sequence[Fall]) -> Iterator[Chart]:
    """Yield one figure with a panel per data set and a line per partition, on log-log axes."""
    panels = []
    for data in distinct(f.data for f in found):
        here = [f for f in found if f.data == data]
        lines = [
            Line(f.partition, f.n_rounds, f.values, color=i, style=i, markers=True)
            for i, f in enumerate(here)
        ]
        first = here[0]
        x = first.n_rounds
        start = float(np.nanmean(np.asarray(first.values)[:, 0]))
        theorem = [start * (n / x[0]) ** THEOREM_SLOPE for n in x]
        lines.append(Line("slope -1/2", x, [theorem], color=5, style=2))
        panels.append(
            Panel(DATA_TITLES[data], "rounds R", "mean of G_H + G_W", lines, log_x=True, log_y=True)
        )
    if panels:
        caption = f"Both axes are logarithmic; Q1 grows like the square root of R. {_BAND}"
        files = panels_figure(panels, n_columns=len(panels))
        yield Chart("convergence", "Stationarity against rounds", caption, files)


def _one(results: Sequence[Result], measure: str, *, epsilon: float, seed: int) -> float:
    values = [getattr(r, measure) for r in results if (r.epsilon, r.seed) == (epsilon, seed)]
    return float(values[0]) if values else math.nan
