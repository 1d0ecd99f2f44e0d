"""Frozen, validated values that say what a run should do."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from dpfedc.errors import InvalidInput

MIN_EPSILON, MAX_EPSILON = 1e-6, 1_000_000
"""What the accountant counts well: below, its grid wastes budget; far above, its sums overflow. No
use is lost. Epsilon 1e-6 leaves only noise, and above 100 or so nothing is protected."""
MIN_DELTA = 1e-12
"""The accountant drops events of about 1e-15, so a delta near that would come out as infinite
epsilon. A chance of 1e-12 is never met."""
MAX_FLOAT = sys.float_info.max
TRUST_MODELS = ("local", "secure-aggregation", "trusted-server")
MAX_SPARE_ROUNDS = 1
"""Of a stage of one round. Each costs as much of the budget as the round itself."""
UNITS = ("record", "person")
"""What epsilon protects: one record, or all rows of a person, of which every site makes one record.
"""


def require_integer(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Return `value` as an int, or say what was expected of setting `name`."""
    allowed = f">= {least}" if most is None else f"from {least} to {most}"
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise InvalidInput(f"{name} must be a whole number {allowed}, got {value!r}")
    if value < least or (most is not None and value > most):
        raise InvalidInput(f"{name} must be {allowed}, got {value}")
    return int(value)


def require_number(
    name: str, value: Any, *, above: float | None = None, least: float | None = None,
    below: float = math.inf, most: float = math.inf,
) -> float:  # fmt: skip
    """Return `value` as a finite float, or say what was expected of setting `name`."""
    low = f"> {above}" if above is not None else f">= {least}"
    allowed = low if math.isinf(below) else f"{low} and < {below}"
    allowed = allowed if math.isinf(most) else f"{low} and <= {most}"
    numeric = isinstance(value, (int, float, np.integer, np.floating))
    # Compared, since a whole number may be too large to be made a float; a NumPy one never is.
    plain = value.item() if isinstance(value, np.generic) else value
    if not numeric or isinstance(value, bool) or not -MAX_FLOAT <= plain <= MAX_FLOAT:
        raise InvalidInput(f"{name} must be a number {allowed}, got {value!r}")
    if (above is not None and value <= above) or (least is not None and value < least):
        raise InvalidInput(f"{name} must be {allowed}, got {value}")
    if value >= below or value > most:
        raise InvalidInput(f"{name} must be {allowed}, got {value}")
    return float(value)


def require_epsilon(value: Any) -> float:
    """Return `value` as an epsilon that the accountant can count."""
    return require_number("epsilon", value, least=MIN_EPSILON, most=MAX_EPSILON)


def require_delta(value: Any) -> float:
    """Return `value` as a delta that the accountant can count."""
    return require_number("delta", value, least=MIN_DELTA, below=1)


def require_bool(name: str, value: Any) -> bool:
    """Return `value` as a bool, or say what was expected of setting `name`."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInput(f"{name} must be True or False, got {value!r}")
    return bool(value)


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value`, or list what setting `name` may be."""
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def require_unit(unit: Any, sites_per_person: Any, *, n_sites: int | None = None) -> None:
    """Refuse a unit that is not known, or persons at more sites than can be meant."""
    require_choice("unit", unit, UNITS)
    require_integer("sites_per_person", sites_per_person, least=1, most=n_sites)
    if unit == "record" and sites_per_person != 1:
        raise InvalidInput(f"sites_per_person must be 1 with unit record, got {sites_per_person}")


def plain(value: Any) -> Any:
    """Return a NumPy scalar as the Python number it stands for; JSON knows no other."""
    return value.item() if isinstance(value, np.generic) else value


def enumerated(numbers: Iterable[int]) -> str:
    """Return numbers as a reader expects them.

    >>> enumerated([1, 4, 7])
    '1, 4 and 7'
    """
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def left_open(value: Any, free: tuple[str | None, ...]) -> bool:
    """Return whether a setting has one of the values that leave it to the plan."""
    return (value is None or isinstance(value, str)) and value in free


@dataclass(frozen=True)
class Setting:
    """One setting of a method: its default, what it may be, and who may set it.

    `check(name, value, **limits)` returns the value or refuses it. `free` are values that leave the
    choice to the plan. `most` names the public fact that limits it. What is not `deployed` is for
    simulations alone.
    """

    default: Any
    check: Callable[..., Any]
    limits: Mapping[str, Any] = field(default_factory=dict)
    free: tuple[str | None, ...] = ()
    most: str | None = None
    deployed: bool = True

    def checked(self, name: str, value: Any, facts: Any) -> Any:
        """Return the value, or say what was expected of it."""
        if left_open(value, self.free):
            return value
        limits = dict(self.limits)
        if self.most is not None:
            limits["most"] = getattr(facts, self.most)
        try:
            return self.check(name, value, **limits)
        except InvalidInput as error:
            words = [repr(word) for word in self.free if word is not None]
            if not isinstance(value, str) or not words:
                raise
            # A word was meant, so those that are known are told.
            known = f", or {' or '.join(words)}, got"
            raise InvalidInput(str(error).replace(", got", known, 1)) from None


def whole(default: Any, least: int, limit: int | None = None, **more: Any) -> Setting:
    """Return a setting that counts something, up to a limit; `most` may name a fact instead."""
    return Setting(default, require_integer, {"least": least, "most": limit}, **more)


def number(default: Any, *, free: tuple[str | None, ...] = (), **limits: Any) -> Setting:
    """Return a setting that measures something."""
    deployed = limits.pop("deployed", True)
    return Setting(default, require_number, limits, free, deployed=deployed)


def flag(default: bool, *, free: tuple[str, ...] = ()) -> Setting:
    """Return a setting that is on or off, or has one of a few names."""
    return Setting(default, require_bool, free=free)


def one_of(default: str, *choices: str, deployed: bool = True) -> Setting:
    """Return a setting with a few values."""
    return Setting(default, require_choice, {"choices": choices}, deployed=deployed)


def anything(default: Any) -> Setting:
    """Return a setting that the plan checks for itself."""
    return Setting(default, lambda _, value: value)


RUN_SETTINGS: Mapping[str, Setting] = {
    "epsilon": number(1.0, free=(None,), least=MIN_EPSILON, most=MAX_EPSILON),
    "delta": number(1e-5, least=MIN_DELTA, below=1),
    "trust": one_of("local", *TRUST_MODELS),
    "min_survivors": whole(None, 1, free=(None,)),
    "colluding_sites": whole(0, 0),
    "epsilon_per_round": flag(False),
    "diagnostics": flag(False),
}
"""What estimators may be told of privacy and of the simulation, whatever their method."""


@dataclass(frozen=True)
class Penalty:
    """The weights of the objective: rho, mu_h and mu_w in docs/notation.md."""

    orthogonality: float = 1.0
    membership_ridge: float = 0.0
    centroid_ridge: float = 0.0

    def __post_init__(self) -> None:
        require_number("orthogonality", self.orthogonality, least=0)
        require_number("membership_ridge", self.membership_ridge, least=0)
        require_number("centroid_ridge", self.centroid_ridge, least=0)


@dataclass(frozen=True)
class PrivacyTarget:
    """What a run may spend, and who is trusted with what.

    `min_survivors`: the fewest sites whose uploads arrive in a round (None: all that take part).
    `colluding_sites`: how many sites may work with the server against the others.
    `unit`: what epsilon protects, one record or one person.
    `sites_per_person`: the most sites at which one person may have rows.
    `spare_rounds`: how many more rounds a stage of one round may have, should it be lost.
    """

    epsilon: float
    delta: float
    trust: str = "local"
    min_survivors: int | None = None
    colluding_sites: int = 0
    unit: str = "record"
    sites_per_person: int = 1
    spare_rounds: int = 0

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)
        require_choice("trust", self.trust, TRUST_MODELS)
        require_unit(self.unit, self.sites_per_person)
        require_integer("spare_rounds", self.spare_rounds, least=0, most=MAX_SPARE_ROUNDS)


@dataclass(frozen=True)
class PrivacyGuarantee:
    """What a run promises: for every `unit`, (epsilon, delta) against the stated adversary.

    `event` is the dp-accounting event from which epsilon follows. `rounds_per_site` says how often
    the most used site takes part in each stage. `epsilon_if_others_collude` is the epsilon against
    all other sites and the server together. `stamp` qualifies the noise; None for deployed noise.
    A person is protected who has rows at up to `sites_per_person` sites.
    """

    epsilon: float
    delta: float
    unit: str
    relation: str
    trust: str
    min_survivors: int | None
    colluding_sites: int
    epsilon_if_others_collude: float
    accountant: str
    rounds_per_site: Mapping[str, int]
    stamp: str | None
    event: Any
    sites_per_person: int = 1

    def as_plain(self) -> dict[str, Any]:
        """Return the promise as plain values, without the event object."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "event"}
        return {**plain, "rounds_per_site": dict(self.rounds_per_site)}
