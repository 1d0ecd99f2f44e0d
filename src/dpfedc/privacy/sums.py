"""What a method hands to the gate: numbers computed from records, not yet released."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from dpfedc.kernels import Array
from dpfedc.privacy.sampling import Rows


class Batch(Rows, Protocol):
    """What the gate needs to know of the sites whose work it releases."""

    present: Array | None

    @property
    def n_records(self) -> int:
        """Return the number of records, null ones included."""
        ...


@dataclass(frozen=True)
class RecordSum:
    """Unreleased: the sum over records of phi_j, where |phi_j| <= norms_j.

    `total(w)` returns the sum of w_j phi_j. The gate chooses w so that no record contributes more
    than `bound`, and a null or unsampled record nothing: `bound` is the sum's sensitivity. A
    `symmetric` sum of x x' is released as its upper triangle.

    `terms(rows)` returns the phi_j of consecutive rows, stacked, neither clipped nor weighted: what
    exact sums are made of.

    There may be several `sums` of the same records in one: then norms and w have a row for each,
    and the bound is that of a record in one of them.
    """

    norms: Array
    bound: float
    total: Callable[[Array], Array]
    symmetric: bool = False
    terms: Callable[[slice], Array] | None = None
    sums: int = 1

    @property
    def sensitivity(self) -> float:
        """Return the bound of a record in all sums together."""
        return self.bound * math.sqrt(self.sums)

    @property
    def like(self) -> Array:
        """Return an array of the sum's library, precision and device."""
        return self.norms


@dataclass(frozen=True)
class ClippedSum:
    """Unreleased: a `RecordSum` whose norms are known to the kernel alone that sums the records.

    `clipped(bound, keep)` returns the sum of w_j phi_j with w = clip_weights(norms, bound, keep).
    The gate still says which records are kept (None: all) and how long they may be, and the kernel
    applies its rule record by record, before the sum. Nothing else comes out of it, so the bound is
    the sensitivity for the same reason: |w_j phi_j| <= bound, and w_j = 0 where a record is null.
    `like` is an array of the sum's library, precision and device.
    """

    bound: float
    clipped: Callable[[float, Array | None], Array]
    like: Array
    symmetric = False

    @property
    def sensitivity(self) -> float:
        """Return the bound."""
        return self.bound


@dataclass(frozen=True)
class SiteValues:
    """Unreleased: one array per site, stacked, whose sum one record changes by `sensitivity`.

    `noise_std` is for the published variant alone: the noise that the paper states, per site.
    """

    values: Array
    sensitivity: float = math.inf
    noise_std: npt.NDArray[Any] | None = None
    symmetric = False

    @property
    def like(self) -> Array:
        """Return an array of the sum's library, precision and device."""
        return self.values


@dataclass(frozen=True)
class SiteUploads:
    """Unreleased: one array per site, stacked, to be let out one by one with the stated noise.

    Some methods of the literature upload points. Nothing is proved for that, so a gate with a plan
    refuses it.
    """

    values: Array
    noise_std: npt.NDArray[Any] | None = None


Contribution = RecordSum | ClippedSum | SiteValues | SiteUploads
