"""All sites in one process: the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Method, Public, SiteBatch, Stage, State
from dpfedc.engine.run_record import RoundRecord
from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.devices import moved, on_accelerator
from dpfedc.kernels.rows import in_runs
from dpfedc.kernels.threads import rows_over_threads
from dpfedc.privacy.gate import Gate, Part, SiteUploads
from dpfedc.privacy.noise import SecureNoise
from dpfedc.privacy.schedule import schedule
from dpfedc.randomness import Randomness

RELEASE_FIELDS = ("noise_multiplier", "sampling_probability", "sensitivity", "noise_std")
PART_RECORDS = 2**15
"""Records worked on at a time, so that what a round needs does not grow with the data."""
DEVICE_PART_RECORDS = 2**25
"""The same on an accelerator, which needs many at a time to be busy."""
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
            if np.all(ids[:-1] <= ids[1:]):
                # Sorted already: no need to sort a large array, or to copy the records.
                starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
                return cls(X, np.append(starts, n).astype(np.int64), _checked(ids[starts]), None)
            names, position, counts = np.unique(ids, return_inverse=True, return_counts=True)
        except TypeError as error:
            kinds = sorted({type(name).__name__ for name in ids.tolist()})
            raise InvalidInput(
                f"sites must hold ids of one kind, none missing, got {', '.join(kinds)}"
            ) from error
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        order = np.argsort(position, kind="stable")
        xp = array_namespace(X)
        sorted_rows = xp.take(X, xp.asarray(order, device=device(X)), axis=0)
        return cls(sorted_rows, offsets, _checked(names), order)

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

    def batch(
        self,
        sites: npt.NDArray[np.int64],
        memory: Mapping[str, Array],
        *,
        in_place: bool = False,
    ) -> SiteBatch:
        """Return the records and memory of the given sites; neighbours without a copy.

        `in_place` allows records in several runs for sites that are not neighbours.
        """
        starts, stops = self.offsets[sites], self.offsets[sites + 1]
        offsets = np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64)
        first, last = int(starts[0]), int(stops[-1])
        if last - first == offsets[-1] and np.array_equal(starts[1:], stops[:-1]):
            own = {name: rest[first:last, ...] for name, rest in memory.items()}
            return SiteBatch(self.X[first:last, :], offsets, sites, memory=own)
        xp = array_namespace(self.X)
        rows = xp.asarray(self._rows(sites), device=device(self.X))
        X = in_runs(self.X, starts, stops) if in_place else None
        return SiteBatch(
            xp.take(self.X, rows, axis=0) if X is None else X,
            offsets,
            sites,
            memory={name: xp.take(rest, rows, axis=0) for name, rest in memory.items()},
        )

    def moved(self, name: str) -> Sites:
        """Return the same sites with their records on Torch's device of that name."""
        return replace(self, X=moved(self.X, name))

    def n_records(self, sites: npt.NDArray[np.int64]) -> int:
        """Return how many records these sites have together."""
        return int((self.offsets[sites + 1] - self.offsets[sites]).sum())

    def split(
        self, sites: npt.NDArray[np.int64], *, weight: float = 1.0
    ) -> list[npt.NDArray[np.int64]]:
        """Return the sites in groups whose records fit into one part; a large site is alone.

        A record counts as `weight` of them.
        """
        most = DEVICE_PART_RECORDS if on_accelerator(self.X) else PART_RECORDS
        if sites[-1] - sites[0] >= len(sites):
            weight = max(weight, 1.0)  # not neighbours: the records will be copied
        most = max(int(most / weight), 1)
        before = np.cumsum(self.offsets[sites + 1] - self.offsets[sites])
        if before[-1] <= most:
            return [sites]
        group = (before - 1) // most
        return np.split(sites, np.flatnonzero(np.diff(group)) + 1)

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
        sizes = self.offsets[sites + 1] - self.offsets[sites]
        ends = np.cumsum(sizes)
        shifts = np.repeat(self.offsets[sites] - (ends - sizes), sizes)
        return np.asarray(np.arange(ends[-1]) + shifts)


def _checked(names: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if names.dtype.kind in "fmM" and np.isnan(names).any():
        raise InvalidInput("sites must hold one id per record, got NaN for some")
    return names


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
    """Run the stages one after another, from a public state, and return the final state."""
    state = state or {}
    memory: dict[str, Array] = {}
    with rows_over_threads():
        for stage in stages:
            state = stage.method.start(state, sites.public, randomness)
            memory = _prepared(stage.method, sites, state, randomness, memory)
            state = _run_stage(stage, state, memory, sites, gate, randomness, on_round, diagnose)
    return state


def _run_stage(
    stage: Stage,
    state: State,
    memory: dict[str, Array],
    sites: Sites,
    gate: Gate,
    randomness: Randomness,
    on_round: OnRound | None,
    diagnose: Diagnose | None,
) -> State:
    method, everyone = stage.method, np.arange(sites.n_sites)
    rounds = schedule(
        sites.n_sites,
        stage.sites_per_round or sites.n_sites,
        method.n_rounds,
        rng=randomness.generator(f"participation {method.name}"),
    )
    in_parts = method.sums_records and not isinstance(gate.noise, SecureNoise)
    for t, cohort in enumerate(rounds, start=1):
        began = time.perf_counter()
        if in_parts:
            parts = _parts(method, sites, gate, cohort, memory, state, t, randomness)
            released = gate.release_parts(parts, cohort, stage=method.name, t=t)
        else:
            batch = sites.batch(cohort, memory)
            sample = gate.sample(batch, stage=method.name, t=t, n_parts=method.n_parts(t))
            contribution = method.local(batch, state, t, sample, randomness)
            released = gate.release(contribution, batch, sample, stage=method.name, t=t)
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
            names = RELEASE_FIELDS if event.noise_multiplier else ()
            on_round(
                RoundRecord(
                    method.name,
                    t,
                    len(cohort),
                    sites.n_records(cohort),
                    seconds,
                    release={name: getattr(event, name) for name in names},
                    diagnostics=dict(exact),
                )
            )
    return state


def _parts(
    method: Method,
    sites: Sites,
    gate: Gate,
    cohort: npt.NDArray[np.int64],
    memory: Mapping[str, Array],
    state: State,
    t: int,
    randomness: Randomness,
) -> Iterator[Part]:
    """Yield what a few of the round's sites at a time contribute."""
    for few in sites.split(cohort, weight=method.weight(sites.X, state)):
        batch = sites.batch(few, memory, in_place=True)
        sample = gate.sample(batch, stage=method.name, t=t, n_parts=method.n_parts(t))
        contribution = method.local(batch, state, t, sample, randomness)
        if isinstance(contribution, SiteUploads):
            raise DPFedCError(f"stage {method.name!r} must sum over records, got uploaded points")
        yield contribution, batch, sample


def _prepared(
    method: Method,
    sites: Sites,
    state: State,
    randomness: Randomness,
    memory: Mapping[str, Array],
) -> dict[str, Array]:
    """Return what all records keep at their sites; `memory` is what the last stage left there."""
    everyone = np.arange(sites.n_sites)
    if not method.sums_records:
        return method.prepare(sites.batch(everyone, {}), state, randomness)
    groups = sites.split(everyone, weight=method.weight(sites.X, state))
    parts = [method.prepare(sites.batch(few, memory), state, randomness) for few in groups]
    xp = array_namespace(sites.X)
    return {name: xp.concat([part[name] for part in parts]) for name in parts[0]}
