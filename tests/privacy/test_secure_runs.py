"""Whole runs with secure noise, next to simulated ones. No seed can be fixed."""

from dataclasses import replace

import array_api_strict as xp
import numpy as np
import pytest
from sklearn.datasets import make_blobs

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.engine.rounds import run
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SecureNoise
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyTarget
from support.noise_checks import gate_of, logged_releases


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(1200, 4, centers=5, cluster_std=0.6, random_state=3)
    return X, y, np.arange(1200) % 6


def plan_for(sites, **settings):
    facts = Federation(4, np.diff(sites.offsets))
    target = PrivacyTarget(200.0, 1e-5, "local")
    return method_named("dp-fedc").plan({"n_clusters": 5, **settings}, facts, target)


def last_state(plan, sites, gate):
    randomness = Randomness(4)
    backend = SimulatedSites(sites, gate, randomness)
    return run(plan.stages, backend, randomness=randomness).state


RUNS = {"all sites": {}, "some sites": {"sites_per_round": 3}, "subspace": {"subspace": 3}}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*RUNS, "sampled records"])
def test_a_run_with_secure_noise_is_as_good_as_a_simulated_one(blobs, name, dtype):
    """With so little noise that both find the clusters; in 400 trials of each, all did."""
    X, y, ids = blobs
    X = X.astype(dtype)
    sites = Sites.of(X, ids)
    plan = plan_for(sites, **RUNS.get(name, {}))
    privacy = plan.privacy
    if name == "sampled records":  # the same noise, so no calibration is needed
        releases = (
            replace(release, sampling_probability=0.6) if release.stage == "factorisation"
            else release
            for release in privacy.releases
        )  # fmt: skip
        privacy = replace(privacy, releases=tuple(releases))
    gates = {"simulated": gate_of(privacy, seed=1), "secure": Gate(privacy, SecureNoise())}
    accuracy = {}
    for kind, gate in gates.items():
        state = last_state(plan, sites, gate)
        assert all(str(state[key].dtype) == dtype for key in ("data_mean", "scale", "best_centers"))
        centers = state["data_mean"] + state["scale"] * state["best_centers"]
        labels = ((X[:, None, :] - centers) ** 2).sum(axis=2).argmin(axis=1)
        accuracy[kind] = clustering_accuracy(y, labels)
        assert logged_releases(gate) == privacy.releases
    assert accuracy["simulated"] > 0.9
    assert accuracy["secure"] > 0.75  # one pair of clusters of five may end as one
    for one, other in zip(gates["simulated"].events, gates["secure"].events, strict=True):
        stated, exact = (e.noise_std / e.sensitivity for e in (one, other))
        assert stated < exact < stated * (1 + 2.0**-12 + 1e-6)


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_everything_stays_in_the_library_and_on_the_device_of_the_data(blobs, settings):
    X, _, ids = blobs
    other = xp.Device("device1")
    sites = Sites.of(xp.asarray(X[:120], device=other), ids[:120])
    plan = plan_for(sites, **settings)
    state = last_state(plan, sites, Gate(plan.privacy, SecureNoise()))
    assert {(value.dtype, value.device) for value in state.values()} == {(xp.float64, other)}
