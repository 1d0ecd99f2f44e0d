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

from dpfedc.deployment.bounded_json import bounded_json
from dpfedc.errors import InvalidInput, RoundSpent, RunClosed
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.ledger import Head
from dpfedc.settings import require_choice, require_integer

Arrays = Mapping[str, npt.NDArray[Any]]

MAGIC = b"dpfedc 4"
"""With a version of its own: it changes with what messages mean, not with the package."""
_FAMILY = MAGIC.split()[0] + b" "
TYPES = ("<f8", "<u8")
HEX = frozenset("0123456789abcdef")
MAX_BYTES = 256 * 2**20
MAX_ROWS = 2**53
"""Of a ledger; whoever says more says nothing."""
MAX_HEAD, MAX_ARRAYS, MAX_DIMENSIONS, MAX_NAME = 64 * 1024, 16, 3, 200

ATTEMPT_BYTES = 16
UPLOAD = "upload"
STEPS = ("keys", "shares", UPLOAD, "agree", "open")
"""Of a round with secure aggregation; a round without it has but one."""
MODEL_KIND, MAX_MODEL_HEAD = "model", 2 * 2**20
"""The head of a model is longer: it has the names of up to 10,000 clusters."""


class OtherVersion(InvalidInput):
    """What another version of the package wrote in a format of its own: both are named."""

    def __init__(self, what: str, got: str, own: str) -> None:
        super().__init__(
            f"{what} must be {own}, which is what this version of dpfedc reads, got {got}: have "
            "the older side upgraded"
        )


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
    data: bytes,
    *,
    most: int = MAX_BYTES,
    most_head: int = MAX_HEAD,
    most_arrays: int = MAX_ARRAYS,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the head and the arrays of what `packed` made; anything else is refused."""
    try:
        return _unpacked(data, most, most_head, most_arrays)
    except OtherVersion:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a message of this protocol: {error}") from error


def _unpacked(
    data: bytes, most: int, most_head: int, most_arrays: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(data, bytes) or len(data) > most:
        raise ValueError(f"expected at most {most} bytes")
    start = len(MAGIC) + 4
    magic = data[: len(MAGIC)]
    if magic.startswith(_FAMILY) and magic != MAGIC:
        raise OtherVersion("a message", repr(magic.decode(errors="replace")), MAGIC.decode())
    if len(data) < start or magic != MAGIC:
        raise ValueError(f"it must start with {MAGIC!r}, got {magic!r}")
    (n_head,) = struct.unpack("<I", data[len(MAGIC) : start])
    if n_head > most_head or start + n_head > len(data):
        raise ValueError("its head is cut off or too long")
    head = bounded_json(data[start : start + n_head], most=most_head, most_items=most_head)
    listed, at = head.pop("arrays"), start + n_head
    if not isinstance(listed, list) or len(listed) > most_arrays:
        raise ValueError(f"expected at most {most_arrays} arrays")
    arrays: dict[str, Any] = {}
    for name, kind, shape in listed:
        require_choice("an array's type", kind, TYPES)
        if not isinstance(name, str) or len(name) > MAX_NAME or name in arrays:
            raise ValueError("its list of arrays is wrong")
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
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
    """A site's answer that it will not answer; the reason says nothing about its records.

    `for_good`: asking again is of no use, since the round is spent there, as its ledger says, or
    (`of_run`) since the whole run is closed there.
    """

    reason: str
    for_good: bool = False
    of_run: bool = False

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """Return a refusal in the words of an error."""
        closed = isinstance(error, RunClosed)
        return cls(str(error), for_good=closed or isinstance(error, RoundSpent), of_run=closed)


@dataclass(frozen=True)
class Receipt:
    """A coordinator's signature under the last head that it saw of a site's ledger."""

    head: Head
    signature: str


@dataclass(frozen=True, eq=False)
class Request:
    """One site's part of a round: the broadcast, and a receipt for what it answered before.

    With secure aggregation there is a request for each step. The `attempt` tells those apart that
    belong to another set of keys.
    """

    run: str
    site: str
    stage: str
    t: int
    arrays: Arrays
    receipt: Receipt | None = None
    step: str = UPLOAD
    attempt: str = ""

    def to_bytes(self) -> bytes:
        """Return the request as bytes."""
        receipt = None
        if self.receipt is not None:
            receipt = [*plain_head(self.receipt.head), self.receipt.signature]
        steps = {"step": self.step, "attempt": self.attempt}
        head = {"kind": "request", **_place(self), "receipt": receipt, **steps}
        return packed(head, self.arrays)

    @classmethod
    def from_bytes(cls, data: bytes, *, most: int = MAX_BYTES) -> Request:
        """Read what `to_bytes` wrote; anything else is refused."""
        head, arrays = unpacked(data, most=most)
        _require_fields(head, "request", {"receipt", "step", "attempt"})
        step = require_choice("step", head["step"], STEPS)
        if head["attempt"] != "":
            require_hex("attempt", head["attempt"], ATTEMPT_BYTES)
        receipt = None
        if head["receipt"] is not None:
            *seen, signature = _items("a receipt", head["receipt"], 3)
            receipt = Receipt(checked_head(seen), require_hex("signature", signature, 64))
        place = (head["run"], head["site"], head["stage"], head["t"])
        return cls(*place, arrays, receipt, step, head["attempt"])


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
            "ledger": plain_head(self.ledger),
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


@dataclass(frozen=True, eq=False)
class StepAnswer:
    """A site's answer to a step that is no upload: nothing in it is made from records."""

    run: str
    site: str
    stage: str
    t: int
    step: str
    request: str
    arrays: Arrays

    def to_bytes(self) -> bytes:
        """Return the answer as bytes."""
        head = {"kind": "step", **_place(self), "step": self.step, "request": self.request}
        return packed(head, self.arrays)

    @classmethod
    def from_bytes(cls, data: bytes, *, most: int = MAX_BYTES) -> StepAnswer:
        """Read what `to_bytes` wrote; anything else is refused."""
        head, arrays = unpacked(data, most=most)
        _require_fields(head, "step", {"step", "request"})
        step = require_choice("step", head["step"], STEPS)
        request = require_hex("request", head["request"], 32)
        place = (head["run"], head["site"], head["stage"], head["t"])
        return cls(*place, step, request, arrays)


def checked_head(values: Any) -> Head:
    """Return a ledger's head from a list of its two values, or say what was expected of them."""
    n_rows, chain = _items("a ledger's head", values, 2)
    n_rows = require_integer("n_rows", n_rows, least=1, most=MAX_ROWS)
    return Head(n_rows, require_hex("digest", chain, 32))


def plain_head(head: Head) -> list[Any]:
    """Return a ledger's head as a list of its two values."""
    return [head.n_rows, head.digest]


def require_hex(name: str, value: Any, n_bytes: int) -> str:
    """Return lower-case hexadecimal text of so many bytes, or say what was expected."""
    if isinstance(value, str) and len(value) == 2 * n_bytes and set(value) <= HEX:
        return value
    raise InvalidInput(f"{name} must be {2 * n_bytes} hexadecimal digits, got {str(value)[:80]!r}")


def _place(message: Request | Answer | StepAnswer) -> dict[str, Any]:
    return {"run": message.run, "site": message.site, "stage": message.stage, "t": message.t}


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
        if not isinstance(head[name], str) or not 0 < len(head[name]) <= MAX_NAME:
            raise InvalidInput(f"{name} must be a name, got {str(head[name])[:80]!r}")
    require_integer("t", head["t"], least=1)
