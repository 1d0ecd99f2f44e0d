"""Who gets through a handshake: TLS 1.3, both sides with a certificate that the other expects."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedc.deployment.keys import Identity, require_private

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

PROXY_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2, which some proxies still speak; those of TLS 1.3 are all good."""


def server_context(
    certificate: Path, key: Path, callers: Iterable[Certificate] | None
) -> ssl.SSLContext:
    """Return the server's side: only these very certificates get through.

    Without callers anyone does, and must sign every call: for proxies that open TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    require_private(key)
    context.load_cert_chain(certificate, key)
    # A session that is taken up again would skip the certificate, which may have been removed.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if callers is None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(PROXY_CIPHERS)
        return context
    from cryptography.hazmat.primitives.serialization import Encoding

    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # A certificate is good because it is in the list, whoever signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    pems = [caller.public_bytes(Encoding.PEM).decode() for caller in callers]
    context.load_verify_locations(cadata="".join(pems))
    return context


def caller_context(identity: Identity, authority: Path) -> ssl.SSLContext:
    """Return a caller's side: it shows its certificate, and asks for one of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(authority)
    require_private(identity.key_file)
    context.load_cert_chain(identity.certificate_file, identity.key_file)
    return context


def proxied_context(proxy_authority: Path) -> ssl.SSLContext:
    """Return the side of a caller behind a proxy that opens TLS, with the proxy's authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(proxy_authority)
    return context
