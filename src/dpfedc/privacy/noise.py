"""Where noise comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpfedc.randomness import Randomness

SIMULATED = "simulated noise: not a private release"
COHORT = 2**32 - 1
"""Less the first site's number, it keys the noise that is drawn once for many sites."""


class Noise(Protocol):
    """A source of Gaussian noise. `stamp` goes with every result made with it."""

    @property
    def stamp(self) -> str | None:
        """Return what must be said of results made with it; None for deployed noise."""
        ...

    def gaussian(
        self, shape: tuple[int, ...], std: float, *, stage: str, t: int, sites: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Return fresh noise of the given standard deviation for these sites' release."""
        ...


@dataclass(frozen=True)
class SimulatedNoise:
    """Noise from a seeded generator, for simulation: anyone with the seed can take it off again."""

    randomness: Randomness
    stamp: str | None = SIMULATED

    def gaussian(
        self, shape: tuple[int, ...], std: float, *, stage: str, t: int, sites: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Return noise keyed by stage, round and site; many sites at once share one draw.

        Cohorts of one round have no site in common, so no two of them share a first site.
        """
        site = int(sites[0]) if len(sites) == 1 else COHORT - int(min(sites))
        rng = self.randomness.generator(f"noise {stage}", site=site, t=t)
        return std * rng.standard_normal(shape)
