"""JSON from elsewhere, read within bounds: how long it is, how deep, and how many values it has.

All three are found out in one pass over the bytes, before anything is made of them. What can be
read in two ways is refused: a name that is there twice, and numbers that are not finite.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from dpfedc.errors import InvalidInput

MAX_DEPTH, MAX_ITEMS = 16, 1_000_000
"""An agreement goes 5 deep, and has 300,000 values with the largest schema."""
_DEEPER = np.zeros(256, dtype=np.int32)
_DEEPER[list(b"[{")], _DEEPER[list(b"]}")] = 1, -1
_ITEM = np.zeros(256, dtype=np.bool_)
_ITEM[list(b",[{")] = True
"""Every value but the first stands behind one of these."""


def bounded_json(text: str | bytes, *, most: int, most_items: int = MAX_ITEMS) -> Any:
    """Return what a text of at most so many bytes says; anything else is refused."""
    try:
        data = text.encode() if isinstance(text, str) else text
        if len(data) > most:
            raise ValueError(f"it must be at most {most:,} bytes long, got {len(data):,}")
        _require_small(data, most_items)
        return json.loads(
            str(data, "utf-8"),  # as bytes it might be read in another encoding than it was counted
            object_pairs_hook=_each_once,
            parse_constant=_finite,
            parse_float=_finite,
        )
    except ValueError as error:
        raise InvalidInput(f"not JSON within bounds: {error}") from error


def _require_small(data: bytes, most_items: int) -> None:
    """Refuse what nests too deep or has too many values; quotes and brackets in strings are none.

    Without escaped backslashes and quotes, every other quote ends a string. A backslash outside of
    one is no JSON: what follows it is not read, so it need not be counted rightly.
    """
    code = np.frombuffer(data.replace(rb"\\", b"").replace(rb"\"", b""), dtype=np.uint8)
    outside = code[np.cumsum(code == ord('"'), dtype=np.int32) & 1 == 0]
    n_items = int(np.count_nonzero(_ITEM[outside]))
    if n_items > most_items:
        raise ValueError(f"it must have at most {most_items:,} values, got {n_items:,}")
    depth = int(np.cumsum(_DEEPER[outside], dtype=np.int32).max(initial=0))
    if depth > MAX_DEPTH:
        raise ValueError(f"it must nest at most {MAX_DEPTH} deep, got {depth:,}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("every name must be there once, got one twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("its numbers must be finite, got others")
    return value
