"""A deployed run from its agreement to its results: the engine, remote sites, and a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpfedc.clustering.registry import method_named
from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.checkpoint import Checkpoint
from dpfedc.deployment.keys import public_key
from dpfedc.deployment.remote import RemoteSites, RoundEvent, TooFewAnswers, Transport
from dpfedc.engine.conclusion import Conclusion, concluded
from dpfedc.engine.rounds import Position, run
from dpfedc.errors import InvalidInput
from dpfedc.privacy.noise import SIMULATED
from dpfedc.randomness import Randomness

__all__ = ["MODEL", "RECORD", "Coordinator", "RoundEvent", "TooFewAnswers", "Transport"]

MODEL, RECORD = "model.npz", "run.jsonl"


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

        last = run(
            agreement.plan.stages,
            sites,
            randomness=Randomness(agreement.seed),
            state=agreement.declared,
            position=None if kept is None else kept.position,
            keep=keep,
        )
        return self._finished(last)

    def _finished(self, last: Position) -> Conclusion:
        agreement, plan = self.agreement, self.agreement.plan
        finished = concluded(
            agreement.method,
            _settings(agreement),
            plan,
            agreement.facts,
            last.rounds,
            stamp=SIMULATED if agreement.noise == "simulated" else None,
            model=lambda about: method_named(agreement.method).model(
                agreement.settings,
                plan,
                last.state,
                feature_names=agreement.features,
                about={**about, "run": agreement.digest},
            ),
            results={"title": agreement.name},
        )
        finished.model.write(self.folder / MODEL)
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
