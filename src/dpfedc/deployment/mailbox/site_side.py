"""A site's side of every mailbox: where it calls, as whom, and how it comes back when cut off."""

from __future__ import annotations

import asyncio
import random
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedc.deployment.keys import Identity, read_certificate
from dpfedc.deployment.mailbox.letters import LetterBox
from dpfedc.deployment.mailbox.mailbox import ConnectionLost, NotAdmitted, is_nats
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0


@dataclass(frozen=True)
class SiteLine:
    """Where a site calls, and as whom.

    `identities` are tried in turn: while a key is exchanged there are two, the newer first. With
    the authority of a proxy that opens TLS, calls are signed one by one.
    """

    name: str
    address: str
    authority: Path
    identities: Callable[[], Sequence[Identity]]
    proxy_authority: Path | None = None
    most_bytes: Callable[[], int] = lambda: 2**28
    """What a letter may have, as things stand."""
    on_admitted: Callable[[Identity], None] = lambda _: None


class SiteSide(ABC):
    """Answers letters, and tries again whenever the line is lost or this site is not admitted."""

    def __init__(
        self,
        line: SiteLine,
        answer_of: Callable[[bytes], bytes],
        *,
        tell: Callable[[str], None],
        executor: Executor | None = None,
    ) -> None:
        self._line, self._answer_of, self._tell = line, answer_of, tell
        self._executor = executor
        self._authority: Certificate = read_certificate(line.authority.read_bytes())
        self._letters = LetterBox(line.name, self._authority)
        self._connected = False

    @abstractmethod
    async def _serve(self, identity: Identity, stop: asyncio.Event) -> None:
        """Answer letters as this one until told to stop; a lost line is a `ConnectionLost`."""

    async def attend(self, stop: asyncio.Event) -> None:
        """Answer requests until told to stop; a call that fails is tried again, always later."""
        pause, turn, n_known = SHORTEST_PAUSE_S, 0, 1
        while not stop.is_set():
            try:
                identities = self._line.identities()
                n_known = len(identities)
                await self._serve(identities[turn % n_known], stop)
                return
            except (ConnectionLost, InvalidInput, OSError, ssl.SSLError) as error:
                refused, what = isinstance(error, NotAdmitted), str(error)
                turn += refused
                if self._connected:
                    pause, what = SHORTEST_PAUSE_S, f"the connection was lost ({error})"
                self._connected = False
                wait = pause * random.uniform(0.5, 1.5)  # or a restart would be a storm
                if refused and turn % n_known:  # perhaps as the other one
                    wait = SHORTEST_PAUSE_S / 5
                else:
                    self._tell(f"{what}; trying again in {wait:.1f} seconds")
                    pause = min(2 * pause, LONGEST_PAUSE_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await stop.wait()


def site_side(
    line: SiteLine,
    answer_of: Callable[[bytes], bytes],
    *,
    tell: Callable[[str], None],
    executor: Executor | None = None,
) -> SiteSide:
    """Return the side of a site that calls this address: it says over what."""
    if is_nats(line.address):
        from dpfedc.deployment.mailbox.nats_site import NatsSite

        return NatsSite(line, answer_of, tell=tell, executor=executor)
    from dpfedc.deployment.mailbox.https_site import HttpsSite

    return HttpsSite(line, answer_of, tell=tell, executor=executor)


def attend(
    line: SiteLine,
    answer_of: Callable[[bytes], bytes],
    *,
    tell: Callable[[str], None],
    stop: asyncio.Event | None = None,
    executor: Executor | None = None,
) -> None:
    """Answer the server's requests until this process is told to stop."""
    import signal

    async def main() -> None:
        told = stop or asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        await site_side(line, answer_of, tell=tell, executor=executor).attend(told)

    asyncio.run(main())
