"""The plan of the normalized variant: stages, rounds, step sizes, and how much noise.

Nothing here sees a record. The rules rest on one number, the noise ratio

    kappa = k f sqrt(m) / (n mu)

the noise of one release of the mean record that spends the whole budget, against a cluster of
average size. mu belongs to the target (epsilon, delta); f says what the trust model costs. The
evidence is in docs/decisions/0004-planner.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dpfedc.clustering.centers import COUNT_WEIGHT, Centers, Lengths
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.restarts import Choice, Restarts
from dpfedc.clustering.run_plan import NO_NOISE, Choices, Federation, RunPlan
from dpfedc.clustering.stage import Method, Stage
from dpfedc.clustering.standardize import N_BINS, Bound, Mean, Scale, Subspace
from dpfedc.clustering.sums_and_gram import SumsAndGram
from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import gaussian_mu
from dpfedc.privacy.calibration import StageBudget, calibrated_plan
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.sampling import largest_batch_ratio
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.settings import Penalty, PrivacyTarget

CLIP_NORM, STEP = 0.03, 24.0
LOW_CLIP_NORM, LOW_STEP, LOW_ROUNDS = 0.1, 8.0, 20
"""Where a refinement follows, a shorter step and a few rounds find what it can start from."""
LINE_SCALE_FACTOR = 2.0
"""On a line the outer clusters are twice as far out as the mean distance, and must not be clipped
together."""
FIRST_ORTHOGONALITY = 0.1
LOW_DIMENSION = 50
"""Up to so many features, directions alone do not tell clusters apart and Lloyd rounds pay."""
REFINE_ROUNDS = 6
MAX_USABLE_NOISE = 0.7
"""Above this noise ratio results are poor, and a subspace is worth its price."""
SUBSPACE_DIMENSIONS, SUBSPACE_ROUNDS = 40, 10
SHARES = {"bound": 0.01, "mean": 0.1, "scale": 0.01, "subspace": 0.15}
"""Of the budget, counted in mu^2; the factorisation and the centres share the rest."""
LENGTHS_SHARE = 0.01
REFINE_SHARE = 0.6


def noise_ratio(
    facts: Federation, n_clusters: int, sites_per_round: int, target: PrivacyTarget
) -> float:
    """Return kappa.

    f is sqrt(N) where every site adds its own noise, and sqrt(N / K) where a round's sites add one
    noise together: a round with fewer sites has the same noise for fewer records, and may be
    repeated N / K times as often.
    """
    mu = gaussian_mu(target.epsilon, target.delta)
    n_sites = facts.n_sites
    f = math.sqrt(n_sites)
    if target.trust != "local":
        f = math.sqrt(n_sites / sites_per_round)
    if target.trust == "secure-aggregation":
        survivors = min(target.min_survivors or sites_per_round, sites_per_round)
        f *= math.sqrt(sites_per_round / max(survivors - target.colluding_sites, 1))
    return n_clusters * f * math.sqrt(facts.n_features) / (facts.n_records * mu)


def normalized_plan(
    choices: Choices,
    facts: Federation,
    target: PrivacyTarget | None,
    *,
    privacy: PrivacyPlan | None = None,
) -> RunPlan:
    """Return the stages of the normalized variant; without a target there is no noise.

    A privacy plan that was made before is taken as it is, which saves the time to make it again.
    """
    per_round = choices.sites_per_round or facts.n_sites
    kappa = 0.0
    if target is not None:
        kappa = noise_ratio(facts, choices.n_clusters, per_round, target)
    n_refine = _refine_rounds(choices, facts, kappa)
    dimensions = _subspace(choices, facts, kappa, n_refine)
    factorization = _factorization(choices, facts, target, per_round, kappa, n_refine, dimensions)
    stages: list[Stage] = []
    if target is not None and not choices.declared_bound:
        stages.append(Stage(Bound(0.0)))
    if choices.center:
        stages.append(Stage(Mean()))
    if choices.scale:
        on_line = facts.n_features == 1
        stages.append(Stage(Scale(factor=LINE_SCALE_FACTOR) if on_line else Scale()))
    if dimensions:
        stages.append(Stage(Subspace(dimensions)))
    stages += _search(choices, factorization, per_round, private=target is not None)
    stages.append(Stage(_last_method(choices, factorization, n_refine, private=target is not None)))
    if target is None:
        return RunPlan(tuple(stages), factorization.penalty, n_refine > 0, (NO_NOISE,))
    if privacy is None:
        privacy = _privacy_plan(choices, facts, target, stages, n_refine)
    return RunPlan(
        tuple(Stage(_told(s.method, privacy, facts), s.sites_per_round) for s in stages),
        factorization.penalty,
        n_refine > 0,
        (),
        privacy,
        kappa,
    )


def _factorization(
    choices: Choices,
    facts: Federation,
    target: PrivacyTarget | None,
    per_round: int,
    kappa: float,
    n_refine: int,
    dimensions: int,
) -> Factorization:
    clip, step = (LOW_CLIP_NORM, LOW_STEP) if n_refine else (CLIP_NORM, STEP)
    n_rounds = choices.n_rounds
    if n_rounds == "auto":
        n_rounds = SUBSPACE_ROUNDS
        if not dimensions:
            n_rounds = auto_rounds(kappa, facts.n_sites / per_round)
        n_rounds = min(n_rounds, LOW_ROUNDS) if n_refine else n_rounds
    rho = choices.orthogonality
    if rho == "auto":
        rho = final_orthogonality(kappa)
    momentum = choices.momentum
    if momentum == "auto":
        # A round with some of the sites sees some of the clusters: average over a few rounds.
        momentum = 0.5 if per_round < facts.n_sites else 0.0
    q = choices.sampling_probability if target is not None else 1.0
    extra = choices.extra_steps or 0
    ratio = 1.0
    if extra:
        failure = target.delta / 100 if target is not None else 1e-9
        ratio = largest_batch_ratio(
            facts.records_per_site, extra, int(n_rounds), probability=q, failure=failure
        )
    method = SumsAndGram if choices.update == "sums-and-gram" else Factorization
    return method(
        choices.n_clusters,
        int(n_rounds),
        penalty=Penalty(orthogonality=float(rho)),
        first_orthogonality=min(FIRST_ORTHOGONALITY, float(rho)),
        membership_steps=choices.membership_steps,
        extra_steps=extra,
        batch_ratio=ratio,
        clip_norm=float(clip if choices.clip_norm == "auto" else choices.clip_norm),
        step=float(step if choices.step == "auto" else choices.step),
        momentum=float(momentum),
        constant=choices.constant_feature,
        # Coordinates in a subspace have no sign to keep; cluster_centers_ are clamped all the same.
        clamp=choices.nonnegative and not choices.center and not dimensions,
        init=choices.init,
    )


def auto_rounds(kappa: float, dilution: float) -> int:
    """Return 3 / kappa rounds, from 5 to 80: few where noise is strong, for each round adds some.

    `dilution` is N / K: where a round sees a part of the sites it takes more of them.
    """
    rounds = 80.0 if kappa == 0 else min(max(3 / kappa, 5.0), 80.0)
    return round(min(rounds * math.sqrt(dilution), 200))


def final_orthogonality(kappa: float) -> float:
    """Return the last rho: 1 below kappa = 0.2, falling to 0.1 at 0.5.

    Hard memberships make better clusters, but magnify noise.
    """
    if kappa == 0:
        return 1.0
    return min(1.0, max(0.1, 0.1 * math.pow(0.5 / kappa, 2.5)))


def _refine_rounds(choices: Choices, facts: Federation, kappa: float) -> int:
    if choices.refine_rounds != "auto":
        return int(choices.refine_rounds)
    if facts.n_features > LOW_DIMENSION:
        return 0
    noise = kappa * math.sqrt(REFINE_ROUNDS / REFINE_SHARE)
    return REFINE_ROUNDS if noise < 0.3 else 0


def _subspace(choices: Choices, facts: Federation, kappa: float, n_refine: int) -> int:
    if choices.subspace is None or choices.constant_feature:
        return 0
    if choices.subspace != "auto":
        return int(choices.subspace)
    wanted = (
        kappa > MAX_USABLE_NOISE and facts.n_features > 2 * SUBSPACE_DIMENSIONS and not n_refine
    )
    return SUBSPACE_DIMENSIONS if wanted else 0


def _search(
    choices: Choices, factorization: Factorization, per_round: int, *, private: bool
) -> list[Stage]:
    """Return the factorisation, from one start or from several with a choice among them."""
    r = choices.n_restarts
    if r == 1:
        return [Stage(factorization, per_round)]
    if private:
        raise InvalidInput(
            f"n_restarts must be 1 unless epsilon is None, got {r}: every start would be charged "
            "for its own releases, and the choice among them for one more"
        )
    restarts = Restarts(factorization, r)
    return [Stage(restarts, per_round), Stage(Choice(restarts))]


def _last_method(
    choices: Choices, factorization: Factorization, n_refine: int, *, private: bool
) -> Method:
    k, penalty, constant = choices.n_clusters, factorization.penalty, choices.constant_feature
    if private and not n_refine:
        return Lengths(k, penalty=penalty, constant=constant)
    return Centers(
        k,
        n_rounds=max(n_refine, 1),
        refine=n_refine > 0,
        penalty=penalty,
        constant=constant,
        bounded=private,
    )


def _privacy_plan(
    choices: Choices,
    facts: Federation,
    target: PrivacyTarget,
    stages: list[Stage],
    n_refine: int,
) -> PrivacyPlan:
    """Return the calibrated plan: fixed shares for the small stages, the rest for clustering."""
    shares = {s.method.name: SHARES[s.method.name] for s in stages if s.method.name in SHARES}
    rest = 1 - sum(shares.values())
    shares["centres"] = REFINE_SHARE * rest if n_refine else LENGTHS_SHARE
    shares["factorisation"] = 1 - sum(shares.values())
    budgets, spare = [], 0.0
    for stage in stages:
        method, per_round = stage.method, stage.sites_per_round or facts.n_sites
        sampled = isinstance(method, Factorization) and choices.sampling_probability < 1
        if sampled and choices.extra_steps:
            spare = target.delta / 100
        budgets.append(
            StageBudget(
                method.name,
                method.n_rounds,
                per_round,
                most_rounds_of_a_site(facts.n_sites, per_round, method.n_rounds),
                shares[method.name],
                choices.sampling_probability if sampled else 1.0,
            )
        )
    return calibrated_plan(
        tuple(budgets),
        epsilon=target.epsilon,
        delta=target.delta,
        trust=target.trust,
        n_sites=facts.n_sites,
        min_survivors=target.min_survivors,
        colluding_sites=target.colluding_sites,
        spare_delta=spare,
    )


def _told(method: Method, privacy: PrivacyPlan, facts: Federation) -> Method:
    """Return the method with what it may know of the noise that its releases will have."""
    if isinstance(method, Bound):
        return replace(method, least_count=bound_threshold(privacy, facts))
    if isinstance(method, Centers):
        noise = privacy.noise_of_sum(method.name, facts.n_sites)
        return replace(method, noise_std=noise * math.sqrt(1 + 2 * COUNT_WEIGHT**2))
    return method


def bound_threshold(privacy: PrivacyPlan, facts: Federation) -> float:
    """Return the count above which a bin of the norm histogram counts.

    An empty bin passes for a full one once in 10,000 runs; and what is in bins with very few
    records may be clipped.
    """
    noise = privacy.noise_of_sum("bound", facts.n_sites)
    return max(noise * math.sqrt(2 * math.log(1e4 * N_BINS)), 0.005 * facts.n_records)
