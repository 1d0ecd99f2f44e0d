"""The clusters of a run in words and tables: for a terminal, for programs, for a document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpfedc.privacy.statement import counted
from dpfedc.report.promise import verdict_paragraphs
from dpfedc.summary.choice_of_k import ChoiceOfK
from dpfedc.summary.cluster_quality import ClusterQuality
from dpfedc.summary.cluster_summary import (
    Certainty,
    Cluster,
    ClusterSummary,
    ColumnSummary,
    Value,
)
from dpfedc.summary.cluster_text import HEAD, brief_rows, detail_rows, heading
from dpfedc.whole_files import csv_bytes

MEANINGS = {
    "usable": "Noise costs little: a run without noise would find about the same groups.",
    "rough": "Noise blurs the groups: a run without noise may find others.",
    "useless": "Noise hides the groups: a run without noise would find others.",
}
"""What the word of a verdict means to a reader."""
QUALITY_TITLE = "How good the clusters are"
CSV_HEAD = (
    *("cluster", "name", "size", "size_low", "size_high", "size_certainty"),
    *("column", "value", "mean", "low", "high", "overall", "certainty"),
)


@dataclass(frozen=True)
class Reading:
    """The clusters of a run, what is thought of them (the verdict), and what casts doubt on them.

    All of it follows from released values.
    """

    summary: ClusterSummary
    verdict: Mapping[str, Any] | None = None
    doubts: tuple[str, ...] = ()
    quality: ClusterQuality | None = None

    @classmethod
    def of(
        cls,
        summary: ClusterSummary,
        results: Mapping[str, Any],
        quality: ClusterQuality | None = None,
    ) -> Reading:
        """Return the reading of a run with these results, of which nothing else is taken."""
        verdict = results.get("verdict")
        if verdict is not None:
            verdict = {"word": verdict["word"], "sentences": list(verdict["sentences"])}
        return cls(summary, verdict, tuple(results.get("doubts") or ()), quality)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the verdict's sentences without the doubts, which weighed in it as well."""
        doubts = {as_sentence(doubt) for doubt in self.doubts}
        said = () if self.verdict is None else self.verdict["sentences"]
        return tuple(sentence for sentence in said if as_sentence(sentence) not in doubts)

    @property
    def meaning(self) -> str:
        """Return what the verdict's word means; "" without one."""
        if self.verdict is None:
            return ""
        if self.doubts and self.verdict["word"] == "usable":
            return "Noise costs little for most groups, but look at the doubts below."
        return MEANINGS.get(self.verdict["word"], "")


def opening(reading: Reading) -> list[str]:
    """Return what a reader must know first, as paragraphs with a subject."""
    summary = reading.summary
    paragraphs = verdict_paragraphs({"verdict": reading.verdict, "doubts": reading.doubts})
    if summary.choice is not None:
        paragraphs += summary.choice.paragraphs()
    if any(cluster.n_prototypes for cluster in summary.clusters):
        paragraphs.append(f"Made of: {made_of_words(summary)}")
    paragraphs.append(f"How sure: {' '.join(summary.notes)}")
    if summary.left_out:
        paragraphs.append(f"Left out: {', '.join(summary.left_out)}.")
    return paragraphs


def made_of_words(summary: ClusterSummary) -> str:
    """Return how many prototypes the clusters are made of, in a sentence."""
    numbers = [cluster.n_prototypes for cluster in summary.clusters]
    each = ", ".join(f"{n} in cluster {c}" for c, n in enumerate(numbers))
    return f"{counted(sum(numbers), 'prototype')}: {each}."


def as_markdown(reading: Reading) -> str:
    """Return the clusters as Markdown, with what sets each apart."""
    lines = [f"{_escaped(text)}\n" for text in opening(reading)]
    choice = reading.summary.choice
    if choice is not None:
        lines += [*_markdown_table(choice.HEAD, choice.rows()), ""]
    lines += _markdown_table(*brief_rows(reading.summary))
    if reading.quality is not None:
        sentences = reading.quality.sentences(reading.summary.unit)
        lines += [f"\n## {QUALITY_TITLE}\n", *(f"{_escaped(text)}\n" for text in sentences)]
        lines += _markdown_table(*reading.quality.rows())
    for cluster in reading.summary.clusters:
        lines.append(f"\n## {_escaped(heading(cluster))}\n")
        rows = detail_rows(cluster)
        lines += [cluster.note] if cluster.note else _markdown_table(HEAD, rows)
    return "\n".join(lines) + "\n"


def as_csv(reading: Reading) -> bytes:
    """Return one row per cluster, column and, for categories, value; nothing is rounded."""
    summary = reading.summary
    rows = []
    for cluster in summary.clusters:
        own = (cluster.number, cluster.name, cluster.size, cluster.size_low, cluster.size_high)
        for column in cluster.columns:
            for value in _all(column):
                numbers = (value.mean, value.low, value.high, value.overall)
                found = (column.name, value.category, *numbers)
                sure = summary.centers if column.compared and cluster.is_mean else Certainty.UNKNOWN
                rows.append((*own, str(summary.sizes), *found, str(sure)))
    return csv_bytes(CSV_HEAD, rows)


def as_json(reading: Reading) -> str:
    """Return one object with everything; docs/reading-clusters.md says what its keys mean."""
    summary = reading.summary
    found = {
        "unit": summary.unit,
        "verdict": reading.verdict,
        "doubts": list(reading.doubts),
        "notes": list(summary.notes),
        "stamps": list(summary.stamps),
        "size_certainty": summary.sizes,
        "certainty": summary.centers,
        "choice": None if summary.choice is None else _choice_object(summary.choice),
        "clusters": [_cluster_object(cluster) for cluster in summary.clusters],
        "quality": None if reading.quality is None else reading.quality.as_plain(),
    }
    return json.dumps(found, indent=1, allow_nan=False)


def _choice_object(choice: ChoiceOfK) -> dict[str, Any]:
    return {
        "n_clusters": choice.n_clusters,
        "clear": choice.clear,
        "step": choice.step,
        "needed": choice.needed,
        "curve": [asdict(point) for point in choice.curve],
    }


def _cluster_object(cluster: Cluster) -> dict[str, Any]:
    return {
        "cluster": cluster.number,
        "name": cluster.name,
        "size": cluster.size,
        "size_low": cluster.size_low,
        "size_high": cluster.size_high,
        "share": cluster.share,
        "note": cluster.note,
        "is_mean": cluster.is_mean,
        "n_prototypes": cluster.n_prototypes,
        "set_apart_by": [column.name for column in cluster.apart],
        "columns": [
            {
                "column": column.name,
                "kind": column.kind,
                "compared": column.compared,
                "apart": column.apart,
                "values": [
                    {
                        "value": value.category,
                        "mean": value.mean,
                        "low": value.low,
                        "high": value.high,
                        "overall": value.overall,
                        "stands_out": value.stands_out,
                    }
                    for value in _all(column)
                ],
            }
            for column in cluster.columns
        ],
    }


def _all(column: ColumnSummary) -> tuple[Value, ...]:
    return column.values if column.gaps is None else (*column.values, column.gaps)


def as_sentence(words: str) -> str:
    """Return words with a capital in front and a full stop behind."""
    words = words.rstrip(".")
    return f"{words[:1].upper()}{words[1:]}."


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_escaped, row))} |"


def _escaped(text: str) -> str:
    """Return text in which Markdown and HTML find nothing of theirs."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", " ".join(text.split()))
