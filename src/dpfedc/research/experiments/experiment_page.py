"""One page about experiments: our numbers, the paper's beside them, claims, figures."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.report.figures import PIXELS_PER_POINT
from dpfedc.report.style import PAGE, STYLE
from dpfedc.research.experiments.charts import Chart, charts
from dpfedc.research.experiments.claims import Judgement, judgements
from dpfedc.research.experiments.result_tables import (
    comparison_table,
    convergence_table,
    distinct,
    html_table,
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

PAGE_NAME, FIGURES = "report.html", "figures"

_FEW = 20
"""Up to so many judgements are shown without being asked for."""
_MORE_STYLE = """\
table { max-width: none; } .held { color: #17693a; } .not { color: var(--open); }
td.text, th.text { text-align: left; min-width: 9rem; } .stamps { margin-top: .75rem; }
.chart { margin: 1.25rem 0; } section > h3 { margin-top: 1.5rem; }
@media screen and (prefers-color-scheme: dark) { .held { color: #7fd6a0; } }
"""
_CLAIMS_NOTE = (
    "A margin is the mean over seeds of the difference in the claim's favour. Held: more than two "
    "standard errors above the threshold; not held: more than two below; else undecided. The "
    "threshold is 0 where the paper says better, and minus one point of accuracy where it says no "
    "worse."
)


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
    sections: list[str] = []
    files: dict[str, bytes] = {}
    for path in experiment_folders(folder):
        section, drawn = _section(path)
        sections.append(section)
        files |= drawn
    title = "Experiments on federated clustering"
    head = (
        f"<header><h1>{title}</h1>\n"
        '<ul class="stamps" aria-label="Notes on all numbers"><li>simulated noise: not a private '
        "release</li><li>scores are exact, not released</li></ul>\n"
        '<p class="summary">Values are means over seeds &plusmn; one standard error.</p></header>'
    )
    page = PAGE.substitute(
        title=title, style=STYLE + _MORE_STYLE, body="\n".join([head, *sections])
    )
    (folder / FIGURES).mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / FIGURES / name).write_bytes(content)
    target = folder / PAGE_NAME
    target.write_text(page, encoding="utf-8")
    return target


def _section(folder: Path) -> tuple[str, dict[str, bytes]]:
    """Return the section of one experiment and its figure files."""
    manifest, results = read_manifest(folder), read_results(folder)
    records = {r.cell: read_record(folder, r.cell) for r in results}
    key = f"{manifest['name']}{'-quick' if manifest['quick'] else ''}"
    drawn = charts(folder, manifest["shown"])
    judged = [] if manifest["shown"] == "convergence" else judgements(results)
    tables = {"table": comparison_table, "convergence": convergence_table}
    table = tables.get(manifest["shown"], settings_table)(results, records) if results else ""
    paper = "" if manifest["paper"] == "ours" else f" ({manifest['paper']})"
    parts = [
        f'<section id="{escape(key)}"><h2>{escape(manifest["title"] + paper)}</h2>',
        '<ul class="stamps"><li>quick: fewer seeds and small data, to try the commands; not for '
        "conclusions</li></ul>"
        if manifest["quick"]
        else "",
        _progress(manifest, results, folder),
        *(_figure(key, chart) for chart in drawn),
        table,
        _claims(judged),
        _made(manifest),
        "</section>",
    ]
    files = {
        f"{key}-{chart.name}.{kind}": content
        for chart in drawn
        for kind, content in chart.files.items()
    }
    return "\n".join(part for part in parts if part), files


def _progress(manifest: Mapping[str, Any], results: Sequence[Result], folder: Path) -> str:
    """Return a note on cells that are missing; nothing if all are there."""
    missing, failures = manifest["n_cells"] - len(results), read_failures(folder)
    if not missing:
        return ""
    lines = [f"{missing} of {manifest['n_cells']} cells have no result."]
    # Errors of one kind differ in the number that they name last.
    kinds = {f["error"].rpartition(", got ")[0] or f["error"]: f for f in failures}
    reasons = [f"{f['method']} on {f['data']}: {f['error']}" for f in kinds.values()]
    lines += [f"{len(failures)} failed: {'; '.join(reasons[:3])}."] if failures else []
    return f"<p>{escape(' '.join(lines))}</p>"


def _claims(judged: Sequence[Judgement]) -> str:
    """Return the claims with a count for each; every single judgement is in the table below."""
    if not judged:
        return ""
    head = ["claim", "setting", "verdict", "margin", "standard error", "seeds"]
    lines = []
    for claim in distinct(j.claim for j in judged):
        members = [j for j in judged if j.claim == claim]
        counts = [f"{v} {sum(j.verdict == v for j in members)}" for v in _verdicts(members)]
        lines.append(f"<li><strong>{escape(claim)}</strong>: {escape(', '.join(counts))}</li>")
    rows = [
        [
            j.claim,
            j.where,
            j.verdict,
            _signed(j.margin, j.unit),
            "\N{EN DASH}" if j.standard_error is None else f"{j.standard_error:.3f}",
            str(j.n_seeds),
        ]
        for j in judged
    ]
    table = html_table("The paper's claims, judged from these results", head, rows, text={1, 2})
    shown = " open" if len(rows) <= _FEW else ""
    return (
        f"<h3>Claims</h3>\n<ul>{''.join(lines)}</ul>\n<p>{escape(_CLAIMS_NOTE)}</p>\n"
        f"<details{shown}><summary>All {len(rows)} judgements</summary>\n{table}\n</details>"
    )


def _verdicts(members: Iterable[Judgement]) -> list[str]:
    return sorted({j.verdict for j in members})


def _signed(margin: float | None, unit: str) -> str:
    if margin is None:
        return "\N{EN DASH}"
    return f"{margin:+.3f}" if unit == "accuracy" else f"{margin:+.3f} ({unit})"


def _made(manifest: Mapping[str, Any]) -> str:
    seeds = ", ".join(map(str, manifest["seeds"]))
    words = f"dpfedc {manifest['version']}, begun on {manifest['date']}, seeds {seeds}."
    command = manifest["command"] or "run from Python"
    return (
        f"<h3>How this was made</h3>\n<p>{escape(words)}</p>\n"
        f"<pre><code>{escape(command)}</code></pre>"
    )


def _figure(key: str, chart: Chart) -> str:
    pixels = struct.unpack(">II", chart.files["png"][16:24])
    width, height = (n // PIXELS_PER_POINT for n in pixels)
    source = f"{FIGURES}/{escape(key)}-{escape(chart.name)}"
    return (
        f'<figure class="chart"><h3>{escape(chart.heading)}</h3>\n'
        f'<img src="{source}.png" width="{width}" height="{height}" '
        f'alt="{escape(chart.heading)}. {escape(chart.caption)}">\n'
        f'<figcaption>{escape(chart.caption)} <a href="{source}.pdf">PDF</a></figcaption></figure>'
    )
