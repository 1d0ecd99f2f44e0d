"""The files of an experiment: results.csv, rounds.csv, failures.csv, run records, a manifest.

A cell is finished when its row stands in results.csv, which is written last and in one piece. What
an interruption leaves of an unfinished cell is removed when the folder is opened again.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.research.experiments.experiment_spec import Cell
from dpfedc.whole_files import csv_bytes, write_whole

MANIFEST, RESULTS, ROUNDS, FAILURES, RUNS = (
    "experiment.json", "results.csv", "rounds.csv", "failures.csv", "runs",
)  # fmt: skip
_MANIFEST_KEYS = {
    "name", "title", "paper", "shown", "quick", "command", "date", "version", "seeds", "n_cells",
}  # fmt: skip
_KEY = ("method", "data", "partition", "epsilon", "trust", "variant", "sites_per_round", "seed")
_SCORES = ("accuracy", "nmi", "ari", "cost", "seconds")
RESULT_COLUMNS = (*_KEY, *_SCORES, "cell")
ROUND_COLUMNS = (*_KEY, "stage", "t", "objective", "accuracy", "cell")
FAILURE_COLUMNS = (*_KEY, "error", "cell")


@dataclass(frozen=True)
class Result:
    """One row of results.csv. `objective` is that of the last round, where it was tracked."""

    method: str
    data: str
    partition: str
    epsilon: float | None
    trust: str
    variant: str
    sites_per_round: int | None
    seed: int
    accuracy: float
    nmi: float
    ari: float
    cost: float
    seconds: float = 0.0
    cell: str = ""
    objective: float | None = None


@dataclass(frozen=True)
class RoundRow:
    """One row of rounds.csv: exact measures after a round, where they were tracked."""

    cell: str
    stage: str
    t: int
    objective: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Folder:
    """The folder of one experiment, opened for adding cells to it."""

    path: Path

    @classmethod
    def opened(cls, path: Path, manifest: Mapping[str, Any]) -> Folder:
        """Open a folder for the experiment, or say why it cannot hold its results.

        A folder that was begun keeps its manifest: it must be of the same experiment.
        """
        folder = cls(path)
        if path.exists() and not path.is_dir():
            raise InvalidInput(f"the output must be a folder, got the file {path}")
        if (path / MANIFEST).exists():
            found = read_manifest(path)
            for key in ("name", "quick"):
                if found[key] != manifest[key]:
                    raise InvalidInput(
                        f"{path} must be new or of experiment {manifest['name']} with "
                        f"{key}={manifest[key]}, got one with {key}={found[key]}"
                    )
        elif any((path / name).exists() for name in (RESULTS, ROUNDS, FAILURES, RUNS)):
            raise InvalidInput(f"{path} must be new or of an experiment, got other results there")
        (path / RUNS).mkdir(parents=True, exist_ok=True)
        if not (path / MANIFEST).exists():
            write_whole(path / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
        done = folder.finished()
        folder._keep(RESULTS, RESULT_COLUMNS, done)
        folder._keep(ROUNDS, ROUND_COLUMNS, done)
        # What failed is tried again.
        folder._keep(FAILURES, FAILURE_COLUMNS, set())
        return folder

    def finished(self) -> set[str]:
        """Return the ids of the finished cells."""
        return {row["cell"] for row in _rows(self.path / RESULTS, RESULT_COLUMNS)}

    def add(self, cell: Cell, record: RunRecord, scores: Mapping[str, float]) -> None:
        """Add a finished cell: its record, its rounds, and last its result."""
        key = _key_of(cell)
        record.write(self.path / RUNS / f"{cell.id}.jsonl")
        measured = [
            [*key, r.stage, t, *(_shown(r.diagnostics.get(n)) for n in ("objective", "accuracy"))]
            for t, r in enumerate(record.rounds, start=1)
            if r.diagnostics
        ]
        self._append(ROUNDS, ROUND_COLUMNS, [[*row, cell.id] for row in measured])
        values = [_shown(scores[name]) for name in _SCORES]
        self._append(RESULTS, RESULT_COLUMNS, [[*key, *values, cell.id]])

    def add_failure(self, cell: Cell, error: str) -> None:
        """Add a cell that could not be run, with the reason."""
        self._append(FAILURES, FAILURE_COLUMNS, [[*_key_of(cell), error, cell.id]])

    def _append(self, name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        path = self.path / name
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            if new:
                writer.writerow(head)
            writer.writerows(rows)

    def _keep(self, name: str, head: Sequence[str], cells: set[str]) -> None:
        """Rewrite a file with the whole rows of these cells only, if it has any others."""
        path = self.path / name
        if not path.exists():
            return
        kept = [[row[c] for c in head] for row in _rows(path, head) if row["cell"] in cells]
        write_whole(path, csv_bytes(head, kept))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what the folder says of the experiment and how it was made."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        missing = _MANIFEST_KEYS - found.keys()
    except FileNotFoundError as error:
        raise DataUnavailable(f"{folder} must hold an experiment, got no {MANIFEST}") from error
    except (ValueError, AttributeError) as error:
        raise InvalidInput(f"{path} is not a manifest of an experiment: {error}") from error
    if missing:
        raise InvalidInput(f"{path} must have {', '.join(sorted(missing))}, got {sorted(found)}")
    return dict(found)


def read_results(folder: Path) -> list[Result]:
    """Return the finished cells, each with the objective of its last round."""
    last = {r.cell: r.objective for r in read_rounds(folder) if r.objective is not None}
    return [
        Result(
            method=row["method"],
            data=row["data"],
            partition=row["partition"],
            epsilon=_number(row["epsilon"]),
            trust=row["trust"],
            variant=row["variant"],
            sites_per_round=None if row["sites_per_round"] == "" else int(row["sites_per_round"]),
            seed=int(row["seed"]),
            **{name: float(row[name]) for name in _SCORES},
            cell=row["cell"],
            objective=last.get(row["cell"]),
        )
        for row in _rows(folder / RESULTS, RESULT_COLUMNS)
    ]


def read_rounds(folder: Path) -> list[RoundRow]:
    """Return the tracked rounds of all cells, in the order they were run."""
    return [
        RoundRow(
            row["cell"],
            row["stage"],
            int(row["t"]),
            _number(row["objective"]),
            _number(row["accuracy"]),
        )
        for row in _rows(folder / ROUNDS, ROUND_COLUMNS)
    ]


def read_failures(folder: Path) -> list[dict[str, str]]:
    """Return the cells that could not be run, with their errors."""
    return _rows(folder / FAILURES, FAILURE_COLUMNS)


def read_record(folder: Path, cell: str) -> RunRecord:
    """Return the run record of a finished cell."""
    return RunRecord.read(folder / RUNS / f"{cell}.jsonl")


def _key_of(cell: Cell) -> list[Any]:
    epsilon = "" if cell.epsilon is None else f"{cell.epsilon:g}"
    count = "" if cell.sites_per_round is None else cell.sites_per_round
    return [
        cell.method, cell.data.name, cell.partition, epsilon, cell.trust, cell.variant, count,
        cell.seed,
    ]  # fmt: skip


def _rows(path: Path, head: Sequence[str]) -> list[dict[str, str]]:
    """Return the whole rows of a file; a last line without an end was cut off by a crash."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = list(csv.reader(lines))
    if rows and tuple(rows[0]) != tuple(head):
        raise InvalidInput(f"{path} must have the columns {', '.join(head)}, got {rows[0]}")
    return [dict(zip(head, row, strict=True)) for row in rows[1:] if len(row) == len(head)]


def _number(text: str) -> float | None:
    return float(text) if text else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
