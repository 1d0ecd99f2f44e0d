"""What `demo` and `fit` have in common: run, compare, write, print."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpfedc.cli.console import print_paragraphs, print_sentence, print_table, progress_bar
from dpfedc.cli.input_records import Records
from dpfedc.cli.planned import planned

if TYPE_CHECKING:
    from dpfedc.engine.run_record import RoundRecord
    from dpfedc.report.content import Outcome


def clustered(records: Records, *, compare: bool, **settings: Any) -> Outcome:
    """Run DP-FedC with a progress bar, and k-means on the pooled records if asked to compare.

    The plan is told in a line as soon as the first round is done: by then nothing can be refused.
    """
    from dpfedc.estimators.dp_fedc import DPFedC
    from dpfedc.report.content import scored_outcome

    with progress_bar() as advance:

        def on_round(entry: RoundRecord, n_rounds: int) -> None:
            if not told:
                told.append(plan_line(records, settings))
                print_sentence(told[0])
            advance(entry, n_rounds)

        told: list[str] = []
        estimator = DPFedC(**settings, on_round=on_round)
        estimator.fit(records.X, records.y, sites=records.sites)
    pooled = None
    if compare:
        from sklearn.cluster import KMeans

        seed = settings["random_state"] or 0
        kmeans = KMeans(settings["n_clusters"], n_init=10, random_state=seed)
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


def plan_line(records: Records, settings: dict[str, Any]) -> str:
    """Return what the run is going to do and promise, in a line."""
    import numpy as np

    from dpfedc.clustering.plan_text import plan_in_brief
    from dpfedc.kernels.segments import by_column

    sizes = np.bincount(by_column(records.sites)[0])
    plan, _, target = planned(settings, records.X.shape[1], sizes)
    return plan_in_brief(plan, target)


def print_outcome(outcome: Outcome) -> None:
    """Print what the run did, its scores, and what it promises."""
    from dpfedc.report.content import outcome_privacy, score_rows, summary_sentences

    for sentence in summary_sentences(outcome):
        print_sentence(sentence)
    head = ("", "this run", "pooled k-means")
    n_columns = 2 if outcome.pooled is None else 3
    rows = [row[:n_columns] for row in score_rows(outcome.scores, outcome.pooled)]
    print_table(head[:n_columns], rows)
    if len(rows) > 1:
        print_sentence("Higher is better, except for the cost.", style="dim")
    print_paragraphs(outcome_privacy(outcome))
