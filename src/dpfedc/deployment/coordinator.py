"""A deployed run, from its agreement to its results: the sites elsewhere, and who asks them.

`RemoteSites` is the backend of a deployment: every round is sent to the sites as messages, over any
transport, and waits for their answers until the deadline. The `Coordinator` lets the engine run
over them, with a checkpoint after every round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.method import with_table
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.stage import Public, Stage, State
from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.checkpoint import Checkpoint, load_requests, save_requests
from dpfedc.deployment.exchanges import Exchange
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.keys import public_key, signed
from dpfedc.deployment.mailbox.mailbox import Mailbox
from dpfedc.deployment.messages import Answer, Arrays, Request, digest
from dpfedc.deployment.round_calls import RoundCalls, RoundEvent
from dpfedc.deployment.secure_rounds import SecureRound
from dpfedc.engine.conclusion import Conclusion, concluded
from dpfedc.engine.rounds import Position, run
from dpfedc.errors import InvalidInput, NotFound
from dpfedc.privacy.gate import Released, planned_event, received
from dpfedc.privacy.noise import SIMULATED
from dpfedc.randomness import Randomness

MODEL, RECORD = "model.npz", "run.jsonl"


@dataclass
class RemoteSites:
    """The sites of an agreement, as the coordinator reaches them.

    `heads` are the last that was seen of the sites' ledgers, in this run or another; receipts for
    them are signed with the coordinator's private `key`. A round's requests are written to the
    folder before the first is sent: a coordinator that dies and starts again sends the very bytes
    it sent before, to which sites have answers in store.
    """

    agreement: Agreement
    transport: Mailbox
    folder: Path
    key: bytes
    heads: KeptHeads
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
        calls = self._calls(stage, t, cohort)
        secret = None
        if agreement.is_masked:
            secret = SecureRound(agreement, calls, self.folder, stage.name, t)
        requests, again = self._requests(exchange, state, t, cohort, secret)
        # What a site was sent decides, to the last bit, how far one record moves its upload.
        sensitivity = stage.sensitivity(exchange.sent(state), stage.turn(t))
        answers, came = calls.answers(requests, self._reader(exchange, requests, t, sensitivity))
        # Before anything else is sent, and whatever comes of the round.
        self.heads.saw({site: answer.ledger for site, answer in answers.items()})
        least = agreement.least_answers(len(cohort))
        if secret is not None:
            secret.uploaded(answers, came, enough=len(answers) >= least)
        calls.require(answers, came, least=least, again=again)
        uploads, summed = [answer.upload for answer in answers.values()], [*answers]
        if secret is not None:
            total, summed = secret.opened(requests, answers, came)
            uploads = [total]
        calls.end(summed)
        event = planned_event(
            agreement.privacy,
            stage.name,
            t,
            n_sites=len(summed),
            n_records=sum(agreement.sites[agreement.number_of(s)].n_records for s in summed),
            sensitivity=sensitivity,
        )
        return received(uploads, event)

    def _calls(self, stage: Stage, t: int, cohort: npt.NDArray[np.int64]) -> RoundCalls:
        agreement = self.agreement
        before = [s.name for s in agreement.plan.stages].index(stage.name)
        n_before = sum(s.n_rounds for s in agreement.plan.stages[:before])
        names = tuple(agreement.sites[n].name for n in cohort.tolist())
        total, number = agreement.plan.n_rounds, n_before + stage.turn(t)
        asked = RoundEvent(stage.name, t, stage.n_rounds, number, total, names)
        n_sites = len(agreement.sites)
        return RoundCalls(asked, self.transport, agreement.deadline, n_sites, self.on_event)

    def _requests(
        self,
        exchange: Exchange,
        state: State,
        t: int,
        cohort: npt.NDArray[np.int64],
        secret: SecureRound | None,
    ) -> tuple[dict[str, bytes], bool]:
        """Return the round's requests, and whether they are those of before: the very bytes."""
        run, stage = self.agreement.digest, exchange.stage.name
        key = f"{run} {stage} {t}"
        requests = load_requests(self.folder, key)
        if requests is not None:
            return requests, True
        attempt = ""
        masks: Mapping[int, Arrays] = {number: {} for number in cohort.tolist()}
        if secret is not None:
            attempt, masks = secret.prepared()
        requests, arrays, heads = {}, exchange.sent(state), self.heads.read()
        for number, more in masks.items():
            site = self.agreement.sites[number].name
            head = heads.get(site)
            receipt = None if head is None else signed(self.key, run, site, head)
            request = Request(run, site, stage, t, {**arrays, **more}, receipt, attempt=attempt)
            requests[site] = request.to_bytes()
        save_requests(self.folder, key, requests)
        return requests, False

    def _reader(
        self, exchange: Exchange, requests: Mapping[str, bytes], t: int, sensitivity: float
    ) -> Callable[[str, bytes], Answer]:
        """Return what makes an answer of a site's reply, or refuses it."""
        exact, most = self.agreement.noise == "secure", self.agreement.max_message_bytes
        run, stage = self.agreement.digest, exchange.stage.name

        def read(site: str, reply: bytes) -> Answer:
            answer = Answer.from_bytes(reply, most=most)
            place = (answer.run, answer.site, answer.stage, answer.t, answer.request)
            if place != (run, site, stage, t, digest(requests[site])):
                raise InvalidInput("it answers another request")
            exchange.checked(answer.upload, sensitivity, exact=exact)
            return answer

        return read


class Coordinator:
    """Runs an agreement in a folder of its own, with the private key that signs receipts."""

    def __init__(
        self,
        agreement: Agreement,
        transport: Mailbox,
        folder: Path,
        *,
        key: bytes,
        heads: KeptHeads,
        on_event: Callable[[RoundEvent], None] = lambda _: None,
    ) -> None:
        if public_key(key) != agreement.receipt_key:
            raise InvalidInput("key must belong to the agreement's receipt_key, got another one")
        self.agreement = agreement
        self.folder = folder
        self._sites = RemoteSites(agreement, transport, folder, key, heads, on_event)

    def run(self) -> Conclusion:
        """Run all rounds and write the results; goes on where a run in this folder stopped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        agreement, sites = self.agreement, self._sites
        kept = Checkpoint.load(self.folder, agreement.digest)

        def keep(position: Position) -> None:
            Checkpoint(agreement.digest, position).save(self.folder)

        try:
            last = run(
                agreement.plan.stages,
                sites,
                randomness=Randomness(agreement.seed),
                state=agreement.declared,
                spare_rounds=agreement.plan.spare_rounds,
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
        path = self.folder / MODEL
        finished = replace(finished, model=finished.model.named_as_in(path))
        finished.model.write(path)
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
