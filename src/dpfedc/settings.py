"""Frozen, validated values that say what a run should do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfedc.errors import InvalidInput

TRUST_MODELS = ("local", "secure-aggregation", "trusted-server")


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
    if not numeric or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a number {allowed}, got {value!r}")
    if (above is not None and value <= above) or (least is not None and value < least):
        raise InvalidInput(f"{name} must be {allowed}, got {value}")
    if value >= below or value > most:
        raise InvalidInput(f"{name} must be {allowed}, got {value}")
    return float(value)


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value`, or list what setting `name` may be."""
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


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
