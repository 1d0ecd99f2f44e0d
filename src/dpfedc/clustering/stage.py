"""What a stage is: one step of clustering, which says everything about itself once.

A stage says what it is for, which broadcast arrays its sites read, what it makes and within which
ranges, what an upload looks like, and how far one record can move it. The engine, the gate, a
deployed site, the words of a plan and the report ask the stage; none of them knows which stage it
has in hand. `tests/clustering/test_stage_conformance.py` holds every stage to what it says.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.column_view import VIEW
from dpfedc.kernels.devices import on_accelerator, on_host_once
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import Contribution, Part
from dpfedc.randomness import Randomness

State = Mapping[str, Array]
"""What the server holds and broadcasts: named arrays, all public."""
Shape = tuple[int, ...]
SLACK = 1 + 1e-6
"""Room for rounding where a broadcast lies on the edge of its range."""


@dataclass(frozen=True)
class Entry:
    """A named array of the state: its shape, and what a site accepts of it.

    `within(values, broadcast)` says whether the values are in the range of the stage that makes
    them. It may look at other arrays of the broadcast, whose names are in `needs`.
    """

    shape: Shape
    within: Callable[[npt.NDArray[Any], State], bool] = lambda _, __: True
    needs: tuple[str, ...] = ()


Known = Mapping[str, Entry]
"""The arrays that are known when a stage begins, or that it adds."""


def at_most(size: float) -> Callable[[npt.NDArray[Any], State], bool]:
    """Return the range of arrays whose entries are at most so large, but for rounding."""
    return lambda values, _: float(np.abs(values).max(initial=0.0)) <= size * SLACK


@dataclass(frozen=True)
class Form:
    """What all uploads of a round have in common. A symmetric matrix travels as its triangle."""

    shape: Shape
    symmetric: bool = False


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
    def n_sites(self) -> int:
        """Return the number of sites."""
        return len(self.records_per_site)

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


class Stage(ABC):
    """One step of clustering. Settings are fields; everything that changes is in the state.

    A stage is `proved` if every release it makes has a row in docs/privacy-proof.md, and `deployed`
    if its sites keep nothing between rounds and release one exact sum a round. A stage that
    `listens` also works, without releasing anything, at the sites that do not take part in a round.
    One that `sums_records` contributes sums over records and reads them through the standardised
    view alone, so a round may be worked through in parts and in place.
    """

    name: str
    """A format: it stands in plans, ledgers, messages and the keys of random numbers."""
    purpose: str
    """What the stage finds out, for people."""
    n_rounds: int
    sites_per_round: int | None = None
    """How many sites take part in a round (None: all)."""
    sampling_probability: float = 1.0
    """The chance of a record to be in a round."""
    proved: bool = True
    listens: bool = False
    sums_records: bool = True
    reads: tuple[str, ...] = ()
    """The arrays of the state that a site's work depends on; absent ones are not sent."""
    optional: bool = False
    """Whether a run may do without it, if all its rounds are lost."""

    @property
    def deployed(self) -> bool:
        """Return whether separate sites can run the stage."""
        return self.proved and self.sums_records and not self.listens

    def taking_part(self, n_sites: int) -> int:
        """Return how many of the sites take part in a round."""
        return self.sites_per_round or n_sites

    def turn(self, t: int) -> int:
        """Return which of the stage's own rounds round t is: a spare one stands for the last."""
        return min(t, self.n_rounds)

    def starts(self, known: Known, n_features: int) -> Known:
        """Return the arrays that `start` adds to the state."""
        return {}

    def makes(self, known: Known, n_features: int) -> Known:
        """Return the arrays that `combine` adds to the state, or gives another range."""
        return {}

    def upload(self, known: Known, n_features: int) -> Form:
        """Return the form of a site's upload."""
        raise InvalidInput(f"stage {self.name!r} has no proof, and cannot be deployed")

    def sensitivity(self, state: State, t: int) -> float:
        """Return the most that one record can move round t's sum; what records are clipped to."""
        return math.inf

    def told(self, noise: float, n_records: int) -> Self:
        """Return the stage with what it may know of the noise that its sums will have.

        `noise` is the standard deviation over the sensitivity in a sum over all that take part.
        """
        return self

    def finding(self, n_clusters: int) -> Self:
        """Return the stage that finds so many clusters, where it would choose their number."""
        return self

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state before round 1; sees no data."""
        return state

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        """Return what each record keeps at its site during the stage (one row per record)."""
        return {}

    def memory_factor(self, X: Array, state: State) -> float:
        """Return how many times as much memory as usual a round needs for a record."""
        return 1.0

    def listen(self, batch: SiteBatch, state: State) -> None:
        """Do what a site does in a round that it only hears of."""
        return

    def n_parts(self, t: int) -> int:
        """Return into how many parts the records of round t are dealt."""
        return 1

    @abstractmethod
    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> Contribution:
        """Return what the batch's sites contribute to round t, not yet released."""

    @abstractmethod
    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state after round t, from released values only."""

    def hopeless(self, n_records: int) -> str:
        """Return why so few records cannot stand out from the noise, or "" if they can."""
        return ""

    def doubts(self, state: State) -> tuple[str, ...]:
        """Return what in a run's last state looks like noise, from released values alone."""
        return ()

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        """Return exact measures of progress over all sites; for simulation only."""
        return {}


def known_to(stages: Iterable[Stage], declared: Known, n_features: int) -> list[dict[str, Entry]]:
    """Return, for each stage, the arrays that are known once it has started."""
    known, found = dict(declared), []
    for stage in stages:
        known |= stage.starts(known, n_features)
        found.append(dict(known))
        known |= stage.makes(known, n_features)
    return found


def sent(stage: Stage, known: Known) -> dict[str, Entry]:
    """Return what a site must be sent: what the stage reads, and what its ranges need.

    Every stage reads its records through the columns' view, once there is one.
    """
    names = [name for name in (*VIEW, *stage.reads) if name in known]
    for name in names:  # grows while it is read
        names += [other for other in known[name].needs if other in known and other not in names]
    return {name: known[name] for name in names}


class Sampler(Protocol):
    """What draws the records of a round: a gate."""

    def sample(self, batch: SiteBatch, *, stage: str, t: int, n_parts: int = 1) -> RoundSample:
        """Return which records are in the round, and in which of its parts."""
        ...


def contributed(
    stage: Stage, batch: SiteBatch, state: State, t: int, gate: Sampler, randomness: Randomness
) -> Part:
    """Return what a batch of sites contributes to a round, of the records that the gate samples."""
    turn = stage.turn(t)
    sample = gate.sample(batch, stage=stage.name, t=t, n_parts=stage.n_parts(turn))
    return stage.local(batch, state, turn, sample, randomness), batch, sample
