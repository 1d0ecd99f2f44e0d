"""`dpfedc evaluate`: how well a model fits records."""

from __future__ import annotations

import json
from typing import Annotated

from dpfedc.cli.console import print_sizes, print_table
from dpfedc.cli.input_records import Tables, for_model
from dpfedc.cli.options import (
    Decimals,
    Delimiters,
    Encodings,
    Files,
    LabelColumn,
    Model,
    PersonColumn,
    SiteColumn,
    flag_option,
)


def evaluate(
    model: Model,
    files: Files,
    person_column: PersonColumn = None,
    site_column: SiteColumn = None,
    label_column: LabelColumn = None,
    delimiter: Delimiters = None,
    encoding: Encodings = None,
    decimal: Decimals = None,
    as_json: Annotated[bool, flag_option("--json", "Print one JSON object, for programs.")] = False,
) -> None:
    """Score a model on records.

    Shows costs (mean squared distances) and the sizes of the clusters and, where the true groups
    are known (--label-column), accuracy, NMI and ARI. Nothing is written.
    """
    options = locals()
    from dpfedc.model_file import ClusterModel
    from dpfedc.report.content import model_scores, score_rows
    from dpfedc.report.output_files import Labels

    fitted = ClusterModel.read(model)
    tables = Tables.of(options)
    records = for_model(tables, fitted)
    labels = Labels.of(records, fitted)
    found = model_scores(records, labels.clusters, model=fitted)
    sizes = labels.sizes(fitted)
    if as_json:
        print(json.dumps({"n_records": len(labels.clusters), **found, "clusters": sizes}))
        return
    print_table(("score", "value"), [row[:2] for row in score_rows(found)])
    print_sizes(sizes, records.unit)
