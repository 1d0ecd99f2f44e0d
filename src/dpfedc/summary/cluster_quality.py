"""How good clusters are, as far as that was released: sizes, costs and silhouettes, with bars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.settings import require_number
from dpfedc.summary.number_text import with_bars
from dpfedc.summary.summarizing import CERTAIN

Float = npt.NDArray[np.float64]

STANDS_OUT = 3.0
"""A cluster of at least so many standard deviations of the noise in its count has means."""
MAX_SIZE = 1e150
"""Of any number; larger ones cannot be squared."""
HEAD = ("cluster", "size", "cost", "silhouette")


@dataclass(frozen=True)
class Measured:
    """A released number, and the standard deviation of the noise in it (0: it is exact)."""

    value: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """Return between which values the exact number lies, with a certainty of 95 %."""
        return self.value - CERTAIN * self.error, self.value + CERTAIN * self.error

    def within(self, least: float, most: float) -> str:
        """Return the number with its bars in words, no end of which is impossible."""
        value, low, high = (min(max(v, least), most) for v in (self.value, *self.interval))
        return with_bars(value, low, high)


@dataclass(frozen=True)
class OneQuality:
    """A cluster: how many records, how near to it, how well apart from the others.

    `cost` and `silhouette` are means over its records; None where the cluster does not stand out
    from the noise.
    """

    size: Measured
    cost: Measured | None
    silhouette: Measured | None


@dataclass(frozen=True)
class ClusterQuality:
    """All clusters, and each of them.

    `cost` is the mean squared distance of a record to the centre or prototype that it was assigned
    by: in squared units of the data or, of a table, of its columns as the clustering sees them.
    `silhouette` is the mean of (b - a) / max(a, b), with a that distance and b the distance to the
    nearest other cluster.
    """

    cost: Measured
    silhouette: Measured
    clusters: tuple[OneQuality, ...]

    def as_plain(self) -> dict[str, Any]:
        """Return plain values, for a file or a message."""
        return {
            "cost": _plain(self.cost),
            "silhouette": _plain(self.silhouette),
            "clusters": [
                [_plain(one.size), _plain(one.cost), _plain(one.silhouette)]
                for one in self.clusters
            ],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ClusterQuality:
        """Return what `as_plain` wrote, refused unless it can be a quality."""
        clusters = plain["clusters"]
        if set(plain) != {"cost", "silhouette", "clusters"} or not isinstance(clusters, list):
            raise InvalidInput("a quality must have cost, silhouette and clusters, got others")
        return cls(
            _measured(plain["cost"]),
            _measured(plain["silhouette"]),
            tuple(_one(*one) for one in clusters),
        )

    def sentences(self, unit: str = "record") -> Iterator[str]:
        """Yield what people should know of all clusters together; `unit` is what lies in them."""
        yield (
            f"Silhouette: {self.silhouette.within(-1.0, 1.0)}. It is 1 where clusters are far "
            f"apart, 0 where {unit}s lie midway between two."
        )
        yield (
            f"Cost: {self.cost.within(0.0, math.inf)}, the mean squared distance of {unit}s to "
            "what they were assigned by."
        )

    def rows(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Return the head and the rows of a table of the clusters."""
        dash = "\N{EN DASH}"
        return HEAD, [
            [
                str(c),
                one.size.within(0.0, math.inf),
                dash if one.cost is None else one.cost.within(0.0, math.inf),
                dash if one.silhouette is None else one.silhouette.within(-1.0, 1.0),
            ]
            for c, one in enumerate(self.clusters)
        ]


def quality_from(sums: Float, noise: Float, n_records: Any, scale: Any) -> ClusterQuality:
    """Return the quality that a run's state describes.

    `sums` has a row for each cluster: records, squared distances in squares of `scale`, and
    silhouettes; `noise` is that of each column. Means over all divide by the public number of
    records; those of a cluster by its own count, which is noisy too: to first order that adds to
    the error in proportion to the mean.
    """
    k, units = len(sums), np.asarray([1.0, float(scale) ** 2, 1.0])
    sums, noise = sums * units, noise * units
    total, n = sums.sum(axis=0) / float(n_records), float(n_records)
    spread = math.sqrt(k) * noise / n
    clusters = []
    for row in sums:
        size = Measured(float(row[0]), float(noise[0]))
        means: list[Measured | None] = [None, None]
        if row[0] >= max(1.0, STANDS_OUT * noise[0]):
            means = [_ratio(row[i], row[0], noise[i], noise[0]) for i in (1, 2)]
        clusters.append(OneQuality(size, *means))
    cost, silhouette = (Measured(float(total[i]), float(spread[i])) for i in (1, 2))
    return ClusterQuality(cost, silhouette, tuple(clusters))


def _ratio(total: float, count: float, noise: float, count_noise: float) -> Measured:
    mean = total / count
    return Measured(float(mean), float(math.hypot(noise, mean * count_noise) / count))


def _plain(measured: Measured | None) -> list[float] | None:
    return None if measured is None else [measured.value, measured.error]


def _measured(plain: Any) -> Measured:
    value, error = plain
    return Measured(
        require_number("a measured value", value, least=-MAX_SIZE, most=MAX_SIZE),
        require_number("the error of a measured value", error, least=0, most=MAX_SIZE),
    )


def _one(size: Any, *means: Any) -> OneQuality:
    cost, silhouette = (None if plain is None else _measured(plain) for plain in means)
    return OneQuality(_measured(size), cost, silhouette)
