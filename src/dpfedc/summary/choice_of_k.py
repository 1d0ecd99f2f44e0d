"""How many clusters were chosen, from which curve, and how clear the choice is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpfedc.errors import InvalidInput
from dpfedc.settings import require_integer, require_number
from dpfedc.summary.summarizing import CERTAIN

MIN_STEP = 0.1
"""No choice is clear where links fall by less than that (docs/decisions/0017-any-shape.md)."""
MAX_POINTS, MAX_LINK = 1000, 1e9
"""Of a curve that comes from elsewhere."""


FIELDS = {"n_clusters", "step", "needed", "curve"}


@dataclass(frozen=True)
class KPoint:
    """One number of clusters: how strongly the closest two of them hang together.

    0 is a gap between them; from about 0.2 on they are parts of one cloud of records. `error` is
    the standard deviation of the noise in it. None where there were not so many clusters to make.
    """

    n_clusters: int
    link: float | None
    error: float | None


@dataclass(frozen=True)
class ChoiceOfK:
    """The number of clusters that was chosen, and why.

    `step` is how much the links fall at the chosen number: up to it, one more cluster comes from a
    gap in the records; beyond it, from a cut through a cloud of them. Records without clusters
    reach `needed` in one of twenty runs, by noise alone.
    """

    n_clusters: int
    step: float
    needed: float
    curve: tuple[KPoint, ...]

    HEAD = ("clusters", "link of the closest two", "")
    """Of `rows`."""

    @property
    def clear(self) -> bool:
        """Return whether the records support the choice."""
        return self.step >= self.needed

    def as_plain(self) -> dict[str, Any]:
        """Return plain values, for a file or a message."""
        return {
            "n_clusters": self.n_clusters,
            "step": self.step,
            "needed": self.needed,
            "curve": [list(asdict(point).values()) for point in self.curve],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ChoiceOfK:
        """Return what `as_plain` wrote, refused unless it can be a choice."""
        curve = plain["curve"]
        if set(plain) != FIELDS or not isinstance(curve, list):
            raise InvalidInput(f"a choice of k must have {', '.join(sorted(FIELDS))}, got others")
        if not 1 <= len(curve) <= MAX_POINTS:
            raise InvalidInput(f"curve must have 1 to {MAX_POINTS} points, got {len(curve)}")
        points = tuple(_point(*point) for point in curve)
        low, high = points[0].n_clusters, points[-1].n_clusters
        if [point.n_clusters for point in points] != list(range(low, low + len(points))):
            raise InvalidInput("curve must have every number of clusters once, in order")
        return cls(
            require_integer("n_clusters", plain["n_clusters"], least=low, most=high),
            require_number("step", plain["step"], least=0, most=MAX_LINK),
            require_number("needed", plain["needed"], least=MIN_STEP, most=MAX_LINK),
            points,
        )

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the curve as rows of a table, under HEAD."""
        return [
            (str(p.n_clusters), _link_text(p), "chosen" * (p.n_clusters == self.n_clusters))
            for p in self.curve
        ]

    def paragraphs(self) -> Iterator[str]:
        """Yield what people should know of the choice, each with its subject and a colon."""
        low, high = self.curve[0].n_clusters, self.curve[-1].n_clusters
        word = "clear" if self.clear else "not clear"
        end = ""
        if self.n_clusters == high:
            end = " It is the largest number that was allowed, so there may be more."
        yield (
            f"Number: {self.n_clusters} clusters, chosen from {low} to {high}. The choice is "
            f"{word}.{end}"
        )
        yield f"Why: {rise_in_words(self.n_clusters, self.step, self.needed)}."


def rise_in_words(n_clusters: int, step: float, needed: float) -> str:
    """Return what speaks for so many clusters, and whether that is enough."""
    rise = (
        f"with more than {n_clusters} clusters the closest two hang together by {step:.2f} more "
        "than with so many or fewer"
    )
    if step >= needed:
        return f"{rise}; from {needed:.2f} on that is clear"
    return (
        f"{rise}, needed at least {needed:.2f}. The records may have no clusters, or such as "
        f"overlap; {n_clusters} is the best guess"
    )


def choice_from(
    n_clusters: int, step: float, needed: float, numbers: Any, links: Any, errors: Any
) -> ChoiceOfK:
    """Return the choice that arrays of a run's state describe; NaN stands for what is not known."""
    points = zip(numbers, links, errors, strict=True)
    curve = tuple(KPoint(int(k), _known(link), _known(error)) for k, link, error in points)
    return ChoiceOfK(n_clusters, float(step), float(needed), curve)


def _link_text(point: KPoint) -> str:
    """Return a link with its 95 % error bar."""
    if point.link is None:
        return "not so many to make"
    error = f" ± {CERTAIN * point.error:.2f}" if point.error else ""
    return f"{round(point.link, 2) + 0.0:.2f}{error}"  # + 0.0: no "-0.00"


def _known(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _point(n_clusters: Any, link: Any, error: Any) -> KPoint:
    return KPoint(
        require_integer("n_clusters", n_clusters, least=1, most=10**6),
        None if link is None else require_number("a link", link, least=-MAX_LINK, most=MAX_LINK),
        None if error is None else require_number("an error", error, least=0, most=MAX_LINK),
    )
