"""What a finished run comes to: its scores, and the words about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.engine.run_record import RunRecord
from dpfedc.kernels.metrics import cluster_sizes, kmeans_cost, scores
from dpfedc.kernels.segments import by_column
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.statement import counted
from dpfedc.report.promise import unit_of
from dpfedc.tables.trial_records import TrialRecords

Row = tuple[str, float, float | None]

SCORE_NAMES = {
    "accuracy": "accuracy",
    "nmi": "NMI",
    "ari": "ARI",
    "cost": "cost to the means",
    "cost_to_centres": "cost to the model's centres",
}
"""The keys of scores in the order of every table, and what they are called there."""


def with_scores(
    record: RunRecord,
    X: npt.NDArray[Any],
    y: npt.NDArray[Any] | None,
    labels: npt.NDArray[Any],
    *,
    n_clusters: int,
    pooled_labels: npt.NDArray[Any] | None = None,
) -> RunRecord:
    """Return the record with its scores, and those of k-means on the pooled records if it ran."""
    sizes = np.bincount(labels[labels >= 0], minlength=n_clusters)
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


def what_was_done(unit: str, *, n_records: int, n_sites: int, n_clusters: int, columns: str) -> str:
    """Return in a sentence how many were clustered by what; `columns` with their number."""
    where = "at one site" if n_sites == 1 else f"at {n_sites:,} sites"
    return f"{n_records:,} {unit}s {where} were put into {n_clusters} clusters by {columns}."


def columns_of(model: ClusterModel) -> str:
    """Return by how many columns a model tells records apart; a category is one."""
    n = model.center.size if model.schema is None else len(model.schema.columns)
    return counted(n, "column")


def summary_sentences(record: RunRecord, model: ClusterModel) -> list[str]:
    """Return what the run did, in plain words."""
    settings, unit = record.settings, unit_of(record)
    n_sites, n_rounds = settings["n_sites"], len(record.rounds)
    sentences = [
        what_was_done(
            unit,
            n_records=settings["n_records"],
            n_sites=n_sites,
            n_clusters=len(model.directions),
            columns=columns_of(model),
        )
    ]
    rounds, n_lost = counted(n_rounds, "round"), sum(entry.lost for entry in record.rounds)
    if n_lost:
        rounds += f", of which {n_lost:,} {'was' if n_lost == 1 else 'were'} lost (too few answers)"
    if n_sites > 1:
        sentences.append(f"It took {rounds}; each site kept its {unit}s to itself.")
    else:
        sentences.append(f"It took {rounds}.")
    if "coordinator" in settings:
        sentences.append(
            f"The run was coordinated by {settings['coordinator']}; its agreement is "
            f"{settings['run'][:12]}."
        )
    return sentences
