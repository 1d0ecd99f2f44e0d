"""From events to epsilon, by dp-accounting's privacy loss distributions (PLD).

Zero-out neighbours (one record becomes null) are dp-accounting's REPLACE_SPECIAL; for these events
it gives the same as add-or-remove. The closed form for Gaussian releases and the RDP accountant
stand beside it as checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpfedc.privacy.plan import PlannedRelease, PrivacyPlan
from dpfedc.settings import require_number


def accountant_name() -> str:
    """Return the accountant and its version, for the statement."""
    return f"PLD (dp-accounting {version('dp-accounting')})"


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the delta of one Gaussian release with mu = sensitivity / noise_std, at epsilon.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)   (Balle and Wang 2018)
    """
    second = math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
    return float(ndtr(mu / 2 - epsilon / mu)) - second


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of one Gaussian release with mu = sensitivity / noise_std, at delta."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    top = 1.0
    while gaussian_delta(mu, top) > delta:
        top *= 2
    return float(brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, top, xtol=1e-12))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the mu of the Gaussian release that is exactly (epsilon, delta).

    >>> round(gaussian_mu(1.0, 1e-4), 6)
    0.313902
    """
    require_number("epsilon", epsilon, above=0)
    require_number("delta", delta, above=0, below=1)
    top = 1.0
    while gaussian_delta(top, epsilon) < delta:
        top *= 2
    low = 1e-8
    return float(brentq(lambda m: gaussian_delta(m, epsilon) - delta, low, top, xtol=1e-13))


def dp_event(releases: Iterable[PlannedRelease]) -> Any:
    """Return the dp-accounting event of everything that one site can meet."""
    import dp_accounting as dp

    def one(release: PlannedRelease) -> Any:
        event = dp.GaussianDpEvent(release.noise_multiplier)
        if release.sampling_probability < 1:
            event = dp.PoissonSampledDpEvent(release.sampling_probability, event)
        return dp.SelfComposedDpEvent(event, release.rounds_per_site)

    return dp.ComposedDpEvent([one(release) for release in releases])


def pld_epsilon(event: Any, delta: float, *, interval: float = 1e-4) -> float:
    """Return epsilon at delta, rounded up by the PLD's grid (`interval`)."""
    import dp_accounting as dp
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, interval)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def rdp_epsilon(event: Any, delta: float) -> float:
    """Return epsilon at delta by Renyi divergences: never below the PLD's but for its grid."""
    import dp_accounting as dp
    from dp_accounting import rdp

    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    orders = [*range(2, 65), 80, 96, 128, 192, 256, 384, 512]  # exact also for sampled records
    accountant = rdp.RdpAccountant(orders, neighboring_relation=relation)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def plan_epsilon(plan: PrivacyPlan, delta: float | None = None) -> float:
    """Return the epsilon that the plan promises to every record, at its delta or another one."""
    usable = (plan.delta if delta is None else delta) - plan.spare_delta
    return pld_epsilon(dp_event(plan.releases), usable)
