"""The one loop: stage after stage, round after round, whatever the sites are and wherever."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.stage import Stage, State
from dpfedc.engine.backend import Backend, RoundLost
from dpfedc.engine.run_record import RoundRecord
from dpfedc.errors import DPFedCError
from dpfedc.kernels.devices import on_host_once
from dpfedc.privacy.gate import ReleaseEvent
from dpfedc.privacy.schedule import cohorts
from dpfedc.randomness import Randomness

RELEASE_FIELDS = ("noise_multiplier", "sampling_probability", "sensitivity", "noise_std")
OnRound = Callable[[RoundRecord], None]


class StageLost(DPFedCError):
    """All rounds of a stage were lost, spare ones too: the run cannot go on."""


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
    spare_rounds: Mapping[str, int] | None = None,
    position: Position | None = None,
    keep: Callable[[Position], None] = lambda _: None,
    on_round: OnRound = lambda _: None,
) -> Position:
    """Run the stages one after another, from a public state, and return where the run ends.

    `keep` is called with every new position before anything follows from it; a run goes on from a
    position that was kept as if it had never stopped.

    A round that is lost is left out. A stage ends when it has combined all its rounds, or has none
    left: `spare_rounds` says how many more than its own it may ask for. Of an optional stage all
    rounds may be lost.
    """
    spares = spare_rounds or {}

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
        spare, n_sites = spares.get(stage.name, 0), backend.public.n_sites
        rounds = cohorts(stage, n_sites, randomness, spare_rounds=spare)
        at = position.stage
        for t, cohort in enumerate(rounds, start=1):
            if t <= position.t:
                continue
            combined, entry = _played(stage, backend, position.state, t, cohort)
            position = Position(at, t, combined, (*position.rounds, entry))
            n_combined = sum(r.stage == stage.name and not r.lost for r in position.rounds)
            if n_combined == stage.n_rounds or (n_combined and t == stage.n_rounds + spare):
                position = started(replace(position, stage=at + 1, t=0))
            keep(position)
            on_round(entry)
            if position.stage > at:
                break
        else:
            if stage.optional:  # nothing was released, and nothing depends on it
                position = started(replace(position, stage=at + 1, t=0))
                keep(position)
                continue
            raise StageLost(
                f"stage {stage.name!r} must have a round with enough answers, got none: all "
                f"{stage.n_rounds + spare} were lost. What was charged stays charged, and this "
                "run cannot go on; only a new one can"
            )
    return position


def _played(
    stage: Stage, backend: Backend, state: State, t: int, cohort: npt.NDArray[np.int64]
) -> tuple[State, RoundRecord]:
    """Return the state after round t and the round's record; a lost round leaves the state."""
    began = time.perf_counter()
    try:
        released = backend.round(stage, state, t, cohort)
    except RoundLost:
        return state, RoundRecord(stage.name, t, 0, 0, time.perf_counter() - began, lost=True)
    combined = stage.combine(state, released, stage.turn(t))
    seconds = time.perf_counter() - began
    exact = backend.diagnose(stage, combined)
    return combined, recorded(released.event, seconds, exact, moved(state, combined))


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
