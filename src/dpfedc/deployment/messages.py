"""What travels between coordinator and sites, as bytes.

A message is a magic word, the length of its head, a JSON head, and the raw bytes of its arrays one
after another. The head lists every array's name, type and shape, and the message's length must be
exactly what follows from it: reading never allocates more than it was given, and runs nothing. The
same content always has the same bytes, so a digest identifies it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.ledger import Head
from dpfedc.settings import require_choice, require_integer

Arrays = Mapping[str, npt.NDArray[Any]]

MAGIC = b"dpfedc 2"
TYPES = ("<f8", "<u8")
HEX = frozenset("0123456789abcdef")
MAX_BYTES = 256 * 2**20
MAX_HEAD, MAX_ARRAYS, MAX_DIMENSIONS = 64 * 1024, 16, 3


def packed(head: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Return head and arrays as bytes; equal content has equal bytes."""
    plain = {name: np.asarray(values) for name, values in sorted(arrays.items())}
    listed = []
    for name, values in plain.items():
        kind = values.dtype.newbyteorder("<").str
        listed.append([name, require_choice(f"the type of {name}", kind, TYPES), [*values.shape]])
    text = json.dumps(
        {**head, "arrays": listed}, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()
    little = [values.astype(values.dtype.newbyteorder("<")) for values in plain.values()]
    body = b"".join(values.tobytes() for values in little)
    return MAGIC + struct.pack("<I", len(text)) + text + body


def unpacked(
    data: bytes, *, most: int = MAX_BYTES, most_head: int = MAX_HEAD
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the head and the arrays of what `packed` made; anything else is refused."""
    try:
        return _unpacked(data, most, most_head)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"not a message of this protocol: {error}") from error


def _unpacked(data: bytes, most: int, most_head: int) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(data, bytes) or len(data) > most:
        raise ValueError(f"expected at most {most} bytes")
    start = len(MAGIC) + 4
    if len(data) < start or data[: len(MAGIC)] != MAGIC:
        raise ValueError(f"it must start with {MAGIC!r}, got {data[: len(MAGIC)]!r}")
    (n_head,) = struct.unpack("<I", data[len(MAGIC) : start])
    if n_head > most_head or start + n_head > len(data):
        raise ValueError("its head is cut off or too long")
    head = json.loads(data[start : start + n_head])
    listed, at = head.pop("arrays"), start + n_head
    if not isinstance(listed, list) or len(listed) > MAX_ARRAYS:
        raise ValueError(f"expected at most {MAX_ARRAYS} arrays")
    arrays: dict[str, Any] = {}
    for name, kind, shape in listed:
        require_choice("an array's type", kind, TYPES)
        if not isinstance(name, str) or name in arrays or len(shape) > MAX_DIMENSIONS:
            raise ValueError("its list of arrays is wrong")
        sizes = [require_integer("a length", n, least=0, most=most) for n in shape]
        count = math.prod(sizes)
        if at + 8 * count > len(data):
            raise ValueError("it is cut off")
        arrays[name] = np.frombuffer(data, dtype=kind, count=count, offset=at).reshape(sizes)
        at += 8 * count
    if at != len(data):
        raise ValueError("it is longer than it says")
    return head, arrays


def digest(data: bytes) -> str:
    """Return the SHA-256 that identifies a message."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Refusal:
    """A site's answer that it will not answer; the reason says nothing about its records."""

    reason: str


@dataclass(frozen=True)
class Receipt:
    """A coordinator's signature under the last head that it saw of a site's ledger."""

    head: Head
    signature: str


@dataclass(frozen=True, eq=False)
class Request:
    """One site's part of a round: the broadcast, and a receipt for what it answered before."""

    run: str
    site: str
    stage: str
    t: int
    arrays: Arrays
    receipt: Receipt | None = None

    def to_bytes(self) -> bytes:
        """Return the request as bytes."""
        receipt = None
        if self.receipt is not None:
            receipt = [*_plain_head(self.receipt.head), self.receipt.signature]
        head = {"kind": "request", **_place(self), "receipt": receipt}
        return packed(head, self.arrays)

    @classmethod
    def from_bytes(cls, data: bytes, *, most: int = MAX_BYTES) -> Request:
        """Read what `to_bytes` wrote; anything else is refused."""
        head, arrays = unpacked(data, most=most)
        _require_fields(head, "request", {"receipt"})
        receipt = None
        if head["receipt"] is not None:
            *seen, signature = _items("a receipt", head["receipt"], 3)
            receipt = Receipt(checked_head(seen), require_hex("signature", signature, 64))
        return cls(head["run"], head["site"], head["stage"], head["t"], arrays, receipt)


@dataclass(frozen=True, eq=False)
class Answer:
    """A site's noisy upload, the request it answers, and where its ledger stood."""

    run: str
    site: str
    stage: str
    t: int
    request: str
    ledger: Head
    upload: Upload

    def to_bytes(self) -> bytes:
        """Return the answer as bytes."""
        arrays = self.upload.to_arrays()
        head = {
            "kind": "answer",
            **_place(self),
            "request": self.request,
            "ledger": _plain_head(self.ledger),
            "symmetric": bool(arrays.pop("symmetric")),
        }
        return packed(head, arrays)

    @classmethod
    def from_bytes(cls, data: bytes, *, most: int = MAX_BYTES) -> Answer:
        """Read what `to_bytes` wrote; anything else is refused."""
        head, arrays = unpacked(data, most=most)
        _require_fields(head, "answer", {"request", "ledger", "symmetric"})
        request = require_hex("request", head["request"], 32)
        seen = checked_head(head["ledger"])
        place = (head["run"], head["site"], head["stage"], head["t"])
        if not isinstance(head["symmetric"], bool):
            raise InvalidInput("symmetric must be true or false, got something else")
        arrays["symmetric"] = np.asarray(head["symmetric"])
        return cls(*place, request, seen, Upload.from_arrays(arrays))


def checked_head(values: Any) -> Head:
    """Return a ledger's head from a list of its two values, or say what was expected of them."""
    n_rows, chain = _items("a ledger's head", values, 2)
    return Head(require_integer("n_rows", n_rows, least=1), require_hex("digest", chain, 32))


def require_hex(name: str, value: Any, n_bytes: int) -> str:
    """Return lower-case hexadecimal text of so many bytes, or say what was expected."""
    if isinstance(value, str) and len(value) == 2 * n_bytes and set(value) <= HEX:
        return value
    raise InvalidInput(f"{name} must be {2 * n_bytes} hexadecimal digits, got {str(value)[:80]!r}")


def _place(message: Request | Answer) -> dict[str, Any]:
    return {"run": message.run, "site": message.site, "stage": message.stage, "t": message.t}


def _plain_head(head: Head) -> list[Any]:
    return [head.n_rows, head.digest]


def _items(what: str, values: Any, n: int) -> list[Any]:
    if isinstance(values, list) and len(values) == n:
        return values
    raise InvalidInput(f"{what} must be a list of {n}, got {str(values)[:80]!r}")


def _require_fields(head: Mapping[str, Any], kind: str, more: set[str]) -> None:
    expected = {"kind", "run", "site", "stage", "t"} | more
    if set(head) != expected or head["kind"] != kind:
        raise InvalidInput(f"a message must be of kind {kind}, with its fields and no others")
    require_hex("run", head["run"], 32)
    for name in ("site", "stage"):
        if not isinstance(head[name], str) or not head[name]:
            raise InvalidInput(f"{name} must be a name, got {head[name]!r}")
    require_integer("t", head["t"], least=1)
