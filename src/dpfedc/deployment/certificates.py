"""Certificates: the server's own authority and what it signs, and those that sites make themselves.

The authority vouches for the server (to callers) and for the operator (to sites, which take no
request of anyone else). It does not vouch for sites: their certificates are pinned one by one.
"""

from __future__ import annotations

import datetime
import ipaddress
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.keys import (
    SITE_KEY,
    SITE_PUB,
    Identity,
    is_signature,
    pin,
    private_pem,
    read_certificate,
    require_cryptography,
    require_private,
    verifying_key,
    write_private,
)
from dpfedc.errors import InvalidInput
from dpfedc.whole_files import write_together

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, ExtensionType, SubjectAlternativeName

AUTHORITY, SERVER, OPERATOR = "ca", "server", "operator"
OPERATOR_NAME = "dpfedc operator"
_LONG_DAYS, _SHORT_DAYS = 7300, 730
"""Of what is hard to replace, or pinned; and of what `server renew` replaces."""
_ROTATION = b"dpfedc rotation 1\0"
_BEGIN, _END = "-----BEGIN DPFEDC ROTATION-----", "-----END DPFEDC ROTATION-----"


def write_server_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write the .key and .crt of an authority, of a server with these names, of its operator."""
    require_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    authority = ec.generate_private_key(ec.SECP256R1())
    name = _name("dpfedc federation")
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    certificate = _certificate(
        name,
        authority.public_key(),
        (name, authority),
        days=_LONG_DAYS,
        critical=[x509.BasicConstraints(ca=True, path_length=0), _usage(signs=True)],
        extensions=[identifier],
    )
    write_private(folder / f"{AUTHORITY}.key", private_pem(authority))
    (folder / f"{AUTHORITY}.crt").write_bytes(certificate_pem(certificate))
    write_private(folder / f"{OPERATOR}.key", private_pem(ed25519.Ed25519PrivateKey.generate()))
    renew_server_certificates(folder, hosts)


def renew_server_certificates(folder: Path, hosts: Sequence[str] | None = None) -> None:
    """Write a new key and certificate of the server, and a new certificate of the operator.

    The authority stays, so nothing changes for sites. Without `hosts` the names stay.
    """
    require_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    operator: Any = load_pem_private_key(require_private(folder / f"{OPERATOR}.key"), None)
    if hosts is None:
        old = read_certificate((folder / f"{SERVER}.crt").read_bytes())
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    else:
        names = _alternative_names(hosts)
    server = ec.generate_private_key(ec.SECP256R1())
    made = {}
    for what, key, subject, usage, more in (
        (SERVER, server, "dpfedc server", ExtendedKeyUsageOID.SERVER_AUTH, [names]),
        (OPERATOR, operator, OPERATOR_NAME, ExtendedKeyUsageOID.CLIENT_AUTH, []),
    ):
        made[f"{what}.crt"] = _vouched_for(folder, subject, key.public_key(), [usage], more)
    made[f"{SERVER}.key"] = private_pem(server)
    write_together(folder, made, private=(f"{SERVER}.key",))


def node_certificate(folder: Path, hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a new certificate and its key for a server of a cluster, which also calls the others.

    The authority is the one in the folder.
    """
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    names = _alternative_names(hosts)
    certificate = _vouched_for(folder, "dpfedc node", key.public_key(), usages, [names])
    return certificate, private_pem(key)


def _vouched_for(
    folder: Path,
    subject: str,
    public_key: Any,
    usages: Sequence[Any],
    extensions: Sequence[ExtensionType],
) -> bytes:
    """Return a certificate that the folder's authority has signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    authority: Any = load_pem_private_key(require_private(folder / f"{AUTHORITY}.key"), None)
    issuer = read_certificate((folder / f"{AUTHORITY}.crt").read_bytes())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    certificate = _certificate(
        _name(subject),
        public_key,
        (issuer.subject, authority),
        days=_SHORT_DAYS,
        critical=[x509.BasicConstraints(ca=False, path_length=None), _usage(signs=False)],
        extensions=[
            *extensions,
            x509.ExtendedKeyUsage(usages),
            x509.SubjectKeyIdentifier.from_public_key(public_key),
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
        ],
    )
    return certificate_pem(certificate)


def write_site_key(folder: Path, name: str, *, before: Identity | None = None) -> None:
    """Write site.key (private) and site.pub, the certificate that the server's operator enrols.

    With the identity `before`, site.pub also says, signed by it, that this one takes its place.
    """
    require_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ed25519.Ed25519PrivateKey.generate()
    certificate = _certificate(
        _name(name),
        key.public_key(),
        (_name(name), key),
        days=_LONG_DAYS,
        critical=[x509.BasicConstraints(ca=False, path_length=None), _usage(signs=False)],
        extensions=[x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])],
    )
    text = certificate_pem(certificate).decode()
    if before is not None:
        proof = b64encode(before.sign(_ROTATION + pin(certificate).encode())).decode()
        text += f"{_BEGIN}\n{proof}\n{_END}\n"
    write_private(folder / SITE_KEY, private_pem(key))
    (folder / SITE_PUB).write_text(text, encoding="ascii")


def good_site_certificate(pem: bytes) -> Certificate:
    """Return the certificate of a site.pub, refused unless its own key signed it and TLS takes it.

    The two libraries that read it must agree: what one of them cannot load would stop the server.
    """
    import ssl

    certificate = read_certificate(pem)
    try:
        verifying_key(certificate)
        certificate.verify_directly_issued_by(certificate)
        text = certificate_pem(certificate).decode()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=text)
    except InvalidInput:
        raise
    except Exception as error:  # libraries fail in many ways on what is malformed
        raise InvalidInput("a site's certificate must be signed by its own key") from error
    return certificate


def takes_the_place_of(old: Certificate, new: str) -> bool:
    """Return whether a site.pub says, signed by the old key, that it takes its place."""
    _, found, rest = new.partition(_BEGIN)
    if not found:
        return False
    try:
        proof = b64decode("".join(rest.partition(_END)[0].split()), validate=True)
    except ValueError:
        return False
    certificate = read_certificate(new.encode())
    return is_signature(verifying_key(old), proof, _ROTATION + pin(certificate).encode())


def require_operator(certificate: Certificate, authority: Certificate) -> None:
    """Refuse a certificate that is not the operator's, of this authority, and good today."""
    from cryptography.exceptions import InvalidSignature

    now = datetime.datetime.now(datetime.UTC)
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise InvalidInput("the sender must be certified by the authority in ca.crt") from error
    if certificate.subject != _name(OPERATOR_NAME):
        raise InvalidInput("the sender must be the server's operator, got another")
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise InvalidInput(
            "the operator's certificate must be good today, got one that is not: "
            "`dpfedc server renew` makes a new one, or a clock is wrong"
        )


def days_left(path: Path) -> int:
    """Return for how many days a certificate is still good."""
    end = read_certificate(path.read_bytes()).not_valid_after_utc
    return (end - datetime.datetime.now(datetime.UTC)).days


def _certificate(
    subject: Any,
    public_key: Any,
    signed_by: tuple[Any, Any],
    *,
    days: int,
    critical: Sequence[ExtensionType],
    extensions: Sequence[ExtensionType],
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ed25519

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
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    for extension in critical:
        builder = builder.add_extension(extension, critical=True)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    # Ed25519 has its hash built in.
    is_edwards = isinstance(key, ed25519.Ed25519PrivateKey)
    return builder.sign(key, None if is_edwards else hashes.SHA256())


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


def _name(common: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative_names(hosts: Sequence[str]) -> SubjectAlternativeName:
    from cryptography import x509

    return x509.SubjectAlternativeName([_general_name(host) for host in hosts])


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def certificate_pem(certificate: Certificate) -> bytes:
    """Return a certificate as what is written to a file."""
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)
