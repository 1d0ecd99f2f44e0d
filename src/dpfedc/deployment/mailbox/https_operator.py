"""The coordinator's side over HTTPS: it calls the server like anyone else, as its operator."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.mailbox.frames import framed, frames
from dpfedc.deployment.mailbox.https_calls import (
    explained,
    new_session,
    open_ended,
    read_bounded,
    refusal_of,
)
from dpfedc.deployment.mailbox.mailbox import (
    MAX_LETTER,
    PROTOCOL,
    ConnectionLost,
    Delivery,
    NotAdmitted,
)
from dpfedc.deployment.mailbox.operator_side import OperatorSide
from dpfedc.deployment.mailbox.tls import caller_context
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

AGAIN_S = 0.2
"""How soon a call that failed is made again: the server may just be starting."""
_NOT_RUNNING = "{} cannot be reached: is the server started? (dpfedc server start)"


class HttpsMailbox(OperatorSide):
    """The operator's calls to one server."""

    def __init__(self, folder: ServerFolder) -> None:
        super().__init__(folder)
        host = "127.0.0.1" if folder.listen in ("0.0.0.0", "::", "localhost") else folder.listen
        host = f"[{host}]" if ":" in host else host
        self.address = f"{host}:{folder.port}"
        self._session: ClientSession | None = None

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

    async def _status(self) -> dict[str, Any]:
        async with _Call(self, "status") as response:
            said: dict[str, Any] = json.loads(await read_bounded(response, MAX_LETTER))
            return said

    async def _exchange_all(
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
                        got = self._taken(site, requests[site], data, n_bad)
                        if got is None:
                            again = {site: sent}
                            asking.create_task(
                                self._exchange_all(again, requests, answers, asking, n_bad + 1)
                            )
                            continue
                        answers[site] = got
                        self.on_delivery(Delivery(site, seconds, len(sent), len(data)))
            except ConnectionLost:
                await asyncio.sleep(AGAIN_S)

    async def _hang_up(self) -> None:
        """Let the next call be made anew, with the certificate that the operator has then."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._renewed()

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
            await mailbox._hang_up()
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
