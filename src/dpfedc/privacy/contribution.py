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
    """

    norms: Array
    bound: float
    total: Callable[[Array], Array]
    symmetric: bool = False
    terms: Callable[[slice], Array] | None = None

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


@dataclass(frozen=True)
class SiteUploads:
    """Unreleased: one array per site, stacked, to be let out one by one with the stated noise.

    Some methods of the literature upload points. Nothing is proved for that, so a gate with a plan
    refuses it.
    """

    values: Array
    noise_std: npt.NDArray[Any] | None = None


Contribution = RecordSum | SiteValues | SiteUploads
