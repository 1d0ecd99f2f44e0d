"""Lloyd rounds of scalable k-means++ have the noise that is stated for them, round by round.

The rounds are run as a fit runs them, through the simulated sites and their gate: noise that a
contribution states is of no use if whoever lets it out forgets it.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpfedc.clustering.lloyd import LloydSums
from dpfedc.engine import simulated
from dpfedc.engine.simulated import SimulatedSites, Sites
from dpfedc.privacy.accountant import gaussian_mu
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.randomness import Randomness
from dpfedc.research.rivals.kmeans_parallel import KMeansParallel
from dpfedc.research.rivals.kmeans_parallel_stages import StatedNoiseLloyd

EPSILON, DELTA, BOUND, SEEDING, ROUNDS = 20.0, 1e-5, 15.0, 2, 4
COHORT = np.array([0, 2, 3, 7, 8])


@pytest.fixture
def fitted(blobs):
    """Return a fit of a few rounds, its sites, and its Lloyd rounds."""
    X, _, sites = blobs
    model = KMeansParallel(
        3, epsilon=EPSILON, delta=DELTA, norm_bound=BOUND, seeding_rounds=SEEDING, n_rounds=ROUNDS,
        sites_per_round=len(COHORT), random_state=0,
    )  # fmt: skip
    model.fit(X, sites=sites)
    return model, Sites.of(X, sites), model.plan_.stages[-1]


def stated_multiplier(n_sites):
    """Return z: the first candidate, two uploads a round of seeding, counts, and the sums."""
    n_uploads = 1 + 2 * SEEDING + 1 + math.ceil(ROUNDS * len(COHORT) / n_sites)
    return math.sqrt(n_uploads) / gaussian_mu(EPSILON, DELTA)


def released_by(stage, sites, seed, t):
    """Return what the cohort releases in round t."""
    randomness = Randomness(seed)
    backend = SimulatedSites(sites, OpenGate(SimulatedNoise(randomness)), randomness)
    state = {
        "bound": np.asarray(BOUND),
        "origin": np.zeros(sites.X.shape[1]),
        "centers": sites.X[[0, 40, 80]],
    }
    backend.begin(stage, state)
    return backend.round(stage, state, t, COHORT).value


def has_std(noise, std):
    """Return whether normal numbers have this standard deviation; false alarm 10^-6."""
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], noise.size)
    return bool(low < float((noise**2).sum()) / std**2 < high)


@pytest.mark.parametrize("part", [1, 50, 10**9])
def test_every_site_of_a_lloyd_round_adds_the_stated_noise(fitted, monkeypatch, part):
    """However many sites are worked on at a time; rejected at 2/3 and 3/2 of the size, and at 0."""
    monkeypatch.setattr(simulated, "PART_RECORDS", part)
    _, sites, stage = fitted
    assert isinstance(stage, StatedNoiseLloyd)
    z = stated_multiplier(sites.n_sites)
    assert stage.noise_multiplier == pytest.approx(z)
    exact = replace(stage, noise_multiplier=0.0)
    for t in (1, ROUNDS):
        noise = np.array(
            [released_by(stage, sites, i, t) - released_by(exact, sites, i, t) for i in range(40)]
        )
        std = z * math.sqrt(2) * math.sqrt(len(COHORT))  # a sum and a count, in units of the bound
        assert has_std(noise, std)
        assert not has_std(noise, std * 2 / 3)
        assert not has_std(noise, std * 3 / 2)


def test_the_noise_reaches_the_centers_of_a_fit(fitted, monkeypatch):
    """The same fit with silent Lloyd rounds ends elsewhere, and nothing else of it differs."""
    model, sites, _ = fitted
    monkeypatch.setattr(StatedNoiseLloyd, "local", LloydSums.local)
    silent = KMeansParallel(**model.get_params()).fit(
        sites.X, sites=np.repeat(np.arange(sites.n_sites), np.diff(sites.offsets))
    )
    assert np.abs(silent.cluster_centers_ - model.cluster_centers_).max() > 0.1
