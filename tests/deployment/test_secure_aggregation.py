"""Secure aggregation as functions: shares of secrets, who holds them, and sums that are exact."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpfedc.deployment.secure_aggregation import masks, shamir
from dpfedc.deployment.secure_aggregation.circle import (
    Circle,
    least_survivors,
    usual_survivors,
)
from dpfedc.deployment.secure_aggregation.masks import (
    BOX_BYTES,
    BUNDLE_BYTES,
    Bundle,
    add_mask,
    bundle_content,
    context_of,
    key_between,
    new_secret,
    pair_key,
    view_of,
)
from dpfedc.deployment.secure_aggregation.server_round import CannotOpen
from dpfedc.deployment.secure_aggregation.shamir import PRIME, is_share, recovered, shared
from dpfedc.deployment.secure_aggregation.site_round import Roster, SiteRound
from dpfedc.errors import InvalidInput, Refused
from support import secure_sums
from support.secure_sums import (
    CONTEXT,
    STEPS,
    Round,
    Wire,
    circle_of,
    signing_key,
    some_values,
)

# Shares of secrets.

SECRETS = st.binary(min_size=32, max_size=32)
POINTS = st.lists(st.integers(1, 2000) | st.integers(1, PRIME - 1), min_size=1, unique=True)


def is_prime(n, bases=range(2, 42)):
    """Miller-Rabin; a composite number passes one base in four at most."""
    twos = ((n - 1) & -(n - 1)).bit_length() - 1
    for base in bases:
        x = pow(base, (n - 1) >> twos, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
            return False
    return True


def test_the_field_has_the_least_prime_above_all_secrets():
    assert is_prime(2**61 - 1)
    assert not is_prime(3215031751)  # passes bases 2, 3, 5 and 7
    assert PRIME == 2**256 + 297
    assert is_prime(PRIME)
    assert not any(is_prime(2**256 + k, bases=[2, 3]) for k in range(1, 297, 2))


VECTORS = [
    # f(x) = 3 x^2 + 5 x + 7
    (7, [3, 5], {1: 15, 2: 29, 3: 49, 1000: 3_005_007}),
    # f(x) = 2^256 - 1 - 2 x - x^2 = 2^256 - (x + 1)^2
    (2**256 - 1, [PRIME - 1, PRIME - 2], {1: 2**256 - 4, 2: 2**256 - 9, 17: 2**256 - 324}),
    # f(x) = 2^256 - 1 + x^2, beyond 32 bytes and around the prime
    (2**256 - 1, [1, 0], {1: 2**256, 17: 2**256 + 288, 18: 26}),
    # A threshold of one: the secret itself.
    (42, [], {1: 42, 9: 42}),
]


@pytest.mark.parametrize(("secret", "coefficients", "due"), VECTORS)
def test_shares_are_values_of_the_polynomial(secret, coefficients, due, monkeypatch):
    """Vectors by hand; randomness is drawn from the highest power down, below the prime."""
    drawn = iter(coefficients)
    limits = []
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda n: limits.append(n) or next(drawn))
    found = shared(secret.to_bytes(32, "little"), due, len(coefficients) + 1)
    assert {x: int.from_bytes(share, "little") for x, share in found.items()} == due
    assert all(len(share) == 40 for share in found.values())
    assert limits == [PRIME] * len(coefficients)
    for points in itertools.combinations(due, len(coefficients) + 1):
        assert recovered({x: found[x] for x in points}) == secret.to_bytes(32, "little")


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.data())
def test_secrets_come_back_as_from_fractions(coefficients, data):
    """Lagrange's formula in exact fractions: small polynomials never reach the prime."""
    points = data.draw(
        st.lists(st.integers(1, 300), min_size=len(coefficients), max_size=len(coefficients),
                 unique=True)
    )  # fmt: skip
    values = {x: sum(a * x**k for k, a in enumerate(coefficients)) for x in points}
    naive = sum(
        y * math.prod(Fraction(-z, x - z) for z in points if z != x) for x, y in values.items()
    )
    assert naive == coefficients[0]
    shares = {x: y.to_bytes(40, "little") for x, y in values.items()}
    assert recovered(shares) == int(naive).to_bytes(32, "little")


def interpolated(values, at):
    """Return the value at a point of the least polynomial through others, in the prime field."""
    total = 0
    for x, y in values.items():
        over = math.prod(at - z for z in values if z != x)
        under = math.prod(x - z for z in values if z != x)
        total += y * over * pow(under, PRIME - 2, PRIME)
    return total % PRIME


@given(SECRETS, POINTS, st.data())
def test_any_threshold_shares_bring_a_secret_back_and_all_lie_on_one_curve(secret, points, data):
    threshold = data.draw(st.integers(1, len(points)))
    shares = shared(secret, points, threshold)
    chosen = data.draw(st.permutations(points))[:threshold]
    assert recovered({x: shares[x] for x in chosen}) == secret
    values = {x: int.from_bytes(shares[x], "little") for x in chosen}
    for x in points:
        assert interpolated(values, x) == int.from_bytes(shares[x], "little")


@given(SECRETS, SECRETS, POINTS, st.randoms(use_true_random=False))
def test_fewer_shares_fit_every_other_secret_as_well(secret, other, points, random):
    """For any other secret there is one choice of the randomness that deals the same shares."""
    with mock.patch.object(shamir.secrets, "randbelow", random.randrange):
        seen = shared(secret, points, len(points) + 1)
    values = {0: int.from_bytes(other, "little")}
    values |= {x: int.from_bytes(share, "little") for x, share in seen.items()}
    drawn = iter(coefficients_through(values))
    with mock.patch.object(shamir.secrets, "randbelow", side_effect=drawn):
        assert shared(other, points, len(points) + 1) == seen


def coefficients_through(values):
    """Return the polynomial through points, without the constant, from the highest power down."""
    found = [0] * len(values)
    for x, y in values.items():
        basis, scale = [1], y
        for z in values:
            if z != x:  # times (X - z) / (x - z)
                lower = [-z * a for a in basis] + [0]
                basis = [(a + b) % PRIME for a, b in zip(lower, [0, *basis], strict=True)]
                scale = scale * pow(x - z, PRIME - 2, PRIME) % PRIME
        found = [(a + scale * b) % PRIME for a, b in zip(found, basis, strict=True)]
    return found[:0:-1]


def test_fewer_shares_are_distributed_alike_for_all_secrets(monkeypatch):
    """All there is to count, in the field of 11: two shares of three, 121 ways for each secret."""
    monkeypatch.setattr(shamir, "PRIME", 11)
    counted = []
    for secret in range(11):
        ways = Counter()
        for both in itertools.product(range(11), repeat=2):
            drawn = iter(both)
            monkeypatch.setattr(shamir.secrets, "randbelow", lambda _, drawn=drawn: next(drawn))
            shares = shared(secret.to_bytes(32, "little"), [3, 8], 3)
            ways[shares[3], shares[8]] += 1
        counted.append(ways)
    assert set(counted[0].values()) == {1}
    assert len(counted[0]) == 121
    assert all(ways == counted[0] for ways in counted)


@pytest.mark.parametrize("point", [0, -1, PRIME, 2 * PRIME])
def test_a_share_at_zero_is_refused(point):
    """There lies the secret."""
    with pytest.raises(InvalidInput, match="a point must be a whole number from 1 on"):
        shared(bytes(32), [1, point], 2)


@pytest.mark.parametrize(("secret", "threshold"), [(bytes(31), 2), (bytes(33), 2), (bytes(32), 0)])
def test_only_secrets_of_their_length_are_shared(secret, threshold):
    with pytest.raises(InvalidInput, match="32 bytes and a threshold of 1"):
        shared(secret, [1, 2], threshold)


def test_what_can_be_a_share():
    assert is_share((PRIME - 1).to_bytes(40, "little"))
    assert not is_share(PRIME.to_bytes(40, "little"))
    assert not is_share(bytes(39))
    assert not is_share(bytes(41))
    assert not is_share(b"")
    assert recovered({1: (2**256 - 1).to_bytes(40, "little")}) == b"\xff" * 32
    assert recovered({1: (2**256).to_bytes(40, "little")}) is None  # no secret is so large


# Who holds them.


@st.composite
def circles(draw, most=60, most_colluding=3):
    n = draw(st.integers(2, most))
    c = draw(st.integers(0, min(most_colluding, n - 1)))
    least = draw(st.integers(least_survivors(n, c), n))
    numbers = draw(st.lists(st.integers(0, 3 * most), min_size=n, max_size=n, unique=True))
    return Circle(tuple(sorted(numbers)), least, c)


def may_drop_out(circle):
    return len(circle.sites) - circle.min_survivors


@given(circles())
def test_neighbours_are_each_others_and_equally_many(circle):
    near = {site: circle.neighbors(site) for site in circle.sites}
    for site, peers in near.items():
        assert site not in peers
        assert len(peers) == circle.n_holders - 1
        assert peers == sorted(set(peers))
        assert set(peers) <= set(circle.sites)
        assert all(site in near[peer] for peer in peers)
        assert circle.holders(site) == sorted([site, *peers])
        some = set(circle.sites[::2])
        assert circle.holders(site, some) == [i for i in circle.holders(site) if i in some]
        assert circle.neighbors(site, some) == [i for i in peers if i in some]


@given(circles())
def test_numbers_of_shares_and_signatures(circle):
    n, c, out = len(circle.sites), circle.colluding_sites, may_drop_out(circle)
    assert circle.n_shares <= circle.n_holders - out  # after all dropouts enough are left
    assert circle.n_shares > c  # colluding sites alone bring nothing back
    # Two different sets that both have a say share an honest site.
    assert 2 * circle.n_shares > circle.n_holders + c
    assert 2 * circle.n_signatures > n + c
    assert circle.n_signatures <= circle.min_survivors
    assert circle.n_signatures == math.floor((n + c) / 2) + 1
    assert circle.n_shares == math.floor((circle.n_holders + c) / 2) + 1


def is_connected(circle, among):
    """Return whether these sites hang together by those who are neighbours."""
    found, todo = set(), list(among)[:1]
    while todo:
        site = todo.pop()
        found.add(site)
        todo += [i for i in circle.neighbors(site, among) if i not in found]
    return found == set(among)


@pytest.mark.parametrize("n", [3, 7, 10, 11])
@pytest.mark.parametrize("c", [0, 1, 2])
def test_a_circle_hangs_together_whoever_is_taken_out(n, c):
    """All sets of 2 D + c sites, for all D that a plan can have."""
    for least in range(least_survivors(n, c), n + 1):
        circle = circle_of(n, c=c, least=least)
        n_out = min(2 * may_drop_out(circle) + c, n - 1)
        for out in itertools.combinations(circle.sites, n_out):
            assert is_connected(circle, set(circle.sites) - set(out))


@given(circles(), st.data())
def test_larger_circles_hang_together_if_gaps_are_torn_into_them(circle, data):
    """The worst is two gaps; one neighbour fewer on either side, and they part the circle."""
    n = len(circle.sites)
    n_out = min(2 * may_drop_out(circle) + circle.colluding_sites, n - 1)
    first = data.draw(st.integers(0, n_out))
    start, at = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    places = {(start + i) % n for i in range(first)}
    places |= {(start + at + i) % n for i in range(n_out - first)}
    left = {site for place, site in enumerate(circle.sites) if place not in places}
    assert is_connected(circle, left)
    assume(circle.n_holders < n)
    half = circle.n_holders // 2
    torn = set(circle.sites) - set(circle.sites[:half])
    torn -= set(circle.sites[half + 1 : 2 * half + 1])
    assert is_connected(circle, torn) == (n == 2 * half + 1)


TABLE = [
    # sites, colluding; min_survivors, signatures, holders, shares
    ((2, 1), (2, 2, 2, 2)),
    ((3, 0), (2, 2, 3, 2)),
    ((3, 1), (3, 3, 3, 3)),
    ((4, 1), (3, 3, 4, 3)),
    ((10, 0), (9, 6, 5, 3)),
    ((10, 1), (9, 6, 5, 4)),
    ((20, 1), (18, 11, 7, 5)),
    ((100, 1), (90, 51, 23, 13)),
    ((100, 3), (90, 52, 25, 15)),
    ((1000, 1), (900, 501, 203, 103)),
]


@pytest.mark.parametrize(("given_", "due"), TABLE)
def test_the_numbers_of_plans_by_default(given_, due):
    """By hand, from the formulas of docs/decisions/0014."""
    n, c = given_
    circle = circle_of(n, c=c)
    assert usual_survivors(n, c) == due[0]
    assert (circle.n_signatures, circle.n_holders, circle.n_shares) == due[1:]


@pytest.mark.parametrize(("n", "c"), [(2, 0), (5, 1), (9, 3), (100, 1)])
def test_all_are_neighbours_if_many_may_drop_out(n, c):
    circle = circle_of(n, c=c, least=least_survivors(n, c))
    assert circle.n_holders == n or 2 * may_drop_out(circle) + c + 2 < n
    if n > 2:
        assert circle_of(n, c=c, least=n).n_holders == min(n, 2 * -(-(c + 1) // 2) + 1)
    assert circle_of(100, c=1, least=51).n_holders == 100
    assert circle_of(100, c=1, least=51).holders(7) == list(range(100))


@pytest.mark.parametrize(
    ("sites", "least", "c", "words"),
    [
        ((0, 1, 2, 3), 2, 1, "min_survivors must be from 3 to 4 for 4 sites with 1 colluding"),
        ((0, 1, 2, 3), 2, 0, "min_survivors must be from 3 to 4"),
        ((0, 1, 2, 3), 5, 1, "min_survivors must be from 3 to 4"),
        ((0, 1, 2, 3), 4, 4, "colluding_sites"),
        ((0, 1, 2, 3), 4, -1, "colluding_sites"),
        ((0, 1, 2, 3), 4, True, "colluding_sites"),
        ((0,), 1, 0, "two sites or more"),
        ((), 0, 0, "two sites or more"),
        ((0, 1, 1), 3, 1, "each once"),
        ((0, 2, 1), 3, 1, "each once"),
    ],
)
def test_circles_that_protect_nobody_are_refused(sites, least, c, words):
    with pytest.raises(InvalidInput, match=words):
        Circle(sites, least, c)


@given(st.integers(2, 400), st.integers(0, 5))
def test_as_many_may_drop_out_by_default_as_protects(n, c):
    assume(c < n)
    least = usual_survivors(n, c)
    Circle(tuple(range(n)), least, c)
    if least > least_survivors(n, c):
        assert n - least == max(1, n // 10)


@given(circles(most=30), st.randoms(use_true_random=False))
def test_after_all_dropouts_enough_holders_are_left_of_everyone(circle, random):
    left = set(random.sample(circle.sites, circle.min_survivors))
    for site in circle.sites:
        assert len(circle.holders(site, left)) >= circle.n_shares


# Sums.


def played(circle, values, **rest):
    game = Round(values, circle, told=b"a broadcast", **rest).play()
    total, liars = game.opened()
    assert liars == set()
    np.testing.assert_array_equal(total, game.true_sum())
    assert total.dtype == np.dtype("<u8")
    return game


@st.composite
def rounds(draw):
    """Rounds of 3 to 12 sites with any numbers, from which as many drop out as may."""
    n, c = draw(st.integers(3, 12)), draw(st.sampled_from([0, 1, 3]))
    assume(c < n)
    circle = circle_of(n, c=c, least=draw(st.integers(least_survivors(n, c), n)))
    out = draw(st.permutations(circle.sites))[: draw(st.integers(0, may_drop_out(circle)))]
    gone = {step: set() for step in STEPS}
    for site in out:
        gone[draw(st.sampled_from(STEPS))].add(site)
    shape = draw(st.sampled_from([(1,), (7,), (2, 3), (2, 1, 2)]))
    seed = draw(st.integers(0, 2**32))
    bits = draw(st.sampled_from([1, 40, 64]))
    rng = np.random.default_rng(seed)
    values = {
        i: rng.integers(2**bits - 1, size=shape, dtype="<u8", endpoint=True) for i in circle.sites
    }
    return circle, values, gone, seed


@settings(max_examples=40)
@given(rounds())
def test_sums_are_exact_whoever_drops_out_and_in_whichever_order(case):
    circle, values, gone, order = case
    game = played(circle, values, gone=gone, order=order)
    early = gone["keys"] | gone["shares"] | gone["upload"]
    assert game.survivors == [i for i in circle.sites if i not in early]
    assert set(game.openings) == set(circle.sites) - set().union(*gone.values())
    assert game.refused == {}


def test_two_hundred_sites_of_which_some_drop_out_at_every_step():
    circle = circle_of(200, least=190)
    gone = {"keys": {0, 1}, "shares": {2, 199}, "upload": {3, 100, 101}, "agree": {4}, "open": {5}}
    game = played(circle, some_values(circle), gone=gone)
    assert len(game.survivors) == 193
    assert len(game.secret_sum().dropped) == 3


@pytest.mark.parametrize("n_numbers", [1, 10**6])
def test_one_number_and_a_million(n_numbers):
    circle = circle_of(4)
    played(circle, some_values(circle, n_numbers), gone={"upload": {2}})


def test_numbers_wrap_around():
    """Signed numbers come back as they are, if their sum is within 64 bits."""
    circle = circle_of(3)
    signed = {0: [-1, 2**62], 1: [-(2**63), 2**62 - 1], 2: [5, -(2**63)]}
    values = {i: np.array(v, dtype=np.int64).view("<u8") for i, v in signed.items()}
    total, _ = played(circle, values).opened()
    assert total.view(np.int64).tolist() == [4 - 2**63, -1]


def test_uploads_are_not_changed_in_place():
    circle = circle_of(3)
    values = some_values(circle)
    before = {i: v.copy() for i, v in values.items()}
    game = Round(values, circle).play()
    uploads = {i: v.copy() for i, v in game.uploads.items()}
    game.opened()
    for i in circle.sites:
        np.testing.assert_array_equal(values[i], before[i])
        np.testing.assert_array_equal(game.uploads[i], uploads[i])
        assert (game.uploads[i] != values[i]).all()


def test_sites_may_have_any_numbers():
    """Cohorts are some sites of a roster, by their places in it."""
    circle = Circle((3, 17, 40, 41, 900), 4, 1)
    played(circle, some_values(circle), gone={"upload": {40}})


def test_what_is_lacking_is_known_before_the_sum_is_opened():
    circle = circle_of(24, least=22)
    game = Round(some_values(circle), circle, gone={"upload": {5}}).play()
    found = game.secret_sum()
    assert found.dropped == [5]
    assert found.lacking(game.openings) == []
    few = {i: o for i, o in game.openings.items() if i not in (9, 10, 11)}
    lacking = found.lacking(few)
    assert lacking == [i for i in [*game.survivors, 5] if len(circle.holders(i, few)) < 5]
    assert 10 in lacking
    with pytest.raises(CannotOpen, match="5 good shares of the secret of site"):
        found.opened(game.uploads, few)


# Sites that refuse.


def too_few(step):
    """Return a round of 10 sites, 8 of them at least, in which 7 are in a step."""
    circle = circle_of(10, least=8)
    return Round(some_values(circle), circle, gone={step: {0, 4, 9}})


@pytest.mark.parametrize(
    ("out", "step"), [("keys", "shares"), ("shares", "upload"), ("upload", "agree")]
)
def test_sites_refuse_every_step_of_fewer_than_must_survive(out, step):
    game = too_few(out).play()
    assert {site for s, site in game.refused if s == step} == {1, 2, 3, 5, 6, 7, 8}
    assert all("must be 8 sites at least, got 7" in words for words in game.refused.values())
    assert game.openings == {}
    with pytest.raises((CannotOpen, StopIteration)):
        game.opened()


def test_sites_refuse_to_open_what_too_few_have_signed():
    game = too_few("agree")
    game.gone = {"agree": {0, 1, 2, 3, 4}}
    game.play()
    assert len(game.signatures) == game.circle.n_signatures - 1
    assert game.openings == {}
    assert "must be signed by 6 sites, got 5" in game.refused["open", 9]


def lied(step, lie, **rest):
    """Play a round of five sites in which site 0 is told a lie in one step."""
    circle = circle_of(5)
    to_site = {step: lambda _, site, message: lie(message) if site == 0 else message}
    return Round(some_values(circle), circle, wire=Wire(to_site=to_site), **rest).play()


BAD_LISTS = {
    "itself is missing": lambda sites: sites[1:],
    "one comes twice": lambda sites: [sites[0], *sites],
    "out of order": lambda sites: sites[::-1],
    "a stranger": lambda sites: [*sites, 77],
    "nobody": lambda sites: [],
}


@pytest.mark.parametrize("step", ["shares", "upload", "agree"])
@pytest.mark.parametrize("what", BAD_LISTS)
def test_lists_of_sites_that_cannot_be_are_refused(step, what):
    bad = BAD_LISTS[what]
    wrong = bad if step == "agree" else lambda message: (bad(message[0]), *message[1:])
    game = lied(step, wrong)
    assert (step, 0) in game.refused
    assert "must be sites of the step before" in game.refused[step, 0] or (
        "must have this site among them" in game.refused[step, 0]
    )


@pytest.mark.parametrize(("out", "step"), [("keys", "upload"), ("shares", "agree")])
def test_a_site_that_dropped_out_is_not_there_a_step_later(out, step):
    """Sites that are not its neighbours see nothing of it, and know all the same."""
    circle = circle_of(10)
    ghosts = {
        "upload": lambda _, __, message: ([0, *message[0]], *message[1:]),
        "agree": lambda _, __, sites: [0, *sites],
    }
    wire = Wire(to_site={step: ghosts[step]})
    game = Round(some_values(circle), circle, wire=wire, gone={out: {0}}).play()
    assert {site for s, site in game.refused if s == step} == set(range(1, 10))
    assert all("must be sites of the step before" in words for words in game.refused.values())


def fewer(parts):
    return dict(list(parts.items())[1:])


def turned(parts):
    return dict(list(parts.items())[::-1])


def flipped(parts):
    first = next(iter(parts))
    return {**parts, first: bytes([parts[first][0] ^ 1]) + parts[first][1:]}


def cut(parts):
    first = next(iter(parts))
    return {**parts, first: parts[first][:-1]}


@pytest.mark.parametrize("step", ["shares", "upload"])
@pytest.mark.parametrize("wrong", [fewer, turned, flipped, cut, lambda _: {}])
def test_parts_that_are_missing_or_changed_are_refused(step, wrong):
    game = lied(step, lambda message: (message[0], wrong(message[1]), *message[2:]))
    assert (step, 0) in game.refused
    # The four others are as many as must survive.
    total, _ = game.opened()
    np.testing.assert_array_equal(total, game.true_sum([1, 2, 3, 4]))


@pytest.mark.parametrize("wrong", [fewer, flipped, cut, lambda _: {}])
def test_signatures_that_are_missing_or_changed_are_refused(wrong):
    """Of five sites four must agree."""
    game = lied("open", lambda signatures: wrong(fewer(signatures)))
    assert "must" in game.refused["open", 0]
    assert set(game.openings) == {1, 2, 3, 4}


def test_what_is_refused_changes_nothing():
    """After a wrong message in every step a round goes on as if there had been none."""
    circle = circle_of(5)
    game = Round(some_values(circle), circle)
    wrong = {
        "shares": ([0, 1], {}),
        "upload": ([0, 1, 2, 3, 4], {}, b""),
        "agree": [0, 1, 2],
        "open": {},
    }

    def twice(game, site, message):
        for step, bad in wrong.items():
            with pytest.raises(Refused):
                game._answer(step, site, bad)
        return message

    game.wire = Wire(to_site=dict.fromkeys(STEPS[1:], twice))
    total, _ = game.play().opened()
    np.testing.assert_array_equal(total, game.true_sum())
    assert game.refused == {}


OWN_NAME = {"shares": "shares", "upload": "receive", "agree": "agreed", "open": "opened"}


def test_steps_come_once():
    """Whatever is asked of a site again, even in the same words."""
    circle = circle_of(4)
    game = Round(some_values(circle), circle).play()
    messages = {
        "shares": (game.sharing, {i: game.bundles[i] for i in (0, 2, 3)}),
        "upload": game.heard["upload", 1],
        "agree": game.survivors,
        "open": game.signatures,
    }
    for step, message in messages.items():
        with pytest.raises(Refused, match=f"step '{OWN_NAME[step]}' of a round must come once"):
            game._answer(step, 1, message)


def test_steps_come_in_order():
    """Each step of one site, told to another that has not come so far."""
    circle = circle_of(4)
    game = Round(some_values(circle), circle).play()
    fresh = Round(some_values(circle), circle).play(until="upload")
    own, others = fresh.sites[1], game.sites[1]
    with pytest.raises(Refused, match="'opened' of a round must come once, after 'agreed'"):
        own.opened(game.signatures, persist=lambda: None)
    own.agreed([0, 1, 2, 3])
    with pytest.raises(Refused, match="'masked' of a round must come once, after 'receive'"):
        own.masked(fresh.values[1])
    with pytest.raises(Refused, match="'receive' of a round must come once, after 'shares'"):
        others.receive(*game.heard["upload", 1])
    new = SiteRound(CONTEXT, own.roster, signing_key(1).sign)
    with pytest.raises(Refused, match="'receive' of a round must come once, after 'shares'"):
        new.receive(*game.heard["upload", 1])
    with pytest.raises(Refused, match="'masked' of a round must come once, after 'receive'"):
        new.masked(fresh.values[1])
    with pytest.raises(Refused, match="'agreed' of a round must come once, after 'masked'"):
        new.agreed([0, 1, 2, 3])


def test_a_share_leaves_a_site_after_it_is_written_down_only():
    circle = circle_of(3)
    game = Round(some_values(circle), circle).play(until="agree")

    def no_disk():
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        game.sites[0].opened(game.signatures, persist=no_disk)
    written = []
    assert game.sites[0].opened(game.signatures, persist=lambda: written.append(1))
    assert written == [1]


# Keys and masks.


def test_parts_of_a_round_have_their_lengths():
    game = Round(some_values(circle_of(3)), circle_of(3)).play()
    assert {len(b) for b in game.bundles.values()} == {BUNDLE_BYTES} == {160}
    assert {len(b) for boxes in game.boxes.values() for b in boxes.values()} == {BOX_BYTES} == {96}
    assert {len(s) for o in game.openings.values() for s in o.values()} == {40}
    assert {len(s) for s in game.signatures.values()} == {64}
    assert Bundle.from_bytes(game.bundles[0]).to_bytes() == game.bundles[0]
    with pytest.raises(Refused, match="must have 160 bytes, got 159"):
        Bundle.from_bytes(game.bundles[0][1:])


def test_a_pair_key_is_one_for_both_and_another_for_everything_else():
    one, other = new_secret(), new_secret()
    publics = [secret.public_key().public_bytes_raw() for secret in (one, other)]
    contexts = [CONTEXT, *(context_of(*c) for c in (
        ("a run", "a stage", 1, "another"), ("a run", "a stage", 2, "an attempt"),
        ("a run", "b stage", 1, "an attempt"), ("b run", "a stage", 1, "an attempt"),
    ))]  # fmt: skip
    views = [view_of([1, 2], b"x"), view_of([1, 2], b"y"), view_of([1, 3], b"x"), view_of([], b"")]
    pairs = [(1, 2), (1, 3), (2, 3), (0, 1)]
    keys = {
        pair_key(context, view, one, publics[1], *pair)
        for context, view, pair in itertools.product(contexts, views, pairs)
    }
    assert len(keys) == 5 * 4 * 4
    mine = pair_key(CONTEXT, views[0], one, publics[1], 1, 2)
    assert pair_key(CONTEXT, views[0], other, publics[0], 2, 1) == mine
    assert pair_key(CONTEXT, views[0], new_secret(), publics[1], 1, 2) != mine


def test_digests_read_one_way_only():
    assert masks.digest("x", b"ab", b"c") != masks.digest("x", b"a", b"bc")
    assert masks.digest("x", b"ab") != masks.digest("xab")
    assert masks.digest("x", b"") != masks.digest("x")
    assert masks.digest("x", b"ab") != masks.digest("y", b"ab")
    assert view_of([1], b"") != view_of([], masks.numbers([1]))
    assert context_of("a", "b", 1, "c") != context_of("a", 'b", 1, "c', 1, "c")
    # A site signs keys and survivors with one key: neither can be taken for the other.
    assert bundle_content(CONTEXT, 1, b"k") != masks.survivors_content(CONTEXT, [1], [])


SAID = {
    masks.bundle_content: (CONTEXT, 1, b"box", b"mask", b"commitment"),
    masks.survivors_content: (CONTEXT, [1, 2, 3], [1, 2]),
    masks.view_of: ([1, 2, 3], b"told"),
    masks.commitment: (CONTEXT, 1, b"seed"),
    masks.seed_key: (CONTEXT, 1, b"seed"),
    masks._box_info: (CONTEXT, 1, 2, b"sent", b"received"),
    context_of: ("a run", "a stage", 1, "an attempt"),
}


@pytest.mark.parametrize("said", SAID, ids=lambda said: said.__name__)
def test_everything_counts(said):
    """Another round, another site or another of the parts, and something else is said."""
    right = SAID[said]
    other = {list: [9], bytes: b"9", int: 9, str: "9"}
    others = {said(*right[:k], other[type(part)], *right[k + 1 :]) for k, part in enumerate(right)}
    assert len({said(*right)} | others) == 1 + len(right)
    assert len(set(map(len, others))) == 1


def mask_of(key, n=1000):
    total = np.zeros(n, "<u8")
    add_mask(total, key)
    return total


def test_masks_follow_from_keys():
    key = bytes(range(32))
    twice = mask_of(key)
    add_mask(twice, key, negative=True)
    assert not twice.any()
    np.testing.assert_array_equal(mask_of(key, 10), mask_of(key)[:10])
    assert not np.intersect1d(mask_of(key), mask_of(bytes(32))).size
    shaped = np.zeros((10, 10, 10), "<u8")
    add_mask(shaped, key)
    np.testing.assert_array_equal(shaped.ravel(), mask_of(key))


def test_masks_are_aes_in_counter_mode():
    """NIST SP 800-38A has no zero counter; this is AES-256 of block 0, FIPS 197's zero vector."""
    first = mask_of(bytes(32), 2).tobytes().hex()
    assert first == "dc95c078a2408989ad48a21492842087"


@pytest.mark.parametrize("other", [{"context": context_of("a run", "a stage", 2, "x")}, {}])
def test_masks_of_two_rounds_differ(other):
    """Even of two attempts with one name: keys are fresh."""
    circle = circle_of(3)
    values = some_values(circle, 1000)
    one, two = (Round(values, circle, **rest).play() for rest in ({}, other))
    for site in circle.sites:
        hidden = [game.uploads[site] - values[site] for game in (one, two)]
        assert not np.intersect1d(*hidden).size
        assert one.bundles[site] != two.bundles[site]


P = 2**255 - 19
LOW_ORDER = [0, 1, P - 1, P, P + 1] + [
    int.from_bytes(bytes.fromhex(point), "little")
    for point in (
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    )
]
"""All points whose multiples are the same for everyone, so that a key would be known."""


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_key_that_makes_every_common_key_the_same_is_refused(point):
    with pytest.raises(Refused, match="a peer's key must be a good one"):
        key_between(new_secret(), point.to_bytes(32, "little"), b"")


def with_keys(game, site, **other):
    """Return a site's bundle with other keys in it, signed by the site itself."""
    found = Bundle.from_bytes(game.sites[site].bundle)
    keys = [other.get(k, getattr(found, k)) for k in ("box_key", "mask_key", "commitment")]
    signature = signing_key(site).sign(bundle_content(game.context, site, *keys))
    return Bundle(*keys, signature).to_bytes()


@pytest.mark.parametrize(
    ("name", "step", "before"),
    [
        ("box_key", "shares", ""),
        ("mask_key", "upload", "shares"),
    ],
)  # fmt: skip
def test_a_bad_key_of_a_peer_is_refused_before_anything_is_charged(name, step, before):
    """A site of the roster signs a low-order key; at the others the step is not done."""
    circle = circle_of(4)

    def bad(game, site, bundle):
        if site == 3:
            bundle, own = with_keys(game, site, **{name: bytes(32)}), game.sites[site]
            own._boxes = replace(own._boxes, bundle=bundle)
        return bundle

    game = Round(some_values(circle), circle, wire=Wire(from_site={"keys": bad})).play()
    for site in (0, 1, 2):
        assert "a peer's key must be a good one" in game.refused[step, site]
        assert game.sites[site]._done == before


def test_a_site_whose_number_is_not_in_the_round_has_no_part_in_it():
    roster = Roster(circle_of(3), 7, {})
    outsider = SiteRound(CONTEXT, roster, signing_key(7).sign)
    with pytest.raises(Refused, match="must have this site among them"):
        outsider.shares([0, 1, 2], {})


def test_a_site_that_has_opened_a_round_has_no_secret_of_it(monkeypatch):
    monkeypatch.setattr(secure_sums, "Remembering", SiteRound)
    game = Round(some_values(circle_of(3)), circle_of(3)).play()
    np.testing.assert_array_equal(game.opened()[0], game.true_sum())
    kept = [vars(site) for site in game.sites.values()]
    assert not any(own["_held"] or own["_pair_keys"] for own in kept)
    secrets = ("_seed", "_mask_secret", "_box_secret", "_boxes")
    assert not any(name in own for own in kept for name in secrets)


def test_what_a_site_prints_of_a_round_holds_no_secret():
    game = Round(some_values(circle_of(3)), circle_of(3)).play(until="upload")
    printed, own = repr(game.sites[0]), game.sites[0]
    secrets = [*own._pair_keys.values(), *(s for pair in own._held.values() for s in pair)]
    assert not any(repr(secret) in printed for secret in secrets)
