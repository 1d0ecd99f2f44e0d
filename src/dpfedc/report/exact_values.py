"""The exact values of a trial, which no noise covers: they stand in one marked part of its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedc.engine.run_record import RunRecord
from dpfedc.report.content import recorded_scores
from dpfedc.report.figures import sizes_figure
from dpfedc.report.line_charts import LineChart, line_chart
from dpfedc.report.markup import Picture, Table
from dpfedc.report.pictures import inlined
from dpfedc.report.promise import unit_of
from dpfedc.summary.number_text import shown

_COST_EXPLAINED = (
    "The cost to the means is the mean squared distance of a {unit} to the mean of its cluster: "
    "lower is better, and it says something only beside that of another run on the same {unit}s."
)
_LABELS_EXPLAINED = (
    "Accuracy, NMI and ARI compare the clusters with the known labels: higher is better, "
    "1 is perfect. "
)


@dataclass(frozen=True, eq=False)
class ExactValues:
    """Scores, how they grew, and who is where; each None where it is not known."""

    scores: Table | None = None
    sizes: Table | None = None
    accuracy: LineChart | None = None
    per_site: Picture | None = None


def exact_values(
    record: RunRecord,
    sizes: npt.ArrayLike | None = None,
    site_names: Sequence[str] | None = None,
) -> ExactValues | None:
    """Return the exact values of a run; None if there are none. `sizes` is (sites x clusters)."""
    results, unit = record.results, unit_of(record)
    head, found = recorded_scores(record)
    scores = None
    if found:
        caption = _LABELS_EXPLAINED if "accuracy" in results.get("scores", {}) else ""
        scores = Table(caption + _COST_EXPLAINED.format(unit=unit), head, found)
    counted = results.get("cluster_sizes")
    table = None
    if counted:
        rows = [(f"cluster {c}", n) for c, n in enumerate(counted)]
        table = Table("How many are in each cluster", ("cluster", f"{unit}s"), rows)
    reference = results.get("pooled_kmeans", {}).get("accuracy")
    line = "" if reference is None else f" Dashed: k-means on pooled data, {shown(reference, 3)}."
    accuracy = line_chart(
        record,
        list(zip(*record.series("accuracy"), strict=True)),
        heading="Accuracy per round",
        what="the accuracy",
        caption=f"The share of {unit}s whose cluster matches their label; higher is better.{line}",
        reference=reference,
    )
    per_site = None if sizes is None else _per_site(np.asarray(sizes), site_names, unit)
    parts = (scores, table, accuracy, per_site)
    return None if parts == (None,) * len(parts) else ExactValues(*parts)


def _per_site(sizes: npt.NDArray[np.int64], names: Sequence[str] | None, unit: str) -> Picture:
    png = sizes_figure(sizes, names, unit=unit)
    totals = [shown(total) for total in (sizes.sum(axis=1).min(), sizes.sum(axis=1).max())]
    what = f"sites: {len(sizes):,}, {unit}s per site: {totals[0]} to {totals[1]}"
    alt = f"Stacked bars, one per site, one colour per cluster; {what}."
    caption = f"Each bar is a site, each colour a cluster; {what}."
    return Picture(inlined(png), "Cluster sizes per site", png, alt, caption)
