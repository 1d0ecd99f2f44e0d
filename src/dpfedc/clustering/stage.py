"""What a method is: start on the server, local work on a batch of sites, combine on the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_accelerator
from dpfedc.kernels.host import on_host_once
from dpfedc.privacy.gate import Contribution, Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness

State = Mapping[str, Array]
"""What the server holds and broadcasts: named arrays, all public."""


def broadcast(state: State, name: str, *, above: float | None = None, most: float = 0.0) -> Array:
    """Return a broadcast array, refused unless it is finite and within the given limits.

    A site does not rely on an honest server: numbers out of range would cost the precision that
    clipping needs. The refusal depends on the broadcast alone. `most` limits the size of every
    entry (0: any finite size).
    """
    values = state[name]
    # One small copy costs an accelerator less than the same checks there.
    looked_at = on_host_once(values) if on_accelerator(values) else values
    xp = array_namespace(looked_at)
    good = xp.isfinite(looked_at)
    if above is not None:
        good = good & (looked_at > above)
    if most:
        good = good & (xp.abs(looked_at) <= most)
    if not bool(xp.all(good)):
        low = "" if above is None else f" and > {above}"
        high = f" and at most {most} in size" if most else ""
        raise InvalidInput(f"the broadcast {name!r} must be finite{low}{high}, got other values")
    return values


@dataclass(frozen=True)
class Public:
    """What everyone may know of the data: how many features, how many records at each site."""

    n_features: int
    records_per_site: npt.NDArray[np.int64]
    asarray: Callable[[Any], Array]
    """Turns a NumPy array into one of the data's library, precision and device."""

    @property
    def n_records(self) -> int:
        """Return the number of records of all sites."""
        return int(self.records_per_site.sum())


@dataclass
class SiteBatch:
    """Records of one or many sites, stacked: site i holds rows offsets[i] to offsets[i+1].

    `sites` are the sites' numbers in the federation, and with a record's slot they key its random
    numbers. `present` marks records that are not null (None: all are). `memory` holds arrays with
    one row per record that stay at the site between rounds.
    """

    X: Array
    offsets: npt.NDArray[np.int64]
    sites: npt.NDArray[np.int64]
    present: Array | None = None
    memory: dict[str, Array] = field(default_factory=dict)

    @property
    def n_records(self) -> int:
        """Return the number of records in the batch, null ones included."""
        return int(self.offsets[-1])


class Method(Protocol):
    """One step of clustering. Settings are fields; everything that changes is in the state.

    A method with `listens` set also works, without releasing anything, at the sites that do not
    take part in a round. One with `sums_records` set contributes sums over records and reads them
    through the standardised view alone, so a round may be worked through in parts and in place.
    """

    name: str
    n_rounds: int
    listens: bool = False
    sums_records: bool = False

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state before round 1; sees no data."""
        return state

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        """Return what each record keeps at its site during the stage (one row per record)."""
        return {}

    def weight(self, X: Array, state: State) -> float:
        """Return how many times as much memory as usual a round needs for a record."""
        return 1.0

    def listen(self, batch: SiteBatch, state: State) -> None:
        """Do what a site does in a round that it only hears of."""
        return

    def n_parts(self, t: int) -> int:
        """Return into how many parts the records of round t are dealt."""
        return 1

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> Contribution:
        """Return what the batch's sites contribute to round t, not yet released."""
        ...

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state after round t, from released values only."""
        ...

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        """Return exact measures of progress over all sites; for simulation only."""
        return {}


@dataclass(frozen=True)
class Stage:
    """A method to be run for its rounds, with `sites_per_round` sites in each (None: all)."""

    method: Method
    sites_per_round: int | None = None
