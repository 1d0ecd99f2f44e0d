"""Who holds shares of whose secrets, and how many it takes.

The sites of a round stand on a circle, in the order of their numbers. Each shares its secrets with
its neighbours: all others if they are few, else the nearest on either side. There are so many of
them that the circle stays connected whichever sites drop out or collude, as far as the plan admits
(docs/privacy-proof.md, section 15).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from dpfedc.errors import InvalidInput
from dpfedc.settings import require_integer


def least_survivors(n_sites: int, colluding_sites: int) -> int:
    """Return the fewest sites of which there cannot be two sets that both have a say.

    Two sets of so many have more than `colluding_sites` in common, so an honest one.
    """
    return (n_sites + colluding_sites) // 2 + 1


def usual_survivors(n_sites: int, colluding_sites: int) -> int:
    """Return how many must survive if a plan does not say: one site, or a tenth, may drop out."""
    return max(n_sites - max(n_sites // 10, 1), least_survivors(n_sites, colluding_sites))


@dataclass(frozen=True)
class Circle:
    """The sites of a round, by their numbers."""

    sites: tuple[int, ...]
    min_survivors: int
    colluding_sites: int

    def __post_init__(self) -> None:
        n = len(self.sites)
        if list(self.sites) != sorted(set(self.sites)) or n < 2:
            raise InvalidInput("a sum in secret must be over two sites or more, each once")
        require_integer("colluding_sites", self.colluding_sites, least=0, most=n - 1)
        least = least_survivors(n, self.colluding_sites)
        if not least <= self.min_survivors <= n:
            raise InvalidInput(
                f"min_survivors must be from {least} to {n} for {n} sites with "
                f"{self.colluding_sites} colluding, got {self.min_survivors}"
            )

    @property
    def n_signatures(self) -> int:
        """Return how many sites must agree on who is in the sum."""
        return least_survivors(len(self.sites), self.colluding_sites)

    @cached_property
    def _reach(self) -> int:
        """Return how many neighbours a site has on either side, at most."""
        may_drop_out = len(self.sites) - self.min_survivors
        return -(-(2 * may_drop_out + self.colluding_sites + 1) // 2)

    @property
    def n_holders(self) -> int:
        """Return how many sites hold shares of one site's secrets, itself included."""
        return min(2 * self._reach + 1, len(self.sites))

    @property
    def n_shares(self) -> int:
        """Return how many shares bring back a secret."""
        return least_survivors(self.n_holders, self.colluding_sites)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {site: place for place, site in enumerate(self.sites)}

    def holders(self, site: int, among: Collection[int] | None = None) -> list[int]:
        """Return who holds shares of a site's secrets: its neighbours and itself, in order."""
        n, at = len(self.sites), self._places[site]
        if self.n_holders == n:
            found = list(self.sites)
        else:
            reach = range(at - self._reach, at + self._reach + 1)
            found = sorted(self.sites[place % n] for place in reach)
        return found if among is None else [holder for holder in found if holder in among]

    def neighbors(self, site: int, among: Collection[int] | None = None) -> list[int]:
        """Return with whom a site shares its secrets, and has masks, in order."""
        return [holder for holder in self.holders(site, among) if holder != site]
