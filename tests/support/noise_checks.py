"""Noise as it leaves the gate, and statistical checks of it, each with its false-alarm rate."""

from itertools import combinations

import numpy as np
from scipy import stats

from dpfedc.clustering.stage import SiteBatch
from dpfedc.kernels.row_views import Columns
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

STAGES = ("bound", "mean", "scale", "subspace", "factorisation", "centres")
NOISE = {"bound": 5.0, "mean": 2.0, "scale": 3.0, "subspace": 1.5, "factorisation": 4.0}
FALSE_ALARMS = 1e-6
"""The rate at which each check fails on noise that is as it should be."""


def plan_of(trust="trusted-server", *, n_sites=8, rounds=1000, q=1.0, **assumed):
    """Return a plan of six stages with known noise multipliers (1 for `centres`)."""
    releases = tuple(
        PlannedRelease(
            stage, rounds, n_sites, rounds, NOISE.get(stage, 1.0),
            q if stage == "factorisation" else 1.0,
        )
        for stage in STAGES
    )  # fmt: skip
    return PrivacyPlan(releases, 1e-5, trust, n_sites, **assumed)


def gate_of(plan, seed=0):
    """Return a gate that follows the plan with simulated noise."""
    randomness = Randomness(seed)
    return Gate(plan, SimulatedNoise(randomness), randomness)


def empty_batch(sites):
    """Return one record of zero at each site."""
    sites = np.atleast_1d(sites)
    return SiteBatch(np.zeros((len(sites), 1)), np.arange(len(sites) + 1), sites)


def nothing(n, shape, *, symmetric=False):
    """Return a sum to which n records add nothing."""
    shape = tuple(np.atleast_1d(shape))
    if symmetric:
        rows = Columns.of(np.zeros((n, shape[0])))
        return OuterSum(rows, rows, np.zeros(n), symmetric=True)
    rows = Columns.of(np.zeros((n, int(np.prod(shape)))))
    return OuterSum(np.zeros((n, 1)), rows, np.zeros(n), shape=shape)


def let_out(gate, contribution, batch, sample=None, *, stage="mean", t=1, sensitivity=1.0):
    """Release what the batch's sites contribute; of records that the gate draws, unless given."""
    sample = sample or gate.sample(batch, stage=stage, t=t)
    parts = [(contribution, batch, sample)]
    return gate.release(parts, batch.sites, stage=stage, t=t, sensitivity=sensitivity)


def noise_of(gate, shape, *, sites=0, symmetric=False, **where):
    """Return what the gate lets out where the records add nothing: the noise alone."""
    batch = empty_batch(sites)
    sums = nothing(batch.n_records, shape, symmetric=symmetric)
    return np.asarray(let_out(gate, sums, batch, **where).value)


def logged_releases(gate):
    """Return what the most used site has met, by the gate's own log and counts."""
    logged = {}
    for event in gate.events:
        logged.setdefault(event.stage, []).append(event)
    return tuple(
        PlannedRelease(
            stage, len(events), events[0].n_sites, int(gate._charged[stage].max()),
            min(event.noise_multiplier for event in events),
            max(event.sampling_probability for event in events),
        )
        for stage, events in logged.items()
    )  # fmt: skip


def has_std(noise, std):
    """Return whether the noise has this standard deviation: sum of squares / std^2 is chi-square.

    Two-sided. With 4,000 numbers the variance is known to 2.2 %: 2/3 and 3/2 of it are rejected.
    """
    noise = np.ravel(noise)
    low, high = stats.chi2.ppf([FALSE_ALARMS / 2, 1 - FALSE_ALARMS / 2], len(noise))
    return bool(low <= (noise**2).sum() / std**2 <= high)


def is_gaussian(noise, std):
    """Return whether a Kolmogorov-Smirnov test takes the noise for Gaussian."""
    return bool(stats.kstest(np.ravel(noise) / std, "norm").pvalue > FALSE_ALARMS)


def are_independent(one, other):
    """Return whether a test of correlation takes the two for independent.

    Both are Gaussian, so uncorrelated is independent. Shares of variance above 0.6 % are found in
    4,000 pairs.
    """
    return bool(stats.pearsonr(np.ravel(one), np.ravel(other)).pvalue > FALSE_ALARMS)


def unrelated(noises):
    """Return whether every two of the noises are independent."""
    return all(are_independent(one, other) for one, other in combinations(noises, 2))


def rounds_are_unrelated(gate):
    return unrelated([noise_of(gate, 4000, t=t, sites=np.arange(3)) for t in range(1, 6)])


def sites_are_unrelated(gate):
    """Four sites, each alone, and two cohorts of two sites each: all in one round."""
    alone = [noise_of(gate, 4000, t=1, sites=i) for i in range(4)]
    return unrelated(alone + [noise_of(gate, 4000, t=2, sites=s) for s in ([0, 1], [2, 3])])


def stages_are_unrelated(gate):
    return unrelated([noise_of(gate, 4000, stage=stage) for stage in STAGES])


def entries_are_unrelated(gate):
    """Sums and counts of clusters: columns of one release."""
    return unrelated(noise_of(gate, (4000, 5), stage="centres").T)


def symmetric_noise_is_as_stated(gate, std, sites=0):
    """Diagonal noise std, off it std / sqrt(2), one draw for both entries of a pair."""
    n, about = 90, {"stage": "subspace", "sites": sites, "symmetric": True}  # 4,005 pairs
    noises = np.stack([noise_of(gate, (n, n), t=t, **about) for t in range(1, 46)])
    if not np.array_equal(noises, np.swapaxes(noises, 1, 2)):
        return False
    pairs = noises[0][np.triu_indices(n, 1)]
    return (
        has_std(np.diagonal(noises, axis1=1, axis2=2), std)
        and has_std(pairs, std / np.sqrt(2))
        and is_gaussian(pairs, std / np.sqrt(2))
        and are_independent(pairs[:-1], pairs[1:])
    )
