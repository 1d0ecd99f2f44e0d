"""What a finished run comes to: its scores, the words about it, and the content of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfedc.engine.run_record import RunRecord
from dpfedc.kernels.metrics import cluster_sizes, kmeans_cost, scores
from dpfedc.kernels.segments import by_column
from dpfedc.model_file import ClusterModel
from dpfedc.report.promise import (
    STAGES_HEAD,
    privacy_paragraphs,
    stage_rows,
    stages_caption,
    unit_of,
)
from dpfedc.tables.trial_records import TrialRecords

if TYPE_CHECKING:
    from dpfedc.report.page import ReportContent

Row = tuple[str, float, float | None]

SCORE_NAMES = {
    "accuracy": "accuracy",
    "nmi": "NMI",
    "ari": "ARI",
    "cost": "k-means cost",
    "cost_to_centres": "cost to the model's centres",
}
"""The keys of scores in the order of every table, and what they are called there."""

_COST_EXPLAINED = (
    "The k-means cost is the mean squared distance of a record to the mean of its cluster: "
    "lower is better."
)
_LABELS_EXPLAINED = (
    "Accuracy, NMI and ARI compare the clusters with the known labels: higher is better, "
    "1 is perfect. "
)


def with_scores(
    record: RunRecord,
    X: npt.NDArray[Any],
    y: npt.NDArray[Any] | None,
    labels: npt.NDArray[Any],
    *,
    pooled_labels: npt.NDArray[Any] | None = None,
) -> RunRecord:
    """Return the record with its scores, and those of k-means on the pooled records if it ran."""
    sizes = np.bincount(labels[labels >= 0], minlength=record.settings["n_clusters"])
    results: dict[str, Any] = {"scores": scores(X, labels, y), "cluster_sizes": sizes.tolist()}
    if pooled_labels is not None:
        results["pooled_kmeans"] = scores(X, pooled_labels, y)
    return record.with_exact(**results)


def score_rows(found: Mapping[str, float], pooled: Mapping[str, float] | None = None) -> list[Row]:
    """Return the rows of a table of scores: name, this run, pooled k-means (None: not run)."""
    reference = pooled or {}
    return [
        (name, found[key], reference.get(key)) for key, name in SCORE_NAMES.items() if key in found
    ]


def recorded_scores(record: RunRecord) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return head and rows of the run's scores, beside those of pooled k-means if it was run."""
    pooled = record.results.get("pooled_kmeans")
    head, width = ("score", "this run", "pooled k-means"), 2 if pooled is None else 3
    rows = score_rows(record.results.get("scores", {}), pooled)
    return head[:width], [row[:width] for row in rows]


def model_scores(
    records: TrialRecords, labels: npt.NDArray[Any], *, model: ClusterModel
) -> dict[str, float]:
    """Return the scores of a model on records that it may never have seen; null ones have none.

    `cost` is to the means of the clusters in these records, `cost_to_centres` to the model's own.
    Distances in a table are those of its columns brought to like spread.
    """
    there = labels >= 0
    X, labels = model.seen(records.X)[there], labels[there]
    y = None if records.y is None else records.y[there]
    return {**scores(X, labels, y), "cost_to_centres": kmeans_cost(X, labels, model.seen_centers)}


def size_rows(
    labels: npt.NDArray[Any], sites: npt.NDArray[Any], n_clusters: int
) -> list[dict[str, int]]:
    """Return for every cluster its number, its records, and at how many sites it has any."""
    sizes = cluster_sizes(labels, by_column(sites)[0], n_clusters)
    return [
        {"cluster": c, "records": int(at.sum()), "sites": int((at > 0).sum())}
        for c, at in enumerate(sizes.T)
    ]


def summary_sentences(record: RunRecord) -> list[str]:
    """Return what the run did, in plain words."""
    settings, sizes = record.settings, record.results.get("cluster_sizes")
    n_sites, each, unit = settings["n_sites"], "", unit_of(record)
    if sizes:
        each = f" of {min(sizes):,} to {max(sizes):,} {unit}s"
        if min(sizes) == max(sizes):
            each = f" of {max(sizes):,} {unit}s each"
    where = "at one site" if n_sites == 1 else f"at {n_sites:,} sites"
    sentences = [
        f"{settings['n_records']:,} {unit}s with {settings['n_features']:,} features {where} "
        f"were put into {settings['n_clusters']} clusters{each}, in {len(record.rounds)} rounds."
    ]
    if n_sites > 1:
        sentences.append(f"Each site kept its {unit}s to itself.")
    if "coordinator" in settings:
        sentences.append(
            f"The run was coordinated by {settings['coordinator']}; its agreement is "
            f"{settings['run'][:12]}."
        )
    return sentences


def report_content(
    model: ClusterModel,
    record: RunRecord,
    sizes: npt.NDArray[np.int64] | None = None,
    site_names: Sequence[str] | None = None,
) -> ReportContent:
    """Return the content of the page about a run; `sizes` is (sites x clusters) where known."""
    # These draw figures, and so are slow to import.
    from dpfedc.report.markup import Table
    from dpfedc.report.page import ReportContent

    results, stages = record.results, stage_rows(record)
    head, found = recorded_scores(record)
    caption = _LABELS_EXPLAINED if "accuracy" in results.get("scores", {}) else ""
    return ReportContent(
        title=results.get("title") or f"Clusters by {record.method}",
        record=record,
        summary=summary_sentences(record),
        privacy=privacy_paragraphs(record),
        stages=Table(stages_caption(record), STAGES_HEAD, stages) if stages else None,
        scores=Table(caption + _COST_EXPLAINED, head, found) if found else None,
        centers=model.cluster_centers,
        image_shape=results.get("image_shape"),
        feature_names=model.feature_names,
        sizes=sizes,
        site_names=site_names,
        reference_accuracy=results.get("pooled_kmeans", {}).get("accuracy"),
        how_made=results.get("command", ""),
    )
