"""The scikit-learn face: its contract, its attributes, and what it makes of plain data."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpfedc import DPFedC
from dpfedc.errors import NotFound
from dpfedc.kernels.metrics import clustering_accuracy

pytestmark = pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")

NO_NOISE = {"epsilon": None}
VARIANTS = {
    "no noise": NO_NOISE,
    "memberships decide": {**NO_NOISE, "refine_rounds": 0},
    "constant feature": {**NO_NOISE, "constant_feature": 0.5},
    "neither centred nor scaled": {**NO_NOISE, "center": False, "scale": False},
    "several local steps": {**NO_NOISE, "extra_steps": 4, "sites_per_round": 5},
    "subspace": {**NO_NOISE, "subspace": 1, "center": False, "scale": False},
    "private": {"norm_bound": 20.0},
    "private, little noise": {"epsilon": 20.0},
    "private, lengths": {"epsilon": 20.0, "refine_rounds": 0},
    "private, declared": {
        "epsilon": 20.0,
        "feature_ranges": [[-5, 15], [-5, 15]],
        "trust": "secure-aggregation",
    },
    "private, several local steps": {
        "epsilon": 20.0,
        "norm_bound": 20.0,
        "extra_steps": 4,
        "sites_per_round": 5,
        "trust": "trusted-server",
    },
    "private, subspace": {"epsilon": 40.0, "subspace": 1},
    "published": {**NO_NOISE, "variant": "published", "n_rounds": 10},
    "published, some sites": {
        **NO_NOISE,
        "variant": "published",
        "n_rounds": 10,
        "sites_per_round": 4,
    },
}
MEASURES = {"objective", "stationarity_h", "stationarity_w", "hard_share"}


def expected_failed_checks(estimator):
    """Return the checks that cannot hold; the suite fails if one of them passes."""
    if estimator.epsilon == 1.0:
        reason = "asks for a good clustering of 50 records, which epsilon 1 hides in noise"
        return {"check_clustering": reason}
    return {}


@parametrize_with_checks(
    [
        # So few records that their length must be declared.
        DPFedC(norm_bound=20.0),
        DPFedC(epsilon=200.0, norm_bound=20.0),  # all of the above but its noise
        DPFedC(epsilon=None),
        DPFedC(n_clusters=3, epsilon=None, n_rounds=5, refine_rounds=0, diagnostics=True),
        DPFedC(variant="published", epsilon=None),
    ],
    expected_failed_checks=expected_failed_checks,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_so_few_records_are_refused_before_anything_is_released(blobs):
    X, _, sites = blobs
    heard = []
    model = DPFedC(n_clusters=3, random_state=0, on_round=lambda *news: heard.append(news))
    with pytest.raises(NotFound, match=r"among 150 records: .*norm_bound, --norm-bound"):
        model.fit(X, sites=sites)
    assert heard == []
    assert not hasattr(model, "cluster_centers_")


@pytest.fixture(params=VARIANTS, scope="module")
def fit(request):
    """Return a fitted estimator of every variant with the data it was fitted on."""
    rng = np.random.default_rng(1)
    centers = np.array([[1.0, 1.0], [9.0, 1.0], [2.0, 9.0]])
    y = rng.integers(3, size=150)
    X = np.abs(centers[y] + rng.standard_normal((150, 2)))
    model = DPFedC(n_clusters=3, random_state=0, diagnostics=True, **VARIANTS[request.param])
    return model.fit(X, y, sites=rng.integers(8, size=150)), X, y


def test_labels_are_what_predict_and_transform_say(fit):
    model, X, _ = fit
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    memberships = model.transform(X)
    assert memberships.shape == (150, 3)
    assert memberships.min() >= 0
    np.testing.assert_array_equal(memberships.argmax(axis=1), model.labels_)
    # A record's cluster does not depend on its company.
    np.testing.assert_array_equal(model.predict(X[::-7]), model.labels_[::-7])
    np.testing.assert_array_equal(model.predict(X[5:6]), model.labels_[5:6])


def test_centers_are_in_the_units_of_the_data(fit):
    model, X, _ = fit
    assert model.cluster_centers_.shape == (3, 2)
    if model.variant == "published" or not model.center:
        return
    if model.epsilon is not None and model.refine_rounds == 0:
        # Only lengths were released: a centre lies along its direction, within the scale.
        inside = (model.cluster_centers_ - model.model_.center) / model.model_.scale
        lengths = np.linalg.norm(inside, axis=1, keepdims=True)
        np.testing.assert_allclose(inside, lengths * model.model_.directions, atol=1e-12)
        assert 0.1 < lengths.max() <= 1 + 1e-12
        return
    for cluster in np.unique(model.labels_):
        mean = X[model.labels_ == cluster].mean(axis=0)
        if model.epsilon != 1.0:  # at 1 the means drown in noise
            assert np.linalg.norm(model.cluster_centers_[cluster] - mean) < 2


def test_score_is_minus_the_kmeans_cost(fit):
    model, X, _ = fit
    cost = sum(min(((x - c) ** 2).sum() for c in model.cluster_centers_) for x in X)
    assert model.score(X) == pytest.approx(-cost)


def test_the_history_holds_the_diagnostics(fit):
    model, _, y = fit
    rounds = [r for r in model.history_.rounds if r.stage in ("factorisation", "cells")]
    assert rounds
    for entry in rounds:
        searched = entry.stage == "factorisation"
        assert entry.diagnostics.keys() >= (MEASURES if searched else {"objective"})
        assert np.isfinite(list(entry.diagnostics.values())).all()
        assert 0 <= entry.diagnostics.get("hard_share", 0) <= 1
    assert "diagnostics are exact, not released" in model.history_.stamps
    # The last accuracy is that of the labels, though rows were regrouped by site.
    _, accuracy = model.history_.series("accuracy")
    assert accuracy[-1] == pytest.approx(clustering_accuracy(y, model.labels_))
    assert model.n_iter_ == len(model.history_.rounds)


def test_without_diagnostics_nothing_exact_is_kept(blobs):
    X, y, sites = blobs
    settings = {"n_clusters": 3, "epsilon": None, "random_state": 0}
    model = DPFedC(**settings).fit(X, y, sites=sites)
    assert all(not entry.diagnostics for entry in model.history_.rounds)
    assert model.history_.series("objective") == ([], [])
    assert not any("exact" in stamp for stamp in model.history_.stamps)
    assert "no noise was added: not private" in model.history_.stamps
    unlabelled = DPFedC(**settings, diagnostics=True).fit(X, sites=sites)
    assert unlabelled.history_.series("accuracy") == ([], [])
    assert unlabelled.history_.series("objective")[1]
    # Watching changes nothing.
    np.testing.assert_array_equal(unlabelled.cluster_centers_, model.cluster_centers_)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_precision_in_is_precision_out(blobs, settings):
    X, _, sites = blobs
    X = abs(X)
    for dtype in (np.float32, np.float64):
        model = DPFedC(n_clusters=3, random_state=0, **settings).fit(X.astype(dtype), sites=sites)
        assert model.cluster_centers_.dtype == dtype
        assert model.transform(X.astype(dtype)).dtype == dtype
        assert model.labels_.dtype == np.int32
    whole = DPFedC(n_clusters=3, random_state=0, **settings).fit(X.astype(int), sites=sites)
    assert whole.cluster_centers_.dtype == np.float64


def test_data_frames_give_names(blobs):
    X, _, sites = blobs
    frame = pd.DataFrame(X, columns=["height", "weight"], index=np.arange(150) + 1000)
    settings = {"n_clusters": 3, "norm_bound": 20.0, "random_state": 0}
    model = DPFedC(**settings).fit(frame, sites=pd.Series(sites))
    assert model.feature_names_in_.tolist() == ["height", "weight"]
    assert model.n_features_in_ == 2
    names = ["dpfedc0", "dpfedc1", "dpfedc2"]
    assert model.get_feature_names_out().tolist() == names
    assert model.model_.feature_names == ("height", "weight")
    plain = DPFedC(**settings).fit(X, sites=sites)
    assert not hasattr(plain, "feature_names_in_")
    np.testing.assert_array_equal(plain.labels_, model.labels_)
    out = model.set_output(transform="pandas").transform(frame)
    assert out.columns.tolist() == names
    assert out.index.equals(frame.index)
    np.testing.assert_array_equal(out.to_numpy(), plain.transform(X))


def test_sites_travel_through_a_pipeline(blobs):
    X, _, sites = blobs
    settings = {"n_clusters": 3, "norm_bound": 5.0, "random_state": 0, "sites_per_round": 4}
    settings["n_rounds"] = 12
    with sklearn.config_context(enable_metadata_routing=True):
        last = DPFedC(**settings).set_fit_request(sites=True)
        piped = make_pipeline(StandardScaler(), last).fit(X, sites=sites)
        labels = make_pipeline(StandardScaler(), clone(last)).fit_predict(X, sites=sites)
    direct = DPFedC(**settings).fit(StandardScaler().fit_transform(X), sites=sites)
    assert piped[-1].history_.settings["n_sites"] == 10
    np.testing.assert_array_equal(piped[-1].cluster_centers_, direct.cluster_centers_)
    np.testing.assert_array_equal(piped.predict(X), direct.labels_)
    np.testing.assert_array_equal(labels, direct.labels_)


def test_fit_predict_and_fit_transform_take_sites(blobs):
    X, _, sites = blobs
    settings = {"n_clusters": 3, "norm_bound": 20.0, "random_state": 0, "sites_per_round": 3}
    settings["n_rounds"] = 9
    model = DPFedC(**settings).fit(X, sites=sites)
    labels = DPFedC(**settings).fit_predict(X, sites=sites)
    memberships = DPFedC(**settings).fit_transform(X, sites=sites)
    np.testing.assert_array_equal(labels, model.labels_)
    np.testing.assert_array_equal(memberships, model.transform(X))


def test_clone_keeps_settings_and_forgets_the_fit(blobs):
    X, _, sites = blobs
    model = DPFedC(n_clusters=3, step=7.0, init=np.ones((3, 2)), on_round=print)
    copy = clone(model)
    assert copy.get_params()["step"] == 7.0
    np.testing.assert_array_equal(copy.init, model.init)
    fitted = DPFedC(n_clusters=3, norm_bound=20.0, random_state=0).fit(X, sites=sites)
    assert not hasattr(clone(fitted), "cluster_centers_")


@pytest.mark.parametrize(
    "settings",
    [{"norm_bound": 20.0}, NO_NOISE, {**NO_NOISE, "variant": "published", "n_rounds": 8}],
)
def test_a_seed_fixes_the_result(blobs, settings):
    X, _, sites = blobs
    X = abs(X)

    def centers(seed):
        model = DPFedC(n_clusters=3, random_state=seed, sites_per_round=3, **settings)
        return model.fit(X, sites=sites).cluster_centers_

    np.testing.assert_array_equal(centers(1), centers(1))
    np.testing.assert_array_equal(
        centers(np.random.RandomState(4)), centers(np.random.RandomState(4))
    )
    assert not np.array_equal(centers(1), centers(2))
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    centers(3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_no_sites_means_one_site(blobs):
    X, _, _ = blobs
    settings = {"n_clusters": 3, "norm_bound": 20.0, "random_state": 0}
    alone = DPFedC(**settings).fit(X)
    one = DPFedC(**settings).fit(X, sites=["clinic"] * 150)
    np.testing.assert_array_equal(alone.cluster_centers_, one.cluster_centers_)
    assert alone.history_.settings["n_sites"] == 1


def test_a_subspace_of_all_directions_changes_no_record_s_cluster(rng):
    """Its coordinates are rotated, and as many as the features are."""
    y = np.arange(600) % 4
    X = 10 * np.eye(4)[y] + rng.standard_normal((600, 4))
    settings = {"epsilon": None, "cells": None, "refine_rounds": 0, "random_state": 0}
    for subspace in (None, 4):
        model = DPFedC(4, subspace=subspace, **settings).fit(X, sites=np.arange(600) % 3)
        assert clustering_accuracy(y, model.labels_) > 0.95


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("epsilon", [None, 1.0])
@pytest.mark.parametrize("subspace", [None, 2])
def test_nonnegative_data_get_nonnegative_centers(rng, center, epsilon, subspace):
    X = rng.exponential(size=(200, 4)) * (rng.random((200, 4)) < 0.3)
    settings = {"n_clusters": 4, "epsilon": epsilon, "center": center, "subspace": subspace,
                "refine_rounds": 0, "norm_bound": 5.0, "random_state": 0}  # fmt: skip
    model = DPFedC(nonnegative=True, **settings).fit(X, sites=np.arange(200) % 7)
    assert model.cluster_centers_.min() >= 0
    if not center and subspace is None:
        assert model.model_.directions.min() >= 0
        assert DPFedC(**settings).fit(X).model_.directions.min() < 0


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        (NO_NOISE, ["bound", "mean", "bound-2", "mean-2", "bound-3", "mean-3", "radius", "scale"]),
        ({"epsilon": 20.0}, ["bound", "mean", "bound-2", "mean-2", "scale"]),
        ({"norm_bound": 5.0, "subspace": 2}, ["mean", "scale", "subspace"]),
        ({"feature_ranges": [[0, 9], [0, 9]], "center": False}, ["scale"]),
    ],
)
def test_rounds_are_reported_as_they_happen(blobs, settings, first):
    X, _, sites = blobs
    heard = []
    model = DPFedC(
        n_clusters=3, n_rounds=6, sites_per_round=4, random_state=0,
        on_round=lambda *news: heard.append(news), **settings,
    ).fit(X, sites=sites)  # fmt: skip
    assert tuple(entry for entry, _ in heard) == model.history_.rounds
    assert {total for _, total in heard} == {model.n_iter_}
    stages = [entry.stage for entry, _ in heard]
    assert stages[: len(first)] == first
    assert stages[len(first) :][:6] == ["factorisation"] * 6
    assert set(stages[len(first) :][6:]) == {"centres"}
    assert [entry.n_sites for entry, _ in heard if entry.stage == "factorisation"] == [4] * 6


def test_fit_leaves_the_data_alone(blobs):
    X, _, sites = blobs
    kept, ids = X.copy(), sites.copy()
    X.setflags(write=False)
    for settings in VARIANTS.values():
        DPFedC(n_clusters=3, random_state=0, **{**settings, "n_rounds": 3}).fit(X, sites=sites)
    np.testing.assert_array_equal(X, kept)
    np.testing.assert_array_equal(sites, ids)
