"""`dpfedc show` and `dpfedc name`: the clusters of a run as people read them, and their names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import (
    print_paragraphs,
    print_path,
    print_quality,
    print_sentence,
    print_table,
)
from dpfedc.cli.options import flag_option, whole_number
from dpfedc.errors import InvalidInput

_Run = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="The folder of a run: that of fit or demo, one of the server's or of a site's runs; "
        "or its model.npz.",
    ),
]


def cluster_number(text: str) -> int:
    """Return the number of a cluster, as it was typed."""
    return whole_number(text, least=0)


def show(
    folder: _Run,
    as_json: Annotated[
        bool, flag_option("--json", "Print one JSON object with all columns, for programs.")
    ] = False,
    as_csv: Annotated[
        bool, flag_option("--csv", "Print a row for every cluster, column and value.")
    ] = False,
    as_markdown: Annotated[
        bool, flag_option("--markdown", "Print Markdown, for a document.")
    ] = False,
) -> None:
    """Show each cluster of a run: how many, what sets it apart, how sure that is.

    Everything that is shown was released, and has its error bars where the noise is known.
    """
    from dpfedc.report import summary_text as text
    from dpfedc.report.folder import read_clusters
    from dpfedc.summary import cluster_text

    if as_json + as_csv + as_markdown > 1:
        raise InvalidInput("--json, --csv and --markdown exclude each other, got more than one")
    reading = read_clusters(folder)
    if as_json:
        print(text.as_json(reading))
    elif as_csv:
        sys.stdout.write(text.as_csv(reading).decode())
    elif as_markdown:
        print(text.as_markdown(reading), end="")
    else:
        print_paragraphs(text.opening(reading))
        choice = reading.summary.choice
        if choice is not None:
            print_table(choice.HEAD, choice.rows())
        print_table(*cluster_text.brief_rows(reading.summary), words=True)
        print_quality(reading.quality, reading.summary.unit)
        for cluster in reading.summary.clusters:
            rows = cluster_text.detail_rows(cluster)
            if rows:
                print_sentence(cluster_text.heading(cluster), style="bold")
                print_table(cluster_text.HEAD, rows)


def name(
    folder: _Run,
    cluster: Annotated[
        int,
        typer.Argument(
            metavar="CLUSTER",
            parser=cluster_number,
            help="The cluster's number.",
        ),
    ],
    called: Annotated[
        str,
        typer.Argument(metavar="NAME", help='What to call it; "" takes its name away.'),
    ],
) -> None:
    """Give a cluster a name, which is shown wherever the cluster is.

    The name is kept in model.npz; centres.csv and the page beside it are made anew. It stays here:
    a coordinator's names reach the sites with the model.
    """
    from dpfedc.report.folder import name_cluster

    file = name_cluster(folder, cluster, called)
    done = f'is called "{called.strip()}"' if called.strip() else "has no name"
    print_sentence(f"Cluster {cluster} {done}.")
    print_path("Model", file)
