"""Exact sums: every record is put on a grid of integers, so that no rounding depends on others.

A record's clipped phi_j becomes a vector of integers no longer than SENSITIVITY units, which is
checked, and the integers are added without error. Taking a record out of the sum then moves it by
at most SENSITIVITY, to the last bit (docs/privacy-proof.md, section 12). Sums and noise are added
modulo 2^64.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.noise import SecureNoise

SENSITIVITY = 2**30
"""The most that one record can move a sum, in grid units."""
BOUND_UNITS = 2**30 - 2**10
"""How many grid units the bound is: a hair below SENSITIVITY, so that rounding cannot reach it."""
LARGEST_SUM = 2**62
MIN_NOISE, MAX_NOISE = 1000.0, 2.0**50
"""The noise's standard deviation in grid units: so that its law is as proved, and none wraps."""
NUMBERS_AT_A_TIME = 2**20

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


def exact_upload(
    total: Int,
    bound: float,
    *,
    noise: SecureNoise,
    multiplier: float,
    symmetric: bool = False,
) -> tuple[Upload, float]:
    """Return an exact sum with secure noise, and the noise's standard deviation in data units.

    `multiplier` is the noise's standard deviation over the sum's sensitivity.
    """
    std, unit = noise_in_units(multiplier), bound / BOUND_UNITS
    drawn = noise.integers(total.shape, std)
    # Unsigned integers wrap, where others would stick at the end: the sum is that modulo 2^64.
    values = np.stack([total, drawn]).view(np.uint64).sum(axis=0, dtype=np.uint64)
    return Upload(np.asarray(values), unit, symmetric), std * unit


def exact_sum(
    terms: Callable[[slice], Array],
    keep: npt.NDArray[np.bool_],
    bound: float,
    *,
    symmetric: bool = False,
) -> Int:
    """Return the sum of the kept records' clipped terms in grid units, a chunk of rows at a time.

    A symmetric sum of matrices is returned packed. A record that is not kept, or whose term is not
    finite, adds nothing.
    """
    if len(keep) * SENSITIVITY >= LARGEST_SUM:  # public: null and unsampled records count
        most = LARGEST_SUM // SENSITIVITY
        raise InvalidInput(f"an exact sum must be over fewer than {most} records, got {len(keep)}")
    shape = tuple(terms(slice(0, 1)).shape)[1:]
    at_a_time = max(NUMBERS_AT_A_TIME // max(math.prod(shape), 1), 1)
    total = np.zeros(packed(np.zeros((1, *shape))).shape[1:] if symmetric else shape, np.int64)
    for start in range(0, len(keep), at_a_time):
        rows = slice(start, min(start + at_a_time, len(keep)))
        phi = on_host(terms(rows))
        phi = packed(phi) if symmetric else phi
        total += on_grid(phi, keep[rows], bound).sum(axis=0)
    return total


def on_grid(phi: Float, keep: npt.NDArray[np.bool_], bound: float) -> Int:
    """Return each record's term, clipped to the bound and rounded toward zero to grid units.

    The rows returned are no longer than SENSITIVITY, for certain: a computed sum of d squares is at
    least 1 - d 2^-52 of the true one, and a row for which that does not show it is left out.
    """
    rows = phi.reshape(len(phi), -1)
    with np.errstate(all="ignore"):  # records as long as floats go overflow, and are left out
        norms = np.sqrt(np.einsum("jd,jd->j", rows, rows))
        units = np.trunc(rows * clip_weights(norms, bound, units=BOUND_UNITS)[:, None])
        squares = np.einsum("jd,jd->j", units, units)
    limit = float(SENSITIVITY**2) * (1 - (rows.shape[1] + 2) * 2.0**-52)
    fits = keep & (squares <= limit)  # also false for what is not a number
    return np.where(fits[:, None], units, 0.0).astype(np.int64).reshape(phi.shape)


def packed(matrices: Float) -> Float:
    """Return the upper triangles of symmetric matrices (b x m x m), off-diagonals times sqrt(2).

    Such a vector has the norm of the whole matrix, so that one noise fits all its entries.
    """
    i, j = np.triu_indices(matrices.shape[-1])
    return np.asarray(matrices[:, i, j] * np.where(i == j, 1.0, math.sqrt(2)))


def unpacked(values: Float) -> Float:
    """Return the symmetric matrix of which `values` are the packed upper triangle."""
    size = (math.isqrt(8 * values.size + 1) - 1) // 2
    if values.shape != (size * (size + 1) // 2,):
        raise InvalidInput(f"a packed triangle must have 1, 3, 6 ... values, got {values.shape}")
    i, j = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[i, j] = matrix[j, i] = values * np.where(i == j, 1.0, 1 / math.sqrt(2))
    return matrix


def noise_in_units(multiplier: float) -> float:
    """Return the standard deviation of discrete noise that protects like z * SENSITIVITY.

    The discrete Gaussian of variance s^2 is made from the continuous one of variance s^2 - 4. The
    last factor is for the rounding of this very number.
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
