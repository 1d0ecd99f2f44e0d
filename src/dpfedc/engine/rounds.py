"""The one loop: stage after stage, round after round, whatever the sites are and wherever."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpfedc.clustering.stage import Stage, State
from dpfedc.engine.backend import Backend
from dpfedc.engine.run_record import RoundRecord
from dpfedc.kernels.devices import on_host_once
from dpfedc.privacy.gate import ReleaseEvent
from dpfedc.privacy.schedule import cohorts
from dpfedc.randomness import Randomness

RELEASE_FIELDS = ("noise_multiplier", "sampling_probability", "sensitivity", "noise_std")
OnRound = Callable[[RoundRecord], None]


@dataclass(frozen=True, eq=False)
class Position:
    """Where a run stands: after round t of a stage (0: it has started; stages count from 0)."""

    stage: int
    t: int
    state: State
    rounds: tuple[RoundRecord, ...] = ()


def run(
    stages: Sequence[Stage],
    backend: Backend,
    *,
    randomness: Randomness,
    state: State | None = None,
    position: Position | None = None,
    keep: Callable[[Position], None] = lambda _: None,
    on_round: OnRound = lambda _: None,
) -> Position:
    """Run the stages one after another, from a public state, and return where the run ends.

    `keep` is called with every new position before anything follows from it; a run goes on from a
    position that was kept as if it had never stopped.
    """

    def started(at: Position) -> Position:
        if at.stage == len(stages):
            return at
        begun = stages[at.stage].start(at.state, backend.public, randomness)
        return replace(at, state=begun)

    if position is None:
        position = started(Position(0, 0, state or {}))
        keep(position)
    while position.stage < len(stages):
        stage = stages[position.stage]
        backend.begin(stage, position.state)
        for t, cohort in enumerate(cohorts(stage, backend.public.n_sites, randomness), start=1):
            if t <= position.t:
                continue
            began = time.perf_counter()
            released = backend.round(stage, position.state, t, cohort)
            combined = stage.combine(position.state, released, t)
            seconds = time.perf_counter() - began
            exact = backend.diagnose(stage, combined)
            entry = recorded(released.event, seconds, exact, moved(position.state, combined))
            position = Position(position.stage, t, combined, (*position.rounds, entry))
            if t == stage.n_rounds:
                position = started(replace(position, stage=position.stage + 1, t=0))
            keep(position)
            on_round(entry)
    return position


def moved(before: State, after: State) -> float | None:
    """Return how far the centres moved, over how far they are from their mean; from the state."""
    name = next((name for name in ("centers", "W") if name in before and name in after), None)
    if name is None or before[name].shape != after[name].shape:
        return None
    # Sites look at what is broadcast: an accelerator has been asked for it, or will be.
    old, new = on_host_once(before[name]), on_host_once(after[name])
    step, apart = float(np.linalg.norm(new - old)), float(np.linalg.norm(new - new.mean(axis=0)))
    return step / apart if apart > 0 and math.isfinite(step / apart) else None


def recorded(
    event: ReleaseEvent, seconds: float, exact: Mapping[str, float], moved: float | None = None
) -> RoundRecord:
    """Return the record of a round from the event of its release."""
    names = RELEASE_FIELDS if event.noise_multiplier else ()
    return RoundRecord(
        event.stage,
        event.t,
        event.n_sites,
        event.n_records,
        seconds,
        release={name: getattr(event, name) for name in names},
        diagnostics=dict(exact),
        moved=moved,
    )
