"""Calls that are signed one by one, for sites whose proxy opens TLS and hides their certificate.

The header names the site, the time, a number used once and the digest of the body, and holds a
signature of these, of the path and of the server's authority. It is verified before a byte of the
body is read. A header that was heard is no use to anyone: its number is used up.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from base64 import b64decode, b64encode
from collections import deque
from typing import TYPE_CHECKING

from dpfedc.deployment.keys import Identity, is_signature, pin, verifying_key
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

HEADER = "Dpfedc-Signed"
CLOCK_S = 300.0
"""By so much may the clocks differ."""
_FORM = re.compile(
    r"[A-Za-z0-9._-]{1,64} [0-9]{1,12} [0-9a-f]{32} [0-9a-f]{64} [A-Za-z0-9+/]{86}=="
)
MAX_NONCES = 50_000
"""Used numbers that are remembered of a site; one that calls so often is refused."""


def signed_header(
    identity: Identity, name: str, authority: Certificate, path: str, body: bytes
) -> str:
    """Return the header of a call with this path and body."""
    told = [
        name, str(int(time.time())), secrets.token_hex(16), hashlib.sha256(body).hexdigest()
    ]  # fmt: skip
    signature = identity.sign(_content(authority, path, told))
    return " ".join([*told, b64encode(signature).decode()])


class Signatures:
    """What a server knows of callers: their certificates, and the numbers they have used."""

    def __init__(self, authority: Certificate) -> None:
        self._authority = authority
        self._used: dict[str, tuple[set[str], deque[tuple[float, str]]]] = {}

    def caller(self, header: str, path: str, sites: dict[str, Certificate]) -> tuple[str, str]:
        """Return who calls, and the digest that the body must have; or say what is wrong."""
        if not _FORM.fullmatch(header):
            raise InvalidInput(f"the header {HEADER} must be signed as agreed, got another form")
        *told, signature = header.split(" ")
        name, at, nonce, digest = told
        proof, when = b64decode(signature), int(at)
        content, site = _content(self._authority, path, told), sites.get(name)
        # One refusal for both: strangers could find out who is enrolled.
        if site is None or not is_signature(verifying_key(site), proof, content):
            raise InvalidInput("the call must be signed by an enrolled site, got another signature")
        now = time.time()
        if abs(now - when) > CLOCK_S:
            raise InvalidInput(
                f"the clock must be right within {CLOCK_S:g} seconds, got {when - now:.0f}"
            )
        self._use(name, nonce, now)
        return name, digest

    def _use(self, name: str, nonce: str, now: float) -> None:
        used, order = self._used.setdefault(name, (set(), deque()))
        while order and order[0][0] < now - 2 * CLOCK_S:
            used.discard(order.popleft()[1])
        if nonce in used or len(used) >= MAX_NONCES:
            raise InvalidInput("a call must have a number that was not used before")
        used.add(nonce)
        order.append((now, nonce))


def _content(authority: Certificate, path: str, told: list[str]) -> bytes:
    return "\n".join(["dpfedc call 1", pin(authority), path, *told]).encode()
