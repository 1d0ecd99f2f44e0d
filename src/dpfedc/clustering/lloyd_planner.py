"""Plans of Lloyd's algorithm over sites: exact sums (FKM), or noisy sums and counts (DP-Lloyd)."""

from __future__ import annotations

import math
from dataclasses import replace

from dpfedc.clustering.dp_fedc_planner import bound_threshold
from dpfedc.clustering.lloyd import LloydSums, SeedByDistance
from dpfedc.clustering.run_plan import NO_NOISE, Federation, RunPlan
from dpfedc.clustering.stage import Stage
from dpfedc.clustering.standardize import Bound
from dpfedc.privacy.calibration import StageBudget, calibrated_plan
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.settings import PrivacyTarget

BOUND_SHARE = 0.01


def lloyd_plan(
    n_clusters: int,
    n_rounds: int,
    sites_per_round: int | None,
    facts: Federation,
    target: PrivacyTarget | None,
    *,
    declared_bound: bool,
    given_start: bool,
    privacy: PrivacyPlan | None = None,
) -> RunPlan:
    """Return the stages: a start, then Lloyd rounds; with a target every release is charged.

    Without a target the start is k-means++ over the sites. With one it is data-free: centres spread
    in the ball of the records' bound. A privacy plan that was made before is taken as it is.
    """
    per_round = sites_per_round or facts.n_sites
    lloyd = LloydSums(n_clusters, n_rounds)
    if target is None:
        start = () if given_start else (Stage(SeedByDistance(n_clusters)),)
        return RunPlan((*start, Stage(lloyd, per_round)), stamps=(NO_NOISE,))
    if privacy is None:
        privacy = _privacy_plan(n_rounds, per_round, facts, target, declared_bound=declared_bound)
    noise = math.sqrt(2) * privacy.noise_of_sum("lloyd", per_round)
    stages = [Stage(replace(lloyd, least_count=1 + 2 * noise), per_round)]
    if not declared_bound:
        stages.insert(0, Stage(Bound(bound_threshold(privacy, facts))))
    return RunPlan(tuple(stages), privacy=privacy)


def _privacy_plan(
    n_rounds: int,
    per_round: int,
    facts: Federation,
    target: PrivacyTarget,
    *,
    declared_bound: bool,
) -> PrivacyPlan:
    rest = 1.0
    budgets = []
    if not declared_bound:
        rest -= BOUND_SHARE
        budgets.append(StageBudget("bound", 1, facts.n_sites, 1, BOUND_SHARE))
    times = most_rounds_of_a_site(facts.n_sites, per_round, n_rounds)
    budgets.append(StageBudget("lloyd", n_rounds, per_round, times, rest))
    return calibrated_plan(
        tuple(budgets),
        epsilon=target.epsilon,
        delta=target.delta,
        trust=target.trust,
        n_sites=facts.n_sites,
        min_survivors=target.min_survivors,
        colluding_sites=target.colluding_sites,
    )
