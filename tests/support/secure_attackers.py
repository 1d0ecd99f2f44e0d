"""What a server that may deviate, with the sites that help it, makes of a round in secret.

`deceived` plays a round in which sites are told different things. `loot` brings back all secrets of
which there are shares enough, `stripped` takes all masks off an upload that follow from them, and
`looks_uniform` says whether what is left shows anything.
"""

from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from dpfedc.deployment.secure_aggregation import masks
from dpfedc.deployment.secure_aggregation.masks import Bundle, survivors_content
from dpfedc.deployment.secure_aggregation.shamir import recovered
from support.secure_sums import Round, Wire, signing_key

FALSE_ALARMS = 1e-6
"""The rate at which uniform numbers do not look so."""


def deceived(values, circle, *, unshared=None, lost=None, colluders=(), **rest):
    """Play a round in which the server tells each site something else.

    By site: `unshared`, who has dropped out before the uploads; `lost`, who is not in the sum. It
    passes on the signatures that fit what a site was told, and colluders sign everything.
    """
    to_site = {
        "upload": partial(_unshared, unshared or {}),
        "agree": lambda _, site, sites: [i for i in sites if i not in (lost or {}).get(site, ())],
        "open": partial(_fitting, colluders),
    }
    return Round(values, circle, wire=Wire(to_site=to_site), **rest).play()


def _unshared(unshared, _, site, message):
    sharing, boxes, told = message
    out = unshared.get(site, ())
    boxes = {i: box for i, box in boxes.items() if i not in out}
    return [i for i in sharing if i not in out], boxes, told


def _fitting(colluders, game, site, signatures):
    content, survivors = _agreed_by(game, site), game.heard["agree", site]
    found = {i: s for i, s in signatures.items() if _agreed_by(game, i) == content}
    return found | {i: signing_key(i).sign(content) for i in colluders if i in survivors}


def _agreed_by(game, site):
    """Return what a site has signed of who shared and who is in the sum."""
    sharing, survivors = game.heard["upload", site][0], game.heard["agree", site]
    return survivors_content(game.context, sharing, survivors)


def loot(game, colluders=()):
    """Return the seeds and mask keys that follow from all openings and all that colluders have."""
    shares = {"seed": {}, "key": {}}
    for site, opening in game.openings.items():
        for of, share in opening.items():
            kind = "seed" if of in game.heard["agree", site] else "key"
            shares[kind].setdefault(of, {})[site + 1] = share
    for site in colluders:
        for of, (of_key, of_seed) in game.kept[site].items():
            shares["key"].setdefault(of, {})[site + 1] = of_key
            shares["seed"].setdefault(of, {})[site + 1] = of_seed
    seeds, secrets = (
        {of: _from(game, s) for of, s in kind.items() if len(s) >= game.circle.n_shares}
        for kind in shares.values()
    )
    seeds |= {i: game.sites[i]._seed for i in colluders}
    secrets |= {i: game.sites[i]._mask_secret.private_bytes_raw() for i in colluders}
    return seeds, secrets


def _from(game, shares):
    return recovered(dict(list(shares.items())[: game.circle.n_shares]))


def stripped(game, site, seeds, secrets):
    """Return a site's upload less all masks that follow from these secrets."""
    sharing, _, told = game.heard["upload", site]
    total, view = game.uploads[site].copy(), masks.view_of(sharing, told)
    if site in seeds:
        key = masks.seed_key(game.context, site, seeds[site])
        masks.add_mask(total, key, negative=True)
    for peer in game.circle.neighbors(site, sharing):
        knows, other = (peer, site) if peer in secrets else (site, peer)
        if knows in secrets:
            secret = X25519PrivateKey.from_private_bytes(secrets[knows])
            public = Bundle.from_bytes(game.bundles[other]).mask_key
            key = masks.pair_key(game.context, view, secret, public, site, peer)
            masks.add_pair_mask(total, key, site, peer, off=True)
    return total


def learned(game, sites, colluders=()):
    """Return the sum of these sites' uploads as far as the attacker can take off its masks."""
    known = loot(game, colluders)
    return np.sum([stripped(game, site, *known) for site in sites], axis=0, dtype="<u8")


def looks_uniform(words):
    """Return whether chi-square tests of all bytes, and Kolmogorov-Smirnov's, take it for noise.

    Of 20,000 numbers a byte is found out if one of its values comes half as often again.
    """
    words = np.ascontiguousarray(words.ravel(), dtype="<u8")
    due, limit = words.size / 256, stats.chi2.isf(FALSE_ALARMS / 16, 255)
    for column in words.view(np.uint8).reshape(-1, 8).T:
        if ((np.bincount(column, minlength=256) - due) ** 2).sum() / due > limit:
            return False
    return bool(stats.kstest(words / 2.0**64, "uniform").pvalue > FALSE_ALARMS / 2)
