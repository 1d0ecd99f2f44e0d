"""What DP-FedC's plan and last state come to, which no site needs: reasons, and a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from dpfedc.clustering.centers import Centers
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.factorization_planner import LOW_DIMENSION, auto_rounds
from dpfedc.clustering.least_parted import LeastParted
from dpfedc.clustering.method import Settings, measured
from dpfedc.clustering.neighbors import Neighbors
from dpfedc.clustering.prototypes_planner import MIN_RECORDS
from dpfedc.clustering.quality import QUALITY_SHARE, Quality
from dpfedc.clustering.record_cells import Cells
from dpfedc.clustering.residual_lloyd import ResidualLloyd
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import Stage, State
from dpfedc.clustering.subspace import Subspace, in_all_features
from dpfedc.kernels.devices import as_numpy
from dpfedc.model_file import ClusterModel
from dpfedc.summary.choice_of_k import choice_from
from dpfedc.summary.cluster_quality import ClusterQuality, quality_from


def factorization_model(
    given: Settings,
    plan: RunPlan,
    state: State,
    *,
    constant: float,
    steps: int,
    names: tuple[str, ...] | None,
    about: Mapping[str, Any],
) -> ClusterModel:
    """Return the model of a state, which may be that of an unfinished run."""
    scale = state.get("scale")
    if "groups" in state and "best_centers" in state:
        return _merged_model(given, plan, state, names=names, about=about)
    if "W" in state:
        W = as_numpy(state["W"])
        W = W @ as_numpy(state["basis"]) if "basis" in state else W
    else:
        W = in_all_features(as_numpy(state["centers"]), state)
    n_features = W.shape[1] - (constant != 0 and "basis" not in state)
    # In a subspace they are still on their way.
    done = "counts" in state and state["best_centers"].shape[1] == n_features
    return ClusterModel(
        directions=W,
        center=as_numpy(state.get("data_mean", np.zeros(n_features))),
        scale=None if scale is None else float(scale),
        centers=as_numpy(state["best_centers"]) if done else None,
        by_membership=not (plan.refine and done),
        constant=constant,
        longest=getattr(plan.stages[-1], "longest", 1.0) if done else 1.0,
        penalty=plan.penalty,
        steps=steps,
        nonnegative=bool(given.get("nonnegative", False)),
        feature_names=names,
        about=about,
        quality=_quality(state),
        **(measured(state) if done else {}),
    )


def _quality(state: State) -> ClusterQuality | None:
    """Return how good the clusters are, if that was released: costs in squared units of X."""
    if "quality_sums" not in state:
        return None
    names = ("quality_sums", "quality_noise", "quality_records", "scale")
    return quality_from(*(np.asarray(as_numpy(state[name]), dtype=np.float64) for name in names))


def _merged_model(
    given: Settings,
    plan: RunPlan,
    state: State,
    *,
    names: tuple[str, ...] | None,
    about: Mapping[str, Any],
) -> ClusterModel:
    """Return the model of clusters that are groups of prototypes."""
    centers, scale = as_numpy(state["best_centers"]), state.get("scale")
    choice, found, quality = None, measured(state), _quality(state)
    if not any(isinstance(stage, LeastParted) for stage in plan.stages):
        # Whether prototypes depend on the start says little of what they are merged to.
        found["stability"] = None
    if not bool(state["by_prototype"]):
        # Prototypes were counted, and records go to the nearest centre: how much that changes at
        # the borders is not known, unless it was counted again.
        found |= {"size_errors": None, "center_errors": None}
        if quality is not None:
            sizes = [(one.size.value, one.size.error) for one in quality.clusters]
            found["sizes"], found["size_errors"] = np.asarray(sizes).T
    if "k_links" in state:
        curve = (as_numpy(state[name]) for name in ("k_numbers", "k_links", "k_errors"))
        step, needed = float(state["k_step"]), float(state["k_needed"])
        choice = choice_from(len(centers), step, needed, *curve)
    return ClusterModel(
        directions=centers,
        center=as_numpy(state["data_mean"]),
        scale=None if scale is None else float(scale),
        centers=centers,
        by_membership=False,
        nonnegative=bool(given.get("nonnegative", False)),
        prototypes=as_numpy(state["prototypes"]),
        groups=as_numpy(state["groups"]),
        by_prototype=bool(state["by_prototype"]),
        longest=getattr(plan.stages[-1], "longest", 1.0),
        choice=choice,
        quality=quality,
        feature_names=names,
        about=about,
        **found,
    )


def reasons(
    plan: RunPlan, facts: Federation, way: Sequence[Stage], asked: SimpleNamespace
) -> Iterator[str]:
    """Return one sentence on each of the planner's choices: what was chosen, and why.

    `asked` are the settings, of which noise may not allow all.
    """
    most = asked.k_range[1]
    graph = next((stage for stage in way if isinstance(stage, Neighbors)), None)
    if graph is not None and not isinstance(graph, LeastParted):
        yield from _of_prototypes(graph, facts, most)
    elif asked.shape == "any":
        why = f"{_limit(most, facts)} allows no more than {most:,}"
        if asked.n_prototypes != "auto":
            why = f"{most:,} were asked for, as many as clusters"
        yield f"Prototypes: none; {why}, so clusters are round although any shape was asked for."
    searches = (getattr(stage, "search", stage) for stage in way)  # of several starts, it is one's
    search = next((stage for stage in searches if isinstance(stage, Factorization)), None)
    if search is None:
        cells = next(stage for stage in way if isinstance(stage, Cells))
        yield from _of_cells(cells, way, facts)
    else:
        yield from _of_search(plan, facts, search)
    if any(isinstance(stage, Quality) for stage in plan.stages):
        yield (
            f"Quality: sizes, cost and silhouette of the clusters are released at the end, with "
            f"{100 * QUALITY_SHARE:g} % of the budget."
        )


def _limit(n: int, facts: Federation) -> str:
    """Return what leaves no room for more than n prototypes."""
    return "the number of records" if facts.n_records // MIN_RECORDS <= n else "noise"


def _of_prototypes(graph: Neighbors, facts: Federation, most: int) -> Iterator[str]:
    low, high, n = graph.least_clusters, graph.most_clusters, graph.n_prototypes
    clusters = f"{high:,} clusters" if low == high else f"{low:,} to {high:,} clusters"
    yield (
        f"Prototypes: {n:,}, which are merged to {clusters} where records lie between them. "
        + (
            "Clusters may have any shape."
            if graph.any_shape
            else "Records then go to the nearest centre."
        )
    )
    if low < high:
        cut = ""
        if high < most:
            cut = f" At most {high:,}, not {most:,}: {_limit(high, facts)} allows no more."
        yield (
            "Number of clusters: chosen where the links between clusters fall off, from the same "
            f"release; where they do not, the run says so.{cut}"
        )


NO_GAPS_IN_WORDS = (
    " Where records fill the space between clusters, these are groups of prototypes instead, of "
    "any shape, and a record belongs to the cluster of its nearest prototype (the shape round "
    "forbids that)."
)


def _of_cells(cells: Cells, way: Sequence[Stage], facts: Federation) -> Iterator[str]:
    moving = [stage for stage in way if isinstance(stage, ResidualLloyd)]
    first, k = moving[0].n_clusters, moving[-1].n_clusters
    graph = next((stage for stage in way if isinstance(stage, LeastParted)), None)
    by_links = graph is not None
    yield (
        f"Cells: {cells.n_clusters:,} small cells of records, since noise is low. From their sums "
        f"the server makes {first:,} {'prototypes' if by_links else 'centres'}, from many starts, "
        "which costs no privacy."
    )
    if graph is not None:
        yield (
            f"Start: prototypes are put together to {k:,} clusters from many starts, too. Of "
            "clusters that cost about the same, those with few records between them are taken."
            + (NO_GAPS_IN_WORDS if graph.any_shape else "")
        )
        yield (
            f"Refinement: {moving[0].n_rounds} rounds move each prototype, and "
            f"{moving[-1].n_rounds} each centre, to the mean of its records."
        )
    else:
        n_rounds = sum(stage.n_rounds for stage in moving)
        yield f"Refinement: {n_rounds} rounds move each centre to the mean of its records."
    subspace = next(stage for stage in way if isinstance(stage, Subspace))
    if subspace.n_dimensions < facts.n_features:
        yield (
            f"Subspace: cells are sought in {subspace.purpose}; {first:,} "
            f"{'prototypes' if by_links else 'clusters'} need no more, and noise has less room "
            "there."
        )
    else:
        yield "Subspace: none; all features are used."


def _of_search(plan: RunPlan, facts: Federation, search: Factorization) -> Iterator[str]:
    subspaces = [stage for stage in plan.stages if isinstance(stage, Subspace)]
    yield f"Rounds: {_why_rounds(plan, facts, search, bool(subspaces))}"
    if plan.refine:
        n_refine = next(s.n_rounds for s in plan.stages if isinstance(s, Centers))
        why = f"{n_refine} rounds move each centre to the mean of its records, since noise is low"
        few = f" and there are at most {LOW_DIMENSION} features"
        yield f"Refinement: {why}{few if facts.n_features <= LOW_DIMENSION else ''}."
    else:
        many = facts.n_features > LOW_DIMENSION
        why = f"more than {LOW_DIMENSION} features" if many else "this much noise"
        yield f"Refinement: none; with {why} it would add more noise than it removes error."
    for subspace in subspaces:
        yield (
            f"Subspace: clusters are sought in {subspace.purpose}, because noise is "
            "strong and there are many features."
        )
    if not subspaces:
        yield "Subspace: none; all features are used, for a subspace pays only in strong noise."


def _why_rounds(plan: RunPlan, facts: Federation, search: Factorization, has_subspace: bool) -> str:
    n = search.n_rounds
    told = "one round of search" if n == 1 else f"{n:,} rounds of search"
    if plan.privacy is None:
        return f"{told}; without noise more rounds only help."
    if plan.refine:
        return f"{told}; few are enough, since the refinement does the rest."
    settling = ""
    if search.last_step < 1 and n > 1:
        start = "half of them" if search.settles else "the first"
        settling = f" From {start} on steps shorten, so that noise averages out."
    if has_subspace:
        return f"{told}; few, since every round needs its own share of the budget.{settling}"
    best = auto_rounds(plan.noise_ratio, facts.n_sites / search.taking_part(facts.n_sites))
    trade = f"{told}; each brings the clusters nearer but needs its own share of the budget"
    planned = "" if n == best else f" The planner would take {best}."
    return f"{trade}.{settling}{planned}"
