"""The steps of secure aggregation as arrays in messages, for both sides.

Sites are named by their numbers in the agreement. Bytes travel as 64-bit words, since messages have
no other type for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dpfedc.deployment.keys import SIGNATURE_BYTES
from dpfedc.deployment.messages import Arrays
from dpfedc.deployment.secure_aggregation.masks import BOX_BYTES, BUNDLE_BYTES, Words
from dpfedc.deployment.secure_aggregation.shamir import SHARE_BYTES
from dpfedc.errors import InvalidInput

SITES, PARTS = "masks.sites", "masks.parts"
"""Who is in a step, and what goes with it: one row for each site that it is from, or for."""
OWNERS = "masks.owners"
"""Whose parts these are, where that does not follow from who is in the step."""
BYTES = {
    "keys": BUNDLE_BYTES, "shares": BOX_BYTES, "agree": SIGNATURE_BYTES, "open": SHARE_BYTES,
}  # fmt: skip
"""How long a part of a step's answer is; the next step's request has the same parts."""
MAX_WORDS_OF_A_PEER = BUNDLE_BYTES // 8 + 4
"""Words that a message has for each site at most, numbers included."""


def as_sites(numbers: Iterable[int]) -> Words:
    """Return sites' numbers as an array."""
    return np.array(list(numbers), dtype=np.uint64)


def sites_of(arrays: Arrays, name: str = SITES) -> list[int]:
    """Return sites' numbers from an array; anything else is refused."""
    values = arrays.get(name)
    if values is None or values.ndim != 1 or values.dtype.kind != "u":
        raise InvalidInput(f"{name} must be a list of sites' numbers, got something else")
    return [int(value) for value in values]


def as_parts(parts: Iterable[bytes], n_bytes: int) -> Words:
    """Return parts of one length as the rows of an array."""
    joined = b"".join(parts)
    return np.frombuffer(joined, dtype="<u8").reshape(-1, n_bytes // 8)


def parts_of(arrays: Arrays, n_bytes: int) -> list[bytes]:
    """Return the parts of one length that an array holds; anything else is refused."""
    values = arrays.get(PARTS)
    if values is None or values.dtype.kind != "u" or values.shape[1:] != (n_bytes // 8,):
        raise InvalidInput(f"{PARTS} must be rows of {n_bytes} bytes, got something else")
    return [row.astype("<u8").tobytes() for row in values]


def told_to(step: str, owners: Sequence[int], parts: Sequence[bytes]) -> dict[str, Words]:
    """Return an answer's parts, each for or about one site."""
    return {OWNERS: as_sites(owners), PARTS: as_parts(parts, BYTES[step])}


def told_by(step: str, arrays: Arrays) -> dict[int, bytes]:
    """Return an answer's parts by their sites, or refuse it."""
    found = parts_by_site(step, arrays)
    if arrays.keys() != {OWNERS, PARTS}:
        raise InvalidInput("an answer must have its parts and nothing else")
    return found


def parts_by_site(step: str, arrays: Arrays) -> dict[int, bytes]:
    """Return the parts of a step's answers by their sites, of which each must be there once."""
    owners, parts = sites_of(arrays, OWNERS), parts_of(arrays, BYTES[step])
    if len(set(owners)) != len(owners) or len(owners) != len(parts):
        raise InvalidInput("parts must be of different sites, one of each, got others")
    return dict(zip(owners, parts, strict=True))


def of_masks(arrays: Arrays) -> tuple[Mapping[str, Words], dict[str, Words]]:
    """Return the broadcast of a request, and what it says of masks."""
    masks = {name: values for name, values in arrays.items() if name in (SITES, PARTS, OWNERS)}
    return {name: v for name, v in arrays.items() if name not in masks}, masks
