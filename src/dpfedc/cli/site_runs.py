"""`dpfedc site accept | decline | cancel | status | labels`: a site's runs, for its operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfedc.cli.console import (
    confirmed,
    print_paragraphs,
    print_path,
    print_sentence,
    print_table,
)
from dpfedc.cli.options import flag_option
from dpfedc.cli.site_setup import SiteFolderArgument

if TYPE_CHECKING:
    from dpfedc.deployment.site_status import RunStatus

_RUN = "The run, by its name or the first digits of its identity."
_Waiting = Annotated[
    str, typer.Argument(metavar="RUN", help=_RUN, show_default="the one that waits")
]
_Named = Annotated[str, typer.Argument(metavar="RUN", help=_RUN, show_default=False)]
WITHOUT_COLLUSION = (
    " This counts what is lost if no more sites collude than assumed; if all others do, it is "
    "more, as the terms say, and no cap limits it."
)
_Yes = Annotated[bool, flag_option("--yes", "Do not ask.")]


def status(
    folder: SiteFolderArgument,
    as_json: Annotated[bool, flag_option("--json", "Print one JSON object.")] = False,
) -> None:
    """Show the runs that were offered, and what is left of the lifetime cap."""
    from dpfedc.cli.ledger import show
    from dpfedc.deployment.admission import reservations
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.deployment.site_status import (
        latest_refusal,
        lost_rows,
        plain_status,
        reserved_in_words,
        run_statuses,
    )
    from dpfedc.privacy.ledger import Ledger

    opened = SiteFolder.open(folder)
    with Ledger.open(opened.ledger) as ledger:
        if as_json:
            print(json.dumps(plain_status(opened, ledger), indent=2))
            return
        statuses, held = run_statuses(opened, ledger), reservations(opened, ledger)
        lost = lost_rows(opened, ledger)
    unit = "records" if opened.persons is None else "persons"
    print_paragraphs([f"Site: {opened.name}, {opened.records:,} {unit}, server {opened.server}."])
    if statuses:
        print_table(("run", "name", "epsilon, delta", "state"), [_row(run) for run in statuses])
    show(opened.ledger)
    print_paragraphs(reserved_in_words(held))
    if lost:
        print_paragraphs([f"Rows lost: nothing is answered until this is settled. {lost}"])
    if refused := latest_refusal(opened):
        print_paragraphs([f"Refused: {refused}"])


def _row(run: RunStatus) -> tuple[str, ...]:
    words = {
        "offered": "waits for you: dpfedc site accept",
        "accepted": "accepted" if run.frozen else "accepted; records not frozen yet",
        "running": f"running: {run.answered} of {run.planned} rounds",
        "closed": "closed: rows of the ledger lost",
        "unreadable": "of another version, or changed",
    }
    promised = "" if run.epsilon is None else f"{run.epsilon:g}, {run.delta:g}"
    return (run.run[:12], run.name, promised, words.get(run.state, run.state))


def accept(folder: SiteFolderArgument, run: _Waiting = "", yes: _Yes = False) -> None:
    """Read the terms of a run that was offered, and accept it.

    Reads no records: the site's own process freezes them for the run when it is next asked about
    it. The cost of the run is reserved in the lifetime cap until it is over or cancelled.
    """
    from dpfedc.cli.run import expected_in_words
    from dpfedc.deployment import admission
    from dpfedc.deployment.peers import PinnedPeers
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.deployment.site_status import resolve
    from dpfedc.deployment.terms import identity_in_words, pins_in_words, terms
    from dpfedc.errors import InvalidInput
    from dpfedc.privacy.ledger import Ledger
    from dpfedc.privacy.statement import rounded_up

    opened = SiteFolder.open(folder)
    digest = resolve(opened, run, state="offered")
    state = opened.state(digest)
    if state in ("declined", "cancelled"):
        raise InvalidInput(
            f"run {digest[:12]} was {state} here, for good. The same plan with another name or "
            "seed is another run"
        )
    agreement = opened.agreement(digest)
    print_paragraphs(terms(agreement))  # plans the run again, and refuses what is not as it should
    print_paragraphs(expected_in_words(agreement))
    if state != "offered":
        print_sentence("This run has been accepted already.")
        return
    peers = PinnedPeers(opened.path)
    if agreement.is_masked:
        print_paragraphs(pins_in_words(peers.unpinned(agreement, opened.name)))
    with Ledger.open(opened.ledger) as ledger:
        # Says now, and here, what would otherwise keep the site from answering later.
        admission.require_fitting(agreement, opened, ledger)
        afterwards = admission.require_affordable(agreement, ledger, opened)
        others = bool(admission.reservations(opened, ledger))
        cap, spent = ledger.opening.cap, ledger.totals().epsilon
        after = "after this run and all that are accepted" if others else "after this run"
        print_paragraphs(
            [
                f"Lifetime cap: epsilon {cap['epsilon']:g} at delta {cap['delta']:g}. Spent so "
                f"far: {rounded_up(spent, 4)}; {after}: at most {rounded_up(afterwards, 4)}."
                + (WITHOUT_COLLUSION if agreement.is_masked else "")
            ]
        )
        print_paragraphs([identity_in_words(agreement)])
        if not yes and not confirmed("Accept this run?"):
            print_sentence("Not accepted.")
            raise typer.Exit(1)
        if agreement.is_masked:
            peers.pin_roster(agreement, opened.name)
        admission.accept(opened, agreement, ledger)
    print_sentence(
        f"Accepted run {digest[:12]}. Its records are frozen when `dpfedc site start` next hears "
        "of it."
    )


def peers(
    folder: SiteFolderArgument,
    pin: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="The site.pub of a peer, which came from its operator and not through the "
            "server. Repeat it for more.",
            show_default=False,
        ),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A peer that has a new key. Repeat it for more.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the sites whose keys are pinned here, pin more, or forget some.

    In secure aggregation peers' keys hide this site's uploads. A run in which a pinned peer has
    another key is refused. With `site start --accept` only runs are accepted whose peers are all
    pinned.
    """
    from dpfedc.deployment.keys import mark_of, read_certificate
    from dpfedc.deployment.peers import PinnedPeers
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.errors import DataUnavailable

    pinned = PinnedPeers(SiteFolder.open(folder).path)
    for name in forget or ():
        pinned.forget(name)
    for file in pin or ():
        if not file.is_file():
            raise DataUnavailable(f"no such file: {file}")
        name = pinned.pin(read_certificate(file.read_bytes()))
        print_sentence(f"Pinned {name} from {file}.")
    known = pinned.read()
    if known:
        sources = pinned.sources()
        rows = [(name, mark_of(key), sources[name]) for name, key in known.items()]
        print_table(("peer", "key", "from"), rows, words=True)
    else:
        print_sentence("No peer is pinned here.")


def decline(folder: SiteFolderArgument, run: _Waiting = "", yes: _Yes = False) -> None:
    """Refuse a run that was offered, for good."""
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.deployment.site_status import name_of, resolve

    opened = SiteFolder.open(folder)
    digest = resolve(opened, run, state="offered")
    if not yes and not confirmed(f"Decline run {digest[:12]} ({name_of(opened, digest)})?"):
        print_sentence("Not declined.")
        raise typer.Exit(1)
    opened.decline(digest)
    print_sentence(f"Declined run {digest[:12]}. It is refused from now on.")


def cancel(folder: SiteFolderArgument, run: _Named, yes: _Yes = False) -> None:
    """Answer nothing more for an accepted run, for good, and delete the records frozen for it.

    What was charged stays charged. What was reserved for the rest is free again.
    """
    from dpfedc.deployment import snapshot
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.deployment.site_status import name_of, resolve

    opened = SiteFolder.open(folder)
    digest = resolve(opened, run, state="accepted")
    if not yes and not confirmed(f"Cancel run {digest[:12]} ({name_of(opened, digest)}) for good?"):
        print_sentence("Not cancelled.")
        raise typer.Exit(1)
    opened.cancel(digest)
    snapshot.forget(opened, digest)
    print_sentence(f"Cancelled run {digest[:12]}. What was charged for it stays charged.")


def labels(
    folder: SiteFolderArgument,
    run: Annotated[str, typer.Option(metavar="RUN", help=_RUN, show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The CSV file for the labels.")
    ] = Path("labels.csv"),
) -> None:
    """Assign this site's records to the clusters of a finished run, here. Nothing is sent.

    The table is read as it is now.
    """
    import numpy as np

    from dpfedc.deployment.offered_runs import MODEL
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.deployment.site_status import resolve
    from dpfedc.errors import DataUnavailable
    from dpfedc.model_file import ClusterModel
    from dpfedc.report.output_files import Labels, require_labels_path
    from dpfedc.tables.trial_records import TrialRecords

    opened = SiteFolder.open(folder)
    digest = resolve(opened, run, state="finished")
    path = opened.run(digest) / MODEL
    if (state := opened.state(digest)) in ("declined", "cancelled"):
        raise DataUnavailable(f"run {digest[:12]} was {state} here, so its model was not taken")
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
        have = "1 record {} has" if null == 1 else f"{null:,} records {{}} have"
        print_sentence(f"{have.format(without)} the label -1.")
    print_path("Labels", output)
