"""Trial fits charged to a ledger: before each release, as a deployed site, never above the cap."""

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from dpfedc import DPFedC, DPLloyd, FederatedKMeans
from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.accountant import gaussian_epsilon, plan_epsilon
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Ledger
from dpfedc.privacy.ledger.trial_charges import charged_trial
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.randomness import Randomness
from support.ledgers import PLAN, TOGETHER, charge
from support.noise_checks import empty_batch, let_out, nothing, plan_of

pytestmark = pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
SETTINGS = {"n_clusters": 2, "norm_bound": 20.0, "n_rounds": 3, "random_state": 0}
SITES = np.arange(60) % 6


@pytest.fixture
def X(rng):
    return rng.normal(size=(60, 3))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trials.ledger"


def made(path, cap=GaussianCap(50.0, 1e-4), **more):  # noqa: B008
    Ledger.create(path, holding="patients", cap=cap, **more).close()
    return path


def totals(path):
    with Ledger.open(path) as ledger:
        return ledger.totals()


def n_rows(path):
    with Ledger.open(path) as ledger:
        return ledger.verify().n_rows


# The gate's side


def test_the_gate_tells_of_a_release_when_a_site_goes_further_than_any_before():
    found, counts = [], np.zeros(8, dtype=int)
    randomness = Randomness(0)
    plan = plan_of("local", rounds=4)
    gate = Gate(plan, SimulatedNoise(randomness), randomness, on_charge=lambda *x: found.append(x))
    cohorts = [[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3], [4, 5, 6], [7, 0, 1], [2, 3, 4]]
    for t, cohort in enumerate(cohorts, start=1):
        let_out(gate, nothing(3, 2), empty_batch(cohort), t=t)
        counts[cohort] += 1
        assert len(found) == counts.max()
    assert found == [("mean", 1), ("mean", 3), ("mean", 6)]


def test_a_charge_comes_before_anything_is_computed_and_may_stop_it():
    refusals = [Refused("over")]

    def charge(stage, t):
        if refusals:
            raise refusals.pop()

    def parts():
        computed.append(1)
        yield nothing(1, 2), batch, gate.sample(batch, stage="mean", t=1)

    computed, batch, randomness = [], empty_batch([0]), Randomness(0)
    gate = Gate(plan_of("local"), SimulatedNoise(randomness), randomness, on_charge=charge)
    release = {"stage": "mean", "t": 1, "sensitivity": 1.0}
    with pytest.raises(Refused, match="over"):
        gate.release(parts(), batch.sites, **release)
    assert not computed
    assert not gate.events
    gate.release(parts(), batch.sites, **release)  # nothing was counted for the other one
    assert len(gate.events) == 1


# What is charged


@pytest.mark.parametrize("trust", ["local", "secure-aggregation", "trusted-server"])
@pytest.mark.parametrize("per_round", [None, 4])
def test_a_fit_is_charged_what_its_most_used_site_would_be(X, path, trust, per_round):
    settings = {**SETTINGS, "n_rounds": 5, "trust": trust}
    model = DPFedC(**settings, sites_per_round=per_round, ledger=made(path)).fit(X, sites=SITES)
    plan, spent = model.plan_.privacy, totals(path)
    found = {stage.stage: stage.n_charged for stage in spent.stages}
    assert found == {r.stage: r.rounds_per_site for r in plan.releases}
    if per_round:
        assert found["factorisation"] == 4  # 5 rounds of 4 of 6 sites
    squares = sum(r.rounds_per_site / r.noise_multiplier**2 for r in plan.releases)
    assert spent.spent["inverse_squares"] == pytest.approx(squares)
    assert spent.epsilon == pytest.approx(gaussian_epsilon(squares**0.5, 1e-4))
    assert n_rows(path) == 1 + sum(found.values())


def test_a_basic_cap_is_charged_the_whole_plan_at_its_first_release(X, path):
    def fails(*_):
        raise RuntimeError("after the first round")

    made(path, BasicCap(5.0, 1e-4))
    for n in (1, 2):
        model = DPLloyd(**SETTINGS, ledger=path, on_round=fails)
        with pytest.raises(RuntimeError, match="first round"):
            model.fit(X, sites=SITES)
        spent = totals(path)
        assert spent.epsilon == pytest.approx(n * plan_epsilon(model.plan_.privacy))
        assert [stage.n_charged for stage in spent.stages] == [1] * n


def test_every_charge_is_on_the_disk_before_the_noise_of_its_release(X, path, monkeypatch):
    """Plant a gate that charges late, and this fails."""
    made(path)
    draw, drawn = SimulatedNoise.gaussian, []

    def watched(self, shape, std, *, stage, t, sites):
        with Ledger.open(path) as ledger:  # as another process sees it
            last = {s.stage: s.last_round for s in ledger.totals().stages}
        drawn.append((stage, t))
        assert last.get(stage) == t
        return draw(self, shape, std, stage=stage, t=t, sites=sites)

    monkeypatch.setattr(SimulatedNoise, "gaussian", watched)
    DPFedC(2, norm_bound=20.0, random_state=0, ledger=path).fit(X, sites=SITES)
    assert len(drawn) == n_rows(path) - 1 > 5


def test_a_grid_search_charges_every_fit(X, path):
    made(path, BasicCap(7.5, 1e-3))
    model = DPLloyd(**SETTINGS, ledger=str(path))
    search = GridSearchCV(model, {"n_clusters": [2, 3]}, cv=3).fit(X)
    assert search.best_estimator_.ledger == str(path)
    stages = totals(path).stages
    assert len({stage.run for stage in stages}) == 2 * 3 + 1
    with pytest.raises(Refused, match="over the lifetime cap of 'patients'"):
        search.best_estimator_.fit(X)


# What is refused


def test_a_fit_beyond_the_cap_is_refused_before_its_first_release(X, path, monkeypatch):
    """The cap has room for two fits and a half; the third would fail in its midst."""
    squares = sum(r.rounds_per_site / r.noise_multiplier**2
                  for r in DPLloyd(**SETTINGS).fit(X).plan_.privacy.releases)  # fmt: skip
    made(path, GaussianCap(gaussian_epsilon((2.5 * squares) ** 0.5, 1e-5), 1e-5))
    for _ in range(2):
        DPLloyd(**SETTINGS, ledger=path).fit(X)
    before, rounds = n_rows(path), []
    monkeypatch.setattr(SimulatedNoise, "gaussian", lambda *_, **__: pytest.fail("released"))
    third = DPLloyd(**SETTINGS, ledger=path, on_round=lambda *_: rounds.append(1))
    with pytest.raises(Refused, match=r"over the lifetime cap .* what is left"):
        third.fit(X)
    assert (n_rows(path), rounds) == (before, [])
    assert not hasattr(third, "cluster_centers_")


def test_what_another_process_takes_meanwhile_is_not_spent_twice(X, path):
    """The room is looked at first, but the charge decides."""
    squares = 1.2 * sum(r.rounds_per_site / r.noise_multiplier**2
                        for r in DPLloyd(**SETTINGS).fit(X).plan_.privacy.releases)  # fmt: skip
    made(path, GaussianCap(gaussian_epsilon(squares**0.5, 1e-5), 1e-5))
    n_rounds = []

    def on_round(*_):
        n_rounds.append(1)
        z = (1 / (0.9 * totals(path).left["inverse_squares"])) ** 0.5
        other = replace(PLAN, releases=(replace(PLAN.releases[0], noise_multiplier=z),))
        with Ledger.open(path) as ledger:
            ledger.charge("other", other, "mean", 1, "q", noise_multiplier=z)

    with pytest.raises(Refused, match="over the lifetime cap"):
        DPLloyd(**SETTINGS, ledger=path, on_round=on_round).fit(X)
    assert len(n_rounds) == 1
    assert min(totals(path).left.values()) >= 0


def test_a_missing_ledger_is_refused_with_the_command_that_makes_one(X, path):
    expected = r"ledger must be an existing file, got .*trials\.ledger; this makes one: dpfedc "
    with pytest.raises(InvalidInput, match=expected + r"ledger init .* --unit person"):
        DPLloyd(**SETTINGS, ledger=path).fit(X, persons=np.arange(60))
    assert not path.exists()


def test_the_unit_must_agree(X, path):
    with pytest.raises(Refused, match=r"must be for unit person, .* got record"):
        DPLloyd(**SETTINGS, ledger=made(path, unit="person")).fit(X)
    DPLloyd(**SETTINGS, ledger=path).fit(X, persons=np.arange(60))
    assert n_rows(path) > 1


@pytest.mark.parametrize(
    "model",
    [
        DPFedC(2, epsilon=None),
        DPFedC(2, variant="published", gradient_bound=1.0, n_rounds=2),
        FederatedKMeans(2),
    ],
)
def test_a_fit_without_a_proof_has_no_cost_to_charge(X, path, model):
    with pytest.raises(InvalidInput, match="ledger must be left out where nothing is proved"):
        model.set_params(ledger=made(path)).fit(X)
    assert n_rows(path) == 1


@pytest.mark.parametrize(("kind", "fine"), [(GaussianCap, False), (BasicCap, True)])
def test_persons_at_several_sites_need_a_cap_that_counts_them(path, kind, fine):
    plan = replace(PLAN, unit="person", sites_per_person=3)
    made(path, kind(50.0, 1e-4), unit="person")
    expected = pytest.raises(InvalidInput, match="at up to 3 sites, got a gaussian one")
    with nullcontext() if fine else expected, charged_trial(path, plan) as charge:
        charge("mean", 1)
    assert totals(path).epsilon == pytest.approx(plan_epsilon(plan) if fine else 0.0)


@pytest.mark.parametrize("part", [0.3, 0.999, 1.0, 1.001, 2.0])
@pytest.mark.parametrize("kind", [GaussianCap, BasicCap])
@pytest.mark.parametrize("plan", [PLAN, TOGETHER])
def test_there_is_room_if_and_only_if_every_release_is_admitted(part, kind, plan, path):
    squares = sum(r.rounds_per_site / r.noise_multiplier**2 for r in plan.releases)
    epsilon = part * plan_epsilon(plan)
    if kind is GaussianCap:
        epsilon = gaussian_epsilon((part * squares) ** 0.5, plan.delta)
    made(path, kind(epsilon, plan.delta))
    fits = [True, True]
    try:
        with charged_trial(path, plan):
            pass
    except Refused:
        fits[0] = False
    try:
        with Ledger.open(path) as ledger:
            for release in plan.releases:
                for t in range(1, release.rounds_per_site + 1):
                    charge(ledger, plan=plan, stage=release.stage, t=t)
    except Refused:
        fits[1] = False
    assert fits[0] == fits[1]
    assert part == 1 or fits[0] == (part > 1)


def test_a_plan_of_infinite_cost_is_refused(path):
    plan = replace(PLAN, releases=(replace(PLAN.releases[0], noise_multiplier=1e-6),))
    assert plan_epsilon(plan) == np.inf
    with (
        pytest.raises(Refused, match="over the lifetime cap"),
        charged_trial(made(path, BasicCap(1e6, 0.1)), plan),
    ):
        pass


def test_the_path_of_the_ledger_is_in_no_result(X, path):
    model = DPLloyd(**SETTINGS, ledger=str(made(path))).fit(X)
    assert "ledger" not in model.history_.settings
    assert str(path) not in json.dumps([model.history_.settings, model.history_.results])
