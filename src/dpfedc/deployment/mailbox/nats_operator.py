"""The coordinator's side over NATS: it asks each site, again and again, until it has the answer.

There is no server of ours in between, and NATS keeps nothing. What is lost on the way (a node that
is killed, a site that comes back) is found out by the next question, a second later.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

from dpfedc.deployment.mailbox.frames import PIECE
from dpfedc.deployment.mailbox.mailbox import PROTOCOL, ConnectionLost, Delivery
from dpfedc.deployment.mailbox.nats_config import (
    PING_SUBJECT,
    RELOAD_SUBJECT,
    Nodes,
    one_at_a_time,
    site_subject,
)
from dpfedc.deployment.mailbox.nats_wire import Line, number, packed, unpacked
from dpfedc.deployment.mailbox.operator_side import OperatorSide
from dpfedc.deployment.mailbox.post_office import digest_of
from dpfedc.deployment.mailbox.refused_callers import RefusedCallers
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.errors import InvalidInput

AGAIN_S = 0.2
"""How soon a site that was not there is asked again, and a server is called again."""
WAIT_S = 1.0
"""How long a site may wait before it says that it still works."""
ASKED_A_SECOND = 500
"""More silent sites than this are asked less often."""
SLACK_S, MAX_SLACK_S = 0.5, 30.0
"""How much later an answer may come before it is asked for again; twice as much each time, since
the line may be slow."""
HERE_S, RELOAD_S = 3.0, 30.0
NOT_THERE = "it cannot be reached"
WINDOW = 4
"""Pieces of one letter or answer that are on their way at a time."""
MAX_RESTARTS = 20
"""How often a site may want the same part of a letter again, or break off its answer."""


class _NotAsAgreed(Exception):
    """A site answers as no site of ours does, and is asked no more about this letter."""


def _is_status(said: Any) -> bool:
    """Return whether a node said something of itself that can be read."""
    parts = (said, said.get("server"), said.get("statsz", {})) if isinstance(said, dict) else ()
    return bool(parts) and all(isinstance(part, dict) for part in parts)


class NatsMailbox(OperatorSide):
    """The operator's questions to all sites, through whichever of the nodes is there."""

    def __init__(self, folder: ServerFolder) -> None:
        super().__init__(folder)
        self._nodes = Nodes.of(folder)
        self._line: Line | None = None
        self._calling = asyncio.Lock()
        self._standing: tuple[object, ...] = ()
        self._names: list[str] = []
        self._pending: dict[str, bytes] = {}

    def online(self) -> Mapping[str, bool]:
        """Return which enrolled sites are there; none while no node is."""
        return self._run(self._online())

    def status(self) -> dict[str, Any]:
        """Return what the nodes say of themselves."""
        return self._run(self._status())

    def counts(self) -> Mapping[str, int]:
        """Return how many letters wait for an answer, and their bytes."""
        letters = tuple(self._pending.values())
        return {"letters": len(letters), "bytes": sum(map(len, letters))}

    async def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()
        self._renewed()

    async def _connected(self) -> Line:
        """Return the connection, a new one if it was lost."""
        async with self._calling:
            if self._line is not None and self._line.lost.is_set():
                await self._hang_up()
            if self._line is None:
                addresses = [node.address for node in self._nodes.nodes]
                self._line = await Line.open(addresses, self._operator, self._folder.authority)
            return self._line

    async def _online(self) -> dict[str, bool]:
        standing = self._folder.standing()
        if standing != self._standing:
            self._standing, self._names = standing, [*self._folder.enrolled()]
        try:
            line = await self._connected()
        except ConnectionLost:
            return dict.fromkeys(self._names, False)
        asked = packed({"is": "here"})

        async def is_here(site: str) -> bool:
            try:
                await line.ask(site_subject(site), asked, HERE_S)
            except (ConnectionLost, TimeoutError):
                return False
            return True

        here = await asyncio.gather(*map(is_here, self._names))
        return dict(zip(self._names, here, strict=True))

    async def _status(self) -> dict[str, Any]:
        nodes = await self._said_by_nodes()
        return {"protocol": PROTOCOL, "online": await self._online(), "nodes": nodes}

    async def _said_by_nodes(self) -> dict[str, dict[str, Any] | None]:
        line = await self._connected()
        said = await line.ask_all(PING_SUBJECT, len(self._nodes.nodes), HERE_S)
        found = []
        for answer in said:
            with suppress(ValueError, RecursionError):  # whoever says nonsense is not there
                found.append(json.loads(answer))
        return self._nodes.said(one for one in found if _is_status(one))

    def reload(self) -> dict[str, str]:
        """Have every node read its file again; return what is wrong, by the node's name."""
        try:
            return self._run(self._reload())
        except ConnectionLost:
            return {node.name: NOT_THERE for node in self._nodes.nodes}

    async def _reload(self) -> dict[str, str]:
        line, wrong = await self._connected(), {}
        for name, node in (await self._said_by_nodes()).items():
            if node is None:
                wrong[name] = NOT_THERE
                continue
            with suppress(ConnectionLost, TimeoutError):  # what counts is what it says afterwards
                subject = f"{RELOAD_SUBJECT}.{node['id']}"
                said = json.loads(await line.ask(subject, b"", RELOAD_S))
                if "error" in said:
                    wrong[name] = f"it keeps the old one: {said['error'].get('description')}"
        for name, node in (await self._said_by_nodes()).items():
            if node is not None and not node["current"]:
                wrong.setdefault(name, "it has read another file than the one here")
        return wrong

    async def _exchange_all(
        self,
        letters: Mapping[str, bytes],
        requests: Mapping[str, bytes],
        answers: dict[str, bytes | Refusal],
        asking: asyncio.TaskGroup,
    ) -> None:
        self._pending = dict(letters)
        try:
            async with asyncio.TaskGroup() as sites:
                for site, data in letters.items():
                    sites.create_task(_Letter(self, site, data).exchanged(requests[site], answers))
        finally:
            self._pending = {}

    def _answered(
        self, letter: _Letter, got: bytes | Refusal, n_received: int, answers: dict[str, Any]
    ) -> None:
        answers[letter.site] = got
        self._pending.pop(letter.site, None)
        seconds = time.monotonic() - letter.began
        self.on_delivery(Delivery(letter.site, seconds, len(letter.data), n_received))

    def _dropped(self, site: str, reason: str) -> None:
        """Go on without a site, which counts as silent."""
        self._pending.pop(site, None)
        self._refused(site, reason)

    def _refused(self, site: str, reason: str) -> None:
        refused = RefusedCallers(self._folder.path)
        refused.add("-", reason, caller=site)
        refused.close()


class _Letter:
    """One letter on its way to one site, and the answer on its way back."""

    def __init__(self, mailbox: NatsMailbox, site: str, data: bytes) -> None:
        self._mailbox, self.site, self.data = mailbox, site, data
        self._subject, self._digest = site_subject(site), digest_of(data)
        self.began, self._slack_s = time.monotonic(), SLACK_S
        self._reached, self._n_restarts = -1, 0

    async def exchanged(self, request: bytes, answers: dict[str, bytes | Refusal]) -> None:
        """Have this letter answered, or give it up if the site does not keep to the protocol."""
        try:
            await self._exchanged(request, answers)
        except _NotAsAgreed as error:
            self._mailbox._dropped(self.site, str(error))

    async def _exchanged(self, request: bytes, answers: dict[str, bytes | Refusal]) -> None:
        """Have this letter answered; a bad answer is asked for again."""
        n_bad = 0
        while True:
            data = await self._answer()
            got = self._mailbox._taken(self.site, request, data, n_bad)
            await self._tell({"is": "got"})
            if got is not None:
                self._mailbox._answered(self, got, len(data), answers)
                return
            n_bad += 1
            await asyncio.sleep(AGAIN_S)

    async def _answer(self) -> bytes:
        """Return what comes back, however often it has to be asked for.

        The pace is ours: whatever a site says, it is asked again after a pause, unless something
        has moved on.
        """
        question = [{"is": "question"}]
        asked = [self._piece(0)]
        while True:
            began = time.monotonic()
            try:
                head, body = (await asyncio.gather(*map(self._asked, asked)))[-1]
                what, asked = head.get("is"), question
                if what == "wanted":
                    at = number(head, "at", most=max(len(self.data) - 1, 0))
                    if at % PIECE:
                        raise _NotAsAgreed(f"it wants a letter from byte {at}")
                    if at <= self._reached:
                        await self._restart()
                    self._reached = at
                    ends = min(at + WINDOW * PIECE, len(self.data))
                    asked = [self._piece(each) for each in range(at, ends, PIECE)]
                    continue
                if what == "answer":
                    whole = await self._fetched(number(head, "length"), body)
                    if whole is not None:
                        return whole
                    await self._restart()
                elif what == "held":  # only after it has waited
                    await asyncio.sleep(began + self._wait_s() - time.monotonic())
                else:  # it has no room now, or will have nothing of this letter
                    await asyncio.sleep(self._pause(AGAIN_S))
            except TimeoutError:
                asked, self._slack_s = question, min(2 * self._slack_s, MAX_SLACK_S)
            except (ConnectionLost, InvalidInput):
                asked = question
                await asyncio.sleep(self._pause(AGAIN_S))

    async def _restart(self) -> None:
        """Wait, longer each time, before something is done again that was done already."""
        self._n_restarts += 1
        if self._n_restarts > MAX_RESTARTS:
            raise _NotAsAgreed(f"it began again more than {MAX_RESTARTS} times")
        await asyncio.sleep(self._pause(min(AGAIN_S * 2 ** (self._n_restarts - 1), MAX_SLACK_S)))

    def _wait_s(self) -> float:
        """Return how long a question waits for something better than `held`."""
        return max(WAIT_S, len(self._mailbox._pending) / ASKED_A_SECOND)

    def _pause(self, least_s: float) -> float:
        """Return how long to wait: many sites that are away must not keep all others busy."""
        return max(least_s, len(self._mailbox._pending) / ASKED_A_SECOND) * random.uniform(0.5, 1.5)

    def _piece(self, at: int) -> dict[str, Any]:
        return {"is": "piece", "at": at, "length": len(self.data)}

    async def _asked(self, head: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return what the site says to a question, which it may take its time for."""
        wait_s = self._wait_s()
        body: bytes | memoryview = b""
        if head["is"] == "piece":
            body = memoryview(self.data)[head["at"] : head["at"] + PIECE]
        full = {**head, "letter": self._digest, "wait": int(1000 * min(wait_s, 10))}
        line = await self._mailbox._connected()
        return unpacked(await line.ask(self._subject, packed(full, body), wait_s + self._slack_s))

    async def _fetched(self, length: int, start: bytes) -> bytes | None:
        """Return all of an answer; None if it is too long, or no longer there."""
        mailbox = self._mailbox
        if length > mailbox.most_answer:
            mailbox._refused(self.site, f"an answer of {length} bytes")
            await self._tell({"is": "got", "why": "too long"})
            return None
        parts = [_whole_piece(start, 0, length)]
        for at in range(PIECE, length, WINDOW * PIECE):
            places = range(at, min(at + WINDOW * PIECE, length), PIECE)
            asked = [{"is": "fetch", "at": each} for each in places]
            said = await asyncio.gather(*map(self._asked, asked))
            for each, (head, body) in zip(places, said, strict=True):
                if head.get("is") != "answer" or head.get("length") != length:
                    return None
                parts.append(_whole_piece(body, each, length))
        return b"".join(parts)

    async def _tell(self, head: Mapping[str, Any]) -> None:
        """Say something that needs no answer: what is not heard is harmless."""
        with suppress(ConnectionLost):
            line = await self._mailbox._connected()
            await line.say(self._subject, packed({**head, "letter": self._digest}))


def _whole_piece(body: bytes, at: int, length: int) -> bytes:
    """Return a piece; one of another length could have the rest asked for without end."""
    if len(body) != min(PIECE, length - at):
        raise _NotAsAgreed(f"a piece of {len(body)} bytes, at {at} of {length}")
    return body


def taken_up(folder: ServerFolder, *, renewed: bool = False) -> dict[str, str]:
    """Write the nodes' files anew and have them read; return which have not, and why."""
    with one_at_a_time(folder):
        now = ServerFolder.open(folder.path)  # others may have chosen other nodes
        Nodes.of(now).write(renewed=renewed)
        with closing(NatsMailbox(now)) as mailbox:
            return mailbox.reload()
