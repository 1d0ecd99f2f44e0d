"""What a data holding may spend in its lifetime: two kinds of cap. Why they hold: decision 0005.

A cap names what it limits, and says how much of each a release costs, and how much more it costs
if several records are zeroed at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import gaussian_epsilon, gaussian_mu, guarantee
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.settings import require_delta, require_epsilon, require_number

Amounts = dict[str, float]
_UP = 1e-12
"""By this part is more than what floating-point numbers lose in an exponential."""


@dataclass(frozen=True)
class GaussianCap:
    """Admit a release if the sum of 1/z^2, this one included, is at most mu^2.

    mu is that of the Gaussian release that is exactly (epsilon, delta - spare_delta). This holds
    for noise, stages and stopping chosen from earlier releases. That a record may not be sampled is
    not counted in its favour. The plans' own spare_delta may add up to `spare_delta`.
    """

    epsilon: float
    delta: float
    spare_delta: float = 0.0

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)
        require_number("spare_delta", self.spare_delta, least=0, below=self.delta)

    def limits(self) -> Amounts:
        """Return how much of what may be spent."""
        mu = gaussian_mu(self.epsilon, self.delta - self.spare_delta)
        return {"inverse_squares": mu**2, "spare_delta": self.spare_delta}

    def costs(
        self, plan: PrivacyPlan, z: float, *, shares: int, first: bool
    ) -> tuple[Amounts, Amounts]:
        """Return what a release costs, and what it costs if all others collude.

        They would know all noise but one of its `shares`. A plan's `first` release pays for what
        the plan costs as a whole.
        """
        one = (1 / z) * (1 / z)  # 1/z**2 raises an error where z is very small
        spare = plan.spare_delta if first else 0.0
        return (
            {"inverse_squares": one, "spare_delta": spare},
            {"inverse_squares": one * shares, "spare_delta": spare},
        )

    def of_group(self, cost: Mapping[str, float], n: int) -> dict[str, Fraction]:
        """Return what a cost comes to if n records are zeroed at once: a release moves n times."""
        return {
            "inverse_squares": Fraction(cost["inverse_squares"]) * n**2,
            "spare_delta": Fraction(cost["spare_delta"]) * n,
        }

    def epsilon_of(self, spent: Mapping[str, float]) -> float:
        """Return the epsilon of what was spent, at the cap's delta. The promise is the cap."""
        mu = spent["inverse_squares"] ** 0.5
        return gaussian_epsilon(mu, self.delta - self.spare_delta) if mu else 0.0


@dataclass(frozen=True)
class BasicCap:
    """Admit a plan if the plans' epsilons and deltas add up to at most these.

    A plan is paid for as a whole by its first release, and nothing is given back.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)

    def limits(self) -> Amounts:
        """Return how much of what may be spent."""
        return asdict(self)

    def costs(
        self, plan: PrivacyPlan, z: float, *, shares: int, first: bool
    ) -> tuple[Amounts, Amounts]:
        """Return what a release costs, and what it costs if all others collude."""
        if not first:
            return dict.fromkeys(self.limits(), 0.0), dict.fromkeys(self.limits(), 0.0)
        promised = guarantee(plan, None)
        return (
            {"epsilon": promised.epsilon, "delta": plan.delta},
            {"epsilon": promised.epsilon_if_others_collude, "delta": plan.delta},
        )

    def of_group(self, cost: Mapping[str, float], n: int) -> dict[str, Fraction]:
        """Return what a cost comes to if n records are zeroed at once, one after the other."""
        epsilon, delta = cost["epsilon"], cost["delta"]
        try:
            growth = math.expm1(n * epsilon) / math.expm1(epsilon) if epsilon else float(n)
        except OverflowError:
            growth = math.inf
        # Rounded up. A delta of 1 says all there is to say: nothing is promised any more.
        grown = min(1.0, delta * growth * (1 + _UP)) if n > 1 else delta
        return {"epsilon": Fraction(epsilon) * n, "delta": Fraction(max(delta, grown))}

    def epsilon_of(self, spent: Mapping[str, float]) -> float:
        """Return the epsilon that was spent."""
        return spent["epsilon"]


Cap = GaussianCap | BasicCap
_KINDS: dict[str, type[GaussianCap] | type[BasicCap]] = {
    "gaussian": GaussianCap,
    "basic": BasicCap,
}


def cap_kind(cap: Cap) -> str:
    """Return the name of a cap's kind."""
    for name, kind in _KINDS.items():
        if isinstance(cap, kind):
            return name
    raise InvalidInput(f"cap must be a GaussianCap or a BasicCap, got {cap!r}")


def cap_of(kind: str, settings: Mapping[str, Any]) -> Cap:
    """Return the cap with this kind and these settings."""
    return _KINDS[kind](**settings)
