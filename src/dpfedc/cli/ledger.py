"""`dpfedc ledger`: what a site has spent of its lifetime cap, and whether its ledger is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfedc.cli.console import print_paragraphs, print_sentence, print_table

if TYPE_CHECKING:
    from dpfedc.privacy.ledger.book import Opening

ledger = typer.Typer(
    name="ledger",
    help="Look at a site's ledger, which charges every release to a lifetime cap.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_DAMAGED = 1
_SHORT = 12
"""Characters shown of a long hash or run id."""
_MEANING = {
    "inverse_squares": "sum of 1/z^2",
    "spare_delta": "spare delta",
    "epsilon": "epsilon",
    "delta": "delta",
}

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The site's ledger.")]


@ledger.command()
def show(file: _File) -> None:
    """Show what a site has spent of its lifetime cap, what is left, and in which runs."""
    from dpfedc.privacy.ledger import Ledger
    from dpfedc.privacy.statement import rounded_up

    with Ledger.open(file) as opened:
        opening, totals, head = opened.opening, opened.totals(), opened.head()
    print_paragraphs(
        [
            f"Holding: {opening.holding}; what is protected is one {opening.unit} "
            f"({opening.relation}).",
            f"Cap: {opening.cap_kind}, epsilon {opening.cap['epsilon']:g} at delta "
            f"{opening.cap['delta']:g}, for the lifetime of the holding.{_sums(opening)}",
            f"Spent so far: epsilon {rounded_up(totals.epsilon, 4)}; "
            f"{rounded_up(totals.epsilon_if_others_collude, 4)} if all others collude. For "
            "information: what is promised is the cap.",
        ]
    )
    print_table(
        ("", "spent", "left", "cap", "if all others collude"),
        [
            (
                _MEANING[name],
                *(
                    f"{values[name]:.4g}"
                    for values in (
                        totals.spent,
                        totals.left,
                        totals.limits,
                        totals.spent_if_others_collude,
                    )
                ),
            )
            for name, limit in totals.limits.items()
            if limit or totals.spent[name]
        ],
    )
    if totals.stages:
        head_row = ("run", "trust", "stage", "charged", "planned", "answered", "last")
        rows = []
        for stage in totals.stages:
            # Nothing at a site shows the noise that a server says it adds.
            asserted = " (asserted)" if stage.trust == "trusted-server" else ""
            rows.append(
                (
                    stage.run[:_SHORT],
                    f"{stage.trust}{asserted}",
                    stage.stage,
                    stage.n_charged,
                    stage.n_planned,
                    stage.n_answered,
                    stage.last_round,
                )
            )
        print_table(head_row, rows)
    print_sentence(f"{head.n_rows:,} rows; the last hash is {head.digest}", style="dim")


def _sums(opening: Opening) -> str:
    """Return what is asked of sums over sites, if anything is."""
    least = opening.least_colluding_sites
    if not least:
        return ""
    return f" Sums over sites must be safe with {least:,} or more of them colluding."


@ledger.command()
def verify(file: _File) -> None:
    """Check every row and every stored answer. Exit code 1 if any is not as it was written."""
    from dpfedc.privacy.ledger import Damaged, Ledger

    try:
        with Ledger.open(file) as opened:
            head = opened.verify()
    except Damaged as error:
        print_sentence(f"Damaged: {error}", style="red")
        raise typer.Exit(_DAMAGED) from None
    print_sentence(f"Whole: {head.n_rows:,} rows; the last hash is {head.digest}")
