"""A server that deviates, and sites that help it, learn nothing beyond the sum of the others.

Every attack is played twice: on the product, where it fails, and with a protection taken out, where
the very same attack succeeds. What an attack does not learn is not only another number than the
true one, but uniform noise.
"""

import itertools
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from dpfedc.deployment import keys
from dpfedc.deployment.secure_aggregation import circle as circle_module
from dpfedc.deployment.secure_aggregation import masks, server_round, site_round
from dpfedc.deployment.secure_aggregation.circle import Circle
from dpfedc.deployment.secure_aggregation.masks import BoxMaker, Bundle, context_of
from dpfedc.deployment.secure_aggregation.server_round import CannotOpen, SecretSum
from dpfedc.deployment.secure_aggregation.shamir import PRIME, _weights, shared
from dpfedc.deployment.secure_aggregation.site_round import Roster, SiteRound
from support.planting import plant
from support.secure_attackers import FALSE_ALARMS, deceived, learned, looks_uniform, loot, stripped
from support.secure_sums import CONTEXT, Round, Wire, circle_of, signing_key, some_values

MANY = 20_000
"""Numbers of an upload where it is asked whether what is left of it is uniform."""
BEFORE = context_of("a run", "a stage", 1, "an attempt before")


@pytest.fixture(autouse=True)
def the_same_keys_in_every_run(monkeypatch):
    """So that statistical tests, which fail once in a million draws, never fail again."""
    rng = np.random.default_rng(20240917)

    def new_secret():
        return X25519PrivateKey.from_private_bytes(rng.bytes(32))

    monkeypatch.setattr(site_round, "new_secret", new_secret)
    monkeypatch.setattr(os, "urandom", rng.bytes)


def nothing(*_, **__):
    """Stand for a check that is taken out."""


def comes_out(game, sites, colluders=()):
    """Return whether the attacker has the sum of these sites' values; if not, it has noise."""
    found = learned(game, sites, colluders)
    if np.array_equal(found, game.true_sum(sites)):
        return True
    assert looks_uniform(found)
    return False


# A round that is played again.


def replayed(victim=2):
    """Open a sum, then ask for the same without one site: its mask key lies on its seed."""
    circle = circle_of(7)
    game = Round(some_values(circle, MANY), circle).play()
    seeds, secrets = loot(game)
    others = [i for i in game.survivors if i != victim]
    signatures = {i: s for i in others if (s := game.ask("agree", i, others))}
    signatures = signatures or game.signatures
    game.openings = {i: o for i in others if (o := game.ask("open", i, signatures))}
    more_seeds, more_secrets = loot(game)
    found = stripped(game, victim, seeds | more_seeds, secrets | more_secrets)
    return game, np.array_equal(found, game.values[victim])


def test_a_site_agrees_once_and_opens_once():
    game, is_bare = replayed()
    assert not is_bare
    assert game.openings == {}
    assert "'agreed' of a round must come once" in game.refused["agree", 0]
    assert "'opened' of a round must come once" in game.refused["open", 0]


def test_a_site_that_opens_twice_is_found_out(monkeypatch):
    """Planted: steps may come again, and shares are kept after they were sent."""
    right = SiteRound.opened

    def kept(self, *args, **named):
        held = dict(self._held)
        found = right(self, *args, **named)
        self._held.update(held)
        return found

    monkeypatch.setattr(SiteRound, "_require_turn", nothing)
    assert not replayed()[1]  # shares that are gone cannot be sent
    monkeypatch.setattr(SiteRound, "opened", kept)
    assert replayed()[1]


# Both masks of one site.


def with_both(n_told_all, victim=0, colluder=7):
    """Tell some sites that the victim is in the sum, and the others that it is not."""
    circle = circle_of(8, least=5)
    lost = {i: [victim] for i in range(n_told_all, 7)}
    game = deceived(some_values(circle, MANY), circle, lost=lost, colluders=[colluder])
    return comes_out(game, [victim], [colluder])


@pytest.mark.parametrize("n_told_all", range(1, 8))
def test_nobody_gets_both_masks_of_a_site(n_told_all):
    """However many sites are told which: of 8 sites 5 must agree, and 5 shares are needed."""
    assert not with_both(n_told_all)


def test_too_small_a_quorum_gives_both_masks(monkeypatch):
    """Planted: half of the sites are enough, to agree and to bring secrets back."""
    plant(monkeypatch, circle_module.least_survivors, lambda right, n, c: n // 2)
    assert with_both(3)


def test_colluders_who_are_not_reckoned_with_give_both_masks(monkeypatch):
    """Planted: a majority is enough, as if nobody colluded; two of nine sites do."""

    def attack():
        circle = circle_of(9, c=2, least=6)
        lost = {i: [0] for i in range(3, 7)}
        game = deceived(some_values(circle, MANY), circle, lost=lost, colluders=[7, 8])
        return comes_out(game, [0], [7, 8])

    assert not attack()
    plant(monkeypatch, circle_module.least_survivors, lambda right, n, c: right(n, 0))
    assert attack()


# Different survivors for different sites.

TRIO = {-3: [0], -2: [0, 1], -1: [0, 1], 0: [1, 2], 1: [0, 2], 2: [0, 1], 3: [1, 2], 4: [1, 2],
        5: [2]}  # fmt: skip
"""Whom sites near three neighbours are told to be lost: two at most, and each by five of six."""


def arc_by_survivors(forge=None):
    """Cut 24 sites into two arcs of 9: two may drop out, but each site is told of other two."""
    circle = circle_of(24, least=22)
    assert (circle.n_holders, circle.n_shares, circle.n_signatures) == (7, 5, 13)
    lost = {(at + near) % 24: [at + i for i in out] for at in (0, 12) for near, out in TRIO.items()}
    values = some_values(circle, MANY)
    game = deceived(values, circle, lost=lost, colluders=[7])
    if forge:
        game.wire = Wire()
        found = {i: game.ask("open", i, forge(game, i)) for i in game.sites}
        game.openings |= {i: opening for i, opening in found.items() if opening}
    return game, comes_out(game, range(3, 12)) or comes_out(game, range(15, 24))


def test_different_survivors_are_agreed_on_by_nobody():
    game, is_out = arc_by_survivors()
    assert not is_out
    assert game.openings == {}
    refusals = [words for (step, _), words in game.refused.items() if step == "open"]
    assert len(refusals) == 24
    assert all("must be signed by 13 sites" in words for words in refusals)


def test_without_agreement_arcs_come_out(monkeypatch):
    """Planted: a site opens what it was told, whoever else was told it."""
    monkeypatch.setattr(SiteRound, "_require_agreed", nothing)
    assert arc_by_survivors()[1]


def forged(game, site):
    """Return 13 signatures, of which the server has made all."""
    return dict.fromkeys(game.heard["agree", site][:13], bytes(64))


def copied(game, site):
    """Return one signature thirteen times."""
    return dict.fromkeys(game.heard["agree", site][:13], game.signatures[site])


def of_others(game, site):
    """Return the signatures of 13 sites under whatever they have agreed on."""
    return {i: game.signatures[i] for i in game.heard["agree", site][:13]}


def of_another_attempt(game, site):
    """Return good signatures under the same sites, of a round before."""
    sharing, survivors = game.heard["upload", site][0], game.heard["agree", site]
    content = masks.survivors_content(BEFORE, sharing, survivors)
    return {i: signing_key(i).sign(content) for i in survivors[:13]}


def of_strangers(game, site):
    """Return signatures of sites that are in no roster, under what the site was told."""
    sharing, survivors = game.heard["upload", site][0], game.heard["agree", site]
    content = masks.survivors_content(game.context, sharing, survivors)
    return {i: signing_key(i).sign(content) for i in range(24, 37)}


FORGED = [forged, copied, of_others, of_another_attempt, of_strangers]


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_signatures_that_are_not_the_sites_own_open_nothing(forge, monkeypatch):
    game, is_out = arc_by_survivors(forge)
    assert not is_out
    assert game.openings == {}
    # Planted: signatures are not looked at, whosever they are.
    if forge is of_strangers:
        monkeypatch.setattr(SiteRound, "_require_agreed", nothing)
    plant(monkeypatch, keys.is_signature, lambda *_: True)
    assert arc_by_survivors(forge)[1]


# Different sharing sets for different sites.

CUTS = {
    0: (range(6, 14), [], [5, 14], {6: [3, 4], 7: [4], 12: [15], 13: [15, 16]}),
    2: (range(6, 18), [5, 18], [4, 19], {6: [2, 3], 7: [3], 16: [20], 17: [20, 21]}),
}
"""By c: an arc, who colludes, who drops out by agreement, and whom sites at its ends never see."""


def arc_by_sharing(c):
    """Cut an arc of 8 or 12 sites out of 24, of which 22 must survive.

    Masks over its ends are not there (the inner site was told that the outer one had not shared),
    or follow from the mask key of an outer site that has dropped out or colludes. All others agree
    on one set of survivors.
    """
    arc, colluders, dropped, unshared = CUTS[c]
    circle = circle_of(24, c=c, least=22)
    lost = dict.fromkeys(circle.sites, dropped)
    values = some_values(circle, MANY)
    game = deceived(values, circle, unshared=unshared, lost=lost, colluders=colluders)
    assert len(game.openings) == 24 - len(unshared) - len(dropped)  # the agreement holds
    assert set(loot(game, colluders)[0]) >= set(arc)
    return comes_out(game, arc, colluders)


@pytest.mark.parametrize("c", CUTS)
def test_different_sharing_sets_cut_no_arc_out(c, monkeypatch):
    assert not arc_by_sharing(c)
    # Planted: the masks do not depend on what a site was told.
    plant(monkeypatch, masks.view_of, lambda right, *_: b"")
    assert arc_by_sharing(c)


def arc_by_dropouts():
    """Let two sites drop out, at the ends of an arc; nobody is told anything wrong."""
    circle = circle_of(24, c=0, least=22)
    game = Round(some_values(circle, MANY), circle, gone={"upload": {5, 14}}).play()
    total, _ = game.opened()
    np.testing.assert_array_equal(total, game.true_sum())
    return comes_out(game, range(6, 14))


def test_dropouts_cut_no_arc_out(monkeypatch):
    assert not arc_by_dropouts()
    # Planted: a site has one neighbour on either side.
    monkeypatch.setattr(Circle, "_reach", 1)
    assert arc_by_dropouts()


# Fewer than must survive, and sites that do not exist.


def of_eight(padded):
    """Ask for the sum of 8 sites out of 10, where 9 must survive; list another one with them."""
    circle = circle_of(10)
    to_site = {
        "shares": lambda _, __, message: (sorted([*message[0], *padded]), message[1]),
        "upload": lambda _, __, message: (sorted([*message[0], *padded]), *message[1:]),
        "agree": lambda _, __, sites: sorted([*sites, *padded]),
    }
    values, wire = some_values(circle, MANY), Wire(to_site=to_site)
    game = Round(values, circle, wire=wire, gone={"keys": {0, 5}}).play()
    return game, len(game.openings) == 8 and comes_out(game, game.survivors)


@pytest.mark.parametrize("padded", [(), (10,), (2**63,)])
def test_a_sum_of_fewer_than_must_survive_does_not_come_out(padded, monkeypatch):
    """Sites that are not in the roster are refused, and so not counted."""
    game, is_out = of_eight(padded)
    assert not is_out
    assert {step for step, _ in game.refused} == {"shares"}
    words = "sites of the step before" if padded else "must be 9 sites at least, got 8"
    assert words in game.refused["shares", 1]
    # Planted: lists of sites are taken as they come.
    monkeypatch.setattr(SiteRound, "_members", lambda self, what, sites, within: list(sites))
    assert of_eight(padded)[1]


def of_eight_with_a_ghost():
    """List a site among the survivors that had keys, but dropped out before it shared."""
    circle = circle_of(10)
    wire = Wire(to_site={"agree": lambda _, __, sites: [0, *sites]})
    values, gone = some_values(circle, MANY), {"shares": {0}, "upload": {5}}
    game = Round(values, circle, wire=wire, gone=gone).play()
    return game, len(game.openings) == 8 and comes_out(game, game.survivors)


def test_sites_that_have_dropped_out_do_not_come_back_to_be_counted(monkeypatch):
    game, is_out = of_eight_with_a_ghost()
    assert not is_out
    assert {step for step, _ in game.refused} == {"agree"}
    assert all("must be sites of the step before" in words for words in game.refused.values())
    # Planted: survivors need not have shared.
    right = SiteRound._members
    monkeypatch.setattr(
        SiteRound,
        "_members",
        lambda self, what, sites, _: right(self, what, sites, self.roster.circle.sites),
    )
    assert of_eight_with_a_ghost()[1]


def with_invented(n_invented):
    """Let some of five sites of the roster be the server's own, and try for both masks of one."""
    circle, invented = circle_of(5), range(5 - n_invented, 5)
    lost = {i: [0] for i in range(1, 5 - n_invented)}
    values = some_values(circle, MANY)
    game = deceived(values, circle, lost=lost, colluders=list(invented))
    return comes_out(game, [0], invented)


def test_sites_that_the_server_has_invented_count_among_those_who_collude():
    """In the roster they are sites like others, and one of five may collude."""
    assert not with_invented(1)
    assert with_invented(3)  # what the pins of peers' keys are for


# Keys that are not the sites' own.

STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
NOT_THEIRS = {
    "of the server": lambda roster: SiteRound(CONTEXT, roster, STRANGER.sign),
    "of another site": lambda roster: SiteRound(CONTEXT, roster, signing_key(77).sign),
    "of another attempt": lambda r: SiteRound(BEFORE, r, signing_key(r.site).sign),
}


def in_between(make, victim=1):
    """Show a victim other keys in the names of all its neighbours, and open its boxes for them."""
    circle = circle_of(5)
    fake = {i: make(Roster(circle, i, {})) for i in circle.neighbors(victim)}
    boxes = {i: BoxMaker(CONTEXT, i, f._box_secret, f.bundle) for i, f in fake.items()}

    def shown(_, site, message):
        return (message[0], {i: f.bundle for i, f in fake.items()}) if site == victim else message

    def sealed(game, site, message):
        if site != victim:
            return message
        shares, seen = (bytes(40), bytes(40)), game.bundles[victim]
        return message[0], {i: b.sealed(victim, seen, shares) for i, b in boxes.items()}, b""

    wire = Wire(to_site={"shares": shown, "upload": sealed})
    game = Round(some_values(circle, MANY), circle, wire=wire).play(until="upload")
    if victim not in game.uploads:
        return game, False
    sent, bundle = game.boxes[victim], game.bundles[victim]
    game.kept = {i: {victim: b.opened(victim, bundle, sent[i])} for i, b in boxes.items()}
    game.sites, game.openings = fake, {}
    return game, comes_out(game, [victim], list(fake))


@pytest.mark.parametrize("whose", NOT_THEIRS)
def test_keys_that_are_not_the_peers_own_for_this_attempt_are_refused(whose, monkeypatch):
    game, is_out = in_between(NOT_THEIRS[whose])
    assert not is_out
    assert "the keys of site 0 must be signed by it for this round" in game.refused["shares", 1]
    # Planted: signatures of keys are not looked at.
    monkeypatch.setattr(Bundle, "is_of", lambda *_: True)
    assert in_between(NOT_THEIRS[whose])[1]


def two_faced(peer=4, victim=1):
    """Let a colluding site sign two sets of keys, and show one of them to the victim only."""
    circle = circle_of(5)

    def shown(game, site, message):
        if site != victim:
            return message
        own = Bundle.from_bytes(game.bundles[peer])
        parts = own.box_key, new_public_key(), own.commitment
        signature = signing_key(peer).sign(masks.bundle_content(CONTEXT, peer, *parts))
        return message[0], {**message[1], peer: Bundle(*parts, signature).to_bytes()}

    wire = Wire(to_site={"shares": shown})
    return Round(some_values(circle), circle, wire=wire).play()


def new_public_key():
    return masks.new_secret().public_key().public_bytes_raw()


def test_a_box_does_not_open_if_its_two_sites_saw_different_keys(monkeypatch):
    game = two_faced()
    assert "the box of site 4 does not open" in game.refused["upload", 1]
    assert "the box of site 1 does not open" in game.refused["upload", 4]
    assert 1 not in game.uploads
    # Planted: boxes do not depend on the keys that were shown.
    plant(monkeypatch, masks._box_info, lambda right, *args: right(*args[:3], b"", b""))
    assert 1 in two_faced().uploads


def sent_back(victim=1):
    """Give a site the boxes that it has sealed itself, as if they were its neighbours'."""
    circle = circle_of(5)

    def own(game, site, message):
        return (message[0], game.boxes[site], message[2]) if site == victim else message

    return Round(some_values(circle), circle, wire=Wire(to_site={"upload": own})).play()


def test_a_box_that_is_sent_back_does_not_open(monkeypatch):
    """Each way has a key of its own, which seals one box."""
    assert "does not open" in sent_back().refused["upload", 1]

    def both_ways(right, context, sender, receiver, sent, received):
        return right(context, *sorted((sender, receiver)), *sorted((sent, received)))

    plant(monkeypatch, masks._box_info, both_ways)
    assert 1 in sent_back().uploads


# Different broadcasts.


def told_another(victim=2):
    """Send one site another broadcast than the others."""
    circle = circle_of(5)
    wire = Wire(to_site={"upload": lambda _, i, m: (*m[:2], b"another") if i == victim else m})
    game = Round(some_values(circle, MANY), circle, told=b"a broadcast", wire=wire).play()
    total, _ = game.opened()
    if np.array_equal(total, game.true_sum()):
        return True
    assert looks_uniform(total)
    return comes_out(game, [victim]) or comes_out(game, [0, 1, 3, 4])


def test_a_site_that_gets_another_broadcast_spoils_the_sum(monkeypatch):
    """So nobody can be asked another question than the others."""
    assert not told_another()
    plant(monkeypatch, masks.view_of, lambda right, sharing, _: right(sharing, b""))
    assert told_another()


# What a dropout reveals.


def rounds_before_a_dropout(victim=2):
    """Play five rounds; in the last the victim drops out, and its mask key is opened."""
    circle = circle_of(5)
    games = []
    for t in range(1, 6):
        gone = {"upload": {victim}} if t == 5 else {}
        values = some_values(circle, MANY, seed=t)
        context = context_of("a run", "a stage", t, "an attempt")
        games.append(Round(values, circle, context=context, gone=gone).play())
        np.testing.assert_array_equal(games[-1].opened()[0], games[-1].true_sum())
    *before, last = games
    _, secrets = loot(last)
    assert set(secrets) == {victim}
    bare = []
    for game in before:
        found = stripped(game, victim, loot(game)[0], secrets)
        bare.append(np.array_equal(found, game.values[victim]))
        assert bare[-1] or looks_uniform(found)
    return bare


def test_a_dropout_opens_no_round_before(monkeypatch):
    assert rounds_before_a_dropout() == [False] * 4
    # Planted: sites have the same keys in every round; they are asked in the same order.
    kept = itertools.cycle([masks.new_secret() for _ in range(10)])
    monkeypatch.setattr(site_round, "new_secret", lambda: next(kept))
    assert rounds_before_a_dropout() == [True] * 4


def late(victim=2):
    """Count a site as lost whose upload comes late, or is said to."""
    circle, came = circle_of(5), {}

    def delayed(_, site, upload):
        if site != victim:
            return upload
        came[site] = upload
        return None

    wire = Wire(from_site={"upload": delayed})
    game = Round(some_values(circle, MANY), circle, wire=wire).play()
    np.testing.assert_array_equal(game.opened()[0], game.true_sum([0, 1, 3, 4]))
    game.uploads |= came
    seeds, secrets = loot(game)
    assert victim in secrets
    assert victim not in seeds
    found = stripped(game, victim, {**seeds, victim: bytes(32)}, secrets)
    if np.array_equal(found, game.values[victim]):
        return True
    assert looks_uniform(found)
    assert looks_uniform(stripped(game, victim, seeds, secrets))
    return False


def test_a_late_upload_of_a_dropped_site_stays_hidden(monkeypatch):
    assert not late()
    # Planted: a site's own mask does not depend on its seed.
    plant(monkeypatch, masks.seed_key, lambda right, context, i, _: right(context, i, bytes(32)))
    assert late()


# Shares that are wrong.


def changed(share):
    """Return another share that says nothing."""
    return masks.digest("another", share) + bytes(8)


WRONG = {
    "another number": lambda opening: {of: changed(share) for of, share in opening.items()},
    "of another site": lambda o: dict(zip(o, [*o.values()][1:] + [*o.values()][:1], strict=True)),
    "of one site only": lambda opening: {**opening, 0: changed(opening[0])},
    "of a lost site only": lambda opening: {**opening, 5: changed(opening[5])},
}


def with_liars(liars, wrong, c, lost=(5,)):
    """Play a round in which a site drops out and some give wrong shares."""
    n, least = {1: (7, 5), 2: (9, 6)}[c]
    circle = circle_of(n, c=c, least=least)
    from_site = {"open": lambda _, site, opening: wrong(opening) if site in liars else opening}
    wire = Wire(from_site=from_site)
    return Round(some_values(circle), circle, wire=wire, gone={"upload": lost}).play()


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("liars", "c"), [([0], 1), ([6], 1), ([1, 2], 2), ([0, 8], 2), ([3], 2)])
def test_wrong_shares_are_found_and_the_sum_is_right(liars, wrong, c, monkeypatch):
    game = with_liars(liars, WRONG[wrong], c)
    total, found = game.opened()
    np.testing.assert_array_equal(total, game.true_sum())
    matter = min(liars) < game.circle.n_shares  # the last holders' are not needed
    # Nobody is named where colluding holders could have an honest one named.
    assert bool(found) == (matter and c == 1)
    assert found <= set(liars)
    # Planted: what comes back is not compared with what was shown before.
    for name in ("_is_seed", "_is_mask_key"):
        monkeypatch.setattr(SecretSum, name, lambda *_: lambda _: True)
    total, nobody = game.opened()
    assert nobody == set()
    assert not matter or not np.array_equal(total, game.true_sum())


@pytest.mark.parametrize(("liars", "c"), [([0, 1, 2], 1), ([0, 1, 2, 3], 2)])
def test_more_liars_than_shares_to_spare_open_nothing(liars, c):
    game = with_liars(liars, WRONG["another number"], c, lost=())
    with pytest.raises(CannotOpen, match="too many are wrong or missing"):
        game.opened()
    one_less = with_liars(liars[1:], WRONG["another number"], c, lost=())
    np.testing.assert_array_equal(one_less.opened()[0], one_less.true_sum())


def test_a_liar_is_found_once(monkeypatch):
    """Then its shares are the last that are tried: only the first of seven secrets costs more."""
    tried, right = [], server_round.recovered
    monkeypatch.setattr(server_round, "recovered", lambda s: tried.append(1) or right(s))
    assert with_liars([0], WRONG["another number"], 1, lost=()).opened()[1] == {0}
    assert len(tried) - 6 == 4  # one fails, one without it, and two shares that were left over


@pytest.mark.parametrize("lost", [{}, {3}])
def test_a_lie_is_found_as_long_as_a_share_is_to_spare(lost):
    """By default there is one for each site that may drop out: of four sites, one."""
    circle = circle_of(4)
    wire = Wire(from_site={"open": lambda _, i, o: WRONG["another number"](o) if i == 0 else o})
    game = Round(some_values(circle), circle, wire=wire, gone={"upload": lost}).play()
    if lost:
        with pytest.raises(CannotOpen, match=r"3 good shares .* must be there, got 3"):
            game.opened()
    else:
        total, liars = game.opened()
        np.testing.assert_array_equal(total, game.true_sum())
        assert liars == {0}


@pytest.mark.parametrize("part", [b"", b"x", bytes(39), bytes(41), b"\xff" * 40])
def test_what_cannot_be_a_share_is_left_out(part):
    """And is no lie: another site's is found beside it, where one site may collude."""
    game = with_liars([1], WRONG["another number"], 1, lost=())
    game.openings[0] = {} if part == b"" else dict.fromkeys(game.openings[0], part)
    total, liars = game.opened()
    np.testing.assert_array_equal(total, game.true_sum())
    assert liars == {1}


def with_bad_dealer(dealt, dealer=3):
    """Play a round in which one site's boxes do not hold the shares of its secrets."""
    circle = circle_of(7, least=5)
    from_site = {"shares": lambda g, i, boxes: dealt(g, i, boxes) if i == dealer else boxes}
    return Round(some_values(circle, MANY), circle, wire=Wire(from_site=from_site)).play()


def resealed(game, dealer, to, *, of_key=bytes(40), of_seed=bytes(40)):
    """Return a box that opens, with such shares in it."""
    return game.sites[dealer]._boxes.sealed(to, game.bundles[to], (of_key, of_seed))


BAD_BOXES = {
    "noise": lambda _, __, boxes: dict.fromkeys(boxes, bytes(96)),
    "of others": lambda _, __, boxes: dict(zip(boxes, reversed(boxes.values()), strict=True)),
    "too long": lambda _, __, boxes: {i: box + b"x" for i, box in boxes.items()},
    "no numbers": lambda g, i, boxes: {to: resealed(g, i, to, of_key=b"\xff" * 40) for to in boxes},
    "of another length": lambda g, i, boxes: {
        to: resealed(g, i, to, of_seed=bytes(41)) for to in boxes
    },
}


@pytest.mark.parametrize("what", BAD_BOXES)
def test_boxes_that_hold_no_shares_are_refused_before_the_upload(what, monkeypatch):
    """And name their sender, so that the next attempt can do without it."""
    game = with_bad_dealer(BAD_BOXES[what])
    refusals = {site: words for (step, site), words in game.refused.items() if step == "upload"}
    if what != "of others":  # the box in the middle of an odd number is the right one
        assert set(refusals) == {0, 1, 2, 4, 5, 6}
    assert all("the box of site 3" in words for words in refusals.values())
    assert game.openings == {}
    if what in ("no numbers", "of another length"):
        # Planted: what is in a box is not looked at. Then the round is lost with all its uploads.
        monkeypatch.setattr(masks, "is_share", lambda _: True)
        assert len(with_bad_dealer(BAD_BOXES[what]).uploads) == 7


def test_a_dealer_of_other_shares_loses_the_round_and_nothing_comes_out(monkeypatch):
    """Boxes open and hold shares, of nothing: whose they are is known when all have uploaded."""

    def dealt(game, dealer, boxes):
        return {to: resealed(game, dealer, to, of_seed=changed(boxes[to])) for to in boxes}

    game = with_bad_dealer(dealt)
    with pytest.raises(CannotOpen, match="good shares of the secret of site 3 must be there"):
        game.opened()
    assert len(game.openings) == 7
    assert not comes_out(game, game.survivors)
    # Planted: seeds are not compared with what binds sites to them. Then noise passes for a sum.
    monkeypatch.setattr(SecretSum, "_is_seed", lambda *_: lambda _: True)
    assert looks_uniform(game.opened()[0])


def test_a_dealer_can_have_another_site_named():
    """Who gave a wrong share may have got it so: the name is a hint and no proof."""

    def dealt(game, dealer, boxes):
        return {**boxes, 0: resealed(game, dealer, 0)}

    game = with_bad_dealer(dealt)
    total, named = game.opened()
    np.testing.assert_array_equal(total, game.true_sum())
    assert named == {0}


def one_secret(n, c, least, errors, seed=bytes(range(32))):
    """Open the seed of site 0 from all its holders' shares, some of them moved by so much."""
    circle = circle_of(n, c=c, least=least)
    holders = circle.holders(0)
    shares = shared(seed, [h + 1 for h in holders], circle.n_shares)
    for h, error in errors(circle, holders).items():
        value = (int.from_bytes(shares[h + 1], "little") + error) % PRIME
        shares[h + 1] = value.to_bytes(40, "little")
    bundle = Bundle(bytes(32), bytes(32), masks.commitment(CONTEXT, 0, seed), bytes(64))
    found = SecretSum(CONTEXT, circle, {0: bundle.to_bytes()}, (0,), (0,), b"")
    openings, liars = {h: {0: shares[h + 1]} for h in holders}, set()
    assert found._secret(0, openings, liars, found._is_seed(0)) == seed
    return liars


def test_two_liars_cannot_have_an_honest_site_named():
    """Their errors cancel in a set of shares from which another one is left out.

    By plan, as here at site 3, or by chance: if sites 1 and 2 both add 1 to theirs, it is site 4.
    """

    def by_plan(circle, holders):
        without = [h for h in holders[: circle.n_shares + 1] if h != 3]
        weights = dict(zip(without, _weights(tuple(h + 1 for h in without)), strict=True))
        return {0: 1, 1: -weights[0] * pow(weights[1], -1, PRIME) % PRIME}

    named = one_secret(9, 2, 6, by_plan), one_secret(9, 2, 6, lambda *_: {1: 1, 2: 1})
    assert named == ({0, 1}, {1, 2})


def test_as_many_liars_as_may_collude_are_found_among_many_holders():
    """150 sites by default, of which three collude."""

    def last(circle, holders):
        assert (len(holders), circle.n_shares) == (35, 20)
        return dict.fromkeys(holders[19:22], 1)

    assert len(one_secret(150, 3, None, last)) == 3


# What colluding sites and the server see together.


def what_is_left(n=7, c=2, values=None, gone=None):
    """Return the honest uploads, less all masks that the server and c sites know together."""
    circle = circle_of(n, c=c)
    game = Round(values or some_values(circle, MANY), circle, gone=gone).play()
    colluders = range(n - c, n)
    seeds, secrets = loot(game, colluders)
    honest = [i for i in game.survivors if i not in colluders]
    left = {i: stripped(game, i, seeds, secrets) for i in honest}
    total = np.sum(list(left.values()), axis=0, dtype="<u8")
    np.testing.assert_array_equal(total, game.true_sum(honest))  # this much is learned
    return left


def is_hidden(left):
    """Return whether the sum of every proper part of the honest sites looks uniform."""
    parts = itertools.chain(*(itertools.combinations(left, k) for k in range(1, len(left))))
    return all(
        looks_uniform(np.sum([left[i] for i in part], axis=0, dtype="<u8")) for part in parts
    )


@pytest.mark.parametrize(
    ("n", "c", "gone"),
    [(3, 1, {}), (4, 1, {"upload": {0}}), (7, 2, {}), (7, 1, {"upload": {3}}),
     (8, 3, {"shares": {1}})],
)  # fmt: skip
def test_colluders_and_the_server_learn_the_sum_of_the_others_only(n, c, gone):
    assert is_hidden(what_is_left(n, c, gone=gone))


def test_on_a_circle_every_arc_and_every_site_stays_hidden():
    """24 sites, three collude, side by side, and two drop out."""
    left = what_is_left(24, 3, gone={"upload": {3, 4}})
    assert all(map(looks_uniform, left.values()))
    sites = list(left)
    for length in (2, 5, 9, 18):
        for start in range(0, len(sites) - length, 4):
            part = [left[i] for i in sites[start : start + length]]
            assert looks_uniform(np.sum(part, axis=0, dtype="<u8"))


def small_masks(right, total, key, *, negative=False):
    """Add masks of 32 bits."""
    mask = np.zeros_like(total)
    right(mask, key)
    np.add(total, (mask >> np.uint64(32)) * np.uint64(2**64 - 1 if negative else 1), out=total)


PLANTED = {
    "no masks between sites": (masks.add_pair_mask, nothing),
    "one mask for all pairs": (masks.pair_key, lambda *_: bytes(32)),
    "masks of 32 bits": (masks.add_mask, small_masks),
    "masks that are all the same number": (
        masks.add_mask, lambda right, total, key, *, negative=False: np.add(
            total, np.uint64(-key[0] % 2**64 if negative else key[0]), out=total)),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_masks_that_hide_too_little_are_seen(bug, monkeypatch):
    function, planted = PLANTED[bug]
    plant(monkeypatch, function, planted)
    assert not is_hidden(what_is_left())


def is_guessed(left):
    """Return whether one of 2^16 guesses of the key between two honest sites lays a value bare."""
    one = left[0][:2]
    for guess in range(2**16):
        mask = np.zeros(2, "<u8")
        masks.add_mask(mask, short_key(guess.to_bytes(2, "little")))
        if ((one - mask) < 2**40).all() or ((one + mask) < 2**40).all():
            return True
    return False


def short_key(two_bytes):
    return masks.digest("short", two_bytes)


def test_keys_that_can_be_guessed_are_seen(monkeypatch):
    """Uniform as they look, masks from 16 bits come off by trying all."""
    assert not is_guessed(what_is_left(3, 1))
    plant(monkeypatch, masks.pair_key, lambda right, *args: short_key(right(*args)[:2]))
    left = what_is_left(3, 1)
    assert is_hidden(left)
    assert is_guessed(left)


def test_a_seed_that_can_be_guessed_is_seen(monkeypatch):
    """Its commitment tells which guess is right."""

    def found():
        circle = circle_of(3)
        game = Round(some_values(circle), circle).play(until="upload")
        due = Bundle.from_bytes(game.bundles[0]).commitment
        guesses = (i.to_bytes(2, "little") + bytes(30) for i in range(2**16))
        return any(masks.commitment(game.context, 0, guess) == due for guess in guesses)

    assert not found()
    drawn = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: drawn(2) + bytes(n - 2))
    assert found()


def are_alike(one, other):
    """Return whether two samples of numbers may be of one distribution, by whole and by bytes."""
    if stats.ks_2samp(one / 2.0**64, other / 2.0**64).pvalue < FALSE_ALARMS:
        return False
    columns = zip(*(words.view(np.uint8).reshape(-1, 8).T for words in (one, other)), strict=True)
    counts = ([np.bincount(c, minlength=256) for c in pair] for pair in columns)
    return all(
        stats.chi2_contingency(np.array(pair)[:, np.sum(pair, axis=0) > 0]).pvalue > FALSE_ALARMS
        for pair in counts
    )


def two_worlds():
    """Return what is left of site 0 if it and site 1 have these values, or others of one sum."""
    circle = circle_of(7, c=2)
    values = some_values(circle, MANY)
    moved = values[0] // np.uint64(2)
    others = {**values, 0: values[0] - moved, 1: values[1] + moved}
    return [what_is_left(7, 2, world)[0] for world in (values, others)]


def test_worlds_of_the_same_sum_cannot_be_told_apart(monkeypatch):
    assert are_alike(*two_worlds())
    plant(monkeypatch, masks.add_pair_mask, nothing)
    assert not are_alike(*two_worlds())
