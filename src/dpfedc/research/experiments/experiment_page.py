"""One page about experiments: our numbers, the paper's beside them, claims, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.report.markup import Picture, Table, rendered
from dpfedc.research.experiments.charts import Chart, charts, distinct
from dpfedc.research.experiments.claims import HELD, NOT_HELD, Judgement, judgements
from dpfedc.research.experiments.result_tables import (
    comparison_table,
    convergence_table,
    settings_table,
)
from dpfedc.research.experiments.results import (
    MANIFEST,
    Result,
    read_failures,
    read_manifest,
    read_record,
    read_results,
)
from dpfedc.whole_files import write_together, write_whole

PAGE_NAME, FIGURES = "report.html", "figures"

_FEW = 20
"""Up to so many judgements are shown without being asked for."""
_TITLE = "Experiments on federated clustering"


def experiment_folders(folder: Path) -> list[Path]:
    """Return the folders of experiments in or at `folder`, sorted; at least one, or say so."""
    if not folder.is_dir():
        raise DataUnavailable(f"no such folder: {folder}; `dpfedc experiment run` makes one")
    found = sorted(path.parent for path in [*folder.glob(MANIFEST), *folder.glob(f"*/{MANIFEST}")])
    if not found:
        raise InvalidInput(f"{folder} must hold the folder of an experiment, got none")
    return found


def write_experiment_report(folder: Path) -> Path:
    """Write report.html and its figures into `folder`, and return the path of the page.

    The page has a section for the experiment in the folder, or for each one below it.
    """
    sections = [_section(path) for path in experiment_folders(folder)]
    page = rendered("experiments.html", title=_TITLE, sections=sections)
    (folder / FIGURES).mkdir(exist_ok=True)
    for section in sections:
        write_together(folder / FIGURES, section.files)
    write_whole(folder / PAGE_NAME, page)
    return folder / PAGE_NAME


@dataclass(frozen=True)
class _Section:
    """What the page says of one experiment; `verdicts` counts those of each claim in words."""

    key: str
    heading: str
    quick: bool
    missing: str
    pictures: Sequence[Picture]
    files: Mapping[str, bytes]
    table: Table | None
    verdicts: Sequence[tuple[str, str]]
    claims: Table | None
    made: str
    command: str


def _section(folder: Path) -> _Section:
    manifest, results = read_manifest(folder), read_results(folder)
    records = {r.cell: read_record(folder, r.cell) for r in results}
    key = f"{manifest['name']}{'-quick' if manifest['quick'] else ''}"
    drawn = charts(folder, manifest["shown"])
    judged = [] if manifest["shown"] == "convergence" else judgements(results)
    tables = {"table": comparison_table, "convergence": convergence_table}
    paper = "" if manifest["paper"] == "ours" else f" ({manifest['paper']})"
    seeds = ", ".join(map(str, manifest["seeds"]))
    return _Section(
        key=key,
        heading=manifest["title"] + paper,
        quick=manifest["quick"],
        missing=_missing(manifest, results, folder),
        pictures=[_picture(key, chart) for chart in drawn],
        files={f"{key}-{c.name}.{kind}": file for c in drawn for kind, file in c.files.items()},
        table=tables.get(manifest["shown"], settings_table)(results, records) if results else None,
        verdicts=[_verdicts(judged, claim) for claim in distinct(j.claim for j in judged)],
        claims=_claims(judged) if judged else None,
        made=f"dpfedc {manifest['version']}, begun on {manifest['date']}, seeds {seeds}.",
        command=manifest["command"] or "run from Python",
    )


def _missing(manifest: Mapping[str, Any], results: Sequence[Result], folder: Path) -> str:
    """Return a note on cells that are missing; nothing if all are there."""
    missing, failures = manifest["n_cells"] - len(results), read_failures(folder)
    if not missing:
        return ""
    lines = [f"{missing} of {manifest['n_cells']} cells have no result."]
    # Errors of one kind differ in the number that they name last.
    kinds = {f["error"].rpartition(", got ")[0] or f["error"]: f for f in failures}
    reasons = [f"{f['method']} on {f['data']}: {f['error']}" for f in kinds.values()]
    lines += [f"{len(failures)} failed: {'; '.join(reasons[:3])}."] if failures else []
    return " ".join(lines)


def _verdicts(judged: Sequence[Judgement], claim: str) -> tuple[str, str]:
    found = [j.verdict for j in judged if j.claim == claim]
    return claim, ", ".join(f"{verdict} {found.count(verdict)}" for verdict in sorted(set(found)))


def _claims(judged: Sequence[Judgement]) -> Table:
    rows = [
        (
            j.claim,
            j.where,
            j.verdict,
            _signed(j.margin, j.unit),
            None if j.standard_error is None else f"{j.standard_error:.3f}",
            j.n_seeds,
        )
        for j in judged
    ]
    return Table(
        "The paper's claims, judged from these results",
        ("claim", "setting", "verdict", "margin", "standard error", "seeds"),
        rows,
        text=frozenset({1, 2}),
        marks={HELD: "held", NOT_HELD: "not"},
        summary=f"All {len(rows)} judgements",
        unfolded=len(rows) <= _FEW,
    )


def _signed(margin: float | None, unit: str) -> str | None:
    if margin is None:
        return None
    return f"{margin:+.3f}" if unit == "accuracy" else f"{margin:+.3f} ({unit})"


def _picture(key: str, chart: Chart) -> Picture:
    source = f"{FIGURES}/{key}-{chart.name}"
    alt = f"{chart.heading}. {chart.caption}"
    png = chart.files["png"]
    return Picture(f"{source}.png", chart.heading, png, alt, chart.caption, f"{source}.pdf")
