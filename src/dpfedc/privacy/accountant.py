"""From events to epsilon, by dp-accounting's privacy loss distributions (PLD).

Zero-out neighbours (one record becomes null) are dp-accounting's REPLACE_SPECIAL; for these events
it gives the same as add-or-remove. The closed form for Gaussian releases and the RDP accountant
stand beside it as checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpfedc.privacy.privacy_plan import RELATION, PlannedRelease, PrivacyPlan
from dpfedc.settings import MAX_EPSILON, PrivacyGuarantee, require_number

GRID = 1e-3
"""Steps in which privacy loss is counted. Rounding is always up; against the closed form it costs
less than one part in 10,000 of epsilon."""
RELATIVE_GRID = 1e-5
"""The same for large epsilon, as a part of it."""
MU_GRID = 1 / 32
"""The same for small epsilon, as a part of mu: the steps must be finer than the loss spreads."""
MAX_MU = 1e7
"""Beyond it, floating-point numbers are too coarse for the closed form, and epsilon is infinite."""


def accountant_name() -> str:
    """Return the accountant and its version, for the statement."""
    return f"PLD (dp-accounting {version('dp-accounting')})"


# From version 0.6 on, dp-accounting has functions like the next three (gaussian_mechanism). They
# agree to 9 digits, which the tests check. But theirs search sigma to 1e-12, which for a large
# epsilon is 1e-9 of it, where ours are good to rounding; and they warn where delta underflows.
def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the delta of one Gaussian release with mu = sensitivity / noise_std, at epsilon.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)   (Balle and Wang 2018)
    """
    second = math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
    return float(ndtr(mu / 2 - epsilon / mu)) - second


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of one Gaussian release with mu = sensitivity / noise_std, at delta."""
    if mu > MAX_MU:
        return math.inf
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
    low = top
    while gaussian_delta(low, epsilon) > delta:
        low /= 2
    return float(brentq(lambda m: gaussian_delta(m, epsilon) - delta, low, top, xtol=1e-13))


@dataclass(frozen=True)
class Reach:
    """How far one unit reaches, beside a record at one site (docs/privacy-proof.md, section 13).

    For every release of a site it is in `times` releases at most, and moves each by `shift` times
    the sensitivity at most.
    """

    times: int = 1
    shift: int = 1

    @property
    def squared(self) -> int:
        """Return how many times as large the unit's mu^2 is."""
        return self.times * self.shift**2


ONE_SITE = Reach()


def reach_of(trust: str, sites_per_person: int) -> Reach:
    """Return the reach of a person with rows at so many sites.

    Where every site releases for itself, the person is in the releases of each. A sum over sites is
    one release, which all of the person's sites move at once.
    """
    return Reach(times=sites_per_person) if trust == "local" else Reach(shift=sites_per_person)


def dp_event(releases: Iterable[PlannedRelease], reach: Reach = ONE_SITE) -> Any:
    """Return the dp-accounting event of everything that one unit can meet."""
    import dp_accounting as dp

    def one(release: PlannedRelease) -> Any:
        event = dp.GaussianDpEvent(release.noise_multiplier / reach.shift)
        if release.sampling_probability < 1:
            event = dp.PoissonSampledDpEvent(release.sampling_probability, event)
        return dp.SelfComposedDpEvent(event, release.rounds_per_site * reach.times)

    return dp.ComposedDpEvent([one(release) for release in releases])


def pld_epsilon(event: Any, delta: float, *, grid: float = GRID) -> float:
    """Return epsilon at delta, rounded up by the PLD's grid."""
    import dp_accounting as dp
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, grid)
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


def composed_mu(releases: Iterable[PlannedRelease], reach: Reach = ONE_SITE) -> float:
    """Return the mu of all that one unit can meet, as if no record were sampled."""
    return math.sqrt(
        sum(r.rounds_per_site / r.noise_multiplier**2 for r in releases) * reach.squared
    )


@lru_cache(maxsize=1024)
def releases_epsilon(
    releases: tuple[PlannedRelease, ...], delta: float, reach: Reach = ONE_SITE
) -> float:
    """Return the epsilon, at delta, of everything that one unit can meet."""
    event = dp_event(releases, reach)
    if not releases or delta <= 0:
        return pld_epsilon(event, delta)
    return scaled_pld_epsilon(event, composed_mu(releases, reach), delta)


def scaled_pld_epsilon(event: Any, mu: float, delta: float) -> float:
    """Return epsilon at delta, on a grid that suits the event; mu is its mu without sampling.

    The grid grows with epsilon, or a PLD with weak noise would take minutes; and it shrinks with
    mu, or most of a small epsilon would be rounding. Where noise is so weak that the PLD's sums
    overflow, infinity is the bound.
    """
    closed = gaussian_epsilon(mu, delta)
    if closed > 10 * MAX_EPSILON:
        return math.inf
    grid = min(max(GRID, RELATIVE_GRID * closed), MU_GRID * mu)
    return pld_epsilon(event, delta, grid=grid)


def plan_reach(plan: PrivacyPlan) -> Reach:
    """Return the reach of the unit that the plan protects."""
    return reach_of(plan.trust, plan.sites_per_person)


def plan_epsilon(plan: PrivacyPlan, delta: float | None = None) -> float:
    """Return the epsilon that the plan promises to every unit, at its delta or another one."""
    usable = (plan.delta if delta is None else delta) - plan.spare_delta
    return releases_epsilon(plan.releases, usable, plan_reach(plan))


def guarantee(plan: PrivacyPlan, stamp: str | None) -> PrivacyGuarantee:
    """Return the promise that the plan makes."""
    epsilon = plan_epsilon(plan)
    alone = epsilon
    if plan.trust == "secure-aggregation":
        # Against all other sites only the shares of the noise that the unit's own sites add are
        # left. The closed form ignores sampling, which can only help.
        own = plan.sites_per_person
        mu = sum(
            own * max(plan.honest_shares(r.sites_per_round), own)
            * r.rounds_per_site / r.noise_multiplier**2
            for r in plan.releases
        )  # fmt: skip
        alone = gaussian_epsilon(mu**0.5, plan.delta - plan.spare_delta)
    return PrivacyGuarantee(
        epsilon=epsilon,
        delta=plan.delta,
        unit=plan.unit,
        relation=RELATION,
        trust=plan.trust,
        min_survivors=plan.min_survivors,
        colluding_sites=plan.colluding_sites,
        epsilon_if_others_collude=alone,
        accountant=accountant_name(),
        rounds_per_site={r.stage: r.rounds_per_site for r in plan.releases},
        stamp=stamp,
        event=dp_event(plan.releases, plan_reach(plan)),
        sites_per_person=plan.sites_per_person,
    )
