"""Receipts: the coordinator signs the last head that it saw of a site's ledger.

It sends the receipt with the next request. A site whose ledger does not hold that head has lost
rows, as when its file was put back from a backup, and what it has spent would be forgotten.
Signatures are Ed25519: the same receipt always has the same bytes.
"""

from __future__ import annotations

from typing import Any

from dpfedc.deployment.messages import Receipt
from dpfedc.errors import MissingExtra
from dpfedc.privacy.ledger import Head


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
