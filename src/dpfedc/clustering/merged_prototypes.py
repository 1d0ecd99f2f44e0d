"""What a released graph of neighbours makes of prototypes: clusters, and how many there are.

Arithmetic of the server on released values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.residual_lloyd import CENTER_MAX, MIN_RESIDUAL, roomy_bounds
from dpfedc.clustering.residual_lloyd import MIN_COUNT as MIN_FILLED
from dpfedc.clustering.stage import State
from dpfedc.kernels.cluster_sums import squared_distances
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.merge_tree import (
    MIN_COUNT,
    SIZE_POWER,
    SIZE_POWER_OF_MANY,
    Links,
    chosen_step,
    merge_tree,
    step_of_one_cloud,
)
from dpfedc.kernels.weighted_kmeans import Clustering, agreement, best_of, clusterings, grouped
from dpfedc.summary.choice_of_k import MIN_STEP, rise_in_words

Float = npt.NDArray[np.float64]
Released = Mapping[str, Float]


def clusters_of(
    graph: Float,
    noise_std: float,
    state: Released,
    allowed: tuple[int, int],
    *,
    any_shape: bool,
    few_features: bool,
) -> dict[str, Float]:
    """Return what a state holds once its prototypes are merged: `groups`, and values of clusters.

    Sizes, centres and their errors are then those of clusters. Prototypes are sorted by cluster.
    """
    prototypes, (low, high) = state["prototypes"], allowed
    power = SIZE_POWER if few_features else SIZE_POWER_OF_MANY
    tree = merge_tree(graph, noise_std, prototypes, min(low, len(prototypes)), power)
    n_clusters = min(high, tree.most)
    choice: dict[str, Float] = {}
    if low < high:
        cloud = step_of_one_cloud(graph, noise_std, prototypes.shape[1], low, high, power)
        needed = max(cloud, MIN_STEP)
        n_clusters, height, links = chosen_step(tree, low, high, needed)
        n_clusters = min(n_clusters, tree.most)
        choice = {**_choice(links, height, low, high), "k_needed": np.asarray(needed)}
    groups = tree.groups[n_clusters]
    order = np.argsort(groups, kind="stable")
    groups = groups[order]
    own = {n: state[n][order] for n in PER_PROTOTYPE if n in state}
    counted = np.diag(graph)[order] > MIN_COUNT * noise_std
    found = _merged(own, groups, np.asarray(counted))
    means = (own["best_centers"], found["best_centers"])
    alike = few_features and _grouped_alike(*means, groups, counted)
    if "best_cost" in state:
        found["best_cost"] = state["best_cost"] + found.pop("spread") * state["best_records"]
    found.pop("spread", None)
    placed = {"prototypes": prototypes[order], "groups": groups.astype(np.float64)}
    return {**found, **choice, **placed, "by_prototype": np.asarray(float(any_shape and not alike))}


PER_PROTOTYPE = ("best_centers", "sizes", "size_errors", "center_errors")


def _merged(own: Released, groups: npt.NDArray[np.int64], counted: Any) -> dict[str, Float]:
    """Return centres, sizes and errors of the groups, from those of their prototypes.

    A centre is the mean of its prototypes, weighted by their sizes. Noise in a size moves it
    towards that prototype or away from it.
    """
    k = int(groups.max()) + 1
    members = np.eye(k)[groups].T
    centers, sizes = own["best_centers"], own["sizes"]
    errors = own.get("center_errors")
    means = np.ones(len(sizes), bool) if errors is None else np.isfinite(errors).all(axis=1)
    weights = np.where(means & counted, np.maximum(sizes, 1.0), 0.0).astype(np.float64)
    # A group of which nothing stands out is the plain mean of its prototypes.
    weights = np.where(((members @ weights) > 0)[groups], weights, 1e-9)
    total = members @ weights
    merged = (members * weights) @ centers / total[:, None]
    away = centers - merged[groups]
    found = {
        "best_centers": merged,
        "sizes": members @ sizes,
        "counts": members @ sizes,
        "size_errors": np.sqrt(members @ own["size_errors"] ** 2),
        "spread": weights @ (away**2).sum(axis=1) / weights.sum(),
    }
    if errors is not None:
        used = np.asarray(means & (weights > 1e-6))
        finite = np.where(used[:, None], errors, 0.0) * weights[:, None]
        moved = np.where(used, own["size_errors"], 0.0)[:, None] * away
        some = np.sqrt(members @ (finite**2 + moved**2)) / total[:, None]
        found["center_errors"] = np.where((members @ used > 0)[:, None], some, np.inf)
    return found


def _grouped_alike(centers: Float, merged: Float, groups: Any, counted: Any) -> bool:
    """Return whether nearest centres would group prototypes as the graph does.

    Then centres alone tell the clusters apart, by smoother borders.
    """
    gaps = squared_distances(centers @ merged.T, (centers**2).sum(axis=1), merged)
    return bool((gaps.argmin(axis=1) == groups)[counted].all())


def _choice(links: Links, height: float, low: int, high: int) -> dict[str, Float]:
    """Return the curve behind a choice of k: at k, the link of the closest two of k clusters."""
    numbers = np.arange(low, high + 1)
    values = [links.values.get(k - 1, np.nan) for k in numbers.tolist()]
    errors = [links.errors.get(k - 1, np.nan) for k in numbers.tolist()]
    return {
        "k_numbers": numbers.astype(float),
        "k_links": np.asarray(values),
        "k_errors": np.asarray(errors),
        "k_step": np.asarray(max(height, 0.0)),
    }


def doubtful_choice(state: State) -> tuple[str, ...]:
    """Return why the number of clusters is not clear, if it is not."""
    height, k, needed = float(state["k_step"]), len(state["sizes"]), float(state["k_needed"])
    if height >= needed:
        return ()
    return (f"the number of clusters is not clear: {rise_in_words(k, height, needed)}",)


PARTED_WEIGHT = 2.0
"""What parting all records would count, as a part of the cost."""
NO_GAPS, MAX_COST = 0.45, 1.15
"""Clusters by links alone are taken where there are no gaps, so that those of k-means part so much
of all links or more, and if they cost no more than so many times as much."""
CLEAR_LINKS, LEAST_LINKS = 8.0, 0.05
"""For that all links together must be so many standard deviations of their noise, and this part of
the records: where prototypes have next to no links, as clusters with gaps between them, noise would
be what is parted."""
STEADY, N_DRAWS = 0.75, 16
"""And if graphs with fresh noise give clusters that agree so well. In a cloud without clusters they
come out otherwise every time, and k-means at least cuts it in compact parts."""
N_STARTS = 32


def put_together(
    graph: Float,
    noise_std: float,
    state: Released,
    n_clusters: int,
    *,
    any_shape: bool = False,
) -> dict[str, Float]:
    """Return centres made of prototypes, and what their records' residuals are clipped to.

    Where they are put together by links alone, clusters may have any shape if that is allowed:
    records then belong to prototypes, and `groups` are the prototypes' clusters.
    """
    counted = state["sizes"] > MIN_FILLED * state["size_errors"]
    if counted.sum() < n_clusters:  # noise has swamped them: all there are
        counted[:] = True
    prototypes = state["best_centers"][counted]
    weights = np.maximum(state["sizes"][counted], 1.0)
    n, links = float(weights.sum()), graph[np.ix_(counted, counted)]
    within = float(state["best_cost"]) / float(state["best_records"])

    def cost(one: Clustering) -> float:
        return within + one.cost / n

    def parted(one: Clustering) -> float:
        apart = np.not_equal.outer(one.labels, one.labels)
        return float(np.triu(links, 1)[apart].sum()) / n

    rng = np.random.default_rng(0)  # on released values: no noise depends on it
    found = clusterings(prototypes, weights, n_clusters, N_STARTS, rng)
    least = max(min(map(cost, found)), MIN_RESIDUAL**2)  # where records are few values, it is none
    scores = [cost(one) / least + PARTED_WEIGHT * parted(one) for one in found]
    best, stable = best_of(found, scores, weights)
    tree = merge_tree(links, noise_std, prototypes, n_clusters)
    merged = grouped(prototypes, weights, tree.groups[n_clusters])
    pairs = np.triu_indices(len(links), 1)
    in_all, in_noise = float(links[pairs].sum()), noise_std * math.sqrt(len(pairs[0]) / 2)
    by_links = (
        in_all >= max(CLEAR_LINKS * in_noise, LEAST_LINKS * n)
        and parted(best) >= NO_GAPS * in_all / n
        and cost(merged) <= MAX_COST * cost(best)
        and steadiness(links, noise_std, prototypes, weights, merged.labels) >= STEADY
    )
    if by_links:
        stable = min(stable, agreement(best.labels, merged.labels, weights))
        best = merged
    members = np.eye(n_clusters)[best.labels].T * weights
    sizes = np.maximum(members.sum(axis=1), 1.0)
    away = ((prototypes - best.centers[best.labels]) ** 2).sum(axis=1)
    squares = members @ (state["mean_squares"][counted] + away) / sizes
    noise, width = float(state["size_errors"].max()), prototypes.shape[1]
    told = _by_prototype(state, counted, best.labels) if any_shape and by_links else {}
    return {
        **told,
        "centers": best.centers,
        "mean_squares": squares,
        "residual_bounds": roomy_bounds(squares, sizes, noise, width),
        "stability": np.asarray(stable),
    }


def steadiness(
    links: Float, noise_std: float, prototypes: Float, weights: Float, labels: npt.NDArray[np.int64]
) -> float:
    """Return how well clusters by links agree with those of graphs that have noise once more.

    Noise of the release, and of the draw of records: a record's part in a link is 1/2 at most, so
    that of a link's sum has at most half of it as variance.
    """
    rng = np.random.default_rng(0)  # on released values: no noise depends on it
    std, k = np.sqrt(noise_std**2 / 2 + np.clip(links, 0, None) / 2), int(labels.max()) + 1
    alike = []
    for _ in range(N_DRAWS):
        noise = np.triu(rng.standard_normal(links.shape) * std, 1)
        tree = merge_tree(links + noise + noise.T, noise_std, prototypes, k)
        alike.append(agreement(labels, tree.groups[k], weights))
    return float(np.mean(alike))


def _by_prototype(
    state: Released, counted: npt.NDArray[np.bool_], labels: npt.NDArray[np.int64]
) -> dict[str, Float]:
    """Return all prototypes by cluster; of those that stand for no records, that of the nearest."""
    prototypes = state["prototypes"]
    near = prototypes[counted]
    gaps = squared_distances(prototypes @ near.T, (prototypes**2).sum(axis=1), near)
    groups = labels[gaps.argmin(axis=1)]
    groups[counted] = labels  # also of two at one place
    order = np.argsort(groups, kind="stable")
    placed = {"prototypes": prototypes[order], "groups": groups[order].astype(np.float64)}
    squares = state["mean_squares"][counted]
    if state["best_centers"].shape[1] < prototypes.shape[1]:
        squares = squares + float(state.get("outside", 0.0))
    return {**placed, "place_squares": squares, "by_prototype": np.asarray(1.0)}


def placed(state: State, centers: Float, n_places: int) -> dict[str, Float]:
    """Return where the places of clusters are, and whose.

    They are the prototypes, if records belong to those, and the centres else.
    """
    clusters = np.arange(n_places) % len(centers)
    if "groups" in state:
        clusters = on_host(state["groups"]).astype(np.int64)
    by_prototype = bool(state.get("by_prototype", False))
    places = on_host(state["prototypes"]) if by_prototype else centers[clusters]
    return {
        "places": np.clip(places, -CENTER_MAX, CENTER_MAX),
        "place_clusters": clusters.astype(np.float64),
    }
