"""The gate of runs without a guarantee: nothing is charged, and results must be stamped so.

It clips by the same rule as `Gate`, and adds only the noise that a method of the literature states
for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from array_api_compat import array_namespace

from dpfedc.errors import DPFedCError
from dpfedc.kernels import Array
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import Released, ReleaseEvent, received, with_noise
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.privacy.sampling import RoundSample, sampled_by_slot
from dpfedc.privacy.sums import Batch, Part, SiteValues, summed


@dataclass(frozen=True)
class SiteUploads:
    """Unreleased: one array per site, stacked, to be let out one by one with the stated noise.

    Some methods of the literature upload points. Nothing is proved for that, so a `Gate` has no
    way to let them out.
    """

    values: Array
    noise_std: npt.NDArray[Any] | None = None
    symmetric: bool = False

    @property
    def like(self) -> Array:
        """Return an array of the uploads' library, precision and device."""
        return self.values

    def clipped(self, bound: float, keep: Array | None) -> Array:
        """Refuse: points are not summed."""
        raise DPFedCError("uploaded points have no sum over records that a gate could let out")


@dataclass
class OpenGate:
    """Lets everything out. `noise` is the source of what a contribution states (None: none)."""

    noise: SimulatedNoise | None = None
    works_in_parts: bool = True

    def sample(self, batch: Batch, *, stage: str, t: int, n_parts: int = 1) -> RoundSample:
        """Return all records, dealt into parts by their slot."""
        return sampled_by_slot(batch, n_parts)

    def release(
        self,
        parts: Iterable[Part],
        sites: npt.NDArray[Any],
        *,
        stage: str,
        t: int,
        sensitivity: float,
    ) -> Released:
        """Return the sum over the sites, or their uploads one by one if that is what they are."""
        value: Array = 0.0
        n_records = 0
        for part in parts:
            contribution, batch, _ = part
            n_records += batch.n_records
            if isinstance(contribution, SiteUploads):
                value = self._points(contribution, stage, t, batch)
                continue
            value = summed(part, sensitivity) + value
            if isinstance(contribution, SiteValues) and contribution.noise_std is not None:
                for i, std in enumerate(contribution.noise_std.tolist()):
                    value = self._noisy(value, std, stage, t, batch.sites[i : i + 1])
        event = ReleaseEvent(stage, t, len(sites), n_records, sensitivity=sensitivity)
        return received([Upload(value)], event)

    def _points(self, uploads: SiteUploads, stage: str, t: int, batch: Batch) -> Array:
        """Return every site's own points with the noise that is stated for them."""
        if uploads.noise_std is None:
            return uploads.values
        noisy = [
            self._noisy(uploads.values[i, ...], std, stage, t, batch.sites[i : i + 1])
            for i, std in enumerate(uploads.noise_std.tolist())
        ]
        return array_namespace(uploads.values).stack(noisy, axis=0)

    def _noisy(self, value: Array, std: float, stage: str, t: int, site: npt.NDArray[Any]) -> Array:
        if self.noise is None:
            raise DPFedCError(f"stage {stage!r} needs noise, but the gate has no source of it")
        noise = self.noise.gaussian(tuple(value.shape), std, stage=stage, t=t, sites=site)
        return with_noise(value, noise)
