"""Prototypes merged to clusters, two at a time, by how many records lie between them.

All of it is the server's arithmetic on a released matrix: counts on the diagonal, and for every two
prototypes the weight of the records that lie between them (`clustering/neighbors.py`). The noise of
the entries is known; that of a sum of entries is smaller than their sum's, so entries stay as they
are, below zero too, and add up when prototypes are merged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedc.kernels.cluster_sums import squared_distances

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

MAY_BE_NOISE = 2.0
"""Standard deviations of the noise that are taken off a link of two prototypes."""
MIN_COUNT = 3.0
"""A prototype stands for records if its count is so many standard deviations of the noise."""
SIZE_POWER, SIZE_POWER_OF_MANY = 0.75, 1.1
"""Two groups are merged by their link over the product of their sizes to this power: a large one
merges small groups first, a small one large groups. The second is for many features, where groups
lie so far apart that hardly a record is between two of them by chance."""
SMALLER_POWER = 0.65
"""How strongly two groups hang together is told by their link over their sizes: so much of the
smaller one's, in powers, and the rest of the larger one's."""


@dataclass(frozen=True)
class Links:
    """How strongly what was merged hangs together, and the noise in that, by what it left."""

    values: dict[int, float]
    errors: dict[int, float]


@dataclass(frozen=True)
class MergeTree:
    """Groups of prototypes for every number of them, from all that stand for records down to one.

    `groups[k]` holds the group, from 0 to k - 1, of each prototype. `links[k]` says how strongly
    the two groups hang together that were merged to leave k, and its error is the noise in it.
    There are two readings: `whole`, of the groups as they are, and `nearest`, of the two prototypes
    of theirs with the strongest link. Bent and long groups have a small part of their records at
    their ends, so they hang together by their nearest prototypes alone.
    """

    groups: Mapping[int, Int]
    whole: Links
    nearest: Links

    @property
    def most(self) -> int:
        """Return the largest number of groups."""
        return max(self.groups)


def merge_tree(
    graph: Float,
    noise_std: float,
    prototypes: Float,
    least: int = 1,
    size_power: float = SIZE_POWER,
) -> MergeTree:
    """Return how prototypes merge; at least `least` of them stand for records.

    `noise_std` is the noise on the diagonal; it is smaller by sqrt 2 off it. What stands for no
    records goes to the nearest prototype that does.
    """
    counts = np.diag(graph).copy()
    strong = counts > max(MIN_COUNT * noise_std, 1.0)
    strong[np.argsort(-counts, kind="stable")[:least]] = True
    labels = _nearest(prototypes, strong)
    members = np.eye(len(counts))[labels]
    # Sums over groups: of counts, of what lies between, and of the entries that were added up.
    sizes = members.T @ np.clip(counts, 0.0, None)
    between = members.T @ (graph - np.diag(counts)) @ members
    n_entries = members.T @ np.ones_like(graph) @ members
    entry_noise = noise_std / math.sqrt(2)
    alive = np.flatnonzero(strong)
    apart, apart_noise = _nearest_links(between, entry_noise * np.sqrt(n_entries), sizes)
    groups = {len(alive): _numbered(labels)}
    whole, nearest = Links({}, {}), Links({}, {})
    while len(alive) > 1:
        some = np.ix_(alive, alive)
        n = np.maximum(sizes[alive], 1.0)
        noise = entry_noise * np.sqrt(n_entries[some])
        scores = (between[some] - noise) / np.outer(n, n) ** size_power
        np.fill_diagonal(scores, -np.inf)
        i, j = sorted(np.unravel_index(int(scores.argmax()), scores.shape))
        kept, gone = alive[i], alive[j]
        least_n, most_n = sorted((n[i], n[j]))
        size = least_n**SMALLER_POWER * most_n ** (1 - SMALLER_POWER)
        left = len(alive) - 1
        whole.values[left] = float(between[kept, gone] / size)
        whole.errors[left] = float(noise[i, j] / size)
        pairs = np.ix_(np.flatnonzero(labels == kept), np.flatnonzero(labels == gone))
        best = int(apart[pairs].argmax())
        nearest.values[left] = float(apart[pairs].flat[best])
        nearest.errors[left] = float(apart_noise[pairs].flat[best])
        sizes[kept] += sizes[gone]
        for table in (between, n_entries):
            table[kept] += table[gone]
            table[:, kept] += table[:, gone]
        labels = np.where(labels == gone, kept, labels)
        alive = np.delete(alive, j)
        groups[len(alive)] = _numbered(labels)
    return MergeTree(groups, whole, nearest)


def _nearest_links(between: Float, noise: Float, sizes: Float) -> tuple[Float, Float]:
    """Return the links of single prototypes, less what noise may have added, and their noise.

    Of many links the strongest is taken, so noise would make some where there is none.
    """
    n = np.maximum(sizes, 1.0)
    size = np.minimum.outer(n, n) ** SMALLER_POWER * np.maximum.outer(n, n) ** (1 - SMALLER_POWER)
    return (between - MAY_BE_NOISE * noise) / size, noise / size


def _nearest(prototypes: Float, strong: npt.NDArray[np.bool_]) -> Int:
    """Return for each prototype itself, or the nearest strong one."""
    places = np.flatnonzero(strong)
    near = prototypes[places]
    gaps = squared_distances(prototypes @ near.T, (prototypes**2).sum(axis=1), near)
    return np.where(strong, np.arange(len(strong)), places[gaps.argmin(axis=1)])


def _numbered(labels: Int) -> Int:
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def shortest_trees(prototypes: Float, groups: Int) -> Int:
    """Return pairs (rows): for each group the tree through its prototypes that is shortest."""
    from scipy.sparse.csgraph import minimum_spanning_tree
    from scipy.spatial.distance import pdist, squareform

    pairs = [np.empty((0, 2), dtype=np.int64)]
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        tree = minimum_spanning_tree(squareform(pdist(prototypes[members])))
        pairs.append(members[np.stack(tree.nonzero(), axis=1)])
    return np.concatenate(pairs)


MAX_LINK = 0.5
"""Stronger links say no more than this one: the groups are one."""


def chosen_step(
    tree: MergeTree, low: int, high: int, needed: float = 0.0
) -> tuple[int, float, Links]:
    """Return the number of groups at which links fall, by how much, and in which reading of them.

    It is the one in which they fall by more. If that is less than is `needed` to be clear, it is
    the one with fewer groups.
    """
    found = [(*best_step(links.values, low, high), links) for links in (tree.whole, tree.nearest)]
    best = max(found, key=lambda step: step[1])
    if best[1] >= needed:
        return best
    return min((step for step in found if step[1] > 0), key=lambda step: step[0], default=best)


N_CLOUDS, MAX_DIRECTIONS = 40, 5
"""Clouds that are drawn, and in how many directions records differ: more make no difference."""


def step_of_one_cloud(
    graph: Float,
    noise_std: float,
    n_features: int,
    low: int,
    high: int,
    size_power: float = SIZE_POWER,
) -> float:
    """Return a step that records without clusters reach in one of twenty runs, by noise alone.

    Clouds are drawn with the same counts, the same weight between prototypes and the same noise as
    the graph, but with that weight spread evenly over the neighbours in a normal law.
    """
    rng, p = np.random.default_rng(0), len(graph)
    counts = np.clip(np.diag(graph), 1.0, None)
    weight = max(float(graph.sum() - np.trace(graph)), 0.0)
    heights = []
    for _ in range(N_CLOUDS):
        places = rng.normal(size=(p, min(n_features, MAX_DIRECTIONS)))
        even = neighbors_in(places) * np.minimum.outer(counts, counts)
        cloud = even * (weight / max(float(even.sum()), 1.0)) + np.diag(counts)
        upper = np.triu(rng.normal(size=(p, p)), 1) * noise_std / math.sqrt(2)
        noise = upper + upper.T + np.diag(rng.normal(size=p)) * noise_std
        tree = merge_tree(cloud + noise, noise_std, places, min(low, p), size_power)
        heights.append(max(chosen_step(tree, low, high)[1], 0.0))
    return float(np.quantile(heights, 0.95))


def neighbors_in(places: Float) -> Float:
    """Return 1 for two places that are neighbours, two along each direction, and 0 else."""
    gaps = squared_distances(places @ places.T, (places**2).sum(axis=1), places)
    np.fill_diagonal(gaps, np.inf)
    nearest = np.argsort(gaps, axis=1)[:, : min(2 * places.shape[1], len(places) - 1)]
    near = np.zeros_like(gaps)
    np.put_along_axis(near, nearest, 1.0, axis=1)
    return np.asarray(np.maximum(near, near.T))


def best_step(links: Mapping[int, float], low: int, high: int) -> tuple[int, float]:
    """Return the number of groups, from `low` to `high`, at which links fall, and by how much.

    Down to the right number, merges join what hangs together; from there on they join what does
    not. So a step is fitted to the links, by least squares. A step the wrong way is no choice: then
    the one that is least so is returned.
    """
    numbers = np.array(sorted(links))
    values = np.clip([links[k] for k in numbers.tolist()], 0.0, MAX_LINK)
    best, found = (True, math.inf), (low, -math.inf)
    for k in range(low, min(high, int(numbers[-1])) + 1):
        apart, together = values[numbers < k], values[numbers >= k]
        if not len(apart) or not len(together):
            continue
        height = float(together.mean() - apart.mean())
        rest = ((apart - apart.mean()) ** 2).sum() + ((together - together.mean()) ** 2).sum()
        rank = (height <= 0, float(rest) if height > 0 else -height)
        if rank < best:
            best, found = rank, (k, height)
    return found
