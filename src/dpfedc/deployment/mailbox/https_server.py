"""The server process: letters for enrolled sites over HTTPS, kept in memory.

Two doors. The first asks for a certificate in the handshake: of a caller without an enrolled one no
byte is read. The second, if there is one, is for sites behind proxies that open TLS: there every
call must be signed, and the signature is checked before its body is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import resource
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.keys import pin, read_certificate
from dpfedc.deployment.mailbox.connections import IDLE_S, Connection, Connections
from dpfedc.deployment.mailbox.door import Door, bound_socket, keep_buffers_small
from dpfedc.deployment.mailbox.frames import PIECE, framed, frames, pieces, read_whole
from dpfedc.deployment.mailbox.mailbox import MAX_LETTER, PROTOCOL, require_aiohttp
from dpfedc.deployment.mailbox.post_office import PostOffice
from dpfedc.deployment.mailbox.refused_callers import RefusedCallers
from dpfedc.deployment.mailbox.signed_calls import HEADER, Signatures
from dpfedc.deployment.mailbox.tls import server_context
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from aiohttp import web
    from cryptography.x509 import Certificate

LOOK_S = 0.2
"""How often the folder is looked at for certificates that came or went."""
BODY_S = 900.0
"""How long a body may take."""
MAX_HOLDING = 8
SIGN_S = 10.0
"""How often an operator who waits is told that the server is there."""
OPERATOR = ""
"""In place of a site's name."""


class HttpsServer:
    """The mailbox of one server's folder."""

    def __init__(self, folder: ServerFolder) -> None:
        require_aiohttp()
        self._folder = folder
        self._office = PostOffice()
        self._refused = RefusedCallers(folder.path)
        self._signatures = Signatures(read_certificate(folder.authority.read_bytes()))
        self._connections = Connections(self._refused)
        self._sites: dict[str, Certificate] = {}
        self._callers: dict[str, str] = {}
        """The name of each caller by the pin of its certificate."""
        self._by_proxy: set[str] = set()
        """Sites whose latest call was signed: their connections are a proxy's."""
        self._standing: tuple[object, ...] = ()
        self._started = time.time()
        self._doors: list[Door] = []

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Serve until cancelled."""
        from aiohttp import web

        _raise_file_limit()
        folder = self._folder
        protocol = web.Server(
            self._handle, lingering_time=0, auto_decompress=False, access_log=None,
            keepalive_timeout=IDLE_S, max_line_size=4096, max_field_size=2048,
            handler_cancellation=True,  # who has hung up waits for nothing
            logger=self._refused.logger(),
        )  # fmt: skip
        sockets = []
        try:
            for port in filter(None, (folder.port, folder.signed_port)):
                sockets.append(bound_socket(folder.listen, port))
            self._doors = [Door(s, protocol, self._refused, self._connected) for s in sockets]
            self._look()
            async with asyncio.TaskGroup() as group:
                for door in self._doors:
                    group.create_task(door.serve())
                group.create_task(self._watch())
                on_ready()
        finally:
            self._connections.cut_if(lambda _: True, "")
            for bound in sockets:
                bound.close()
            self._refused.close()

    # Who may call.

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._look()
            except (OSError, InvalidInput, ValueError) as error:
                # A file that is just being written, or damaged: what was good stays in force.
                self._refused.add("-", f"the folder cannot be read: {error}")
            self._connections.cut_idle()

    def _look(self) -> None:
        """Take up certificates that came, went or were renewed; cut those who are gone."""
        standing = self._folder.standing()
        if standing == self._standing:
            return
        (sites, bad), operator = self._folder.certificates(), self._folder.operator.certificate
        for file in bad:
            self._refused.add("-", f"{file} holds no good certificate, and admits nobody")
        certificate, key = self._folder.certificate_files
        self._doors[0].context = server_context(certificate, key, [operator, *sites.values()])
        for door in self._doors[1:]:
            door.context = server_context(certificate, key, None)
        self._sites = sites
        self._callers = {pin(known): name for name, known in sites.items()}
        self._callers[pin(operator)] = OPERATOR
        self._office.admit(sites)
        self._by_proxy &= sites.keys()
        self._connections.cut_if(
            lambda c: c.pin is not None and self._callers.get(c.pin) != c.caller,
            "its certificate was removed",
        )
        self._standing = standing

    def _connected(self, connection: Connection) -> None:
        """Keep a new connection of a caller who shows a certificate, or has to sign."""
        caller = None
        if connection.pin is not None:
            caller = self._callers.get(connection.pin)
            if caller is None:  # removed during the handshake, or vouched for by a site only
                self._refused.add(connection.address, "its certificate is not enrolled")
                connection.cut()
                return
        self._connections.keep(connection, caller)

    # What they call for.

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp.web import RequestPayloadError

        connection = self._connections.of(request.transport)
        if connection is None:
            return _said(503, "the connection is closing")
        connection.n_active += 1
        try:
            return await self._answered(request, connection)
        except InvalidInput as error:
            caller = connection.caller or ""
            self._refused.add(connection.address, str(error), caller=caller)
            return _last(400, str(error))
        except TimeoutError:
            self._refused.add(connection.address, "a body that took too long")
            return _last(408, "too slow")
        except (ConnectionError, RequestPayloadError) as error:
            self._refused.add(connection.address, f"a body was cut off: {error}")
            return _last(400, "cut off")
        finally:
            connection.n_active -= 1
            connection.idle_since = time.monotonic()

    async def _answered(
        self, request: web.BaseRequest, connection: Connection
    ) -> web.StreamResponse:
        if request.headers.get("Content-Encoding") or request.method != "POST":
            raise InvalidInput("calls must be POST, and nothing compressed")
        version, _, what = request.path.lstrip("/").partition("/")
        if version != f"v{PROTOCOL}":  # before the signature, which may be of another form then
            words = f"this server speaks protocol {PROTOCOL}, the caller {version[:20]!r}"
            self._refused.add(connection.address, words, caller=connection.caller or "")
            return _last(426, f"{words}: one of them must be upgraded")
        digest = None
        if connection.pin is None:
            header = request.headers.get(HEADER, "")
            caller, digest = self._signatures.caller(header, request.path_qs, self._sites)
            if connection.caller != caller:
                self._connections.keep(connection, caller)
        connection.n_calls += 1
        if connection.caller == OPERATOR:
            return await self._operator(request, what)
        assert connection.caller is not None
        if connection.pin is None:
            self._by_proxy.add(connection.caller)
        else:
            self._by_proxy.discard(connection.caller)
        if what != "mail":
            raise InvalidInput("there is nothing of this name for a site")
        return await self._mail(request, connection, digest)

    async def _mail(
        self, request: web.BaseRequest, connection: Connection, digest: str | None
    ) -> web.StreamResponse:
        """Take a site's answer, if it has one, and return a letter as soon as there is one."""
        from aiohttp import web

        site = connection.caller or ""
        answers, held = request.query.get("answers"), request.query.get("holding", "")
        length = request.content_length
        if length is None or (length > 0) != (answers is not None):
            raise InvalidInput(f"{site}: a call must have an answer and its length, or neither")
        if answers is not None:
            item = self._office.expected(site, answers)
            if item is None:  # nobody waits for it any more, or it is here already
                await _discard(request, length)
                return _said(410, "nobody waits for this answer")
            if length > item.most:
                self._refused.add(connection.address, f"an answer of {length} bytes", caller=site)
                await _discard(request, length)
                return _said(413, f"an answer must have at most {item.most} bytes, got {length}")
            if isinstance(item.sender, Connection) and item.sender is not connection:
                item.sender.cut()  # it was lost, or the site wants it twice in memory
            item.sender = connection
            try:
                async with asyncio.timeout(BODY_S):
                    answer = await read_whole(request.content, length)
            finally:
                if item.sender is connection:
                    item.sender = None
            if digest is not None and hashlib.sha256(answer).hexdigest() != digest:
                raise InvalidInput(f"{site}: a body must be the one that was signed for")
            self._office.deliver(item, answer)
        if request.query.get("stay") == "0":
            self._office.saw(site)
            return web.Response(status=204)
        holding = held.split(",")[:MAX_HOLDING] if held else []
        letter = await self._office.next_letter(site, holding)
        if letter is None:
            return web.Response(status=204)
        if len(letter.letter) <= PIECE:
            return web.Response(body=letter.letter)
        response = web.StreamResponse()
        response.content_length = len(letter.letter)
        await response.prepare(request)
        await _write(response, pieces(letter.letter))
        await response.write_eof()
        return response

    async def _operator(self, request: web.BaseRequest, what: str) -> web.StreamResponse:
        from aiohttp import web

        if what == "exchange":
            return await self._exchange(request)
        if what == "status":
            return web.json_response(self._status())
        return _said(404, "there is nothing of this name")

    async def _exchange(self, request: web.BaseRequest) -> web.StreamResponse:
        """Take letters, and send back each answer as it comes; who hangs up is forgotten."""
        from aiohttp import web

        exchange = self._office.open()
        try:
            async for head, letter in frames(request.content, most=MAX_LETTER):
                self._office.post(exchange, str(head["site"]), letter, int(head["most"]))
            response = web.StreamResponse()
            await response.prepare(request)
            while exchange.waiting or not exchange.answered.empty():
                try:
                    async with asyncio.timeout(SIGN_S):
                        item = await exchange.answered.get()
                except TimeoutError:
                    await _write(response, framed({}))  # or the caller would give up
                    continue
                assert item.answer is not None
                head = {"site": item.site, "seconds": item.seconds}
                await _write(response, framed(head, item.answer))
            await response.write_eof()
            return response
        finally:
            self._office.close(exchange)

    def _online(self) -> dict[str, bool]:
        """Return which sites are there. One whose connections are all closed is gone, at once.

        A proxy keeps and closes connections as it likes: its sites are there for a while after
        each call.
        """
        return {
            name: there and (name in self._by_proxy or self._connections.is_there(name))
            for name, there in self._office.online().items()
        }

    def _status(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "started": self._started,
            "online": self._online(),
            "connections": len(self._connections),
            "waiting": dict(self._office.counts()),
            "refused": {"callers": self._refused.n_refused, "last": [*self._refused.last]},
        }


def serve(folder: ServerFolder, *, on_ready: Callable[[], None]) -> None:
    """Serve until the process is told to stop."""
    import signal

    async def main() -> None:
        serving = asyncio.ensure_future(HttpsServer(folder).serve(on_ready))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        with suppress(asyncio.CancelledError):
            await serving

    keep_buffers_small()
    try:
        asyncio.run(main())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


async def _write(response: web.StreamResponse, parts: Iterable[bytes | memoryview]) -> None:
    for part in parts:
        await response.write(part)


def _said(status: int, text: str) -> web.Response:
    from aiohttp import web

    return web.Response(status=status, text=text)


async def _discard(request: web.BaseRequest, length: int) -> None:
    """Read a body that nobody wants: a caller who is cut while it sends would not hear why."""
    if length <= MAX_LETTER:
        async with asyncio.timeout(BODY_S):
            async for _ in request.content.iter_any():
                pass


def _last(status: int, text: str) -> web.Response:
    """Return a refusal after which the caller has to come back, through the door."""
    response = _said(status, text)
    response.force_close()
    return response


def _raise_file_limit() -> None:
    """Let a thousand sites have a connection each, where the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 65536)), hard))
