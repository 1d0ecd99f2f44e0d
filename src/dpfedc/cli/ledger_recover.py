"""`dpfedc ledger recover`: a ledger that lost rows is charged the worst case, and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfedc.cli.console import confirmed, print_paragraphs, print_sentence, print_table
from dpfedc.cli.options import flag_option
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from dpfedc.privacy.ledger import Head, Ledger
    from dpfedc.privacy.privacy_plan import PrivacyPlan

MEANING = {
    "inverse_squares": "sum of 1/z^2",
    "spare_delta": "spare delta",
    "epsilon": "epsilon",
    "delta": "delta",
}


def recover(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ledger that lost rows.")],
    seen: Annotated[
        str,
        typer.Option(
            metavar="ROWS:HASH",
            help="What was seen of the ledger and is lost, as the site's log says it.",
            show_default="nobody has seen any of it",
        ),
    ] = "",
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The site's folder: charge what the runs accepted there can have cost, and not "
            "all that is left. Only if no trial (`fit --ledger`) was charged since the backup.",
            show_default="charge all that is left",
        ),
    ] = None,
    yes: Annotated[bool, flag_option("--yes", "Do not ask.")] = False,
) -> None:
    """Charge a ledger that was put back from a backup for what it has lost, and let it go on.

    Only if a backup was put back here: what was seen is the server's word alone, and a server that
    is wrong, or lies, can have you charge for nothing. If no backup was put back, ask its operator.
    Then look for the newest file: with it nothing is lost. What was charged since the backup is in
    no file any more, so the most that it can have been is charged: all that is left of the cap; or,
    with `--runs`, all that the runs accepted in that folder could still release. Runs of before are
    closed at this site for good. There is no way back.
    """
    from dpfedc.privacy.ledger import Ledger

    head = _head(seen) if seen else None
    with Ledger.open(file) as opened:
        plans = None if runs is None else _accepted(runs, file)
        _show(opened, head, plans)
        if not yes and not confirmed("Charge this? This cannot be undone."):
            print_sentence("Not charged.")
            raise typer.Exit(1)
        # Computed again from what is in the file by then: another process may have charged.
        new = opened.recover(head, plans=plans)
    print_sentence(f"Charged: {new.n_rows:,} rows; the last hash is {new.digest}")


def _show(ledger: Ledger, seen: Head | None, plans: dict[str, PrivacyPlan] | None) -> None:
    """Say what would be charged, and what is affirmed by it."""
    row, totals = ledger.worst_case(seen, plans=plans), ledger.totals()
    lost = "What is lost, nobody has seen."
    if seen is not None:
        lost = (
            f"{seen.n_rows:,} rows with hash {seen.digest[:12]} were seen, and are not in it; "
            f"{_ITS_WORD}"
        )
    known = {*(stage.run for stage in totals.stages), *(plans or ())} - totals.closed
    print_paragraphs(
        [
            f"Holding: {ledger.opening.holding}; the file has {ledger.head().n_rows:,} rows.",
            f"Lost: {lost}",
            f"Charged: {'all that is left of the cap' if plans is None else _BY_RUNS}.",
            f"Runs closed: {', '.join(sorted(run[:12] for run in known)) or 'none'}.",
            *([] if plans is None else [f"You affirm: {_AFFIRMED}"]),
        ]
    )
    print_table(
        ("", "spent", "to be charged", "left then", "cap"),
        [
            (
                MEANING[name],
                f"{totals.spent[name]:.4g}",
                f"{row.cost[name]:.4g}",
                f"{max(totals.left[name] - row.cost[name], 0.0):.4g}",
                f"{limit:.4g}",
            )
            for name, limit in totals.limits.items()
            if limit or totals.spent[name]
        ],
    )


_BY_RUNS = "all that the runs in the ledger and those accepted in the folder could still release"
_AFFIRMED = (
    "no other run was accepted here since the backup was made, no trial was charged since "
    "(`dpfedc fit --ledger`), the unit was not changed since, and nothing was released since the "
    "backup was put back. Nothing checks it. If you do not know, leave --runs out."
)
_ITS_WORD = (
    "only the server says so. If no backup was put back here, it is wrong or lies: do not charge, "
    "and ask its operator."
)


def _accepted(folder: Path, ledger: Path) -> dict[str, PrivacyPlan]:
    """Return the plans of all runs that were accepted at a site, also those that are over."""
    from dpfedc.deployment.site_folder import SiteFolder

    site = SiteFolder.open(folder)
    if site.ledger.resolve() != ledger.resolve():
        raise InvalidInput(f"--runs must be the folder that {ledger} lies in, got {folder}")
    runs = [run for run in site.offered() if site.is_accepted(run)]
    return {run: site.agreement(run).privacy for run in runs}


def _head(text: str) -> Head:
    from dpfedc.deployment.messages import checked_head

    rows, _, digest = text.partition(":")
    try:
        return checked_head([int(rows), digest])
    except ValueError as error:
        raise InvalidInput(
            f"--seen must be ROWS:HASH, a number and 64 hexadecimal digits, got {text!r}"
        ) from error
