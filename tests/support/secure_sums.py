"""A whole round of secure aggregation in one process, over the pure functions.

Sites may drop out at every step, and whoever is on the wire may change every message. What an
attacker makes of it: support/secure_attackers.py.
"""

import hashlib
from functools import cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpfedc.deployment.secure_aggregation.circle import Circle, usual_survivors
from dpfedc.deployment.secure_aggregation.masks import context_of
from dpfedc.deployment.secure_aggregation.server_round import SecretSum
from dpfedc.deployment.secure_aggregation.site_round import Roster, SiteRound
from dpfedc.errors import Refused

STEPS = ("keys", "shares", "upload", "agree", "open")
CONTEXT = context_of("a run", "a stage", 1, "an attempt")


@cache
def signing_key(site):
    """Return a site's own key, the same in all tests."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"%d" % site).digest())


def circle_of(n, *, c=1, least=None):
    """Return the circle of sites 0 to n - 1; as many may drop out as a plan allows by default."""
    return Circle(tuple(range(n)), least or usual_survivors(n, c), c)


def some_values(circle, n_numbers=5, seed=0):
    """Return small numbers for every site: without masks their high bytes are zero."""
    rng = np.random.default_rng(seed)
    return {site: rng.integers(2**40, size=n_numbers, dtype="<u8") for site in circle.sites}


class Remembering(SiteRound):
    """A site whose own secrets can be looked at, and be stolen, after the round."""

    def _forget(self):
        self._held.clear()


class Wire:
    """What carries messages: by step, what becomes of one on its way, f(round, site, message).

    None is a message that is lost.
    """

    def __init__(self, *, to_site=None, from_site=None):
        self._to_site, self._from_site = to_site or {}, from_site or {}

    def to_site(self, game, step, site, message):
        return self._to_site.get(step, _as_it_is)(game, site, message)

    def from_site(self, game, step, site, answer):
        return self._from_site.get(step, _as_it_is)(game, site, answer)


def _as_it_is(_game, _site, message):
    return message


class Round:
    """One round; `gone` has for a step the sites that answer neither it nor what follows."""

    def __init__(self, values, circle, *, context=CONTEXT, told=b"", wire=None, gone=None, order=0):
        self.values, self.circle, self.context, self.told = values, circle, context, told
        self.wire, self.gone, self.rng = wire or Wire(), gone or {}, np.random.default_rng(order)
        self.public_keys = {i: signing_key(i).public_key().public_bytes_raw() for i in values}
        self.sites, self.heard, self.kept, self.refused = {}, {}, {}, {}
        """Objects of sites; what they were told and the shares they got; why they refused."""

    def ask(self, step, site, message):
        """Return a site's answer, or None if there is none."""
        if any(site in self.gone.get(s, ()) for s in STEPS[: STEPS.index(step) + 1]):
            return None
        message = self.wire.to_site(self, step, site, message)
        try:
            answer = None if message is None else self._answer(step, site, message)
        except Refused as error:
            self.refused[step, site] = str(error)
            return None
        return None if answer is None else self.wire.from_site(self, step, site, answer)

    def _answer(self, step, site, message):
        if step == "keys":
            roster = Roster(self.circle, site, self.public_keys)
            self.sites[site] = Remembering(message, roster, signing_key(site).sign)
            return self.sites[site].bundle
        own = self.sites[site]
        if step == "shares":
            return own.shares(*message)
        if step == "upload":
            own.receive(*message)
            self.heard[step, site], self.kept[site] = message, dict(own._held)
            return own.masked(self.values[site])
        if step == "agree":
            signature = own.agreed(message)
            self.heard[step, site] = message
            return signature
        return own.opened(message, persist=lambda: None)

    def _all(self, step, messages):
        """Ask sites in any order; return their answers in order."""
        order = self.rng.permutation(list(messages)).tolist()
        found = {site: self.ask(step, site, messages[site]) for site in order}
        return {site: found[site] for site in sorted(found) if found[site] is not None}

    def play(self, until="open"):
        """Play the steps in order, as an honest coordinator does."""
        near = self.circle.neighbors
        self.bundles = self._all("keys", dict.fromkeys(self.circle.sites, self.context))
        having = list(self.bundles)
        keys = {i: {j: self.bundles[j] for j in near(i, self.bundles)} for i in having}
        self.boxes = self._all("shares", {i: (having, keys[i]) for i in having})
        self.sharing = list(self.boxes)
        boxes = {i: {j: self.boxes[j][i] for j in near(i, self.boxes)} for i in self.sharing}
        asked = {i: (self.sharing, boxes[i], self.told) for i in self.sharing}
        self.uploads = self._all("upload", asked)
        self.survivors = list(self.uploads)
        if until == "upload":
            return self
        self.signatures = self._all("agree", dict.fromkeys(self.survivors, self.survivors))
        if until == "open":
            self.openings = self._all("open", dict.fromkeys(self.signatures, self.signatures))
        return self

    def secret_sum(self):
        """Return the round as the coordinator has it after the uploads."""
        parts = (self.bundles, tuple(self.sharing), tuple(self.survivors), self.told)
        return SecretSum(self.context, self.circle, *parts)

    def opened(self):
        """Return the sum as the coordinator opens it, and who gave wrong shares."""
        return self.secret_sum().opened(self.uploads, self.openings)

    def true_sum(self, sites=None):
        """Return the sum of the values themselves, modulo 2^64."""
        return np.sum([self.values[i] for i in sites or self.survivors], axis=0, dtype="<u8")
