"""What `demo` and `fit` have in common: run, compare, write, print."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpfedc.cli.console import print_sentence, print_table, progress_bar
from dpfedc.cli.records import Records

if TYPE_CHECKING:
    from dpfedc.report.content import Outcome


def clustered(records: Records, *, compare: bool, **settings: Any) -> Outcome:
    """Run DP-FedC with a progress bar, and k-means on the pooled records if asked to compare."""
    from dpfedc.estimators.dp_fedc import DPFedC
    from dpfedc.report.content import scored_outcome

    with progress_bar() as on_round:
        estimator = DPFedC(**settings, on_round=on_round)
        estimator.fit(records.X, records.y, sites=records.sites)
    pooled = None
    if compare:
        from sklearn.cluster import KMeans

        kmeans = KMeans(settings["n_clusters"], n_init=10, random_state=settings["random_state"])
        pooled = kmeans.fit_predict(records.X)
    return scored_outcome(
        records.X,
        records.y,
        records.sites,
        model=replace(estimator.model_, feature_names=records.feature_names),
        record=estimator.history_,
        labels=estimator.labels_,
        pooled_labels=pooled,
        image_shape=records.image_shape,
    )


def print_outcome(outcome: Outcome) -> None:
    """Print what the run did, its scores, and what it promises."""
    from dpfedc.report.content import privacy_sentences, score_rows, summary_sentences

    for sentence in summary_sentences(outcome):
        print_sentence(sentence)
    head = ("", "this run", "pooled k-means")
    n_columns = 2 if outcome.pooled is None else 3
    rows = [row[:n_columns] for row in score_rows(outcome.scores, outcome.pooled)]
    print_table(head[:n_columns], rows)
    if len(rows) > 1:
        print_sentence("Higher is better, except for the cost.", style="dim")
    for sentence in privacy_sentences(outcome.record):
        print_sentence(sentence, style="yellow")
