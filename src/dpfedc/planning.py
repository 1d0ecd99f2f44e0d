"""From public quantities to a plan: which stages, how many rounds, which step sizes.

Nothing here sees a record. What the rules rest on is told in docs/decisions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.methods.centres import Centres
from dpfedc.methods.dp_fedc import Factorization
from dpfedc.methods.preprocessing import Mean, Scale
from dpfedc.methods.protocol import Stage
from dpfedc.methods.published import NoiseRule, Published
from dpfedc.settings import Penalty
from dpfedc.theory.published import noise_variance, per_round_epsilon

NO_NOISE = "no noise was added: not private"
AS_PUBLISHED = "as published; not a proof"
PUBLISHED_FINAL_STEPS = 200
FIRST_ORTHOGONALITY = 0.1
LOW_DIMENSION = 50
"""Up to so many features, directions alone do not tell clusters apart and Lloyd rounds pay."""


@dataclass(frozen=True)
class Federation:
    """The public facts a plan is made from."""

    n_features: int
    records_per_site: npt.NDArray[np.int64]

    @property
    def n_sites(self) -> int:
        """Return the number of sites."""
        return len(self.records_per_site)


@dataclass(frozen=True)
class RunPlan:
    """A list of stages, what `predict` must know of them, and the stamps of their results."""

    stages: tuple[Stage, ...]
    penalty: Penalty
    refine: bool
    stamps: tuple[str, ...]

    @property
    def n_rounds(self) -> int:
        """Return the number of rounds of all stages."""
        return sum(stage.method.n_rounds for stage in self.stages)


@dataclass(frozen=True)
class Choices:
    """What the user chose; "auto" and None leave the choice to the plan."""

    n_clusters: int
    n_rounds: int | str = "auto"
    sites_per_round: int | None = None
    center: bool = True
    scale: bool = True
    constant_feature: float = 0.0
    refine_rounds: int | str = "auto"
    nonnegative: bool = False
    membership_steps: int = 10
    extra_steps: int | None = None
    batch_size: int = 50
    orthogonality: float | str = "auto"
    clip_norm: float = 0.03
    step: float = 24.0
    momentum: float | str = "auto"
    gradient_bound: float | None = None
    init: npt.NDArray[np.float64] | None = None


def normalized_plan(choices: Choices, federation: Federation) -> RunPlan:
    """Return the stages of the normalized variant, without noise."""
    n_rounds, sites_per_round = _participation(choices, federation)
    auto = choices.orthogonality == "auto"
    penalty = Penalty() if auto else Penalty(orthogonality=float(choices.orthogonality))
    first = min(FIRST_ORTHOGONALITY, penalty.orthogonality)
    momentum = choices.momentum
    if momentum == "auto":
        # A round with some of the sites sees some of the clusters: average over a few rounds.
        momentum = 0.5 if sites_per_round < federation.n_sites else 0.0
    rounds = choices.refine_rounds
    if rounds == "auto":
        rounds = 6 if federation.n_features <= LOW_DIMENSION else 0
    factorization = Factorization(
        choices.n_clusters,
        n_rounds,
        penalty=penalty,
        membership_steps=choices.membership_steps,
        extra_steps=choices.extra_steps or 0,
        first_orthogonality=first,
        clip_norm=choices.clip_norm,
        step=choices.step,
        momentum=float(momentum),
        constant=choices.constant_feature,
        clamp=choices.nonnegative and not choices.center,
        init=choices.init,
    )
    centres = Centres(
        choices.n_clusters,
        n_rounds=max(int(rounds), 1),
        refine=int(rounds) > 0,
        penalty=penalty,
        constant=choices.constant_feature,
    )
    stages = [
        Stage(Mean()) if choices.center else None,
        Stage(Scale()) if choices.scale else None,
        Stage(factorization, sites_per_round),
        Stage(centres),
    ]
    chosen = tuple(stage for stage in stages if stage is not None)
    return RunPlan(chosen, penalty, centres.refine, (NO_NOISE,))


def published_plan(
    choices: Choices,
    federation: Federation,
    *,
    mean_energy: float,
    epsilon: float | None,
    delta: float,
) -> RunPlan:
    """Return the stage of Algorithm 1 with the paper's penalties, and its noise if epsilon is set.

    `mean_energy` is |X|_F^2 / N. The paper sets its penalties from this exact statistic of the
    data: one of the reasons why its guarantee is no proof.
    """
    n_rounds, sites_per_round = _participation(choices, federation)
    auto = choices.orthogonality == "auto"
    rho = 1e-7 * mean_energy if auto else float(choices.orthogonality)
    penalty = Penalty(orthogonality=rho, membership_ridge=1e-10 * mean_energy)
    method = Published(
        choices.n_clusters,
        n_rounds,
        penalty=penalty,
        membership_steps=choices.membership_steps,
        extra_steps=10 if choices.extra_steps is None else choices.extra_steps,
        batch_size=choices.batch_size,
        gradient_bound=choices.gradient_bound or math.inf,
        init=choices.init,
    )
    per_round = Stage(method, sites_per_round)
    if epsilon is None:
        display = Centres(choices.n_clusters, penalty=penalty, final_steps=PUBLISHED_FINAL_STEPS)
        return RunPlan((per_round, Stage(display)), penalty, False, (AS_PUBLISHED, NO_NOISE))
    if choices.gradient_bound is None:
        raise InvalidInput(
            "variant='published' with epsilon set needs gradient_bound > 0, got None: "
            "the noise of Theorem 2 is proportional to it"
        )
    rule, violated = published_noise(method, federation, sites_per_round, epsilon, delta)
    noisy = Stage(replace(method, noise_rule=rule), sites_per_round)
    return RunPlan((noisy,), penalty, False, (AS_PUBLISHED, *violated))


def published_noise(
    method: Published,
    federation: Federation,
    sites_per_round: int,
    epsilon: float,
    delta: float,
) -> tuple[NoiseRule, tuple[str, ...]]:
    """Return Theorem 2's noise for a total loss of `epsilon` by Theorem 3, and what it violates."""
    sizes = federation.records_per_site
    steps = [method.centroid_steps(t) for t in range(1, method.n_rounds + 1)]
    q = max(float((s * method.batch_sizes(sizes, s) / sizes).max()) for s in set(steps))
    per_round = per_round_epsilon(
        epsilon,
        q=q,
        participation=sites_per_round / federation.n_sites,
        n_rounds=method.n_rounds,
        outside_conditions="stamp",
    )

    def rule(steps: int, q: npt.NDArray[Any], eta: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # Theorem 2 is a product of powers in eta: one call at eta = 1 serves all sites of one q.
        ratios, which = np.unique(q, return_inverse=True)
        variances = [
            float(
                noise_variance(
                    per_round.value,
                    delta,
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

    return rule, per_round.violated


def _participation(choices: Choices, federation: Federation) -> tuple[int, int]:
    """Return the rounds and the sites per round; fewer sites a round make for more rounds."""
    n_sites = federation.n_sites
    sites_per_round = choices.sites_per_round or n_sites
    if choices.n_rounds != "auto":
        return int(choices.n_rounds), sites_per_round
    return min(200, round(60 * math.sqrt(n_sites / sites_per_round))), sites_per_round
