"""Shares of noise under secure aggregation, and what can be read of masked uploads.

The statements of docs/privacy-proof.md, section 15, that are about numbers and graphs. The protocol
itself is tested in tests/deployment.
"""

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dpfedc.deployment.secure_aggregation.circle import Circle, least_survivors
from dpfedc.privacy.exact_sums import MIN_NOISE, SENSITIVITY, noise_in_units
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan

# Sums of discrete Gaussians


def law(variance, reach):
    """Return Pr[k] of the discrete Gaussian for all |k| <= reach, with a hundred digits."""
    weights = {k: (-Decimal(k * k) / (2 * variance)).exp() for k in range(-reach, reach + 1)}
    total = sum(weights.values())
    return {k: weight / total for k, weight in weights.items()}


def sum_law(one, n):
    """Return the law of a sum of n independent draws."""
    found = one
    for _ in range(n - 1):
        total = dict.fromkeys(range(min(found) + min(one), max(found) + max(one) + 1), Decimal(0))
        for (i, p), (j, q) in product(found.items(), one.items()):
            total[i + j] += p * q
        found = total
    return found


def worst_factor(s, n):
    """Return the largest |log| of how the sum of n draws differs from one draw with sqrt(n) s."""
    with localcontext(prec=100):
        variance, reach = Decimal(s) ** 2, math.ceil(20 * s)
        found, ideal = sum_law(law(variance, reach), n), law(n * variance, n * reach)
        near = range(-math.ceil(4 * s * n**0.5), math.ceil(4 * s * n**0.5) + 1)
        return max(abs((found[k] / ideal[k]).ln()) for k in near)


def tau(s, n, *, factor=5):
    """Return the bound of the lemma on sums of shares."""
    with localcontext(prec=100):
        x = 2 * Decimal(math.pi) ** 2 * Decimal(s) ** 2
        return Decimal(factor) * sum((-x * k / (k + 1)).exp() for k in range(1, n))


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("s", [0.5, 0.75, 1.0, 1.6, 3.0])
def test_a_sum_of_discrete_gaussians_is_nearly_one(s, n):
    """By exact convolution. Of two shares half of the bound is met, of more a smaller part."""
    worst = worst_factor(s, n)
    assert worst <= tau(s, n)
    forgotten = 5 * (n - 1) * math.exp(-2 * math.pi**2 * s**2)
    assert worst > forgotten, "a bound without the factor k / (k + 1) does not hold"
    if n == 2:
        assert worst > tau(s, n, factor=1.5), "nor does one that is three times smaller"


def test_one_share_is_what_it_is():
    assert worst_factor(0.7, 1) == 0 == tau(0.7, 1)


def test_the_difference_is_nothing_at_the_least_noise_that_is_drawn():
    """More sites than there are people, each with the least noise."""
    exponent = -2 * math.pi**2 * MIN_NOISE**2 / 2  # k = 1, the largest term
    assert (math.log(5 * 1e10) + exponent) / math.log(10) < -4_000_000


# Shares as the plan states them


@st.composite
def rounds_of_shares(draw):
    """Return a plan of one stage, how many honest uploads a sum has, and the least number."""
    n = draw(st.integers(2, 60))
    colluding = draw(st.integers(0, n - 1))
    least = draw(st.none() | st.integers(colluding + 1, n))
    z = draw(st.floats(1e-4, 1e4))
    release = PlannedRelease("mean", 1, n, 1, z)
    n_sites = n + draw(st.integers(0, 5))
    plan = PrivacyPlan((release,), 1e-5, "secure-aggregation", n_sites, least, colluding)
    h = (least or n) - colluding
    return plan, draw(st.integers(h, n)), h


@given(rounds_of_shares())
def test_shares_add_up_to_the_planned_noise_whoever_survives(drawn):
    """In exact fractions. Off the diagonal of a symmetric sum half of the variance is needed."""
    plan, n_honest, h = drawn
    z = plan.releases[0].noise_multiplier
    needed = (Fraction(z) * SENSITIVITY) ** 2
    share = plan.noise_of_site("mean")
    for part, multiplier in [(1, share), (2, share / math.sqrt(2))]:
        one = Fraction(noise_in_units(multiplier)) ** 2
        assert h * one >= needed / part + 4 * h
        assert n_honest * one >= h * one
        assert h * one <= (needed / part + 4 * h) * (1 + Fraction(1, 10**12)), (
            "no more than it takes"
        )
    n = h + plan.colluding_sites  # the fewest that can be in a sum
    assert plan.noise_of_sum("mean", n) == pytest.approx(share * math.sqrt(n))


@pytest.mark.parametrize(("least", "colluding"), [(9, 0), (10, 1), (8, 2)])
def test_a_share_for_all_sites_is_too_small_where_some_may_be_missing(least, colluding):
    """Plant: the noise divided by all ten sites, as if each were there and honest."""
    release = PlannedRelease("mean", 1, 10, 1, 1.0)
    plan = PrivacyPlan((release,), 1e-5, "secure-aggregation", 10, least, colluding)
    h = least - colluding
    assert h * noise_in_units(plan.noise_of_site("mean")) ** 2 >= SENSITIVITY**2
    assert h * noise_in_units(1 / math.sqrt(10)) ** 2 < 0.95 * SENSITIVITY**2


# The circle


def circles(most):
    """Return all circles of so many sites that have neighbours, and not everybody, next to them."""
    found = []
    for n in range(2, most + 1):
        for c in range(n):
            for least in range(least_survivors(n, c), n + 1):
                circle = Circle(tuple(range(n)), least, c)
                if circle.n_holders < n:
                    found.append(circle)
    return found


def name_of(circle):
    return f"{circle.min_survivors} of {len(circle.sites)}, {circle.colluding_sites} colluding"


def taken_out(circle):
    """Return the most sites that may be missing between two parts: 2 D + c."""
    return 2 * (len(circle.sites) - circle.min_survivors) + circle.colluding_sites


class Thin(Circle):
    """Plant: one neighbour less on either side."""

    @property
    def _reach(self):
        return Circle._reach.func(self) - 1


def thin(circle):
    return Thin(circle.sites, circle.min_survivors, circle.colluding_sites)


def is_connected(circle, left):
    seen, due = set(), [min(left)]
    while due:
        site = due.pop()
        if site not in seen:
            seen.add(site)
            due += circle.neighbors(site, left)
    return seen == left


def stays_connected(circle):
    sites = set(circle.sites)
    out = combinations(circle.sites, taken_out(circle))
    return all(is_connected(circle, sites - set(gone)) for gone in out)


@pytest.mark.parametrize("circle", circles(10), ids=name_of)
def test_a_circle_stays_connected_whoever_is_taken_out(circle):
    assert stays_connected(circle)
    assert not stays_connected(thin(circle)), "with one neighbour less on either side it does not"


def test_neighbours_are_neighbours_of_each_other():
    for circle in circles(12):
        pairs = {(u, v) for u in circle.sites for v in circle.neighbors(u)}
        assert pairs == {(v, u) for u, v in pairs}
        assert {len(circle.holders(u)) for u in circle.sites} == {circle.n_holders}
        assert circle.n_shares > circle.colluding_sites


def test_two_sets_of_signers_have_an_honest_site_in_common():
    for n in range(2, 40):
        for c in range(n):
            needed = least_survivors(n, c)
            assert 2 * needed - n > c
            assert 2 * (needed - 1) - n <= c, "one less would not do"


# What can be read of masked uploads


def hidden_masks(circle, views, honest_survivors, *, by_view=True):
    """Return the matrix of masks that nobody can take off: a row for each site, a column for each.

    The adversary knows every mask but those between two sites that are honest and in the sum. It
    can read a combination of their uploads if these masks cancel in it. A view is whom a site was
    told to have shared, and a broadcast; sites without one have not uploaded.
    """
    rows = [u for u in honest_survivors if u in views]
    columns = {}
    for u in rows:
        for v in circle.neighbors(u, views[u][0] & honest_survivors):
            name = (min(u, v), max(u, v), views[u] if by_view else None)
            columns.setdefault(name, {})[u] = 1 if u < v else -1
    matrix = np.array([[column.get(u, 0) for column in columns.values()] for u in rows])
    return rows, matrix.reshape(len(rows), len(columns))


def sums_read(circle, views, honest_survivors, *, by_view=True):
    """Return how many independent combinations of uploads can be read, and which sum, if one."""
    rows, matrix = hidden_masks(circle, views, honest_survivors, by_view=by_view)
    n_read = len(rows) - (np.linalg.matrix_rank(matrix) if matrix.size else 0)
    return n_read, rows if n_read and not matrix.sum(axis=0).any() else []


def require_all_or_nothing(circle, views, honest_survivors):
    n_read, rows = sums_read(circle, views, honest_survivors)
    if n_read:
        assert n_read == 1
        assert set(rows) == honest_survivors, "the sum is over all of them"
        assert len({views[u] for u in rows}) == 1, "who were told the same"
        least = circle.min_survivors - circle.colluding_sites
        assert len(rows) >= least
    return n_read


def sets_of(sites, least):
    return [
        frozenset(found)
        for size in range(least, len(sites) + 1)
        for found in combinations(sites, size)
    ]


SMALL = [Circle(tuple(range(n)), least, c) for n, least, c in [(4, 3, 0), (6, 5, 0), (6, 5, 1)]]


@pytest.mark.parametrize("circle", SMALL, ids=name_of)
def test_only_the_sum_of_all_honest_survivors_can_be_read(circle):
    """All that a server can tell those who did not sign, and all sums that it can ask for."""
    honest = set(circle.sites[circle.colluding_sites :])
    everybody, n_read = sets_of(circle.sites, circle.min_survivors), 0
    signing = circle.n_signatures - circle.colluding_sites
    for shared in everybody:
        for survivors in everybody:
            if not survivors <= shared:
                continue
            inside = honest & survivors
            for signers in combinations(sorted(inside), signing):
                others = sorted(inside - set(signers))
                told = [
                    [None, *((a, b) for a in everybody if u in a for b in "xy")] for u in others
                ]
                for views in product(*told):
                    known = {u: v for u, v in zip(others, views, strict=True) if v}
                    known |= dict.fromkeys(signers, (shared, "x"))
                    n_read += require_all_or_nothing(circle, known, inside)
    assert n_read >= len(everybody), "honest servers can read their sums"


@st.composite
def lies(draw):
    """Return a circle, views and survivors: arcs of sites are told different things."""
    n = draw(st.integers(5, 24))
    c = draw(st.integers(0, 2))
    circle = Circle(tuple(range(n)), draw(st.integers(least_survivors(n, c), n)), c)
    all_sites, may_miss = frozenset(circle.sites), n - circle.min_survivors

    def fewer(sites):
        gone = draw(st.sets(st.sampled_from(sorted(sites)), max_size=may_miss - n + len(sites)))
        return frozenset(sites) - gone

    shared = fewer(all_sites)
    survivors = fewer(shared)
    honest = all_sites - draw(st.sets(st.sampled_from(circle.sites), max_size=c))
    told = [(shared, "x"), (shared, "y"), *((fewer(all_sites), "x") for _ in range(2))]
    views = dict.fromkeys(honest & survivors, told[0])
    start, length = draw(st.integers(0, n - 1)), draw(st.integers(0, n // 2))
    for place in range(start, start + length):
        view = draw(st.sampled_from(told))
        if place % n in view[0] and place % n in views:
            views[place % n] = view
    signers = [u for u in views if views[u][0] == shared]
    assume(len(signers) >= circle.n_signatures - c)
    return circle, views, honest & survivors


@given(lies())
def test_whatever_arcs_are_told_no_part_of_the_sum_can_be_read(drawn):
    require_all_or_nothing(*drawn)


def cut_off(circle, arc):
    """Return views and survivors that cut an arc off, or None if too many sites stand around it.

    Of the sites around it some collude, some are left out of the sum, and of the rest the arc is
    told that they did not share.
    """
    n, may_miss = len(circle.sites), len(circle.sites) - circle.min_survivors
    around = sorted({v for u in arc for v in circle.neighbors(u)} - arc)
    colluding, rest = around[: circle.colluding_sites], around[circle.colluding_sites :]
    dropped, unseen = rest[:may_miss], rest[may_miss:]
    if len(unseen) > may_miss:
        return None
    all_sites = frozenset(range(n))
    inside = all_sites - set(dropped) - set(colluding)
    views = dict.fromkeys(inside, (all_sites, "x"))
    views |= dict.fromkeys(arc, (all_sites - set(unseen), "x"))
    return views, inside


@pytest.mark.parametrize(
    ("dropouts", "colluding"), [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 2)]
)
def test_a_circle_that_is_too_thin_gives_an_arc_away(dropouts, colluding):
    """Plant: one neighbour less on either side. With all of them no arc can be cut off so."""
    arc = set(range(3))
    circle = Circle(tuple(range(40)), 40 - dropouts, colluding)
    assert cut_off(circle, arc) is None
    views, inside = cut_off(thin(circle), arc)
    signers = [u for u in inside if views[u][0] == frozenset(circle.sites)]
    assert len(signers) >= circle.n_signatures
    rows, matrix = hidden_masks(thin(circle), views, inside)
    assert not matrix[[rows.index(u) for u in arc]].sum(axis=0).any(), "their sum alone is read"


def test_masks_that_do_not_depend_on_the_view_give_an_arc_away():
    """Plant: masks that cancel between sites that were told different things.

    Sites near the ends of an arc are told of those beyond it, and these of them, that they did not
    share; one site at either end is left out of the sum.
    """
    circle, arc = Circle(tuple(range(24)), 22, 0), set(range(5))
    all_sites, dropped = frozenset(circle.sites), {5, 23}
    inside = all_sites - dropped
    views = {}
    for u in inside:
        beyond = {v for v in circle.neighbors(u, inside) if (v in arc) != (u in arc)}
        assert len(beyond) <= 2, "no site is told of more that are missing than may be"
        views[u] = all_sites - beyond, "x"
    assert sum(view[0] == all_sites for view in views.values()) >= circle.n_signatures
    n_read, _ = sums_read(circle, views, inside, by_view=False)
    assert n_read == 2, "the sum over the arc, and that over the others"
    assert not require_all_or_nothing(circle, views, inside)
