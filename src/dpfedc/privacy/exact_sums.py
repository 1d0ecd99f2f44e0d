"""Exact sums: every record is put on a grid of integers, so that no rounding depends on others.

A record adds phi_j = factor h_j r_j' to a sum. Both factors become vectors of whole numbers a_j and
b_j with |a_j| |b_j| <= SENSITIVITY, which is checked, and the products a_j b_j' are added without
error: matrix products of whole numbers below 2^53 are exact in floats. Taking a record out of the
sum then moves it by at most SENSITIVITY, to the last bit (docs/privacy-proof.md, section 12). Sums
and noise are added modulo 2^64.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.threads import each
from dpfedc.privacy.noise import SecureNoise
from dpfedc.privacy.sums import OuterSum

SENSITIVITY = 2**38
"""The most that one record can move a sum, in grid units."""
LEFT_UNITS, RIGHT_UNITS = 2**17, 2**21 - 2**9
"""How long a left factor is, and a right one that is clipped, before they are rounded.

A product of the two is 2^-12 below SENSITIVITY: rounding makes a factor of d numbers longer by half
the root of d, and no record must be left out for that.
"""
BOUND_UNITS = LEFT_UNITS * RIGHT_UNITS
"""How many grid units the bound is."""
EXACT = 2**53
"""All whole numbers up to this one are floats."""
LARGEST_SUM = 2**62
MIN_NOISE, MAX_NOISE = 1000.0, 2.0**56
"""The noise's standard deviation in grid units: so that its law is as proved, and none wraps."""
NUMBERS_AT_A_TIME, MIN_ROWS = 2**17, 64
"""What is formed at a time: so many numbers, so that they stay in a cache, but not fewer rows."""
MIN_GROUP, MAX_GROUPS, MOST_TOTALS = 10**7, 16, 2**24
"""Multiplications that are worth a thread, for how many there is work, numbers in their sums."""
PASSES = 8
"""What it takes to put a number on the grid, in multiplications."""

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Upload:
    """What leaves a site: a sum with its noise, as floats or as grid units modulo 2^64 (uint64).

    `unit` is the size of one grid unit (1 for floats). If `symmetric`, the values are the packed
    upper triangle of a symmetric matrix.
    """

    values: Array
    unit: float = 1.0
    symmetric: bool = False

    @property
    def is_exact(self) -> bool:
        """Return whether the values are grid units."""
        return isinstance(self.values, np.ndarray) and self.values.dtype == np.uint64

    @property
    def kind(self) -> tuple[Any, ...]:
        """Return what must be the same in all uploads of a round."""
        return tuple(self.values.shape), str(self.values.dtype), self.unit, self.symmetric

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the upload as NumPy arrays, for a file or a message."""
        values = self.values if self.is_exact else on_host(self.values)
        return {
            "values": values,
            "unit": np.asarray(self.unit),
            "symmetric": np.asarray(self.symmetric),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Upload:
        """Return what `to_arrays` was made from; anything else is refused."""
        if arrays.keys() != {"values", "unit", "symmetric"}:
            raise InvalidInput(f"an upload must be values, unit, symmetric, got {sorted(arrays)}")
        values, unit, symmetric = arrays["values"], arrays["unit"], arrays["symmetric"]
        if values.dtype not in (np.uint64, np.float64):
            raise InvalidInput(f"values must be uint64 or float64, got {values.dtype}")
        if unit.dtype != np.float64 or unit.shape or not 0 < unit < math.inf:
            raise InvalidInput(f"unit must be one finite number > 0, got {unit}")
        if symmetric.dtype != np.bool_ or symmetric.shape:
            raise InvalidInput(f"symmetric must be true or false, got {symmetric}")
        return cls(values, float(unit), bool(symmetric))


def unit_of(bound: float) -> float:
    """Return the size of one grid unit where records are clipped to the bound."""
    return bound / BOUND_UNITS


def exact_upload(
    total: Int,
    bound: float,
    *,
    noise: SecureNoise,
    multiplier: float,
    symmetric: bool = False,
) -> tuple[Upload, float]:
    """Return an exact sum with secure noise, and the noise's standard deviation in data units.

    `multiplier` is the noise's standard deviation over the sum's sensitivity. Of a symmetric matrix
    an entry off the diagonal counts twice in the norm, and has 1 / sqrt(2) of the noise.
    """
    std, unit = noise_in_units(multiplier), unit_of(bound)
    if symmetric:
        drawn = np.empty_like(total)
        diagonal = np.equal(*np.triu_indices(_size(total)))
        drawn[diagonal] = noise.integers((int(diagonal.sum()),), std)
        pairs = noise_in_units(multiplier / math.sqrt(2))
        drawn[~diagonal] = noise.integers((int((~diagonal).sum()),), pairs)
    else:
        drawn = noise.integers(total.shape, std)
    # Unsigned integers wrap, where others would stick at the end: the sum is that modulo 2^64.
    values = np.stack([total, drawn]).view(np.uint64).sum(axis=0, dtype=np.uint64)
    return Upload(np.asarray(values), unit, symmetric), std * unit


def exact_sum(contribution: OuterSum, keep: npt.NDArray[np.bool_], bound: float) -> Int:
    """Return the sum of the kept records' clipped terms in grid units, some rows at a time.

    A symmetric sum is returned as its upper triangle. A record that is not kept, or whose term is
    not finite, adds nothing.
    """
    n = len(keep)
    if n * SENSITIVITY >= LARGEST_SUM:  # public: null and unsampled records count
        most = LARGEST_SUM // SENSITIVITY
        raise InvalidInput(f"an exact sum must be over fewer than {most} records, got {n}")
    k, m = (rows.shape[1] for rows in contribution.formed(slice(0, 1)))
    at_a_time = min(max(NUMBERS_AT_A_TIME // (k + m), MIN_ROWS), EXACT // SENSITIVITY)

    def summed(ends: tuple[int, int]) -> Int:
        total, space = np.zeros((k, m), np.int64), np.empty((at_a_time, m))
        for start in range(*ends, at_a_time):
            rows = slice(start, min(start + at_a_time, ends[1]))
            a, b = on_grid(contribution, rows, keep[rows], bound, space)
            total += (a.T @ b).astype(np.int64)
        return total

    work = n * (k * m + PASSES * (k + m))
    groups = max(min(work // MIN_GROUP, MAX_GROUPS, MOST_TOTALS // (k * m)), 1)
    ends = [n * i // groups for i in range(groups + 1)]
    total: Int = reduce(operator.iadd, each(summed, pairwise(ends)))
    if contribution.symmetric:
        return np.asarray(total[np.triu_indices(m)])
    return total if contribution.shape is None else total.reshape(contribution.shape)


def on_grid(
    contribution: OuterSum,
    rows: slice,
    keep: npt.NDArray[np.bool_],
    bound: float,
    space: Float,
) -> tuple[Float, Float]:
    """Return whole numbers a and b: a_j b_j' is record j's clipped term in grid units.

    |a_j| |b_j| <= SENSITIVITY, for certain: a computed sum of d squares is at least 1 - d 2^-53 of
    the true one, and a record for which that does not show it becomes zero. If the sum is symmetric
    b is a, or -a. b lies in `space`, which is used again and again: fresh memory costs more time
    than the arithmetic.
    """
    left, right = contribution.formed(rows)
    right = _wide(right, space[: len(keep)])
    left = right if contribution.symmetric else _wide(left)
    factor = contribution.factor
    with np.errstate(all="ignore"):  # records as long as floats go overflow, and are left out
        h, r = np.sqrt(_squares(left)), np.sqrt(_squares(right))
        norms = abs(factor) * h * r
        if contribution.symmetric:
            weights = clip_weights(norms, bound, keep, units=BOUND_UNITS)
            a = _whole(right, np.sqrt(abs(factor) * weights), space[: len(keep)])
            b = a if factor > 0 else -a
        else:
            weights = clip_weights(norms, bound, keep, units=RIGHT_UNITS)
            a = _whole(left, LEFT_UNITS / np.where(h > 0, h, 1.0))
            b = _whole(right, factor * h * weights, space[: len(keep)])
        squares = _squares(a) * _squares(b)
    slack = (a.shape[1] + b.shape[1] + 2) * 2.0**-52
    left_out = ~(keep & (squares <= float(SENSITIVITY**2) * (1 - slack)))  # and what is no number
    a[left_out] = b[left_out] = 0.0
    return a, b


def _wide(rows: Array, space: Float | None = None) -> Float:
    """Return rows in double precision, in main memory; as a copy only where it must be one."""
    if not isinstance(rows, np.ndarray):
        return on_host(rows)
    if space is None or rows.dtype == np.float64:
        return rows.astype(np.float64, copy=False)
    space[...] = rows
    return space


def _squares(rows: Float) -> Float:
    """Return the sum of squares of each row."""
    return np.asarray(array_namespace(rows).vecdot(rows, rows))


def _whole(rows: Float, factors: Float, out: Float | None = None) -> Float:
    """Return the rows times a factor each, rounded to whole numbers."""
    scaled = np.multiply(rows, factors[:, None], out=out)
    return np.asarray(np.rint(scaled, out=scaled))


def _size(triangle: npt.NDArray[Any]) -> int:
    """Return the size of the symmetric matrix that has such an upper triangle."""
    size = (math.isqrt(8 * triangle.size + 1) - 1) // 2
    if triangle.shape != (size * (size + 1) // 2,):
        raise InvalidInput(f"a packed triangle must have 1, 3, 6 ... values, got {triangle.shape}")
    return size


def unpacked(triangle: Float) -> Float:
    """Return the symmetric matrix of which `triangle` is the upper triangle."""
    size = _size(triangle)
    i, j = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[i, j] = matrix[j, i] = triangle
    return matrix


def noise_in_units(multiplier: float) -> float:
    """Return the standard deviation of discrete noise that protects like z * SENSITIVITY.

    The discrete Gaussian of variance s^2 is made from the continuous one of variance s^2 - 4. The
    last factor is for the rounding of this very number, and of the multiplier.
    """
    std = math.hypot(multiplier * SENSITIVITY, 2.0) * (1 + 2.0**-50)
    if not MIN_NOISE <= std <= MAX_NOISE:
        low, high = MIN_NOISE / SENSITIVITY, MAX_NOISE / SENSITIVITY
        raise InvalidInput(
            f"secure noise must have a multiplier from {low:.1e} to {high:.1e}, got {multiplier}"
        )
    return std


def decoded(uploads: Sequence[Upload], asarray: Callable[[Any], Array] | None = None) -> Array:
    """Return the sum of uploads of one kind, in the units of the data.

    Sums of grid units come as NumPy float64 arrays, or as what `asarray` makes of these.
    """
    if not uploads:
        raise InvalidInput("a sum must have at least one upload, got none")
    first = uploads[0]
    for other in uploads[1:]:
        if other.kind != first.kind:
            raise InvalidInput(f"uploads must be of one kind, got {first.kind} and {other.kind}")
    if not first.is_exact:
        return reduce(operator.add, [upload.values for upload in uploads])
    total = np.stack([upload.values for upload in uploads]).sum(axis=0, dtype=np.uint64)
    sums = np.asarray(np.asarray(total).view(np.int64) * first.unit)
    sums = unpacked(sums) if first.symmetric else sums
    return sums if asarray is None else asarray(sums)
