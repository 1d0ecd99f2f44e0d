"""How many prototypes a plan has, and what merges them: see docs/decisions/0017-any-shape.md."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Protocol

from dpfedc.clustering.least_parted import LeastParted
from dpfedc.clustering.neighbors import SENSITIVITY, Neighbors
from dpfedc.clustering.run_plan import Federation, Way
from dpfedc.errors import InvalidInput
from dpfedc.settings import require_integer

PER_CLUSTER, ENOUGH, PART_MORE = 2, 25, 0.25
"""Two for each cluster, up to 25; where clusters are so many themselves, a quarter more."""
MIN_PROTOTYPES, MAX_PROTOTYPES = 12, 1000
"""Fewer cannot follow a shape."""
MORE_FOR_CHOICE, PART_FOR_CHOICE = 6, 0.2
"""So many more than the largest number that may be chosen, or this part of it."""
GRAPH_SHARE, MAX_GRAPH_SHARE = 0.05, 0.2
"""Of the budget, for the graph of neighbours; more only where it has to tell a number."""
COUNT_TO_CHOOSE = 12.0
"""For that the count of an average prototype should be so many standard deviations of its noise."""
OF_SHAPE = (25.0, 0.2)
"""Records of an average prototype, in standard deviations of the noise in its count; and the noise
ratio with all prototypes."""
OF_START = (12.0, 0.2)
"""The same where prototypes are what clusters from cells start from."""
OF_CHOICE = (5.0, 0.45)
"""The same for a choice of k, which needs prototypes before anything else."""
MIN_CLUSTERS = 3
"""Fewer, if nobody asks for prototypes, are told apart by their means alone: a small group with few
links would take the place of one of two."""
MIN_RECORDS = 50
"""Of an average prototype, however little noise there is."""
DEFAULT_RANGE = (2, 20)


def checked_range(k_range: Any, n_clusters: Any, most: int) -> tuple[int, int]:
    """Return the least and the largest number of clusters, or say what was expected."""
    if n_clusters != "auto":
        if k_range is not None:
            raise InvalidInput(f"k_range must be None unless n_clusters is 'auto', got {k_range!r}")
        return n_clusters, n_clusters
    if k_range is None:
        return DEFAULT_RANGE[0], max(min(DEFAULT_RANGE[1], most), DEFAULT_RANGE[0])
    if not isinstance(k_range, (tuple, list)) or len(k_range) != 2:
        raise InvalidInput(f"k_range must be two whole numbers, low and high, got {k_range!r}")
    low = require_integer("k_range's low", k_range[0], least=2, most=most)
    return low, require_integer("k_range's high", k_range[1], least=low, most=most)


def n_prototypes(
    choices: SimpleNamespace, facts: Federation, kappa: float, *, any_shape: bool, by_links: bool
) -> int:
    """Return how many prototypes are found, from the noise that each of them would have.

    `kappa` is the noise ratio with `choices.n_clusters`, the largest number of clusters.
    """
    low, high = map(int, choices.k_range)
    chosen = low < high
    if choices.n_prototypes != "auto":
        return int(max(choices.n_prototypes, high))
    if not (any_shape or by_links or chosen):
        return high
    wanted = max(min(PER_CLUSTER * high, ENOUGH), high + math.ceil(PART_MORE * high))
    if chosen:
        wanted = high + max(MORE_FOR_CHOICE, math.ceil(PART_FOR_CHOICE * high))
    most = [max(wanted, MIN_PROTOTYPES), MAX_PROTOTYPES, facts.n_records // MIN_RECORDS]
    if kappa > 0:
        count_noise = _count_noise(facts, kappa, high) / math.sqrt(GRAPH_SHARE)
        per_noise, noise = OF_CHOICE if chosen else OF_START if by_links else OF_SHAPE
        most += [int(facts.n_records / (per_noise * count_noise)), int(noise * high / kappa)]
    least = min(max(low + 1, MIN_PROTOTYPES), high) if chosen else high
    return max(min(most), least)


def _count_noise(facts: Federation, kappa: float, n_clusters: int) -> float:
    """Return the noise in a count of a graph that spends the whole budget."""
    return SENSITIVITY * kappa * facts.n_records / (n_clusters * math.sqrt(facts.n_features))


def _share(facts: Federation, kappa: float, n_clusters: int, n: int) -> float:
    """Return what a graph of n prototypes gets that is to tell how many clusters there are."""
    needed = COUNT_TO_CHOOSE * _count_noise(facts, kappa, n_clusters) * n / facts.n_records
    return min(max(needed**2, GRAPH_SHARE), MAX_GRAPH_SHARE)


def merged_by(graph: Neighbors, way: Way) -> Way:
    """Return a way to prototypes that ends with the graph by which they are merged."""
    stages = (*way.stages, replace(graph, longest=way.longest))
    return replace(way, stages=stages, n_prototypes=graph.n_prototypes)


class Search(Protocol):
    """A way to so many clusters, or to prototypes which a graph merges."""

    def __call__(
        self, some: SimpleNamespace, noise: float, rest: float, graph: Neighbors | None = None, /
    ) -> Way: ...


def merging(
    way: Search,
    choices: SimpleNamespace,
    facts: Federation,
    kappa: float,
    rest: float,
    *,
    any_shape: bool,
    by_links: bool,
    few_features: bool,
) -> Way:
    """Return a way to clusters: as it is, or to prototypes which are then merged."""
    low, high = choices.k_range
    n = n_prototypes(choices, facts, kappa, any_shape=any_shape, by_links=by_links)
    if n == high and low == high:
        return way(choices, kappa, rest)
    more = SimpleNamespace(**{**vars(choices), "n_clusters": n})
    graph = Neighbors(n, low, min(high, n), any_shape, few_features)
    if by_links:
        graph = LeastParted(n, high, high, any_shape)
    share = _share(facts, kappa, high, n) if low < high else GRAPH_SHARE
    found = way(more, kappa * n / high, rest - share, graph)
    return replace(found, shares={**found.shares, graph.name: share})
