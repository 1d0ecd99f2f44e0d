"""The noise of distributed k-median: as large as stated, and never said to be a proof."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

from dpfedc.clustering.stage import SiteBatch
from dpfedc.engine.simulated import Sites
from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.privacy.accountant import gaussian_mu
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SIMULATED, SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.randomness import Randomness
from dpfedc.research.rivals.assumed_noise import ASSUMED_SENSITIVITY
from dpfedc.research.rivals.coreset_kmedian import CoresetKMedian
from dpfedc.research.rivals.coreset_kmedian_stages import Coreset
from support.runs import opened, ran


def sites_of(X, offsets):
    return Sites.of(X, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))


def spread_is(values, std):
    """Test the standard deviation of normal numbers; false alarm 10^-6."""
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], values.size)
    return low < float((values**2).sum()) / std**2 < high


def test_noise_is_as_large_as_stated(ragged):
    """Accepted at the stated size (false alarm 10^-6), rejected at 2/3 and 3/2 of it."""
    X, offsets = ragged
    z, bound, randomness = 0.3, 5.0, Randomness(4)
    sites = sites_of(X, offsets)
    state = Coreset(3, 40).start({"bound": np.asarray(bound)}, sites.public, randomness)
    n_records = np.diff(offsets)
    batch = SiteBatch(X, offsets, np.arange(12))
    batch.memory = Coreset(3, 40).prepare(batch, state, randomness)
    for t in (1, 2):
        gate = OpenGate(SimulatedNoise(randomness))
        stages = [Coreset(3, 40, noise_multiplier=noise) for noise in (0.0, z)]
        exact, noisy = (opened(s, batch, state, randomness, t=t, gate=gate)[1] for s in stages)
        # Round 1: a median of an ordinary cluster moves by 2 bound / (n_i / 2k) at most.
        units = np.minimum(1, 2 * 3 / n_records) if t == 1 else np.full(12, 0.5)
        stated = z * 2**0.5 * 2 * bound * units
        relative = (noisy.value - exact.value) / stated[:, None]
        for row in relative:
            assert spread_is(row, 1.0)
        assert spread_is(relative, 1.0)
        assert not spread_is(relative, 2 / 3)
        assert not spread_is(relative, 3 / 2)
        assert abs(np.corrcoef(relative)[~np.eye(12, dtype=bool)]).max() < 0.95
        state = Coreset(3, 40).combine(state, exact, t)


def test_records_are_clipped_to_the_bound(ragged):
    X, offsets = ragged
    randomness = Randomness(0)
    gate, sites = OpenGate(SimulatedNoise(randomness)), sites_of(10 * X, offsets)
    bound = {"bound": np.asarray(2.0)}
    state = ran([Coreset(3, 40)], sites, randomness, gate=gate, state=bound)
    norms = np.linalg.norm(state["coreset"][36:], axis=1)
    np.testing.assert_allclose(norms, 2.0)
    assert state["coreset_weights"].sum() == pytest.approx(len(X))
    stages = [Coreset(3, 40, noise_multiplier=3.0)]
    noisy = ran(stages, sites, randomness, gate=gate, state=bound)
    assert np.linalg.norm(noisy["coreset"], axis=1).max() <= 2 + 1e-9
    assert np.isfinite(noisy["centers"]).all()


def test_the_run_is_stamped_and_its_noise_follows_from_epsilon(blobs):
    X, y, sites = blobs
    settings = {"n_clusters": 3, "norm_bound": 15.0, "random_state": 0}
    model = CoresetKMedian(epsilon=2.0, delta=1e-4, **settings).fit(X, sites=sites)
    assert model.history_.stamps == (ASSUMED_SENSITIVITY, SIMULATED)
    assert model.privacy_ is None
    (stage,) = model._plan(Sites.of(X, sites)).stages
    assert stage.noise_multiplier == pytest.approx(2**0.5 / gaussian_mu(2.0, 1e-4))
    weak = CoresetKMedian(epsilon=1e6, delta=1e-4, **settings).fit(X, sites=sites)
    assert adjusted_rand_score(y, weak.labels_) > 0.95
    strong = CoresetKMedian(epsilon=0.1, delta=1e-4, **settings).fit(X, sites=sites)
    assert adjusted_rand_score(y, strong.labels_) < 0.9
    assert np.isfinite(strong.cluster_centers_).all()


def test_a_gate_with_a_plan_refuses_the_points(ragged):
    X, offsets = ragged
    plan = PrivacyPlan((PlannedRelease("coreset", 2, 12, 2, 1.0),), 1e-5, "local", 12)
    randomness = Randomness(0)
    noise, sites = SimulatedNoise(randomness), sites_of(X, offsets)
    with pytest.raises(InvalidInput, match="'coreset' has no proof"):
        ran([Coreset(3, 40)], sites, randomness, gate=Gate(plan, noise, randomness))

    class Claiming(Coreset):
        proved = True

        def sensitivity(self, state, t):
            return 1.0

    with pytest.raises(DPFedCError, match="uploaded points have no sum over records"):
        ran([Claiming(3, 40)], sites, randomness, gate=Gate(plan, noise, randomness))
