"""What a ledger's rows say, what they add up to, and which row may come next.

The same rules admit a row when it is written and when it is read again, so a file that holds more
than its cap or its plans allow is found out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.charges import due_release
from dpfedc.privacy.ledger.caps import Amounts, BasicCap, Cap, cap_kind, cap_of
from dpfedc.privacy.privacy_plan import RELATION, UNIT, PrivacyPlan
from dpfedc.settings import require_integer

_ROUNDING = 1e-9
"""By this part may noise fall short of the plan's before it is called less."""


@dataclass(frozen=True)
class Opening:
    """The first row: whose ledger it is and what may be spent."""

    holding: str
    unit: str
    relation: str
    cap_kind: str
    cap: Mapping[str, float]
    limits: Amounts
    least_colluding_sites: int

    @classmethod
    def of(cls, holding: str, cap: Cap, least_colluding_sites: int) -> Opening:
        """Return the first row of a new ledger."""
        require_text("holding", holding)
        least = require_integer("least_colluding_sites", least_colluding_sites, least=0)
        kind = cap_kind(cap)
        # Limits are written down, so that another version's rounding cannot change a verdict.
        return cls(holding, UNIT, RELATION, kind, asdict(cap), cap.limits(), least)


@dataclass(frozen=True)
class Charge:
    """One release, charged. `plan` is there if it is the first of its run.

    The noise is that of `min_survivors - colluding_sites` sites together; (1, 0) if the site, or a
    trusted server, adds all of it.
    """

    run: str
    stage: str
    t: int
    request: str
    noise_multiplier: float
    min_survivors: int
    colluding_sites: int
    cost: Amounts
    cost_if_others_collude: Amounts
    plan: Mapping[str, Any] | None


@dataclass(frozen=True)
class Answer:
    """What was answered to a charged request: the SHA-256 of the bytes."""

    run: str
    stage: str
    t: int
    digest: str


def require_text(name: str, value: Any) -> None:
    """Refuse what would not be read back as it was written."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{name} must be a text that is not empty, got {value!r}")


Row = Opening | Charge | Answer
_KINDS: dict[str, type[Opening] | type[Charge] | type[Answer]] = {
    "opening": Opening,
    "charge": Charge,
    "answer": Answer,
}


def as_content(row: Row) -> dict[str, Any]:
    """Return a row as what is written."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(row, kind))
    return {"kind": kind, **asdict(row)}


def as_row(content: Mapping[str, Any]) -> Row:
    """Return a row from what was written."""
    fields = dict(content)
    return _KINDS[fields.pop("kind")](**fields)


class Book:
    """What the rows so far add up to."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.cap = cap_of(opening.cap_kind, opening.cap)
        self.plans: dict[str, PrivacyPlan] = {}
        self.charges: dict[tuple[str, str], dict[int, Charge]] = {}
        self.answers: dict[tuple[str, str, int], tuple[int, Answer]] = {}
        # Exact numbers: in floating point, many small charges could add up to nothing.
        self.spent = dict.fromkeys(opening.limits, Fraction(0))
        self.spent_if_others_collude = dict.fromkeys(opening.limits, Fraction(0))

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
        self._check_plan(run, plan)
        self._check_release(run, plan, stage, t, z)
        survivors, colluding = 1, 0
        if plan.trust == "secure-aggregation":
            colluding = plan.colluding_sites
            n_taking_part = plan.of_stage(stage).sites_per_round
            survivors = plan.honest_shares(n_taking_part) + colluding
        if costs is None:
            costs = self.cap.costs(plan, z, shares=survivors - colluding, first=first)
        for name, cost in costs[0].items():
            room = Fraction(self.opening.limits[name]) - self.spent[name]
            if not cost <= room:  # so put, NaN is refused
                raise Refused(
                    f"over the lifetime cap of {self.opening.holding!r}: {cost:.6g} more of "
                    f"{name} must be at most {float(room):.6g}, what is left"
                )
        planned = json.loads(plan.to_json()) if first else None
        return Charge(run, stage, t, request, z, survivors, colluding, *costs, planned)

    def answer(self, run: str, stage: str, t: int, digest: str) -> Answer:
        """Return the row that says what was answered, or refuse it."""
        if t not in self.charges.get((run, stage), {}):
            raise Refused(f"round {t} of stage {stage!r} has not been charged")
        if (run, stage, t) in self.answers:
            raise Refused(f"round {t} of stage {stage!r} has been answered")
        return Answer(run, stage, int(t), digest)

    def answered(self, run: str, stage: str, t: int, request: str) -> tuple[int, Answer] | None:
        """Return the answer to this very request with its row; None if nothing was charged."""
        charge = self.charges.get((run, stage), {}).get(t)
        if charge is None:
            return None
        what = f"round {t} of stage {stage!r}"
        if charge.request != request:
            raise Refused(f"{what} was charged for another request")
        if (run, stage, t) not in self.answers:
            raise Refused(f"{what} is spent: it was charged, and its answer was lost or is not yet")
        return self.answers[run, stage, t]

    def add(self, number: int, row: Row) -> None:
        """Take up a row that has been written, if it is one that could be written."""
        if isinstance(row, Charge):
            self._add_charge(row)
        elif isinstance(row, Answer):
            self.answer(row.run, row.stage, row.t, row.digest)
            self.answers[row.run, row.stage, row.t] = (number, row)
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
        for name in self.spent:
            self.spent[name] += Fraction(row.cost[name])
            self.spent_if_others_collude[name] += Fraction(row.cost_if_others_collude[name])

    def _check_plan(self, run: str, plan: PrivacyPlan) -> None:
        """Refuse a plan that is not the run's, or not one that this ledger can account for."""
        own = self.opening
        if (own.unit, own.relation) != (UNIT, RELATION):
            raise Refused(
                f"the plan must be for unit {own.unit}, relation {own.relation}, got {UNIT}, "
                f"{RELATION}"
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
        if z < planned.noise_multiplier * (1 - _ROUNDING):
            raise Refused(
                f"the noise multiplier of stage {stage!r} must be at least the plan's "
                f"{planned.noise_multiplier}, got {z}"
            )
