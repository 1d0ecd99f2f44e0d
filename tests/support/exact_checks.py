"""Exact sums of test cases, sources of integers that are known, and what must hold of sums."""

from dataclasses import dataclass

import numpy as np

from dpfedc.privacy.exact_sums import SENSITIVITY
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SecureNoise
from support.noise_checks import noise_of, plan_of
from support.sensitivity import part_of


@dataclass(frozen=True)
class Fixed(SecureNoise):
    """Not noise at all: the same integer everywhere."""

    value: int = 0

    def integers(self, shape, std):
        return np.full(shape, self.value, dtype=np.int64)


def units(case, absent=()):
    """Return the exact sum of the case in grid units, as Python integers."""
    gate = Gate(plan_of("local"), Fixed())
    with np.errstate(all="ignore"):
        total = gate._sum(part_of(case, absent), case.stage.name, case.bound)
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


def secure_noise_of(plan, shape, **where):
    """Return what a gate with secure noise lets out where records add nothing, and its event."""
    gate = Gate(plan, SecureNoise())
    return noise_of(gate, shape, **where), gate.events[-1]
