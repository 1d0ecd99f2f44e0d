"""Lloyd's algorithm over sites: with exact sums (FKM), or with noisy sums and counts (DP-Lloyd)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from dpfedc.clustering.bound import Bound
from dpfedc.clustering.column_spread import column_stages, declared_columns
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.method import (
    Float,
    Method,
    Plan,
    Settings,
    Target,
    checked_start,
    declares_bound,
)
from dpfedc.clustering.run_plan import (
    MAX_CLUSTERS,
    MAX_ROUNDS,
    NO_NOISE,
    Federation,
    RunPlan,
    private_stages,
)
from dpfedc.clustering.stage import Stage
from dpfedc.settings import Setting, anything, number, whole

SHARES = {"bound": 0.01, "ranges": 0.05, "spread": 0.1}
"""Of the budget, counted in mu^2, for what comes before the rounds."""


def _settings(n_rounds: int) -> Mapping[str, Setting]:
    return {
        "n_clusters": whole(8, 1, MAX_CLUSTERS),
        "n_rounds": whole(n_rounds, 1, MAX_ROUNDS),
        "sites_per_round": whole(None, 1, free=(None,), most="n_sites"),
        "init": anything(None),
        "norm_bound": number("auto", free=("auto",), above=0),
    }


class LloydMethod(Method):
    """A start, then Lloyd rounds.

    Without a target the start is k-means++ over the sites. With one it is data-free: centres spread
    in the ball of the records' bound.
    """

    reads_tables = True

    def __init__(self, name: str, n_rounds: int) -> None:
        self.name = name
        self.settings = _settings(n_rounds)

    def checked(self, given: Settings, facts: Federation) -> SimpleNamespace:
        """Return all settings, checked against the public facts and against each other."""
        choices = super().checked(given, facts)
        if choices.init is not None:
            checked_start(choices.init, choices.n_clusters, facts.n_features)
        return choices

    def plan(
        self, given: Settings, facts: Federation, target: Target, privacy: Plan = None
    ) -> RunPlan:
        """Return the stages; with a target every release is charged."""
        choices = self.checked(given, facts)
        k, per_round = choices.n_clusters, choices.sites_per_round or facts.n_sites
        lloyd = LloydSums(k, choices.n_rounds, sites_per_round=per_round)
        columns = []
        if facts.layout is not None:
            columns = column_stages(facts.layout, bounded=target is not None)
        if target is None:
            from dpfedc.clustering.seeding import SeedByDistance

            start = () if choices.init is not None else (SeedByDistance(k),)
            return RunPlan((*columns, *start, lloyd), stamps=(NO_NOISE,))
        before: list[Stage] = columns
        if facts.layout is None and not declares_bound(given):
            before = [Bound()]
        stages = [*before, lloyd]
        shares = {stage.name: SHARES[stage.name] for stage in before}
        shares["lloyd"] = 1 - sum(shares.values())
        told, privacy = private_stages(stages, shares, facts, target, privacy=privacy)
        return RunPlan(told, privacy=privacy)

    def declared(self, given: Settings, facts: Federation) -> dict[str, Float]:
        """Return place, length and start, as far as they are given."""
        state = super().declared(given, facts)
        if given.get("init") is not None:
            state["centers"] = checked_start(given["init"], given["n_clusters"], facts.n_features)
        if facts.layout is not None:
            known = declared_columns(facts.layout)
            state |= {name: values for name, values in known.items() if name != "scale"}
        return state


DP_LLOYD = LloydMethod("dp-lloyd", 5)
FEDERATED_KMEANS = LloydMethod("federated-k-means", 30)
