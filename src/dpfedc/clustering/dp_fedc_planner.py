"""DP-FedC as a method: its settings, its plan in the normalized variant, and its model.

Nothing here sees a record. The rules rest on one number, the noise ratio

    kappa = k f sqrt(m) / (n mu)

the noise of one release of the mean record that spends the whole budget, against a cluster of
average size. mu belongs to the target (epsilon, delta); f says what the trust model costs. Where it
is small, clusters are made from cells (`merged_cells.py`); where it is not, and with very many
features, they are searched for by the factorisation. The evidence is in
docs/decisions/0004-planner.md and 0015-cells.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.column_spread import column_stages, declared_columns
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.merged_cells import MAX_CELLS, Cells
from dpfedc.clustering.method import (
    Float,
    Method,
    Plan,
    Settings,
    Target,
    checked_ranges,
    checked_start,
    declares_bound,
)
from dpfedc.clustering.residual_lloyd import ResidualLloyd
from dpfedc.clustering.run_plan import (
    MAX_CLUSTERS,
    MAX_ROUNDS,
    MAX_USABLE_NOISE,
    NO_NOISE,
    Federation,
    RunPlan,
    private_stages,
)
from dpfedc.clustering.stage import Stage, State
from dpfedc.clustering.standardize import Bound, Mean, Radius, Scale, Subspace
from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import gaussian_mu, reach_of
from dpfedc.settings import (
    Penalty,
    PrivacyTarget,
    Setting,
    anything,
    flag,
    left_open,
    number,
    one_of,
    whole,
)

if TYPE_CHECKING:
    from dpfedc.model_file import ClusterModel

AUTO = ("auto",)
MAX_STEPS, MAX_FACTOR, MIN_CLIP_NORM = 10_000, 1e6, 1e-6
"""Beyond these every round would fail or take hours at a site, and stay charged."""
SETTINGS: Mapping[str, Setting] = {
    "n_clusters": whole(8, 1, MAX_CLUSTERS),
    "n_rounds": whole("auto", 1, MAX_ROUNDS, free=AUTO),
    "sites_per_round": whole(None, 1, free=(None,), most="n_sites"),
    "init": anything(None),
    "center": flag(True),
    "scale": flag(True),
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
    "n_restarts": whole(1, 1, deployed=False),
    "cells": whole("auto", 1, MAX_CELLS, free=(None, "auto")),
}
"""All that may be set. "auto" and None leave the choice to the plan."""
CLIP_NORM, STEP = 0.03, 24.0
LOW_CLIP_NORM, LOW_STEP, LOW_ROUNDS = 0.1, 8.0, 20
"""Where a refinement follows, a shorter step and a few rounds find what it can start from."""
LINE_SCALE_FACTOR = 2.0
"""On a line the outer clusters are twice as far out as the mean distance, and must not be clipped
together."""
FIRST_ORTHOGONALITY = 0.1
LOW_DIMENSION = 50
"""Up to so many features, directions alone do not tell clusters apart and Lloyd rounds pay."""
REFINE_ROUNDS = 3
SUBSPACE_DIMENSIONS, SUBSPACE_ROUNDS = 40, 10
SHARES = {"scale": 0.01, "ranges": 0.05, "spread": 0.1}
"""Of the budget, counted in mu^2; the stages of the clustering itself share the rest."""
LENGTHS_SHARE = 0.01
REFINE_SHARE = 0.6

PLACING = (
    (0.01, ((0.01, 0.01), (0.01, 0.01), (0.01, 0.05))),
    (0.025, ((0.02, 0.02), (0.02, 0.06))),
    (math.inf, ((0.05, 0.1),)),
)
"""Shares of the histogram and of the mean in each pass that looks for the records, by the share
that a histogram needs at most: with many records a pass is cheap, with few there is but one."""
STANDS_OUT = 0.125
"""A histogram must show a bin with this share of the records..."""
STANDS_OUT_BY = 5.3
"""...which is so many standard deviations of the noise (`beyond_noise`)."""
BOUND_SHARE = 0.02
"""Bins with a smaller share of the records are taken for outliers."""

MAX_CELL_NOISE = {LOW_DIMENSION: 0.1, 256: 0.022}
"""Up to so many features cells are used below this noise ratio: beyond, a second moment is a matrix
of many numbers, and noise hides all but its first directions."""
CELLS_PER_CLUSTER, MIN_CELLS, CELL_NOISE, CELL_ROUNDS = 8, 64, 0.35, 2
"""As many cells as that, if the noise in the mean of one is at most CELL_NOISE of the scale."""
MORE_DIRECTIONS = 8
"""Clusters differ along fewer directions than there are of them; these are to spare."""
DIRECTIONS_SHARE, SUBSPACE_SHARE = 0.05, 0.15
"""For directions of which none is left out, and for the first of many."""
CELLS_SHARE, LLOYD_ROUNDS = 0.45, 3
"""Of what is left for clustering; the rest is for the rounds that move the centres."""
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
        stages, shares = _standardizing(choices, facts, declares_bound(given), kappa)
        if _has_cells(choices, facts, kappa):
            way = _by_cells(choices, facts, kappa, 1 - sum(shares.values()))
        else:
            way = _by_search(choices, facts, target, kappa, 1 - sum(shares.values()))
        stages += way.stages
        shares |= way.shares
        plan = RunPlan(tuple(stages), way.penalty, way.refine, noise_ratio=kappa)
        if target is None:
            stages = [stage.told(0.0, facts.n_records) for stage in stages]
            plan = replace(plan, stages=tuple(stages), stamps=(NO_NOISE,))
        else:
            told, privacy = private_stages(
                stages, shares, facts, target, privacy=privacy, spare_delta=way.spare_delta
            )
            plan = replace(plan, stages=told, privacy=privacy)
        return replace(plan, explain=partial(_reasons, plan, facts, way))

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


@dataclass(frozen=True)
class Way:
    """How clusters are found once records have a mean and a scale."""

    stages: tuple[Stage, ...]
    shares: Mapping[str, float]
    refine: bool
    """Whether records belong to the nearest centre."""
    penalty: Penalty = field(default_factory=Penalty)
    spare_delta: float = 0.0


def _reasons(plan: RunPlan, facts: Federation, way: Way) -> Iterator[str]:
    from dpfedc.clustering.dp_fedc_results import reasons

    return reasons(plan, facts, way.stages)


def _of_the_search(choices: SimpleNamespace, but: Collection[str] = ()) -> str:
    """Return the first setting of the factorisation that is not at its default, or ""."""
    for name in SEARCH_ONLY:
        if name in but:
            continue
        value, default = getattr(choices, name), SETTINGS[name].default
        if value is not default and (name == "init" or value != default):
            return name
    return ""


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


def _standardizing(
    choices: SimpleNamespace, facts: Federation, has_bound: bool, kappa: float
) -> tuple[list[Stage], dict[str, float]]:
    """Return the stages after which records have a mean and a scale, and their shares."""
    if facts.layout is not None:
        columns = column_stages(facts.layout)
        return columns, {stage.name: SHARES[stage.name] for stage in columns}
    # What a histogram costs in which a bin with some of the records stands out from the noise.
    one = kappa / (choices.n_clusters * math.sqrt(facts.n_features))
    needed = (STANDS_OUT_BY * one / STANDS_OUT) ** 2
    passes = next(shares for most, shares in PLACING if needed <= most)
    stages: list[Stage] = []
    shares: dict[str, float] = {}

    def add(stage: Stage, share: float) -> None:
        stages.append(stage)
        shares[stage.name] = share

    if has_bound:
        passes = (passes[-1],)
    elif not choices.center:
        passes = passes[:1]
    for i, (of_histogram, of_mean) in enumerate(passes, start=1):
        around, number = ("data_mean", f"-{i}") if i > 1 else ("origin", "")
        if not has_bound:
            bound = Bound(min_share=BOUND_SHARE, around=around, name=f"bound{number}")
            add(bound, of_histogram)
        if choices.center:
            add(Mean(around, name=f"mean{number}"), of_mean)
    if choices.center and choices.scale and needed <= PLACING[-2][0]:
        add(Radius(min_share=BOUND_SHARE), passes[0][0])
    if choices.scale:
        line = facts.n_features == 1
        add(Scale(LINE_SCALE_FACTOR) if line else Scale(), SHARES["scale"])
    return stages, shares


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


def _by_cells(choices: SimpleNamespace, facts: Federation, kappa: float, rest: float) -> Way:
    """Return the way by cells: in all directions of few features, else in the first of many."""
    k, m = choices.n_clusters, facts.n_features
    n_directions = min(m, k + MORE_DIRECTIONS) if choices.subspace else m
    if not left_open(choices.subspace, (None, "auto")):
        n_directions = int(choices.subspace)
    some = n_directions < m
    share = SUBSPACE_SHARE if some else DIRECTIONS_SHARE
    rest -= share
    n_cells = choices.cells
    if n_cells == "auto":
        n_cells = min(max(CELLS_PER_CLUSTER * k, MIN_CELLS), MAX_CELLS // 2)
        # The noise in a cell's mean, if all of the budget were spent on one release of one cell.
        one = kappa * math.sqrt(n_directions / m) / k
        if one > 0:
            n_cells = min(
                n_cells, int(CELL_NOISE * math.sqrt(CELLS_SHARE * rest / CELL_ROUNDS) / one)
            )
    n_cells = max(min(int(n_cells), facts.n_records), k)
    subspace = Subspace(n_directions, drops_noise=some)
    cells = Cells(max(n_cells, 1), CELL_ROUNDS)
    shares = {"subspace": share, "cells": CELLS_SHARE * rest}
    moving = (1 - CELLS_SHARE) * rest
    n_rounds = LLOYD_ROUNDS if choices.refine_rounds == "auto" else choices.refine_rounds
    if not some or n_rounds == 1:
        last = ResidualLloyd(k, n_rounds, plain=True, merges=True)
        return Way((subspace, cells, last), {**shares, "centres": moving}, refine=True)
    moves = ResidualLloyd(k, n_rounds - 1, name="refine", merges=True)
    last = ResidualLloyd(k, 1, plain=True)
    shares |= {"refine": moving * (1 - 1 / n_rounds), "centres": moving / n_rounds}
    return Way((subspace, cells, moves, last), shares, refine=True)


def _by_search(
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
    settings: dict[str, Any] = {
        "penalty": Penalty(orthogonality=float(rho)),
        "first_orthogonality": min(FIRST_ORTHOGONALITY, float(rho)),
        "membership_steps": choices.membership_steps,
        "clip_norm": float(clip if choices.clip_norm == "auto" else choices.clip_norm),
        "step": float(step if choices.step == "auto" else choices.step),
        "momentum": float(momentum),
        "constant": choices.constant_feature,
        # Coordinates in a subspace have no sign to keep; cluster_centers_ are clamped all the same.
        "clamp": choices.nonnegative and not choices.center and not dimensions,
        "init": choices.init,
        "sites_per_round": per_round,
        "sampling_probability": q,
    }
    if choices.update == "sums-and-gram":
        from dpfedc.clustering.sums_and_gram import SumsAndGram

        return SumsAndGram(choices.n_clusters, n_rounds, **settings)
    extra = choices.extra_steps or 0
    if not extra:
        return Factorization(choices.n_clusters, n_rounds, **settings)
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
    noise = kappa * math.sqrt(REFINE_ROUNDS / REFINE_SHARE)
    return REFINE_ROUNDS if noise < 0.3 else 0


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
