"""The coordinator's side of a round: who gets what, and how the masks of the sum come off."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from dpfedc.deployment.secure_aggregation.circle import Circle
from dpfedc.deployment.secure_aggregation.masks import (
    Bundle,
    Words,
    add_mask,
    add_pair_mask,
    commitment,
    pair_key,
    public_of,
    seed_key,
    view_of,
)
from dpfedc.deployment.secure_aggregation.shamir import is_share, recovered
from dpfedc.errors import DPFedCError

MAX_TRIES = 2000
"""Sets of shares that are tried for one secret if some are wrong."""


class CannotOpen(DPFedCError):
    """The masks of a sum cannot be taken off: shares are missing, or too many are wrong.

    `sites` are those whose secrets do not come back, one more than may collude at most. Of these
    `dealers` must have dealt wrong shares, and `suspects` may have: others gave enough shares.
    """

    def __init__(self, failures: Collection[Failure], *, needed: int, c: int) -> None:
        first = next(iter(failures))
        super().__init__(
            f"{needed} good shares of the secret of site {first.site} must be there, got "
            f"{first.n_shares}, of which too many are wrong or missing"
        )
        self.sites = [failure.site for failure in failures]
        self.dealers = [failure.site for failure in failures if failure.is_dealer]
        self.suspects = [f.site for f in failures if f.is_suspect and not f.is_dealer]
        if len(failures) > c:  # one of them at least is honest, so that a holder lies
            self.suspects = []


@dataclass(frozen=True)
class Failure:
    """A secret that does not come back."""

    site: int
    n_shares: int
    is_dealer: bool
    """It must have dealt wrong shares: no c holders can be those who lie."""
    is_suspect: bool
    """It may have: there are enough shares without its own."""


@dataclass(frozen=True)
class SecretSum:
    """A round after its uploads: who had which keys, who shared (A), who is in the sum (B)."""

    context: bytes
    circle: Circle
    bundles: Mapping[int, bytes]
    sharing: tuple[int, ...]
    survivors: tuple[int, ...]
    told: bytes
    """What sites were told alike, beside who shared."""

    @property
    def dropped(self) -> list[int]:
        """Return the sites that shared but are not in the sum, of which masks are left in it."""
        survivors = set(self.survivors)
        return [
            site
            for site in self.sharing
            if site not in survivors and self.circle.neighbors(site, survivors)
        ]

    def lacking(self, openers: Collection[int]) -> list[int]:
        """Return the sites whose secrets cannot be brought back with the shares of these."""
        opening, needed = set(openers) & set(self.sharing), self.circle.n_shares
        due = (*self.survivors, *self.dropped)
        return [site for site in due if len(self.circle.holders(site, opening)) < needed]

    def opened(
        self, uploads: Mapping[int, Words], openings: Mapping[int, Mapping[int, bytes]]
    ) -> tuple[Words, set[int]]:
        """Return the sum of the survivors' uploads without masks, and whose shares were wrong.

        Who that is, is a hint: a site that deals wrong shares can make others look so. `openings`
        has for each site that answered its shares, by whose secret they are of.
        """
        total = np.zeros_like(next(iter(uploads.values())), dtype="<u8")
        for site in self.survivors:
            np.add(total, uploads[site], out=total)
        liars: set[int] = set()
        failures: list[Failure] = []
        needed, c = self.circle.n_shares, self.circle.colluding_sites
        view = view_of(self.sharing, self.told)
        for site in (*self.survivors, *self.dropped):
            is_in = site in self.survivors
            is_right = self._is_seed(site) if is_in else self._is_mask_key(site)
            secret = self._secret(site, openings, liars, is_right)
            if isinstance(secret, Failure):
                failures.append(secret)
                if len(failures) > c:  # more would tell no more
                    break
            elif failures:
                continue
            elif is_in:
                add_mask(total, seed_key(self.context, site, secret), negative=True)
            else:
                self._take_off(total, site, secret, view)
        if failures:
            raise CannotOpen(failures, needed=needed, c=c)
        return total, liars

    def _take_off(self, total: Words, dropped: int, secret: bytes, view: bytes) -> None:
        """Take off the masks that survivors have with a site whose own upload is not there."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        private = X25519PrivateKey.from_private_bytes(secret)
        for site in self.circle.neighbors(dropped, set(self.survivors)):
            public = Bundle.from_bytes(self.bundles[site]).mask_key
            key = pair_key(self.context, view, private, public, dropped, site)
            add_pair_mask(total, key, site, dropped, off=True)

    def _is_seed(self, site: int) -> Callable[[bytes], bool]:
        due = Bundle.from_bytes(self.bundles[site]).commitment
        return lambda seed: commitment(self.context, site, seed) == due

    def _is_mask_key(self, site: int) -> Callable[[bytes], bool]:
        due = Bundle.from_bytes(self.bundles[site]).mask_key
        return lambda secret: public_of(secret) == due

    def _secret(
        self,
        site: int,
        openings: Mapping[int, Mapping[int, bytes]],
        liars: set[int],
        is_right: Callable[[bytes], bool],
    ) -> bytes | Failure:
        """Return a site's secret, from shares of which those of colluding sites may be wrong."""
        shares = {
            holder: openings[holder][site]
            for holder in self.circle.holders(site, openings)
            if is_share(openings[holder].get(site, b""))
        }
        found = None
        for n_tried, chosen in enumerate(self._choices(list(shares), liars)):
            secret = recovered({holder + 1: shares[holder] for holder in chosen})
            if secret is None or not is_right(secret):
                continue
            if n_tried == 0:
                return secret
            found = secret
            wrong = self._wrong(shares, chosen, secret)
            if len(wrong) <= self.circle.colluding_sites:
                liars |= wrong
                break
        if found is not None:
            return found
        n, needed, c = len(shares), self.circle.n_shares, self.circle.colluding_sites
        # If the dealer is honest and c holders lie, the shares without theirs bring it back: known
        # only if it was tried for all c that there are.
        is_dealer = n >= needed + c and comb(n, c) <= MAX_TRIES
        return Failure(site, n, is_dealer, len(shares.keys() - {site}) >= needed)

    def _choices(self, holders: list[int], liars: set[int]) -> Iterator[list[int]]:
        """Yield whose shares to try: without those who were wrong before, then without any c.

        If these are too many to try, and if more than c are wrong, it goes on by chance.
        """
        needed = self.circle.n_shares
        spare = len(holders) - needed
        if spare < 0:
            return
        yield sorted(holders, key=lambda holder: holder in liars)[:needed]
        if not spare:
            return
        n_out = min(self.circle.colluding_sites, spare)
        if comb(len(holders), n_out) <= MAX_TRIES:
            for out in combinations(holders, n_out):
                yield [holder for holder in holders if holder not in out][:needed]
        if comb(len(holders), needed) <= MAX_TRIES:
            yield from map(list, combinations(holders, needed))
            return
        chance = random.Random(0)  # which are tried is no secret
        for _ in range(MAX_TRIES):
            yield chance.sample(holders, needed)

    def _wrong(self, shares: Mapping[int, bytes], chosen: list[int], secret: bytes) -> set[int]:
        """Return the holders whose shares do not go with the chosen ones, if that says something.

        With few shares to spare, colluding holders could have an honest one stand there.
        """
        spare = len(shares) - len(chosen)
        if spare < 2 * self.circle.colluding_sites - 1:
            return set()
        others = [holder for holder in shares if holder not in chosen]
        swapped = {holder: [*chosen[1:], holder] for holder in others}
        return {
            holder
            for holder, points in swapped.items()
            if recovered({h + 1: shares[h] for h in points}) != secret
        }
