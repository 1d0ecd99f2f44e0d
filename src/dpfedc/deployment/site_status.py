"""What a site's operator can know of its runs, and by which words a run is found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from dpfedc.deployment.admission import Reservation, reservations
from dpfedc.deployment.offered_runs import AGREEMENT, REFUSED
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.snapshot import is_frozen
from dpfedc.errors import InvalidInput, printable
from dpfedc.privacy.ledger import Ledger, RowsLost, Unusable


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands at a site.

    `state` is offered, declined, accepted, running, cancelled, finished, closed (rows of the ledger
    were lost) or unreadable. `answered` counts the rounds that this site has answered, `planned`
    those that it may be asked for.
    """

    run: str
    name: str
    state: str
    epsilon: float | None = None
    delta: float | None = None
    answered: int = 0
    planned: int | None = None
    frozen: bool = False


def run_statuses(folder: SiteFolder, ledger: Ledger) -> list[RunStatus]:
    """Return where all runs stand that were offered, the oldest first."""
    totals, found = ledger.totals(), []
    for run in folder.offered():
        state = folder.state(run)
        answered = sum(s.n_answered for s in totals.stages if s.run == run)
        if state == "accepted" and any(stage.run == run for stage in totals.stages):
            state = "running"
        if state in ("accepted", "running") and run in totals.closed:
            state = "closed"
        try:
            agreement = folder.agreement(run)
        except InvalidInput:  # of a version before, or changed on the disk
            name = name_of(folder, run)
            found.append(RunStatus(run, name, "unreadable", answered=answered))
            continue
        planned = sum(release.rounds_per_site for release in agreement.privacy.releases)
        promised = (agreement.epsilon, agreement.privacy.delta)
        frozen = is_frozen(folder, run)
        found.append(RunStatus(run, agreement.name, state, *promised, answered, planned, frozen))
    return found


def plain_status(folder: SiteFolder, ledger: Ledger) -> dict[str, Any]:
    """Return all of it as what JSON can hold."""
    opening, totals = ledger.opening, ledger.totals()
    held = reservations(folder, ledger)
    return {
        "site": folder.name,
        "server": folder.server,
        "declared": folder.records,
        "unit": "record" if folder.persons is None else "person",
        "runs": [asdict(status) for status in run_statuses(folder, ledger)],
        "ledger": {
            "unit": ledger.unit,
            "cap": {"kind": opening.cap_kind, **opening.cap},
            "epsilon": totals.epsilon,
            "limits": dict(totals.limits),
            "spent": dict(totals.spent),
            "left": dict(totals.left),
            "lost": lost_rows(folder, ledger),
        },
        "refused": latest_refusal(folder),
        "reserved": {name: float(sum(one.amounts[name] for one in held)) for name in totals.limits},
    }


def reserved_in_words(held: list[Reservation]) -> list[str]:
    """Return a paragraph about what accepted runs may still charge."""
    parts = [
        f"{float(amount):.4g} of {name} for run {one.run[:12]} ({one.name})"
        for one in held
        for name, amount in one.amounts.items()
        if amount
    ]
    if not parts:
        return []
    return [
        f"Reserved: {'; '.join(parts)}. So much of what is left is kept for accepted runs, until "
        "they are over or cancelled."
    ]


def name_of(folder: SiteFolder, run: str) -> str:
    """Return the name of an offered run, "" if that cannot be read."""
    try:
        return str(json.loads((folder.run(run) / AGREEMENT).read_text(encoding="utf-8"))["name"])
    except (ValueError, KeyError, TypeError, OSError):
        return ""


def resolve(folder: SiteFolder, words: str, *, state: str) -> str:
    """Return the one run that is meant: by its first digits or its name ("": the one in `state`).

    Digits come first: whoever offers a run chooses its name, which may be another's first digits.
    Where words fit several, those that are in this state are meant.
    """
    runs = list(folder.offered())
    found = [run for run in runs if run.startswith(words)]
    found = found or [run for run in runs if name_of(folder, run) == words]
    if not words or len(found) > 1:
        found = [run for run in found if folder.state(run) == state]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{r[:12]} ({name_of(folder, r)}, {folder.state(r)})" for r in runs) or "none"
    refused = latest_refusal(folder)
    also = f". T{refused[1:]}" if refused else ""
    if found:
        raise InvalidInput(f"RUN must fit one run, got {words!r}, which fits more; known: {known}")
    if words:
        raise InvalidInput(
            f"RUN must be the first digits or the name of a run that was offered here, got "
            f"{words!r}; known: {known}{also}"
        )
    raise InvalidInput(f"no run is {state} here{also}; known: {known}")


def latest_refusal(folder: SiteFolder) -> str:
    """Return why the latest offer is not among those that wait, "" if it is."""
    try:
        words = printable((folder.path / REFUSED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    return f"the latest offer was refused: {words}"


def lost_rows(folder: SiteFolder, ledger: Ledger) -> str:
    """Return what the ledger lacks of what the server has seen, and what to do; "" if nothing."""
    seen = folder.lost()
    try:
        if seen is not None:
            ledger.require(seen)
    except (RowsLost, Unusable) as error:
        return printable(str(error))
    return ""
