"""What an operator is told of a site's records before it takes part. None of it is ever sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpfedc.errors import DPFedCError
from dpfedc.tables.sources import DataSource, Schema, expected_names
from dpfedc.tables.stored import Block, listed, worded

Line = tuple[str, str, str]
"""A label, a value, and how serious it is: ok, warning or error."""

_FLAWS = ("missing", "not a number", "infinite")


@dataclass(frozen=True)
class Report:
    """What `DataSource.check` found. A source with an error cannot take part."""

    n_rows: int
    n_null_rows: int
    lines: tuple[Line, ...]

    @property
    def ok(self) -> bool:
        """Return whether no line is an error."""
        return all(severity != "error" for _, _, severity in self.lines)


class Survey:
    """Counts over all rows: of missing cells, words and infinities per column, of rows per id."""

    def __init__(self, names: Sequence[str], ids: Sequence[str]) -> None:
        m = len(names)
        self.names = names
        self.n_rows = self.n_null_rows = self.n_broken_rows = 0
        self._flaws = np.zeros((len(_FLAWS), m), dtype=np.int64)
        self._low, self._high = np.full(m, np.inf), np.full(m, -np.inf)
        self._seen: dict[str, Counter[str]] = {name: Counter() for name in ids}

    def add(self, block: Block) -> None:
        """Count one block: the features, as numbers and as texts, then the ids."""
        X, words = block.numbers, worded(block)
        finite = np.isfinite(X)
        self.n_rows += len(X)
        self.n_null_rows += int((~finite.all(axis=1)).sum())
        self.n_broken_rows += int(block.broken.sum())
        flaws = (np.isnan(X) & ~words, words, np.isinf(X))
        self._flaws += np.stack([flaw.sum(axis=0) for flaw in flaws])
        self._low = np.min(X, axis=0, where=finite, initial=np.inf).clip(max=self._low)
        self._high = np.max(X, axis=0, where=finite, initial=-np.inf).clip(min=self._high)
        for counter, ids in zip(self._seen.values(), block.texts[len(self.names) :], strict=True):
            counts = np.bincount(ids.codes[ids.codes >= 0], minlength=len(ids.distinct))
            counter.update(dict(zip(ids.distinct, counts.tolist(), strict=True)))

    def lines(self) -> Iterator[Line]:
        """Return the counts in words."""
        yield "rows", f"{self.n_rows:,}", "ok" if self.n_rows else "error"
        if self.n_null_rows:
            text = f"{self.n_null_rows:,}; each keeps its place and adds nothing to any sum"
            severity = "warning" if self.n_null_rows < self.n_rows else "error"
            yield "rows that count as null", text, severity
        if self.n_broken_rows:
            yield "rows with too few or too many cells", f"{self.n_broken_rows:,}", "warning"
        for name, counts, low, high in zip(
            self.names, self._flaws.T.tolist(), self._low.tolist(), self._high.tolist(), strict=True
        ):
            found = [f"{n:,} {flaw}" for n, flaw in zip(counts, _FLAWS, strict=True) if n]
            span = f"from {low:g} to {high:g}" if low < high else f"always {low:g}"
            span = "no number" if low > high else span
            severity = "warning" if found or low >= high else "ok"
            yield f"column {name!r}", "; ".join([span, *found]), severity

    def rows_per_id(self, name: str) -> Line:
        """Return how often an id occurs: the guarantee is for one row."""
        most = max(self._seen[name].values(), default=0)
        text = f"{len(self._seen[name]):,} ids, at most {most:,} rows each"
        if most <= 1:
            return f"ids in {name!r}", text, "ok"
        return f"ids in {name!r}", f"{text}; what is promised covers one row, not all", "warning"

    def order(self, name: str) -> Line:
        """Return whether a column gives every row its own place."""
        repeats = self.n_rows - len(self._seen[name])
        text = f"{repeats:,} rows have no value of their own, so their places may change"
        return f"order by {name!r}", text if repeats else "fixed", "error" if repeats else "ok"


def checked_source(source: DataSource, expected: Schema | Sequence[str] | None = None) -> Report:
    """Return what an operator should know before taking part; it is never sent."""
    try:
        names = source.schema().names if expected is None else expected_names(expected)
        table = source.opened()
        offered = source.offered(table)
        used = [name for name in names if name in offered and table.columns[name] is not False]
        ids = list(dict.fromkeys(filter(None, (source.record_id, source.order_by))))
        survey = Survey(used, ids)
        for block in table.blocks(used, [*used, *ids]) if used else ():
            survey.add(block)
    except DPFedCError as error:
        return Report(0, 0, (("data", str(error), "error"),))
    lines = [("data", source.where, "ok"), *survey.lines()]
    lines.append(("fingerprint of the columns", Schema(names).fingerprint, "ok"))
    absent = [name for name in names if name not in used]
    if absent:
        lines.append(("expected columns of numbers that are not here", listed(absent), "error"))
    unread = [name for name in offered if name not in used]
    if unread:
        why = "not numbers" if expected is None else "not expected"
        lines.append((f"columns that are not read, as they are {why}", listed(unread), "ok"))
    if source.record_id is not None:
        lines.append(survey.rows_per_id(source.record_id))
    if source.order_by is not None and not table.keys:
        lines.append(survey.order(source.order_by))
    return Report(survey.n_rows, survey.n_null_rows, tuple(lines))
