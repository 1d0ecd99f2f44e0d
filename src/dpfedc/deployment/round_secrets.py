"""What a site remembers of the round it is in, with secure aggregation: in memory, and no longer.

A site that is started again has forgotten it, and is out of that round. The same request gets the
same answer; another one for a step that is done is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.messages import UPLOAD, Arrays, Request, packed
from dpfedc.deployment.secure_aggregation.masks import Words, context_of, digest
from dpfedc.deployment.secure_aggregation.site_round import Roster, SiteRound
from dpfedc.deployment.secure_steps import SITES, of_masks, parts_by_site, sites_of, told_to
from dpfedc.errors import Refused, RoundSpent

GONE = "the keys of this round are gone: the site was started again since, or is in another round"


@dataclass(eq=False)
class RoundSecrets:
    """The secrets of the round that a site is in, in one run."""

    _place: tuple[str, int, str] | None = None
    _round: SiteRound | None = None
    _answers: dict[str, tuple[str, dict[str, Words]]] = field(default_factory=dict)

    def answer(
        self,
        request: Request,
        name: str,
        agreement: Agreement,
        *,
        sign: Callable[[bytes], bytes],
        persist: Callable[[], object],
    ) -> dict[str, Words]:
        """Return the answer to a step that is no upload; `name` is the request's digest.

        `persist` notes that the site opens the round.
        """
        step, place = request.step, _place(request)
        if step == "keys" and request.arrays:
            raise Refused("a request for keys must hold nothing else, got more")
        if step == "keys" and place != self._place:
            self._begin(request, agreement, sign)
        current = self.of(request)
        if (known := self._answers.get(step)) is not None and known[0] == name:
            return known[1]
        site = current.roster.site
        if step == "keys":
            answer = told_to(step, [site], [current.bundle])
        elif step == "shares":
            keys = parts_by_site("keys", request.arrays)
            boxes = current.shares(sites_of(request.arrays), keys)
            answer = told_to(step, [*boxes], [*boxes.values()])
        elif step == "agree":
            answer = told_to(step, [site], [current.agreed(sites_of(request.arrays))])
        else:
            signatures = parts_by_site("agree", request.arrays)
            opened = current.opened(signatures, persist=persist)
            answer = told_to(step, [*opened], [*opened.values()])
        self._answers[step] = (name, answer)
        return answer

    def receive(self, request: Request, name: str) -> None:
        """Open the boxes that come with the request for an upload; all must, before a charge."""
        current = self.of(request)
        if UPLOAD in self._answers and self._answers[UPLOAD][0] == name:
            return
        told, masks = of_masks(request.arrays)
        boxes = parts_by_site("shares", masks)
        current.receive(sites_of(masks, SITES), boxes, told_alike(told))
        self._answers[UPLOAD] = (name, {})

    def of(self, request: Request) -> SiteRound:
        """Return the round of a request, if the site is in it."""
        if self._round is None or _place(request) != self._place:
            raise RoundSpent(GONE)
        return self._round

    def _begin(
        self, request: Request, agreement: Agreement, sign: Callable[[bytes], bytes]
    ) -> None:
        roster = Roster(
            agreement.circle(request.stage, request.t),
            agreement.number_of(request.site),
            {i: bytes.fromhex(s.signing_key or "") for i, s in enumerate(agreement.sites)},
        )
        context = context_of(request.run, *_place(request))
        self._round, self._place = SiteRound(context, roster, sign), _place(request)
        self._answers.clear()


def told_alike(broadcast: Arrays) -> bytes:
    """Return what stands for a broadcast in the masks: sites that got another one do not cancel."""
    return digest("broadcast", packed({}, broadcast))


def require_step(request: Request, *, masked: bool) -> None:
    """Refuse a step that does not belong to the run's kind of rounds.

    A masked run has no upload without masks: its noise is but a share.
    """
    if masked != bool(request.attempt):
        raise Refused(
            "an attempt's number must be in a request if uploads are masked, and only then"
        )
    if not masked and request.step != UPLOAD:
        raise Refused(f"step must be one of {UPLOAD}, got {request.step!r}")


def _place(request: Request) -> tuple[str, int, str]:
    return request.stage, request.t, request.attempt
