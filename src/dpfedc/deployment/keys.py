"""Keys and signatures: who a site is, that an answer is its own, and what a server has seen.

A site's key pair is an ECDSA P-384 key in OpenSSH format. With it the site proves at every call
who it is, and signs every answer, so that neither another site nor the mailbox in between can
speak for it.

A coordinator signs, with Ed25519, the last head that it saw of a site's ledger, and sends this
receipt with the next request. A site whose ledger does not hold that head has lost rows, as when
its file was put back from a backup, and what it has spent would be forgotten.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.messages import Receipt
from dpfedc.errors import DataUnavailable, InvalidInput, MissingExtra
from dpfedc.privacy.ledger import Head

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

_DOMAIN = b"dpfedc answer 1\0"


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


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


def write_site_key(folder: Path, name: str) -> None:
    """Write site.key (private) and site.pub, the line that the server's operator enrols."""
    require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write_private(folder / "site.key", private)
    (folder / "site.pub").write_bytes(public + f" {name}\n".encode())


def read_site_key(path: Path) -> EllipticCurvePrivateKey:
    """Return a site's private key."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    key = load_ssh_private_key(require_private(path), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInput(f"{path} must hold an ECDSA key, got another kind")
    return key


def read_public_key(line: str) -> EllipticCurvePublicKey:
    """Return the public key of a line as in site.pub."""
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(line.strip().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"not a public key as in a site's site.pub: {line[:40]!r}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise InvalidInput(f"a site's key must be ECDSA P-384, got {line[:40]!r}")
    return key


def fingerprint(line: str) -> str:
    """Return a short name of a public key, to be compared by telephone."""
    read_public_key(line)
    return hashlib.sha256(line.split()[1].encode()).hexdigest()[:32]


def sign_answer(key: EllipticCurvePrivateKey, request: bytes, answer: bytes) -> bytes:
    """Return the site's signature of an answer to this very request."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return key.sign(_signed(request, answer), ec.ECDSA(hashes.SHA384()))


def is_signed_answer(
    key: EllipticCurvePublicKey, request: bytes, answer: bytes, signature: bytes
) -> bool:
    """Return whether the holder of the key gave this answer to this request."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key.verify(signature, _signed(request, answer), ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def _signed(request: bytes, answer: bytes) -> bytes:
    """Return what a signature is of; both digests have a fixed length, so it reads one way only."""
    return _DOMAIN + hashlib.sha256(request).digest() + hashlib.sha256(answer).digest()


def require_cryptography() -> None:
    """Say which extra is missing, if one is."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "keys and certificates need cryptography: pip install 'dpfedc[flower]'"
        ) from error


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
    from cryptography.exceptions import InvalidSignature

    try:
        key = _ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(receipt.signature), _content(run, site, receipt.head))
    except (InvalidSignature, ValueError):
        return False
    return True


def _content(run: str, site: str, head: Head) -> bytes:
    return f"dpfedc receipt\n{run}\n{site}\n{head.n_rows}\n{head.digest}".encode()


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingExtra(
            "signed receipts need cryptography: pip install 'dpfedc[flower]'"
        ) from error
    return ed25519
