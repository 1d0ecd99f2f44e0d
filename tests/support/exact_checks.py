"""Exact sums of test cases, sources of integers that are known, and what must hold of sums."""

from dataclasses import dataclass

import numpy as np

from dpfedc.privacy import exact
from dpfedc.privacy.exact import SENSITIVITY
from dpfedc.privacy.gate import Gate, RecordSum
from dpfedc.privacy.noise import SecureNoise
from support.noise_checks import empty_batch
from support.sensitivity import COINS, contribution_of


@dataclass(frozen=True)
class Fixed(SecureNoise):
    """Not noise at all: the same integer everywhere."""

    value: int = 0

    def integers(self, shape, std):
        return np.full(shape, self.value, dtype=np.int64)


def units(case, absent=()):
    """Return the exact sum of the case in grid units, as Python integers."""
    batch, sample, contribution = contribution_of(case, absent)
    keep = np.asarray(Gate(COINS)._weights(contribution, batch, sample)) > 0
    with np.errstate(all="ignore"):
        total = exact.exact_sum(
            contribution.terms, keep, contribution.bound, symmetric=contribution.symmetric
        )
    assert total.dtype == np.int64
    return [int(entry) for entry in np.ravel(total)]


def squared_distance(one, other):
    """Return the squared distance of two sums, an integer."""
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def farthest(case):
    """Return the longest squared move of the sum by nulling one record."""
    whole = units(case)
    return max(squared_distance(whole, units(case, [j])) for j in range(case.n_records))


def is_bounded(case):
    return farthest(case) <= SENSITIVITY**2


def nothing(n, shape, *, bound=1.0, symmetric=False):
    """Return a sum to which n records add nothing."""
    return RecordSum(
        np.zeros(n), bound, lambda _: np.zeros(shape), symmetric,
        lambda rows: np.zeros((rows.stop - rows.start, *shape)),
    )  # fmt: skip


def secure_noise_of(plan, shape, *, sites=0, stage="mean", bound=1.0, symmetric=False):
    """Return what a gate with secure noise lets out where records add nothing, and its event."""
    gate, batch = Gate(noise=SecureNoise(), plan=plan), empty_batch(sites)
    sums = nothing(batch.n_records, shape, bound=bound, symmetric=symmetric)
    sample = gate.sample(batch, stage=stage, t=1)
    released = gate.release(sums, batch, sample, stage=stage, t=1)
    return released.value, gate.events[-1]
