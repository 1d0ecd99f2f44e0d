"""Exact sums of test cases, sources of integers that are known, and what must hold of sums."""

import math
from dataclasses import dataclass

import numpy as np

from dpfedc.kernels.devices import as_numpy
from dpfedc.privacy.exact_sums import LEFT_UNITS, RIGHT_UNITS, SENSITIVITY
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
    gate, part = Gate(plan_of("local"), Fixed()), part_of(case, absent)
    with np.errstate(all="ignore"):
        total = gate._sum(part, case.stage.name, case.bound)
    assert total.dtype == np.int64
    return as_integers(total, symmetric=part[0].symmetric)


def as_integers(total, *, symmetric):
    """Return a sum as Python integers, of a triangle the whole matrix: its norm counts."""
    if symmetric:
        size = (math.isqrt(8 * len(total) + 1) - 1) // 2
        whole = np.zeros((size, size), np.int64)
        whole[np.triu_indices(size)] = total
        total = whole + np.triu(whole, 1).T
    return [int(entry) for entry in np.ravel(total)]


def terms(contribution):
    """Return every record's phi_j, stacked, neither clipped nor weighted."""
    left, right = contribution.formed(slice(0, contribution.norms.shape[0]))
    left, right = np.asarray(as_numpy(left)), np.asarray(as_numpy(right))
    products = contribution.factor * left[:, :, None] * right[:, None, :]
    shape = products.shape[1:] if contribution.shape is None else contribution.shape
    return products.reshape(len(left), *shape)


def grid_error(contribution):
    """Return how far rounding may move a sum, in bounds: half a unit a number of each factor."""
    k, m = (some.shape[1] for some in contribution.formed(slice(0, 1)))
    n = contribution.norms.shape[0]
    return n * (math.sqrt(k) / LEFT_UNITS + math.sqrt(m) / RIGHT_UNITS)


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
