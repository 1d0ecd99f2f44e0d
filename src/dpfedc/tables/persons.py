"""All rows of one person become one record, by a rule that looks at no other person's rows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_KEY, _DIGEST = 32, 16


@dataclass(frozen=True)
class DeclaredPersons:
    """The persons that a site declared, in the order of their slots, by digests of their ids.

    The digests are keyed, and stay at the site with the key: they tell whose rows are whose, and
    nothing to anybody else.
    """

    key: bytes
    digests: tuple[str, ...]

    @classmethod
    def of(cls, ids: Iterable[str]) -> DeclaredPersons:
        """Declare these persons, with a key of their own."""
        declared = cls(os.urandom(_KEY), ())
        return replace(declared, digests=tuple(declared.digest(text) for text in ids))

    def digest(self, text: str) -> str:
        """Return what stands for an id."""
        return blake2b(
            text.encode(errors="surrogatepass"), digest_size=_DIGEST, key=self.key
        ).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the key and the digests."""
        return self.key + bytes.fromhex("".join(self.digests))

    @classmethod
    def from_bytes(cls, content: bytes) -> DeclaredPersons:
        """Read what `to_bytes` wrote."""
        text = content[_KEY:].hex()
        digests = (text[i : i + 2 * _DIGEST] for i in range(0, len(text), 2 * _DIGEST))
        return cls(content[:_KEY], tuple(digests))


def per_person(
    X: Floats, persons: Ints, n_persons: int, rule: str, times: Floats | None = None
) -> Floats:
    """Return one row per person, in the order of their numbers; without rows it is all gaps.

    `persons` holds each row's person, -1 for none: such a row is left out. "mean" takes the mean of
    what there is in each column, "first" and "last" one row, by `times` and then by place.
    """
    if rule == "mean":
        return _means(X, persons, n_persons)
    times = np.zeros(len(X)) if times is None else times
    known = np.flatnonzero(persons >= 0)
    # A row without a time is before all others.
    order = known[np.lexsort((known, np.nan_to_num(times[known], nan=-np.inf), persons[known]))]
    owners = persons[order]
    ends = np.flatnonzero(np.append(owners[1:] != owners[:-1], True)) if len(order) else order
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    chosen = order[starts if rule == "first" else ends]
    out = np.full((n_persons, X.shape[1]), np.nan)
    out[persons[chosen]] = X[chosen]
    return out


def _means(X: Floats, persons: Ints, n_persons: int) -> Floats:
    kept = persons >= 0
    owners, out = persons[kept], np.empty((n_persons, X.shape[1]))
    with np.errstate(invalid="ignore"):
        for c in range(X.shape[1]):
            column = X[kept, c]
            there = np.isfinite(column)
            counts = np.bincount(owners[there], minlength=n_persons)
            # Adds up row by row: no other person's rows can change a person's sum.
            out[:, c] = np.bincount(owners[there], column[there], minlength=n_persons) / counts
    return out


def time_of(text: str) -> float:
    """Return a date, a time or a number as a number that orders it; NaN for anything else.

    >>> time_of("2024-03-01") < time_of("2024-03-01T10:00"), time_of("7"), time_of("soon")
    (True, 7.0, nan)
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return float("nan")
    # Not by way of UTC, in which the first and the last day of all may not be.
    ahead = moment.utcoffset() or timedelta()
    return (moment.replace(tzinfo=None) - datetime(1, 1, 1) - ahead).total_seconds()
