"""A listening socket that stays small whoever calls: few handshakes at a time, none of them slow.

Connections are accepted one by one, each with the newest TLS context, so that a certificate that
was removed is of no use from the next handshake on. A handshake takes half a megabyte, so none is
begun before the caller has said something. When too many are under way the oldest is cut: an
honest one takes milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dpfedc.deployment.mailbox.connections import Connection
from dpfedc.deployment.mailbox.refused_callers import RefusedCallers
from dpfedc.errors import InvalidInput

HANDSHAKE_S = 10.0
MAX_SILENT, MAX_HANDSHAKES = 1024, 64
PATIENCE_S = 1.0
"""Who has had so long may be cut for another caller."""
CLOSING_S = 2.0
BUFFER_BYTES = 2**15


def keep_buffers_small() -> None:
    """Give every TLS connection of this process less than asyncio does: 256 KiB each.

    There is no setting for it. Where the attribute is gone, memory is what it was.
    """
    from asyncio import sslproto

    if hasattr(sslproto.SSLProtocol, "max_size"):
        sslproto.SSLProtocol.max_size = BUFFER_BYTES


def bound_socket(listen: str, port: int) -> socket.socket:
    """Return a socket that listens; say so if another process has the port."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((listen, port))
        bound.listen(1024)  # binding alone would also succeed beside a server that is starting
    except OSError as error:
        bound.close()
        raise InvalidInput(f"cannot listen on {listen} port {port}: {error.strerror}") from error
    bound.setblocking(False)
    return bound


class Door:
    """Accepts connections on one socket, until it is cancelled."""

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], Any],
        refused: RefusedCallers,
        on_connection: Callable[[Connection], None],
    ) -> None:
        self._socket, self._protocol, self._refused = bound, protocol, refused
        self._on_connection = on_connection
        self._silent, self._handshakes = _Places(), _Places()
        self._turn = _Turns()
        self._owned: dict[asyncio.Task[None], socket.socket] = {}
        self.context: ssl.SSLContext | None = None

    async def serve(self) -> None:
        """Accept until cancelled."""
        try:
            while True:
                await self._silent.room(MAX_SILENT)
                await _readable(self._socket)
                # Accepted and in someone's hands at once: in between, nobody would close it.
                try:
                    accepted, address = self._socket.accept()
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                        continue  # the caller was gone before it was accepted
                    self._refused.add("-", f"no room for another connection: {error.strerror}")
                    await asyncio.sleep(PATIENCE_S)
                    continue
                accepted.setblocking(False)
                task = asyncio.create_task(self._attend(accepted, str(address[0])))
                self._silent.add(task)
                self._owned[task] = accepted
                task.add_done_callback(self._forget)
        finally:
            tasks = (*self._silent.tasks, *self._handshakes.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Close what a task has not handed on; one that is cancelled early never ran at all."""
        self._silent.remove(task)
        self._handshakes.remove(task)
        if task in self._owned:
            self._owned.pop(task).close()

    async def _attend(self, accepted: socket.socket, address: str) -> None:
        """Begin a handshake once the caller has begun it and there is room."""
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await _readable(accepted)
                if not accepted.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError
                async with self._turn:  # one looks for room, and the others sleep
                    await self._handshakes.room(MAX_HANDSHAKES)
                    self._silent.remove(task)
                    self._handshakes.add(task)
            # Its transport closes it from here on; closed under it, it would not end.
            del self._owned[task]
            await self._shake(accepted, address)
        except OSError as error:  # also one that says nothing in time
            self._refused.add(address, f"no handshake: {_reason(error)}")
        except asyncio.CancelledError:
            self._refused.add(address, "handshake not done in time: too many at once")

    async def _shake(self, accepted: socket.socket, address: str) -> None:
        assert self.context is not None
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            self._protocol,
            accepted,
            ssl=self.context,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=CLOSING_S,
        )
        assert isinstance(transport, asyncio.Transport)
        shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        mark = None if shown is None else hashlib.sha256(shown).hexdigest()
        self._on_connection(Connection(transport, address, mark))


class _Places:
    """Tasks of a kind, of which there is room for so many."""

    def __init__(self) -> None:
        self._left = asyncio.Event()
        self.tasks: dict[asyncio.Task[None], float] = {}
        """Each with the time since when it is there."""

    def add(self, task: asyncio.Task[None]) -> None:
        self.tasks[task] = time.monotonic()

    def remove(self, task: asyncio.Task[None]) -> None:
        if self.tasks.pop(task, None) is not None:
            self._left.set()

    async def room(self, most: int) -> None:
        """Wait until there is room for one more; the oldest is cut if it is slow.

        One at a time may wait: if all did, each handshake that ends would wake them all.
        """
        while len(self.tasks) >= most:
            task, since = next(iter(self.tasks.items()))
            left = since + PATIENCE_S - time.monotonic()
            if left <= 0:
                self.remove(task)
                task.cancel()
                continue
            self._left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._left.wait()


class _Turns:
    """A lock that goes to who came last.

    If hundreds wait, whoever came first has waited for seconds and is about to be given up.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def __aenter__(self) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting[mine] = None
        try:
            await mine
        except asyncio.CancelledError:
            if mine in self._waiting:
                del self._waiting[mine]
            else:  # it had just been given the turn
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            last, _ = self._waiting.popitem()
            if not last.done():
                last.set_result(None)
                return
        self._is_taken = False


async def _readable(of: socket.socket) -> None:
    """Wait until the other side has said something, or somebody calls."""
    loop, said = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(of, said.set)
    try:
        await said.wait()
    finally:
        loop.remove_reader(of)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, ConnectionError) and not str(error):
        return "the caller hung up"
    if isinstance(error, TimeoutError):
        return "the caller was too slow"
    return str(error) or type(error).__name__
