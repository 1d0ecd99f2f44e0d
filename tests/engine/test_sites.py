"""Records are grouped by site, and what a site remembers goes back to its own rows."""

import numpy as np
import pytest

from dpfedc import DPFedC, stack_sites
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput


def test_sites_are_grouped_in_sorted_order():
    X = np.arange(12.0).reshape(6, 2)
    sites = Sites.of(X, ["b", "a", "b", "c", "a", "b"])
    assert sites.names.tolist() == ["a", "b", "c"]
    assert sites.offsets.tolist() == [0, 2, 5, 6]
    assert sites.row_order.tolist() == [1, 4, 0, 2, 5, 3]
    np.testing.assert_array_equal(sites.X, X[sites.row_order])
    batch = sites.batch(np.array([0, 2]), {"H": sites.X * 2})
    np.testing.assert_array_equal(batch.X, X[[1, 4, 3]])
    np.testing.assert_array_equal(batch.memory["H"], 2 * batch.X)
    assert batch.offsets.tolist() == [0, 2, 3]


def test_what_a_site_remembers_goes_back_to_its_rows():
    X = np.arange(12.0).reshape(6, 2)
    sites = Sites.of(X, [0, 0, 1, 1, 1, 2])
    first = X * 10
    memory = {"H": first}
    batch = sites.batch(np.array([0, 2]), memory)
    batch.memory["H"] = batch.memory["H"] + 1
    sites.remember(batch, memory)
    expected = X * 10
    expected[[0, 1, 5]] += 1
    np.testing.assert_array_equal(memory["H"], expected)
    np.testing.assert_array_equal(first, X * 10)  # the caller's array is left alone


def test_sorted_rows_are_not_copied():
    X = np.ones((6, 2))
    assert Sites.of(X).X is X
    assert Sites.of(X, [0, 0, 1, 1, 1, 2]).X is X


@pytest.mark.parametrize("sites", [[0, 1], [[0, 1, 2]], "abc", 5])
def test_mismatched_site_ids_are_refused(sites):
    with pytest.raises(InvalidInput, match=r"one id per record: expected shape \(4,\), got"):
        Sites.of(np.ones((4, 2)), sites)


@pytest.mark.filterwarnings("ignore:cluster.* too few records:dpfedc.errors.UtilityWarning")
def test_stacked_sites_can_be_fitted(blobs):
    X, _, sites = blobs
    stacked, ids = stack_sites([X[sites == i] for i in range(10)])
    settings = {"epsilon": 8.0, "norm_bound": 15.0, "random_state": 0}
    expected = DPFedC(n_clusters=3, **settings).fit(X, sites=sites)
    model = DPFedC(n_clusters=3, **settings).fit(stacked, sites=ids)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
