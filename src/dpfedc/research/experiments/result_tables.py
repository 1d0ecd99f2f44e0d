"""The tables of the page about experiments; Table I has the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dpfedc.engine.run_record import RunRecord
from dpfedc.report.markup import Table
from dpfedc.research.experiments.charts import DATA_TITLES, distinct
from dpfedc.research.experiments.compared_methods import METHODS, PER_ROUND
from dpfedc.research.experiments.fitted_slopes import THEOREM_SLOPE, falls
from dpfedc.research.experiments.results import Result
from dpfedc.research.published.published_planner import AS_PUBLISHED
from dpfedc.research.spread import mean_and_error

PAPER_TABLE: Mapping[str, Mapping[tuple[str, float | None], float]] = {
    method: {
        ("tcga-mirna", None): row[0],
        ("mnist", None): row[1],
        ("tcga-mirna", 20.0): row[2],
        ("mnist", 20.0): row[3],
    }
    for method, row in {
        "k-means-parallel": (65.4, 42.6, 50.1, 26.8),
        "coreset-k-median": (38.7, 43.3, 31.0, 26.1),
        "federated-k-means": (70.2, 43.2, 58.4, 31.8),
        "fuzzy-c-means": (72.8, 47.1, 66.9, 36.4),
        "dp-fedc": (76.7, 50.5, 72.2, 43.1),
    }.items()
}
"""Table I of the paper: accuracy in per cent, by data set and epsilon."""

WITH_LABELS = "gradient_bound chosen with labels"
"""A stamp that experiments add."""
PROVED, ASSUMED, NO_NOISE = "proved", "noise by an assumed sensitivity; not a proof", "no noise"

_PLUS_MINUS = "\N{NO-BREAK SPACE}\N{PLUS-MINUS SIGN}\N{NO-BREAK SPACE}"
_TCGA_NOTE = (
    "The paper's TCGA set is gene expression (5,314 samples, 5,000 features); ours is microRNA "
    "expression (7,373 samples, 1,046 features), so the two TCGA columns are not the same task."
)


def privacy_status(record: RunRecord) -> str:
    """Return how far the run's privacy is proved, in a few words."""
    if record.settings.get("epsilon") is None:
        return NO_NOISE
    promise = record.results.get("privacy")
    if record.settings.get("epsilon_per_round"):
        return f"{PROVED}: {promise['epsilon']:.0f} in all" if promise else f"{ASSUMED}; per round"
    if promise:
        return PROVED
    chosen = [stamp for stamp in record.stamps if stamp == WITH_LABELS]
    return "; ".join([AS_PUBLISHED if AS_PUBLISHED in record.stamps else ASSUMED, *chosen])


def comparison_table(results: Sequence[Result], records: Mapping[str, RunRecord]) -> Table:
    """Return Table I: accuracy in per cent per method, the paper's numbers beside ours."""
    columns = distinct((r.data, r.epsilon) for r in results if r.method != "pooled-k-means")
    columns.sort(key=lambda c: (c[1] is not None, c[1] or 0.0, c[0]))
    head = ["method"]
    for data, epsilon in columns:
        noise = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
        head += [f"{DATA_TITLES[data]}, {noise}", *(["paper"] if _in_paper(data, epsilon) else [])]
    rows = []
    for method, variant in distinct((r.method, r.variant) for r in results):
        mine = [r for r in results if (r.method, r.variant) == (method, variant)]
        row: list[str | None] = [method_title(method, variant)]
        for data, epsilon in columns:
            here = [100 * r.accuracy for r in mine if (r.data, r.epsilon) == (data, epsilon)]
            row.append(_spread(here, 1))
            if _in_paper(data, epsilon):
                value = PAPER_TABLE.get(method, {}).get((data, epsilon))
                row.append(None if value is None else f"{value:.1f}")
        noisy = [privacy_status(records[r.cell]) for r in mine if r.epsilon is not None]
        rows.append([*row, noisy[0] if noisy else NO_NOISE])
    note = _TCGA_NOTE if any(data == "tcga-mirna" for data, _ in columns) else ""
    head.append("privacy with noise")
    words = frozenset({len(head) - 1})
    return Table("Accuracy in per cent", head, rows, text=words, note=note)


def _in_paper(data: str, epsilon: float | None) -> bool:
    return (data, epsilon) in PAPER_TABLE["dp-fedc"]


def settings_table(results: Sequence[Result], records: Mapping[str, RunRecord]) -> Table:
    """Return the scores of every setting, folded away where there are many."""
    head = ["setting", "privacy", "seeds", "accuracy", "NMI", "ARI", "cost"]
    groups: dict[str, list[Result]] = {}
    for r in results:
        noise = "no noise" if r.epsilon is None else f"epsilon {r.epsilon:g} {r.trust}"
        count = "all sites" if r.sites_per_round is None else f"K {r.sites_per_round}"
        words = (method_title(r.method, r.variant), DATA_TITLES[r.data], r.partition, count, noise)
        groups.setdefault(", ".join(words), []).append(r)
    rows = [
        [
            name,
            privacy_status(records[members[0].cell]),
            str(len(members)),
            *(_spread([getattr(r, s) for r in members], 3) for s in ("accuracy", "nmi", "ari")),
            _spread([r.cost for r in members], 2),
        ]
        for name, members in groups.items()
    ]
    summary = f"Show all {len(rows)} settings"
    return Table("Scores of every setting", head, rows, text=frozenset({1}), summary=summary)


def convergence_table(results: Sequence[Result], records: Mapping[str, RunRecord]) -> Table:
    """Return the slope of Theorem 4's measure, and zeta, for each data set and partition."""
    found = falls(records[r.cell] for r in results)
    rows = [
        [
            f"{DATA_TITLES[fall.data]}, {fall.partition}",
            f"{fall.slope:.2f}",
            f"{THEOREM_SLOPE:g}",
            f"{fall.heterogeneity:.3g}",
        ]
        for fall in found
    ]
    head = ["data", "slope of the mean of G_H + G_W", "theorem's slope", "zeta"]
    return Table("Slopes on log-log axes, and how unlike the sites are (zeta)", head, rows)


def method_title(method: str, variant: str) -> str:
    """Return what a reader calls a method and its variant."""
    entry = METHODS[method]
    also = f" ({entry.paper_name})" if entry.paper_name not in (None, entry.title) else ""
    kind = "noise per round" if variant == PER_ROUND else variant.replace("-", " ")
    return f"{entry.title}{also}" + (f", {kind}" if kind else "")


def _spread(values: Sequence[float], digits: int) -> str | None:
    if not values:
        return None
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f}" + ("" if math.isnan(error) else f"{_PLUS_MINUS}{error:.{digits}f}")
