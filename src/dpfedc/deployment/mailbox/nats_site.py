"""A site's side over NATS: it is asked, works on one letter at a time, and says what it has.

Every question gets one answer: what is missing of a letter, that the site works on it, or the
reply. A question may wait for a while for a better answer. The operator asks again about all that
it has no answer to, so nothing is lost that is not asked for again. A site stops between requests
only: one that is charged is also answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.keys import Identity
from dpfedc.deployment.mailbox.frames import PIECE
from dpfedc.deployment.mailbox.letters import reply
from dpfedc.deployment.mailbox.mailbox import ConnectionLost
from dpfedc.deployment.mailbox.nats_wire import (
    MAX_PAYLOAD,
    REQUEST,
    Line,
    addresses_in,
    number,
    packed,
    unpacked,
)
from dpfedc.deployment.mailbox.post_office import digest_of
from dpfedc.deployment.mailbox.site_side import SiteSide
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from nats.aio.msg import Msg

MAX_INBOX, MAX_COMING, MAX_DONE, MAX_BAD = 2, 2, 2, 4
"""Letters that wait, letters of which a part is here, answers that are kept, letters to ignore."""
MAX_WAITING, LONGEST_WAIT_MS = 32, 10_000
STALE_S = 5.0
"""A letter of which nothing more has come for so long makes room for another."""
COMPLAINT_S = 0.5
FAREWELL_S = 5.0
"""How long a site that is told to stop waits for its last answer to be fetched."""


@dataclass
class _Coming:
    """A letter of which a part is here."""

    length: int
    data: bytearray = field(default_factory=bytearray)
    seen: float = field(default_factory=time.monotonic)


@dataclass
class _Done:
    """An answer, signed as whoever the site is while it is fetched."""

    request: bytes
    answer: bytes
    signed: tuple[Identity, bytes] | None = None

    def reply(self, identity: Identity, name: str) -> bytes:
        """Return it as it travels."""
        if self.signed is None or self.signed[0] != identity:
            self.signed = identity, reply(identity, name, self.request, self.answer)
        return self.signed[1]


@dataclass
class _Desk:
    """What survives a lost connection."""

    coming: dict[str, _Coming] = field(default_factory=dict)
    inbox: dict[str, bytes] = field(default_factory=dict)
    at_work: str | None = None
    done: dict[str, _Done] = field(default_factory=dict)
    bad: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_BAD))
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, whenever a letter has come or an answer is there."""

    def tell_news(self) -> None:
        """Wake all who wait."""
        self.news.set()
        self.news = asyncio.Event()

    def works_on(self, digest: str) -> bool:
        return digest == self.at_work or digest in self.inbox

    def add(self, digest: str, at: int, length: int, body: bytes) -> dict[str, Any]:
        """Take a piece of a letter, and return what is missing of it, if something is."""
        coming = self.coming.get(digest)
        if coming is None:
            if len(self.inbox) >= MAX_INBOX or not self._has_room():
                return {"is": "full"}
            coming = self.coming[digest] = _Coming(length)
        if at == len(coming.data) and length == coming.length and at + len(body) <= length:
            coming.data += body
            coming.seen = time.monotonic()
        if len(coming.data) < coming.length:
            return {"is": "wanted", "at": len(coming.data)}
        if len(self.inbox) >= MAX_INBOX:
            return {"is": "full"}
        letter = bytes(self.coming.pop(digest).data)
        if digest_of(letter) != digest:
            return {"is": "wanted", "at": 0}
        self.inbox[digest] = letter
        self.tell_news()
        return {"is": "held"}

    def _has_room(self) -> bool:
        if len(self.coming) < MAX_COMING:
            return True
        oldest = min(self.coming, key=lambda digest: self.coming[digest].seen)
        if self.coming[oldest].seen > time.monotonic() - STALE_S:
            return False
        del self.coming[oldest]
        return True


class NatsSite(SiteSide):
    """One site's answers to the operator, through whichever of the servers is there."""

    _complained = -COMPLAINT_S

    @cached_property
    def _desk(self) -> _Desk:
        return _Desk()

    @cached_property
    def _waiting(self) -> set[asyncio.Task[None]]:
        """Return the answers that are under way."""
        return set()

    async def _serve(self, identity: Identity, stop: asyncio.Event) -> None:
        address = addresses_in(self._line.address)
        line = await Line.open(address, identity, self._line.authority)

        async def heard(message: Msg) -> None:
            self._heard(line, identity, message)

        try:
            await line.listen(REQUEST, heard, 8 * MAX_PAYLOAD)
            self._connected = True
            self._line.on_admitted(identity)
            self._tell(f"connected to {line.address}")
            await self._work(line, stop)
        finally:
            for task in self._waiting:
                task.cancel()
            await line.close()

    async def _work(self, line: Line, stop: asyncio.Event) -> None:
        desk = self._desk
        waiting = [asyncio.ensure_future(event.wait()) for event in (stop, line.lost)]
        try:
            while not stop.is_set() and not line.lost.is_set():
                if desk.inbox:
                    await self._answer()
                    continue
                waiting[2:] = [asyncio.ensure_future(desk.news.wait())]
                await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
                waiting[2].cancel()
            end = time.monotonic() + FAREWELL_S
            while desk.done and not line.lost.is_set() and time.monotonic() < end:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await desk.news.wait()
        finally:
            for each in waiting:
                each.cancel()
        if not stop.is_set():
            raise line.problem

    async def _answer(self) -> None:
        """Work on a letter, in another thread, to the end."""
        desk = self._desk
        digest = next(iter(desk.inbox))
        letter = desk.inbox.pop(digest)
        try:
            request = self._letters.opened(letter)
        except InvalidInput as error:
            desk.bad.append(digest)
            self._complain(f"refused: {error}")
            return
        del letter
        desk.at_work = digest
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, self._answer_of, request)
        try:
            answer = await asyncio.shield(work)
        finally:
            desk.at_work = None
        while len(desk.done) >= MAX_DONE:
            del desk.done[next(iter(desk.done))]
        desk.done[digest] = _Done(request, answer)
        desk.tell_news()

    def _heard(self, line: Line, identity: Identity, message: Msg) -> None:
        """Answer a question, in a task of its own: it may wait for something better to say.

        One too many is not heard. A server that reads nothing could fill the memory with answers.
        """
        if len(self._waiting) >= MAX_WAITING:
            return
        try:
            head, body = unpacked(message.data)
            digest, what = str(head.get("letter", "")), head.get("is")
            if what == "got":
                self._was_fetched(digest, str(head.get("why", "")))
                return
            if what == "piece" and self._is_new(digest):
                said = self._piece(digest, head, body)
                if said["is"] != "held":
                    self._start(line.say(message.reply, packed(said)))
                    return
            wait_ms, at = number(head, "wait", most=LONGEST_WAIT_MS), number(head, "at")
        except InvalidInput as error:
            self._complain(f"refused: {error}")
            return
        fetching = at if what == "fetch" else 0
        self._start(self._said(line, identity, message.reply, digest, wait_ms / 1000, fetching))

    def _complain(self, text: str) -> None:
        """Tell of what was refused, not more often than somebody can read it."""
        now = time.monotonic()
        if now - self._complained >= COMPLAINT_S:
            self._complained = now
            self._tell(text)

    def _is_new(self, digest: str) -> bool:
        desk = self._desk
        return not (desk.works_on(digest) or digest in desk.done or digest in desk.bad)

    def _piece(self, digest: str, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        length, most = number(head, "length"), self._line.most_bytes()
        if length > most:
            self._complain(f"refused: a letter must have at most {most} bytes, got {length}")
            return {"is": "too long"}
        return self._desk.add(digest, number(head, "at"), length, body)

    def _was_fetched(self, digest: str, why: str) -> None:
        if self._desk.done.pop(digest, None) is not None and why:
            self._desk.bad.append(digest)
            self._tell(f"{self._line.address} did not take an answer: it is too long")
        self._desk.tell_news()

    def _start(self, work: Any) -> None:
        async def done() -> None:
            with suppress(ConnectionLost):  # it is asked again
                await work

        task = asyncio.ensure_future(done())
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _said(
        self, line: Line, identity: Identity, to: str, digest: str, wait_s: float, at: int
    ) -> None:
        """Say how a letter stands, as soon as its answer is there or the time is over."""
        desk, end = self._desk, time.monotonic() + wait_s
        while desk.works_on(digest) and time.monotonic() < end:
            with suppress(TimeoutError):
                async with asyncio.timeout(end - time.monotonic()):
                    await desk.news.wait()
        if digest in desk.done:
            data = desk.done[digest].reply(identity, self._line.name)
            said = packed({"is": "answer", "length": len(data)}, memoryview(data)[at : at + PIECE])
        elif desk.works_on(digest):
            said = packed({"is": "held"})
        elif digest in desk.bad:
            said = packed({"is": "refused"})
        else:
            coming = desk.coming.get(digest)
            said = packed({"is": "wanted", "at": 0 if coming is None else len(coming.data)})
        await line.say(to, said)
