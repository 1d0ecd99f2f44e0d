"""Keys and certificates: the server's authority, its certificate, and the keys of sites.

A site's key pair is an ECDSA P-384 key in OpenSSH format. With it the site proves at every call
who it is, and signs every answer, so that neither another site nor the mailbox in between can
speak for it.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.flower.extra import require_cryptography
from dpfedc.errors import DataUnavailable, InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.x509 import Certificate, ExtensionType

_VALID_DAYS = 3650
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


def write_server_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.crt, ca.key, server.crt and server.key, for a server reached by these names."""
    require_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpfedc federation")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpfedc server")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = _certificate(
        issuer,
        authority.public_key(),
        (issuer, authority),
        critical=[x509.BasicConstraints(ca=True, path_length=0), _usage(signs=True)],
        extensions=[identifier],
    )
    certificate = _certificate(
        subject,
        server.public_key(),
        (issuer, authority),
        critical=[x509.BasicConstraints(ca=False, path_length=None), _usage(signs=False)],
        extensions=[
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            x509.SubjectKeyIdentifier.from_public_key(server.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
        ],
    )
    write_private(folder / "ca.key", _pem(authority))
    write_private(folder / "server.key", _pem(server))
    (folder / "ca.crt").write_bytes(_certificate_pem(ca))
    (folder / "server.crt").write_bytes(_certificate_pem(certificate))


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


def _certificate(
    subject: Any,
    public_key: Any,
    signed_by: tuple[Any, Any],
    *,
    critical: Sequence[ExtensionType],
    extensions: Sequence[ExtensionType],
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    now = datetime.datetime.now(datetime.UTC)
    issuer, key = signed_by
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # A site whose clock is a little behind must not find the certificate too young.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    )
    for extension in critical:
        builder = builder.add_extension(extension, critical=True)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256())


def _usage(*, signs: bool) -> ExtensionType:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem


def _certificate_pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)
