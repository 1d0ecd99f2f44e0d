"""`dpfedc report`: the page about a run, from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import print_path


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The folder of a run: that of fit or demo, or one of the server's runs.",
        ),
    ],
) -> None:
    """Make the page about a run from the files in its folder.

    It needs model.npz and run.jsonl. Cluster sizes at each site are shown if labels.csv is there.
    """
    from dpfedc.report.folder import write_page

    print_path("Report", write_page(folder))
