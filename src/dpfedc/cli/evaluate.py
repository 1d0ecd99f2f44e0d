"""`dpfedc evaluate`: how well a model fits records."""

from __future__ import annotations

import json
from typing import Annotated

from dpfedc.cli.console import print_sizes, print_table
from dpfedc.cli.input_records import file_records, require_features
from dpfedc.cli.options import Drop, Files, LabelColumn, Model, SiteColumn, flag_option


def evaluate(
    model: Model,
    files: Files,
    site_column: SiteColumn = None,
    label_column: LabelColumn = None,
    drop: Drop = None,
    as_json: Annotated[bool, flag_option("--json", "Print one JSON object, for programs.")] = False,
) -> None:
    """Score a model on records.

    Shows the k-means cost and the sizes of the clusters and, where the true groups are known
    (--label-column), accuracy, NMI and ARI. Nothing is written.
    """
    from dpfedc.model_file import ClusterModel
    from dpfedc.report.content import model_scores, score_rows, size_rows

    fitted = ClusterModel.read(model)
    records = file_records(
        files, site_column=site_column, label_column=label_column, drop=drop or ()
    )
    require_features(records, fitted)
    labels = fitted.labels(records.X)
    found = model_scores(records.X, records.y, labels, model=fitted)
    sizes = size_rows(labels, records.sites, len(fitted.directions))
    if as_json:
        print(json.dumps({"n_records": len(labels), **found, "clusters": sizes}))
        return
    print_table(("score", "value"), [row[:2] for row in score_rows(found)])
    print_sizes(sizes)
