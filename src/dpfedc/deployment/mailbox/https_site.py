"""A site's side over HTTPS: fetch a letter, answer it, and come back whenever the line is lost.

The site calls and nobody calls it. While it works on a request it says so every few seconds. It
stops between requests only: one that is charged is also answered.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from dpfedc.deployment.keys import Identity
from dpfedc.deployment.mailbox.frames import PIECE, pieces
from dpfedc.deployment.mailbox.https_calls import (
    explained,
    new_session,
    proxy_to,
    read_bounded,
    refusal_of,
)
from dpfedc.deployment.mailbox.letters import reply
from dpfedc.deployment.mailbox.mailbox import PROTOCOL, ConnectionLost
from dpfedc.deployment.mailbox.post_office import PRESENT_S, digest_of
from dpfedc.deployment.mailbox.signed_calls import HEADER, signed_header
from dpfedc.deployment.mailbox.site_side import SiteSide
from dpfedc.deployment.mailbox.tls import caller_context, proxied_context
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from aiohttp import ClientSession

BEAT_S = PRESENT_S / 3
HASTE_S = 1.0
"""A call that ends sooner, with nothing, is not repeated at once."""
MAX_BAD, MAX_INBOX = 4, 2


@dataclass
class _Desk:
    """What must survive a lost connection: letters to be worked on, and an answer to be sent."""

    inbox: deque[tuple[bytes, Identity]] = field(default_factory=deque)
    """Letters, each with the key that it was sent in answer to."""
    bad: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_BAD))
    at_work: str | None = None
    done: tuple[str, bytes, bytes] | None = None
    """The digest of a letter, its request and the answer."""

    @property
    def held(self) -> list[str]:
        """Return the letters that need not be sent again."""
        working = [] if self.at_work is None else [self.at_work]
        return [*working, *(digest_of(letter) for letter, _ in self.inbox), *self.bad]

    def take(self, letter: bytes, identity: Identity) -> None:
        """Keep a letter if there is room; one that is not kept is sent again."""
        if len(self.inbox) < MAX_INBOX:
            self.inbox.append((letter, identity))


class HttpsSite(SiteSide):
    """One site's calls to one server."""

    @cached_property
    def _desk(self) -> _Desk:
        return _Desk()

    async def _serve(self, identity: Identity, stop: asyncio.Event) -> None:
        context, proxy = self._context(identity), proxy_to(self._line.address)
        async with new_session(context, proxy=proxy) as session:
            await self._work(session, identity, stop)

    def _context(self, identity: Identity) -> ssl.SSLContext:
        if self._line.proxy_authority is not None:
            return proxied_context(self._line.proxy_authority)
        return caller_context(identity, self._line.authority)

    async def _work(self, session: ClientSession, identity: Identity, stop: asyncio.Event) -> None:
        desk, stopping = self._desk, asyncio.ensure_future(stop.wait())
        call: asyncio.Future[bytes | None] | None = None
        try:
            while not stop.is_set() or desk.done:
                if not desk.inbox or desk.done:
                    began = time.monotonic()
                    # The first call comes back at once, to say that this site is admitted.
                    stay = self._connected and not (stop.is_set() or desk.inbox)
                    call = asyncio.ensure_future(self._call(session, identity, stay=stay))
                    if not stop.is_set():
                        await asyncio.wait({call, stopping}, return_when="FIRST_COMPLETED")
                        if not call.done():  # an answer that it carries is sent once more
                            call.cancel()
                            continue
                    letter = await call
                    if letter is not None:
                        desk.take(letter, identity)
                    elif stay and time.monotonic() - began < HASTE_S:
                        await asyncio.sleep(HASTE_S * random.uniform(0.5, 1))
                if desk.inbox and not stop.is_set():
                    await self._answer(session, identity, *desk.inbox.popleft())
        finally:
            stopping.cancel()
            if call is not None:
                call.cancel()

    async def _answer(
        self, session: ClientSession, identity: Identity, letter: bytes, came_to: Identity
    ) -> None:
        """Work on a letter in another thread, and say meanwhile that this site is there."""
        desk, digest = self._desk, digest_of(letter)
        try:
            request = self._letters.opened(letter)
        except InvalidInput as error:
            desk.bad.append(digest)
            self._tell(f"refused: {error}")
            await asyncio.sleep(HASTE_S * random.uniform(0.5, 1))
            return
        if self._line.proxy_authority is not None:
            # Only a letter shows that the server has admitted a key: a proxy could say so, too. It
            # may have come before the connection was lost, to a call with the other key.
            self._line.on_admitted(came_to)
        del letter
        desk.at_work = digest
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, self._answer_of, request)
        beats = asyncio.ensure_future(self._beat(session, identity))
        try:
            answer = await asyncio.shield(work)
        finally:
            beats.cancel()
            desk.at_work = None
        desk.done = (digest, request, answer)

    async def _beat(self, session: ClientSession, identity: Identity) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            with suppress(ConnectionLost):  # the answer's call meets the same trouble
                has_room = len(self._desk.inbox) < MAX_INBOX
                letter = await self._call(session, identity, stay=has_room, beat=True)
                if letter is not None and digest_of(letter) not in self._desk.held:
                    self._desk.take(letter, identity)

    async def _call(
        self, session: ClientSession, identity: Identity, *, stay: bool = True, beat: bool = False
    ) -> bytes | None:
        """Send the answer, if there is one, and return the next letter, if there is one."""
        desk, words, body = self._desk, {}, b""
        sent = None if beat else desk.done
        if sent is not None:
            words["answers"] = sent[0]
            body = reply(identity, self._line.name, sent[1], sent[2])
        held = desk.held
        if held:
            words["holding"] = ",".join(held)
        if not stay:
            words["stay"] = "0"
        query = f"?{urlencode(words, safe=',')}" if words else ""
        path = f"/v{PROTOCOL}/mail{query}"
        letter = await self._posted(session, identity, path, body, no_letter=not stay)
        if sent is not None and desk.done is sent:
            desk.done = None
        if not self._connected:
            self._connected = True
            if self._line.proxy_authority is None:
                self._line.on_admitted(identity)
            self._tell(f"connected to {self._line.address}")
        return letter

    async def _posted(
        self,
        session: ClientSession,
        identity: Identity,
        path: str,
        body: bytes,
        *,
        no_letter: bool,
    ) -> bytes | None:
        import aiohttp
        from yarl import URL

        line, headers = self._line, {"Content-Length": str(len(body))}
        if line.proxy_authority is not None:
            headers[HEADER] = signed_header(identity, line.name, self._authority, path, body)
        url = URL(f"https://{line.address}{path}", encoded=True)
        try:
            async with session.post(
                url, data=_in_pieces(body), headers=headers, allow_redirects=False
            ) as response:
                if response.status == 200 and no_letter:
                    # There may be no room for one: not a byte of it is read.
                    response.close()
                    raise ConnectionLost(f"{line.address} sent a letter when none was asked for")
                if response.status == 200:
                    return await read_bounded(response, line.most_bytes())
                if response.status in (204, 410, 413):
                    if response.status == 413 and self._desk.done is not None:
                        self._desk.bad.append(self._desk.done[0])
                        self._tell(f"{line.address} did not take an answer: it is too long")
                    return None
                raise await refusal_of(response, line.address)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise explained(error, line.address) from error
        except InvalidInput as error:  # a body that was cut off
            raise ConnectionLost(str(error)) from error


def _in_pieces(body: bytes) -> bytes | AsyncIterator[bytes | memoryview]:
    """Return a body so that a long one does not keep the loop from all else."""

    async def parts() -> AsyncIterator[bytes | memoryview]:
        for piece in pieces(body):
            yield piece

    return body if len(body) <= PIECE else parts()
