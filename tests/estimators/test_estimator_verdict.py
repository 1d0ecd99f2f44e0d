"""The verdict of a fitted estimator: found when asked for, once, and by nothing that is secret."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dpfedc import DPFedC, DPLloyd
from dpfedc.errors import NotFound, UtilityWarning
from dpfedc.research.rivals.k_fed import KFed
from dpfedc.verdict import verdict as module

pytestmark = pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
SETTINGS = {"n_clusters": 3, "norm_bound": 15.0, "n_rounds": 3, "random_state": 0}


@pytest.fixture
def judged(monkeypatch):
    """Return the plans that were judged, by the real verdict or in its place."""
    plans, real = [], module.reached_verdict

    def judge(*args):
        plans.append(args)
        return real(*args)

    monkeypatch.setattr(module, "reached_verdict", judge)
    return plans


def test_it_is_found_when_asked_for_and_once(blobs, judged):
    X, _, sites = blobs
    model = DPLloyd(**SETTINGS, epsilon=2.0).fit(X, sites=sites)
    assert judged == []
    verdict = model.verdict_
    assert verdict.word in ("usable", "rough", "useless")
    assert model.verdict_ is verdict
    (args,) = judged
    assert args[3].n_records == 150
    assert not any(isinstance(value, np.ndarray) and len(value) == 150 for value in args)
    again = pickle.loads(pickle.dumps(model))
    assert again.verdict_ == verdict
    assert len(judged) == 1  # it went along
    model.fit(X, sites=sites)
    assert model.verdict_ == verdict  # of the same plan and the same noise
    assert len(judged) == 2


def test_it_can_be_asked_of_a_model_that_was_sent(blobs):
    X, _, sites = blobs
    model = DPLloyd(**SETTINGS, epsilon=2.0).fit(X, sites=sites)
    assert pickle.loads(pickle.dumps(model)).verdict_ == model.verdict_


def test_errors_of_centers_are_filled_in_where_only_lengths_were_released(blobs):
    X, _, sites = blobs
    model = DPFedC(**SETTINGS, epsilon=None, refine_rounds=0).fit(X, sites=sites)
    lengths = DPFedC(**SETTINGS, epsilon=30.0, refine_rounds=0).fit(X, sites=sites)
    assert lengths.model_.center_errors is None
    centers = lengths.cluster_centers_.copy()
    assert lengths.verdict_.again is not None
    assert lengths.model_.center_errors.shape == (3, 2)
    np.testing.assert_array_equal(lengths.model_.cluster_centers, centers)
    assert model.verdict_.score == 1.0


def test_what_was_warned_of_is_in_the_verdict(blobs):
    X, _, sites = blobs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DPLloyd(**SETTINGS, epsilon=0.5).fit(X, sites=sites)
    (doubt,) = [str(w.message) for w in caught if "too few records" in str(w.message)]
    assert all(w.category is UtilityWarning for w in caught)
    assert model.history_.results["doubts"] == [doubt]
    said = model.verdict_.sentences[-1]
    assert said.lower() == f"{doubt}.".lower()
    assert model.verdict_.word != "usable"


@pytest.mark.parametrize(
    "estimator",
    [
        DPFedC(3, variant="published", epsilon=None, n_rounds=2, random_state=0),
        KFed(3, random_state=0),
    ],
)
def test_methods_without_a_proof_have_none(blobs, estimator):
    X, _, sites = blobs
    model = clone(estimator).fit(abs(X), sites=sites)
    with pytest.raises(AttributeError, match="verdict_ is known of proved methods only"):
        _ = model.verdict_
    assert not hasattr(model, "verdict_")


def test_there_is_none_before_a_fit():
    with pytest.raises(NotFittedError):
        _ = DPFedC().verdict_
    assert not hasattr(DPFedC(), "verdict_")


# --- what cannot be found ----------------------------------------------------------------------


def few(n=195):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 2)) + 9.0 * (np.arange(n) % 3)[:, None], np.arange(n) % 3


@pytest.mark.parametrize("estimator", [DPFedC, DPLloyd])
def test_195_records_at_epsilon_1_are_refused_before_anything_is_released(estimator):
    X, sites = few()
    heard = []
    model = estimator(3, epsilon=1.0, on_round=lambda *news: heard.append(news))
    with pytest.raises(NotFound, match="cannot be found among 195 records"):
        model.fit(X, sites=sites)
    assert heard == []
    assert not hasattr(model, "spent_")


def test_a_bound_that_was_not_found_in_the_run_ends_it():
    """The plan has hope, but these records are of all lengths."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2)) * 2.0 ** rng.uniform(-30, 30, size=(900, 1))
    heard = []
    model = DPFedC(3, epsilon=2.0, random_state=0, on_round=lambda *news: heard.append(news))
    with pytest.raises(NotFound, match=r"was not found: no bin .* Declare the range"):
        model.fit(X)
    assert heard == []  # the round that failed is the first
    assert not hasattr(model, "cluster_centers_")


SCHEMA = {"column": [
    {"name": "sex", "kind": "category", "values": ["F", "M"]},
    {"name": "age", "kind": "number", "range": [0, 100]},
    {"name": "pulse", "kind": "number", "range": "auto"},
    {"name": "lab", "kind": "number", "range": "auto"},
]}  # fmt: skip


def test_columns_whose_ranges_were_not_found_are_named():
    rng = np.random.default_rng(0)
    n = 3000
    frame = pd.DataFrame({
        "sex": rng.choice(["F", "M"], size=n),
        "age": rng.uniform(0, 100, size=n),
        "pulse": rng.normal(70, 2, size=n),
        "lab": 2.0 ** rng.uniform(-9, 29, size=n),
    })  # fmt: skip
    with pytest.raises(NotFound) as lost:
        DPFedC(2, epsilon=1.5, random_state=0).fit(frame, schema=SCHEMA)
    assert str(lost.value).startswith("lab: a range was not found")
    with pytest.raises(NotFound, match="the ranges of 2 columns cannot be found among 50 records"):
        DPFedC(2, epsilon=1.0).fit(frame[:50], schema=SCHEMA)
