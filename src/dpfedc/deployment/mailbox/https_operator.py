"""The coordinator's side over HTTPS: it calls the server like anyone else, as its operator."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dpfedc.deployment.control import opened
from dpfedc.deployment.keys import Identity, verifying_key
from dpfedc.deployment.mailbox.frames import framed, frames
from dpfedc.deployment.mailbox.https_calls import (
    explained,
    new_session,
    open_ended,
    read_bounded,
    refusal_of,
)
from dpfedc.deployment.mailbox.letters import letter, opened_reply
from dpfedc.deployment.mailbox.mailbox import (
    MAX_LETTER,
    PROTOCOL,
    ConnectionLost,
    Delivery,
    NotAdmitted,
)
from dpfedc.deployment.mailbox.tls import caller_context
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from cryptography.x509 import Certificate

T = TypeVar("T")
AGAIN_S = 0.2
"""How soon a call that failed is made again: the server may just be starting."""
FAREWELL_S = 0.02
"""Connections that are let go are closed a moment later."""
MAX_BAD = 3
MAX_SAID = 2**20
"""Bytes that a site has to say before a run, at most."""
BAD_SIGNATURE = "its answer has a bad signature: it is not of the key that is enrolled"
_NOT_RUNNING = "{} cannot be reached: is the server started? (dpfedc server start)"


class HttpsMailbox:
    """Carries bytes to enrolled sites by name. An answer counts only with its site's signature."""

    def __init__(self, folder: ServerFolder) -> None:
        self._folder = folder
        self._operator: Identity = folder.operator
        self.most_answer = MAX_SAID
        """Bytes that an answer may have; rounds need more than the words before them."""
        host = "127.0.0.1" if folder.listen in ("0.0.0.0", "::", "localhost") else folder.listen
        host = f"[{host}]" if ":" in host else host
        self.address = f"{host}:{folder.port}"
        # Not a Runner: it prints the task, all requests in it, for every exchange.
        self._loop = asyncio.new_event_loop()
        self._session: ClientSession | None = None
        self.on_delivery: Callable[[Delivery], None] = lambda _: None

    def close(self) -> None:
        """Close the connection."""
        for last in (self._hung_up(), self._loop.shutdown_asyncgens(), asyncio.sleep(FAREWELL_S)):
            self._loop.run_until_complete(last)
        self._loop.close()

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

    def online(self) -> Mapping[str, bool]:
        """Return which enrolled sites are there; none while the server is not."""
        try:
            return dict(self.status()["online"])
        except ConnectionLost:
            return dict.fromkeys(self._folder.enrolled(), False)

    def status(self) -> dict[str, Any]:
        """Return what the server says of itself."""
        try:
            return self._run(self._status())
        except NotAdmitted:  # the operator's certificate may just have been renewed
            time.sleep(AGAIN_S)
            return self._run(self._status())

    def exchange(
        self, requests: Mapping[str, bytes], deadline_s: float
    ) -> dict[str, bytes | Refusal]:
        """Send each site its request; return the replies that came before the deadline.

        A server that forgot a letter, because it was started anew, is told again.
        """
        return self._run(self._exchange(requests, deadline_s)) if requests else {}

    async def _status(self) -> dict[str, Any]:
        async with _Call(self, "status") as response:
            said: dict[str, Any] = json.loads(await read_bounded(response, MAX_LETTER))
            return said

    async def _exchange(
        self, requests: Mapping[str, bytes], deadline_s: float
    ) -> dict[str, bytes | Refusal]:
        answers: dict[str, bytes | Refusal] = {}
        letters = {site: letter(self._operator, site, body) for site, body in requests.items()}
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as asking:
                await self._ask(letters, requests, answers, asking)
        return answers

    async def _ask(
        self,
        letters: Mapping[str, bytes],
        requests: Mapping[str, bytes],
        answers: dict[str, bytes | Refusal],
        asking: asyncio.TaskGroup,
        n_bad: int = 0,
    ) -> None:
        """Ask until all of these have answered; a bad answer is asked for again, beside the rest.

        Its site's key may just have been exchanged.
        """
        if n_bad:
            await asyncio.sleep(AGAIN_S)
        pending = dict(letters)
        while pending:
            try:
                async with aclosing(self._answers(pending)) as received:
                    async for site, seconds, data in received:
                        sent = pending.pop(site, None)
                        if sent is None:
                            continue
                        got = self._verified(site, requests[site], data)
                        if got is None and n_bad + 1 < MAX_BAD:
                            again = {site: sent}
                            asking.create_task(
                                self._ask(again, requests, answers, asking, n_bad + 1)
                            )
                            continue
                        answers[site] = Refusal(BAD_SIGNATURE) if got is None else got
                        self.on_delivery(Delivery(site, seconds, len(sent), len(data)))
            except ConnectionLost:
                await asyncio.sleep(AGAIN_S)

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

    async def _hung_up(self) -> None:
        """Let the next call be made anew, with the certificate that the operator has then."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        with suppress(InvalidInput, OSError):  # it is just being renewed
            self._operator = self._folder.operator

    async def _answers(
        self, letters: Mapping[str, bytes]
    ) -> AsyncGenerator[tuple[str, float, bytes], None]:
        """Send letters in one call, and yield what comes back on it: site, seconds, answer."""

        async def body() -> AsyncIterator[bytes | memoryview]:
            for site, data in letters.items():
                for piece in framed({"site": site, "most": self.most_answer}, data):
                    yield piece

        async with _Call(self, "exchange", body()) as response:
            async for head, data in frames(response.content, most=MAX_LETTER):
                if head:  # else a sign that the server is there
                    yield str(head["site"]), float(head["seconds"]), data


class _Call:
    """One call of the operator; every failure is a `ConnectionLost`."""

    def __init__(self, mailbox: HttpsMailbox, what: str, body: Any = b"") -> None:
        self._mailbox, self._what, self._body = mailbox, what, body

    async def __aenter__(self) -> ClientResponse:
        import aiohttp

        mailbox = self._mailbox
        if mailbox._session is None:
            context = caller_context(mailbox._operator, mailbox._folder.authority)
            mailbox._session = new_session(context)
        url = f"https://{mailbox.address}/v{PROTOCOL}/{self._what}"
        try:
            self._response = await mailbox._session.post(
                url, data=self._body, allow_redirects=False, timeout=open_ended()
            )
        except aiohttp.ClientConnectorError as error:
            raise ConnectionLost(_NOT_RUNNING.format(mailbox.address)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await mailbox._hung_up()
            raise explained(error, mailbox.address) from error
        if self._response.status not in (200, 204):
            async with self._response:
                raise await refusal_of(self._response, mailbox.address)
        return self._response

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import aiohttp

        self._response.release() if error is None else self._response.close()
        if isinstance(error, InvalidInput):  # a body that was cut off
            raise ConnectionLost(str(error)) from error
        if isinstance(error, (aiohttp.ClientError, TimeoutError, OSError)):
            raise explained(error, self._mailbox.address) from error
