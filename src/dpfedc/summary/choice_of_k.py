"""How many clusters were chosen, from which curve, and how clear the choice is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpfedc.errors import InvalidInput
from dpfedc.settings import require_integer, require_number

MIN_STEP = 0.1
"""A choice is clear if links fall by so much: on uniform and on normal records they fell by less
than half of that, between clusters that touch by more (docs/decisions/0017-any-shape.md)."""
MAX_POINTS = 1000


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
    gap in the records; beyond it, from a cut through a cloud of them.
    """

    n_clusters: int
    step: float
    curve: tuple[KPoint, ...]

    @property
    def clear(self) -> bool:
        """Return whether the records support the choice."""
        return self.step >= MIN_STEP

    def as_plain(self) -> dict[str, Any]:
        """Return plain values, for a file or a message."""
        return {
            "n_clusters": self.n_clusters,
            "step": self.step,
            "curve": [list(asdict(point).values()) for point in self.curve],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ChoiceOfK:
        """Return what `as_plain` wrote, refused unless it can be a choice."""
        curve = plain["curve"]
        if set(plain) != {"n_clusters", "step", "curve"} or not isinstance(curve, list):
            raise InvalidInput("a choice of k must have n_clusters, step and curve, got others")
        if len(curve) > MAX_POINTS:
            raise InvalidInput(f"curve must have at most {MAX_POINTS} points, got {len(curve)}")
        return cls(
            require_integer("n_clusters", plain["n_clusters"], least=1),
            require_number("step", plain["step"], least=0),
            tuple(_point(*point) for point in curve),
        )

    def sentences(self) -> Iterator[str]:
        """Yield what people should know of the choice."""
        low, high = self.curve[0].n_clusters, self.curve[-1].n_clusters
        yield f"Number of clusters: {self.n_clusters}, chosen from {low} to {high}."
        if self.clear:
            yield (
                f"The choice is clear: links between clusters fall by {self.step:.2f} there "
                f"(from {MIN_STEP:g} on it is clear)."
            )
        else:
            yield (
                f"The choice is not clear: links fall by {self.step:.2f} only, expected at least "
                f"{MIN_STEP:g}. The records may have no clusters, or such as overlap."
            )


def choice_from(n_clusters: int, step: float, numbers: Any, links: Any, errors: Any) -> ChoiceOfK:
    """Return the choice that arrays of a run's state describe; NaN stands for what is not known."""
    points = zip(numbers, links, errors, strict=True)
    curve = tuple(KPoint(int(k), _known(link), _known(error)) for k, link, error in points)
    return ChoiceOfK(n_clusters, float(step), curve)


def _known(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _point(n_clusters: Any, link: Any, error: Any) -> KPoint:
    values = (None if v is None else require_number("a link", v, least=-1e9) for v in (link, error))
    return KPoint(require_integer("n_clusters", n_clusters, least=1), *values)
