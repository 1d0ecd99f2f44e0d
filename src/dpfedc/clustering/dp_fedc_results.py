"""What DP-FedC's plan and last state come to, which no site needs: reasons, and a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dpfedc.clustering.dp_fedc_planner import LOW_DIMENSION, auto_rounds
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.method import Settings, measured
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import State
from dpfedc.clustering.standardize import Subspace
from dpfedc.kernels.devices import as_numpy
from dpfedc.model_file import ClusterModel


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
    done = "counts" in state
    W = as_numpy(state["W"])
    if "basis" in state:
        W = W @ as_numpy(state["basis"])
    n_features = W.shape[1] - (constant != 0 and "basis" not in state)
    return ClusterModel(
        directions=W,
        center=as_numpy(state.get("data_mean", np.zeros(n_features))),
        scale=None if scale is None else float(scale),
        centers=as_numpy(state["best_centers"]) if done else None,
        by_membership=not (plan.refine and done),
        constant=constant,
        penalty=plan.penalty,
        steps=steps,
        nonnegative=bool(given.get("nonnegative", False)),
        feature_names=names,
        about=about,
        **measured(state),
    )


def reasons(
    plan: RunPlan, facts: Federation, search: Factorization, dimensions: int
) -> Iterator[str]:
    """Return one sentence on rounds, refinement and subspace: what was chosen, and why."""
    yield f"Rounds: {_why_rounds(plan, facts, search, dimensions)}"
    if plan.refine:
        n_refine = plan.stages[-1].n_rounds
        why = f"{n_refine} rounds move each centre to the mean of its records, since noise is low"
        few = f" and there are at most {LOW_DIMENSION} features"
        yield f"Refinement: {why}{few if facts.n_features <= LOW_DIMENSION else ''}."
    else:
        many = facts.n_features > LOW_DIMENSION
        why = f"more than {LOW_DIMENSION} features" if many else "this much noise"
        yield f"Refinement: none; with {why} it would add more noise than it removes error."
    if dimensions:
        yield (
            f"Subspace: clusters are sought in {Subspace(dimensions).purpose}, because noise is "
            "strong and there are many features."
        )
    else:
        yield "Subspace: none; all features are used, for a subspace pays only in strong noise."


def _why_rounds(plan: RunPlan, facts: Federation, search: Factorization, dimensions: int) -> str:
    n = search.n_rounds
    told = "one round of search" if n == 1 else f"{n:,} rounds of search"
    if plan.privacy is None:
        return f"{told}; without noise more rounds only help."
    if plan.refine:
        return f"{told}; few are enough, since the refinement does the rest."
    if dimensions:
        return f"{told}; few, since every round needs its own share of the budget."
    best = auto_rounds(plan.noise_ratio, facts.n_sites / search.taking_part(facts.n_sites))
    trade = f"{told}; each brings the clusters nearer but needs its own share of the budget"
    return f"{trade}." if n == best else f"{trade}. The planner would take {best}."
