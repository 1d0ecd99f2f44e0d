"""A site's side of one attempt at one round: its secrets, and what it does with them, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpfedc.deployment.secure_aggregation.circle import Circle
from dpfedc.deployment.secure_aggregation.masks import (
    KEY_BYTES,
    BoxMaker,
    Bundle,
    Words,
    add_mask,
    add_pair_mask,
    bundle_content,
    commitment,
    is_signed_by,
    new_secret,
    pair_key,
    seed_key,
    survivors_content,
    view_of,
)
from dpfedc.deployment.secure_aggregation.shamir import shared
from dpfedc.errors import DPFedCError, Refused

Sites = Sequence[int]


@dataclass(frozen=True)
class Roster:
    """Who is who in a round: the circle, this site's number, and everyone's signing key."""

    circle: Circle
    site: int
    signing_keys: Mapping[int, bytes]
    """Ed25519 public keys, 32 bytes each."""


@dataclass(eq=False, repr=False)
class SiteRound:
    """What a site keeps in memory for one attempt, and nowhere else.

    The steps come in order, each once: `shares`, `receive`, `masked`, `agreed`, `opened`. What is
    wrong with a message is a `Refused`, which changes nothing; its words depend on messages alone.
    """

    context: bytes
    roster: Roster
    sign: Callable[[bytes], bytes]
    bundle: bytes = field(init=False)
    _bundles: Mapping[int, bytes] = field(init=False, default_factory=dict)
    _having_keys: list[int] = field(init=False, default_factory=list)
    _sharing: list[int] = field(init=False, default_factory=list)
    _survivors: list[int] = field(init=False, default_factory=list)
    _held: dict[int, tuple[bytes, bytes]] = field(init=False, default_factory=dict)
    """Shares of other sites' mask keys and seeds, and of this site's own."""
    _pair_keys: dict[int, bytes] = field(init=False, default_factory=dict)
    """Of the masks with neighbours: made before the charge, since a bad key is found out there."""
    _done: str = field(init=False, default="")

    def __post_init__(self) -> None:
        site, context = self.roster.site, self.context
        self._box_secret, self._mask_secret = new_secret(), new_secret()
        self._seed = os.urandom(KEY_BYTES)
        keys = (
            self._box_secret.public_key().public_bytes_raw(),
            self._mask_secret.public_key().public_bytes_raw(),
            commitment(context, site, self._seed),
        )
        signature = self.sign(bundle_content(context, site, *keys))
        self.bundle = Bundle(*keys, signature).to_bytes()
        self._boxes = BoxMaker(context, site, self._box_secret, self.bundle)

    def shares(self, having_keys: Sites, bundles: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return a box for each neighbour with a share of this site's two secrets."""
        self._require_turn("shares", after="")
        circle, site = self.roster.circle, self.roster.site
        members = self._members("those with keys", having_keys, circle.sites)
        peers = circle.neighbors(site, set(members))
        if list(bundles) != peers:
            raise Refused("a site must get the keys of its neighbours, in order, and no others")
        for peer, data in bundles.items():
            signing_key = self.roster.signing_keys[peer]
            if not Bundle.from_bytes(data).is_of(signing_key, self.context, peer):
                raise Refused(f"the keys of site {peer} must be signed by it for this round")
        points, needed = [holder + 1 for holder in (*peers, site)], circle.n_shares
        secrets = (self._mask_secret.private_bytes_raw(), self._seed)
        of_key, of_seed = (shared(secret, points, needed) for secret in secrets)
        boxes = {
            peer: self._boxes.sealed(peer, bundles[peer], (of_key[peer + 1], of_seed[peer + 1]))
            for peer in peers
        }
        self._held[site] = of_key[site + 1], of_seed[site + 1]
        self._having_keys, self._bundles, self._done = members, dict(bundles), "shares"
        return boxes

    def receive(self, sharing: Sites, boxes: Mapping[int, bytes], view: bytes) -> None:
        """Open the neighbours' boxes; all must open before anything is charged.

        `view` stands for what else sites must have been told alike.
        """
        self._require_turn("receive", after="shares")
        circle, site = self.roster.circle, self.roster.site
        members = self._members("those who shared", sharing, self._having_keys)
        if list(boxes) != circle.neighbors(site, set(members)):
            raise Refused("a site must get the boxes of its neighbours, in order, and no others")
        found = {p: self._boxes.opened(p, self._bundles[p], box) for p, box in boxes.items()}
        told = view_of(members, view)
        self._pair_keys = {peer: self._pair_key(peer, told) for peer in boxes}
        self._held |= found
        self._sharing, self._done = members, "receive"

    def _pair_key(self, peer: int, view: bytes) -> bytes:
        public, site = Bundle.from_bytes(self._bundles[peer]).mask_key, self.roster.site
        return pair_key(self.context, view, self._mask_secret, public, site, peer)

    def masked(self, values: Words) -> Words:
        """Return an upload that is hidden by all masks; to be charged before."""
        self._require_turn("masked", after="receive")
        if values.dtype != np.uint64:
            raise DPFedCError(f"an upload under masks must be of whole numbers, got {values.dtype}")
        self._done = "masked"
        site, total = self.roster.site, np.array(values, dtype="<u8")
        add_mask(total, seed_key(self.context, site, self._seed))
        for peer, key in self._pair_keys.items():
            add_pair_mask(total, key, site, peer)
        return total

    def agreed(self, survivors: Sites) -> bytes:
        """Return the signature under who is in the sum. A site signs once a round."""
        self._require_turn("agreed", after="masked")
        self._survivors = self._members("the survivors", survivors, self._sharing)
        self._done = "agreed"
        return self.sign(survivors_content(self.context, self._sharing, self._survivors))

    def opened(
        self, signatures: Mapping[int, bytes], *, persist: Callable[[], object]
    ) -> dict[int, bytes]:
        """Return this site's shares that open the sum on which enough sites have agreed.

        One kind for each neighbour: of its seed if it is in the sum, of its mask key if it is not.
        `persist` writes down that this site has opened the round, before a share is returned.
        """
        self._require_turn("opened", after="agreed")
        self._require_agreed(signatures)
        persist()
        self._done = "opened"
        found = {
            of: seed if of in self._survivors else key
            for of, (key, seed) in sorted(self._held.items())
        }
        self._forget()
        return found

    def _forget(self) -> None:
        """Let go of the round's secrets, which have done their work."""
        del self._seed, self._mask_secret, self._box_secret, self._boxes
        self._held.clear()
        self._pair_keys.clear()

    def _require_agreed(self, signatures: Mapping[int, bytes]) -> None:
        content = survivors_content(self.context, self._sharing, self._survivors)
        needed, n_good = self.roster.circle.n_signatures, 0
        for site, signature in signatures.items():
            if n_good == needed:
                break
            if site not in self._survivors:
                raise Refused(f"who is in the sum must be signed by sites in it, got site {site}")
            if not is_signed_by(self.roster.signing_keys[site], signature, content):
                raise Refused(f"site {site} must have signed the same survivors, got another")
            n_good += 1
        if n_good < needed:
            raise Refused(f"who is in the sum must be signed by {needed} sites, got {n_good}")

    def _members(self, what: str, sites: Sites, within: Sites) -> list[int]:
        """Return sites that are distinct, in order, enough, known, and have this one among them."""
        circle, members = self.roster.circle, [int(site) for site in sites]
        if members != sorted(set(members)) or not set(members) <= set(within):
            raise Refused(f"{what} must be sites of the step before, in order, each once")
        if self.roster.site not in members:
            raise Refused(f"{what} must have this site among them")
        if len(members) < circle.min_survivors:
            raise Refused(
                f"{what} must be {circle.min_survivors} sites at least, got {len(members)}"
            )
        return members

    def _require_turn(self, name: str, *, after: str) -> None:
        """Refuse a step out of turn, or once more."""
        if self._done != after:
            raise Refused(f"step {name!r} of a round must come once, after {after or 'keys'!r}")
