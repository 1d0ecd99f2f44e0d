"""A clustering as people read it: each cluster in units, how sure that is, what sets it apart.

Everything here follows from released values and their known noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dpfedc.errors import InvalidInput
from dpfedc.settings import enumerated

if TYPE_CHECKING:
    from dpfedc.summary.choice_of_k import ChoiceOfK

FEW, HARDLY, TELLING = 6, 0.01, 3
"""So many columns are shown as setting a cluster apart, down to this part of the first one's, and
so many shares of a category."""
MISSING = "missing"
MAX_NAME, FORMULA = 60, "=+-@"
"""How long a cluster's name may be, and what a spreadsheet would take for a formula's start."""


class Certainty(StrEnum):
    """How well numbers are known."""

    EXACT = "exact"
    BARS = "error bars"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Value:
    """A mean or a share, with its 95 % interval (None: not known), and what it is over all.

    `category` is the value whose share this is, MISSING for the share of gaps, "" for a number.
    `stands_out` says whether it differs from `overall` by more than noise (None: the noise is not
    known).
    """

    mean: float
    low: float | None
    high: float | None
    overall: float
    stands_out: bool | None
    category: str = ""


@dataclass(frozen=True)
class ColumnSummary:
    """A column in one cluster: a number's mean, or the shares of a category, the largest first.

    `gaps` is the share of gaps, where the schema marks them. `apart` is the column's part of the
    squared distance between the cluster's centre and the mean of all, as the clustering measures
    it. A column that the run left out is not `compared`.
    """

    name: str
    kind: str
    values: tuple[Value, ...]
    gaps: Value | None
    apart: float
    compared: bool

    @property
    def telling(self) -> tuple[Value, ...]:
        """Return the values that say most of the cluster: a mean, or shares that differ most.

        Of two shares the one above its overall says it all. The share of gaps is there if it stands
        out.
        """
        found = [v for v in self.values if v.stands_out is not False]
        if len(self.values) <= 2:
            found = sorted(found, key=lambda value: value.overall - value.mean)[:1]
        else:
            found = sorted(found, key=lambda value: -abs(value.mean - value.overall))[:TELLING]
        shares = {value.category for value in found}
        gaps = (self.gaps,) if self.gaps is not None and self.gaps.stands_out else ()
        return (*(v for v in self.values if v.category in shares), *gaps)

    @property
    def stands_out(self) -> bool | None:
        """Return whether anything in the column differs from all by more than noise."""
        found = [v.stands_out for v in (*self.values, self.gaps) if v is not None]
        return None if None in found else any(found)


@dataclass(frozen=True)
class Cluster:
    """One cluster. A size is whole and never below 0; its interval is None if it is not known.

    `is_mean` is False where the cluster holds too few records to tell its centre from noise.
    """

    number: int
    name: str
    unit: str
    size: int | None
    size_low: int | None
    size_high: int | None
    share: float | None
    is_mean: bool
    columns: tuple[ColumnSummary, ...]
    n_prototypes: int = 0
    """How many prototypes it is a group of; 0 if clusters are not made of any."""

    @property
    def title(self) -> str:
        """Return the number, and the name if it has one."""
        return f"Cluster {self.number}{': ' * bool(self.name)}{self.name}"

    @property
    def apart(self) -> tuple[ColumnSummary, ...]:
        """Return the columns that set the cluster apart, most first.

        Where the noise is not known these are all that differ, and some of it may be noise.
        """
        found = [
            c for c in self.columns if c.compared and c.apart > 0 and c.stands_out is not False
        ]
        return tuple(sorted(found, key=lambda column: -column.apart))

    @property
    def most_apart(self) -> tuple[ColumnSummary, ...]:
        """Return the few of them that a reader can take in, without those that hardly count."""
        found = self.apart
        return tuple(c for c in found[:FEW] if c.apart >= HARDLY * found[0].apart)

    @property
    def note(self) -> str:
        """Return what must be known of the cluster, in words, or ""."""
        if not self.is_mean:
            return f"It holds too few {self.unit}s for its centre to mean anything."
        return "" if self.apart else "Nothing sets it apart beyond noise."


@dataclass(frozen=True)
class ClusterSummary:
    """All clusters of a model, in the order of their numbers."""

    unit: str
    sizes: Certainty
    centers: Certainty
    stamps: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    far_out: tuple[int, ...] = ()
    """The clusters many of whose records were clipped."""
    of_table: bool = False
    stability: float | None = None
    """How much the clusters would agree if the server had started elsewhere; None: not known."""
    choice: ChoiceOfK | None = None
    """How the number of clusters was chosen, if it was."""
    by_prototype: bool = False
    """Whether a record belongs to the cluster of the nearest prototype."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return how sure the numbers are, in sentences."""
        said = [*_certainty_words(self.sizes, self.centers)]
        if self.far_out:
            said.append(_far_out_words(self.far_out, self.unit))
        if self.assignment:
            said.append(self.assignment)
        if self.of_table:
            said.append(
                "A gap counts as its column's mean, so a column with many gaps lies nearer to the "
                "overall value than those who have it."
            )
        if self.stability is not None:
            said.append(_stability_words(self.stability))
        return (*said, *map(_stamped, self.stamps))

    @property
    def assignment(self) -> str:
        """Return by what a record is assigned to a cluster that is made of prototypes, or ""."""
        if self.by_prototype:
            return (
                f"A {self.unit} belongs to the cluster of its nearest prototype. A cluster of "
                "several may have any shape: its centre is their mean, and need not be typical of "
                "it or lie within it."
            )
        if any(cluster.n_prototypes for cluster in self.clusters):
            return (
                f"A {self.unit} belongs to the cluster of the nearest centre: prototypes were "
                "merged to find the centres, and have no say in that."
            )
        return ""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the columns that were left out."""
        return tuple(c.name for c in self.clusters[0].columns if not c.compared)

    def __str__(self) -> str:
        from dpfedc.summary.cluster_text import plain_text

        return plain_text(self)


def require_name(name: Any) -> None:
    """Say what a cluster's name must be: it is shown on terminals, on pages and in tables."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidInput(f"a cluster's name must be 1 to {MAX_NAME} printable characters")
    if name[0] in FORMULA:
        raise InvalidInput(f"a cluster's name must not start with one of {' '.join(FORMULA)}")


def _certainty_words(sizes: Certainty, centers: Certainty) -> Iterator[str]:
    if sizes == centers == Certainty.EXACT:
        yield (
            "Sizes and centres are exact values of the last round: no noise was added, so they "
            "protect nobody."
        )
        return
    if Certainty.BARS in (sizes, centers):
        yield (
            "95 % of the error bars hold the exact value for those who were in the cluster in the "
            "last round. Noise of earlier rounds had a say in who that was."
        )
    for what, certainty in (("sizes", sizes), ("centres", centers)):
        if certainty == Certainty.EXACT:
            yield f"The {what} are exact: no noise was added, so they protect nobody."
        elif certainty == Certainty.UNKNOWN:
            yield f"How much noise is in the {what} is not known: differences may be noise."


STABLE = 0.95


def _stability_words(stability: float) -> str:
    if stability >= STABLE:
        return (
            "Stable: from other starts the server comes to the same clusters, or to worse ones. "
            "Other records or other noise may still give others."
        )
    return (
        f"Not stable: other clusters fit what was released about as well, and agree with these by "
        f"{stability:.2f} only (1: the same; 0: as chance would have it). Another number of "
        "clusters may fit better."
    )


def _far_out_words(clusters: tuple[int, ...], unit: str) -> str:
    which = (
        f"Clusters {enumerated(clusters)} lie"
        if len(clusters) > 1
        else f"Cluster {clusters[0]} lies"
    )
    return (
        f"{which} far out: {unit}s that far are pulled in to a bound before they are summed, so "
        "the centre may lie too near to the middle, by more than its error bars say."
    )


def _stamped(stamp: str) -> str:
    return f'Stamped "{stamp}".'
