"""Secure noise: an exact discrete Gaussian that nobody can draw again, as it leaves the gate.

Draws come from the operating system, so no test here can fix a seed. Statistical checks fail on
right noise with a rate of at most FALSE_ALARMS each; each of them has power.
"""

import math
import random
import sys
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from dpfedc.errors import DPFedCError, InvalidInput, MissingExtra, Refused
from dpfedc.privacy.exact_sums import (
    BOUND_UNITS,
    MAX_NOISE,
    SENSITIVITY,
    noise_in_units,
    unit_of,
)
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SecureNoise, SimulatedNoise
from dpfedc.privacy.open_gate import SiteUploads
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import SiteValues
from dpfedc.randomness import Randomness
from support.exact_checks import Fixed, secure_noise_of
from support.noise_checks import (
    FALSE_ALARMS,
    NOISE,
    are_independent,
    empty_batch,
    gate_of,
    has_std,
    is_gaussian,
    let_out,
    nothing,
    plan_of,
)

SIZE = 4000


def require_variance(noise, std):
    """Accept the stated variance; reject 2/3 and 3/2 of it."""
    assert has_std(noise, std)
    assert not has_std(noise, std * math.sqrt(2 / 3))
    assert not has_std(noise, std * math.sqrt(3 / 2))


# The law


@pytest.mark.parametrize("std", [1000.0, 2.0**38, 2.0**46, MAX_NOISE])
def test_integers_have_the_stated_spread(std):
    noise = SecureNoise().integers((SIZE,), std)
    assert noise.dtype == np.int64
    require_variance(noise.astype(float), std)
    assert is_gaussian(noise.astype(float), std)
    assert are_independent(noise[:-1].astype(float), noise[1:].astype(float))


def pmf(k, std):
    """Return the law of the discrete Gaussian, by its definition."""
    far = np.arange(-40 * math.ceil(std), 40 * math.ceil(std) + 1)
    return np.exp(-(k**2) / (2 * std**2)) / np.exp(-(far**2) / (2 * std**2)).sum()


def follows(noise, law, std):
    """Return whether a chi-square test takes the integers for draws from the law."""
    k = np.arange(-math.ceil(3 * std), math.ceil(3 * std) + 1)
    chances = law(k, std)
    counts = [(noise == value).sum() for value in k]
    counts, chances = [*counts, len(noise) - sum(counts)], [*chances, 1 - chances.sum()]
    return bool(stats.chisquare(counts, len(noise) * np.array(chances)).pvalue > FALSE_ALARMS)


def rounded_pmf(k, std):
    """Return the law of a continuous Gaussian, rounded to nearest."""
    return stats.norm.cdf(k + 0.5, scale=std) - stats.norm.cdf(k - 0.5, scale=std)


@pytest.mark.parametrize("std", [0.6, 1.0, 2.5])
def test_every_integer_has_its_own_probability(std):
    """A rounded Gaussian is another law: at a spread of 0.6 the test tells them apart."""
    noise = SecureNoise().integers((40_000,), std)
    assert follows(noise, pmf, std)
    assert not follows(noise, pmf, 0.93 * std)
    if std < 1:
        assert not follows(noise, rounded_pmf, std)


@dataclass(frozen=True)
class SinglePrecision(SecureNoise):
    """Plant: float noise, rounded to integers. The last bits are those of the format."""

    def integers(self, shape, std):
        drawn = np.random.default_rng().standard_normal(shape, dtype=np.float32)
        return np.rint(drawn * np.float32(std)).astype(np.int64)


@dataclass(frozen=True)
class Seeded(SecureNoise):
    """Plant: noise from a seed."""

    def integers(self, shape, std):
        return np.rint(np.random.default_rng(0).normal(scale=std, size=shape)).astype(np.int64)


def last_bits_are_uniform(noise):
    counts = np.bincount(noise.integers((8000,), 2.0**40) % 64, minlength=64)
    return bool(stats.chisquare(counts).pvalue > FALSE_ALARMS)


def test_the_last_bits_tell_nothing():
    assert last_bits_are_uniform(SecureNoise())
    assert not last_bits_are_uniform(SinglePrecision())


def comes_again(noise):
    drawn = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        drawn.append(noise.integers((20,), 2.0**30).tolist())
    return drawn[0] == drawn[1]


def test_no_seed_brings_a_draw_back():
    assert not comes_again(SecureNoise())
    assert comes_again(Seeded())


def made_by_rounding(k, std, r):
    """Return Pr[k] for a continuous Gaussian of variance std^2 - r^2, rounded at random."""

    def joint(y):
        near = np.arange(math.floor(y) - 60, math.floor(y) + 61)
        share = np.exp(-((k - y) ** 2) / (2 * r**2)) / np.exp(-((near - y) ** 2) / (2 * r**2)).sum()
        return stats.norm.pdf(y, scale=math.sqrt(std**2 - r**2)) * share

    return integrate.quad(joint, k - 12 * r, k + 12 * r, epsabs=1e-14, epsrel=1e-12, limit=400)[0]


@pytest.mark.parametrize("k", [0, 1, 4, -9])
def test_a_discrete_gaussian_is_a_continuous_one_rounded_at_random(k):
    """The lemma that accounting rests on, by quadrature; with r = 0.4 it would be wrong."""
    std = 5.0
    expected = float(pmf(np.array(k), std))
    assert made_by_rounding(k, std, 2.0) == pytest.approx(expected, rel=1e-10)
    assert made_by_rounding(k, std, 0.4) != pytest.approx(expected, rel=1e-5)


@given(st.floats(1e-6, 1e5))
def test_the_noise_protects_at_least_as_planned(z):
    """In exact fractions: the continuous Gaussian that it is made from has at least z S."""
    continuous = Fraction(noise_in_units(z)) ** 2 - 4
    assert continuous >= (Fraction(z) * SENSITIVITY) ** 2
    assert noise_in_units(z) <= z * SENSITIVITY * (1 + 1e-14) + 4 / (z * SENSITIVITY)
    off_diagonal = Fraction(noise_in_units(z / math.sqrt(2))) ** 2 - 4
    assert 2 * off_diagonal >= (Fraction(z) * SENSITIVITY) ** 2


@pytest.mark.parametrize("z", [0.0, 1e-9, 1e6, math.inf, math.nan])
def test_noise_outside_what_is_proved_is_refused(z):
    with pytest.raises(InvalidInput, match="secure noise must have a multiplier from"):
        noise_in_units(z)


# At the gate


@pytest.mark.parametrize(
    ("trust", "n_sites", "factor"),
    [("local", 1, 1.0), ("local", 6, math.sqrt(6)), ("trusted-server", 6, 1.0)],
)
def test_the_gate_adds_what_is_stated(trust, n_sites, factor):
    plan = plan_of(trust)
    noise, event = secure_noise_of(plan, (SIZE,), sites=np.arange(n_sites), sensitivity=2.5)
    std = NOISE["mean"] * 2.5 * factor
    require_variance(noise, std)
    assert is_gaussian(noise, std)
    assert event.noise_std == pytest.approx(std * SENSITIVITY / BOUND_UNITS)
    assert event.noise_std > std
    assert (event.sensitivity, event.noise_multiplier) == (2.5, NOISE["mean"])


def test_noise_of_a_symmetric_release():
    """On the diagonal z S, off it z S / sqrt(2), one draw for both entries of a pair."""
    n, std = 90, NOISE["subspace"]
    plan = plan_of("local")
    diagonals = []
    for _ in range(12):
        noise, _ = secure_noise_of(plan, (n, n), stage="subspace", symmetric=True)
        np.testing.assert_array_equal(noise, noise.T)
        diagonals.append(np.diag(noise))
    pairs = noise[np.triu_indices(n, 1)]
    require_variance(pairs, std / math.sqrt(2))
    assert has_std(np.concatenate(diagonals), std)
    assert not has_std(np.concatenate(diagonals), std / math.sqrt(2))


def test_what_leaves_are_integers_on_a_public_grid():
    part, sites = (nothing(1, 3), empty_batch([0]), RoundSample(1.0, 1)), np.array([0])
    secure, simulated = (
        gate.upload([part], sites, stage="mean", t=1, sensitivity=2.5)
        for gate in (Gate(plan_of("local"), SecureNoise()), gate_of(plan_of("local")))
    )
    assert secure.values.dtype == np.uint64
    assert secure.unit == unit_of(2.5) == 2.5 / BOUND_UNITS
    assert not simulated.is_exact


def test_a_gate_charges_secure_noise_too():
    gate, batch = Gate(plan_of("local", rounds=1), Fixed()), empty_batch([0])
    let_out(gate, nothing(1, 3), batch)
    for where, message in (({"t": 1}, "after round 1"), ({"t": 2}, "got one more")):
        with pytest.raises(Refused, match=message):
            let_out(gate, nothing(1, 3), batch, **where)
    with pytest.raises(Refused, match="not in the privacy plan"):
        let_out(gate, nothing(1, 3), batch, RoundSample(1.0, 1), stage="metrics")


def test_what_has_no_exact_sum_is_refused():
    gate, batch = Gate(plan_of("local"), Fixed()), empty_batch([0])
    for t, other in enumerate((SiteValues(np.zeros((1, 3))), SiteUploads(np.zeros((1, 3)))), 1):
        with pytest.raises(
            InvalidInput, match=r"local steps \(extra_steps > 0\) and uploads of po"
        ):
            let_out(gate, other, batch, t=t)
    with pytest.raises(InvalidInput, match=r"local steps \(extra_steps > 0\)"):
        gate.sample(batch, stage="mean", t=1, n_parts=2)
    assert gate.events == []


def test_secure_noise_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.measurements", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dpfedc\[secure\]'"):
        SecureNoise()


# Coins


def coins(q, n=200_000, gate=None):
    gate = gate or Gate(plan_of("local", q=q), Fixed())
    batch = replace(empty_batch([0]), offsets=np.array([0, n]))
    sample = gate.sample(batch, stage="factorisation", t=1)
    assert (sample.probability, sample.n_parts) == (q, 1)
    np.testing.assert_array_equal(sample.in_round, sample.part == 0)
    return sample.in_round


@pytest.mark.parametrize("q", [0.02, 0.3, 0.9])
def test_each_record_is_in_a_round_with_the_stated_probability(q):
    inside = int(coins(q).sum())
    assert stats.binomtest(inside, 200_000, q).pvalue > FALSE_ALARMS
    assert stats.binomtest(inside, 200_000, 0.8 * q).pvalue < FALSE_ALARMS


def test_no_seed_brings_coins_back():
    """Neither the run's own, nor NumPy's: two tosses of one round are independent."""
    plan = plan_of("local", q=0.5)
    one, other = (coins(0.5, gate=Gate(plan, Fixed(), Randomness(3))) for _ in range(2))
    seeded = [coins(0.5, gate=gate_of(plan, seed=3)) for _ in range(2)]
    np.testing.assert_array_equal(*seeded)
    assert stats.binomtest(int((one == other).sum()), len(one), 0.5).pvalue > FALSE_ALARMS
    assert stats.binomtest(int((one == seeded[0]).sum()), len(one), 0.5).pvalue > FALSE_ALARMS


def test_coins_must_come_from_somewhere():
    gate = Gate(plan_of("local", q=0.5), SimulatedNoise(Randomness(0)))
    with pytest.raises(DPFedCError, match="needs coins, but the gate has no source"):
        gate.sample(empty_batch([0]), stage="factorisation", t=1)
    assert gate.sample(empty_batch([0]), stage="mean", t=1).probability == 1
