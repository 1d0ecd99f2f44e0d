"""What a finished run comes to: its scores, the words about it, and the content of its page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfedc.engine.run_record import RunRecord
from dpfedc.kernels.metrics import cluster_sizes, kmeans_cost, scores
from dpfedc.kernels.segments import by_column
from dpfedc.model_file import ClusterModel
from dpfedc.report.promise import (
    STAGES_CAPTION,
    STAGES_HEAD,
    privacy_paragraphs,
    recorded_plan,
    stage_rows,
)

if TYPE_CHECKING:
    from dpfedc.report.page import ReportContent, Row

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


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished run: the model, and exact facts about the records it clustered.

    `labels` and `sites` have one entry per record, in the order of the input. `pooled` holds the
    scores of k-means on the pooled records, if that was run for comparison.
    """

    model: ClusterModel
    record: RunRecord
    labels: npt.NDArray[Any]
    sites: npt.NDArray[Any]
    scores: Mapping[str, float]
    pooled: Mapping[str, float] | None = None
    image_shape: tuple[int, int] | None = None


def scored_outcome(
    X: npt.NDArray[Any],
    y: npt.NDArray[Any] | None,
    sites: npt.NDArray[Any],
    *,
    model: ClusterModel,
    record: RunRecord,
    labels: npt.NDArray[Any],
    pooled_labels: npt.NDArray[Any] | None = None,
    image_shape: tuple[int, int] | None = None,
) -> Outcome:
    """Return the outcome of a run, with its scores also among the results of its record."""
    found = scores(X, labels, y)
    pooled = None if pooled_labels is None else scores(X, pooled_labels, y)
    sizes = np.bincount(labels, minlength=len(model.cluster_centers))
    results: dict[str, Any] = {"scores": found, "cluster_sizes": sizes.tolist()}
    if pooled is not None:
        results["pooled_kmeans"] = pooled
    return Outcome(
        model=model,
        record=record.with_exact(**results),
        labels=labels,
        sites=sites,
        scores=found,
        pooled=pooled,
        image_shape=image_shape,
    )


def score_rows(found: Mapping[str, float], pooled: Mapping[str, float] | None = None) -> list[Row]:
    """Return the rows of a table of scores: name, this run, pooled k-means (None: not run)."""
    reference = pooled or {}
    return [
        (name, found[key], reference.get(key)) for key, name in SCORE_NAMES.items() if key in found
    ]


def model_scores(
    X: npt.NDArray[Any],
    y: npt.NDArray[Any] | None,
    labels: npt.NDArray[Any],
    *,
    model: ClusterModel,
) -> dict[str, float]:
    """Return the scores of a model on records that it may never have seen.

    `cost` is to the means of the clusters in these records, `cost_to_centres` to the model's own.
    """
    centers = model.cluster_centers
    return {**scores(X, labels, y), "cost_to_centres": kmeans_cost(X, labels, centers)}


def size_rows(
    labels: npt.NDArray[Any], sites: npt.NDArray[Any], n_clusters: int
) -> list[dict[str, int]]:
    """Return for every cluster its number, its records, and at how many sites it has any."""
    sizes = cluster_sizes(labels, by_column(sites)[0], n_clusters)
    return [
        {"cluster": c, "records": int(at.sum()), "sites": int((at > 0).sum())}
        for c, at in enumerate(sizes.T)
    ]


def summary_sentences(outcome: Outcome) -> list[str]:
    """Return what the run did, in plain words."""
    settings, rounds = outcome.record.settings, outcome.record.rounds
    n_sites, n_clusters = settings["n_sites"], settings["n_clusters"]
    sizes = np.bincount(outcome.labels, minlength=n_clusters)
    each = f"{sizes.min():,} to {sizes.max():,} records"
    if sizes.min() == sizes.max():
        each = f"{sizes.max():,} records each"
    where = "at one site" if n_sites == 1 else f"at {n_sites:,} sites"
    sentences = [
        f"{settings['n_records']:,} records with {settings['n_features']:,} features {where} "
        f"were put into {n_clusters} clusters of {each}, in {len(rounds)} rounds."
    ]
    if n_sites > 1:
        sentences.append("To find them, each site's records were used at that site only.")
    return sentences


def outcome_privacy(outcome: Outcome) -> list[str]:
    """Return what the run promises about any one record, and what it does not."""
    sizes = np.bincount(by_column(outcome.sites)[0])
    return privacy_paragraphs(outcome.record, sizes)


def report_content(outcome: Outcome, *, title: str, how_made: Sequence[str]) -> ReportContent:
    """Return the content of the page about a run; `how_made` is its command, word by word."""
    from dpfedc.report.page import ReportContent  # draws figures, and so is slow to import

    rows, names = by_column(outcome.sites)
    centers = outcome.model.cluster_centers
    plan = recorded_plan(outcome.record)
    labelled = "accuracy" in outcome.scores
    return ReportContent(
        title=title,
        record=outcome.record,
        summary=summary_sentences(outcome),
        privacy=outcome_privacy(outcome),
        stage_head=STAGES_HEAD,
        stage_rows=[] if plan is None else stage_rows(plan),
        stage_caption=STAGES_CAPTION,
        table_head=("score", "this run", "pooled k-means"),
        table_rows=score_rows(outcome.scores, outcome.pooled),
        table_caption=_LABELS_EXPLAINED + _COST_EXPLAINED if labelled else _COST_EXPLAINED,
        centers=centers,
        image_shape=outcome.image_shape,
        feature_names=outcome.model.feature_names,
        sizes=cluster_sizes(outcome.labels, rows, len(centers)),
        site_names=[str(name) for name in names],
        reference_accuracy=(outcome.pooled or {}).get("accuracy"),
        how_made=shlex.join(how_made),
    )
