"""The words around a run: who is there, what is offered, what came of it.

They are JSON objects, told from the rounds' messages by their first byte. A reply has one byte in
front that tells an answer from a refusal; the site signs the whole.
"""

from __future__ import annotations

import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.messages import Refusal
from dpfedc.errors import InvalidInput, printable

HELLO, OFFER, RESULT = "hello", "offer", "result"
_ANSWER, _REFUSAL = b"\x00", b"\x01"
_MAX_REASON = 500


def hello() -> bytes:
    """Return the question how many records a site declares."""
    return _words(kind=HELLO, nonce=secrets.token_hex(8))


def offer(agreement: Agreement) -> bytes:
    """Return the offer of a run, which a site keeps until its operator has read it."""
    return _words(kind=OFFER, agreement=agreement.to_json())


def result(run: str, model: bytes) -> bytes:
    """Return a run's model, for the sites to assign their own records with."""
    return _words(kind=RESULT, run=run, model=b64encode(model).decode())


def is_control(request: bytes) -> bool:
    """Return whether a request is one of these."""
    return request[:1] == b"{"


def words_of(data: bytes) -> Mapping[str, Any]:
    """Return the object that was sent; anything else is refused."""
    try:
        words = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("not a JSON object") from error
    if not isinstance(words, dict):
        raise InvalidInput("not a JSON object")
    return words


def model_of(words: Mapping[str, Any]) -> bytes:
    """Return the model in a result."""
    try:
        return b64decode(words["model"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("not a result: it holds no model") from error


def answered(content: bytes | Mapping[str, Any]) -> bytes:
    """Return a reply that is an answer."""
    return _ANSWER + (content if isinstance(content, bytes) else _words(**content))


def refused(reason: str) -> bytes:
    """Return a reply that is a refusal."""
    return _REFUSAL + printable(reason)[:_MAX_REASON].encode()


def opened(reply: bytes) -> bytes | Refusal:
    """Return what a reply holds."""
    if reply[:1] == _ANSWER:
        return reply[1:]
    if reply[:1] == _REFUSAL:
        return Refusal(printable(reply[1:].decode(errors="replace")[:_MAX_REASON]))
    return Refusal("it sent something that is no reply")


def _words(**fields: Any) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
