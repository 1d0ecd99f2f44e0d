"""Prototypes that merge: against a naive loop, and on graphs whose groups are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.kernels.merge_tree import (
    SIZE_POWER,
    SIZE_POWER_OF_MANY,
    Links,
    MergeTree,
    best_step,
    chosen_step,
    merge_tree,
    neighbors_in,
    step_of_one_cloud,
)


def chains(sizes, *, count=100.0, link=30.0, between=0.0):
    """Return a graph of groups, each a chain of prototypes, and the group of each prototype."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    graph = np.full((len(groups), len(groups)), between)
    for p in range(len(groups) - 1):
        if groups[p] == groups[p + 1]:
            graph[p, p + 1] = graph[p + 1, p] = link
    np.fill_diagonal(graph, count)
    return graph, groups


def same_partition(one, other):
    return len({*zip(one.tolist(), other.tolist(), strict=True)}) == len({*one}) == len({*other})


def naive(graph, k, power=SIZE_POWER):
    """Return the groups of a graph without noise: the same rule, by loops over sets."""
    groups = [{p} for p in range(len(graph))]

    def score(a, b):
        between = sum(graph[p, q] for p in a for q in b)
        sizes = sum(graph[p, p] for p in a) * sum(graph[q, q] for q in b)
        return between / sizes**power

    while len(groups) > k:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        a, b = max(pairs, key=lambda pair: score(groups[pair[0]], groups[pair[1]]))
        groups[b] |= groups.pop(a)
    labels = np.empty(len(graph), dtype=int)
    for number, group in enumerate(groups):
        labels[list(group)] = number
    return labels


@given(st.integers(0, 10**6), st.integers(2, 9), st.sampled_from([SIZE_POWER, SIZE_POWER_OF_MANY]))
def test_it_merges_as_a_naive_loop_does(seed, n, power):
    rng = np.random.default_rng(seed)
    links = rng.exponential(10.0, (n, n))
    graph = np.triu(links, 1) + np.triu(links, 1).T + np.diag(rng.uniform(50, 500, n))
    tree = merge_tree(graph, 0.0, rng.normal(size=(n, 2)), size_power=power)
    assert tree.most == n
    for k in range(1, n + 1):
        assert same_partition(tree.groups[k], naive(graph, k, power))
        assert {*tree.groups[k].tolist()} == {*range(k)}


def test_small_groups_are_merged_first_where_features_are_many():
    """Links are 40 between groups of 400 records, and 1.2 between groups of 40."""
    graph = np.diag([400.0, 400.0, 40.0, 40.0])
    graph[0, 1] = graph[1, 0] = 40.0
    graph[2, 3] = graph[3, 2] = 1.2
    places = np.zeros((4, 1))
    few = merge_tree(graph, 0.0, places).groups[3]
    many = merge_tree(graph, 0.0, places, size_power=SIZE_POWER_OF_MANY).groups[3]
    assert (few[0] == few[1], few[2] == few[3]) == (True, False)
    assert (many[0] == many[1], many[2] == many[3]) == (False, True)


@pytest.mark.parametrize("sizes", [(3, 4), (1, 5, 2), (2, 2, 2, 6)])
def test_chains_come_apart_whatever_their_order(sizes):
    graph, groups = chains(sizes, between=1.0)
    order = np.random.default_rng(0).permutation(len(groups))
    tree = merge_tree(graph[np.ix_(order, order)], 0.0, np.zeros((len(groups), 1)))
    assert same_partition(tree.groups[len(sizes)], groups[order])


def test_links_fall_where_groups_are_apart():
    graph, _ = chains((4, 4, 4), link=120.0, between=0.5)
    tree = merge_tree(graph, 0.0, np.zeros((12, 1)))
    for links in (tree.whole, tree.nearest):
        found = links.values
        assert min(found[k] for k in range(3, 12)) > 4 * max(found[k] for k in (1, 2))
        assert set(links.errors.values()) == {0.0}
    k, height, _ = chosen_step(tree, 2, 10)
    assert k == 3
    assert height > 0.1


def test_long_chains_hang_together_by_their_nearest_prototypes():
    """The links of whole chains fall with every merge; those of neighbours where chains end."""
    graph, _ = chains((12, 12), count=100.0, link=25.0, between=0.2)
    tree = merge_tree(graph, 0.0, np.zeros((24, 1)))
    assert best_step(tree.whole.values, 2, 20)[0] > 4
    assert chosen_step(tree, 2, 20)[0] == 2
    assert chosen_step(tree, 2, 20)[2] is tree.nearest


def test_where_no_step_is_clear_the_reading_with_fewer_groups_decides():
    whole = Links({1: 0.0, 2: 0.0, 3: 0.1, 4: 0.1}, {})
    nearest = Links({1: 0.0, 2: 0.0, 3: 0.0, 4: 0.2}, {})
    tree = MergeTree({5: np.arange(5)}, whole, nearest)
    assert chosen_step(tree, 2, 4)[0] == 4
    assert chosen_step(tree, 2, 4, needed=0.2)[:2] == (4, pytest.approx(0.2))
    k, height, links = chosen_step(tree, 2, 4, needed=0.3)
    assert (k, height) == (3, pytest.approx(0.1))
    assert links is whole
    falling = Links({1: 0.3, 2: 0.2, 3: 0.1, 4: 0.0}, {})
    assert chosen_step(MergeTree({5: np.arange(5)}, falling, nearest), 2, 4, 0.3)[2] is nearest


def test_noise_alone_makes_no_link_of_nearest_prototypes():
    rng, noise = np.random.default_rng(4), 10.0
    graph, _ = chains((6, 6), count=150.0, link=80.0)
    upper = np.triu(rng.normal(size=(12, 12)), 1) * noise / math.sqrt(2)
    tree = merge_tree(graph + upper + upper.T, noise, np.zeros((12, 1)))
    assert tree.nearest.values[1] < 0.1 < min(tree.nearest.values[k] for k in range(2, 12))


def test_what_stands_for_no_records_goes_to_the_nearest_that_does():
    graph, groups = chains((3, 3), link=60.0)
    places = np.array([[0.0], [1], [2], [10], [11], [12], [9], [30]])
    noisy = np.zeros((8, 8))
    noisy[:6, :6] = graph
    noisy[6, 6] = noisy[7, 7] = 12.0  # less than three standard deviations of the noise
    noisy[7, 0] = noisy[0, 7] = 5.0
    tree = merge_tree(noisy, 5.0, places)
    assert tree.most == 6
    assert same_partition(tree.groups[2], np.array([*groups, 1, 1]))


def test_as_many_as_are_asked_for_stand_for_records_even_in_noise():
    rng = np.random.default_rng(1)
    tree = merge_tree(np.diag(rng.uniform(-5, 5, 6)), 100.0, rng.normal(size=(6, 2)), least=4)
    assert tree.most == 4
    assert {*tree.groups[4].tolist()} == {0, 1, 2, 3}


def test_noise_in_a_link_falls_with_the_entries_that_it_is_the_sum_of():
    """The stated error is that of the sum of entries over the sizes, to 10 % in 4,000 draws."""
    graph, _ = chains((2, 2), count=1e6, link=1e5)
    rng, noise = np.random.default_rng(2), 500.0
    found = []
    for _ in range(4000):
        upper = np.triu(rng.normal(size=(4, 4)), 1) * noise / math.sqrt(2)
        diagonal = np.diag(rng.normal(size=4)) * noise
        tree = merge_tree(graph + upper + upper.T + diagonal, noise, np.zeros((4, 1)))
        found.append(tree.whole.values[1])
    assert np.std(found) == pytest.approx(tree.whole.errors[1], rel=0.1)
    assert tree.whole.errors[1] == pytest.approx(2 * noise / math.sqrt(2) / 2e6, rel=0.01)


@pytest.mark.parametrize("noise", [2.0, 10.0, 25.0])
def test_noise_makes_no_clear_step_in_one_cloud(noise):
    """Of 20 clouds of equal links 1 should pass, and more than 4 do once in 400 tests."""
    rng, n, clear = np.random.default_rng(6), 20, 0
    for _ in range(20):
        places = rng.normal(size=(n, 3))
        upper = np.triu(rng.normal(size=(n, n)), 1) * noise / math.sqrt(2)
        graph = 20 * neighbors_in(places) + np.diag(200 + noise * rng.normal(size=n))
        graph += upper + upper.T
        height = chosen_step(merge_tree(graph, noise, places, least=2), 2, 15)[1]
        clear += height >= max(step_of_one_cloud(graph, noise, 3, 2, 15), 0.1)
    assert clear <= 4


def test_a_step_the_wrong_way_is_no_choice():
    falling = {k: 0.4 - 0.03 * k for k in range(1, 12)}
    _, height = best_step(falling, 2, 10)
    assert height <= 0
    assert best_step({1: 0.0}, 2, 10) == (2, -math.inf)
