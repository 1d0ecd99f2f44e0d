"""What a ledger's rows add up to, and which row may come next.

The same rules admit a row when it is written and when it is read again, so a file that holds more
than its cap or its plans allow is found out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from dpfedc.errors import Refused, RoundSpent, RunClosed
from dpfedc.privacy.charges import due_release
from dpfedc.privacy.ledger.caps import Amounts, BasicCap, cap_of
from dpfedc.privacy.ledger.chain import Head
from dpfedc.privacy.ledger.ledger_rows import (
    Answer,
    Charge,
    Opening,
    Recovery,
    Row,
    UnitChange,
    Unmasking,
)
from dpfedc.privacy.ledger.lost_rows import (
    exact_sums,
    left_of_cap,
    require_one_branch,
    still_planned,
)
from dpfedc.privacy.privacy_plan import RELATION, PlannedRelease, PrivacyPlan
from dpfedc.settings import UNITS, require_choice, require_integer

_ROUNDING = 1e-9
"""By this part may noise fall short of the plan's before it is called less."""
MAX_ROWS = 1_000_000
"""Of one person; more cannot be meant."""
_BEYOND = Fraction(10) ** 300


class Book:
    """What the rows so far add up to."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.cap = cap_of(opening.cap_kind, opening.cap)
        self.unit = opening.unit
        self.rows_per_person = 1
        self.plans: dict[str, PrivacyPlan] = {}
        self.charges: dict[tuple[str, str], dict[int, Charge]] = {}
        self.answers: dict[tuple[str, str, int], tuple[int, Answer]] = {}
        self.unmasked: set[tuple[str, str, int]] = set()
        # Exact numbers: in floating point, many small charges could add up to nothing.
        self.spent = dict.fromkeys(opening.limits, Fraction(0))
        self.spent_if_others_collude = dict.fromkeys(opening.limits, Fraction(0))
        # What these are the sums of, since the unit was changed last: (cost, if others collude).
        self._costs: list[tuple[Amounts, Amounts]] = []
        self.recoveries: list[Recovery] = []
        self.closed: set[str] = set()

    def charge(
        self,
        run: str,
        plan: PrivacyPlan,
        stage: str,
        t: int,
        request: str,
        z: float,
        *,
        costs: tuple[Amounts, Amounts] | None = None,
    ) -> Charge:
        """Return the charge for a release, or refuse it. Costs are the cap's, unless given."""
        first = run not in self.plans
        self.check_plan(run, plan)
        self.require_open(run)
        self._check_release(run, plan, stage, t, z)
        survivors, colluding = _sharing(plan, stage)
        if costs is None:
            costs = self.cost_of(plan, stage, z, first=first)
        for name, cost in costs[0].items():
            room = Fraction(self.opening.limits[name]) - self.spent[name]
            if not cost <= room:  # so put, NaN is refused
                raise Refused(
                    f"over the lifetime cap of {self.opening.holding!r}: {cost:.6g} more of "
                    f"{name} must be at most {float(room):.6g}, what is left"
                )
        planned = json.loads(plan.to_json()) if first else None
        return Charge(run, stage, t, request, z, survivors, colluding, *costs, planned)

    def cost_of(
        self, plan: PrivacyPlan, stage: str, z: float, *, first: bool
    ) -> tuple[Amounts, Amounts]:
        """Return what a release costs, and what it costs if all others collude."""
        survivors, colluding = _sharing(plan, stage)
        return self.cap.costs(plan, z, shares=survivors - colluding, first=first)

    def require_open(self, run: str) -> None:
        """Refuse a run that may have released more than its rows say."""
        if run in self.closed:
            raise RunClosed(
                f"run {run[:12]} is closed here: rows of the site's ledger were lost while it was "
                "under way"
            )

    def recovery(
        self,
        n_rows: int,
        seen: Head | None,
        plans: Mapping[str, PrivacyPlan] | None,
        *,
        costs: tuple[Amounts, Amounts] | None = None,
    ) -> Recovery:
        """Return the row that charges what lost rows can have cost at most, or refuse it.

        The ledger has `n_rows` now. With `plans`, no other runs but these and those in the ledger
        can have been charged. Costs are computed, unless given.
        """
        left = left_of_cap(self)
        ours = alone = left
        if plans is not None:
            if seen is not None:
                require_one_branch(seen.n_rows, n_rows)
            ours, alone = still_planned(self, plans) if costs is None else exact_sums(*costs)
        cost = {name: _rounded_up(min(amount, left[name])) for name, amount in ours.items()}
        return Recovery(
            None if seen is None else [seen.n_rows, seen.digest],
            None if plans is None else {r: json.loads(p.to_json()) for r, p in plans.items()},
            cost,
            {name: _rounded_up(amount) for name, amount in alone.items()},
        )

    def answer(self, run: str, stage: str, t: int, digest: str) -> Answer:
        """Return the row that says what was answered, or refuse it."""
        if t not in self.charges.get((run, stage), {}):
            raise Refused(f"round {t} of stage {stage!r} has not been charged")
        if (run, stage, t) in self.answers:
            raise Refused(f"round {t} of stage {stage!r} has been answered")
        return Answer(run, stage, int(t), digest)

    def unmask(self, run: str, stage: str, t: int, request: str) -> Unmasking:
        """Return the row that says that the sum of a round is being opened, or refuse it."""
        place = (run, stage, t)
        if place not in self.answers or self.plans[run].trust != "secure-aggregation":
            raise Refused(f"round {t} of stage {stage!r} has no masked answer")
        if place in self.unmasked:
            raise RoundSpent(f"round {t} of stage {stage!r} was opened before, and is only once")
        return Unmasking(run, stage, int(t), request)

    def change_unit(self, unit: str, rows_per_person: int) -> UnitChange:
        """Return the row that changes the unit, or refuse it. Over the cap is no reason to.

        What was spent is never less for the new unit, so nothing is gained by going to and fro.
        """
        require_choice("unit", unit, UNITS)
        rows = require_integer("rows_per_person", rows_per_person, least=1, most=MAX_ROWS)
        if unit == self.unit:
            raise Refused(f"the unit must be another than the ledger's own, got {unit}")
        if rows < self.rows_per_person:
            raise Refused(
                f"rows_per_person must be at least the {self.rows_per_person} declared before, "
                f"got {rows}"
            )
        # A person who leaves takes all rows along. A row that leaves changes the one record of its
        # person, which is zeroed and then another: two steps, unless it was the only row.
        n = rows if unit == "person" else min(rows, 2)
        ours, alone = zip(*self._costs, strict=True) if self._costs else ((), ())
        return UnitChange(unit, rows, self._carried(ours, n), self._carried(alone, n))

    def _carried(self, costs: Sequence[Amounts], n: int) -> Amounts:
        """Return what costs add up to if n records are zeroed at once, rounded up."""
        total = dict.fromkeys(self.opening.limits, Fraction(0))
        for cost in costs:
            for name, amount in self.cap.of_group(cost, n).items():
                total[name] += amount
        return {name: _rounded_up(amount) for name, amount in total.items()}

    def answered(self, run: str, stage: str, t: int, request: str) -> tuple[int, Answer] | None:
        """Return the answer to this very request with its row; None if nothing was charged."""
        charge = self.charges.get((run, stage), {}).get(t)
        if charge is None:
            return None
        what = f"round {t} of stage {stage!r}"
        if charge.request != request:
            raise RoundSpent(f"{what} was charged for another request")
        if (run, stage, t) not in self.answers:
            raise RoundSpent(
                f"{what} is spent: it was charged, and its answer was lost or is not yet"
            )
        return self.answers[run, stage, t]

    def add(self, number: int, row: Row) -> None:
        """Take up a row that has been written, if it is one that could be written."""
        if isinstance(row, Charge):
            self._add_charge(row)
        elif isinstance(row, Answer):
            self.answer(row.run, row.stage, row.t, row.digest)
            self.answers[row.run, row.stage, row.t] = (number, row)
        elif isinstance(row, Unmasking):
            self.unmask(row.run, row.stage, row.t, row.request)
            self.unmasked.add((row.run, row.stage, row.t))
        elif isinstance(row, UnitChange):
            self._add_change(row)
        elif isinstance(row, Recovery):
            self._add_recovery(number - 1, row)
        else:
            raise Refused("a ledger is opened once")

    def _add_charge(self, row: Charge) -> None:
        plan = self.plans.get(row.run)
        if row.plan is not None:
            plan = PrivacyPlan.from_json(json.dumps(row.plan))
        if plan is None:
            raise Refused(f"the first charge of run {row.run!r} must hold its plan")
        # An epsilon stands as it was computed; another accountant may round otherwise.
        known = (row.cost, row.cost_if_others_collude) if isinstance(self.cap, BasicCap) else None
        due = self.charge(
            row.run, plan, row.stage, row.t, row.request, row.noise_multiplier, costs=known
        )
        if due != row:
            raise Refused("the charge is not what the plan's release costs")
        self.plans[row.run] = plan
        self.charges.setdefault((row.run, row.stage), {})[row.t] = row
        self._costs.append((row.cost, row.cost_if_others_collude))
        for name in self.spent:
            self.spent[name] += Fraction(row.cost[name])
            self.spent_if_others_collude[name] += Fraction(row.cost_if_others_collude[name])

    def _add_change(self, row: UnitChange) -> None:
        due = self.change_unit(row.unit, row.rows_per_person)
        wrong = "what is carried over is not what was spent before, for the new unit"
        carried = _larger(due.carried, row.carried, wrong)
        alone = _larger(due.carried_if_others_collude, row.carried_if_others_collude, wrong)
        self.unit, self.rows_per_person = due.unit, due.rows_per_person
        self._costs = [(carried, alone)]
        self.spent = {name: Fraction(amount) for name, amount in carried.items()}
        self.spent_if_others_collude = {name: Fraction(amount) for name, amount in alone.items()}

    def _add_recovery(self, n_rows: int, row: Recovery) -> None:
        plans = None
        if row.plans is not None:
            plans = {r: PrivacyPlan.from_json(json.dumps(p)) for r, p in row.plans.items()}
        seen = None if row.seen is None else Head(*row.seen)
        # An epsilon stands as it was computed, as that of a charge does.
        stands = plans is not None and isinstance(self.cap, BasicCap)
        known = (row.cost, row.cost_if_others_collude) if stands else None
        due = self.recovery(n_rows, seen, plans, costs=known)
        wrong = "what is charged for lost rows is not the most that they can have cost"
        cost = _larger(due.cost, row.cost, wrong)
        alone = _larger(due.cost_if_others_collude, row.cost_if_others_collude, wrong)
        self._costs.append((cost, alone))
        left = left_of_cap(self)
        for name in self.spent:
            self.spent[name] += min(Fraction(cost[name]), left[name])
            self.spent_if_others_collude[name] += Fraction(alone[name])
        self.closed |= {*self.plans, *(plans or ())}
        self.recoveries.append(row)

    def check_plan(self, run: str, plan: PrivacyPlan) -> None:
        """Refuse a plan that is not the run's, or not one that this ledger can account for."""
        own = self.opening
        if (self.unit, own.relation) != (plan.unit, RELATION):
            raise Refused(
                f"the plan must be for unit {self.unit}, relation {own.relation}, got {plan.unit}, "
                f"{RELATION}; `dpfedc ledger change-unit` changes what a ledger is for"
            )
        if self.plans.get(run, plan) != plan:
            raise Refused(f"run {run!r} must keep to the plan of its first charge, got another")
        tolerated, least = plan.colluding_sites, own.least_colluding_sites
        if plan.trust == "secure-aggregation" and tolerated < least:
            raise Refused(f"the plan must tolerate {least} colluding sites, got {tolerated}")

    def _check_release(self, run: str, plan: PrivacyPlan, stage: str, t: int, z: float) -> None:
        """Refuse a release that is not planned, not the next, or has too little noise."""
        done = self.charges.get((run, stage), {})
        last = next(reversed(done), 0)
        planned = due_release(plan, stage, t, n_charged=len(done), last_round=last)
        if z < self.least_noise(planned):
            raise Refused(
                f"the noise multiplier of stage {stage!r} must be at least the plan's "
                f"{planned.noise_multiplier}, got {z}"
            )

    @staticmethod
    def least_noise(planned: PlannedRelease) -> float:
        """Return the least noise multiplier that is not called less than the plan's."""
        return planned.noise_multiplier * (1 - _ROUNDING)


def _sharing(plan: PrivacyPlan, stage: str) -> tuple[int, int]:
    """Return how many sites add the noise of a release together, and how many of them collude."""
    if plan.trust != "secure-aggregation":
        return 1, 0
    honest = plan.honest_shares(plan.of_stage(stage).sites_per_round)
    return honest + plan.colluding_sites, plan.colluding_sites


def _rounded_up(amount: Fraction) -> float:
    """Return the least float that is not below an amount; beyond all caps any will do."""
    nearest = float(min(amount, _BEYOND))
    if amount >= _BEYOND:
        return nearest
    return nearest if Fraction(nearest) >= amount else math.nextafter(nearest, math.inf)


def _larger(due: Amounts, written: Amounts, wrong: str) -> Amounts:
    """Return the larger amounts; refuse what was written if it was not due, but for rounding."""
    fits = dict(written).keys() == due.keys() and all(
        math.isclose(written[name], amount, rel_tol=_ROUNDING) for name, amount in due.items()
    )
    if not fits:
        raise Refused(wrong)
    return {name: max(amount, written[name]) for name, amount in due.items()}
