"""The exchanges of one round: who was asked, who answered, and whether the round can go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from dpfedc.deployment.mailbox.mailbox import Mailbox
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.outlook import ENOUGH, LOST, outlook
from dpfedc.engine.backend import RoundLost
from dpfedc.errors import DPFedCError, InvalidInput

T = TypeVar("T")
Came = Mapping[str, bytes | Refusal | None]
"""What came back from each site that was asked, None if nothing did."""


class TooFewAnswers(DPFedCError):
    """A round ended with fewer answers than agreed. The checkpoint stays; the run can go on."""


@dataclass(frozen=True)
class RoundEvent:
    """A round that has been sent out (`done` false) or is over.

    `number` counts rounds through all stages, of `total`; a spare round has that of the lost one. A
    site that is in `asked`, but neither in `answered` nor in `refused`, was silent until the
    deadline. A round that is `lost` can never have enough answers, and the run goes on without it.
    """

    stage: str
    t: int
    n_rounds: int
    number: int
    total: int
    asked: tuple[str, ...]
    answered: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    """Those of the refused at which the run is closed: they refuse every round from now on."""
    done: bool = False
    lost: bool = False
    notes: tuple[str, ...] = ()
    """What else the operator should know of."""

    @property
    def silent(self) -> tuple[str, ...]:
        """Return the sites of which nothing was heard."""
        heard = {*self.answered, *self.refused}
        return tuple(site for site in self.asked if site not in heard)


@dataclass
class RoundCalls:
    """A round's calls to its sites, one after another."""

    asked: RoundEvent
    transport: Mailbox
    deadline: float
    n_sites: int
    """In the whole run."""
    on_event: Callable[[RoundEvent], None]
    refused: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.on_event(self.asked)

    def answers(
        self, requests: Mapping[str, bytes], read: Callable[[str, bytes], T]
    ) -> tuple[dict[str, T], Came]:
        """Return the valid answers of the sites that are asked now, and all that came back.

        `read` makes an answer of a site's reply, or refuses it.
        """
        replies = self.transport.exchange(requests, self.deadline)
        answers: dict[str, T] = {}
        for site in requests:
            reply = replies.get(site)
            if isinstance(reply, Refusal):
                self.refused[site] = reply.reason
                if reply.of_run:
                    self.closed.add(site)
            elif reply is not None:
                try:
                    answers[site] = read(site, reply)
                except InvalidInput as error:
                    self.refused[site] = f"not a valid answer: {error}"
        return answers, {site: replies.get(site) for site in requests}

    def require(
        self,
        answered: Collection[str],
        came: Came,
        *,
        least: int,
        again: bool,
        enough: bool = True,
    ) -> None:
        """Go on if there are enough answers; else the round is lost, or the run stops for now.

        If they are not `enough` whatever their number, one more is waited for at least.
        """
        n_good = len(answered) if enough else min(len(answered), least - 1)
        replies = [*came.values()]
        sees = outlook(replies, n_good, least=least, n_sites=self.n_sites, again=again)
        if sees == ENOUGH:
            return
        if sees == LOST:
            self.lose(answered)
        over = self._over(answered)
        raise TooFewAnswers(_too_few(over, least, sees))

    def lose(self, answered: Collection[str]) -> NoReturn:
        """Give the round up: the run goes on without it."""
        over = self._over(answered, lost=True)
        raise RoundLost(f"round {over.t} of stage {over.stage!r} can have no more answers")

    def end(self, answered: Collection[str]) -> None:
        """Tell that the round is over, and well."""
        self._over(answered)

    def _over(self, answered: Collection[str], *, lost: bool = False) -> RoundEvent:
        over = replace(
            self.asked, answered=tuple(answered), refused=self.refused,
            closed=frozenset(self.closed), done=True, lost=lost, notes=tuple(self.notes),
        )  # fmt: skip
        self.on_event(over)
        return over


def _too_few(event: RoundEvent, least: int, outlook: str) -> str:
    reasons = [f"{site} refused: {reason}" for site, reason in event.refused.items()]
    if event.silent:
        reasons.append(f"silent: {', '.join(event.silent)}")
    return (
        f"round {event.t} of stage {event.stage!r} must have {least} answers, got "
        f"{len(event.answered)} of {len(event.asked)} ({'; '.join(reasons)}). {outlook}"
    )
