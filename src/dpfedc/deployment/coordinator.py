"""What the coordinator does: round after round, over any transport, until the model is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpfedc.clustering.registry import declares_bound, proved_model
from dpfedc.deployment.agreement import VERSION, Agreement
from dpfedc.deployment.checkpoint import Checkpoint, load_requests, save_requests
from dpfedc.deployment.exchanges import Exchange
from dpfedc.deployment.messages import Answer, Refusal, Request, digest
from dpfedc.deployment.receipts import public_key, signed
from dpfedc.deployment.site_run import most_bytes
from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.gate import RecordSum, received
from dpfedc.privacy.ledger import Head
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyGuarantee

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


@dataclass(frozen=True)
class Finished:
    """A run's results, as they are also in its folder."""

    model: ClusterModel
    record: RunRecord
    privacy: PrivacyGuarantee


class Coordinator:
    """Runs an agreement in a folder of its own, with the private key that signs receipts."""

    def __init__(
        self,
        agreement: Agreement,
        transport: Transport,
        folder: Path,
        *,
        key: bytes,
        on_event: Callable[[RoundEvent], None] | None = None,
    ) -> None:
        if public_key(key) != agreement.receipt_key:
            raise InvalidInput("key must belong to the agreement's receipt_key, got another one")
        self.agreement = agreement
        self.transport = transport
        self.folder = folder
        self._key = key
        self._on_event = on_event
        self._most = most_bytes(agreement)

    def run(self) -> Finished:
        """Run all rounds and write the results; goes on where a run in this folder stopped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        point = Checkpoint.load(self.folder, self.agreement.digest)
        if point is None:
            point = self._started(Checkpoint(self.agreement.digest, 0, 0, self.agreement.declared))
            point.save(self.folder)
        while point.stage < len(self.agreement.exchanges):
            point = self._round(point)
            point.save(self.folder)
        return self._finished(point)

    def _started(self, point: Checkpoint) -> Checkpoint:
        """Return the checkpoint with its stage started, if there is one."""
        agreement = self.agreement
        if point.stage == len(agreement.exchanges):
            return point
        method = agreement.exchanges[point.stage].method
        state = method.start(point.state, agreement.public, Randomness(agreement.seed))
        return replace(point, state=state)

    def _round(self, point: Checkpoint) -> Checkpoint:
        """Return the checkpoint after one more round."""
        agreement, exchange, t = self.agreement, self.agreement.exchanges[point.stage], point.t + 1
        method, began = exchange.method, time.perf_counter()
        requests = self._requests(point, exchange, t)
        asked = RoundEvent(
            method.name,
            t,
            method.n_rounds,
            len(point.rounds) + 1,
            agreement.plan.n_rounds,
            tuple(requests),
        )
        if self._on_event is not None:
            self._on_event(asked)
        replies = self.transport.exchange(requests, agreement.deadline)
        answers, refused = self._sorted(requests, replies, exchange, point, t)
        over = replace(asked, answered=tuple(answers), refused=refused, done=True)
        if self._on_event is not None:
            self._on_event(over)
        if len(answers) < agreement.min_answers:
            raise TooFewAnswers(_too_few(over, agreement.min_answers))
        planned = agreement.privacy.of_stage(method.name)
        n_records = sum(agreement.sites[agreement.number_of(site)].n_records for site in answers)
        released = received(
            [answer.upload for answer in answers.values()],
            len(answers),
            planned.sampling_probability * n_records,
        )
        sensitivity = exchange.form(exchange.sent(point.state), t).sensitivity
        noise = agreement.privacy.noise_of_sum(method.name, len(answers))
        entry = RoundRecord(
            method.name,
            t,
            len(answers),
            n_records,
            time.perf_counter() - began,
            release={
                "noise_multiplier": planned.noise_multiplier,
                "sampling_probability": planned.sampling_probability,
                "sensitivity": sensitivity,
                "noise_std": sensitivity * noise,
            },
        )
        done = replace(
            point,
            t=t,
            state=method.combine(point.state, released, t),
            heads=_latest(point.heads, answers),
            rounds=(*point.rounds, entry),
        )
        if t < method.n_rounds:
            return done
        return self._started(replace(done, stage=point.stage + 1, t=0))

    def _requests(self, point: Checkpoint, exchange: Exchange, t: int) -> dict[str, bytes]:
        """Return the round's requests, the very bytes of before if they may have been sent."""
        agreement, stage = self.agreement, exchange.method.name
        key = f"{agreement.digest} {point.stage} {t}"
        requests = load_requests(self.folder, key)
        if requests is None:
            requests, arrays = {}, exchange.sent(point.state)
            for number in agreement.cohort(stage, t).tolist():
                site = agreement.sites[number].name
                receipt = None
                if site in point.heads:
                    receipt = signed(self._key, agreement.digest, site, point.heads[site])
                request = Request(agreement.digest, site, stage, t, arrays, receipt)
                requests[site] = request.to_bytes()
            save_requests(self.folder, key, requests)
        return requests

    def _sorted(
        self,
        requests: Mapping[str, bytes],
        replies: Mapping[str, bytes | Refusal],
        exchange: Exchange,
        point: Checkpoint,
        t: int,
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        """Return the valid answers of sites that were asked, and why others are none."""
        answers: dict[str, Answer] = {}
        refused: dict[str, str] = {}
        exact = self.agreement.noise == "secure"
        form: RecordSum | None = None
        for site, sent in requests.items():
            reply = replies.get(site)
            if isinstance(reply, Refusal):
                refused[site] = reply.reason
            elif reply is not None:
                try:
                    answer = Answer.from_bytes(reply, most=self._most)
                    place = (answer.run, answer.site, answer.stage, answer.t, answer.request)
                    expected = (point.run, site, exchange.method.name, t, digest(sent))
                    if place != expected:
                        raise InvalidInput("it answers another request")
                    form = form or exchange.form(exchange.sent(point.state), t)
                    exchange.checked(answer.upload, form, exact=exact)
                    answers[site] = answer
                except InvalidInput as error:
                    refused[site] = f"not a valid answer: {error}"
        return answers, refused

    def _finished(self, point: Checkpoint) -> Finished:
        agreement, plan = self.agreement, self.agreement.plan
        promise = agreement.guarantee
        stamps = plan.stamps if promise.stamp is None else (*plan.stamps, promise.stamp)
        about = {"method": agreement.method, "version": VERSION, "run": agreement.digest}
        plain = promise.as_plain()
        model = proved_model(
            agreement.method,
            agreement.settings,
            plan,
            point.state,
            feature_names=agreement.features,
            about={**about, "stamps": list(stamps), "privacy": plain},
        )
        record = RunRecord(
            agreement.method,
            VERSION,
            _settings(agreement),
            point.rounds,
            stamps,
            {"privacy": plain, "privacy_plan": json.loads(agreement.privacy.to_json())},
        )
        for name, result in ((MODEL, model), (RECORD, record)):
            draft = self.folder / f".{name}.draft"
            result.write(draft)
            draft.replace(self.folder / name)
        return Finished(model, record, promise)


def _too_few(event: RoundEvent, least: int) -> str:
    reasons = [f"{site} refused: {reason}" for site, reason in event.refused.items()]
    if event.silent:
        reasons.append(f"silent: {', '.join(event.silent)}")
    return (
        f"round {event.t} of stage {event.stage!r} must have {least} answers, got "
        f"{len(event.answered)} of {len(event.asked)} ({'; '.join(reasons)}). What is done is kept "
        "and can be resumed"
    )


def _latest(heads: Mapping[str, Head], answers: Mapping[str, Answer]) -> dict[str, Head]:
    """Return the longest head that was seen of each ledger."""
    latest = dict(heads)
    for site, answer in answers.items():
        if site not in latest or answer.ledger.n_rows > latest[site].n_rows:
            latest[site] = answer.ledger
    return latest


def _settings(agreement: Agreement) -> dict[str, Any]:
    """Return what the run record says of how the run was made."""
    facts, settings = agreement.facts, agreement.settings
    scalars = {n: v for n, v in settings.items() if not isinstance(v, list | tuple | np.ndarray)}
    return {
        **scalars,
        "run": agreement.digest,
        "name": agreement.name,
        "coordinator": agreement.coordinator,
        "epsilon": agreement.epsilon,
        "delta": agreement.privacy.delta,
        "trust": agreement.privacy.trust,
        "noise": agreement.noise,
        "random_state": agreement.seed,
        "init": "random" if settings.get("init") is None else "given",
        "declared_bound": declares_bound(settings),
        "n_sites": facts.n_sites,
        "n_records": facts.n_records,
        "n_features": facts.n_features,
    }
