"""Scores against naive oracles: all permutations for the accuracy, a plain loop for the cost."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from dpfedc.errors import InvalidInput
from dpfedc.kernels import metrics
from dpfedc.kernels.metrics import cluster_sizes, clustering_accuracy, kmeans_cost, scores

label_pairs = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=25
).map(lambda pairs: tuple(np.array(side) for side in zip(*pairs, strict=True)))


def accuracy_by_permutations(true, pred):
    """Try every one-to-one map of clusters to labels, with dummies so that both sides match."""
    labels, clusters = sorted(set(true)), sorted(set(pred))
    size = max(len(labels), len(clusters))
    padded = labels + [None] * (size - len(labels))
    hits = []
    for order in permutations(padded):
        matched = dict(zip(clusters, order, strict=False))
        hits.append(sum(matched[p] == t for t, p in zip(true, pred, strict=True)))
    return max(hits) / len(true)


def cost_by_loop(X, labels, centers):
    gaps = [(np.asarray(x, float) - centers[c]) ** 2 for x, c in zip(X, labels, strict=True)]
    return sum(gap.sum() for gap in gaps) / len(X)


@given(label_pairs)
@settings(max_examples=150, deadline=None)
def test_accuracy_equals_the_best_permutation(pair):
    true, pred = pair
    expected = accuracy_by_permutations(true.tolist(), pred.tolist())
    assert clustering_accuracy(true, pred) == pytest.approx(expected, abs=1e-12)
    # Matching is symmetric, also when one side has more groups than the other.
    assert clustering_accuracy(pred, true) == pytest.approx(expected, abs=1e-12)


@given(label_pairs, st.permutations(range(5)))
@settings(max_examples=60, deadline=None)
def test_scores_do_not_depend_on_the_names_of_the_clusters(pair, names):
    true, pred = pair
    X = np.random.default_rng(len(true)).normal(size=(len(true), 3))
    renamed = np.array(names)[pred] * 7 - 3
    before, after = scores(X, pred, true), scores(X, renamed, true)
    assert before.keys() == after.keys() == {"accuracy", "nmi", "ari", "cost"}
    for name, value in before.items():
        assert after[name] == pytest.approx(value, abs=1e-9), name
    words = np.array(["elm", "ash", "oak", "fir", "yew"])
    assert clustering_accuracy(words[true], pred) == clustering_accuracy(true, pred)


@pytest.mark.parametrize(
    ("true", "pred", "expected"),
    [
        ([0, 0, 1, 1], [0, 1, 2, 3], 0.5),  # more clusters than labels
        ([0, 1, 2, 3], [5, 5, 5, 5], 0.25),  # fewer
        ([0, 0, 1, 1, 2, 2], [1, 1, 2, 2, 0, 0], 1.0),
        # The greedy choice (cluster 0 takes label 0) would give 3 + 0 of 8.
        ([0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1], 5 / 8),
    ],
)
def test_accuracy_of_small_examples(true, pred, expected):
    assert clustering_accuracy(true, pred) == expected


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 30), st.integers(1, 5), st.integers(1, 6)),
)
@settings(max_examples=60, deadline=None)
def test_cost_equals_a_plain_loop(seed, shape):
    n, m, k = shape
    rng = np.random.default_rng(seed)
    X, labels, centers = rng.normal(size=(n, m)), rng.integers(k, size=n), rng.normal(size=(k, m))
    assert kmeans_cost(X, labels, centers) == pytest.approx(cost_by_loop(X, labels, centers))
    means = {c: X[labels == c].mean(axis=0) for c in set(labels.tolist())}
    least = kmeans_cost(X, labels)
    assert least == pytest.approx(cost_by_loop(X, labels, means), abs=1e-12)
    assert least <= kmeans_cost(X, labels, centers) + 1e-12


def test_cost_is_the_same_in_any_chunks_and_leaves_its_input_alone(monkeypatch):
    rng = np.random.default_rng(3)
    X = rng.integers(0, 256, size=(50, 4), dtype=np.uint8)  # differences would wrap around
    labels, before = rng.integers(3, size=50), X.copy()
    whole = kmeans_cost(X, labels)
    means = {c: X[labels == c].mean(axis=0) for c in range(3)}
    assert whole == pytest.approx(cost_by_loop(X, labels, means))
    for n_rows in (1, 7):
        monkeypatch.setattr(metrics, "_CHUNK_BYTES", 8 * 4 * n_rows)
        assert kmeans_cost(X, labels) == pytest.approx(whole)
    floats = X.astype(np.float64)
    kmeans_cost(floats, labels, floats[:3])
    np.testing.assert_array_equal(floats, before)
    np.testing.assert_array_equal(X, before)


def test_cost_keeps_its_precision_far_from_the_origin():
    # |x|^2 - 2 x c + |c|^2 would lose every digit here.
    X = np.array([[1e8 - 1], [1e8 + 1]])
    assert kmeans_cost(X, [0, 0]) == 1.0


def test_cost_accepts_names_as_labels_only_without_centers():
    X = np.array([[0.0], [2.0], [5.0]])
    assert kmeans_cost(X, ["a", "a", "b"]) == pytest.approx(2 / 3)
    with pytest.raises(InvalidInput, match="labels must hold integers, got dtype <U1"):
        kmeans_cost(X, ["a", "a", "b"], [[0.0], [1.0]])


def test_sizes_count_records_per_site_and_cluster():
    rng = np.random.default_rng(5)
    labels, sites = rng.integers(4, size=60), rng.choice([0, 2, 3], size=60)
    sizes = cluster_sizes(labels, sites, 5, n_sites=6)
    expected = [[np.sum((sites == i) & (labels == c)) for c in range(5)] for i in range(6)]
    np.testing.assert_array_equal(sizes, expected)
    np.testing.assert_array_equal(cluster_sizes(labels, sites, 5), np.array(expected)[:4])
    small = cluster_sizes(labels.astype(np.uint8), sites.astype(np.uint8), 5)
    np.testing.assert_array_equal(small, np.array(expected)[:4])


def test_scores_agree_with_scikit_learn_and_need_no_labels():
    rng = np.random.default_rng(7)
    X, labels, y = rng.normal(size=(40, 2)), rng.integers(3, size=40), rng.integers(4, size=40)
    assert scores(X, labels) == {"cost": kmeans_cost(X, labels)}
    found = scores(X, labels, y)
    assert found["nmi"] == normalized_mutual_info_score(y, labels)
    assert found["ari"] == adjusted_rand_score(y, labels)
    assert found["accuracy"] == clustering_accuracy(y, labels)


X3 = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clustering_accuracy([0, 1], [0]), "must have the same length, got 2 and 1"),
        (lambda: clustering_accuracy([], []), r"labels_true must be a non-empty vector.*\(0,\)"),
        (lambda: clustering_accuracy([0], [[0]]), r"labels_pred must be .*got shape \(1, 1\)"),
        (lambda: kmeans_cost(X3, [0, 1]), r"one entry per record of X \(3\), got 2"),
        (lambda: kmeans_cost(X3[0], [0, 1]), r"X must be a non-empty matrix, got shape \(2,\)"),
        (lambda: kmeans_cost(X3, [0, 0, 2], X3[:2]), "between 0 and 1, got values from 0 to 2"),
        (lambda: kmeans_cost(X3, [0, 0, -1], X3), "between 0 and 2, got values from -1 to 0"),
        (lambda: kmeans_cost(X3, [0, 0, 0], [[1.0]]), r"as many columns as X \(2\), got 1"),
        (lambda: kmeans_cost(X3 + np.nan, [0, 0, 0]), "must be finite, got a total cost of nan"),
        (lambda: kmeans_cost([["a"]], [0]), "X must hold real numbers, got dtype <U1"),
        (lambda: cluster_sizes([0], [0, 1], 2), "same length, got 1 and 2"),
        (lambda: cluster_sizes([2], [0], 2), "labels must be between 0 and 1, got .*2 to 2"),
        (lambda: cluster_sizes([0], [-1], 2), "sites must be >= 0, got values from -1 to -1"),
        (lambda: cluster_sizes([0], [3], 2, n_sites=3), "sites must be between 0 and 2"),
        (lambda: cluster_sizes([0], [0], 0), "n_clusters must be >= 1, got 0"),
        (
            lambda: scores(X3, [0, 1, 0], [0, 1]),
            "y and labels must have the same length, got 2 and 3",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
