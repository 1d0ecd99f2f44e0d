"""The words around a run: who is there, and what is offered.

They are JSON objects, told from the rounds' messages by their first byte. A reply has one byte in
front that tells an answer from a refusal, and from one for good, of a round or of a run; the site
signs the whole.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.bounded_json import bounded_json
from dpfedc.deployment.limits import MAX_WORDS
from dpfedc.deployment.messages import Refusal, checked_head, plain_head
from dpfedc.errors import InvalidInput, printable
from dpfedc.privacy.ledger import Head

HELLO, OFFER = "hello", "offer"
_ANSWER, _REFUSAL, _SPENT, _CLOSED = b"\x00", b"\x01", b"\x02", b"\x03"
_MAX_REASON = 500


def hello(seen: Head | None = None) -> bytes:
    """Return the question how many records a site declares, with what was seen of its ledger."""
    return _words(kind=HELLO, nonce=secrets.token_hex(8), ledger=_plain(seen))


def offer(agreement: Agreement, seen: Head | None = None) -> bytes:
    """Return the offer of a run, which a site keeps until its operator has read it."""
    return _words(kind=OFFER, agreement=agreement.to_json(), ledger=_plain(seen))


def is_control(request: bytes) -> bool:
    """Return whether a request is one of these."""
    return request[:1] == b"{"


def words_of(data: bytes) -> Mapping[str, Any]:
    """Return the object that was sent; anything else is refused."""
    words = bounded_json(data, most=MAX_WORDS)
    if not isinstance(words, dict):
        raise InvalidInput("not a JSON object")
    return words


def seen_of(words: Mapping[str, Any]) -> Head | None:
    """Return what the server has seen of the site's ledger, if it has seen any of it."""
    seen = words.get("ledger")
    return None if seen is None else checked_head(seen)


def answered(content: bytes | Mapping[str, Any]) -> bytes:
    """Return a reply that is an answer."""
    return _ANSWER + (content if isinstance(content, bytes) else _words(**content))


def refused(refusal: Refusal) -> bytes:
    """Return a reply that is a refusal."""
    first = _CLOSED if refusal.of_run else _SPENT if refusal.for_good else _REFUSAL
    return first + printable(refusal.reason)[:_MAX_REASON].encode()


def opened(reply: bytes) -> bytes | Refusal:
    """Return what a reply holds."""
    if reply[:1] == _ANSWER:
        return reply[1:]
    if (first := reply[:1]) in (_REFUSAL, _SPENT, _CLOSED):
        reason = printable(reply[1:].decode(errors="replace")[:_MAX_REASON])
        return Refusal(reason, for_good=first != _REFUSAL, of_run=first == _CLOSED)
    return Refusal("it sent something that is no reply")


def _plain(head: Head | None) -> list[Any] | None:
    return None if head is None else plain_head(head)


def _words(**fields: Any) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
