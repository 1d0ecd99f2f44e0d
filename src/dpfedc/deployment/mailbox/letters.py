"""Signed bytes: a request that only the operator can have sent, an answer only its site.

A letter to a site is the operator's certificate, a signature and the request. The signature is of
the site's name and the request, so that no letter can be handed to another site. A reply is a
signature and the answer; it is of the request too, so that no reply answers another one.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dpfedc.deployment.certificates import require_operator
from dpfedc.deployment.keys import (
    SIGNATURE_BYTES,
    Identity,
    is_signature,
    require_cryptography,
    verifying_key,
)
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.x509 import Certificate

_REQUEST, _ANSWER = b"dpfedc request 1\0", b"dpfedc answer 1\0"
_MAGIC = b"dpfedc letter 1\n"
_MAX_CERTIFICATE = 8192


def letter(operator: Identity, site: str, request: bytes) -> bytes:
    """Return a request as it travels to a site."""
    from cryptography.hazmat.primitives.serialization import Encoding

    certificate = operator.certificate.public_bytes(Encoding.DER)
    signature = operator.sign(_of_request(site, request))
    return b"".join((_MAGIC, struct.pack("<H", len(certificate)), certificate, signature, request))


@dataclass
class LetterBox:
    """What a site opens letters with: its name, and the authority that vouches for the operator."""

    site: str
    authority: Certificate
    _known: tuple[bytes, Certificate] | None = None

    def opened(self, data: bytes) -> bytes:
        """Return the request of a letter that the operator sent to this site, or refuse it."""
        start = len(_MAGIC)
        if data[:start] != _MAGIC:
            raise InvalidInput(
                f"a letter must start with {_MAGIC!r}, got {data[:start]!r}: another version?"
            )
        (size,) = struct.unpack_from("<H", data, start) if len(data) > start + 2 else (0,)
        end = start + 2 + size
        if not 0 < size <= _MAX_CERTIFICATE or len(data) < end + SIGNATURE_BYTES:
            raise InvalidInput("a letter must hold a certificate and a signature, got less")
        request = data[end + SIGNATURE_BYTES :]
        key = self._operator(data[start + 2 : end])
        if not is_signature(
            key, data[end : end + SIGNATURE_BYTES], _of_request(self.site, request)
        ):
            raise InvalidInput("a letter must be signed by the operator for this site, got another")
        return request

    def _operator(self, der: bytes) -> Ed25519PublicKey:
        """Return the operator's key; the certificate of the letter before need not be proved."""
        require_cryptography()
        from cryptography import x509

        if self._known is not None and self._known[0] == der:
            certificate = self._known[1]
            if certificate.not_valid_after_utc > datetime.now(UTC):
                return verifying_key(certificate)
        try:
            certificate = x509.load_der_x509_certificate(der)
            require_operator(certificate, self.authority)
            key = verifying_key(certificate)
        except InvalidInput:
            raise
        except (
            Exception
        ) as error:  # what a malformed one can do in the library is not for us to list
            raise InvalidInput("a letter must hold a good certificate, got another") from error
        self._known = (der, certificate)
        return key


def reply(site: Identity, name: str, request: bytes, answer: bytes) -> bytes:
    """Return an answer to this very request as it travels to the coordinator."""
    return site.sign(_of_answer(name, request, answer)) + answer


def opened_reply(key: Ed25519PublicKey, name: str, request: bytes, data: bytes) -> bytes | None:
    """Return the answer that the site gave to this request, None if its signature is not good."""
    signature, answer = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
    return answer if is_signature(key, signature, _of_answer(name, request, answer)) else None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _of_request(site: str, request: bytes) -> bytes:
    """Return what is signed; digests have a fixed length, so it reads one way only."""
    return _REQUEST + _digest(site.encode()) + _digest(request)


def _of_answer(site: str, request: bytes, answer: bytes) -> bytes:
    return _ANSWER + _digest(site.encode()) + _digest(request) + _digest(answer)
