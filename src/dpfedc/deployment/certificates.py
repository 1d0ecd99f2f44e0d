"""The server's certificates: an authority of its own, and what it signs for the server."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.keys import require_cryptography, write_private

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, ExtensionType

_VALID_DAYS = 3650


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
