"""`dpfedc ledger`: what was spent of a lifetime cap, and whether the ledger is whole."""

from __future__ import annotations

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
from dpfedc.cli.ledger_recover import MEANING, recover
from dpfedc.cli.lifetime_cap import CapDelta, CapEpsilon, CapKind, KindOfCap, chosen_cap
from dpfedc.cli.options import Unit, count_option, flag_option

if TYPE_CHECKING:
    from dpfedc.privacy.ledger import Totals
    from dpfedc.privacy.ledger.ledger_rows import Opening

ledger = typer.Typer(
    name="ledger",
    help="Look at a ledger, which charges every release to a lifetime cap, change what the cap is "
    "for, make one for trials, or go on with one that lost rows.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
ledger.command()(recover)

_DAMAGED = 1
_SHORT = 12
"""Characters shown of a long hash or run id."""
_File = Annotated[Path, typer.Argument(metavar="FILE", help="The ledger of a site, or of trials.")]


@ledger.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new ledger.")],
    cap_epsilon: CapEpsilon,
    cap_delta: CapDelta,
    cap_kind: KindOfCap = CapKind.GAUSSIAN,
    unit: Annotated[
        Unit, typer.Option(metavar="UNIT", help="What the cap is for: one record or one person.")
    ] = Unit.RECORD,
    holding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The people or things that the records are about.",
            show_default="the file's name",
        ),
    ] = None,
) -> None:
    """Make a ledger for trials, which `dpfedc fit --ledger` and `DPFedC(ledger=...)` charge.

    A deployed site has one of its own, from `dpfedc site init`.
    """
    from dpfedc.privacy.ledger import Ledger

    cap = chosen_cap(cap_kind, cap_epsilon, cap_delta)
    Ledger.create(file, holding=holding or file.stem, cap=cap, unit=str(unit)).close()
    print_path("Ledger", file)


@ledger.command()
def show(file: _File) -> None:
    """Show what was spent of the lifetime cap, what is left, and in which runs."""
    from dpfedc.privacy.ledger import Ledger
    from dpfedc.privacy.statement import rounded_up

    with Ledger.open(file) as opened:
        opening, totals, head, unit = opened.opening, opened.totals(), opened.head(), opened.unit
    print_paragraphs(
        [
            f"Holding: {opening.holding}; what is protected is one {unit} ({opening.relation}).",
            f"Cap: {opening.cap_kind}, epsilon {opening.cap['epsilon']:g} at delta "
            f"{opening.cap['delta']:g}, for the lifetime of the holding.{_sums(opening)}",
            f"Spent so far: epsilon {rounded_up(totals.epsilon, 4)}; "
            f"{rounded_up(totals.epsilon_if_others_collude, 4)} if all others collude. For "
            "information: what is promised is the cap.",
            *_over(totals, unit),
            *_lost(totals),
        ]
    )
    print_table(
        ("", "spent", "left", "cap", "if all others collude"),
        [
            (
                MEANING[name],
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


def _over(totals: Totals, unit: str) -> list[str]:
    """Return a warning if a change of unit has carried over more than the cap."""
    if min(totals.left.values()) >= 0:
        return []
    return [f"Warning: for one {unit}, more was spent than the cap allows. Nothing is left."]


def _lost(totals: Totals) -> list[str]:
    """Return what was charged for rows that were lost, if any were."""
    found = []
    for row in totals.recoveries:
        charged = [f"{v:.4g} of {MEANING[n]}" for n, v in row.cost.items() if v] or ["nothing more"]
        seen = f" ({row.seen[0]:,} had been seen)" if row.seen else ""
        known = "" if row.plans is not None else ". What others know if they collude may be more"
        found.append(f"Lost rows{seen}: charged the worst case, {', '.join(charged)}{known}.")
    if found:
        closed = ", ".join(sorted(run[:_SHORT] for run in totals.closed)) or "none"
        found.append(f"Closed runs: {closed}.")
    return found


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


@ledger.command()
def change_unit(
    file: _File,
    to: Annotated[
        Unit, typer.Option(metavar="UNIT", help="What the cap is to be for: record or person.")
    ],
    rows_per_person: Annotated[
        int,
        count_option(
            "No person ever had more rows than this in the records that the ledger is for. It is "
            "for you to know: nothing checks it.",
            show_default=False,
        ),
    ],
    yes: Annotated[bool, flag_option("--yes", "Do not ask.")] = False,
) -> None:
    """Let the lifetime cap be for one person instead of one record, or the other way round.

    What was spent is carried over, as much as it counts for the new unit, and never less. If that
    is more than the cap, nothing is left. There is no way back to what was spent before.
    """
    from dpfedc.privacy.ledger import Ledger
    from dpfedc.privacy.ledger.caps import cap_of
    from dpfedc.privacy.statement import rounded_up

    with Ledger.open(file) as opened:
        opening, totals, before = opened.opening, opened.totals(), opened.unit
        row = opened.change_of_unit(str(to), rows_per_person=rows_per_person)
        cap = cap_of(opening.cap_kind, opening.cap)
        print_paragraphs(
            [
                f"Holding: {opening.holding}; what is protected is one {before}, and will be one "
                f"{to}, with at most {rows_per_person:,} rows per person.",
                f"Spent so far: epsilon {rounded_up(totals.epsilon, 4)} for one {before}; "
                f"{rounded_up(cap.epsilon_of(row.carried), 4)} for one {to}, of a cap of "
                f"{opening.cap['epsilon']:g} at delta {opening.cap['delta']:g}.",
            ]
        )
        shown = [name for name, limit in totals.limits.items() if limit or totals.spent[name]]
        print_table(
            ("", "spent", "carried over", "cap"),
            [
                (MEANING[n], *(f"{v[n]:.4g}" for v in (totals.spent, row.carried, totals.limits)))
                for n in shown
            ],
        )
        if any(row.carried[name] >= totals.limits[name] for name in shown):
            print_paragraphs([f"Warning: nothing will be left of the cap for one {to}."])
        if not yes and not confirmed("Change the unit? This cannot be undone."):
            print_sentence("Not changed.")
            raise typer.Exit(1)
        # Computed again from what is in the file by then: another process may have charged.
        head = opened.change_unit(str(to), rows_per_person=rows_per_person)
    print_sentence(f"Changed: {head.n_rows:,} rows; the last hash is {head.digest}")
