"""The planner's way by the factorisation: see docs/decisions/0004-planner.md."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.method import Target
from dpfedc.clustering.run_plan import MAX_USABLE_NOISE, Federation, Way
from dpfedc.clustering.stage import Stage
from dpfedc.clustering.subspace import Subspace
from dpfedc.errors import InvalidInput
from dpfedc.settings import Penalty, PrivacyTarget

CLIP_NORM, STEP = 0.03, 24.0
LOW_CLIP_NORM, LOW_STEP, LOW_ROUNDS = 0.1, 8.0, 20
"""Where a refinement follows, a shorter step and a few rounds find what it can start from."""
SETTLES, SETTLED_STEP = 0.5, 0.05
"""From which part of the rounds on steps shorten, and to what part of the first, where noise is
added and no refinement follows."""
FEW_CLUSTERS, FEW_SETTLE, FEW_SETTLED_STEP = 2, 0.0, 0.02
"""The same for up to so many clusters: there is little to search, so noise counts from the first
round on."""
FIRST_ORTHOGONALITY = 0.1
LOW_DIMENSION = 50
"""Up to so many features, directions alone do not tell clusters apart and Lloyd rounds pay."""
MIN_COUNTED, MANY_FEATURES = 3, 200
"""From so many clusters and features on, rounds count records: noise turns directions of few away
from all, and the server moves them (docs/decisions/0019-empty-directions.md)."""
REFINE_ROUNDS = 3
SUBSPACE_DIMENSIONS, SUBSPACE_ROUNDS = 40, 10
SUBSPACE_SHARE = 0.15
LENGTHS_SHARE = 0.01
REFINE_SHARE = 0.6
MAX_REFINE_NOISE, MAX_IF_CROWDED, REFINE_NOISE = 0.07, 0.134, 0.48
"""Lloyd rounds pay below the first noise ratio, or the second where there are more clusters than
features, which directions alone cannot tell apart; and below the last over the root of the number
of features: the more features, the better directions tell clusters apart."""


def by_factorization(
    choices: SimpleNamespace, facts: Federation, target: Target, kappa: float, rest: float
) -> Way:
    """Return the way by the factorisation."""
    private = target is not None
    n_refine = _refine_rounds(choices, facts, kappa)
    dimensions = _subspace(choices, facts, kappa, n_refine)
    search = _search(choices, facts, target, kappa, n_refine, dimensions)
    stages: list[Stage] = [Subspace(dimensions)] if dimensions else []
    stages += _starts(choices, search, private=private)
    stages.append(_last_stage(choices, search, n_refine, private=private))
    shares = {"subspace": SUBSPACE_SHARE} if dimensions else {}
    rest -= sum(shares.values())
    last = REFINE_SHARE * rest if n_refine else LENGTHS_SHARE
    shares |= {"centres": last, "factorisation": rest - last}
    sampled = choices.extra_steps and search.sampling_probability < 1
    spare = target.delta / 100 if target is not None and sampled else 0.0
    return Way(tuple(stages), shares, n_refine > 0, search.penalty, spare)


def _search(
    choices: SimpleNamespace,
    facts: Federation,
    target: PrivacyTarget | None,
    kappa: float,
    n_refine: int,
    dimensions: int,
) -> Factorization:
    """Return the search for the clusters from one start."""
    per_round = choices.sites_per_round or facts.n_sites
    clip, step = (LOW_CLIP_NORM, LOW_STEP) if n_refine else (CLIP_NORM, STEP)
    n_rounds = choices.n_rounds
    if n_rounds == "auto":
        n_rounds = SUBSPACE_ROUNDS
        if not dimensions:
            n_rounds = auto_rounds(kappa, facts.n_sites / per_round)
        n_rounds = min(n_rounds, LOW_ROUNDS) if n_refine else n_rounds
    rho = final_orthogonality(kappa) if choices.orthogonality == "auto" else choices.orthogonality
    momentum = choices.momentum
    if momentum == "auto":
        # A round with some of the sites sees some of the clusters: average over a few rounds.
        momentum = 0.5 if per_round < facts.n_sites else 0.0
    q = choices.sampling_probability if target is not None else 1.0
    settles = kappa > 0 and not n_refine and facts.n_features < MANY_FEATURES
    settles &= choices.update == "gradient" and choices.step == "auto"
    few = choices.n_clusters <= FEW_CLUSTERS
    starts_to, last_step = (FEW_SETTLE, FEW_SETTLED_STEP) if few else (SETTLES, SETTLED_STEP)
    settings: dict[str, Any] = {
        "penalty": Penalty(orthogonality=float(rho)),
        "first_orthogonality": min(FIRST_ORTHOGONALITY, float(rho)),
        "membership_steps": choices.membership_steps,
        "clip_norm": float(clip if choices.clip_norm == "auto" else choices.clip_norm),
        "step": float(step if choices.step == "auto" else choices.step),
        "last_step": last_step if settles else 1.0,
        "settles": starts_to,
        "momentum": float(momentum),
        "constant": choices.constant_feature,
        # Coordinates in a subspace have no sign to keep; cluster_centers_ are clamped all the same.
        "clamp": choices.nonnegative and not choices.center and not dimensions,
        "init": choices.init,
        "opposite": choices.n_clusters == 2 and choices.center,
        "sites_per_round": per_round,
        "sampling_probability": q,
    }
    if choices.update == "sums-and-gram":
        from dpfedc.clustering.sums_and_gram import SumsAndGram

        return SumsAndGram(choices.n_clusters, n_rounds, **settings)
    extra = choices.extra_steps or 0
    if not extra:
        counted = 0 < kappa <= MAX_USABLE_NOISE and facts.n_features >= MANY_FEATURES
        # A round of some sites says nothing of clusters that lie at others.
        counted &= choices.n_clusters >= MIN_COUNTED and per_round == facts.n_sites
        return Factorization(choices.n_clusters, n_rounds, **settings, counted=counted)
    from dpfedc.clustering.local_steps import LocalSteps, largest_batch_ratio

    # A spare round deals its parts again: both attempts together may fail so often.
    failure = 1e-9 if target is None else target.delta / 100 / (1 + target.spare_rounds)
    ratio = largest_batch_ratio(
        facts.records_per_site, extra, n_rounds, probability=q, failure=failure
    )
    return LocalSteps(
        choices.n_clusters, n_rounds, **settings, extra_steps=extra, batch_ratio=ratio
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


def _refine_rounds(choices: SimpleNamespace, facts: Federation, kappa: float) -> int:
    if choices.refine_rounds != "auto":
        return int(choices.refine_rounds)
    if facts.n_features > LOW_DIMENSION:
        return 0
    crowded = choices.n_clusters > facts.n_features
    most = MAX_IF_CROWDED if crowded else MAX_REFINE_NOISE
    most = min(most, REFINE_NOISE / math.sqrt(facts.n_features))
    return REFINE_ROUNDS if kappa < most else 0


def _subspace(choices: SimpleNamespace, facts: Federation, kappa: float, n_refine: int) -> int:
    if choices.subspace is None or choices.constant_feature:
        return 0
    if choices.subspace != "auto":
        return int(choices.subspace)
    wanted = (
        kappa > MAX_USABLE_NOISE and facts.n_features > 2 * SUBSPACE_DIMENSIONS and not n_refine
    )
    return SUBSPACE_DIMENSIONS if wanted else 0


def _starts(choices: SimpleNamespace, search: Factorization, *, private: bool) -> list[Stage]:
    """Return the search, from one start or from several with a choice among them."""
    r = choices.n_restarts
    if r == 1:
        return [search]
    if private:
        raise InvalidInput(
            f"n_restarts must be 1 unless epsilon is None, got {r}: every start would be charged "
            "for its own releases, and the choice among them for one more"
        )
    from dpfedc.clustering.restarts import Choice, Restarts

    restarts = Restarts(search, r, search.sites_per_round)
    return [restarts, Choice(restarts)]


def _last_stage(
    choices: SimpleNamespace, search: Factorization, n_refine: int, *, private: bool
) -> Stage:
    k, penalty, constant = choices.n_clusters, search.penalty, choices.constant_feature
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
