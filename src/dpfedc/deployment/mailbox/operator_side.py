"""The coordinator's side of every mailbox: letters out, and back only what their sites signed."""

from __future__ import annotations

import asyncio
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dpfedc.deployment.control import opened
from dpfedc.deployment.keys import Identity, verifying_key
from dpfedc.deployment.mailbox.letters import letter, opened_reply
from dpfedc.deployment.mailbox.mailbox import Delivery
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

T = TypeVar("T")
FAREWELL_S = 0.02
"""Connections that are let go are closed a moment later."""
MAX_SAID = 2**20
"""Bytes that a site has to say before a run, at most."""
MAX_BAD = 3
BAD_SIGNATURE = "its answer has a bad signature: it is not of the key that is enrolled"


class OperatorSide(ABC):
    """Carries bytes to enrolled sites by name. An answer counts only with its site's signature."""

    def __init__(self, folder: ServerFolder) -> None:
        self._folder = folder
        self._operator: Identity = folder.operator
        self.most_answer = MAX_SAID
        """Bytes that an answer may have; rounds need more than the words before them."""
        # Not a Runner: it prints the task, all requests in it, for every exchange.
        self._loop = asyncio.new_event_loop()
        self.on_delivery: Callable[[Delivery], None] = lambda _: None

    @abstractmethod
    def online(self) -> Mapping[str, bool]:
        """Return which enrolled sites are there; none while the server is not."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return what there is to know of the server; a `ConnectionLost` if it is not there."""

    @abstractmethod
    async def _exchange_all(
        self,
        letters: Mapping[str, bytes],
        requests: Mapping[str, bytes],
        answers: dict[str, bytes | Refusal],
        asking: asyncio.TaskGroup,
    ) -> None:
        """Put into `answers` what comes back, until all have answered."""

    @abstractmethod
    async def _hang_up(self) -> None:
        """Close what is open."""

    def close(self) -> None:
        """Close the connection."""
        ends = (self._hang_up(), self._end_rest(), self._loop.shutdown_asyncgens())
        for last in (*ends, asyncio.sleep(FAREWELL_S)):
            self._loop.run_until_complete(last)
        self._loop.close()

    async def _end_rest(self) -> None:
        """End what a library has left running, as after a connection that broke while it closed."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=1)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let a call run to its end. Who is interrupted meanwhile ends it in good order first.

        Left as it is, Python would raise in the middle of the loop, and everything that is under
        way would complain when the loop is closed.
        """
        task = self._loop.create_task(work)
        interrupted: list[bool] = []

        def on_interrupt(_: int, __: object) -> None:
            interrupted.append(True)
            task.cancel()
            self._loop.call_soon_threadsafe(lambda: None)  # it may just be waiting

        is_ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if is_ours:
            signal.signal(signal.SIGINT, on_interrupt)
        try:
            done = self._loop.run_until_complete(task)
        except BaseException:
            if interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            if is_ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted:
            raise KeyboardInterrupt
        return done

    def exchange(
        self, requests: Mapping[str, bytes], deadline_s: float
    ) -> dict[str, bytes | Refusal]:
        """Send each site its request; return the replies that came before the deadline.

        A server that forgot a letter, because it was started anew, is told again.
        """
        return self._run(self._exchange(requests, deadline_s)) if requests else {}

    async def _exchange(
        self, requests: Mapping[str, bytes], deadline_s: float
    ) -> dict[str, bytes | Refusal]:
        answers: dict[str, bytes | Refusal] = {}
        letters = {site: letter(self._operator, site, body) for site, body in requests.items()}
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as asking:
                await self._exchange_all(letters, requests, answers, asking)
        return answers

    def _enrolled(self, site: str) -> Certificate | None:
        """Return a site's certificate; one that cannot be read does not stop the others."""
        try:
            return self._folder.enrolled_site(site)
        except (InvalidInput, OSError):
            return None

    def _verified(self, site: str, request: bytes, data: bytes) -> bytes | Refusal | None:
        certificate = self._enrolled(site)
        if certificate is None:
            return None
        answer = opened_reply(verifying_key(certificate), site, request, data)
        return None if answer is None else opened(answer)

    def _taken(self, site: str, request: bytes, data: bytes, n_bad: int) -> bytes | Refusal | None:
        """Return what a reply says; None if it must be asked for again.

        A bad signature may be of a key that is just being exchanged; it is one after a few times.
        """
        got = self._verified(site, request, data)
        return Refusal(BAD_SIGNATURE) if got is None and n_bad + 1 >= MAX_BAD else got

    def _renewed(self) -> None:
        """Take the certificate that the operator has now."""
        with suppress(InvalidInput, OSError):  # it is just being renewed
            self._operator = self._folder.operator


def mailbox_of(folder: ServerFolder) -> OperatorSide:
    """Return the coordinator's side of the mailbox that a server's folder has."""
    if folder.nats:
        from dpfedc.deployment.mailbox.nats_operator import NatsMailbox

        return NatsMailbox(folder)
    from dpfedc.deployment.mailbox.https_operator import HttpsMailbox

    return HttpsMailbox(folder)
