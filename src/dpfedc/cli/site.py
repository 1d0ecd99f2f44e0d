"""`dpfedc site`: one site's side of a federation on separate machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import (
    confirmed,
    print_paragraphs,
    print_path,
    print_sentence,
    print_table,
)
from dpfedc.cli.options import flag_option
from dpfedc.cli.site_setup import SiteFolderArgument, check, init

site = typer.Typer(
    name="site",
    help="Take part in a federation with the records of this site, which never leave it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


for _command in (init, check):
    site.command()(_command)

_Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The run, by the first digits of its identity.",
        show_default="the one that waits",
    ),
]


@site.command()
def start(
    folder: SiteFolderArgument,
    accept: Annotated[
        bool,
        flag_option(
            "--accept",
            "Accept every run that keeps within the lifetime cap, without asking anyone.",
        ),
    ] = False,
    allow_simulated: Annotated[
        bool,
        flag_option(
            "--allow-simulated", "Also take part with noise that protects nobody. For tests."
        ),
    ] = False,
) -> None:
    """Connect to the server and answer its requests until interrupted.

    Only code that is installed here runs here; the server sends numbers. Nothing leaves the site
    for a run that was not accepted.
    """
    import signal
    import threading

    from dpfedc.deployment.flower.fleet_client import FleetClient, attend
    from dpfedc.deployment.keys import read_site_key
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.deployment.site_service import SiteService
    from dpfedc.whole_files import locked

    opened, stop = SiteFolder.open(folder), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with locked(opened.path / "lock", refusal=f"another process serves {opened.path} already"):
        service = SiteService(opened, accept=accept, allow_simulated=allow_simulated, tell=tell)
        client = FleetClient(
            opened.server, read_site_key(opened.path / "site.key"), authority=opened.authority
        )
        try:
            attend(client, service.reply, folder=opened.path, tell=tell, stop=stop)
        finally:
            client.close()
            service.close()


@site.command()
def status(folder: SiteFolderArgument) -> None:
    """Show the runs that were offered, and what is left of the lifetime cap."""
    from dpfedc.cli.ledger import show
    from dpfedc.deployment.site_folder import MODEL, SiteFolder

    opened = SiteFolder.open(folder)
    unit = "records" if opened.persons is None else "persons"
    print_paragraphs([f"Site: {opened.name}, {opened.records:,} {unit}, server {opened.server}."])
    rows = []
    for run in opened.offered():
        state = "accepted" if opened.is_accepted(run) else "waits for you: dpfedc site accept"
        if (opened.run(run) / MODEL).exists():
            state = "finished"
        agreement = opened.agreement(run)
        epsilon, delta = agreement.epsilon, agreement.privacy.delta
        rows.append((run[:12], agreement.name, f"{epsilon:g}, {delta:g}", state))
    if rows:
        print_table(("run", "name", "epsilon, delta", "state"), rows)
    show(opened.ledger)


@site.command()
def accept(
    folder: SiteFolderArgument,
    run: _Run = "",
    yes: Annotated[bool, flag_option("--yes", "Do not ask.")] = False,
) -> None:
    """Read the terms of a run that was offered, and accept it."""
    from dpfedc.cli.run import expected_in_words
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.deployment.site_service import require_affordable, site_node
    from dpfedc.deployment.terms import terms
    from dpfedc.privacy.ledger import Ledger
    from dpfedc.privacy.statement import rounded_up

    opened = SiteFolder.open(folder)
    digest = opened.resolve(run)
    agreement = opened.agreement(digest)
    print_paragraphs(terms(agreement))  # plans the run again, and refuses what is not as it should
    print_paragraphs(expected_in_words(agreement))
    if opened.is_accepted(digest):
        print_sentence("This run has been accepted already.")
        return
    with Ledger.open(opened.ledger) as ledger:
        # Says now, and here, what would otherwise keep the site from answering later.
        afterwards = require_affordable(agreement, ledger)
        site_node(opened, digest, ledger, allow_simulated=True)
        cap, spent = ledger.opening.cap, ledger.totals().epsilon
    print_paragraphs(
        [
            f"Lifetime cap: epsilon {cap['epsilon']:g} at delta {cap['delta']:g}. Spent so far: "
            f"{rounded_up(spent, 4)}; after this run: at most {rounded_up(afterwards, 4)}."
        ]
    )
    if not yes and not confirmed("Accept this run?"):
        print_sentence("Not accepted.")
        raise typer.Exit(1)
    opened.accept(digest)
    print_sentence(f"Accepted run {digest[:12]}.")


@site.command()
def labels(
    folder: SiteFolderArgument,
    run: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="The run, by the first digits of its identity.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The CSV file for the labels.")
    ] = Path("labels.csv"),
) -> None:
    """Assign this site's records to the clusters of a finished run, here. Nothing is sent."""
    import numpy as np

    from dpfedc.deployment.site_folder import MODEL, SiteFolder
    from dpfedc.errors import DataUnavailable
    from dpfedc.model_file import ClusterModel
    from dpfedc.report.output_files import Labels, require_labels_path
    from dpfedc.tables.trial_records import TrialRecords

    opened = SiteFolder.open(folder)
    digest = opened.resolve(run)
    path = opened.run(digest) / MODEL
    if not path.exists():
        raise DataUnavailable(
            f"run {digest[:12]} has not come to its end yet, or its model was sent while this site "
            "was away: have its operator use `dpfedc run resume`"
        )
    require_labels_path(output, inputs=(path,))
    model = ClusterModel.read(path)
    agreement = opened.agreement(digest)
    records = opened.source.load(agreement.schema or agreement.features)
    schema = agreement.schema or opened.source.plain_schema(agreement.features)
    sites = np.full(len(records.X), opened.name)
    Labels.of(TrialRecords.of(records, schema, sites), model).write(output)
    null = int((~records.present).sum())
    if null:
        without = "with gaps" if agreement.schema is None else "without any value"
        print_sentence(f"{null:,} records {without} have the label -1.")
    print_path("Labels", output)


def tell(text: str) -> None:
    """Print a line for the operator, with the time, at once."""
    from datetime import datetime

    print(f"{datetime.now().isoformat(timespec='seconds')} {text}", flush=True)
