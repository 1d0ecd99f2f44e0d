"""The scikit-learn face: its contract, its attributes, and what it makes of plain data."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpfedc import DPFedC, stack_sites
from dpfedc.evaluation.metrics import clustering_accuracy

VARIANTS = {
    "default": {},
    "memberships decide": {"refine_rounds": 0},
    "constant feature": {"constant_feature": 0.5},
    "neither centred nor scaled": {"center": False, "scale": False},
    "several local steps": {"extra_steps": 4, "sites_per_round": 5},
    "published": {"variant": "published", "n_rounds": 10},
    "published, some sites": {"variant": "published", "n_rounds": 10, "sites_per_round": 4},
}
MEASURES = {"objective", "stationarity_h", "stationarity_w", "hard_share"}


@parametrize_with_checks(
    [
        DPFedC(),
        DPFedC(n_clusters=3, n_rounds=5, refine_rounds=0, diagnostics=True),
        DPFedC(variant="published", n_clusters=3, n_rounds=5),
    ],
    expected_failed_checks=lambda estimator: {},  # none
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.fixture(params=VARIANTS, scope="module")
def fit(request):
    """Return a fitted estimator of every variant with the data it was fitted on."""
    rng = np.random.default_rng(1)
    centres = np.array([[1.0, 1.0], [9.0, 1.0], [2.0, 9.0]])
    y = rng.integers(3, size=150)
    X = np.abs(centres[y] + rng.standard_normal((150, 2)))
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


def test_centres_are_in_the_units_of_the_data(fit):
    model, X, _ = fit
    assert model.cluster_centers_.shape == (3, 2)
    if model.variant == "normalized":
        for cluster in np.unique(model.labels_):
            mean = X[model.labels_ == cluster].mean(axis=0)
            if model.center:  # otherwise records are clipped to norm 1
                assert np.linalg.norm(model.cluster_centers_[cluster] - mean) < 1.5


def test_score_is_minus_the_kmeans_cost(fit):
    model, X, _ = fit
    cost = sum(min(((x - c) ** 2).sum() for c in model.cluster_centers_) for x in X)
    assert model.score(X) == pytest.approx(-cost)


def test_the_history_holds_the_diagnostics(fit):
    model, _, y = fit
    rounds = [r for r in model.history_.rounds if r.stage == "factorisation"]
    assert rounds
    for entry in rounds:
        assert entry.diagnostics.keys() == MEASURES | {"accuracy"}
        assert np.isfinite(list(entry.diagnostics.values())).all()
        assert 0 <= entry.diagnostics["hard_share"] <= 1
    assert "diagnostics are exact, not released" in model.history_.stamps
    # The last accuracy is that of the labels, though rows were regrouped by site.
    _, accuracy = model.history_.series("accuracy")
    assert accuracy[-1] == pytest.approx(clustering_accuracy(y, model.labels_))
    assert model.n_iter_ == len(model.history_.rounds)


def test_without_diagnostics_nothing_exact_is_kept(blobs):
    X, y, sites = blobs
    model = DPFedC(n_clusters=3, random_state=0).fit(X, y, sites=sites)
    assert all(not entry.diagnostics for entry in model.history_.rounds)
    assert model.history_.series("objective") == ([], [])
    assert not any("exact" in stamp for stamp in model.history_.stamps)
    assert "no noise was added: not private" in model.history_.stamps
    unlabelled = DPFedC(n_clusters=3, random_state=0, diagnostics=True).fit(X, sites=sites)
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
    model = DPFedC(n_clusters=3, random_state=0).fit(frame, sites=pd.Series(sites))
    assert model.feature_names_in_.tolist() == ["height", "weight"]
    assert model.n_features_in_ == 2
    names = ["dpfedc0", "dpfedc1", "dpfedc2"]
    assert model.get_feature_names_out().tolist() == names
    assert model.model_.feature_names == ("height", "weight")
    plain = DPFedC(n_clusters=3, random_state=0).fit(X, sites=sites)
    assert not hasattr(plain, "feature_names_in_")
    np.testing.assert_array_equal(plain.labels_, model.labels_)
    out = model.set_output(transform="pandas").transform(frame)
    assert out.columns.tolist() == names
    assert out.index.equals(frame.index)
    np.testing.assert_array_equal(out.to_numpy(), plain.transform(X))


def test_sites_travel_through_a_pipeline(blobs):
    X, _, sites = blobs
    settings = {"n_clusters": 3, "random_state": 0, "sites_per_round": 4, "n_rounds": 12}
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
    settings = {"n_clusters": 3, "random_state": 0, "sites_per_round": 3, "n_rounds": 9}
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
    assert not hasattr(
        clone(DPFedC(n_clusters=3, random_state=0).fit(X, sites=sites)), "cluster_centers_"
    )


@pytest.mark.parametrize("settings", [{}, {"variant": "published", "n_rounds": 8}])
def test_a_seed_fixes_the_result(blobs, settings):
    X, _, sites = blobs
    X = abs(X)

    def centres(seed):
        model = DPFedC(n_clusters=3, random_state=seed, sites_per_round=3, **settings)
        return model.fit(X, sites=sites).cluster_centers_

    np.testing.assert_array_equal(centres(1), centres(1))
    np.testing.assert_array_equal(
        centres(np.random.RandomState(4)), centres(np.random.RandomState(4))
    )
    assert not np.array_equal(centres(1), centres(2))
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - it must stay untouched
    centres(3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_no_sites_means_one_site(blobs):
    X, _, _ = blobs
    alone = DPFedC(n_clusters=3, random_state=0).fit(X)
    one = DPFedC(n_clusters=3, random_state=0).fit(X, sites=["clinic"] * 150)
    np.testing.assert_array_equal(alone.cluster_centers_, one.cluster_centers_)
    assert alone.history_.settings["n_sites"] == 1


@pytest.mark.parametrize("center", [True, False])
def test_nonnegative_data_get_nonnegative_centres(rng, center):
    X = rng.exponential(size=(200, 4)) * (rng.random((200, 4)) < 0.3)
    settings = {"n_clusters": 4, "center": center, "refine_rounds": 0, "random_state": 0}
    model = DPFedC(nonnegative=True, **settings).fit(X, sites=np.arange(200) % 7)
    assert model.cluster_centers_.min() >= 0
    if not center:
        assert model.model_.directions.min() >= 0
        assert DPFedC(**settings).fit(X).model_.directions.min() < 0


def test_rounds_are_reported_as_they_happen(blobs):
    X, _, sites = blobs
    heard = []
    model = DPFedC(
        n_clusters=3, n_rounds=6, sites_per_round=4, random_state=0,
        on_round=lambda *news: heard.append(news),
    ).fit(X, sites=sites)  # fmt: skip
    assert tuple(entry for entry, _ in heard) == model.history_.rounds
    assert {total for _, total in heard} == {model.n_iter_}
    stages = [entry.stage for entry, _ in heard]
    assert stages[:2] == ["mean", "scale"]
    assert stages.count("factorisation") == 6
    assert [entry.n_sites for entry, _ in heard if entry.stage == "factorisation"] == [4] * 6


def test_fit_leaves_the_data_alone(blobs):
    X, _, sites = blobs
    kept, ids = X.copy(), sites.copy()
    X.setflags(write=False)
    for settings in VARIANTS.values():
        DPFedC(n_clusters=3, random_state=0, **{**settings, "n_rounds": 3}).fit(X, sites=sites)
    np.testing.assert_array_equal(X, kept)
    np.testing.assert_array_equal(sites, ids)


def test_stacked_sites_can_be_fitted(blobs):
    X, _, sites = blobs
    stacked, ids = stack_sites([X[sites == i] for i in range(10)])
    expected = DPFedC(n_clusters=3, random_state=0).fit(X, sites=sites)
    model = DPFedC(n_clusters=3, random_state=0).fit(stacked, sites=ids)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
