"""The release gate: nothing a site computed reaches a server except through `Gate.release`.

A method hands the gate an unreleased contribution; the gate clips it, adds the noise it was made
with, and returns a `Released` value. `Released` cannot be made anywhere else, and the federation
combines nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Any, Protocol

import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.errors import DPFedCError
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights
from dpfedc.randomness import Randomness

_GATE = object()


class Batch(Protocol):
    """What the gate needs to know of the sites whose work it releases."""

    sites: npt.NDArray[Any]
    present: Array | None

    @property
    def n_records(self) -> int:
        """Return the number of records, null ones included."""
        ...


@dataclass(frozen=True)
class RecordSum:
    """Unreleased: the sum over records of phi_j, where |phi_j| <= norms_j.

    `total(w)` returns the sum of w_j phi_j. The gate chooses w so that no record contributes more
    than `bound`, and a null record nothing.
    """

    norms: Array
    bound: float
    total: Callable[[Array], Array]


@dataclass(frozen=True)
class SiteValues:
    """Unreleased: one array per site (stacked on axis 0), and the noise each is to be given."""

    values: Array
    noise_std: npt.NDArray[Any] | None = None


Contribution = RecordSum | SiteValues


@dataclass(frozen=True)
class Released:
    """A sum over sites that has passed the gate, with the public counts it stands for."""

    value: Array
    n_sites: int
    n_records: int
    made_by: InitVar[object]

    def __post_init__(self, made_by: object) -> None:
        if made_by is not _GATE:
            raise DPFedCError("Released values are made by Gate.release only")


@dataclass(frozen=True)
class Gate:
    """The gate of a simulated run without a proved guarantee (`stamp` says which)."""

    randomness: Randomness
    stamp: str

    def release(self, contribution: Contribution, batch: Batch, *, stage: str, t: int) -> Released:
        """Clip, add the stated noise, and let the sum over the batch's sites out."""
        if isinstance(contribution, RecordSum):
            weights = clip_weights(contribution.norms, contribution.bound, batch.present)
            value = contribution.total(weights)
        else:
            value = self._site_sum(contribution, batch, stage, t)
        return Released(value, len(batch.sites), batch.n_records, _GATE)

    def _site_sum(self, upload: SiteValues, batch: Batch, stage: str, t: int) -> Array:
        xp = array_namespace(upload.values)
        value = xp.sum(upload.values, axis=0)
        if upload.noise_std is None:
            return value
        # Each site draws its own noise, so a site's upload does not depend on who else takes part.
        for site, std in zip(batch.sites.tolist(), upload.noise_std.tolist(), strict=True):
            rng = self.randomness.generator(f"noise {stage}", site=int(site), t=t)
            noise = std * rng.standard_normal(value.shape)
            value = value + xp.asarray(noise, dtype=value.dtype, device=device(value))
        return value
