"""Keys, boxes and masks of one round, made from well-known parts.

X25519 and HKDF-SHA256 make a key for two sites; AES-256-GCM seals what one tells the other through
the server; AES-256-CTR makes the numbers that hide an upload. Everything depends on the `context`,
the digest of run, stage, round and attempt, so that nothing of one round is of any use in another.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfedc.deployment.keys import SIGNATURE_BYTES, is_signature, require_cryptography
from dpfedc.deployment.secure_aggregation.shamir import SHARE_BYTES, is_share
from dpfedc.errors import Refused, RoundSpent

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Words = npt.NDArray[np.uint64]

_SIGNED = b"dpfedc secure sum 1\0"
"""In front of what is signed, since a site's key signs answers, too."""
KEY_BYTES = 32
BUNDLE_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
_TAG_BYTES = 16
BOX_BYTES = 2 * SHARE_BYTES + _TAG_BYTES


BAD_BOX = "the box of site {} does not open: it saw other keys, or sends what is no box"


def accused(reason: str) -> int | None:
    """Return the site whose box did not open, if a refusal says so."""
    found = re.fullmatch(re.escape(BAD_BOX).replace(r"\{\}", "([0-9]{1,9})"), reason)
    return None if found is None else int(found[1])


def context_of(run: str, stage: str, t: int, attempt: str) -> bytes:
    """Return what stands for one attempt at one round, 32 bytes."""
    return digest("round", json.dumps([run, stage, t, attempt]).encode())


def digest(what: str, *parts: bytes) -> bytes:
    """Return the SHA-256 of some parts; their lengths are in it, so they read one way only."""
    content = hashlib.sha256(f"dpfedc secure sum 1 {what}\0".encode())
    for part in parts:
        content.update(len(part).to_bytes(8, "little") + part)
    return content.digest()


def numbers(sites: Sequence[int]) -> bytes:
    """Return sites' numbers as bytes."""
    return np.asarray(sites, dtype="<u8").tobytes()


@dataclass(frozen=True)
class Bundle:
    """What a site shows of its keys: for boxes, for masks, and a commitment to its own seed."""

    box_key: bytes
    mask_key: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def from_bytes(cls, data: bytes) -> Bundle:
        """Read what `to_bytes` wrote."""
        if len(data) != BUNDLE_BYTES:
            raise Refused(f"a site's keys must have {BUNDLE_BYTES} bytes, got {len(data)}")
        ends = (0, KEY_BYTES, 2 * KEY_BYTES, 3 * KEY_BYTES, BUNDLE_BYTES)
        return cls(*(data[start:end] for start, end in pairwise(ends)))

    def to_bytes(self) -> bytes:
        """Return the keys as bytes."""
        return self.box_key + self.mask_key + self.commitment + self.signature

    def require_good(self) -> None:
        """Refuse keys with which nobody could have a secret."""
        secret = new_secret()
        for key in (self.box_key, self.mask_key):
            key_between(secret, key, b"")

    def is_of(self, signing_key: bytes, context: bytes, site: int) -> bool:
        """Return whether the site has signed these keys for this round."""
        keys = (self.box_key, self.mask_key, self.commitment)
        return is_signed_by(signing_key, self.signature, bundle_content(context, site, *keys))


def is_signed_by(signing_key: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether the holder of an Ed25519 key has signed this."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return is_signature(Ed25519PublicKey.from_public_bytes(signing_key), signature, content)


def bundle_content(context: bytes, site: int, *keys: bytes) -> bytes:
    """Return what a site signs of its keys."""
    return _SIGNED + digest("keys", context, numbers([site]), *keys)


def survivors_content(context: bytes, sharing: Sequence[int], survivors: Sequence[int]) -> bytes:
    """Return what a site signs of who shared and who is in the sum."""
    return _SIGNED + digest("survivors", context, numbers(sharing), numbers(survivors))


def view_of(sharing: Sequence[int], told: bytes) -> bytes:
    """Return what must be the same at two sites for their masks to cancel."""
    return digest("view", numbers(sharing), told)


def commitment(context: bytes, site: int, seed: bytes) -> bytes:
    """Return what binds a site to its seed before anyone sees it."""
    return digest("seed", context, numbers([site]), seed)


def new_secret() -> X25519PrivateKey:
    """Return a fresh private key."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate()


def public_of(secret: bytes) -> bytes:
    """Return the public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return bytes(X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw())


def key_between(secret: X25519PrivateKey, public: bytes, info: bytes) -> bytes:
    """Return the key that two sites have in common, for one use."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        common = secret.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a point that makes the result the same for everyone
        raise Refused("a peer's key must be a good one, got another") from error
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(common)


def _box_info(context: bytes, sender: int, receiver: int, sent: bytes, received: bytes) -> bytes:
    """Return what a box is for; it has both sites' keys, so that it shows who saw which."""
    return digest("box", context, numbers([sender, receiver]), sent, received)


@dataclass(frozen=True)
class BoxMaker:
    """Seals and opens what sites tell each other through the server. One box each way a round."""

    context: bytes
    site: int
    secret: X25519PrivateKey
    bundle: bytes

    def sealed(self, peer: int, peer_bundle: bytes, shares: tuple[bytes, bytes]) -> bytes:
        """Return the two shares in a box for a peer."""
        info = _box_info(self.context, self.site, peer, self.bundle, peer_bundle)
        return bytes(self._cipher(peer_bundle, info).encrypt(bytes(12), b"".join(shares), info))

    def opened(self, peer: int, peer_bundle: bytes, box: bytes) -> tuple[bytes, bytes]:
        """Return the two shares in a peer's box, or refuse it."""
        from cryptography.exceptions import InvalidTag

        info = _box_info(self.context, peer, self.site, peer_bundle, self.bundle)
        try:
            content = self._cipher(peer_bundle, info).decrypt(bytes(12), box, info)
        except (InvalidTag, ValueError) as error:
            raise RoundSpent(BAD_BOX.format(peer)) from error
        shares = content[:SHARE_BYTES], content[SHARE_BYTES:]
        if not all(map(is_share, shares)):
            raise RoundSpent(BAD_BOX.format(peer))
        return shares

    def _cipher(self, peer_bundle: bytes, info: bytes) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        # The key is used once, so any nonce is fresh.
        return AESGCM(key_between(self.secret, Bundle.from_bytes(peer_bundle).box_key, info))


def pair_key(
    context: bytes, view: bytes, secret: X25519PrivateKey, public: bytes, site: int, peer: int
) -> bytes:
    """Return the key of the mask between two sites, the same for both if they have one view."""
    info = digest("mask", context, view, numbers(sorted((site, peer))))
    return key_between(secret, public, info)


def add_mask(total: Words, key: bytes, *, negative: bool = False) -> None:
    """Add the numbers that follow from a key to a sum modulo 2^64, or take them off."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    mask = np.frombuffer(stream.update(bytes(8 * total.size)), dtype="<u8").reshape(total.shape)
    if negative:
        np.subtract(total, mask, out=total)
    else:
        np.add(total, mask, out=total)


def add_pair_mask(total: Words, key: bytes, site: int, peer: int, *, off: bool = False) -> None:
    """Add what `site` adds for its mask with a peer: one of the two adds, the other takes off."""
    add_mask(total, key, negative=(site > peer) != off)


def seed_key(context: bytes, site: int, seed: bytes) -> bytes:
    """Return the key of a site's own mask."""
    return digest("own mask", context, numbers([site]), seed)
