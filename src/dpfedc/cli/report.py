"""`dpfedc report`: the page about a run, from its files, and one that may be shared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import print_path
from dpfedc.cli.options import flag_option
from dpfedc.errors import InvalidInput


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The folder of a run: that of fit or demo, or one of the server's runs.",
        ),
    ],
    shareable: Annotated[
        bool,
        flag_option(
            "--shareable",
            "Write a page for others instead: released values and public facts only, in one file.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            show_default=False,
            help="Where the page to share goes (FOLDER/shareable.html if left out).",
        ),
    ] = None,
) -> None:
    """Make the page about a run from the files in its folder.

    It needs model.npz and run.jsonl. Exact cluster sizes at each site are shown if labels.csv is
    there. The page of a trial holds exact values, which must not be published; the one made by
    --shareable holds none.
    """
    from dpfedc.report.folder import write_page, write_page_to_share

    if shareable:
        print_path("To share", write_page_to_share(folder, output))
        return
    if output is not None:
        raise InvalidInput("--output must come with --shareable, got it alone")
    print_path("Report", write_page(folder))
