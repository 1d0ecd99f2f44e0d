"""Private runs from end to end, on the digits: what is promised is what was released."""

import json
import math
import warnings

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld
from sklearn.datasets import load_digits

from dpfedc import DPFedC
from dpfedc.clustering.local_steps import LocalSteps, largest_batch_ratio
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput, UtilityWarning
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.privacy.accountant import plan_epsilon, releases_epsilon
from dpfedc.privacy.noise import SIMULATED
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.settings import PrivacyTarget

N_SITES, DELTA = 20, 1e-4


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X, y, np.arange(len(X)) % N_SITES


def fitted(digits, **settings):
    X, _, sites = digits
    given = {"epsilon": 8.0, "delta": DELTA, "trust": "secure-aggregation", "random_state": 0}
    return DPFedC(10, **{**given, **settings}).fit(X, sites=sites)


def sensitivities(model):
    """Return the stated sensitivity of each stage's first round."""
    return {r.stage: r.release["sensitivity"] for r in reversed(model.history_.rounds)}


def logged_releases(model):
    """Return, from the rounds in `history_` alone, what the most used site has met."""
    stages = dict.fromkeys(r.stage for r in model.history_.rounds)
    rounds = {stage: [r for r in model.history_.rounds if r.stage == stage] for stage in stages}
    return tuple(
        PlannedRelease(
            stage,
            len(of_stage),
            of_stage[0].n_sites,
            most_rounds_of_a_site(N_SITES, of_stage[0].n_sites, len(of_stage)),
            min(r.release["noise_multiplier"] for r in of_stage),
            max(r.release["sampling_probability"] for r in of_stage),
        )
        for stage, of_stage in rounds.items()
    )


RUNS = {
    "secure aggregation": {},
    "epsilon 1": {"epsilon": 1.0},
    "local": {"epsilon": 20.0, "trust": "local"},
    "trusted server": {"trust": "trusted-server"},
    "survivors and colluders": {"min_survivors": 15, "colluding_sites": 5},
    "some sites a round": {"sites_per_round": 6, "n_rounds": 9, "trust": "trusted-server"},
    "sampled records": {"sampling_probability": 0.5, "n_rounds": 10},
    "several steps": {"extra_steps": 3, "n_rounds": 10},
    "several steps on sampled records": {
        "extra_steps": 3, "n_rounds": 10, "sampling_probability": 0.5,
    },
    "a subspace": {"subspace": 12},
    "refinement": {"refine_rounds": 3},
    "a constant feature": {"constant_feature": 0.5},
    "declared norm": {"norm_bound": 75.0},
    "neither centred nor scaled": {"center": False, "scale": False, "n_rounds": 10},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:cluster.* too few records:dpfedc.errors.UtilityWarning")
@pytest.mark.parametrize("name", RUNS)
def test_what_was_logged_is_what_was_promised(digits, name):
    settings = RUNS[name]
    model = fitted(digits, **settings)
    promise, history = model.privacy_, model.history_
    plan = PrivacyPlan.from_json(json.dumps(history.results["privacy_plan"]))
    assert logged_releases(model) == plan.releases
    spare = DELTA / 100 if name == "several steps on sampled records" else 0.0
    assert plan.spare_delta == spare
    assert promise.epsilon == plan_epsilon(plan)
    assert releases_epsilon(logged_releases(model), DELTA - spare) == promise.epsilon
    target = settings.get("epsilon", 8.0)
    assert 0.97 * target < promise.epsilon <= target
    accountant = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-3)
    accountant.compose(promise.event)
    assert accountant.get_epsilon(DELTA - spare) == pytest.approx(promise.epsilon, rel=1e-9)
    for record in history.rounds:
        release = record.release
        factor = plan.noise_of_sum(record.stage, record.n_sites) / release["noise_multiplier"]
        noise = release["sensitivity"] * release["noise_multiplier"] * factor
        assert release["noise_std"] == pytest.approx(noise)
    assert promise.rounds_per_site == {r.stage: r.rounds_per_site for r in plan.releases}
    assert SIMULATED in history.stamps
    assert promise.stamp == SIMULATED
    assert np.isfinite(model.cluster_centers_).all()
    X, y, _ = digits
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    assert clustering_accuracy(y, model.labels_) > 0.4


@pytest.mark.parametrize("q", [1.0, 0.3])
def test_the_step_size_allows_for_what_delta_is_set_aside_for(q):
    """Larger parts than the local steps allow for must be as rare as the plan says."""
    sizes, target = np.array([30, 100, 800]), PrivacyTarget(2.0, 1e-5)
    given = {"n_clusters": 4, "n_rounds": 12, "extra_steps": 4, "sampling_probability": q}
    plan = method_named("dp-fedc").plan(given, Federation(60, sizes), target)
    (rounds,) = [stage for stage in plan.stages if isinstance(stage, LocalSteps)]
    assert plan.privacy.spare_delta == (0.0 if q == 1 else target.delta / 100)
    failure = plan.privacy.spare_delta or 1e-5
    ratio = largest_batch_ratio(sizes, 4, 12, probability=q, failure=failure)
    assert rounds.step_constant >= ratio > 1
    assert plan_epsilon(plan.privacy) <= target.epsilon


def test_more_budget_gives_better_clusters(digits):
    """Mean of three seeds: none at all, epsilon 8, epsilon 1, epsilon 0.1."""
    y = digits[1]

    def accuracy(epsilon):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UtilityWarning)
            settings = {"epsilon": epsilon, "norm_bound": 75.0}  # at 0.1 it could not be found
            models = [fitted(digits, **settings, random_state=seed) for seed in range(3)]
        return np.mean([clustering_accuracy(y, model.labels_) for model in models])

    exact, eight, one, tenth = (accuracy(epsilon) for epsilon in (None, 8.0, 1.0, 0.1))
    assert exact > 0.72
    assert eight > exact - 0.08
    assert one > 0.55
    assert eight > one > tenth + 0.1


def test_without_epsilon_nothing_is_promised(digits):
    model = fitted(digits, epsilon=None)
    assert model.privacy_ is None
    assert model.model_.about["privacy"] is None
    assert model.history_.results["privacy"] is None
    assert model.history_.results["privacy_plan"] is None
    assert "no noise was added: not private" in model.history_.stamps
    assert SIMULATED not in model.history_.stamps
    assert all(record.release == {} for record in model.history_.rounds)


@pytest.mark.filterwarnings("ignore:cluster.* too few records:dpfedc.errors.UtilityWarning")
def test_private_by_default(digits):
    X, _, sites = digits
    with pytest.warns(UtilityWarning, match="swamp"):
        model = DPFedC(10, norm_bound=75.0, random_state=0).fit(X, sites=sites)
    assert (model.privacy_.delta, model.privacy_.trust) == (1e-5, "local")
    assert 0.97 < model.privacy_.epsilon <= 1.0


def test_a_seed_names_a_run(digits):
    one, again, other = (fitted(digits, random_state=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.cluster_centers_, again.cluster_centers_)
    np.testing.assert_array_equal(one.labels_, again.labels_)
    assert not np.array_equal(one.cluster_centers_, other.cluster_centers_)
    assert one.privacy_ == other.privacy_  # the promise does not depend on what was drawn


def test_the_promise_goes_with_the_record_and_the_model(digits, tmp_path):
    model = fitted(digits, min_survivors=15, colluding_sites=5)
    promise = model.privacy_.as_plain()
    assert model.history_.results["privacy"] == promise
    assert model.model_.about["privacy"] == promise
    model.history_.write(tmp_path / "run.jsonl")
    model.model_.write(tmp_path / "model.npz")
    assert RunRecord.read(tmp_path / "run.jsonl").results["privacy"] == promise
    assert type(model.model_).read(tmp_path / "model.npz").about["privacy"] == promise
    assert promise["min_survivors"] == 15
    assert promise["epsilon_if_others_collude"] > 3 * promise["epsilon"]


@pytest.mark.parametrize("x", [1e5, 1e60])
def test_one_enormous_record_changes_next_to_nothing(digits, x):
    """The bound comes from a noisy histogram, never from a maximum.

    Round clusters: which prototypes are merged last can hang on one record, and so can all labels.
    """
    X, y, sites = digits
    spoilt = X.copy()
    spoilt[7] = x
    plain, with_it = (fitted((given, y, sites), shape="round") for given in (X, spoilt))
    assert sensitivities(with_it) == sensitivities(plain)
    assert np.isfinite(with_it.cluster_centers_).all()
    assert np.abs(with_it.cluster_centers_).max() < 100
    others = np.arange(len(X)) != 7
    assert (with_it.labels_ == plain.labels_)[others].mean() > 0.9


@pytest.mark.filterwarnings("ignore:centres .* outside the declared:dpfedc.errors.UtilityWarning")
def test_declared_bounds_are_used_as_declared(digits):
    auto = fitted(digits)
    bound = sensitivities(auto)["mean"]
    longest = np.linalg.norm(digits[0], axis=1).max()
    assert longest / 1.5 < bound < 2 * longest
    assert math.log2(bound) * 2 == pytest.approx(round(math.log2(bound) * 2))  # half octaves
    assert sensitivities(auto)["bound"] == 1.0
    declared = fitted(digits, norm_bound=75.0)
    assert sensitivities(declared)["mean"] == 75.0
    assert sensitivities(declared)["scale"] < 75.0  # from the mean no record is as far
    ranges = fitted(digits, feature_ranges=[[0, 16]] * 64)
    assert sensitivities(ranges)["mean"] == pytest.approx(math.sqrt(64) * 8)
    for model in (declared, ranges):
        assert "bound" not in sensitivities(model)
        assert clustering_accuracy(digits[1], model.labels_) > 0.6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm_bound": 0.0}, "norm_bound must be"),
        ({"norm_bound": math.nan}, "norm_bound must be"),
        ({"feature_ranges": [[0, 16]] * 63}, "feature_ranges"),
        ({"feature_ranges": [[16, 0]] * 64}, "feature_ranges"),
        ({"feature_ranges": [[0, math.inf]] * 64}, "feature_ranges"),
        ({"sampling_probability": 0.0}, "sampling_probability must be"),
        ({"sampling_probability": 1.5}, "sampling_probability must be"),
        ({"min_survivors": 21}, "min_survivors must be"),
        ({"colluding_sites": 20}, "colluding_sites must be"),
        ({"sites_per_round": 5, "colluding_sites": 5}, "more survivors than colluding_sites=5"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"clip_norm": 1e-300}, "clip_norm must be >= 1e-06"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(digits, settings, message):
    with pytest.raises(InvalidInput, match=message):
        fitted(digits, **settings)


@pytest.mark.filterwarnings("ignore:cluster.* too few records:dpfedc.errors.UtilityWarning")
def test_a_warning_where_noise_swamps_the_clusters(digits):
    with pytest.warns(UtilityWarning, match="the noise is likely to swamp the clusters"):
        fitted(digits, epsilon=0.05, norm_bound=75.0)
    with pytest.warns(UtilityWarning, match="the noise is likely to swamp the clusters"):
        fitted(digits, epsilon=0.5, trust="local", norm_bound=75.0)


@pytest.mark.parametrize("delta", [1 / 1797, 0.01])
def test_a_warning_where_delta_is_too_large(digits, delta):
    with pytest.warns(UtilityWarning, match="delta should be well below 1 / n_records"):
        fitted(digits, delta=delta)


def test_single_precision_keeps_the_same_promise(digits):
    X, y, sites = digits
    model = fitted((X.astype(np.float32), y, sites), extra_steps=2, n_rounds=10)
    assert model.privacy_ == fitted(digits, extra_steps=2, n_rounds=10).privacy_
    assert model.cluster_centers_.dtype == np.float32
    assert clustering_accuracy(y, model.labels_) > 0.6
