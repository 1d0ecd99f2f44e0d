"""Random numbers keyed by what they are for, so that no result depends on order or batching.

This is the randomness of simulation. It is reproducible on purpose and therefore protects nobody:
noise and coins of deployed sites never come from here.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Randomness:
    """The source of all random numbers of one simulated run, named by one seed."""

    seed: int

    def generator(self, purpose: str, *, site: int = 0, t: int = 0) -> np.random.Generator:
        """Return a generator of its own for this purpose, site and round."""
        key = (zlib.crc32(purpose.encode()), site, t)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    def uniform(
        self, purpose: str, *, t: int, sites: npt.NDArray[Any], slots: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Return one number in [0, 1) per record, a function of its site, slot and round alone.

        A record draws the same number whether its site is processed alone or among a million.
        """
        start = int(self.generator(purpose, t=t).integers(2**63))
        keys = _mixed(np.asarray(sites, np.uint64) + _mixed(np.asarray([start], np.uint64)))
        bits = _mixed(keys + np.asarray(slots, np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        return np.asarray((bits >> np.uint64(11)) * 2.0**-53)


def _mixed(x: UInt64) -> UInt64:
    """Return the splitmix64 finaliser of each entry: a bijection that scrambles all bits."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
