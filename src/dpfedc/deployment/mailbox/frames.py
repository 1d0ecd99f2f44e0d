"""Many messages in one HTTP body: for each its length, a short JSON head, and its bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from aiohttp import StreamReader

_LENGTHS = struct.Struct("<IQ")
MAX_HEAD = 2**16


PIECE = 2**18
"""Bytes that are handed on at a time: TLS makes two copies of what it is given."""


def framed(head: Mapping[str, Any], data: bytes = b"") -> Iterator[bytes | memoryview]:
    """Yield a frame in pieces; a short one is one piece, since each costs a call of its own."""
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    start = _LENGTHS.pack(len(text), len(data)) + text
    if len(data) <= PIECE:
        yield start + data
        return
    yield start
    yield from pieces(data)


def pieces(data: bytes) -> Iterator[memoryview]:
    """Yield bytes a piece at a time, without copying them."""
    view = memoryview(data)
    for at in range(0, len(data), PIECE):
        yield view[at : at + PIECE]


async def read_whole(stream: StreamReader, length: int) -> bytes:
    """Return so many bytes, which take their room once and not once more for their parts."""
    whole, at = bytearray(length), 0
    while at < length:
        part = await stream.read(min(PIECE, length - at))
        if not part:
            raise InvalidInput(f"a body was cut off after {at} of {length} bytes")
        whole[at : at + len(part)] = part
        at += len(part)
    return bytes(whole)


async def frames(stream: StreamReader, *, most: int) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
    """Yield the frames of a body, none longer than `most`; anything else is refused."""
    from asyncio import IncompleteReadError

    try:
        while True:
            start = await stream.read(1)
            if not start:
                return
            start += await stream.readexactly(_LENGTHS.size - 1)
            n_head, n_bytes = _LENGTHS.unpack(start)
            if n_head > MAX_HEAD or n_bytes > most:
                raise InvalidInput(f"a frame must have at most {most} bytes, got {n_bytes}")
            head = json.loads(await stream.readexactly(n_head))
            if not isinstance(head, dict):
                raise InvalidInput("a frame must have a head, got something else")
            yield head, await read_whole(stream, n_bytes)
    except (IncompleteReadError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a body of frames: {error}") from error
