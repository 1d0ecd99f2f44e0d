"""How much noise a target epsilon needs. Never overshoots: every result is confirmed by the PLD."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import (
    ONE_SITE,
    Reach,
    gaussian_mu,
    plan_epsilon,
    reach_of,
    releases_epsilon,
)
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan, require_unsampled

NUDGE = 1.0001
"""Noise is raised in steps of this factor until the accountant confirms the target."""
FEW_NUDGES, MAX_NUDGES = 10, 30
"""A few steps are enough but where the accountant's own rounding is a good part of epsilon, as with
very many sampled rounds. There each further step is twice the one before, or the search would take
hours."""
MIN_NOISE = 0.2
"""The search for a sampled stage's z ends near here. Records that are sampled less often than delta
would need no noise at all, and less noise than this is of no use to anyone."""


@dataclass(frozen=True)
class StageBudget:
    """A stage that is to release: its rounds, and its share of the budget, counted in mu^2.

    mu is sensitivity over noise of the single Gaussian release with the target's (epsilon, delta).
    A stage whose records are sampled gets what the others leave.
    """

    stage: str
    n_rounds: int
    sites_per_round: int
    rounds_per_site: int
    share: float
    sampling_probability: float = 1.0
    spare_rounds: int = 0


def calibrated_releases(
    budgets: tuple[StageBudget, ...], epsilon: float, delta: float, reach: Reach = ONE_SITE
) -> tuple[PlannedRelease, ...]:
    """Return the releases with the least noise (to 0.01 %) whose epsilon is at most the target.

    `reach` is that of the unit that epsilon is for. Without sampling, releases compose to one
    Gaussian with mu^2 = sum of rounds / z^2: a closed form. With sampling, z of the sampled stage
    is found by bisection on the PLD of the whole plan.
    """
    total = sum(budget.share for budget in budgets)
    if not budgets or abs(total - 1) > 1e-9 or min(b.share for b in budgets) <= 0:
        raise InvalidInput(f"budget shares must be > 0 and sum to 1, got {total} in total")
    sampled = [b for b in budgets if b.sampling_probability < 1]
    if len(sampled) > 1:
        raise InvalidInput(f"at most one stage may sample its records, got {len(sampled)}")
    return _calibrated(budgets, epsilon, delta, reach)


@lru_cache(maxsize=256)
def _calibrated(
    budgets: tuple[StageBudget, ...], epsilon: float, delta: float, reach: Reach
) -> tuple[PlannedRelease, ...]:
    mu = gaussian_mu(epsilon, delta)
    releases = tuple(
        PlannedRelease(
            b.stage,
            b.n_rounds,
            b.sites_per_round,
            b.rounds_per_site,
            (reach.squared * b.rounds_per_site / b.share) ** 0.5 / mu,
            b.sampling_probability,
            b.spare_rounds,
        )
        for b in budgets
    )
    for i, budget in enumerate(budgets):
        if budget.sampling_probability < 1:
            releases = _with_sampled_noise(releases, i, epsilon, delta, reach)
    for i in range(MAX_NUDGES):
        if releases_epsilon(releases, delta, reach) <= epsilon:
            return releases
        more = NUDGE ** (2 ** max(i - FEW_NUDGES, 0))
        releases = tuple(replace(r, noise_multiplier=r.noise_multiplier * more) for r in releases)
    n_rounds = max(budget.rounds_per_site for budget in budgets)
    raise InvalidInput(
        f"epsilon must be larger, or the rounds fewer, for the accountant to count it, got epsilon "
        f"{epsilon:g} with {n_rounds:,} rounds"
    )


def _with_sampled_noise(
    releases: tuple[PlannedRelease, ...], i: int, epsilon: float, delta: float, reach: Reach
) -> tuple[PlannedRelease, ...]:
    """Return the releases with the least z in place i, found by bisection.

    Sampling only helps, so the z without it is an upper end.
    """

    def at(z: float) -> tuple[PlannedRelease, ...]:
        return (*releases[:i], replace(releases[i], noise_multiplier=z), *releases[i + 1 :])

    def enough(z: float) -> bool:
        return releases_epsilon(at(z), delta, reach) <= epsilon

    high = releases[i].noise_multiplier
    low = high / 2
    while low > MIN_NOISE and enough(low):
        low, high = low / 2, low
    if low <= MIN_NOISE:
        return at(high)
    while high / low > NUDGE:
        middle = (low * high) ** 0.5
        if enough(middle):
            high = middle
        else:
            low = middle
    return at(high)


def calibrated_plan(
    budgets: tuple[StageBudget, ...],
    *,
    epsilon: float,
    delta: float,
    trust: str,
    n_sites: int,
    min_survivors: int | None = None,
    colluding_sites: int = 0,
    spare_delta: float = 0.0,
    unit: str = "record",
    sites_per_person: int = 1,
) -> PrivacyPlan:
    """Return the privacy plan that spends at most (epsilon, delta)."""
    # Before the search for noise, which takes seconds where records are sampled.
    sampled = any(budget.sampling_probability < 1 for budget in budgets)
    require_unsampled(sites_per_person, sampled=sampled)
    reach = reach_of(trust, sites_per_person)
    releases = calibrated_releases(budgets, epsilon, delta - spare_delta, reach)
    plan = PrivacyPlan(
        releases,
        delta,
        trust,
        n_sites,
        min_survivors=min_survivors,
        colluding_sites=colluding_sites,
        spare_delta=spare_delta,
        unit=unit,
        sites_per_person=sites_per_person,
    )
    if plan_epsilon(plan) > epsilon:
        raise InvalidInput(f"the plan's epsilon exceeds the target {epsilon}")
    return plan
