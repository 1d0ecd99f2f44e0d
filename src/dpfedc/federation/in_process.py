"""All sites in one process: the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device
from threadpoolctl import threadpool_limits

from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.methods.protocol import Public, SiteBatch, Stage, State
from dpfedc.privacy.mechanism import Gate
from dpfedc.privacy.participation import schedule
from dpfedc.randomness import Randomness
from dpfedc.records import RoundRecord

RELEASE_FIELDS = ("noise_multiplier", "sampling_probability", "sensitivity", "noise_std")
OnRound = Callable[[RoundRecord], None]
Diagnose = Callable[[Stage, SiteBatch, State], Mapping[str, float]]


@dataclass(frozen=True)
class Sites:
    """The records of all simulated sites, stacked site after site."""

    X: Array
    offsets: npt.NDArray[np.int64]
    names: npt.NDArray[Any]
    row_order: npt.NDArray[np.int64] | None
    """Row j here was row row_order[j] of the caller's X (None: the order is the same)."""

    @classmethod
    def of(cls, X: Array, sites: Any = None) -> Sites:
        """Group rows by site id, in sorted order; within a site rows keep their order."""
        n = X.shape[0]
        if sites is None:
            return cls(X, np.array([0, n]), np.array([0]), None)
        ids = np.asarray(sites)
        if ids.ndim != 1 or len(ids) != n:
            raise InvalidInput(
                f"sites must hold one id per record: expected shape ({n},), got {ids.shape}"
            )
        try:
            names, position, counts = np.unique(ids, return_inverse=True, return_counts=True)
        except TypeError as error:
            kinds = sorted({type(name).__name__ for name in ids.tolist()})
            raise InvalidInput(
                f"sites must hold ids of one kind, none missing, got {', '.join(kinds)}"
            ) from error
        if names.dtype.kind in "fmM" and np.isnan(names).any():
            raise InvalidInput("sites must hold one id per record, got NaN for some")
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if np.all(position[:-1] <= position[1:]):
            return cls(X, offsets, names, None)
        order = np.argsort(position, kind="stable")
        xp = array_namespace(X)
        sorted_rows = xp.take(X, xp.asarray(order, device=device(X)), axis=0)
        return cls(sorted_rows, offsets, names, order)

    @property
    def n_sites(self) -> int:
        """Return the number of sites."""
        return len(self.names)

    @property
    def public(self) -> Public:
        """Return what everyone may know."""
        xp, dtype, where = array_namespace(self.X), self.X.dtype, device(self.X)
        return Public(
            int(self.X.shape[1]),
            np.diff(self.offsets),
            lambda values: xp.asarray(values, dtype=dtype, device=where),
        )

    def batch(self, sites: npt.NDArray[np.int64], memory: Mapping[str, Array]) -> SiteBatch:
        """Return the records and memory of the given sites; all of them without a copy."""
        if len(sites) == self.n_sites:
            return SiteBatch(self.X, self.offsets, sites, memory=dict(memory))
        xp, sizes = array_namespace(self.X), np.diff(self.offsets)[sites]
        rows = xp.asarray(self._rows(sites), device=device(self.X))
        return SiteBatch(
            xp.take(self.X, rows, axis=0),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            sites,
            memory={name: xp.take(rest, rows, axis=0) for name, rest in memory.items()},
        )

    def remember(self, batch: SiteBatch, memory: dict[str, Array]) -> None:
        """Put back into `memory` what the batch's sites changed."""
        if batch.n_records == self.X.shape[0]:
            memory.update(batch.memory)
            return
        # The array-API standard cannot write to chosen rows, so old and new are merged by a take.
        xp, n = array_namespace(self.X), self.X.shape[0]
        chosen = np.arange(n)
        chosen[self._rows(batch.sites)] = n + np.arange(batch.n_records)
        index = xp.asarray(chosen, device=device(self.X))
        for name, values in batch.memory.items():
            memory[name] = xp.take(xp.concat([memory[name], values], axis=0), index, axis=0)

    def _rows(self, sites: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        sizes = np.diff(self.offsets)[sites]
        ends = np.cumsum(sizes)
        shifts = np.repeat(self.offsets[sites] - (ends - sizes), sizes)
        return np.asarray(np.arange(ends[-1]) + shifts)


def run(
    stages: Sequence[Stage],
    sites: Sites,
    gate: Gate,
    *,
    randomness: Randomness,
    state: State | None = None,
    on_round: OnRound | None = None,
    diagnose: Diagnose | None = None,
) -> State:
    """Run the stages one after another, from a public state, and return the final state.

    Products here are tall and thin, for which a second BLAS thread costs more than it gives.
    """
    state = state or {}
    with threadpool_limits(limits=1, user_api="blas"):
        for stage in stages:
            state = _run_stage(stage, state, sites, gate, randomness, on_round, diagnose)
    return state


def _run_stage(
    stage: Stage,
    state: State,
    sites: Sites,
    gate: Gate,
    randomness: Randomness,
    on_round: OnRound | None,
    diagnose: Diagnose | None,
) -> State:
    method, everyone = stage.method, np.arange(sites.n_sites)
    state = method.start(state, sites.public, randomness)
    memory = method.prepare(sites.batch(everyone, {}), state, randomness)
    rounds = schedule(
        sites.n_sites,
        stage.sites_per_round or sites.n_sites,
        method.n_rounds,
        rng=randomness.generator(f"participation {method.name}"),
    )
    for t, cohort in enumerate(rounds, start=1):
        began = time.perf_counter()
        batch = sites.batch(cohort, memory)
        dealing = gate.deal(batch, stage=method.name, t=t, n_parts=method.n_parts(t))
        contribution = method.local(batch, state, t, dealing, randomness)
        released = gate.release(contribution, batch, dealing, stage=method.name, t=t)
        if method.listens:
            sites.remember(batch, memory)
            others = np.setdiff1d(everyone, cohort)
            if len(others):
                listening = sites.batch(others, memory)
                method.listen(listening, state)
                sites.remember(listening, memory)
        state = method.combine(state, released, t)
        if on_round is not None:
            seconds = time.perf_counter() - began
            exact = diagnose(stage, sites.batch(everyone, memory), state) if diagnose else {}
            event = gate.events[-1]
            spent = asdict(event) if event.noise_multiplier else {}
            on_round(
                RoundRecord(
                    method.name,
                    t,
                    len(cohort),
                    batch.n_records,
                    seconds,
                    release={name: spent[name] for name in RELEASE_FIELDS if spent},
                    diagnostics=dict(exact),
                )
            )
    return state
