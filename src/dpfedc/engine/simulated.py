"""All sites in one process: the backend of a simulation, which works on many sites at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Public, SiteBatch, Stage, State, contributed
from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.column_view import VIEW, seen
from dpfedc.kernels.devices import moved, on_accelerator
from dpfedc.kernels.rows import in_runs
from dpfedc.privacy.gate import Gate, Released
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.sums import Part
from dpfedc.randomness import Randomness

PART_RECORDS = 2**15
"""Records worked on at a time, so that what a round needs does not grow with the data."""
DEVICE_PART_RECORDS = 2**25
"""The same on an accelerator, which needs many at a time to be busy."""
Diagnose = Callable[[Stage, SiteBatch, State], Mapping[str, float]]


@dataclass(frozen=True)
class Sites:
    """The records of all simulated sites, stacked site after site."""

    X: Array
    offsets: npt.NDArray[np.int64]
    names: npt.NDArray[Any]
    row_order: npt.NDArray[np.int64] | None
    """Row j here was row row_order[j] of the caller's X (None: the order is the same)."""
    present: Array | None = None
    """Which records are not null (None: all are not)."""

    @classmethod
    def of(cls, X: Array, sites: Any = None, present: Array | None = None) -> Sites:
        """Group rows by site id, in sorted order; within a site rows keep their order."""
        n = X.shape[0]
        if sites is None:
            return cls(X, np.array([0, n]), np.array([0]), None, present)
        ids = np.asarray(sites)
        if ids.ndim != 1 or len(ids) != n:
            raise InvalidInput(
                f"sites must hold one id per record: expected shape ({n},), got {ids.shape}"
            )
        try:
            if np.all(ids[:-1] <= ids[1:]):
                # Sorted already: no need to sort a large array, or to copy the records.
                starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
                offsets = np.append(starts, n).astype(np.int64)
                return cls(X, offsets, _checked(ids[starts]), None, present)
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
        present = None if present is None else present[order]
        return cls(sorted_rows, offsets, _checked(names), order, present)

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
            present = None if self.present is None else self.present[first:last]
            return SiteBatch(self.X[first:last, :], offsets, sites, present, memory=own)
        xp = array_namespace(self.X)
        rows = xp.asarray(self._rows(sites), device=device(self.X))
        X = in_runs(self.X, starts, stops) if in_place else None
        return SiteBatch(
            xp.take(self.X, rows, axis=0) if X is None else X,
            offsets,
            sites,
            None if self.present is None else xp.take(self.present, rows),
            memory={name: xp.take(rest, rows, axis=0) for name, rest in memory.items()},
        )

    def moved(self, name: str) -> Sites:
        """Return the same sites with their records on Torch's device of that name."""
        present = None if self.present is None else moved(self.present, name)
        return replace(self, X=moved(self.X, name), present=present)

    def seen(self, state: State) -> Sites:
        """Return the same sites with their records as the state's columns have them seen."""
        X = seen(self.X, state)
        return self if X is self.X else replace(self, X=X)

    def split(
        self, sites: npt.NDArray[np.int64], *, memory_factor: float = 1.0
    ) -> list[npt.NDArray[np.int64]]:
        """Return the sites in groups whose records fit into one part; a large site is alone.

        A record counts as `memory_factor` of them.
        """
        most = DEVICE_PART_RECORDS if on_accelerator(self.X) else PART_RECORDS
        if sites[-1] - sites[0] >= len(sites):
            memory_factor = max(memory_factor, 1.0)  # not neighbours: the records will be copied
        most = max(int(most / memory_factor), 1)
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


@dataclass
class SimulatedSites:
    """The sites of a simulation, behind one gate.

    `diagnosis` returns exact measures of a state, from the records of all sites.
    """

    sites: Sites
    gate: Gate | OpenGate
    randomness: Randomness
    diagnosis: Diagnose | None = None
    _memory: dict[str, Array] = field(default_factory=dict)
    _seen: Sites = field(init=False)
    _view: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen = self.sites

    @property
    def public(self) -> Public:
        """Return what everyone may know."""
        return self.sites.public

    def begin(self, stage: Stage, state: State) -> None:
        """Make what all records keep at their sites; what the last stage left there may serve."""
        view = {name: state[name] for name in VIEW if name in state}
        if view.keys() != self._view.keys():  # no stage changes what another has found
            self._view, self._seen, self._memory = view, self.sites.seen(view), {}
        sites, everyone = self._seen, np.arange(self.sites.n_sites)
        if not stage.sums_records:
            self._memory = stage.prepare(sites.batch(everyone, {}), state, self.randomness)
            return
        groups = sites.split(everyone, memory_factor=stage.memory_factor(sites.X, state))
        parts = [
            stage.prepare(sites.batch(few, self._memory), state, self.randomness) for few in groups
        ]
        xp = array_namespace(sites.X)
        self._memory = {name: xp.concat([part[name] for part in parts]) for name in parts[0]}

    def round(self, stage: Stage, state: State, t: int, cohort: npt.NDArray[np.int64]) -> Released:
        """Return what the cohort releases, worked through a few sites at a time where it may be."""
        if isinstance(self.gate, Gate) and not stage.proved:
            raise InvalidInput(f"stage {stage.name!r} has no proof: a gate with a plan refuses it")
        released = self.gate.release(
            self._parts(stage, state, t, cohort),
            cohort,
            stage=stage.name,
            t=t,
            sensitivity=stage.sensitivity(state, stage.turn(t)),
        )
        if stage.listens:
            others = np.setdiff1d(np.arange(self._seen.n_sites), cohort)
            if len(others):
                listening = self._seen.batch(others, self._memory, in_place=True)
                stage.listen(listening, state)
                self._seen.remember(listening, self._memory)
        return released

    def diagnose(self, stage: Stage, state: State) -> Mapping[str, float]:
        """Return exact measures of progress, if they were asked for."""
        if self.diagnosis is None:
            return {}
        everyone = np.arange(self._seen.n_sites)
        return self.diagnosis(stage, self._seen.batch(everyone, self._memory), state)

    def _parts(
        self, stage: Stage, state: State, t: int, cohort: npt.NDArray[np.int64]
    ) -> Iterator[Part]:
        """Yield what some of the round's sites at a time contribute."""
        groups, in_parts = [cohort], stage.sums_records and self.gate.works_in_parts
        if in_parts:
            factor = stage.memory_factor(self._seen.X, state)
            groups = self._seen.split(cohort, memory_factor=factor)
        for few in groups:
            batch = self._seen.batch(few, self._memory, in_place=in_parts)
            yield contributed(stage, batch, state, t, self.gate, self.randomness)
            if stage.listens:
                self._seen.remember(batch, self._memory)
