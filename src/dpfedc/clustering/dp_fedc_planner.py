"""DP-FedC as a method: its settings, its plan in the normalized variant, and its model.

Nothing here sees a record. The rules rest on one number, the noise ratio

    kappa = k f sqrt(m) / (n mu)

the noise of one release of the mean record that spends the whole budget, against a cluster of
average size. mu belongs to the target (epsilon, delta); f says what the trust model costs. Where it
is small, clusters are made from cells (`record_cells.py`); where it is not, and with very many
features, they are searched for by the factorisation. The evidence is in
docs/decisions/0004-planner.md and 0015-cells.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dpfedc.clustering.cells_planner import by_cells
from dpfedc.clustering.column_spread import declared_columns
from dpfedc.clustering.factorization_planner import LOW_DIMENSION, by_factorization
from dpfedc.clustering.method import (
    BY_SCHEMA,
    Float,
    Method,
    Plan,
    Settings,
    Target,
    checked_ranges,
    checked_start,
    declares_bound,
)
from dpfedc.clustering.neighbors import Neighbors
from dpfedc.clustering.placing import COLUMNS, placing
from dpfedc.clustering.prototypes_planner import (
    MAX_PROTOTYPES,
    MIN_CLUSTERS,
    checked_range,
    merged_by,
    merging,
)
from dpfedc.clustering.quality import QUALITY_SHARE, Quality
from dpfedc.clustering.record_cells import MAX_CELLS
from dpfedc.clustering.run_plan import (
    MAX_CLUSTERS,
    MAX_ROUNDS,
    NO_NOISE,
    Federation,
    RunPlan,
    Way,
    private_stages,
)
from dpfedc.clustering.stage import State
from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import gaussian_mu, reach_of
from dpfedc.settings import (
    PrivacyTarget,
    Setting,
    anything,
    flag,
    left_open,
    number,
    one_of,
    require_integer,
    whole,
)

if TYPE_CHECKING:
    from dpfedc.model_file import ClusterModel

AUTO = ("auto",)
MAX_STEPS, MAX_FACTOR, MIN_CLIP_NORM = 10_000, 1e6, 1e-6
"""Beyond these every round would fail or take hours at a site, and stay charged."""
SETTINGS: Mapping[str, Setting] = {
    "n_clusters": whole(8, 1, MAX_CLUSTERS, free=AUTO),
    "k_range": anything(None),
    "shape": one_of("auto", "auto", "round", "any"),
    "n_prototypes": whole("auto", 2, MAX_PROTOTYPES, free=AUTO),
    "n_rounds": whole("auto", 1, MAX_ROUNDS, free=AUTO),
    "sites_per_round": whole(None, 1, free=(None,), most="n_sites"),
    "init": anything(None),
    "center": flag(True),
    "scale": flag(True, free=(COLUMNS,)),
    "norm_bound": number("auto", free=AUTO, above=0),
    "feature_ranges": anything(None),
    "constant_feature": number(0.0, least=0, most=MAX_FACTOR),
    "refine_rounds": whole("auto", 0, MAX_ROUNDS, free=AUTO),
    "subspace": whole("auto", 1, free=(None, "auto"), most="n_features"),
    "nonnegative": flag(False),
    "membership_steps": whole(10, 1, MAX_STEPS),
    "update": one_of("gradient", "gradient", "sums-and-gram"),
    "extra_steps": whole(None, 0, free=(None,), deployed=False),
    "sampling_probability": number(1.0, above=0, most=1),
    "batch_size": whole(50, 1, deployed=False),
    "orthogonality": number("auto", free=AUTO, least=0, most=MAX_FACTOR),
    "clip_norm": number("auto", free=AUTO, least=MIN_CLIP_NORM, most=1 / MIN_CLIP_NORM),
    "step": number("auto", free=AUTO, above=0, most=MAX_FACTOR),
    "momentum": number("auto", free=AUTO, least=0, below=1),
    "gradient_bound": number(None, free=(None,), above=0, deployed=False),
    "centroid_steps": whole("falling", 1, free=("falling",), deployed=False),
    "batches": one_of("capped", "capped", "cycling", deployed=False),
    "batch_gradient": one_of("scaled", "scaled", "sum", deployed=False),
    "bound_on": one_of("mini-batch", "mini-batch", "record", "nothing", deployed=False),
    "membership_gradient": one_of("derivative", "derivative", "printed", deployed=False),
    "n_restarts": whole(1, 1, deployed=False),
    "cells": whole("auto", 1, MAX_CELLS, free=(None, "auto")),
    "quality": flag(False),
}
"""All that may be set. "auto" and None leave the choice to the plan."""
MAX_CELL_NOISE = {LOW_DIMENSION: 0.03, 256: 0.022}
"""Up to so many features cells are used below this noise ratio: beyond, a second moment is a matrix
of many numbers, and noise hides all but its first directions."""
SEARCH_ONLY = (
    "n_rounds", "init", "constant_feature", "refine_rounds", "subspace", "membership_steps",
    "update", "extra_steps", "sampling_probability", "sites_per_round", "orthogonality",
    "clip_norm", "step", "momentum", "gradient_bound", "n_restarts",
)  # fmt: skip
"""Settings of the factorisation: whoever sets one of them asks for it."""
OF_CELLS = ("refine_rounds", "subspace")
"""Those that cells have as well, if they are asked for."""


MODEL_STEPS = 50
"""Steps on a record's memberships when it is assigned to a cluster."""


class DPFedCMethod(Method):
    """The normalized variant of DP-FedC."""

    name = "dp-fedc"
    settings = SETTINGS
    reads_tables = True
    model_steps = MODEL_STEPS

    def checked(self, given: Settings, facts: Federation) -> SimpleNamespace:
        """Return all settings, checked against the public facts and against each other."""
        choices = super().checked(given, facts)
        most = min(MAX_PROTOTYPES, max(facts.n_records, 1))
        choices.k_range = checked_range(choices.k_range, choices.n_clusters, most)
        choices.n_clusters = choices.k_range[1]
        _check_prototypes(choices, published=self.name == "published")
        if choices.quality and self.name == "published":
            raise InvalidInput("quality must be False with variant='published', got True")
        if choices.update != "gradient" and choices.extra_steps:
            raise InvalidInput(
                f"extra_steps must be 0 or None with update={choices.update!r}, "
                f"got {choices.extra_steps}"
            )
        if choices.constant_feature and not left_open(choices.subspace, (None, "auto")):
            raise InvalidInput(
                "subspace must be None or 'auto' with a constant_feature, "
                f"got {choices.subspace}: the constant is no part of a subspace"
            )
        if choices.n_restarts > 1:
            _check_restarts(choices, published=self.name == "published")
        if not left_open(choices.cells, (None, "auto")):
            if choices.n_clusters > MAX_CELLS:
                raise InvalidInput(
                    f"n_clusters must be at most {MAX_CELLS} with cells, got {choices.n_clusters}"
                )
            if choices.refine_rounds == 0:
                raise InvalidInput("refine_rounds must not be 0 with cells, which are refined")
            if asked := _of_the_search(choices, but=OF_CELLS):
                raise InvalidInput(
                    f"{asked} must be left at its default with cells, got another value"
                )
        if choices.scale == COLUMNS:
            if not self.proved:
                raise InvalidInput(f"scale must be True or False for {self.name}, got {COLUMNS!r}")
            others = [name for name in BY_SCHEMA if name != "scale"]
            self.require_left_out(given, others, f"scale={COLUMNS!r}, which finds columns' ranges")
        if choices.feature_ranges is not None:
            checked_ranges(choices.feature_ranges, facts.n_features)
        if choices.init is not None:
            choices.init = checked_start(choices.init, choices.n_clusters, facts.n_features)
        return choices

    def plan(
        self, given: Settings, facts: Federation, target: Target, privacy: Plan = None
    ) -> RunPlan:
        """Return the stages of the normalized variant; without a target there is no noise."""
        choices = self.checked(given, facts)
        per_round = choices.sites_per_round or facts.n_sites
        kappa = 0.0
        if target is not None:
            kappa = noise_ratio(facts, choices.n_clusters, per_round, target)
        stages, shares = placing(choices, facts, declares_bound(given), kappa)
        shares |= {"quality": QUALITY_SHARE} if choices.quality else {}
        cells = _has_cells(choices, facts, kappa)

        def search(
            some: SimpleNamespace, noise: float, rest: float, graph: Neighbors | None = None
        ) -> Way:
            if cells:
                return by_cells(some, facts, noise, rest, graph)
            found = by_factorization(some, facts, target, noise, rest)
            return found if graph is None else merged_by(graph, found)

        few, several = facts.n_features <= LOW_DIMENSION, choices.n_clusters >= MIN_CLUSTERS
        low, high = choices.k_range
        any_shape = choices.shape == "any"
        if choices.shape == "auto":
            any_shape = several and not few and not _of_the_search(choices)
        by_links = cells and not any_shape and low == high and choices.refine_rounds != 1
        by_links &= several or choices.n_prototypes != "auto"
        any_shape |= by_links and choices.shape == "auto"
        shape = {"any_shape": any_shape, "by_links": by_links, "few_features": few}
        way = merging(search, choices, facts, kappa, 1 - sum(shares.values()), **shape)
        stages += way.stages
        shares |= way.shares
        noise = kappa * max(way.n_prototypes / choices.n_clusters, 1.0)
        if choices.quality:
            stages.append(_quality(choices, way))
        plan = RunPlan(tuple(stages), way.penalty, way.refine, noise_ratio=noise)
        if target is None:
            stages = [stage.told(0.0, facts.n_records) for stage in stages]
            plan = replace(plan, stages=tuple(stages), stamps=(NO_NOISE,))
        else:
            told, privacy = private_stages(
                stages, shares, facts, target, privacy=privacy, spare_delta=way.spare_delta
            )
            plan = replace(plan, stages=told, privacy=privacy)
        return replace(plan, explain=partial(_reasons, plan, facts, way, choices))

    def declared(self, given: Settings, facts: Federation) -> dict[str, Float]:
        """Return place and length of the records, as far as they are declared."""
        if facts.layout is None:
            return super().declared(given, facts)
        known = declared_columns(facts.layout)
        return {name: values for name, values in known.items() if name != "bound"}

    def model(
        self,
        given: Settings,
        plan: RunPlan,
        state: State,
        *,
        feature_names: tuple[str, ...] | None,
        about: Mapping[str, Any],
    ) -> ClusterModel:
        """Return the model of a state, which may be that of an unfinished run."""
        from dpfedc.clustering.dp_fedc_results import factorization_model

        # The paper's own variant has no constant feature.
        constant = float(given.get("constant_feature", 0.0)) if self.proved else 0.0
        return factorization_model(
            given,
            plan,
            state,
            constant=constant,
            steps=self.model_steps,
            names=feature_names,
            about=about,
        )


DP_FEDC = DPFedCMethod()


def _reasons(plan: RunPlan, facts: Federation, way: Way, choices: SimpleNamespace) -> Iterator[str]:
    from dpfedc.clustering.dp_fedc_results import reasons

    return reasons(plan, facts, way.stages, choices)


def _of_the_search(choices: SimpleNamespace, but: Collection[str] = ()) -> str:
    """Return the first setting of the factorisation that is not at its default, or ""."""
    for name in SEARCH_ONLY:
        if name in but:
            continue
        value, default = getattr(choices, name), SETTINGS[name].default
        if value is not default and (name == "init" or value != default):
            return name
    return ""


def _quality(choices: SimpleNamespace, way: Way) -> Quality:
    """Return the stage that measures what a way to clusters ends with."""
    n_places = way.n_prototypes or way.n_places
    n_clusters = min(choices.n_clusters, n_places or choices.n_clusters)
    return Quality(
        n_clusters,
        n_places or n_clusters,
        by_membership=not (n_places or way.refine),
        penalty=way.penalty,
        final_steps=MODEL_STEPS,
        constant=choices.constant_feature,
        longest=way.longest,
    )


def _check_prototypes(choices: SimpleNamespace, *, published: bool) -> None:
    """Say what prototypes, of which clusters are made, cannot be combined with."""
    low, high = choices.k_range
    asked = "n_clusters='auto'" if low < high else "shape='any'" if choices.shape == "any" else ""
    if not left_open(choices.n_prototypes, AUTO):
        asked = asked or "n_prototypes"
        require_integer("n_prototypes", choices.n_prototypes, least=max(high, 2))
    if not asked:
        return
    if published:
        raise InvalidInput(f"variant must be 'normalized' with {asked}, got 'published'")
    if choices.init is not None:
        raise InvalidInput(f"init must be None with {asked}, got centres")


def _check_restarts(choices: SimpleNamespace, *, published: bool) -> None:
    """Say what several starts cannot be combined with."""
    together = {
        "a given init": choices.init is not None,
        "variant='published'": published,
        "update='sums-and-gram'": choices.update != "gradient",
        "extra_steps": bool(choices.extra_steps),
    }
    for what, is_given in together.items():
        if is_given:
            raise InvalidInput(f"n_restarts must be 1 with {what}, got {choices.n_restarts}")


def noise_ratio(
    facts: Federation, n_clusters: int, sites_per_round: int, target: PrivacyTarget
) -> float:
    """Return kappa.

    f is sqrt(N) where every site adds its own noise, and sqrt(N / K) where a round's sites add one
    noise together: a round with fewer sites has the same noise for fewer records, and may be
    repeated N / K times as often. A person at several sites leaves each of them less of mu.
    """
    mu = gaussian_mu(target.epsilon, target.delta)
    mu /= math.sqrt(reach_of(target.trust, target.sites_per_person).squared)
    n_sites = facts.n_sites
    f = math.sqrt(n_sites)
    if target.trust != "local":
        f = math.sqrt(n_sites / sites_per_round)
    if target.trust == "secure-aggregation":
        survivors = min(target.min_survivors or sites_per_round, sites_per_round)
        f *= math.sqrt(sites_per_round / max(survivors - target.colluding_sites, 1))
    return n_clusters * f * math.sqrt(facts.n_features) / (facts.n_records * mu)


def _has_cells(choices: SimpleNamespace, facts: Federation, kappa: float) -> bool:
    """Return whether clusters are made from cells."""
    if choices.cells != "auto":
        return choices.cells is not None
    if _of_the_search(choices):
        return False
    if choices.n_clusters > MAX_CELLS // 2:
        return False
    limits = (noise for m, noise in MAX_CELL_NOISE.items() if facts.n_features <= m)
    return kappa < next(limits, 0.0)
