"""A deployed run, from its agreement to its results: the sites elsewhere, and who asks them.

`RemoteSites` is the backend of a deployment: every round is sent to the sites as messages, over any
transport, and waits for their answers until the deadline. The `Coordinator` lets the engine run
over them, with a checkpoint after every round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.method import with_table
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.stage import Public, Stage, State
from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.checkpoint import Checkpoint, load_requests, save_requests
from dpfedc.deployment.exchanges import Exchange
from dpfedc.deployment.keys import public_key, signed
from dpfedc.deployment.messages import Answer, Refusal, Request, digest
from dpfedc.engine.conclusion import Conclusion, concluded
from dpfedc.engine.rounds import Position, run
from dpfedc.errors import DPFedCError, InvalidInput, NotFound
from dpfedc.model_file import ClusterModel, with_names_of
from dpfedc.privacy.gate import Released, planned_event, received
from dpfedc.privacy.ledger import Head
from dpfedc.privacy.noise import SIMULATED
from dpfedc.randomness import Randomness
from dpfedc.whole_files import write_whole

MODEL, RECORD = "model.npz", "run.jsonl"


class Transport(Protocol):
    """Carries bytes. It knows nothing of what they mean."""

    def exchange(
        self, requests: Mapping[str, bytes], deadline_s: float
    ) -> Mapping[str, bytes | Refusal]:
        """Send each site its request and return what came back in time; others are left out."""
        ...


class TooFewAnswers(DPFedCError):
    """A round ended with fewer answers than agreed. The checkpoint stays; the run can go on."""


@dataclass(frozen=True)
class RoundEvent:
    """A round that has been sent out (`done` false) or is over.

    `number` counts rounds through all stages, of `total`. A site that is in `asked`, but neither in
    `answered` nor in `refused`, was silent until the deadline.
    """

    stage: str
    t: int
    n_rounds: int
    number: int
    total: int
    asked: tuple[str, ...]
    answered: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    done: bool = False

    @property
    def silent(self) -> tuple[str, ...]:
        """Return the sites of which nothing was heard."""
        heard = {*self.answered, *self.refused}
        return tuple(site for site in self.asked if site not in heard)


@dataclass
class RemoteSites:
    """The sites of an agreement, as the coordinator reaches them.

    `heads` are the last that was seen of the sites' ledgers; receipts for them are signed with the
    coordinator's private `key`. A round's requests are written to the folder before the first is
    sent: a coordinator that dies and starts again sends the very bytes it sent before, to which
    sites have answers in store.
    """

    agreement: Agreement
    transport: Transport
    folder: Path
    key: bytes
    heads: dict[str, Head] = field(default_factory=dict)
    on_event: Callable[[RoundEvent], None] = lambda _: None

    @property
    def public(self) -> Public:
        """Return what everyone may know."""
        return self.agreement.public

    def begin(self, stage: Stage, state: State) -> None:
        """Do nothing: a site prepares when it is asked, and keeps nothing."""

    def diagnose(self, stage: Stage, state: State) -> Mapping[str, float]:
        """Return nothing: exact values stay at the sites."""
        return {}

    def round(self, stage: Stage, state: State, t: int, cohort: npt.NDArray[np.int64]) -> Released:
        """Ask the cohort's sites and return the sum of their valid answers."""
        agreement, exchange = self.agreement, self.agreement.exchange(stage.name)
        requests = self._requests(exchange, state, t, cohort)
        before = [s.name for s in agreement.plan.stages].index(stage.name)
        n_before = sum(s.n_rounds for s in agreement.plan.stages[:before])
        total = agreement.plan.n_rounds
        asked = RoundEvent(stage.name, t, stage.n_rounds, n_before + t, total, tuple(requests))
        self.on_event(asked)
        replies = self.transport.exchange(requests, agreement.deadline)
        # What a site was sent decides, to the last bit, how far one record moves its upload.
        sensitivity = stage.sensitivity(exchange.sent(state), t)
        answers, refused = self._sorted(exchange, requests, replies, t, sensitivity)
        over = replace(asked, answered=tuple(answers), refused=refused, done=True)
        self.on_event(over)
        if len(answers) < agreement.min_answers:
            raise TooFewAnswers(_too_few(over, agreement.min_answers))
        for site, answer in answers.items():
            if site not in self.heads or answer.ledger.n_rows > self.heads[site].n_rows:
                self.heads[site] = answer.ledger
        event = planned_event(
            agreement.privacy,
            stage.name,
            t,
            n_sites=len(answers),
            n_records=sum(agreement.sites[agreement.number_of(s)].n_records for s in answers),
            sensitivity=sensitivity,
        )
        return received([answer.upload for answer in answers.values()], event)

    def _requests(
        self, exchange: Exchange, state: State, t: int, cohort: npt.NDArray[np.int64]
    ) -> dict[str, bytes]:
        """Return the round's requests, the very bytes of before if they may have been sent."""
        run, stage = self.agreement.digest, exchange.stage.name
        key = f"{run} {stage} {t}"
        requests = load_requests(self.folder, key)
        if requests is None:
            requests, arrays = {}, exchange.sent(state)
            for number in cohort.tolist():
                site = self.agreement.sites[number].name
                head = self.heads.get(site)
                receipt = None if head is None else signed(self.key, run, site, head)
                requests[site] = Request(run, site, stage, t, arrays, receipt).to_bytes()
            save_requests(self.folder, key, requests)
        return requests

    def _sorted(
        self,
        exchange: Exchange,
        requests: Mapping[str, bytes],
        replies: Mapping[str, bytes | Refusal],
        t: int,
        sensitivity: float,
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        """Return the valid answers of sites that were asked, and why others are none."""
        answers: dict[str, Answer] = {}
        refused: dict[str, str] = {}
        exact, most = self.agreement.noise == "secure", self.agreement.max_message_bytes
        for site, request in requests.items():
            reply = replies.get(site)
            if isinstance(reply, Refusal):
                refused[site] = reply.reason
            elif reply is not None:
                try:
                    answer = Answer.from_bytes(reply, most=most)
                    place = (answer.run, answer.site, answer.stage, answer.t, answer.request)
                    run, stage = self.agreement.digest, exchange.stage.name
                    if place != (run, site, stage, t, digest(request)):
                        raise InvalidInput("it answers another request")
                    exchange.checked(answer.upload, sensitivity, exact=exact)
                    answers[site] = answer
                except InvalidInput as error:
                    refused[site] = f"not a valid answer: {error}"
        return answers, refused


def _too_few(event: RoundEvent, least: int) -> str:
    reasons = [f"{site} refused: {reason}" for site, reason in event.refused.items()]
    if event.silent:
        reasons.append(f"silent: {', '.join(event.silent)}")
    return (
        f"round {event.t} of stage {event.stage!r} must have {least} answers, got "
        f"{len(event.answered)} of {len(event.asked)} ({'; '.join(reasons)}). What is done is kept "
        "and can be resumed"
    )


class Coordinator:
    """Runs an agreement in a folder of its own, with the private key that signs receipts."""

    def __init__(
        self,
        agreement: Agreement,
        transport: Transport,
        folder: Path,
        *,
        key: bytes,
        on_event: Callable[[RoundEvent], None] = lambda _: None,
    ) -> None:
        if public_key(key) != agreement.receipt_key:
            raise InvalidInput("key must belong to the agreement's receipt_key, got another one")
        self.agreement = agreement
        self.folder = folder
        self._sites = RemoteSites(agreement, transport, folder, key, on_event=on_event)

    def run(self) -> Conclusion:
        """Run all rounds and write the results; goes on where a run in this folder stopped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        agreement, sites = self.agreement, self._sites
        kept = Checkpoint.load(self.folder, agreement.digest)
        if kept is not None:
            sites.heads = dict(kept.heads)

        def keep(position: Position) -> None:
            Checkpoint(agreement.digest, position, dict(sites.heads)).save(self.folder)

        try:
            last = run(
                agreement.plan.stages,
                sites,
                randomness=Randomness(agreement.seed),
                state=agreement.declared,
                position=None if kept is None else kept.position,
                keep=keep,
            )
        except NotFound as lost:
            raise lost.naming(agreement.features) from None
        return self._finished(last)

    def _finished(self, last: Position) -> Conclusion:
        agreement, plan = self.agreement, self.agreement.plan
        finished = concluded(
            agreement.method,
            _settings(agreement),
            plan,
            agreement.facts,
            last,
            stamp=SIMULATED if agreement.noise == "simulated" else None,
            model=lambda about: with_table(
                method_named(agreement.method).model(
                    agreement.settings,
                    plan,
                    last.state,
                    feature_names=agreement.features,
                    about={**about, "run": agreement.digest},
                ),
                last.state,
                agreement.schema,
            ),
            results={"title": agreement.name},
        )
        # A run that is over may be resumed to send its model again: its clusters keep their names.
        model, path = finished.model.to_bytes(), self.folder / MODEL
        if path.exists():
            model = with_names_of(path.read_bytes(), model)
            finished = replace(finished, model=ClusterModel.from_bytes(model))
        write_whole(path, model)
        finished.record.write(self.folder / RECORD)
        return finished


def _settings(agreement: Agreement) -> dict[str, Any]:
    """Return how the run was made, under the names that a simulated run has for it."""
    return {
        **agreement.settings,
        "run": agreement.digest,
        "name": agreement.name,
        "coordinator": agreement.coordinator,
        "epsilon": agreement.epsilon,
        "delta": agreement.privacy.delta,
        "trust": agreement.privacy.trust,
        "noise": agreement.noise,
        "random_state": agreement.seed,
    }
