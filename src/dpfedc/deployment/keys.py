"""Keys and signatures: who a site is, that an answer is its own, and what a server has seen.

Every site has an Ed25519 key of its own and a certificate that it made for it. The server's
operator pins the certificate at enrolment: with it the site gets through the handshake of a
connection, and with the key it signs every answer, so that neither another site nor the server in
between can speak for it.

The coordinator signs, with the operator's key, every request, and in it the last head that it saw
of a site's ledger (a receipt). A site whose ledger does not hold that head has lost rows, as when
its file was put back from a backup, and what it has spent would be forgotten.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.messages import Receipt
from dpfedc.errors import DataUnavailable, InvalidInput, MissingExtra
from dpfedc.privacy.ledger import Head

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.x509 import Certificate

SITE_KEY, SITE_PUB = "site.key", "site.pub"
SIGNATURE_BYTES = 64
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""It becomes a file's name, and stands in commands and beside keys that are compared."""


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def require_private(path: Path) -> bytes:
    """Return the content of a private file; refuse one that others may read."""
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataUnavailable(f"no such key file: {path}") from error
    if mode & 0o077:
        raise InvalidInput(
            f"{path} must be readable by its owner only, got mode {mode & 0o777:o}: chmod 600 it"
        )
    return content


def require_cryptography() -> None:
    """Say which extra is missing, if one is."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "keys and certificates need cryptography: pip install 'dpfedc[deploy]'"
        ) from error


@dataclass(frozen=True)
class Identity:
    """A private key, the certificate that goes with it, and the files that hold both."""

    key: Ed25519PrivateKey
    certificate: Certificate
    key_file: Path
    certificate_file: Path

    @classmethod
    def read(cls, key_file: Path, certificate_file: Path) -> Identity:
        """Read what was written for a site or an operator; anything else is refused."""
        key = _private_key(key_file)
        try:
            certificate = read_certificate(certificate_file.read_bytes())
        except FileNotFoundError as error:
            raise DataUnavailable(f"no such certificate: {certificate_file}") from error
        if key.public_key() != certificate.public_key():
            raise InvalidInput(f"{certificate_file} must belong to {key_file}, got another key's")
        return cls(key, certificate, key_file, certificate_file)

    def sign(self, content: bytes) -> bytes:
        """Return the signature of what is to be signed, which says itself what it is for."""
        return self.key.sign(content)


def _private_key(path: Path) -> Ed25519PrivateKey:
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = require_private(path)
    try:
        key = load_pem_private_key(content, password=None)
    except ValueError as error:
        raise InvalidInput(
            f"{path} must hold an Ed25519 key, got another kind. A site of version 0.1 gets a new "
            "one by `dpfedc site rotate-key`; its ledger stays"
        ) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InvalidInput(f"{path} must hold an Ed25519 key, got another kind")
    return key


def private_pem(key: Any) -> bytes:
    """Return a private key as what is written to its file."""
    from cryptography.hazmat.primitives import serialization

    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem


def read_certificate(pem: bytes) -> Certificate:
    """Return the certificate of a site.pub or a .crt file, the first if there are more."""
    require_cryptography()
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise InvalidInput("not a certificate as in a site's site.pub") from error


def is_authority(certificate: Certificate) -> bool:
    """Return whether a certificate may vouch for others."""
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, ValueError):
        return False
    return found.value.ca


def verifying_key(certificate: Certificate) -> Ed25519PublicKey:
    """Return the key that verifies what a certificate's owner signs."""
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = certificate.public_key()
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InvalidInput("a certificate must have an Ed25519 key, got another kind")
    return key


def signing_key(certificate: Certificate) -> str:
    """Return the key that verifies what a certificate's owner signs, as an agreement has it."""
    return str(verifying_key(certificate).public_bytes_raw().hex())


def name_in(certificate: Certificate) -> str:
    """Return the name that a certificate is made out to."""
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise InvalidInput(f"a certificate must be made out to one name, got {len(names)}")
    return str(names[0].value)


def fingerprint(certificate: Certificate) -> str:
    """Return a short name of a certificate's key, to be compared by telephone."""
    return mark_of(signing_key(certificate))


def mark_of(signing_key: str) -> str:
    """Return the short name of a key that an agreement has."""
    return hashlib.sha256(b"dpfedc key\0" + bytes.fromhex(signing_key)).hexdigest()[:32]


def pin(certificate: Certificate) -> str:
    """Return the SHA-256 of a certificate, by which a server knows its owner."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def is_signature(key: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    """Return whether the key's holder signed this."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def new_key() -> bytes:
    """Return a new private key, 32 bytes."""
    return bytes(_ed25519().Ed25519PrivateKey.generate().private_bytes_raw())


def public_key(key: bytes) -> str:
    """Return the public key that belongs to a private one, as an agreement has it."""
    private = _ed25519().Ed25519PrivateKey.from_private_bytes(key)
    return str(private.public_key().public_bytes_raw().hex())


def signed(key: bytes, run: str, site: str, head: Head) -> Receipt:
    """Return the receipt for a head."""
    private = _ed25519().Ed25519PrivateKey.from_private_bytes(key)
    return Receipt(head, private.sign(_content(run, site, head)).hex())


def is_signed(receipt: Receipt, public: str, run: str, site: str) -> bool:
    """Return whether the owner of the public key has made this receipt for this run and site."""
    key = _ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
    signature = bytes.fromhex(receipt.signature)
    return is_signature(key, signature, _content(run, site, receipt.head))


def _content(run: str, site: str, head: Head) -> bytes:
    return f"dpfedc receipt\n{run}\n{site}\n{head.n_rows}\n{head.digest}".encode()


def _ed25519() -> Any:
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519
