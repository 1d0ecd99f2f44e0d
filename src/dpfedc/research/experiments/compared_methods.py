"""The methods that experiments know by name, and how each of them is made."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from dpfedc.errors import InvalidInput

PER_ROUND = "per-round"
"""The variant of a rival that spends epsilon in every round, as in the paper."""
_RIVAL = ("", PER_ROUND)


@dataclass(frozen=True)
class MethodEntry:
    """Where an estimator is, what a reader calls it, and its row in the paper's Table I.

    `settings` make it this method where one estimator serves several. A method's variants are
    told apart in results; PER_ROUND has the paper's noise for its rivals.
    """

    module: str
    class_name: str
    title: str
    paper_name: str | None = None
    variants: tuple[str, ...] = ("",)
    federated: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


METHODS: Mapping[str, MethodEntry] = {
    "dp-fedc": MethodEntry(
        "dpfedc.estimators.dp_fedc", "DPFedC", "DP-FedC", "DP-FedC", ("normalized", "published")
    ),
    "sums-and-gram": MethodEntry(
        "dpfedc.estimators.dp_fedc", "DPFedC", "DP-FedC, sums and Gram",
        settings={"update": "sums-and-gram"},
    ),
    "federated-k-means": MethodEntry(
        "dpfedc.estimators.federated_kmeans", "FederatedKMeans", "federated k-means", "FKM", _RIVAL
    ),
    "fuzzy-c-means": MethodEntry(
        "dpfedc.research.rivals.fuzzy_cmeans", "FederatedFuzzyCMeans", "fuzzy c-means", "FZKM",
        _RIVAL,
    ),
    "k-means-parallel": MethodEntry(
        "dpfedc.research.rivals.kmeans_parallel", "KMeansParallel", "k-means||", "DK++", _RIVAL
    ),
    "coreset-k-median": MethodEntry(
        "dpfedc.research.rivals.coreset_kmedian", "CoresetKMedian", "coreset k-median", "DKM",
        _RIVAL,
    ),
    "averaged-k-means": MethodEntry(
        "dpfedc.research.rivals.averaged_kmeans", "AveragedKMeans",
        "federated k-means as an average of local means (our guess at FKM)",
    ),
    "k-fed": MethodEntry("dpfedc.research.rivals.k_fed", "KFed", "k-FED"),
    "dp-lloyd": MethodEntry("dpfedc.estimators.federated_kmeans", "DPLloyd", "DP-Lloyd"),
    "pooled-k-means": MethodEntry(
        "sklearn.cluster", "KMeans", "pooled k-means", federated=False
    ),
}  # fmt: skip


def variant_setting(variant: str) -> dict[str, Any]:
    """Return the setting that makes an estimator run a variant."""
    if variant == PER_ROUND:
        return {"epsilon_per_round": True}
    return {"variant": variant} if variant else {}


def estimator(
    name: str, shared: Mapping[str, Any], settings: Mapping[str, Any], epsilon: float | None
) -> Any:
    """Return the estimator called `name`, not yet fitted.

    `shared` holds what the grid says to all methods (K, delta, trust, seed): each takes what it
    knows. `settings` are this method's own, and it must know them all.
    """
    entry = METHODS[name]
    constructor = getattr(import_module(entry.module), entry.class_name)
    known = inspect.signature(constructor).parameters
    for key in settings:
        if key not in known:
            raise InvalidInput(f"{name} has no setting {key!r}; it has: {', '.join(known)}")
    if epsilon is not None and "epsilon" not in known:
        raise InvalidInput(f"{name} adds no noise: epsilon must be none, got {epsilon:g}")
    given = {**shared, "epsilon": epsilon}
    return constructor(
        **{**{k: v for k, v in given.items() if k in known}, **entry.settings, **settings}
    )
