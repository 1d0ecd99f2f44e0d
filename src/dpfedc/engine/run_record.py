"""What happened in a run, as plain data: JSON lines, read by reports, never by methods."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.whole_files import write_whole

EXACT = "diagnostics are exact, not released"
"""The stamp of a record with values that no noise covers: scores, sizes, diagnostics."""


@dataclass(frozen=True)
class RoundRecord:
    """One round of one stage.

    `release` says how it was protected: noise_multiplier, sampling_probability, sensitivity and
    noise_std (of the sum over the sites); it is empty where no noise was added.
    `diagnostics` holds exact values that a simulation may show and a deployed site never sends.
    `moved` says how far the released centres moved, over how far apart they are (None: there are
    none yet). A round that was `lost` had too few answers for good: nothing of it was used.
    """

    stage: str
    t: int
    n_sites: int
    n_records: int
    seconds: float
    release: Mapping[str, float] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    moved: float | None = None
    lost: bool = False


@dataclass(frozen=True)
class RunRecord:
    """A whole run: its settings, its rounds, its results, and the stamps that qualify them."""

    method: str
    version: str
    settings: Mapping[str, Any]
    rounds: tuple[RoundRecord, ...] = ()
    stamps: tuple[str, ...] = ()
    results: Mapping[str, Any] = field(default_factory=dict)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Return the rounds (numbered from 1 through all stages) that carry diagnostic `name`."""
        pairs = [
            (i, r.diagnostics[name])
            for i, r in enumerate(self.rounds, start=1)
            if name in r.diagnostics
        ]
        return [i for i, _ in pairs], [v for _, v in pairs]

    def with_results(self, **results: Any) -> RunRecord:
        """Return the record with more among its results."""
        return replace(self, results={**self.results, **results})

    def with_exact(self, **results: Any) -> RunRecord:
        """Return the record with exact values among its results, and the stamp that says so."""
        stamps = self.stamps if EXACT in self.stamps else (*self.stamps, EXACT)
        return replace(self.with_results(**results), stamps=stamps)

    def to_bytes(self) -> bytes:
        """Return the record as JSON lines: a head, one line per round, a tail.

        JSON has no numbers that are not finite: such a diagnostic is written as null, and read as
        NaN. Nothing else may be non-finite.
        """
        head = {"method": self.method, "version": self.version, "settings": dict(self.settings)}
        tail = {"stamps": list(self.stamps), "results": dict(self.results)}
        lines = [{"kind": "run", **head}]
        lines += [
            {"kind": "round", **asdict(r), "diagnostics": _finite_or_null(r.diagnostics)}
            for r in self.rounds
        ]
        lines += [{"kind": "end", **tail}]
        return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()

    def write(self, path: Path) -> None:
        """Write the record to a file, whole or not at all."""
        write_whole(path, self.to_bytes())

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read what `write` wrote."""
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            kinds = [line.pop("kind") for line in lines]
            if kinds[0] != "run" or kinds[-1] != "end" or set(kinds[1:-1]) - {"round"}:
                raise ValueError("head or end is missing")
            rounds = tuple(_round(line) for line in lines[1:-1])
            end = lines[-1]
            return cls(
                **lines[0], rounds=rounds, stamps=tuple(end["stamps"]), results=end["results"]
            )
        except FileNotFoundError as error:
            raise DataUnavailable(f"no such run record: {path}") from error
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise InvalidInput(f"{path} is not a complete run record: {error}") from error


def _finite_or_null(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _round(line: dict[str, Any]) -> RoundRecord:
    exact = line.pop("diagnostics").items()
    numbers = {name: math.nan if value is None else value for name, value in exact}
    return RoundRecord(**line, diagnostics=numbers)
