"""The most that rows which were lost can have cost.

A ledger admits nothing beyond its cap, so what was left of it is one bound. The other holds if it
is known which runs can have been charged meanwhile: all that their plans still allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from dpfedc.errors import Refused
from dpfedc.privacy.privacy_plan import PrivacyPlan

if TYPE_CHECKING:
    from dpfedc.privacy.ledger.book import Book

Sums = dict[str, Fraction]


def left_of_cap(book: Book) -> Sums:
    """Return what the cap has left, nothing where a change of unit has gone beyond it."""
    limits = book.opening.limits
    return {n: max(Fraction(limits[n]) - spent, Fraction(0)) for n, spent in book.spent.items()}


def still_planned(book: Book, plans: Mapping[str, PrivacyPlan]) -> tuple[Sums, Sums]:
    """Return what all runs can still cost, those of the ledger and these, and if others collude.

    Runs that were closed before are over; so are those in the ledger that are for another unit
    than it has now. Another unit of a run that is not in the ledger is refused.
    """
    ours, alone = dict.fromkeys(book.spent, Fraction(0)), dict.fromkeys(book.spent, Fraction(0))
    for run, plan in {**book.plans, **plans}.items():
        if run in book.closed or (run in book.plans and plan.unit != book.unit):
            continue
        book.check_plan(run, plan)
        first = run not in book.plans
        for release in plan.releases:
            n_left = release.rounds_per_site - len(book.charges.get((run, release.stage), {}))
            for n, pays in ((1, first), (n_left - 1, False)) if n_left else ():
                costs = book.cost_of(plan, release.stage, book.least_noise(release), first=pays)
                for sums, cost in zip((ours, alone), costs, strict=True):
                    for name, amount in cost.items():
                        sums[name] += n * Fraction(amount)
            first = False
    return ours, alone


def exact_sums(*amounts: Mapping[str, float]) -> tuple[Sums, ...]:
    """Return amounts that were written, refused if they are none."""
    if not all(math.isfinite(value) and value >= 0 for part in amounts for value in part.values()):
        raise Refused("what is charged for lost rows must be amounts")
    return tuple({name: Fraction(value) for name, value in part.items()} for part in amounts)


def require_one_branch(seen_rows: int, n_rows: int) -> None:
    """Refuse to count by runs where the ledger has certainly been charged since rows were lost.

    The same rounds can be in the lost rows and in the new ones then, and have been released twice.
    """
    if seen_rows <= n_rows:
        raise Refused(
            f"the ledger has {n_rows} rows, and {seen_rows} others were seen: it was charged after "
            "rows were lost, so only all that is left of the cap is enough"
        )
