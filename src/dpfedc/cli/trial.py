"""What `demo` and `fit` have in common: run, compare, write, print."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.cli.console import (
    print_clusters,
    print_paragraphs,
    print_sentence,
    print_table,
    progress_bar,
    waiting,
)
from dpfedc.cli.input_records import Given

if TYPE_CHECKING:
    from dpfedc.engine.run_record import RoundRecord, RunRecord
    from dpfedc.model_file import ClusterModel


def run_trial(
    given: Given,
    folder: Path,
    *,
    title: str,
    command: Sequence[str],
    compare: bool,
    **settings: Any,
) -> Path:
    """Run DP-FedC, write its files into the folder, print the outcome, return the page's path.

    With `compare`, k-means is run on the pooled records as well. A bar shows the rounds. The plan
    is told in a line as soon as the first round is done: by then nothing can be refused.
    """
    from dpfedc.clustering.plan_text import plan_in_brief
    from dpfedc.estimators.dp_fedc import DPFedC
    from dpfedc.report.content import with_scores
    from dpfedc.report.folder import write_results
    from dpfedc.report.output_files import Labels

    records = given.records
    with progress_bar("Clustering", "rounds") as tell:
        numbers = count(1)

        def on_round(_: RoundRecord, n_rounds: int) -> None:
            number = next(numbers)
            if number == 1:
                print_sentence(plan_in_brief(estimator.plan_, estimator._target()))
            tell(number, n_rounds)

        estimator = DPFedC(**settings, on_round=on_round)
        estimator.fit_records(records)
    verdict = None
    if estimator._method().proved:
        with waiting("Rehearsing, for a verdict"):
            verdict = estimator.verdict_.as_plain()
    model = replace(estimator.model_, feature_names=records.feature_names)
    there = slice(None) if records.present is None else records.present
    X = model.seen(records.X)[there]
    y = None if records.y is None else records.y[there]
    pooled = None
    if compare:
        from sklearn.cluster import KMeans

        seed = settings["random_state"] or 0
        kmeans = KMeans(len(model.directions), n_init=10, random_state=seed)
        pooled = kmeans.fit_predict(X)
    record = with_scores(
        estimator.history_,
        X,
        y,
        estimator.record_labels_[there],
        n_clusters=len(model.directions),
        pooled_labels=pooled,
    ).with_results(
        title=title,
        command=shlex.join(command),
        image_shape=given.image_shape,
        verdict=verdict,
    )
    page = write_results(folder, model, record, Labels.of(records, model, estimator.record_labels_))
    print_outcome(record, model)
    return page


def print_outcome(record: RunRecord, model: ClusterModel) -> None:
    """Print what the run did, the clusters, their scores, and what it promises, in short."""
    from dpfedc.report.content import recorded_scores, summary_sentences
    from dpfedc.report.promise import (
        privacy_in_short,
        privacy_paragraphs,
        recorded_guarantee,
        verdict_paragraphs,
    )

    for sentence in summary_sentences(record, model):
        print_sentence(sentence)
    print_clusters(model)
    print_paragraphs(verdict_paragraphs(record.results))
    head, rows = recorded_scores(record)
    print_table(head, rows)
    print_sentence("Exact scores of this trial, not released.", style="dim")
    if len(rows) > 1:
        print_sentence("Higher is better, except for the cost.", style="dim")
    proved = recorded_guarantee(record) is not None
    print_paragraphs(privacy_in_short(record) if proved else privacy_paragraphs(record))
