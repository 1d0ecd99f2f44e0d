"""Rounds and runs of stages without a plan: what leaves the sites, clipped and without noise."""

import numpy as np

from dpfedc.clustering.stage import contributed
from dpfedc.engine import rounds
from dpfedc.engine.simulated import SimulatedSites
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import ReleaseEvent, received
from dpfedc.privacy.open_gate import OpenGate


def released(value, n_records=10, noise_std=0.0):
    """Return a value as if one site with so many records had released it."""
    event = ReleaseEvent("x", 1, 1, n_records, noise_std=noise_std)
    return received([Upload(np.asarray(value))], event)


def opened(stage, batch, state, randomness, *, t=1, gate=None):
    """Return what a batch of sites contributes to round t, and what a gate makes of it."""
    gate = gate or OpenGate()
    part = contributed(stage, batch, state, t, gate, randomness)
    sensitivity = stage.sensitivity(state, t)
    out = gate.release([part], batch.sites, stage=stage.name, t=t, sensitivity=sensitivity)
    return part[0], out


def ran(stages, sites, randomness, *, gate=None, state=None, seen=None, on_round=lambda _: None):
    """Return the last state of a run; `seen(stage, batch, state)` is called after every round."""
    backend = SimulatedSites(sites, gate or OpenGate(), randomness, seen)
    end = rounds.run(stages, backend, randomness=randomness, state=state, on_round=on_round)
    return end.state
