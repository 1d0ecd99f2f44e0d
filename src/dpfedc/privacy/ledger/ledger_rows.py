"""The rows of a ledger, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpfedc.errors import InvalidInput
from dpfedc.privacy.ledger.caps import Amounts, Cap, cap_kind
from dpfedc.privacy.privacy_plan import RELATION
from dpfedc.settings import UNITS, require_choice, require_integer


@dataclass(frozen=True)
class Opening:
    """The first row: whose ledger it is and what may be spent. `unit` is the one it starts with."""

    holding: str
    unit: str
    relation: str
    cap_kind: str
    cap: Mapping[str, float]
    limits: Amounts
    least_colluding_sites: int

    @classmethod
    def of(cls, holding: str, cap: Cap, least_colluding_sites: int, unit: str) -> Opening:
        """Return the first row of a new ledger."""
        require_text("holding", holding)
        require_choice("unit", unit, UNITS)
        least = require_integer("least_colluding_sites", least_colluding_sites, least=0)
        kind = cap_kind(cap)
        # Limits are written down, so that another version's rounding cannot change a verdict.
        return cls(holding, unit, RELATION, kind, asdict(cap), cap.limits(), least)


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


@dataclass(frozen=True)
class Unmasking:
    """The site has given away its shares that open the sum of a round: once, for one request."""

    run: str
    stage: str
    t: int
    request: str


@dataclass(frozen=True)
class UnitChange:
    """From here on the cap is for another unit; what was spent is carried over, as it counts there.

    `rows_per_person` is declared by the operator: no person ever had more rows in this holding.
    """

    unit: str
    rows_per_person: int
    carried: Amounts
    carried_if_others_collude: Amounts


@dataclass(frozen=True)
class Recovery:
    """Rows were lost, and this is the most they can have cost. All runs known by then are closed.

    `seen` is a head (rows, hash) that somebody had seen and that is lost, None if nobody had. With
    `plans`, those of runs that may have been charged and of which no row is left, the cost is that
    of all that these runs and those in the ledger could still release; without (None), it is all
    that was left of the cap.
    """

    seen: list[Any] | None
    plans: Mapping[str, Any] | None
    cost: Amounts
    cost_if_others_collude: Amounts


def require_text(name: str, value: Any) -> None:
    """Refuse what would not be read back as it was written."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{name} must be a text that is not empty, got {value!r}")


Row = Opening | Charge | Answer | Unmasking | UnitChange | Recovery
_KINDS: dict[str, type[Row]] = {
    "opening": Opening,
    "charge": Charge,
    "answer": Answer,
    "unmasking": Unmasking,
    "unit": UnitChange,
    "recovery": Recovery,
}


def as_content(row: Row) -> dict[str, Any]:
    """Return a row as what is written."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(row, kind))
    return {"kind": kind, **asdict(row)}


def as_row(content: Mapping[str, Any]) -> Row:
    """Return a row from what was written."""
    fields = dict(content)
    return _KINDS[fields.pop("kind")](**fields)
