"""A cluster in a line and in a table: what sets it apart, with error bars, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpfedc.privacy.statement import percent
from dpfedc.summary.cluster_summary import MISSING, Cluster, ClusterSummary, ColumnSummary, Value
from dpfedc.summary.number_text import beside, shown, with_bars

IN_BRIEF = 3
"""So many columns stand in the one line about a cluster."""
HEAD = ("set apart by", "here", "overall")


def plain_text(summary: ClusterSummary) -> str:
    """Return the clusters as plain lines: each with what sets it apart, then how sure that is."""
    return "\n".join([*_lines(summary), *summary.notes])


def _lines(summary: ClusterSummary) -> Iterator[str]:
    for cluster in summary.clusters:
        yield heading(cluster)
        rows = detail_rows(cluster)
        widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
        for what, here, overall in rows:
            yield f"  {what:{widths[0]}}  {here:{widths[1]}}  (overall {overall})"
        if cluster.note:
            yield f"  {cluster.note}"


def size_text(cluster: Cluster) -> str:
    """Return how many a cluster holds, with error bars."""
    if cluster.size is None:
        return shown(None)
    low, high = cluster.size_low, cluster.size_high
    if low is not None and high is not None and 0 < high - low < 6:  # counts stay whole
        return f"{cluster.size:,} ({low:,} to {high:,})"
    return with_bars(cluster.size, low, high)


def heading(cluster: Cluster) -> str:
    """Return a cluster's number, name, size and share."""
    if cluster.size is None or cluster.share is None:
        return cluster.title
    return f"{cluster.title}, {size_text(cluster)} {cluster.unit}s ({percent(cluster.share)})"


def brief_rows(summary: ClusterSummary) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return head and rows of the table of all clusters, one line each."""
    head = ("cluster", f"{summary.unit}s", "share", "set apart by")
    rows: list[Sequence[str]] = []
    for cluster in summary.clusters:
        words = [in_a_word(column) for column in cluster.most_apart[:IN_BRIEF]]
        title = " ".join(filter(None, (str(cluster.number), cluster.name)))
        share = shown(None) if cluster.share is None else percent(cluster.share)
        apart = cluster.note or ", ".join(words)
        rows.append((title, size_text(cluster), share, apart))
    return head, rows


def in_a_word(column: ColumnSummary) -> str:
    """Return in what a column sets a cluster apart."""
    value = foremost(column)
    more = value.mean > value.overall
    if value.category == MISSING and column.kind == "number":
        return f"{column.name} {'often' if more else 'seldom'} missing"
    if column.kind == "number":
        return f"{'high' if more else 'low'} {column.name}"
    return f"{'' if more else 'little '}{named(column, value)}"


def foremost(column: ColumnSummary) -> Value:
    """Return the value that says most: rather what is common in the cluster than what is rare."""
    told = column.telling
    return max((v for v in told if v.mean > v.overall), key=_gain, default=min(told, key=_gain))


def detail_rows(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Return what sets a cluster apart, under HEAD."""
    return [
        (named(column, value), *value_text(column, value))
        for column in cluster.most_apart
        for value in column.telling
    ]


def named(column: ColumnSummary, value: Value) -> str:
    """Return what a value is of: a column, a value of a category, or the gaps."""
    if value.category == MISSING and column.kind == "number":
        return f"{column.name} {MISSING}"
    return f"{column.name} = {value.category}" if value.category else column.name


def value_text(column: ColumnSummary, value: Value) -> tuple[str, str]:
    """Return a value with its error bars, and what it is over all."""
    if column.kind == "number" and not value.category:
        here = with_bars(value.mean, value.low, value.high)
        return here, beside(value.overall, value.low, value.high)
    low, high = (None if end is None else 100 * end for end in (value.low, value.high))
    if low is None or high is None or not low < high:
        return percent(value.mean), percent(value.overall)
    return (
        with_bars(100 * value.mean, low, high, "%"),
        f"{beside(100 * value.overall, low, high)} %",
    )


def _gain(value: Value) -> float:
    return value.mean - value.overall
