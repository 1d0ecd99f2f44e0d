"""The plan of the published variant: Algorithm 1 with the paper's penalties and its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.centers import Centers
from dpfedc.clustering.dp_fedc_planner import DP_FEDC, DPFedCMethod
from dpfedc.clustering.method import Float, Plan, Settings, Target
from dpfedc.clustering.run_plan import NO_NOISE, Federation, RunPlan
from dpfedc.errors import InvalidInput
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.privacy.statement import number as in_words
from dpfedc.research.published.algorithm import (
    NOTHING,
    RECORD,
    NoiseRule,
    Published,
)
from dpfedc.research.published.published_account import published_epsilon, reach
from dpfedc.research.theory.theorems import noise_variance, per_round_epsilon, sensitivity
from dpfedc.settings import Penalty, PrivacyTarget, number

AS_PUBLISHED = "as published; not a proof"
NOT_ENFORCED = "gradient_bound is assumed, not enforced: no noise gives a finite epsilon"
FALLING = "falling"
PUBLISHED_FINAL_STEPS = 200
PUBLISHED_ROUNDS = 100


class PublishedMethod(DPFedCMethod):
    """Algorithm 1 with the paper's penalties, and its noise if epsilon is set.

    `mean_energy` is |X|_F^2 / N. The paper sets its penalties from this exact statistic of the
    data: one of the reasons why its guarantee is no proof.
    """

    name = "published"
    settings = {**DP_FEDC.settings, "mean_energy": number(0.0, least=0)}  # noqa: RUF012
    proved = False
    reads_tables = False
    model_steps = PUBLISHED_FINAL_STEPS

    def plan(
        self, given: Settings, facts: Federation, target: Target, privacy: Plan = None
    ) -> RunPlan:
        """Return the stage of Algorithm 1; nothing is proved of it, so it has no privacy plan."""
        choices = self.checked(given, facts)
        sites_per_round = choices.sites_per_round or facts.n_sites
        energy, auto = choices.mean_energy, choices.orthogonality == "auto"
        rho = 1e-7 * energy if auto else float(choices.orthogonality)
        penalty = Penalty(orthogonality=rho, membership_ridge=1e-10 * energy)
        rounds = _rounds(choices, penalty, sites_per_round)
        # Records are assigned by the steps that the rounds took.
        penalty = rounds.slope
        if target is None:
            steps = PUBLISHED_FINAL_STEPS
            display = Centers(choices.n_clusters, penalty=penalty, final_steps=steps)
            stamps = (AS_PUBLISHED, NO_NOISE, *_read_again(rounds, facts))
            return RunPlan((rounds, display), penalty, stamps=stamps)
        if choices.gradient_bound is None:
            raise InvalidInput(
                "variant='published' with epsilon set needs gradient_bound > 0, got None: "
                "the noise of Theorem 2 is proportional to it"
            )
        rule, violated = published_noise(rounds, facts, sites_per_round, target)
        noisy = replace(rounds, noise_rule=rule)
        assumed = (NOT_ENFORCED,) if rounds.bound_on == NOTHING else ()
        stamps = (AS_PUBLISHED, *assumed, *_read_again(rounds, facts), *violated)
        return RunPlan((noisy,), penalty, stamps=stamps)

    def notes(self, given: Settings, facts: Federation, target: Target) -> tuple[str, ...]:
        """Return the paper's claim beside what the accountant gives for the very same noise."""
        if target is None:
            return ()
        loss = published_loss(given, facts, target)
        return (
            f"Not protected: this run adds the noise that the paper states for a total privacy "
            f"loss of epsilon {target.epsilon:g}, delta {target.delta:g} for each record. The "
            "paper's argument is not a proof, so this run promises no privacy.",
            f"The same noise: by the accountant it would give epsilon {loss.in_words} at delta "
            f"{target.delta:g}, if the step sizes were public; here they are computed from private "
            "memberships, which nothing covers.",
            "Not protected: labels, cluster sizes and scores, which are exact.",
        )

    def declared(self, given: Settings, facts: Federation) -> dict[str, Float]:
        """Return nothing: the paper clips gradients, not records."""
        return {}


PUBLISHED = PublishedMethod()


def _rounds(choices: SimpleNamespace, penalty: Penalty, per_round: int | None = None) -> Published:
    return Published(
        choices.n_clusters,
        PUBLISHED_ROUNDS if choices.n_rounds == "auto" else int(choices.n_rounds),
        penalty=penalty,
        membership_steps=choices.membership_steps,
        extra_steps=10 if choices.extra_steps is None else choices.extra_steps,
        constant_steps=None if choices.centroid_steps == FALLING else choices.centroid_steps,
        batch_size=choices.batch_size,
        cycling=choices.batches == "cycling",
        scaled=choices.batch_gradient == "scaled",
        bound_on=choices.bound_on,
        printed_slope=choices.membership_gradient == "printed",
        gradient_bound=choices.gradient_bound or math.inf,
        init=choices.init,
        sites_per_round=per_round,
    )


def _all_steps(method: Published) -> list[int]:
    """Return Q2 of every round."""
    return [method.centroid_steps(t) for t in range(1, method.n_rounds + 1)]


def _read_again(method: Published, federation: Federation) -> tuple[str, ...]:
    """Return a stamp where a round reads more records than a site has."""
    sizes = federation.records_per_site
    q = max(float(method.ratios(sizes, steps).max()) for steps in set(_all_steps(method)))
    if not method.cycling or q <= 1:
        return ()
    return (
        f"q = Q2 b / n_i is {q:g}: sites go through their records more than once in a round, and "
        "Theorems 2 and 3, which need q < 1, are given 1/2",
    )


def published_noise(
    method: Published,
    federation: Federation,
    sites_per_round: int,
    target: PrivacyTarget,
) -> tuple[NoiseRule, tuple[str, ...]]:
    """Return Theorem 2's noise for the target as total loss by Theorem 3, and what it violates."""
    sizes = federation.records_per_site
    steps = _all_steps(method)
    q = max(float(method.stated_ratios(sizes, s).max()) for s in set(steps))
    per_round = per_round_epsilon(
        target.epsilon,
        q=q,
        participation=sites_per_round / federation.n_sites,
        n_rounds=method.n_rounds,
        outside_conditions="stamp",
    )

    worst = noise_variance(
        per_round.value,
        target.delta,
        gradient_bound=method.gradient_bound,
        centroid_steps=max(steps),
        eta=1.0,
        q=q,
        outside_conditions="stamp",
    )

    rule = partial(_noise_std, per_round.value, target.delta, method.gradient_bound)
    return rule, (*per_round.violated, *worst.violated)


def _noise_std(
    epsilon: float,
    delta: float,
    gradient_bound: float,
    steps: int,
    q: npt.NDArray[Any],
    eta: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Return the noise of Theorem 2 for every site, from its q and its eta.

    It is a product of powers in eta: one call at eta = 1 serves all sites of one q.
    """
    ratios, which = np.unique(q, return_inverse=True)
    variances = [
        float(
            noise_variance(
                epsilon,
                delta,
                gradient_bound=gradient_bound,
                centroid_steps=steps,
                eta=1.0,
                q=float(ratio),
                outside_conditions="stamp",
            )
        )
        for ratio in ratios
    ]
    return np.asarray(np.sqrt(np.asarray(variances)[which]) / eta)


def published_noise_multipliers(
    given: Settings, federation: Federation, target: PrivacyTarget
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Return z of every round (row) and site (column), and the conditions that the noise violates.

    z is the noise of `published_noise` over the sensitivity 2 G Q2 / eta. Both are in proportion
    to G / eta, so z depends on neither: with q = Q2 b / n_i and the per-round epsilon of Theorem 3,
    z = 2 q sqrt(2 ln(1.25 q / delta)) / epsilon.
    """
    method, per_round = _method_of(given, federation)
    sizes = federation.records_per_site
    rule, violated = published_noise(method, federation, per_round, target)
    ones = np.ones(len(sizes))
    rows = {
        steps: rule(steps, method.stated_ratios(sizes, steps), ones) / sensitivity(1.0, steps, 1.0)
        for steps in set(_all_steps(method))
    }
    return np.asarray([rows[steps] for steps in _all_steps(method)]), violated


def _method_of(given: Settings, federation: Federation) -> tuple[Published, int]:
    """Return the rounds for a bound of 1, and how many sites are in one."""
    choices = PUBLISHED.checked({**given, "gradient_bound": 1.0, "init": None}, federation)
    return _rounds(choices, Penalty()), choices.sites_per_round or federation.n_sites


@dataclass(frozen=True)
class PublishedLoss:
    """What the accountant gives for the published noise, if step sizes were public.

    `stated` takes the paper's sensitivity, 2 G Q2 / eta; `null` and `replaced` what is proved in
    `published_account` for one record made null, or replaced. Infinite where nothing is.
    """

    stated: float
    null: float
    replaced: float

    @property
    def in_words(self) -> str:
        """Return all that is known, in one phrase."""
        if self.null == self.replaced:
            return in_words(self.null)
        return (
            f"{in_words(self.null)} for a record made null, {in_words(self.replaced)} for one "
            f"replaced, and {in_words(self.stated)} by the paper's sensitivity,"
        )


def published_loss(given: Settings, federation: Federation, target: PrivacyTarget) -> PublishedLoss:
    """Return what the accountant gives for the noise that these settings add."""
    z, _ = published_noise_multipliers(given, federation, target)
    method, per_round = _method_of(given, federation)
    sizes = federation.records_per_site
    rows = {steps: reach(method, sizes, steps) for steps in set(_all_steps(method))}
    share = np.asarray([rows[steps] for steps in _all_steps(method)])
    twice = 2 if method.bound_on == RECORD else 1
    most = most_rounds_of_a_site(federation.n_sites, per_round, len(z))
    account = partial(published_epsilon, rounds_per_site=most, delta=target.delta, clipped=True)
    stated = math.inf if method.bound_on == NOTHING else account(z)
    return PublishedLoss(stated, null=account(z / share), replaced=account(z / (twice * share)))
