"""The coordinator's side of a round: who gets what, and how the masks of the sum come off."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

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

    `site` is the one whose secret does not come back; `is_dealer` if it must have dealt wrong
    shares, since more are there than may be missing or wrong.
    """

    def __init__(self, site: int, n_shares: int, *, needed: int, is_dealer: bool) -> None:
        super().__init__(
            f"{needed} good shares of the secret of site {site} must be there, got {n_shares}, of "
            "which too many are wrong or missing"
        )
        self.site, self.is_dealer = site, is_dealer


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
        for site in self.survivors:
            seed = self._secret(site, openings, liars, self._is_seed(site))
            add_mask(total, seed_key(self.context, site, seed), negative=True)
        view = view_of(self.sharing, self.told)
        for site in self.dropped:
            secret = self._secret(site, openings, liars, self._is_mask_key(site))
            self._take_off(total, site, secret, view)
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
    ) -> bytes:
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
        needed, c = self.circle.n_shares, self.circle.colluding_sites
        is_dealer = len(shares) >= needed + c
        raise CannotOpen(site, len(shares), needed=needed, is_dealer=is_dealer)

    def _choices(self, holders: list[int], liars: set[int]) -> Iterator[list[int]]:
        """Yield whose shares to try: first without those who were wrong before, then by chance."""
        needed = self.circle.n_shares
        if len(holders) < needed:
            return
        yield sorted(holders, key=lambda holder: holder in liars)[:needed]
        if len(holders) > needed:
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
