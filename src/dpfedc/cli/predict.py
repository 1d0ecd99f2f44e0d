"""`dpfedc predict`: the clusters of new records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import print_path, print_sizes
from dpfedc.cli.input_records import file_records, require_features
from dpfedc.cli.options import Drop, Files, LabelColumn, Model, SiteColumn


def predict(
    model: Model,
    files: Files,
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The CSV file for the labels.")
    ] = Path("labels.csv"),
    site_column: SiteColumn = None,
    label_column: LabelColumn = None,
    drop: Drop = None,
) -> None:
    """Say to which cluster each new record belongs.

    The files must have the features that the model was made from. Writes one row per record, in
    the order of the input: its site, its number at the site, its cluster.
    """
    from dpfedc.model_file import ClusterModel
    from dpfedc.report.content import size_rows
    from dpfedc.report.output_files import require_labels_path, write_labels

    require_labels_path(output, inputs=(model, *files))
    fitted = ClusterModel.read(model)
    records = file_records(
        files, site_column=site_column, label_column=label_column, drop=drop or ()
    )
    require_features(records, fitted)
    labels = fitted.labels(records.X)
    write_labels(output, records.sites, labels)
    print_sizes(size_rows(labels, records.sites, len(fitted.directions)))
    print_path("Labels", output)
