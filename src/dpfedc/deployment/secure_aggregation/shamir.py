"""Shamir's secret sharing: a secret of 32 bytes, any `threshold` shares of which bring it back.

A secret is a number below 2^256, and shares are values of a random polynomial over the prime field
of 2^256 + 297 elements. Fewer shares than the threshold are independent of the secret.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from dpfedc.errors import InvalidInput

PRIME = 2**256 + 297
"""The least prime above 2^256."""
SECRET_BYTES, SHARE_BYTES = 32, 40
"""A share takes 33 bytes; all lengths are whole numbers of 8."""


def shared(secret: bytes, points: Iterable[int], threshold: int) -> dict[int, bytes]:
    """Return a share for each point, a whole number from 1 on."""
    if len(secret) != SECRET_BYTES or threshold < 1:
        raise InvalidInput(f"a secret must have {SECRET_BYTES} bytes and a threshold of 1 or more")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "little"))
    found = {}
    for x in points:
        if not 0 < x < PRIME:  # at 0 lies the secret itself
            raise InvalidInput(f"a point must be a whole number from 1 on, got {x}")
        value = 0
        for coefficient in coefficients:
            value = (value * x + coefficient) % PRIME
        found[x] = value.to_bytes(SHARE_BYTES, "little")
    return found


def is_share(data: bytes) -> bool:
    """Return whether this can be a share."""
    return len(data) == SHARE_BYTES and int.from_bytes(data, "little") < PRIME


def recovered(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret from as many shares as its threshold; None if no secret has these."""
    points = tuple(sorted(shares))
    values = (int.from_bytes(shares[x], "little") for x in points)
    total = sum(w * v for w, v in zip(_weights(points), values, strict=True))
    secret = total % PRIME
    return None if secret >= 2 ** (8 * SECRET_BYTES) else secret.to_bytes(SECRET_BYTES, "little")


@lru_cache(maxsize=4096)
def _weights(points: Sequence[int]) -> tuple[int, ...]:
    """Return Lagrange's weights at 0: products of x_j / (x_j - x_i) over all j but i."""
    whole = math.prod(points)
    below = [x * math.prod(y - x for y in points if y != x) % PRIME for x in points]
    return tuple(whole * pow(value, -1, PRIME) % PRIME for value in below)
