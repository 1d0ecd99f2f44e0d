"""What a stage hands to the gate: numbers computed from records, not yet released.

Nearly every proved release is a sum over records of h_j r_j', and `OuterSum` is that sum, written
once: its total for the fast path, its rows for the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.errors import DPFedCError
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.row_views import Rows
from dpfedc.privacy.sampling import RoundSample, Slots

CHUNK = 4096
"""Records whose left rows are formed at a time, where they are not an array."""


class Batch(Slots, Protocol):
    """What the gate needs to know of the sites whose work it releases."""

    present: Array | None

    @property
    def n_records(self) -> int:
        """Return the number of records, null ones included."""
        ...


class Contribution(Protocol):
    """Unreleased: something whose sum over records can be clipped and let out.

    `like` is an array of the sum's library, precision and device. A `symmetric` sum of matrices is
    released as its upper triangle.
    """

    @property
    def like(self) -> Array:
        """Return an array of the sum's library, precision and device."""
        ...

    @property
    def symmetric(self) -> bool:
        """Return whether the sum is a symmetric matrix."""
        ...

    def clipped(self, bound: float, keep: Array | None) -> Array:
        """Return the sum over the kept records, none of which adds more than `bound`."""
        ...


@dataclass(frozen=True)
class OuterSum:
    """Unreleased: the sum over records of phi_j = factor h_j r_j' (k x m), |phi_j| <= norms_j.

    `left` holds the h_j, as an array (n x k) or as rows that are formed a chunk at a time; `right`
    holds the r_j. The gate chooses weights w so that no record contributes more than the stage's
    sensitivity, and a null or unsampled record nothing. `shape` is what the sum is to be seen as. A
    symmetric sum has the same rows on both sides.
    """

    left: Any
    right: Rows
    norms: Array
    factor: float = 1.0
    shape: tuple[int, ...] | None = None
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.symmetric and (self.left is not self.right or self.shape is not None):
            raise DPFedCError("a symmetric sum must have the same rows on both sides, and no shape")

    @property
    def like(self) -> Array:
        """Return an array of the sum's library, precision and device."""
        return self.norms

    def clipped(self, bound: float, keep: Array | None) -> Array:
        """Return the sum of w_j phi_j with w = clip_weights(norms, bound, keep)."""
        return self.total(clip_weights(self.norms, bound, keep))

    def total(self, weights: Array) -> Array:
        """Return the sum of w_j phi_j: one matrix product."""
        weights = self.factor * weights if self.factor != 1 else weights
        if self._is_view:
            total: Array = 0.0
            for start in range(0, weights.shape[0], CHUNK):
                rows = slice(start, min(start + CHUNK, weights.shape[0]))
                left = self.left.formed(rows) * weights[rows][:, None]
                total = left.T @ self.right.formed(rows) + total
        else:
            total = self.right.weighted_sums(self.left * weights[:, None])
        if self.shape is None:
            return total
        return array_namespace(total).reshape(total, self.shape)

    def formed(self, rows: slice) -> tuple[Array, Array]:
        """Return the left and right rows of consecutive records; of a symmetric sum, one for both.

        Neither the factor nor a weight is in them.
        """
        right = self.right.formed(rows)
        if self.symmetric:
            return right, right
        return (self.left.formed(rows) if self._is_view else self.left[rows, :]), right

    @property
    def _is_view(self) -> bool:
        return hasattr(self.left, "weighted_sums")


@dataclass(frozen=True)
class KernelSum:
    """Unreleased: an outer sum whose norms are known to the kernel alone that sums the records.

    `summed(bound, keep)` returns the sum of w_j phi_j with w = clip_weights(norms, bound, keep).
    The gate still says which records are kept (None: all) and how long they may be, and the kernel
    applies its copy of the rule record by record, before the sum. Nothing else comes out of it.
    """

    summed: Callable[[float, Array | None], Array]
    like: Array
    symmetric: bool = False

    def clipped(self, bound: float, keep: Array | None) -> Array:
        """Return the sum over the kept records, none of which adds more than `bound`."""
        return self.summed(bound, keep)


@dataclass(frozen=True)
class SiteValues:
    """Unreleased: one array per site, stacked, each already clipped by the steps that made it.

    What one record can change is proved for the stage, not clipped here. `noise_std` is for methods
    without a proof: the noise that they state for each site.
    """

    values: Array
    noise_std: npt.NDArray[Any] | None = None
    symmetric: bool = False

    @property
    def like(self) -> Array:
        """Return an array of the sum's library, precision and device."""
        return self.values

    def clipped(self, bound: float, keep: Array | None) -> Array:
        """Return the sum over the sites."""
        return array_namespace(self.values).sum(self.values, axis=0)


Part = tuple[Contribution, Batch, RoundSample]
"""What some of a round's sites contribute."""


def kept(batch: Batch, sample: RoundSample, like: Array) -> Array | None:
    """Return which records are neither null nor left out of the round (None: all are in it)."""
    keep = batch.present
    if sample.in_round is not None:
        drawn = array_namespace(like).asarray(sample.in_round, device=device(like))
        keep = drawn if keep is None else keep & drawn
    return keep


def summed(part: Part, bound: float = math.inf) -> Array:
    """Return the sum of what some sites contribute, clipped, without noise."""
    contribution, batch, sample = part
    return contribution.clipped(bound, kept(batch, sample, contribution.like))
