"""Which records are in a round, and in which of its parts.

Records draw independent coins, or all of them take part and are dealt by slot. Nothing in between:
reshuffling, epochs and round-robin dealing of sampled records break the bound that is accounted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpfedc.randomness import Randomness


def site_of_row(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the position of the site that each row belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def slot_of_row(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each row's number within its own site, from 0."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


class Slots(Protocol):
    """What sampling needs to know of a batch: where its sites' rows are, and whose they are."""

    offsets: npt.NDArray[np.int64]
    sites: npt.NDArray[Any]


@dataclass(frozen=True)
class RoundSample:
    """The part (0 to n_parts - 1) that each record is in, or -1 for a record not in the round.

    `probability` is each record's chance to be in the round, independent of every other record and
    round: it is what the round's event states. `part` None: every record is in part 0.
    """

    probability: float
    n_parts: int
    part: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.part is not None:
            self.part.setflags(write=False)  # what was drawn stays as it was drawn

    @property
    def in_round(self) -> npt.NDArray[np.bool_] | None:
        """Return which records are in the round (None: all)."""
        return None if self.part is None or self.probability == 1 else self.part >= 0


def sampled_by_slot(rows: Slots, n_parts: int) -> RoundSample:
    """Return all records, dealt in turn by their slot: a fixed, balanced partition."""
    if n_parts == 1:
        return RoundSample(1.0, 1)
    return RoundSample(1.0, n_parts, slot_of_row(rows.offsets) % n_parts)


def sampled_by_coins(
    rows: Slots, probability: float, n_parts: int, *, randomness: Randomness, stage: str, t: int
) -> RoundSample:
    """Return each record with the given probability, in a part drawn uniformly.

    One uniform number decides both: below `probability` the record is in, and where below it says
    in which part.
    """
    position = site_of_row(rows.offsets)
    draw = randomness.uniform(
        f"coins {stage}",
        t=t,
        sites=np.asarray(rows.sites)[position],
        slots=slot_of_row(rows.offsets),
    )
    part = np.floor(draw * (n_parts / probability)).astype(np.int64)
    return RoundSample(probability, n_parts, np.where(part < n_parts, part, -1))


def sampled_by_secret_coins(rows: Slots, probability: float) -> RoundSample:
    """Return each record with the given probability, by coins that nobody can toss again.

    Every coin is 53 bits of the operating system's own; a record is in the round with the largest
    multiple of 2^-53 that is not above `probability`.
    """
    n = int(rows.offsets[-1])
    bits = np.frombuffer(os.urandom(8 * n), dtype=np.uint64) >> np.uint64(11)
    inside = bits < np.uint64(int(probability * 2**53))
    return RoundSample(probability, 1, np.where(inside, 0, -1))


class Unused:
    """What was dealt and has not been released: of each stage, the round dealt last.

    Coins count as fresh and independent in every release, so a dealing is taken once, in its own
    round, for the sites and sizes it was dealt for.
    """

    def __init__(self) -> None:
        self._dealt: dict[tuple[str, int, bytes, bytes], RoundSample] = {}

    def __len__(self) -> int:
        """Return how many dealings wait for their release."""
        return len(self._dealt)

    def keep(self, sample: RoundSample, rows: Slots, *, stage: str, t: int) -> None:
        """Let the dealing be taken in round t, and none of the stage's other rounds any more."""
        for key in [key for key in self._dealt if key[0] == stage and key[1] != t]:
            del self._dealt[key]
        self._dealt[_key(rows, stage, t)] = sample

    def take(self, sample: RoundSample, rows: Slots, *, stage: str, t: int) -> bool:
        """Return whether this was dealt to these rows for round t, which uses it up.

        Where all records take part nothing is drawn: then any dealing by slot will do that has as
        many parts as were asked for (one, if nobody asked).
        """
        key = _key(rows, stage, t)
        dealt = self._dealt.get(key)
        right = sample is dealt
        if sample.probability == 1:
            right = _same(sample, sampled_by_slot(rows, 1 if dealt is None else dealt.n_parts))
        if right:
            self._dealt.pop(key, None)
        return right


def _key(rows: Slots, stage: str, t: int) -> tuple[str, int, bytes, bytes]:
    return stage, t, np.asarray(rows.sites).tobytes(), np.asarray(rows.offsets).tobytes()


def _same(one: RoundSample, other: RoundSample) -> bool:
    if one.part is None or other.part is None:
        return one.n_parts == other.n_parts and one.part is other.part
    return one.n_parts == other.n_parts and np.array_equal(one.part, other.part)
