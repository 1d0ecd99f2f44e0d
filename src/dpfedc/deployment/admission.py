"""What a site asks of a run before it takes part: that it is about it, and that it can pay for it.

An accepted run may charge what its plan says, until it is over or cancelled. So much is reserved:
what is left of the lifetime cap must cover it and every run that is accepted after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.keys import signing_key
from dpfedc.deployment.offered_runs import MAX_OPEN, MAX_PENDING
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.errors import InvalidInput, Refused, RunClosed
from dpfedc.privacy.ledger import Ledger
from dpfedc.privacy.ledger.caps import cap_of
from dpfedc.tables.schema import Schema, difference
from dpfedc.whole_files import locked

_MAX_NAMED = 3


@dataclass(frozen=True)
class Reservation:
    """What an accepted run may still charge, by the names of what the cap limits."""

    run: str
    name: str
    amounts: Mapping[str, Fraction]


def accept(folder: SiteFolder, agreement: Agreement, ledger: Ledger) -> None:
    """Accept a run, and keep its offer, if the lifetime cap covers it and all that is reserved."""
    with locked(folder.path / "acceptances.lock"):  # so that no two share what is left
        require_affordable(agreement, ledger, folder)
        _require_room(folder, ledger)
        folder.keep(agreement)
        folder.accept(agreement.digest)


def _require_room(folder: SiteFolder, ledger: Ledger) -> None:
    """Refuse a run while many hold frozen records: no cap ends these soon, or at all."""
    begun = {stage.run for stage in ledger.totals().stages}
    running = [run for run in folder.offered() if folder.state(run) == "accepted"]
    if len(running) >= MAX_OPEN:
        raise InvalidInput(
            f"there must be less than {MAX_OPEN} accepted runs here that are not over; its "
            "operator can end some by `dpfedc site cancel`"
        )
    if sum(run not in begun for run in running) >= MAX_PENDING:
        raise InvalidInput(
            f"there must be less than {MAX_PENDING} accepted runs here that have not begun"
        )


def reservations(folder: SiteFolder, ledger: Ledger) -> list[Reservation]:
    """Return what the accepted runs that are not over may still charge."""
    found, closed = [], ledger.totals().closed
    for run in folder.offered():
        if folder.state(run) != "accepted" or run in closed:
            continue
        try:
            agreement = folder.agreement(run)
        except InvalidInput:  # of a version before, or changed: it is not served, so costs nothing
            continue
        if agreement.privacy.unit == ledger.unit:  # else the ledger charges nothing more for it
            found.append(Reservation(run, agreement.name, still_due(agreement, ledger)))
    return found


def still_due(agreement: Agreement, ledger: Ledger) -> dict[str, Fraction]:
    """Return what a run may charge from now on: what was planned, less what has been charged."""
    opening, totals = ledger.opening, ledger.totals()
    cap, plan = cap_of(opening.cap_kind, opening.cap), agreement.privacy
    charged = {s.stage: s.n_charged for s in totals.stages if s.run == agreement.digest}
    due, first = dict.fromkeys(totals.limits, Fraction(0)), not charged
    for release in plan.releases:
        z, n = release.noise_multiplier, release.rounds_per_site - charged.get(release.stage, 0)
        for i in range(min(n, 2)):  # the first may cost more, all others cost the same
            costs, _ = cap.costs(plan, z, shares=1, first=first)
            for name, cost in costs.items():
                due[name] += Fraction(cost) * (1 if i == 0 else n - 1)
            first = False
    return due


def require_affordable(agreement: Agreement, ledger: Ledger, folder: SiteFolder) -> float:
    """Refuse a run that the lifetime cap, less what other runs have reserved, would stop halfway.

    Returns the epsilon that will have been spent, at the cap's delta, when all of them are over.
    """
    opening, totals = ledger.opening, ledger.totals()
    others = [held for held in reservations(folder, ledger) if held.run != agreement.digest]
    due, spent = still_due(agreement, ledger), {}
    for name, cost in due.items():
        holders = [held for held in others if held.amounts[name]]
        reserved = sum((held.amounts[name] for held in holders), Fraction(0))
        left = Fraction(totals.left[name]) - reserved
        if cost > left:
            raise InvalidInput(
                f"the run must fit into what is left of the site's lifetime cap, {float(left):.4g} "
                f"of {name}, got {float(cost):.4g}{_holding(holders, float(reserved))}"
            )
        spent[name] = float(Fraction(totals.spent[name]) + reserved + cost)
    return cap_of(opening.cap_kind, opening.cap).epsilon_of(spent)


def _holding(holders: list[Reservation], reserved: float) -> str:
    """Return who holds what else would be left."""
    if not holders:
        return ""
    named = ", ".join(f"{held.run[:12]} ({held.name})" for held in holders[:_MAX_NAMED])
    more = f" and {len(holders) - _MAX_NAMED} more" if len(holders) > _MAX_NAMED else ""
    noun = "run" if len(holders) == 1 else "runs"
    return (
        f"; {reserved:.4g} more is reserved for the accepted {noun} {named}{more}, until they are "
        "over or cancelled there"
    )


def require_fitting(agreement: Agreement, folder: SiteFolder, ledger: Ledger) -> None:
    """Refuse a run that is not about this site as it declares itself now."""
    here = agreement.sites[agreement.number_of(folder.name)]
    keys = folder.keys()
    if here.key not in keys or here.n_records != folder.records:
        raise InvalidInput(
            f"{here.name} must have key {' or '.join(sorted(keys))} and {folder.records} records, "
            f"got {here.key} and {here.n_records}"
        )
    if agreement.is_masked:
        signing(folder, agreement)
    require_schema(agreement, folder.schema)
    require_unit(agreement, folder.unit, ledger)
    try:
        ledger.check_plan(agreement.digest, agreement.privacy)
    except Refused as error:  # no round of it would be charged
        raise InvalidInput(str(error)) from error


def signing(folder: SiteFolder, agreement: Agreement) -> Callable[[bytes], bytes]:
    """Return what signs with the key by which other sites know this one in a run."""
    here = agreement.sites[agreement.number_of(folder.name)]
    for identity in folder.identities():
        if signing_key(identity.certificate) == here.signing_key:
            return identity.sign
    raise RunClosed(
        f"run {agreement.digest[:12]} goes no further here: {here.name} has another key than the "
        "run's roster; only a new run can have the new one"
    )


def require_unit(agreement: Agreement, slots: str, ledger: Ledger) -> None:
    """Refuse a run unless it promises for what the site's slots are, and its ledger charges."""
    planned = agreement.privacy.unit
    if planned != ledger.unit:
        raise InvalidInput(
            f"the run must be for unit {ledger.unit}, as the site's ledger is, got {planned}; "
            "its operator can change that by `dpfedc ledger change-unit`"
        )
    if planned != slots:
        raise InvalidInput(
            f"the run must be for unit {slots}, as the site's slots are, got {planned}; its "
            "operator can change that by `dpfedc site check --schema`"
        )


def require_schema(agreement: Agreement, own: Schema | None) -> None:
    """Refuse a run about other tables than the site's; both schemas are public."""
    theirs = agreement.schema
    if own is not None and theirs is not None:
        if (entry := difference(own, theirs)) is not None:
            raise InvalidInput(f"the run's schema must be the site's, which differs: {entry}")
    elif own is not theirs:
        which = "a schema, as the site has one" if own else "no schema, as the site has none"
        raise InvalidInput(f"the run must have {which}")
