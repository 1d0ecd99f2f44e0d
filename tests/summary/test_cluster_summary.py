"""What a summary says of clusters, and that noise is not taken for a difference."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpfedc import DPFedC, FederatedKMeans
from dpfedc.errors import InvalidInput
from dpfedc.summary.cluster_summary import MISSING, Certainty
from dpfedc.summary.summarizing import CHANCE
from support.summaries import CENTERS, plain_model, table_model


def columns(cluster):
    return {column.name: column for column in cluster.columns}


def test_a_table_is_summarized_in_its_units():
    summary = table_model(about={"privacy": {"unit": "person"}, "stamps": ["trial"]}).summary()
    young, old = summary.clusters
    assert (summary.unit, summary.sizes, summary.centers) == ("person", "error bars", "error bars")
    assert (young.size, young.size_low, young.size_high, young.share) == (300, 290, 310, 0.75)
    age = columns(old)["age"].values[0]
    assert age.mean == pytest.approx(70)
    assert (age.low, age.high) == pytest.approx((70 - 0.98, 70 + 0.98))
    assert age.overall == pytest.approx(0.75 * 30 + 0.25 * 70)
    assert [v.category for v in columns(old)["smoker"].values] == ["yes", "no"]
    assert [v.category for v in columns(old)["stage"].values] == ["III", "II", "I"]
    smoker = columns(old)["smoker"].values[0]
    assert (smoker.mean, smoker.overall) == pytest.approx((0.7, 0.25))
    assert 'Stamped "trial".' in summary.notes


def test_columns_that_set_a_cluster_apart_come_in_their_order():
    young, old = table_model().summary().clusters
    for cluster in (young, old):
        assert [c.name for c in cluster.apart] == ["smoker", "age"]  # stages are alike
        assert sum(c.apart for c in cluster.columns) == pytest.approx(1)
    # The squared distances are 2 * .6^2 and .8^2, as encoded.
    assert young.apart[0].apart == pytest.approx(0.72 / 1.36)
    assert [v.category for v in young.apart[0].telling] == ["no"]
    assert [v.category for v in old.apart[0].telling] == ["yes"]


def test_the_measure_of_the_clustering_decides_what_sets_apart():
    factor = np.ones(9)
    factor[0] = 3.0
    cluster = table_model(factor=factor).summary().clusters[0]
    assert [c.name for c in cluster.apart] == ["age", "smoker"]


def test_a_difference_within_noise_sets_nothing_apart():
    cluster = table_model(error=0.5).summary().clusters[0]
    assert cluster.apart == ()
    assert cluster.note == "Nothing sets it apart beyond noise."


def test_other_is_shown_only_where_it_is_no_noise():
    centers = CENTERS.copy()
    centers[:, 4] = 0.02, 0.2
    noisy = table_model(centers=centers, error=0.02).summary().clusters
    assert [[v.category for v in columns(c)["smoker"].values] for c in noisy] == [
        ["no", "yes"],
        ["yes", "no", "other"],
    ]


def test_gaps_have_their_share():
    centers = CENTERS.copy()
    centers[1, 1] = 0.4
    young, old = table_model(centers=centers).summary().clusters
    gaps = columns(old)["age"].gaps
    assert (gaps.category, gaps.mean, gaps.stands_out) == (MISSING, 0.4, True)
    assert columns(old)["age"].telling[-1] == gaps
    assert columns(young)["smoker"].gaps is None


def test_a_column_that_was_left_out_is_not_compared():
    factor = np.ones(9)
    factor[:2] = 0.0
    summary = table_model(factor=factor).summary()
    assert summary.left_out == ("age",)
    for cluster in summary.clusters:
        age = columns(cluster)["age"]
        assert (age.compared, age.values[0].low, age.stands_out) == (False, None, False)
        assert "age" not in [c.name for c in cluster.apart]


def test_a_centre_that_is_no_mean_says_so_and_counts_for_nothing():
    errors = np.full(CENTERS.shape, 0.01)
    errors[1] = np.inf
    model = table_model(center_errors=errors, sizes=np.array([300.0, 9.0]))
    young, lost = model.summary().clusters
    assert (lost.is_mean, lost.size, lost.size_low, lost.apart) == (False, 9, 0, ())
    assert lost.note == "It holds too few persons for its centre to mean anything."
    assert columns(lost)["age"].values[0].low is None
    assert columns(young)["age"].values[0].overall == pytest.approx(30)


def test_exact_values_are_called_exact():
    summary = table_model(error=0, size_errors=np.zeros(2)).summary()
    assert (summary.sizes, summary.centers) == (Certainty.EXACT, Certainty.EXACT)
    assert "exact" in summary.notes[0]
    value = columns(summary.clusters[0])["age"].values[0]
    assert value.low == value.mean == value.high
    assert [c.name for c in summary.clusters[0].apart] == ["smoker", "age"]


def test_without_errors_it_says_that_they_are_not_known():
    summary = replace(table_model(), center_errors=None, sizes=None, size_errors=None).summary()
    assert (summary.sizes, summary.centers) == (Certainty.UNKNOWN, Certainty.UNKNOWN)
    assert sum("not known" in note for note in summary.notes) == 2
    cluster = summary.clusters[0]
    assert (cluster.size, cluster.share) == (None, None)
    assert [c.name for c in cluster.apart] == ["smoker", "age"]
    assert cluster.apart[0].stands_out is None


def test_one_cluster_is_apart_from_nothing():
    assert plain_model(np.ones((1, 3)), 0).summary().clusters[0].apart == ()


def test_many_columns_stay_readable():
    centers = np.zeros((3, 784))
    centers[0] = np.arange(784)
    cluster = plain_model(centers, 0.1).summary().clusters[0]
    assert [c.name for c in cluster.most_apart] == [f"x{f}" for f in range(783, 777, -1)]
    assert len(cluster.columns) == 784


@pytest.mark.parametrize("n_columns", [1, 20, 200])
def test_noise_alone_seldom_sets_a_cluster_apart(rng, n_columns):
    """The chance is for a cluster with all its columns, and for unequal sizes and errors, too."""
    sizes = np.array([50.0, 100.0, 850.0])
    errors = np.broadcast_to((20 / sizes)[:, None], (3, n_columns))
    called = np.zeros(3)
    runs = 1000
    for _ in range(runs):
        centers = 5 + errors * rng.standard_normal(errors.shape)
        model = replace(plain_model(centers, 1.0), center_errors=errors, sizes=sizes)
        called += [bool(cluster.apart) for cluster in model.summary().clusters]
    assert (called / runs < CHANCE + 4 * np.sqrt(CHANCE * (1 - CHANCE) / runs)).all()
    assert called.max() / runs > CHANCE / 3  # and not because nothing ever is


def test_a_true_difference_is_found(rng):
    true = np.array([[0.0, 0, 0], [0, 0, 3]])
    for _ in range(50):
        model = plain_model(true + 0.2 * rng.standard_normal(true.shape), 0.2)
        assert all(c.apart[0].name == "x2" for c in model.summary().clusters)


@given(
    centers=arrays(float, (2, 9), elements=st.floats(-1.5, 1.5)),
    error=st.floats(0, 2),
    sizes=arrays(float, 2, elements=st.floats(-1e4, 1e4)),
)
def test_every_value_lies_within_its_interval(centers, error, sizes):
    for cluster in table_model(centers=centers, error=error, sizes=sizes).summary().clusters:
        assert 0 <= cluster.size_low <= cluster.size <= cluster.size_high
        assert 0 <= cluster.share <= 1
        for column in cluster.columns:
            for value in filter(None, (*column.values, column.gaps)):
                assert value.low <= value.mean <= value.high
        apart = [column.apart for column in cluster.apart]
        assert apart == sorted(apart, reverse=True)


@pytest.mark.parametrize("error", [0.005, 0.05])
def test_intervals_of_shares_hold_the_truth(rng, error):
    inside, runs = np.zeros(CENTERS.shape), 400
    for _ in range(runs):
        centers = CENTERS + error * rng.standard_normal(CENTERS.shape)
        model = table_model(centers=centers, error=error)
        true = table_model(error=0).cluster_centers
        low, high = model.center_interval()
        inside += (low <= true) & (true <= high)
    assert (inside / runs).min() > 0.92
    assert (inside[:, :1] / runs).max() < 0.98  # of shares the one at 0 is always held from below


def test_estimators_have_it(blobs):
    X, _, sites = blobs
    exact = FederatedKMeans(3, random_state=0).fit(X, sites=sites).summary()
    assert exact.sizes == "exact"
    assert sum(cluster.size for cluster in exact.clusters) == len(X)
    fitted = DPFedC(3, epsilon=None, random_state=0).fit(X, sites=sites)
    for cluster, center in zip(fitted.summary().clusters, fitted.cluster_centers_, strict=True):
        np.testing.assert_array_equal([c.values[0].mean for c in cluster.columns], center)


def test_names_are_checked_and_kept():
    model = table_model().named(1, " frail ").named(0, "fit")
    assert model.names == {0: "fit", 1: "frail"}
    assert [c.title for c in model.summary().clusters] == ["Cluster 0: fit", "Cluster 1: frail"]
    assert model.named(0, "").names == {1: "frail"}
    for cluster, name in ((2, "x"), (-1, "x"), (0, "a\x1b[1m"), (0, "x" * 61), (0, "=1+1")):
        with pytest.raises(InvalidInput, match="must"):
            model.named(cluster, name)
    for name in ("", "a\nb", "\u202eabc", 7):
        with pytest.raises(InvalidInput, match="must"):
            replace(model, names={0: name})


def test_a_summary_prints_as_lines_for_people():
    text = str(table_model().summary())
    first = text.splitlines()[0]
    assert first.startswith("Cluster 0")
    assert " ± " in text
    assert "(overall " in text
    assert "ColumnSummary" not in text


def test_clusters_that_lie_far_out_are_named():
    """Up to 0.9 of the length that records are clipped to, nothing is said."""
    near = replace(table_model(centers=np.eye(2, 9) * 0.8), scale=1.0, within=0.1)
    assert not near.far_out.any()
    assert "far out" not in str(near.summary())
    far = replace(near, centers=np.diag([0.8, 0.9]) @ np.eye(2, 9))
    assert far.far_out.tolist() == [False, True]
    assert "Cluster 1 lies far out: persons that far are pulled in" in str(far.summary())
    assert not replace(far, scale=None).far_out.any()  # then nothing is clipped
