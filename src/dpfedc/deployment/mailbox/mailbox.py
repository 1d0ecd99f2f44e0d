"""The two sides of every mailbox. `tests/deployment/test_mailbox_conformance.py` holds them to it.

The coordinator's side is a `Mailbox`. A site's side is a function `attend(..., answer_of, ...)`,
which hands each request to `answer_of` and sends back what it returns. The same bytes may arrive
twice; `answer_of` must give the same answer then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dpfedc.deployment.messages import Refusal
from dpfedc.errors import DPFedCError, MissingExtra

PROTOCOL = 1
"""A version of its own: it changes with what is said on the wire, not with the package."""
MAX_LETTER = 256 * 2**20 + 2**16
"""Bytes: the longest message of a run, and what is put around it."""


NATS = "nats://"
"""What the address of a site begins with that is called over NATS."""


def is_nats(address: str) -> bool:
    """Return whether an address is one of NATS; all others are of HTTPS."""
    return address.startswith(NATS)


class ConnectionLost(DPFedCError):
    """The other side cannot be reached now; trying again later makes sense."""


class NotAdmitted(ConnectionLost):
    """The server will not have this caller. Its operator may change that, so it is tried again."""


@dataclass(frozen=True)
class Delivery:
    """What an exchange cost with one site: seconds until its answer, bytes out and in."""

    site: str
    seconds: float
    n_sent: int
    n_received: int


class Mailbox(Protocol):
    """Carries bytes between the coordinator and enrolled sites, by name."""

    on_delivery: Callable[[Delivery], None]
    """Called for every answer, as it comes."""

    def online(self) -> Mapping[str, bool]:
        """Return which of the enrolled sites are there."""
        ...

    def exchange(
        self, requests: Mapping[str, bytes], deadline_s: float
    ) -> Mapping[str, bytes | Refusal]:
        """Send each site its request and return what came back in time; others are left out.

        A reply is there only if its site has signed it as its answer to this very request.
        """
        ...


def require_aiohttp() -> None:
    """Say which extra is missing, if one is."""
    try:
        import aiohttp  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "a federation of separate machines needs aiohttp: pip install 'dpfedc[deploy]'"
        ) from error
