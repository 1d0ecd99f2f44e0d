"""Calls to a server over HTTPS: bounded, never redirected, and every failure in words."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from dpfedc.deployment.mailbox.frames import read_whole
from dpfedc.deployment.mailbox.mailbox import PROTOCOL, ConnectionLost, NotAdmitted, require_aiohttp
from dpfedc.deployment.mailbox.post_office import ANSWER_S
from dpfedc.errors import printable

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, ClientTimeout

CONNECT_S, SILENT_S, WHOLE_S = 30.0, 60.0, 900.0
"""How long a connection may take to stand, a call to say nothing, and a call in all."""
REUSED_S = 30.0
"""A connection that was idle for longer is not used again: the server may be about to cut it."""
MAX_REASON = 500


def new_session(context: ssl.SSLContext, *, proxy: str | None = None) -> ClientSession:
    """Return a session that talks TLS, follows no cookie, and unpacks nothing."""
    require_aiohttp()
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=0, keepalive_timeout=REUSED_S),
        proxy=proxy,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity", "User-Agent": f"dpfedc-protocol/{PROTOCOL}"},
        timeout=_timeout(WHOLE_S),
    )


def proxy_to(address: str) -> str | None:
    """Return the proxy that the environment names for calls to an address, if it does."""
    from urllib.request import getproxies, proxy_bypass

    return None if proxy_bypass(address) else getproxies().get("https")


def open_ended() -> ClientTimeout:
    """Return the patience of a call that may last as long as the other side is there."""
    return _timeout(None)


def _timeout(total: float | None) -> ClientTimeout:
    import aiohttp

    return aiohttp.ClientTimeout(total=total, connect=CONNECT_S, sock_read=ANSWER_S + SILENT_S)


async def read_bounded(response: ClientResponse, most: int) -> bytes:
    """Return a body whose length is declared and at most so many bytes."""
    length = response.content_length
    if response.headers.get("Content-Encoding") or length is None or length > most:
        raise ConnectionLost(
            f"the server must send at most {most} bytes, as they are, and say how many; got "
            f"{'a length not given' if length is None else f'{length} bytes'}"
        )
    return await read_whole(response.content, length)


async def refusal_of(response: ClientResponse, address: str) -> ConnectionLost:
    """Return what a response that is none of the expected ones means."""
    words = printable((await response.content.read(MAX_REASON)).decode(errors="replace"))
    if response.status in (400, 403, 426):
        return NotAdmitted(f"{address} refuses this call: {words}")
    return ConnectionLost(f"{address} did not take a call: {response.status} {words}".rstrip())


def explained(error: Exception, address: str) -> ConnectionLost:
    """Return a failed call in words."""
    import aiohttp

    if isinstance(error, ConnectionLost):
        return error
    text = printable(str(error)) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError) or "CERTIFICATE_VERIFY" in text:
        return NotAdmitted(
            f"the certificate of {address} must come from the authority in ca.crt and name this "
            f"address, got another: {text}"
        )
    if "WRONG_VERSION_NUMBER" in text or "UNSUPPORTED_PROTOCOL" in text:
        return NotAdmitted(f"{address} must speak TLS 1.3, got something else: {text}")
    hung_up = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
    away = isinstance(error, aiohttp.ClientConnectorError)
    if "ALERT" in text or (isinstance(error, hung_up) and not away):
        return NotAdmitted(
            f"{address} hung up: it has stopped, or does not admit this site's certificate; then "
            f"its operator must enrol site.pub ({text})"
        )
    proxy = "through the proxy " if isinstance(error, aiohttp.ClientHttpProxyError) else ""
    return ConnectionLost(f"{address} cannot be reached {proxy}({text})")
