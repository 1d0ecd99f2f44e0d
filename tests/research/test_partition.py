"""Deals of records to sites: every record once, no site empty, and what each deal promises."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput
from dpfedc.kernels.segments import by_column
from dpfedc.research.partition import dirichlet, iid, kmeans_cells, label_shards

seeds = st.integers(0, 2**32)
# Few and many records of a label, side by side: scarce and dominant labels are the hard cases.
label_lists = st.lists(st.integers(1, 5) | st.integers(20, 60), min_size=1, max_size=7).map(
    lambda sizes: np.repeat(np.arange(len(sizes)), sizes).tolist()
)


def generator(seed):
    return np.random.default_rng(seed)


def assert_deal(ids, n_records, n_sites):
    """Every record has one site, every site has a record."""
    assert ids.dtype == np.int64
    assert ids.shape == (n_records,)
    assert set(ids.tolist()) == set(range(n_sites))


def labels_at(ids, y):
    """Return the set of labels of every site, by a plain loop."""
    held = {}
    for site, label in zip(ids.tolist(), np.asarray(y).tolist(), strict=True):
        held.setdefault(site, set()).add(label)
    return held


@given(n_records=st.integers(1, 200), n_sites=st.integers(1, 200), seed=seeds)
def test_iid_is_balanced(n_records, n_sites, seed):
    assume(n_sites <= n_records)
    ids = iid(n_records, n_sites, rng=generator(seed))
    assert_deal(ids, n_records, n_sites)
    sizes = np.bincount(ids)
    assert sizes.max() - sizes.min() <= 1


def test_iid_is_uniform():
    # 4,000 deals of 4 records to 2 sites: each of the 6 deals is expected 667 times, with a
    # standard deviation of 23.6; 5 deviations are a false alarm once in 290,000 tries.
    rng = generator(0)
    deals = [tuple(iid(4, 2, rng=rng).tolist()) for _ in range(4000)]
    counts = {deal: deals.count(deal) for deal in set(deals)}
    assert len(counts) == 6
    assert max(abs(count - 4000 / 6) for count in counts.values()) < 5 * 23.6


@settings(deadline=None)
@given(y=label_lists, n_sites=st.integers(1, 25), per_site=st.integers(1, 7), seed=seeds)
def test_label_shards_keep_the_label_limit(y, n_sites, per_site, seed):
    sizes = np.unique(y, return_counts=True)[1]
    possible = n_sites <= len(y) and per_site <= len(sizes) <= n_sites * per_site
    if not possible:
        with pytest.raises(InvalidInput, match=r"must be <=|must be >="):
            label_shards(y, n_sites, per_site, rng=generator(seed))
        return
    ids = label_shards(y, n_sites, per_site, rng=generator(seed))
    assert_deal(ids, len(y), n_sites)
    held = [len(labels) for labels in labels_at(ids, y).values()]
    assert max(held) <= per_site
    if np.minimum(sizes, n_sites).sum() >= n_sites * per_site:
        assert min(held) == per_site


@settings(deadline=None, max_examples=30)
@given(n_sites=st.integers(5, 60), per_site=st.integers(1, 4), seed=seeds)
def test_label_shards_are_nearly_equal_when_labels_are(n_sites, per_site, seed):
    y = np.repeat(np.arange(5), 300)
    ids = label_shards(y, n_sites, per_site, rng=generator(seed))
    assert {len(labels) for labels in labels_at(ids, y).values()} == {per_site}
    # A label has floor or ceil of n_sites * per_site / 5 shards, so shards differ by one shard.
    n_shards = n_sites * per_site // 5
    least, most = 300 // (n_shards + 1), -(-300 // n_shards)
    sizes = np.bincount(ids)
    assert sizes.min() >= least * per_site
    assert sizes.max() <= most * per_site


def test_label_shards_as_in_the_paper():
    y = np.repeat(np.arange(10), 100)
    ids = label_shards(y, 100, rng=generator(0))
    held = labels_at(ids, y)
    assert {len(labels) for labels in held.values()} == {2}
    # The pairs are mixed: 45 are possible, and 100 sites must not all share a handful.
    pairs = {tuple(sorted(labels)) for labels in held.values()}
    assert len(pairs) > 25


def test_label_shards_spread_a_dominant_label_over_all_sites():
    y = np.repeat([0, 1], [50, 3])
    ids = label_shards(y, 3, 2, rng=generator(0))
    assert sorted(np.bincount(ids[y == 0]).tolist()) == [16, 17, 17]
    assert np.bincount(ids[y == 1]).tolist() == [1, 1, 1]


def test_label_shards_take_any_kind_of_label():
    ids = label_shards(["b", "a", "b", "a"], 2, 1, rng=generator(0))
    assert ids[0] == ids[2] != ids[1] == ids[3]


def test_label_shards_deal_the_records_of_a_label_at_random():
    y = np.zeros(8, dtype=int)
    deals = {tuple(label_shards(y, 2, 1, rng=generator(seed)).tolist()) for seed in range(20)}
    assert len(deals) > 10


@settings(deadline=None, max_examples=40)
@given(
    points=st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=30),
    n_sites=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_kmeans_cells_fill_every_site_or_say_why(points, n_sites, seed):
    X = np.asarray(points, dtype=np.float64)
    if n_sites > len(set(points)):
        with pytest.raises(InvalidInput, match=r"n_sites must be <=|too few distinct records"):
            kmeans_cells(X, n_sites, rng=generator(seed))
        return
    ids = kmeans_cells(X, n_sites, rng=generator(seed))
    assert_deal(ids, len(X), n_sites)
    for a, b in itertools.combinations(range(len(X)), 2):
        assert points[a] != points[b] or ids[a] == ids[b]


def test_kmeans_cells_are_the_clusters():
    centers = np.asarray([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    truth = np.tile([0, 1, 2], 20)
    X = (centers[truth] + generator(1).normal(size=(60, 2))).astype(np.float32)
    before = X.copy()
    # One random start may fall into a poor optimum; one of five seeds must not.
    found = [kmeans_cells(X, 3, rng=generator(seed)) for seed in range(5)]
    same = truth[:, None] == truth
    assert any(np.array_equal(ids[:, None] == ids, same) for ids in found)
    assert np.array_equal(X, before)


@settings(deadline=None)
@given(y=label_lists, n_sites=st.integers(1, 60), log_alpha=st.floats(-6, 6), seed=seeds)
def test_dirichlet_leaves_no_site_empty(y, n_sites, log_alpha, seed):
    assume(n_sites <= len(y))
    ids = dirichlet(y, n_sites, 10.0**log_alpha, rng=generator(seed))
    assert_deal(ids, len(y), n_sites)


@pytest.mark.parametrize("alpha", [1e9, 1e308, 10**9])
def test_dirichlet_with_large_alpha_spreads_each_label_evenly(alpha):
    y = np.repeat([0, 1, 2], [40, 80, 200])
    ids = dirichlet(y, 4, alpha, rng=generator(0))
    for label, size in enumerate([40, 80, 200]):
        assert np.abs(np.bincount(ids[y == label]) - size / 4).max() <= 1


@pytest.mark.parametrize("alpha", [1e-9, 1e-308])
def test_dirichlet_with_small_alpha_gives_each_label_one_site(alpha):
    y = np.repeat([0, 1, 2], 50)
    ids = dirichlet(y, 3, alpha, rng=generator(3))
    # One site per label, but for the single records that were moved to empty sites.
    for label in range(3):
        assert np.bincount(ids[y == label]).max() >= 50 - 2


def test_dirichlet_shares_have_the_right_variance():
    # The share of one of N = 4 sites is Beta(a, 3a): variance 3 / (16 (4a + 1)) = 0.0375 for a = 1.
    # 300 labels of 1,000 records each give 1,200 shares; the estimate's relative standard error is
    # about 4 %, so a factor of 1.5 either way is beyond 7 sigma, and a wrong alpha of 2 or 0.4
    # (variance 0.0208 or 0.0721) fails.
    y = np.repeat(np.arange(300), 1000)
    ids = dirichlet(y, 4, 1.0, rng=generator(0))
    shares = np.zeros((300, 4))
    np.add.at(shares, (y, ids), 1e-3)
    assert 0.0375 / 1.5 < shares.var() < 0.0375 * 1.5


def test_by_column_names_the_sites():
    ids, names = by_column(["rome", "oslo", "rome", "bern"])
    assert names.tolist() == ["bern", "oslo", "rome"]
    assert ids.dtype == np.int64
    assert ids.tolist() == [2, 1, 2, 0]


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=40))
def test_by_column_round_trip(values):
    ids, names = by_column(values)
    assert names[ids].tolist() == values
    assert sorted(set(ids.tolist())) == list(range(len(names)))


Y = np.repeat(np.arange(4), 15)
X = np.random.default_rng(7).normal(size=(60, 3))
DEALS = {
    "iid": lambda rng: iid(60, 5, rng=rng),
    "label_shards": lambda rng: label_shards(Y, 6, 2, rng=rng),
    "kmeans_cells": lambda rng: kmeans_cells(X, 5, rng=rng),
    "dirichlet": lambda rng: dirichlet(Y, 5, 0.5, rng=rng),
}


@pytest.mark.parametrize("name", DEALS)
def test_the_seed_decides_the_deal(name):
    deal = DEALS[name]
    first = deal(generator(1))
    assert np.array_equal(first, deal(generator(1)))
    assert not np.array_equal(first, deal(generator(2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: iid(3, 4, rng=rng), r"n_sites must be <= the number of records \(3\), got 4"),
        (lambda rng: iid(0, 1, rng=rng), "n_records must be >= 1, got 0"),
        (lambda rng: iid(3, 1.5, rng=rng), "n_sites must be a whole number >= 1, got 1.5"),
        (
            lambda rng: label_shards([0, 1, 2], 1, 2, rng=rng),
            r"n_sites \* labels_per_site must be >= the number of labels \(3\), got 1 \* 2",
        ),
        (
            lambda rng: label_shards([0, 1, 1], 2, 3, rng=rng),
            r"labels_per_site must be <= the number of labels \(2\), got 3",
        ),
        (lambda rng: label_shards([], 1, rng=rng), r"y must have one value .* got shape \(0,\)"),
        (lambda rng: label_shards([[1]], 1, rng=rng), r"got shape \(1, 1\)"),
        (lambda rng: label_shards([0, np.nan], 1, 1, rng=rng), "no missing values, got 1, .*row 2"),
        (lambda rng: dirichlet([0, 1], 3, 1.0, rng=rng), r"records \(2\), got 3"),
        (lambda rng: dirichlet([0, 1], 1, 0.0, rng=rng), "alpha must be > 0, got 0"),
        (lambda rng: dirichlet([0, 1], 1, np.inf, rng=rng), "alpha must be .*got inf"),
        (lambda rng: dirichlet([0, 1], 1, "1", rng=rng), "alpha must be .*got '1'"),
        (lambda rng: kmeans_cells([1.0, 2.0], 1, rng=rng), r"records as rows, got shape \(2,\)"),
        (lambda rng: kmeans_cells([["a"]], 1, rng=rng), "numeric array .* dtype <U1"),
        (lambda rng: kmeans_cells([[np.nan], [1]], 1, rng=rng), "must be finite, got 1 values"),
        (lambda rng: kmeans_cells([[1.0]] * 4, 2, rng=rng), "2 non-empty cells .*, got 1"),
        (lambda rng: by_column(["a", None]), "site column must have no missing values, got 1"),
        (lambda rng: by_column(np.asarray(["a", 1], dtype=object)), "values of one kind"),
        (lambda rng: by_column(3), r"got shape \(\)"),
    ],
)
def test_what_cannot_be_dealt_is_refused_with_numbers(call, message):
    with pytest.raises(InvalidInput, match=message):
        call(generator(0))


def test_the_generator_is_required():
    with pytest.raises(TypeError, match="rng"):
        iid(3, 1)
