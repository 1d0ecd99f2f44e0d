"""The coordinator's part in secure aggregation: the exchanges before and after the uploads.

Keys and shares release nothing: an attempt that fails there is made again, with other keys. From
the uploads on all requests are on the disk before they are sent, so that a coordinator that starts
again asks the same once more. It never holds an upload without masks, only their sum.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.checkpoint import load_requests, save_requests
from dpfedc.deployment.left_out import LeftOut, accusations
from dpfedc.deployment.messages import (
    ATTEMPT_BYTES,
    Answer,
    Arrays,
    Refusal,
    Request,
    StepAnswer,
    digest,
)
from dpfedc.deployment.round_calls import Came, RoundCalls
from dpfedc.deployment.round_secrets import told_alike
from dpfedc.deployment.secure_aggregation.circle import Circle
from dpfedc.deployment.secure_aggregation.masks import (
    Bundle,
    Words,
    context_of,
    is_signed_by,
    survivors_content,
)
from dpfedc.deployment.secure_aggregation.server_round import CannotOpen, SecretSum
from dpfedc.deployment.secure_steps import (
    SITES,
    as_sites,
    of_masks,
    sites_of,
    told_by,
    told_to,
)
from dpfedc.engine.backend import RoundLost
from dpfedc.errors import DPFedCError, InvalidInput, Refused
from dpfedc.privacy.exact_sums import Upload

T = TypeVar("T")
KEYS, AGREE, OPEN = "round-keys.json", "requests-agree.json", "requests-open.json"
MISSED = "requests-missed.json"
MAX_ATTEMPTS = 3
"""At keys and shares, in one go."""


class _TooFew(DPFedCError):
    """An attempt that failed before the uploads. It released nothing, and may be made again."""

    def __init__(self, answered: list[str], came: Came) -> None:
        super().__init__("too few answers")
        self.answered = answered
        # A site that has forgotten its keys makes others for the next attempt.
        self.came = {site: _for_now(reply) for site, reply in came.items()}
        self.may_do_better = self.came != came


def _for_now(reply: bytes | Refusal | None) -> bytes | Refusal | None:
    if isinstance(reply, Refusal) and reply.for_good and not reply.of_run:
        return Refusal(reply.reason)
    return reply


@dataclass
class SecureRound:
    """One round of a stage, in secret."""

    agreement: Agreement
    calls: RoundCalls
    folder: Path
    stage: str
    t: int

    def __post_init__(self) -> None:
        self.circle: Circle = self.agreement.circle(self.stage, self.t)
        self.key = f"{self.agreement.digest} {self.stage} {self.t}"
        privacy = self.agreement.privacy
        may_be_missing = len(self.agreement.sites) - (privacy.min_survivors or 0)
        self.left_out = LeftOut(self.folder, may_be_missing)
        self.there: set[int] = set()
        """Who has answered what was asked last."""
        self.accused: set[int] = set()
        """Of whom others say that their boxes do not open."""

    # Before the uploads.

    def prepared(self) -> tuple[str, dict[int, dict[str, Words]]]:
        """Return the attempt's number, and what a request for an upload must say of masks.

        Only sites that have shared their secrets are asked for one.
        """
        for n_left in reversed(range(MAX_ATTEMPTS)):
            try:
                return self._attempted()
            except _TooFew as few:
                # Those who sit out may be needed; then they are asked all the same.
                if n_left and (self.left_out.rested() or few.may_do_better):
                    continue
                least = self.circle.min_survivors
                self.calls.require(few.answered, few.came, least=least, again=False)
        raise AssertionError  # too few answers are never enough

    def _attempted(self) -> tuple[str, dict[int, dict[str, Words]]]:
        """Return what `prepared` does from one attempt, with keys of its own."""
        attempt, circle = secrets.token_hex(ATTEMPT_BYTES), self.circle
        context = context_of(self.agreement.digest, self.stage, self.t, attempt)
        left_out = {n: why for n, why in self.left_out.read().items() if n in circle.sites}
        self.calls.refused |= {self.agreement.sites[n].name: why for n, why in left_out.items()}
        asked: dict[int, Arrays] = {n: {} for n in circle.sites if n not in left_out}
        bundles = self._before("keys", attempt, asked, self._own_bundle(context))
        having = sorted(bundles)
        for n in having:
            peers = circle.neighbors(n, bundles)
            keys = told_to("keys", peers, [bundles[peer] for peer in peers])
            asked[n] = {SITES: as_sites(having), **keys}
        asked = {n: arrays for n, arrays in asked.items() if n in bundles}
        boxes = self._before("shares", attempt, asked, self._boxes_of(bundles))
        sharing = sorted(boxes)
        save_requests(self.folder, self.key, {str(n): b for n, b in bundles.items()}, file=KEYS)
        found = {}
        for n in sharing:
            peers = circle.neighbors(n, boxes)
            sealed = told_to("shares", peers, [boxes[peer][n] for peer in peers])
            found[n] = {SITES: as_sites(sharing), **sealed}
        return attempt, found

    def _before(
        self,
        step: str,
        attempt: str,
        asked: Mapping[int, Arrays],
        read: Callable[[int, dict[int, bytes]], T],
    ) -> dict[int, T]:
        requests = self._requests(step, attempt, asked)
        answers, came = self.calls.answers(requests, self._reader(step, requests, read))
        if len(answers) < self.circle.min_survivors:
            raise _TooFew([*answers], came)
        return {self.agreement.number_of(site): answer for site, answer in answers.items()}

    def _own_bundle(self, context: bytes) -> Callable[[int, dict[int, bytes]], bytes]:
        def read(n: int, parts: dict[int, bytes]) -> bytes:
            if [*parts] != [n]:
                raise InvalidInput("it must show its own keys")
            bundle = Bundle.from_bytes(parts[n])
            if not bundle.is_of(self._signing_key(n), context, n):
                raise InvalidInput("its keys must be signed by it for this round")
            try:
                bundle.require_good()  # or all its neighbours would refuse the round
            except Refused as error:
                raise InvalidInput(str(error)) from error
            return parts[n]

        return read

    def _boxes_of(
        self, bundles: Mapping[int, bytes]
    ) -> Callable[[int, dict[int, bytes]], dict[int, bytes]]:
        def read(n: int, parts: dict[int, bytes]) -> dict[int, bytes]:
            if [*parts] != self.circle.neighbors(n, bundles):
                raise InvalidInput("it must have a box for each of its neighbours")
            return parts

        return read

    # After the uploads.

    def uploaded(self, answers: Collection[str], came: Came, *, enough: bool) -> None:
        """Note who has uploaded, and leave out whose boxes do not open."""
        c = self.agreement.privacy.colluding_sites
        self.there = {self.agreement.number_of(site) for site in answers}
        by_number = {self.agreement.number_of(site): reply for site, reply in came.items()}
        self.left_out.hear(by_number, there=self.there, c=c, enough=enough)
        self.accused = {*accusations(by_number).values()}

    def opened(
        self, requests: Mapping[str, bytes], answers: Mapping[str, Answer], came: Came
    ) -> tuple[Upload, list[str]]:
        """Return the sum of the uploads without masks, and the sites that are in it."""
        try:
            found = self._opened(requests, answers, came)
        except RoundLost:
            # With one box it kept a peer out of the sum, and then the sum from being opened.
            self.left_out.suspect(*sorted(self.accused - self.there))
            raise
        self.left_out.rested()
        return found

    def _opened(
        self, requests: Mapping[str, bytes], answers: Mapping[str, Answer], came: Came
    ) -> tuple[Upload, list[str]]:
        request = Request.from_bytes(next(iter(requests.values())))
        told, _ = of_masks(request.arrays)
        uploads = {self.agreement.number_of(site): a.upload for site, a in answers.items()}
        found = SecretSum(
            context_of(self.agreement.digest, self.stage, self.t, request.attempt),
            self.circle,
            self._kept_bundles(),
            tuple(sites_of(request.arrays)),
            tuple(self._survivors(uploads, came, request.attempt)),
            told_alike(told),
        )
        signatures = self._agreed(found, request.attempt)
        openings = self._openings(found, request.attempt, signatures)
        survivors = [self.agreement.sites[n].name for n in found.survivors]
        try:
            values, liars = found.opened({n: u.values for n, u in uploads.items()}, openings)
        except CannotOpen as error:
            self.calls.notes.append(str(error))
            self.left_out.prove(*error.dealers)
            for site in error.suspects:
                self.left_out.strike(site, f"{self.stage} {self.t}")
            self.calls.lose(survivors)
        for liar in sorted(liars):
            name = self.agreement.sites[liar].name
            self.calls.notes.append(
                f"shares that {name} gave do not fit: it, or their dealer, lies"
            )
        first = next(iter(uploads.values()))
        return replace(first, values=values.astype(np.uint64)), survivors

    def _kept_bundles(self) -> dict[int, bytes]:
        kept = load_requests(self.folder, self.key, file=KEYS)
        if kept is None:
            raise InvalidInput(f"{self.folder / KEYS} must hold the round's keys, got none")
        return {int(n): bundle for n, bundle in kept.items()}

    def _survivors(self, uploads: Mapping[int, Upload], came: Came, attempt: str) -> list[int]:
        """Return who is in the sum: whose upload is there, or as it was asked before."""
        asked = load_requests(self.folder, f"{self.key} {attempt}", file=AGREE)
        if asked is None:
            return sorted(uploads)
        survivors = sites_of(Request.from_bytes(next(iter(asked.values()))).arrays)
        missing = [self.agreement.sites[n].name for n in survivors if n not in uploads]
        if missing:  # nobody signs another sum, so they are waited for once, and no longer
            names = [self.agreement.sites[n].name for n in uploads]
            gone = any(isinstance(r, Refusal) and r.for_good for r in map(came.get, missing))
            if gone or load_requests(self.folder, self.key, file=MISSED) is not None:
                self.calls.lose(names)
            save_requests(self.folder, self.key, {}, file=MISSED)
            due = len(survivors)
            self.calls.require(names, came, least=due, again=False, enough=False)
        return survivors

    def _agreed(self, found: SecretSum, attempt: str) -> dict[int, bytes]:
        """Return signatures under who is in the sum, as many as it takes."""
        content = survivors_content(found.context, found.sharing, found.survivors)

        def read(n: int, parts: dict[int, bytes]) -> bytes:
            if [*parts] != [n] or not is_signed_by(self._signing_key(n), parts[n], content):
                raise InvalidInput("it must sign who is in the sum")
            return parts[n]

        asked = {n: {SITES: as_sites(found.survivors)} for n in found.survivors}
        return self._after("agree", AGREE, attempt, asked, read)

    def _openings(
        self, found: SecretSum, attempt: str, signatures: Mapping[int, bytes]
    ) -> dict[int, dict[int, bytes]]:
        """Return the shares that open the sum."""
        chosen = sorted(signatures)[: self.circle.n_signatures]
        signed = told_to("agree", chosen, [signatures[n] for n in chosen])
        asked = dict.fromkeys(found.survivors, signed)

        def enough(openers: Sequence[int]) -> bool:
            return not found.lacking(openers)

        return self._after("open", OPEN, attempt, asked, _as_they_are, enough=enough)

    def _after(
        self,
        step: str,
        file: str,
        attempt: str,
        asked: Mapping[int, Arrays],
        read: Callable[[int, dict[int, bytes]], T],
        enough: Callable[[Sequence[int]], bool] = lambda _: True,
    ) -> dict[int, T]:
        requests = load_requests(self.folder, f"{self.key} {attempt}", file=file)
        again = requests is not None
        if requests is None:
            requests = self._requests(step, attempt, asked)
            save_requests(self.folder, f"{self.key} {attempt}", requests, file=file)
        answers, came = self.calls.answers(requests, self._reader(step, requests, read))
        found = {self.agreement.number_of(site): answer for site, answer in answers.items()}
        self.there = set(found)
        is_enough, least = enough([*found]), self.circle.n_signatures
        left = [
            self.agreement.number_of(site)
            for site, reply in came.items()
            if not (isinstance(reply, Refusal) and reply.for_good)
        ]
        if not is_enough and not enough(left):  # whoever may yet answer, it will not do
            self.calls.lose([*answers])
        if again and self.accused - self.there and not (is_enough and len(found) >= least):
            self.calls.lose([*answers])  # who is accused is waited for once, and no longer
        self.calls.require(answers, came, least=least, again=again, enough=is_enough)
        return found

    # The wire.

    def _requests(self, step: str, attempt: str, asked: Mapping[int, Arrays]) -> dict[str, bytes]:
        run, found = self.agreement.digest, {}
        for n, arrays in asked.items():
            site = self.agreement.sites[n].name
            request = Request(run, site, self.stage, self.t, arrays, step=step, attempt=attempt)
            found[site] = request.to_bytes()
        return found

    def _reader(
        self,
        step: str,
        requests: Mapping[str, bytes],
        read: Callable[[int, dict[int, bytes]], T],
    ) -> Callable[[str, bytes], T]:
        most, run = self.agreement.max_message_bytes, self.agreement.digest

        def answer_of(site: str, reply: bytes) -> T:
            answer = StepAnswer.from_bytes(reply, most=most)
            place = (answer.run, answer.site, answer.stage, answer.t, answer.step, answer.request)
            if place != (run, site, self.stage, self.t, step, digest(requests[site])):
                raise InvalidInput("it answers another request")
            return read(self.agreement.number_of(site), told_by(step, answer.arrays))

        return answer_of

    def _signing_key(self, n: int) -> bytes:
        return bytes.fromhex(self.agreement.sites[n].signing_key or "")


def _as_they_are(_: int, parts: dict[int, bytes]) -> dict[int, bytes]:
    return parts
