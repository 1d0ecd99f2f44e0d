"""The features that a schema makes of a table, as public facts for planning: no names, no data."""

from __future__ import annotations

from dataclasses import dataclass

NUMBER, GAPS, SHARES = "number", "gaps", "shares"


@dataclass(frozen=True)
class Group:
    """Features that one column became: `width` of them from `start` on.

    A "number" is one feature in [-1, 1], or NaN for a gap; with `auto` its range is found out in
    the run, and until then the feature is as it stands in the table. "gaps" is one feature that is
    1 where the feature before it is a gap. "shares" has one feature per value of a category, which
    are at least 0 and sum to 1 (all NaN: a gap). `weight` says how much the group counts.
    `typical` is what is publicly known of it, so that nothing need be released: mean and spread of
    a number, the shares of a category.
    """

    kind: str
    start: int
    width: int
    weight: float
    typical: tuple[float, ...] | None = None
    auto: bool = False

    @property
    def features(self) -> slice:
        """Return the places of the group's features."""
        return slice(self.start, self.start + self.width)


Layout = tuple[Group, ...]


def n_features(layout: Layout) -> int:
    """Return the number of features of all groups."""
    return sum(group.width for group in layout)
