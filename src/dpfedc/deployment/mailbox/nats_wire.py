"""One connection to a NATS server: TLS, a key of one's own, bounds, and lost for good once lost.

A caller shows its certificate in the handshake, which comes before anything else, and then signs
the server's challenge with the same key: both are what was enrolled. Only the operator asks; a site
answers each request once, and has nobody else to speak to (`nats_config`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import ssl
from base64 import b32encode, b64encode
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpfedc.deployment.keys import Identity
from dpfedc.deployment.mailbox.frames import PIECE
from dpfedc.deployment.mailbox.mailbox import NATS, ConnectionLost, NotAdmitted
from dpfedc.deployment.mailbox.tls import caller_context
from dpfedc.errors import InvalidInput, MissingExtra, printable

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

T = TypeVar("T")
MAX_PAYLOAD = PIECE + 2**13
"""Bytes of a message: a piece, and what is put around it."""
MAX_HEAD = 2**10
REQUEST = "request"
"""The subject on which a site is asked; the operator's name for it is `site.` and the site's."""
CONNECT_S, PING_S, LOOK_S = 30, 10, 1.0
_NONE_THERE = "503"
_USER = 20 << 3
"""What a public key of a user begins with in NATS's notation."""
_NONCE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def require_nats() -> None:
    """Say which extra is missing, if one is."""
    try:
        import nats  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "a federation over NATS needs nats-py: pip install 'dpfedc[deploy,nats]'"
        ) from error


class NobodyThere(ConnectionLost):
    """The one who is asked is not connected."""


def user_key(public: bytes) -> str:
    """Return an Ed25519 public key as NATS writes that of a user."""
    return _written(bytes([_USER]) + public)


def _written(data: bytes) -> str:
    return b32encode(data + crc_hqx(data, 0).to_bytes(2, "little")).decode().rstrip("=")


def packed(head: Mapping[str, Any], body: bytes | memoryview = b"") -> bytes:
    """Return a message: a line of JSON, and bytes."""
    return b"".join((json.dumps(head, separators=(",", ":")).encode(), b"\n", body))


def unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the head and the bytes of a message; anything else is refused."""
    text, found, _ = data[: MAX_HEAD + 1].partition(b"\n")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("a message must begin with a line of JSON") from error
    if not found or not isinstance(head, dict):
        raise InvalidInput("a message must begin with a line of JSON, got another")
    return head, data[len(text) + 1 :]


def number(head: Mapping[str, Any], name: str, *, most: float = 2**40) -> int:
    """Return a number of a head; anything else is refused."""
    value = head.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidInput(f"{name} must be a number from 0 to {most}")
    return value


def addresses_in(text: str) -> list[str]:
    """Return the HOST:PORT of every server in nats://HOST:PORT,HOST:PORT."""
    return text.removeprefix(NATS).split(",")


class Line:
    """A connection that stands. When it is lost, everything that waits on it hears so."""

    def __init__(self, client: Client, address: str) -> None:
        self._client, self.address = client, address
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._inbox, self._n_asked, self._stands = "", 0, False
        self._watching: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()

    @classmethod
    async def open(cls, addresses: list[str], identity: Identity, authority: Path) -> Line:
        """Return a connection to one of these servers, the first of a random order that admits.

        One that does not may have old files, or may just be stopping.
        """
        require_nats()
        context = caller_context(identity, authority)
        problem: ConnectionLost | None = None
        for address in random.sample(addresses, len(addresses)):
            try:
                return await cls._opened(address, context, identity)
            except ConnectionLost as error:
                problem = problem if isinstance(problem, NotAdmitted) else error
        assert problem is not None
        raise problem

    @classmethod
    async def _opened(cls, address: str, context: ssl.SSLContext, identity: Identity) -> Line:
        client = _bounded_client()
        client._public_nkey = user_key(identity.key.public_key().public_bytes_raw())
        line = cls(client, address)
        try:
            async with asyncio.timeout(CONNECT_S):
                connecting = client.connect(
                    f"tls://{address}",
                    tls=context,
                    tls_handshake_first=True,  # nothing is said in the clear, to nobody
                    signature_cb=lambda nonce: _answered(nonce, identity),
                    # Ours comes back by itself, and never to an address that a server named.
                    allow_reconnect=False,
                    connect_timeout=CONNECT_S,
                    ping_interval=PING_S,
                    error_cb=line._on_error,
                    closed_cb=line._on_closed,
                )
                await _apart(connecting)
        except Exception as error:  # a server that says nonsense makes the library fail anyhow
            await line.close()
            raise _explained(error, address) from error
        line._stands = True
        line._watching = asyncio.ensure_future(line._watch())
        return line

    async def _on_error(self, error: Exception) -> None:
        """End an attempt to connect, which the library would repeat. Later losses are noticed."""
        if not self._stands:
            raise error

    async def _watch(self) -> None:
        """Notice a loss though the library, before it says so, waits for a peer that is dead."""
        while not self._client.is_closed:
            await asyncio.sleep(LOOK_S)
        await self._on_closed()

    async def _on_closed(self) -> None:
        self.lost.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self.problem)

    @property
    def problem(self) -> ConnectionLost:
        """Return what to say of a connection that was lost."""
        return ConnectionLost(f"{self.address} hung up")

    async def close(self) -> None:
        """Hang up. The library may wait for the end of what was cut off in its handshake."""
        if self._watching is not None:
            self._watching.cancel()
        with suppress(Exception):  # whatever a connection that is broken already complains of
            async with asyncio.timeout(LOOK_S):
                await _apart(self._client.close())
        self.lost.set()

    async def listen(
        self, subject: str, heard: Callable[[Msg], Awaitable[None]], most: int
    ) -> None:
        """Have everything on a subject heard, at most so many bytes of it at a time."""
        from nats.errors import Error

        try:
            subscribing = self._client.subscribe(subject, cb=heard, pending_bytes_limit=most)
            await _apart(subscribing)
            await _apart(self._client.flush(CONNECT_S))
        except (Error, OSError, TimeoutError) as error:
            raise _explained(error, self.address) from error

    async def say(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send a message, as far as this side can tell."""
        from nats.errors import Error

        try:
            await _apart(self._client.publish(subject, data, reply=reply))
        except (Error, OSError) as error:
            raise _explained(error, self.address) from error

    async def ask(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """Return the answer to a request; `NobodyThere` at once if nobody is.

        A lost connection and no answer in time are a `ConnectionLost` and a `TimeoutError`.
        """
        if not self._inbox:
            self._inbox = self._client.new_inbox()
            await self.listen(f"{self._inbox}.*", self._on_answer, 2**30)
        self._n_asked += 1
        token = str(self._n_asked)
        self._waiting[token] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self.say(subject, data, f"{self._inbox}.{token}")
                answer = await self._waiting[token]
        finally:
            self._waiting.pop(token).cancel()
        if answer.headers and answer.headers.get("Status") == _NONE_THERE:
            raise NobodyThere(f"nobody is there for {subject}")
        return answer.data

    async def ask_all(self, subject: str, n_answers: int, timeout_s: float) -> list[bytes]:
        """Return the answers of several to one request: so many, or those that come in time."""
        inbox, answers = self._client.new_inbox(), asyncio.Queue[bytes]()

        async def heard(message: Msg) -> None:
            answers.put_nowait(message.data)

        await self.listen(inbox, heard, 2**26)
        found: list[bytes] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.say(subject, b"", inbox)
                while len(found) < n_answers:
                    found.append(await answers.get())
        return found

    async def _on_answer(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None and not waiting.done():
            waiting.set_result(message)


async def _apart(work: Coroutine[Any, Any, T]) -> T:
    """Let the library work in a task of its own: it swallows cancellations, and they are ours."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    return task.result()


def _answered(nonce: Any, identity: Identity) -> bytes:
    """Return the answer to a server's challenge, refused unless it can be nothing else.

    The key signs letters, calls and agreements, too, all of which begin with words and a space. A
    server that could have any text signed would have all of them.
    """
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise NotAdmitted("a server's challenge must be 1 to 64 letters, digits, '-' or '_'")
    return b64encode(identity.key.sign(nonce.encode()))


def _bounded_client() -> Client:
    """Return a client that keeps no more of what a server says than is needed, and prints nothing.

    The library would wait for as many bytes as a server announces, and collect all addresses that
    it names.
    """
    from nats.aio.client import Client
    from nats.errors import ProtocolError
    from nats.protocol.parser import Parser

    class BoundedClient(Client):
        async def _process_info(self, info: Any, initial_connection: bool = False) -> None:
            return

    class BoundedParser(Parser):
        async def parse(self, data: bytes = b"") -> None:
            await super().parse(data)
            if max(self.needed if self.state != 1 else 0, len(self.buf)) > 2 * MAX_PAYLOAD:
                raise ProtocolError("nats: too long")

    client = BoundedClient()
    client._ps = BoundedParser(client)
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(_is_news)
    return client


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line of the log is worth it: every connection that ends gives this one."""
    return "eof_received" not in str(record.msg)


def _explained(error: Exception, address: str) -> ConnectionLost:
    """Return a failure in words."""
    if isinstance(error, NotAdmitted):
        return error
    text = printable(str(error)) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotAdmitted(
            f"the certificate of {address} must come from the authority in ca.crt and name this "
            f"address, got another: {text}"
        )
    away = (ConnectionRefusedError, TimeoutError)
    hung_up = (ssl.SSLError, ConnectionError)
    if (isinstance(error, hung_up) and not isinstance(error, away)) or any(
        words in text.lower() for words in ("authorization", "unexpected eof", "empty response")
    ):
        return NotAdmitted(
            f"{address} hung up: it has stopped, or does not admit this site's certificate; then "
            f"its operator must enrol site.pub ({text})"
        )
    return ConnectionLost(f"{address} cannot be reached ({text})")
