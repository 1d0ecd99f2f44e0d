"""The server's memory: which letters wait for which site, and which answers for the operator.

Nothing is written to the disk. A letter is known by its digest. A site says with every call which
letters it holds; one that it neither holds nor has answered is handed to it, also for the second
time: a site that was killed, or never got it, has it again with its next call. An operator's call
stays open until all is answered, and when it ends, its letters are forgotten.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

ANSWER_S = 25.0
"""How long a call waits for something to tell."""
PRESENT_S = 15.0
"""A site that has called within this time is there; it says at least so often that it works."""


def digest_of(letter: bytes) -> str:
    """Return the name of a letter."""
    return hashlib.sha256(letter).hexdigest()


@dataclass(eq=False)
class Item:
    """A letter to a site, and the reply once it has come."""

    site: str
    digest: str
    letter: bytes
    most: int
    """The longest reply that there is any use for."""
    posted: float
    answer: bytes | None = None
    seconds: float = 0.0
    sender: object = None
    """The connection on which an answer is on its way."""


@dataclass(eq=False)
class Exchange:
    """Letters that an operator waits for together: those without an answer, by their sites."""

    waiting: dict[str, Item] = field(default_factory=dict)
    answered: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)


@dataclass
class Box:
    """One site's letters, the oldest first, and the call of its that waits, if one does."""

    waiting: dict[str, Item] = field(default_factory=dict)
    parked: asyncio.Future[None] | None = None
    n_calls: int = 0
    seen: float = -PRESENT_S

    def wake(self) -> None:
        """Let the call that waits look again, or go home."""
        if self.parked is not None and not self.parked.done():
            self.parked.set_result(None)


class PostOffice:
    """All of it, for one event loop."""

    def __init__(self) -> None:
        self._boxes: dict[str, Box] = {}
        self._exchanges: set[Exchange] = set()
        self.n_answers = 0

    def admit(self, sites: Collection[str]) -> None:
        """Have a box for each of these sites, and for no other."""
        for name in self._boxes.keys() - set(sites):
            self._boxes.pop(name).wake()
        for name in set(sites) - self._boxes.keys():
            self._boxes[name] = Box()
            for exchange in self._exchanges:  # of a site that is enrolled again
                if name in exchange.waiting:
                    self._put(exchange.waiting[name])

    def online(self) -> dict[str, bool]:
        """Return which sites are there: those that wait here, or have called a moment ago."""
        soon = time.monotonic() - PRESENT_S
        return {n: b.parked is not None or b.seen > soon for n, b in sorted(self._boxes.items())}

    # What a site does.

    async def next_letter(self, site: str, holding: Collection[str]) -> Item | None:
        """Return a letter that the site does not hold, as soon as there is one; None after a while.

        A call that comes while another one of the site waits sends that one home.
        """
        box = self._boxes.get(site)
        if box is None:  # removed while it sent an answer
            return None
        box.wake()
        box.n_calls += 1
        turn, end = box.n_calls, time.monotonic() + ANSWER_S
        box.seen = time.monotonic()
        while True:
            for item in box.waiting.values():
                if item.digest not in holding:
                    return item
            mine = box.parked = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(max(end - time.monotonic(), 0)):
                    await mine
            except TimeoutError:
                return None
            finally:
                if box.parked is mine:
                    box.parked = None
                box.seen = time.monotonic()
            if box.n_calls != turn or self._boxes.get(site) is not box:
                return None

    def expected(self, site: str, digest: str) -> Item | None:
        """Return the letter that a site is about to answer, None if nobody waits for that."""
        box = self._boxes.get(site)
        return None if box is None else box.waiting.get(digest)

    def saw(self, site: str) -> None:
        """Note that a site is there, though it does not wait for a letter."""
        if site in self._boxes:
            self._boxes[site].seen = time.monotonic()

    def deliver(self, item: Item, answer: bytes) -> None:
        """Take a site's answer, unless nobody waits for it any more."""
        if self.expected(item.site, item.digest) is not item:
            return
        item.answer, item.seconds = answer, time.monotonic() - item.posted
        self.n_answers += 1
        del self._boxes[item.site].waiting[item.digest]
        self.saw(item.site)
        for exchange in self._waiting_for(item):
            del exchange.waiting[item.site]
            exchange.answered.put_nowait(item)

    # What the operator does.

    def open(self) -> Exchange:
        """Begin an exchange."""
        exchange = Exchange()
        self._exchanges.add(exchange)
        return exchange

    def post(self, exchange: Exchange, site: str, letter: bytes, most: int) -> None:
        """Leave a letter for a site, which may yet have to be enrolled.

        Two exchanges that ask the same have the same item, and both get its answer.
        """
        digest = digest_of(letter)
        asked = [e.waiting[site] for e in self._exchanges if site in e.waiting]
        same = [item for item in asked if item.digest == digest]
        item = same[0] if same else Item(site, digest, letter, most, time.monotonic())
        item.most = max(item.most, most)
        before = exchange.waiting.pop(site, item)
        exchange.waiting[site] = item
        self._take_away(before)
        self._put(item)

    def close(self, exchange: Exchange) -> None:
        """Forget an exchange."""
        self._exchanges.discard(exchange)
        for item in exchange.waiting.values():
            self._take_away(item)

    def _take_away(self, item: Item) -> None:
        """Forget a letter that no exchange waits for any more."""
        box = self._boxes.get(item.site)
        if box is not None and not self._waiting_for(item):
            box.waiting.pop(item.digest, None)

    def _put(self, item: Item) -> None:
        box = self._boxes.get(item.site)
        if box is not None:
            box.waiting.setdefault(item.digest, item)
            box.wake()

    def _waiting_for(self, item: Item) -> list[Exchange]:
        return [e for e in self._exchanges if e.waiting.get(item.site) is item]

    def counts(self) -> Mapping[str, int]:
        """Return how much is here now."""
        items = [item for e in self._exchanges for item in e.waiting.values()]
        return {
            "letters": len(items),
            "bytes": sum(len(item.letter) for item in items),
            "answers": self.n_answers,
        }
