"""The noise of scalable k-means++: as large as stated, and never said to be a proof."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

from dpfedc.clustering.stage import SiteBatch
from dpfedc.engine import simulated
from dpfedc.engine.simulated import Sites
from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.kernels.row_views import Columns
from dpfedc.privacy.accountant import gaussian_mu
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SIMULATED, SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum, SiteValues
from dpfedc.randomness import Randomness
from dpfedc.research.rivals.assumed_noise import ASSUMED_SENSITIVITY
from dpfedc.research.rivals.kmeans_parallel import KMeansParallel
from dpfedc.research.rivals.kmeans_parallel_stages import (
    MASK_SIZE,
    Candidates,
    Reclustering,
    StatedNoiseLloyd,
    with_stated_noise,
)
from support.runs import opened, ran

ALL = RoundSample(1.0, 1)


def sites_of(X, offsets):
    return Sites.of(X, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))


def noises(stage, batch, state, t, n_seeds):
    """Return what noise adds to a release of round t, over seeds."""
    found = []
    for seed in range(n_seeds):
        randomness = Randomness(seed)
        gate = OpenGate(SimulatedNoise(randomness))
        exact = replace(stage, noise_multiplier=0.0)
        a, b = (opened(s, batch, state, Randomness(0), t=t, gate=gate)[1] for s in (stage, exact))
        found.append(np.asarray(a.value) - np.asarray(b.value))
    return np.array(found)


def spread_is(values, std):
    """Test the standard deviation of normal numbers; false alarm 10^-6."""
    n, total = values.size, float((values**2).sum()) / std**2
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], n)
    return low < total < high


def test_noise_is_as_large_as_stated(ragged):
    """Accepted at the stated size (false alarm 10^-6), rejected at 2/3 and 3/2 of it."""
    X, offsets = ragged
    z, bound, n_sites = 0.7, 6.0, 12
    batch = SiteBatch(X, offsets, np.arange(n_sites))
    state = {"candidates": X[:4], "fresh": X[:4], "bound": np.asarray(bound), "centers": X[:3],
             "origin": np.zeros(5), "first": np.array([1, 1])}  # fmt: skip
    candidates, lloyd = (
        Candidates(6.0, noise_multiplier=z),
        StatedNoiseLloyd(3, 2, noise_multiplier=z),
    )
    batch.memory = {
        **candidates.prepare(batch, state, Randomness(0)),
        **lloyd.prepare(batch, state, Randomness(0)),
    }
    cases = [
        (candidates, 2, 300, z * 4 * bound**2 * n_sites**0.5),
        (Reclustering(3, z), 1, 100, z * n_sites**0.5),
        (lloyd, 1, 20, z * 2**0.5 * n_sites**0.5),
    ]
    for method, t, n_seeds, std in cases:
        noise = noises(method, batch, state, t, n_seeds)
        assert spread_is(noise, std)
        assert not spread_is(noise, std * 2 / 3)
        assert not spread_is(noise, std * 3 / 2)
    uploads = noises(candidates, batch, state, 1, 2)[..., :-1]
    assert spread_is(uploads, z * bound)
    assert not spread_is(uploads, z * bound * 2 / 3)
    assert not spread_is(uploads, z * bound * 3 / 2)
    # Sites draw their own.
    assert (
        abs(np.corrcoef(uploads[0].reshape(n_sites, -1))[~np.eye(n_sites, dtype=bool)]).max() < 0.5
    )


def test_a_record_changes_the_noisy_sums_by_their_bound_at_most(ragged):
    """Records far outside the bound, and candidates far outside the ball, are clipped."""
    X, offsets = ragged
    X = 100 * X
    batch = SiteBatch(X, offsets, np.arange(12))
    state = {"candidates": X[:4], "fresh": X[:4], "bound": np.asarray(6.0), "centers": X[:3],
             "origin": np.zeros(5)}  # fmt: skip
    for method, t, most in (
        (Candidates(6.0), 2, 4 * 6.0**2),
        (Reclustering(3), 1, 1.0),
        (StatedNoiseLloyd(3, 1), 1, 2**0.5),
    ):

        def total(present, method=method, t=t, most=most):
            batch.present = present
            batch.memory = method.prepare(batch, state, Randomness(0))
            contribution = method.local(batch, state, t, ALL, Randomness(0))
            bound = method.sensitivity(state, t)
            assert bound == pytest.approx(most)
            noisy = with_stated_noise(contribution, batch, 1e-9, bound)
            assert isinstance(noisy, SiteValues)
            np.testing.assert_allclose(noisy.noise_std, 1e-9 * most)
            return noisy.values.sum(axis=0)

        whole = total(np.ones(len(X), dtype=bool))
        changes = [
            np.linalg.norm(whole - total(np.arange(len(X)) != j)) for j in range(0, len(X), 10)
        ]
        assert 0.5 * most < max(changes) <= most * (1 + 1e-9)


@pytest.mark.parametrize("part", [1, 30, 10**6])
def test_lloyd_rounds_have_their_noise_in_a_run_of_any_parts(ragged, monkeypatch, part):
    """Every site's noise is in the sum once, however many sites are worked on at a time."""
    X, offsets = ragged
    monkeypatch.setattr(simulated, "PART_RECORDS", part)
    heard = {}

    class Listening(StatedNoiseLloyd):
        def combine(self, state, released, t):
            heard[self.noise_multiplier, t] = released.value
            return state

    z, n_rounds = 0.7, 20
    state = {"bound": np.asarray(6.0), "centers": X[:3]}
    for noise in (0.0, z):
        randomness = Randomness(5)
        gate = OpenGate(SimulatedNoise(randomness))
        stages = [Listening(3, n_rounds, noise_multiplier=noise)]
        ran(stages, sites_of(X, offsets), randomness, gate=gate, state=state)
    noise = np.array([heard[z, t] - heard[0.0, t] for t in range(1, n_rounds + 1)])
    std = z * 2**0.5 * 12**0.5
    assert spread_is(noise, std)
    assert not spread_is(noise, std * 2 / 3)
    assert not spread_is(noise, std * 3 / 2)


def test_uploaded_points_are_clipped_and_the_mask_survives_noise(ragged):
    X, offsets = ragged
    randomness = Randomness(0)
    gate = OpenGate(SimulatedNoise(randomness))
    stages = [Candidates(6.0, 7, noise_multiplier=3.0)]
    state = {"bound": np.asarray(2.0)}
    noisy = ran(stages, sites_of(X, offsets), randomness, gate=gate, state=state)
    assert np.linalg.norm(noisy["candidates"], axis=1).max() <= 2 + 1e-9
    # One first candidate, none in a slot that was empty: far fewer than the 12 x slots sent.
    assert 1 <= len(noisy["candidates"]) <= 40
    exact = Candidates(6.0)
    batch = SiteBatch(10 * X, offsets, np.arange(12))
    batch.memory = exact.prepare(batch, state, randomness)
    upload = exact.local(batch, {**state, "first": np.array([3, 0])}, 1, ALL, randomness).values
    assert np.linalg.norm(upload[3, 0, :-1]) == pytest.approx(2.0)
    assert MASK_SIZE / 2 > 8  # deviates: a slot is misread less than once in 10^15


def test_the_run_is_stamped_and_its_noise_follows_from_epsilon(blobs):
    X, y, sites = blobs
    settings = {"n_clusters": 3, "norm_bound": 15.0, "random_state": 0, "sites_per_round": 5}
    model = KMeansParallel(epsilon=2.0, delta=1e-4, n_rounds=9, **settings).fit(X, sites=sites)
    assert model.history_.stamps == (ASSUMED_SENSITIVITY, SIMULATED)
    assert model.privacy_ is None
    plan = model._plan(Sites.of(X, sites))
    # 1 + 5 uploads of points, 5 costs, counts, and 9 * 5 / 10 rounds of Lloyd, rounded up.
    z = (6 + 5 + 1 + 5) ** 0.5 / gaussian_mu(2.0, 1e-4)
    assert [stage.noise_multiplier for stage in plan.stages] == pytest.approx([z] * 3)
    assert plan.stages[-1].min_count == pytest.approx(1 + 2 * z * 10**0.5)
    weak = KMeansParallel(epsilon=1e6, delta=1e-4, **settings).fit(X, sites=sites)
    assert adjusted_rand_score(y, weak.labels_) > 0.95
    strong = KMeansParallel(epsilon=0.1, delta=1e-4, **settings).fit(X, sites=sites)
    assert adjusted_rand_score(y, strong.labels_) < 0.9
    assert np.isfinite(strong.cluster_centers_).all()


def test_a_gate_with_a_plan_refuses_the_points(ragged):
    X, offsets = ragged
    plan = PrivacyPlan((PlannedRelease("candidates", 7, 12, 7, 1.0),), 1e-5, "local", 12)
    randomness = Randomness(0)
    noise, sites = SimulatedNoise(randomness), sites_of(X, offsets)

    class Claiming(Candidates):
        proved = True

    for kind, error, message, state in (
        (Candidates, InvalidInput, "'candidates' has no proof", {}),
        (Claiming, InvalidInput, "'candidates' must state a sensitivity", {}),
        (Claiming, DPFedCError, "uploaded points have no sum", {"bound": np.asarray(2.0)}),
    ):
        gate = Gate(plan, noise, randomness)
        with pytest.raises(error, match=message):
            ran([kind(6.0, 7)], sites, randomness, gate=gate, state=state)


def test_without_noise_a_sum_stays_as_it_is(ragged):
    X, offsets = ragged
    total = OuterSum(np.ones((len(X), 1)), Columns.of(X), X[:, 0], shape=(5,))
    assert with_stated_noise(total, SiteBatch(X, offsets, np.arange(12)), 0.0, 1.0) is total
