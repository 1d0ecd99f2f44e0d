"""Who is connected: few at a time of each caller, none of them idle for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dpfedc.deployment.mailbox.refused_callers import RefusedCallers

FIRST_CALL_S, IDLE_S = 10.0, 60.0
"""How long a connection may be silent: before its first call, and between calls."""
MAX_PER_CALLER = 8
MAX_UNKNOWN = 128
"""Connections at a time of callers that must sign to be known."""


@dataclass(eq=False)
class Connection:
    """A caller who got through the handshake."""

    transport: asyncio.Transport
    address: str
    pin: str | None
    """The SHA-256 of its certificate; None if it has to sign its calls."""
    caller: str | None = None
    """Who calls, once that is known."""
    idle_since: float = field(default_factory=time.monotonic)
    n_active: int = 0
    n_calls: int = 0
    """Of a caller who is known."""

    def cut(self) -> None:
        """End it now, whatever is on its way."""
        self.transport.abort()


class Connections:
    """All of them, by their transport."""

    def __init__(self, refused: RefusedCallers) -> None:
        self._refused = refused
        self._all: dict[asyncio.BaseTransport, Connection] = {}

    def __len__(self) -> int:
        return len(self._all)

    def of(self, transport: asyncio.BaseTransport | None) -> Connection | None:
        """Return the connection of a transport, None if it was cut."""
        return None if transport is None else self._all.get(transport)

    def is_there(self, caller: str) -> bool:
        """Return whether a caller has a connection of its own, by its certificate."""
        return any(
            c.caller == caller and c.pin is not None and not c.transport.is_closing()
            for c in self._all.values()
        )

    def keep(self, connection: Connection, caller: str | None) -> None:
        """Keep a connection as this caller's; one caller cannot have all of them."""
        connection.caller = caller
        self._all[connection.transport] = connection
        same = [c for c in self._all.values() if c.caller == caller]
        most = MAX_UNKNOWN if caller is None else MAX_PER_CALLER
        if len(same) > most:
            same.remove(connection)
            oldest = min(same, key=lambda c: (c.n_active > 0, c.idle_since))
            reason = f"more than {most} connections"
            self._refused.add(oldest.address, reason, caller=caller or "")
            self._cut(oldest)

    def cut_idle(self) -> None:
        """Cut those that have said nothing for too long, and forget those that are closed."""
        now = time.monotonic()
        for connection in tuple(self._all.values()):
            most = IDLE_S if connection.n_calls else FIRST_CALL_S
            if connection.transport.is_closing():
                self._cut(connection)
            elif not connection.n_active and now - connection.idle_since > most:
                if not connection.n_calls:
                    self._refused.add(connection.address, f"no call within {most:g} seconds")
                self._cut(connection)

    def cut_if(self, gone: Callable[[Connection], bool], reason: str) -> None:
        """Cut those of callers who may not call any more."""
        for connection in [c for c in self._all.values() if gone(c)]:
            if reason:
                self._refused.add(connection.address, reason, caller=connection.caller or "")
            self._cut(connection)

    def _cut(self, connection: Connection) -> None:
        del self._all[connection.transport]
        connection.cut()
