"""What a run comes to is told in the same way, whether its sites were simulated or deployed."""

import json

import numpy as np
import pytest

from dpfedc import DPFedC
from dpfedc.estimators.federated_kmeans import DPLloyd
from support.deployment import SIZES, MemoryTransport, agreed, records

IDS = np.repeat(np.arange(len(SIZES)), list(SIZES.values()))


@pytest.mark.parametrize(("method", "estimator"), [("dp-fedc", DPFedC), ("dp-lloyd", DPLloyd)])
def test_a_deployed_run_has_the_record_of_a_simulated_one(tmp_path, method, estimator):
    agreement = agreed(method, spare_rounds=0)
    deployed = MemoryTransport(agreement, tmp_path).coordinator().run()
    model = estimator(3, n_rounds=3, epsilon=50.0, delta=1e-4, random_state=7)
    simulated = model.fit(records(), sites=IDS).history_
    assert deployed.record.results.keys() - simulated.results.keys() == {"title"}
    for name in ("stages", "privacy", "privacy_plan"):
        assert deployed.record.results[name] == simulated.results[name]
    assert deployed.record.stamps == simulated.stamps
    own = {"run", "name", "coordinator"}
    shared = deployed.record.settings.keys() - own
    assert {name: simulated.settings[name] for name in shared} == {
        name: deployed.record.settings[name] for name in shared
    }
    assert deployed.model.about == {**model.model_.about, "run": agreement.digest}
    json.dumps(simulated.results, allow_nan=False)


def test_stages_are_told_in_words_and_numbers():
    model = DPFedC(3, epsilon=20.0, delta=1e-4, n_rounds=4, sites_per_round=2, random_state=0)
    model.fit(records(), sites=IDS)
    stages = {s["stage"]: s for s in model.history_.results["stages"]}
    plan = {r["stage"]: r for r in model.history_.results["privacy_plan"]["releases"]}
    assert stages.keys() == plan.keys()
    for name, stage in stages.items():
        assert stage["n_rounds"] == plan[name]["n_rounds"]
        assert stage["noise_multiplier"] == plan[name]["noise_multiplier"]
        assert stage["rounds_per_site"] == plan[name]["rounds_per_site"]
    assert sum(s["budget_share"] for s in stages.values()) == pytest.approx(1)
    assert stages["mean"]["purpose"] == "where the middle of all records lies"
    bare = DPFedC(3, epsilon=None, n_rounds=4).fit(records(), sites=IDS).history_
    assert {"noise_multiplier", "budget_share"}.isdisjoint(bare.results["stages"][0])
    assert bare.settings["noise"] is None


def test_the_published_noise_is_told_as_what_it_is():
    model = DPFedC(3, variant="published", epsilon=5.0, n_rounds=3, gradient_bound=1.0)
    claim, same, exact = model.fit(abs(records())).history_.results["privacy_notes"]
    assert "epsilon 5, delta 1e-05" in claim
    assert "is not a proof" in claim
    assert same.startswith("The same noise: by the accountant it would give epsilon ")
    assert exact.startswith("Not protected: labels")
    model.set_params(epsilon=None)
    assert "privacy_notes" not in model.fit(abs(records())).history_.results


def test_sizes_of_some_sites_are_scaled_to_all_and_have_no_error_bars():
    settings = {"n_rounds": 3, "epsilon": 50.0, "norm_bound": 20.0, "random_state": 0}
    X, sites = records(600), np.arange(600) % 10
    some = DPLloyd(3, sites_per_round=5, **settings).fit(X, sites=sites).model_
    assert some.sizes.sum() == pytest.approx(600, rel=0.1)
    assert some.size_errors is None
    assert DPLloyd(3, **settings).fit(X, sites=sites).model_.size_errors is not None
