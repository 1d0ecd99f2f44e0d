"""The plan of the published variant: Algorithm 1 with the paper's penalties and its noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.centers import Centers
from dpfedc.clustering.run_plan import NO_NOISE, Choices, Federation, RunPlan
from dpfedc.clustering.stage import Stage
from dpfedc.errors import InvalidInput
from dpfedc.research.published.algorithm import NoiseRule, Published
from dpfedc.research.theory.theorems import noise_variance, per_round_epsilon, sensitivity
from dpfedc.settings import Penalty, PrivacyTarget

AS_PUBLISHED = "as published; not a proof"
PUBLISHED_FINAL_STEPS = 200
PUBLISHED_ROUNDS = 100


def published_plan(
    choices: Choices,
    federation: Federation,
    *,
    mean_energy: float,
    target: PrivacyTarget | None,
) -> RunPlan:
    """Return the stage of Algorithm 1 with the paper's penalties, and its noise if epsilon is set.

    `mean_energy` is |X|_F^2 / N. The paper sets its penalties from this exact statistic of the
    data: one of the reasons why its guarantee is no proof.
    """
    sites_per_round = choices.sites_per_round or federation.n_sites
    auto = choices.orthogonality == "auto"
    rho = 1e-7 * mean_energy if auto else float(choices.orthogonality)
    penalty = Penalty(orthogonality=rho, membership_ridge=1e-10 * mean_energy)
    method = _method(choices, penalty)
    per_round = Stage(method, sites_per_round)
    if target is None:
        display = Centers(choices.n_clusters, penalty=penalty, final_steps=PUBLISHED_FINAL_STEPS)
        return RunPlan((per_round, Stage(display)), penalty, False, (AS_PUBLISHED, NO_NOISE))
    if choices.gradient_bound is None:
        raise InvalidInput(
            "variant='published' with epsilon set needs gradient_bound > 0, got None: "
            "the noise of Theorem 2 is proportional to it"
        )
    rule, violated = published_noise(method, federation, sites_per_round, target)
    noisy = Stage(replace(method, noise_rule=rule), sites_per_round)
    return RunPlan((noisy,), penalty, False, (AS_PUBLISHED, *violated))


def _method(choices: Choices, penalty: Penalty) -> Published:
    return Published(
        choices.n_clusters,
        PUBLISHED_ROUNDS if choices.n_rounds == "auto" else int(choices.n_rounds),
        penalty=penalty,
        membership_steps=choices.membership_steps,
        extra_steps=10 if choices.extra_steps is None else choices.extra_steps,
        batch_size=choices.batch_size,
        gradient_bound=choices.gradient_bound or math.inf,
        init=choices.init,
    )


def published_noise(
    method: Published,
    federation: Federation,
    sites_per_round: int,
    target: PrivacyTarget,
) -> tuple[NoiseRule, tuple[str, ...]]:
    """Return Theorem 2's noise for the target as total loss by Theorem 3, and what it violates."""
    sizes = federation.records_per_site
    steps = [method.centroid_steps(t) for t in range(1, method.n_rounds + 1)]
    q = max(float((s * method.batch_sizes(sizes, s) / sizes).max()) for s in set(steps))
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

    def rule(steps: int, q: npt.NDArray[Any], eta: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # Theorem 2 is a product of powers in eta: one call at eta = 1 serves all sites of one q.
        ratios, which = np.unique(q, return_inverse=True)
        variances = [
            float(
                noise_variance(
                    per_round.value,
                    target.delta,
                    gradient_bound=method.gradient_bound,
                    centroid_steps=steps,
                    eta=1.0,
                    q=float(ratio),
                    outside_conditions="stamp",
                )
            )
            for ratio in ratios
        ]
        return np.asarray(np.sqrt(np.asarray(variances)[which]) / eta)

    return rule, (*per_round.violated, *worst.violated)


def published_noise_multipliers(
    choices: Choices, federation: Federation, target: PrivacyTarget
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Return z of every round (row) and site (column), and the conditions that the noise violates.

    z is the noise of `published_noise` over the sensitivity 2 G Q2 / eta. Both are in proportion
    to G / eta, so z depends on neither: with q = Q2 b / n_i and the per-round epsilon of Theorem 3,
    z = 2 q sqrt(2 ln(1.25 q / delta)) / epsilon.
    """
    method = _method(replace(choices, gradient_bound=1.0), Penalty())
    sizes = federation.records_per_site
    per_round = choices.sites_per_round or federation.n_sites
    rule, violated = published_noise(method, federation, per_round, target)
    ones = np.ones(len(sizes))
    rows = {
        steps: rule(steps, steps * method.batch_sizes(sizes, steps) / sizes, ones)
        / sensitivity(1.0, steps, 1.0)
        for steps in {method.centroid_steps(t) for t in range(1, method.n_rounds + 1)}
    }
    z = [rows[method.centroid_steps(t)] for t in range(1, method.n_rounds + 1)]
    return np.asarray(z), violated
