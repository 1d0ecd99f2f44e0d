"""`dpfedc predict`: the clusters of new records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import print_path, print_sizes
from dpfedc.cli.input_records import Tables, for_model
from dpfedc.cli.options import (
    DatabaseTable,
    Decimals,
    Delimiters,
    Encodings,
    Files,
    LabelColumn,
    Model,
    OrderBy,
    PasswordEnv,
    PersonColumn,
    SiteColumn,
)


def predict(
    model: Model,
    files: Files,
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="The CSV file for the labels.")
    ] = Path("labels.csv"),
    person_column: PersonColumn = None,
    site_column: SiteColumn = None,
    label_column: LabelColumn = None,
    delimiter: Delimiters = None,
    encoding: Encodings = None,
    decimal: Decimals = None,
    table: DatabaseTable = None,
    order_by: OrderBy = None,
    password_env: PasswordEnv = None,
) -> None:
    """Say to which cluster each new record belongs.

    The tables must have the columns that the model was made from, which are found by their names;
    others are not read. Writes one row per record or person, in the order of the input: its site,
    its id or number at the site, its cluster.
    """
    options = locals()
    from dpfedc.model_file import ClusterModel
    from dpfedc.report.output_files import Labels, require_labels_path

    tables = Tables.of(options)
    require_labels_path(output, inputs=(model, *tables.paths))
    fitted = ClusterModel.read(model)
    records = for_model(tables, fitted)
    labels = Labels.of(records, fitted)
    labels.write(output)
    print_sizes(labels.sizes(fitted), records.unit)
    print_path("Labels", output)
