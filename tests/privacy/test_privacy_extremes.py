"""Epsilon and delta at their ends: a plan and its epsilon, or a sentence; never a traceback."""

import math

import numpy as np
import pytest

from dpfedc import DPFedC
from dpfedc.errors import InvalidInput
from dpfedc.estimators.federated_kmeans import DPLloyd
from dpfedc.privacy import calibration
from dpfedc.privacy.accountant import gaussian_epsilon, releases_epsilon
from dpfedc.privacy.calibration import StageBudget, calibrated_releases
from dpfedc.privacy.ledger.caps import BasicCap, GaussianCap
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.research.rivals.k_fed import KFed
from dpfedc.settings import PrivacyTarget

FAR = [1e-300, 1e-9, 1e9, 1e300, math.inf, math.nan, 0.0, -1.0]
ENDS = [1e-6, 1e-3, 1e6]
EPSILON = r"epsilon must be (a number )?>= 1e-06 and <= 1000000, got "
DELTA = r"delta must be >= 1e-12 and < 1, got "
SIZES = ("--sites", 10, "--records", 1000, "--features", 4, "--clusters", 3)


@pytest.fixture
def records():
    return np.random.default_rng(0).normal(size=(60, 2))


@pytest.mark.parametrize("epsilon", FAR)
def test_an_epsilon_beyond_the_ends_is_refused_wherever_it_enters(epsilon, records):
    for make in (
        lambda: PrivacyTarget(epsilon, 1e-5),
        lambda: GaussianCap(epsilon, 1e-5),
        lambda: BasicCap(epsilon, 1e-5),
        lambda: DPFedC(2, epsilon=epsilon).fit(records),
        lambda: DPLloyd(2, epsilon=epsilon).fit(records),
        lambda: KFed(2, epsilon=epsilon, norm_bound=1.0).fit(records),
    ):
        with pytest.raises(InvalidInput, match=EPSILON):
            make()


@pytest.mark.parametrize("delta", [1e-300, 1e-15, 0.0, 1.0])
def test_a_delta_beyond_the_ends_is_refused_wherever_it_enters(delta, records):
    for make in (
        lambda: PrivacyTarget(1.0, delta),
        lambda: GaussianCap(1.0, delta),
        lambda: BasicCap(1.0, delta),
        lambda: PrivacyPlan((), delta, "local", 1),
        lambda: DPFedC(2, delta=delta).fit(records),
        lambda: KFed(2, delta=delta).fit(records),
    ):
        with pytest.raises(InvalidInput, match=DELTA):
            make()


@pytest.mark.parametrize("delta", [1e-12, 1e-5])
@pytest.mark.parametrize("epsilon", ENDS)
def test_noise_at_the_ends_keeps_the_target_and_wastes_little(epsilon, delta):
    budgets = (StageBudget("a", 1, 5, 1, 0.1), StageBudget("b", 40, 5, 40, 0.9))
    releases = calibrated_releases(budgets, epsilon, delta)
    mu = math.sqrt(sum(r.rounds_per_site / r.noise_multiplier**2 for r in releases))
    assert releases_epsilon(releases, delta) <= epsilon
    assert 0.97 * epsilon <= gaussian_epsilon(mu, delta) <= epsilon


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
@pytest.mark.parametrize("epsilon", [1e-6, 1e6])
def test_the_estimator_at_the_ends(epsilon, records):
    model = DPFedC(2, epsilon=epsilon, norm_bound=3.0, random_state=0).fit(records)
    assert 0 < model.privacy_.epsilon <= epsilon


@pytest.mark.parametrize("command", ["plan", "fit"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--epsilon", "1e9"), "epsilon must be >= 1e-06 and <= 1000000, got 1000000000.0"),
        (("--epsilon", "1e-9"), "epsilon must be >= 1e-06 and <= 1000000, got 1e-09"),
        (("--delta", "1e-300"), "delta must be >= 1e-12 and < 1, got 1e-300"),
    ],
)
def test_the_command_line_says_what_it_takes(dpfedc, tmp_path, command, words, message):
    given = SIZES
    if command == "fit":
        given = ("--data", "digits", "--clusters", 3, "--output", tmp_path / "r")
    code, _, err = dpfedc(command, *given, *words)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize(("z", "infinite"), [(1e-6, True), (1e-3, False), (1e7, False)])
def test_account_of_a_plan_with_very_weak_or_strong_noise(dpfedc, tmp_path, z, infinite):
    plan = PrivacyPlan((PlannedRelease("mean", 1, 5, 1, z),), 1e-5, "local", 5)
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    code, out, err = dpfedc("account", path)
    assert (code, err) == (0, "")
    assert ("infinite" in out) == infinite


def test_account_refuses_noise_that_cannot_be_squared(dpfedc, tmp_path):
    plan = PrivacyPlan((PlannedRelease("mean", 1, 5, 1, 1.0),), 1e-5, "local", 5)
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json().replace('"noise_multiplier": 1.0', '"noise_multiplier": 1e-200'))
    code, _, err = dpfedc("account", path)
    assert code == 2
    assert "noise_multiplier must be >= 1e-06, got 1e-200" in " ".join(err.split())


def test_account_of_the_papers_noise_at_an_epsilon_beyond_the_ends(dpfedc):
    code, _, err = dpfedc("account", "--published", "--epsilon", "1e9")
    assert code == 2
    assert "epsilon must be >= 1e-06 and <= 1000000, got" in " ".join(err.split())


def test_the_search_for_noise_ends_where_the_accountant_never_agrees(monkeypatch):
    """Its rounding may be more than epsilon; a site would search for hours, for anyone's offer."""
    calls = []

    def never(*_):
        calls.append(1)
        return math.inf

    monkeypatch.setattr(calibration, "releases_epsilon", never)
    budgets = (calibration.StageBudget("one", 5, 1, 5, 1.0),)
    with pytest.raises(InvalidInput, match="epsilon must be larger, or the rounds fewer"):
        calibration.calibrated_releases(budgets, 1.25, 1e-5)
    assert len(calls) == calibration.MAX_NUDGES


def test_noise_that_needs_many_nudges_is_found_in_few(monkeypatch):
    """Each after the first few is twice the one before; the target is kept, never passed."""
    budgets = (calibration.StageBudget("one", 5, 1, 5, 1.0),)
    (exact,) = calibration.calibrated_releases(budgets, 1.375, 1e-5)
    real = calibration.releases_epsilon
    monkeypatch.setattr(calibration, "releases_epsilon", lambda *a: 1.2 * real(*a))
    calibration._calibrated.cache_clear()
    (found,) = calibration.calibrated_releases(budgets, 1.375, 1e-5)
    calibration._calibrated.cache_clear()
    assert 1.2 * real((found,), 1e-5, calibration.ONE_SITE) <= 1.375
    assert 1.1 < found.noise_multiplier / exact.noise_multiplier < 1.4
