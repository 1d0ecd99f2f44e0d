"""Where noise comes from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpfedc.errors import MissingExtra
from dpfedc.kernels import Array
from dpfedc.randomness import Randomness

SIMULATED = "simulated noise: not a private release"
"""The stamp of every result that was made with noise from a seeded generator."""
COHORT = 2**32 - 1
"""Less the first site's number, it keys the noise that is drawn once for many sites."""


class Noise(Protocol):
    """A source of Gaussian noise."""

    def gaussian(
        self, shape: tuple[int, ...], std: float, *, stage: str, t: int, sites: npt.NDArray[Any]
    ) -> Array:
        """Return fresh noise of the given standard deviation for these sites' release."""
        ...


@dataclass(frozen=True)
class SimulatedNoise:
    """Noise from a seeded generator, for simulation: anyone with the seed can take it off again."""

    randomness: Randomness

    def gaussian(
        self, shape: tuple[int, ...], std: float, *, stage: str, t: int, sites: npt.NDArray[Any]
    ) -> Array:
        """Return noise keyed by stage, round and site; many sites at once share one draw."""
        return std * self._generator(stage, t, sites).standard_normal(shape)

    def _generator(self, stage: str, t: int, sites: npt.NDArray[Any]) -> np.random.Generator:
        """Return the generator of this release.

        Cohorts of one round have no site in common, so no two of them share a first site.
        """
        site = int(sites[0]) if len(sites) == 1 else COHORT - int(np.min(sites))
        return self.randomness.generator(f"noise {stage}", site=site, t=t)


@dataclass(frozen=True)
class SecureNoise:
    """Noise for deployed sites: integers from an exact discrete Gaussian, drawn by OpenDP.

    OpenDP samples in exact arithmetic (Canonne, Kamath and Steinke 2020) from a cryptographic
    generator that the operating system seeds. There is no seed to give, and no draw comes twice.
    """

    def __post_init__(self) -> None:
        _discrete_gaussian(1.0)  # a missing package is told now, not after a charge

    def integers(self, shape: tuple[int, ...], std: float) -> npt.NDArray[np.int64]:
        """Return independent integers n with probability proportional to exp(-n^2 / (2 std^2))."""
        # OpenDP's integers stick at the ends of 64 bits, so it is given zeros and nothing else.
        zeros = [0] * math.prod(shape)
        return np.asarray(_discrete_gaussian(std)(zeros), dtype=np.int64).reshape(shape)


def _discrete_gaussian(std: float) -> Callable[[list[int]], list[int]]:
    """Return OpenDP's measurement that adds discrete Gaussian noise to integers."""
    try:
        from opendp.domains import atom_domain, vector_domain
        from opendp.measurements import make_gaussian
        from opendp.metrics import l2_distance
        from opendp.mod import enable_features
    except ImportError as error:
        raise MissingExtra("secure noise needs opendp: pip install 'dpfedc[secure]'") from error
    enable_features("contrib")
    integers = vector_domain(atom_domain(T="i64"))
    return make_gaussian(integers, l2_distance(T="f64"), scale=float(std))
