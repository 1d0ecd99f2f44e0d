"""What the fits of a process have spent on the same records: recognised, added up, told once."""

import gc
import pickle
import warnings
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dp_accounting as dp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ShuffleSplit

from dpfedc import DPFedC, DPLloyd
from dpfedc.errors import BudgetWarning
from dpfedc.estimators import spending
from dpfedc.estimators.spending import MOST_KEYS, Tally, cost_of, record_keys, spent_most
from dpfedc.privacy.accountant import dp_event, gaussian_epsilon, plan_epsilon, pld_epsilon
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan

pytestmark = pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
SETTINGS = {"n_clusters": 2, "norm_bound": 20.0, "n_rounds": 2, "random_state": 0}


@pytest.fixture(autouse=True)
def tally(monkeypatch):
    """Count from nothing: other tests have clustered in this process."""
    monkeypatch.setattr(spending, "_TALLY", Tally())
    return spending._TALLY


@pytest.fixture
def X(rng):
    return rng.normal(size=(60, 3))


def lloyd(**more):
    return DPLloyd(**{**SETTINGS, **more})


def told(work):
    """Return the budget warnings of some work."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(w.message) for w in caught if w.category is BudgetWarning]


def plan_of(*stages, delta=1e-6, q=1.0, **more):
    releases = tuple(PlannedRelease(f"stage {i}", 9, 4, n, z, q) for i, (n, z) in enumerate(stages))
    return PrivacyPlan(releases, delta, more.pop("trust", "local"), 4, **more)


# What is spent


def test_the_sum_is_that_of_all_releases_composed():
    plans = [plan_of((1, 8.0), (3, 4.0)), plan_of((2, 5.0), delta=3e-6), plan_of((4, 9.0))]
    sums = sum(map(cost_of, plans))
    spent = spent_most(sums[None], "record")
    naive = sum(1 / r.noise_multiplier**2 for p in plans for r in p.releases
                for _ in range(r.rounds_per_site))  # fmt: skip
    assert spent.epsilon == pytest.approx(gaussian_epsilon(naive**0.5, 5e-6))
    assert (spent.n_fits, spent.unit) == (3, "record")
    assert spent.delta == pytest.approx(5e-6)
    event = dp.ComposedDpEvent([dp_event(p.releases) for p in plans])
    assert spent.epsilon == pytest.approx(pld_epsilon(event, 5e-6), rel=1e-3)
    assert spent.epsilon < sum(map(plan_epsilon, plans))


def test_where_records_are_sampled_epsilons_are_added():
    plan = plan_of((3, 2.0), q=0.01)
    spent = spent_most(2 * cost_of(plan)[None], "record")
    assert spent.epsilon == pytest.approx(2 * plan_epsilon(plan))
    assert spent.epsilon < gaussian_epsilon((2 * 3 / 4) ** 0.5, 2e-6)


@pytest.mark.parametrize(("trust", "times"), [("local", 3), ("trusted-server", 9)])
def test_persons_at_several_sites_are_in_the_sum(trust, times):
    plan = plan_of((2, 9.0), trust=trust, unit="person", sites_per_person=3)
    spent = spent_most(2 * cost_of(plan)[None], "person")
    assert spent.epsilon == pytest.approx(gaussian_epsilon((2 * times * 2 / 81) ** 0.5, 2e-6))


def test_a_spare_delta_is_not_used_twice():
    plan = plan_of((3, 4.0), delta=1e-6, spare_delta=4e-7)
    spent = spent_most(2 * cost_of(plan)[None], "record")
    assert spent.epsilon == pytest.approx(gaussian_epsilon((6 / 16) ** 0.5, 1.2e-6))
    assert spent.delta == pytest.approx(2e-6)


# Whose it is


def test_a_key_is_that_of_the_values_wherever_the_record_stands(rng):
    X = rng.integers(-3, 4, size=(700, 200)).astype(np.float64)
    keys = record_keys(X, None, "record")
    assert len(keys) == 700
    order = rng.permutation(700)
    np.testing.assert_array_equal(record_keys(X[order], None, "record"), keys)
    few = record_keys(X[order[:13]], None, "record")
    assert len(few) == 13
    assert np.isin(few, keys).all()
    np.testing.assert_array_equal(record_keys(np.asfortranarray(X), None, "record"), keys)
    np.testing.assert_array_equal(record_keys(X.astype(np.float32), None, "record"), keys)
    np.testing.assert_array_equal(record_keys(np.where(X == 0, -0.0, X), None, "record"), keys)
    np.testing.assert_array_equal(record_keys(np.repeat(X, 2, axis=0), None, "record"), keys)


@pytest.mark.parametrize("change", ["value", "columns", "unit", "fewer"])
def test_other_records_have_other_keys(rng, change):
    X = (rng.random((500, 4)) < 0.5) @ np.diag([1.0, 2.0, 4.0, 8.0])
    X = np.column_stack([X, np.arange(500)])
    unit, other = "record", X.copy()
    if change == "value":
        other[:, 2] += 1e-12
    elif change == "columns":
        other = other[:, [1, 0, 2, 3, 4]] + [0, 0, 0, 0, 1000]
    elif change == "fewer":
        other = other[:, 1:]
    else:
        unit = "person"
    found = np.isin(record_keys(other, None, unit), record_keys(X, None, "record"))
    assert not found.any()


def test_gaps_are_alike_and_nulls_have_no_key():
    gaps = np.array([0x7FF8000000000000, 0xFFF8000000000001], dtype=np.uint64).view(np.float64)
    X = np.array([[1.0, gaps[0]], [1.0, gaps[1]], [0.0, 0.0]])
    assert len(record_keys(X, None, "record")) == 2
    assert len(record_keys(X, np.array([True, True, False]), "record")) == 1


def test_of_many_records_the_same_ones_are_kept_in_every_part(rng):
    X = rng.normal(size=(3 * 2**16 + 5, 1))
    keys = record_keys(X, None, "record")
    assert len(keys) == MOST_KEYS
    naive = np.unique(
        np.concatenate([record_keys(x, None, "record") for x in np.array_split(X, 30)])
    )
    np.testing.assert_array_equal(keys, naive[:MOST_KEYS])
    part = record_keys(X[::2], None, "record")
    assert np.isin(part, keys).sum() == pytest.approx(MOST_KEYS / 2, rel=0.1)


def test_sums_are_those_of_a_naive_count_per_row(tally, rng):
    X, naive = rng.normal(size=(200, 2)), Counter()
    for i in range(12):
        rows = rng.random(200) < 0.3
        sums = tally.add(record_keys(X[rows], None, "record"), np.array([1, 1, i, 0, 0.0]))
        naive.update(np.flatnonzero(rows).tolist())
        assert sorted(sums[:, 0]) == sorted(naive[j] for j in np.flatnonzero(rows).tolist())


# What a fit says


def test_a_second_fit_is_told_before_it_and_once(X):
    def again():
        for _ in range(3):
            lloyd().fit(X)

    first = lloyd().fit(X)
    assert first.spent_.n_fits == 1
    assert first.spent_.epsilon == pytest.approx(first.privacy_.epsilon, rel=1e-3)
    (message,) = told(again)
    assert message.startswith("this is fit 2 on the same records in this process: in a deployment ")
    assert "would cost epsilon 1.41, delta 2e-05 together" in message
    fifth = lloyd().fit(X)
    assert (fifth.spent_.n_fits, fifth.spent_.delta) == (5, pytest.approx(5e-5))
    assert 1.41 < fifth.spent_.epsilon < 5 * first.spent_.epsilon


def test_the_warning_points_at_the_fit(X):
    lloyd().fit(X)
    with pytest.warns(BudgetWarning) as caught:
        lloyd().fit(X)
    assert caught[0].filename == __file__


def test_methods_and_settings_are_added_up_together(X):
    first = lloyd().fit(X)
    both = DPFedC(2, epsilon=3.0, delta=1e-6, norm_bound=20.0, random_state=0).fit(X)
    assert (both.spent_.n_fits, both.spent_.delta) == (2, pytest.approx(1.1e-5))
    naive = sum(cost_of(m.plan_.privacy)[1] for m in (first, both))
    assert both.spent_.epsilon == pytest.approx(gaussian_epsilon(naive**0.5, 1.1e-5))


def test_other_data_are_counted_apart_and_warned_of_apart(X, rng):
    other = rng.normal(size=X.shape)
    assert not told(lambda: (lloyd().fit(X), lloyd().fit(other)))
    assert len(told(lambda: (lloyd().fit(X), lloyd().fit(other), lloyd().fit(X)))) == 2
    assert lloyd().fit(other).spent_.n_fits == 3


def test_persons_and_records_are_counted_apart(X):
    lloyd().fit(X)
    assert not told(lambda: lloyd().fit(X, persons=np.arange(60)))
    again = lloyd().fit(X, persons=np.arange(60), sites=np.arange(60) % 2)
    assert (again.spent_.n_fits, again.spent_.unit) == (2, "person")


def test_a_grid_search_is_told_once_and_its_best_model_has_the_sum(X):
    search = GridSearchCV(lloyd(), {"n_clusters": [2, 3]}, cv=3)
    (message,) = told(lambda: search.fit(X))
    assert message.startswith("this is fit 2 ")
    # Two settings; a record is in two of three folds; and all are fitted at the end.
    assert search.best_estimator_.spent_.n_fits == 2 * 2 + 1


def test_random_folds_count_for_the_record_used_most(X):
    cv = ShuffleSplit(n_splits=6, train_size=0.3, random_state=0)
    search = GridSearchCV(lloyd(), {"epsilon": [1.0, 2.0]}, cv=cv, refit=False).fit(X)
    assert search.n_splits_ == 6
    naive = Counter(i for train, _ in cv.split(X) for i in train.tolist())
    assert lloyd().fit(X).spent_.n_fits == 2 * max(naive.values()) + 1


def test_fits_without_a_proof_are_not_counted(X):
    unproved = {"variant": "published", "gradient_bound": 1.0, "n_rounds": 2}
    for model in (DPFedC(2, epsilon=None), DPFedC(2, **unproved), DPFedC(2, epsilon=None)):
        assert model.fit(X).spent_ is None
    assert not told(lambda: lloyd().fit(X))


def test_a_fit_that_fails_counts_from_its_first_release_on(X, tally):
    def fails(*_):
        raise RuntimeError("the user's own")

    for times in (1, 2):
        with pytest.raises(RuntimeError, match="own"):
            lloyd(on_round=fails).fit(X)
        assert tally._sums[:, 0].tolist() == [times] * 60
    with pytest.raises(ValueError, match="n_clusters"):
        lloyd(n_clusters=0).fit(X)
    assert lloyd().fit(X).spent_.n_fits == 3


def test_a_warning_made_an_error_stops_every_further_fit_before_its_release(X, tally):
    lloyd().fit(X)
    warnings.simplefilter("error", BudgetWarning)
    for _ in range(2):
        with pytest.raises(BudgetWarning):
            lloyd().fit(X)
    assert tally._sums[:, 0].max() == 1


def test_threads_lose_no_fit(X):
    found = []
    with ThreadPoolExecutor(4) as pool:

        def fit(_):
            found.append(lloyd().fit(X).spent_.n_fits)

        assert len(told(lambda: list(pool.map(fit, range(12))))) == 1
    assert sorted(found) == list(range(1, 13))


def test_nothing_keeps_the_records_and_models_can_be_sent(X):
    records = np.array(X)
    gone, model = weakref.ref(records), lloyd().fit(records)
    sent = pickle.loads(pickle.dumps(model))
    assert sent.spent_ == model.spent_
    assert not hasattr(clone(model), "spent_")
    del records
    gc.collect()
    assert gone() is None


def test_who_has_lost_most_counts_also_where_records_are_sampled():
    """Much noise in every record is less than little noise in one that is seldom there."""
    often, seldom = plan_of((9, 6.0)), plan_of((9, 1.0), q=0.02)
    sums = np.stack([cost_of(often), cost_of(seldom)])
    both = spent_most(sums, "record")
    assert both.epsilon == max(spent_most(row[None], "record").epsilon for row in sums)
