"""Claims are judged rightly from rows made up for it, whatever the verdict."""

import math
from dataclasses import replace

import pytest

from dpfedc.research.experiments.claims import (
    HELD,
    HURT_LEAST,
    IID_NO_WORSE,
    LOWER_OBJECTIVE,
    MORE_SITES_NO_WORSE,
    MOST_ACCURATE,
    NO_LOWER_ACCURACY,
    NOT_HELD,
    UNDECIDED,
    judged,
    judgements,
)
from dpfedc.research.experiments.compared_methods import PER_ROUND
from dpfedc.research.experiments.results import Result


def row(accuracy, seed, *, method="dp-fedc", epsilon=None, **more):
    given = {
        "data": "mnist", "partition": "iid", "trust": "" if epsilon is None else "local",
        "variant": "normalized" if method == "dp-fedc" else "", "sites_per_round": 30,
        "nmi": 0.5, "ari": 0.4, "cost": 10.0, **more,
    }  # fmt: skip
    return Result(method=method, epsilon=epsilon, seed=seed, accuracy=accuracy, **given)


def of(claim, rows):
    return [j for j in judgements(rows) if j.claim == claim]


@pytest.mark.parametrize(
    ("differences", "least", "verdict"),
    [
        ([0.05, 0.06, 0.07], 0.0, HELD),
        ([-0.05, -0.06, -0.07], 0.0, NOT_HELD),
        ([0.05, -0.06, 0.07], 0.0, UNDECIDED),
        ([0.0, 0.0, 0.0], 0.0, UNDECIDED),
        ([0.0, 0.0, 0.0], -0.01, HELD),
        ([-0.005, -0.006, -0.007], -0.01, HELD),
        ([-0.02, -0.021, -0.022], -0.01, NOT_HELD),
        ([0.5], 0.0, UNDECIDED),
        ([], 0.0, UNDECIDED),
        ([math.inf, 1.0], 0.0, UNDECIDED),
    ],
)
def test_verdicts(differences, least, verdict):
    assert judged("claim", "here", differences, least=least).verdict == verdict


def test_margin_and_standard_error_by_hand():
    found = judged("claim", "here", [0.25, 0.75], least=0.0)
    assert found.margin == 0.5
    assert found.standard_error == 0.25  # standard deviation 0.3536 over sqrt(2)
    assert found.n_seeds == 2
    # Exactly two standard errors are not more than two.
    assert found.verdict == UNDECIDED


def test_larger_epsilon_compares_neighbouring_levels_seed_by_seed():
    accuracy = {2.0: 0.3, 20.0: 0.5, None: 0.499}
    cost = {2.0: 30.0, 20.0: 20.0, None: 25.0}
    rows = [
        row(accuracy[e] + 0.1 * s, s, epsilon=e, cost=cost[e] * (1 + s))
        for e in accuracy
        for s in (0, 1)
    ]
    low, high = of(NO_LOWER_ACCURACY, rows)
    assert low.where == "mnist, iid, normalized, K 30, local: epsilon 20 against epsilon 2"
    assert (low.verdict, round(low.margin, 6)) == (HELD, 0.2)
    assert high.where.endswith("no noise against epsilon 20")
    assert (high.verdict, round(high.margin, 6)) == (HELD, -0.001)
    low, high = of(LOWER_OBJECTIVE, rows)
    assert low.margin == pytest.approx(math.log(30 / 20))
    assert (low.verdict, low.unit) == (HELD, "log ratio of the cost")
    assert (high.verdict, high.margin) == (NOT_HELD, pytest.approx(math.log(20 / 25)))


def test_the_published_variant_is_judged_by_its_objective():
    rows = [
        row(0.4, s, epsilon=e, variant="published", objective=o * (1 + s), cost=c)
        for e, o, c in ((2.0, 900.0, 1.0), (20.0, 300.0, 2.0))
        for s in (0, 1, 2)
    ]
    (found,) = of(LOWER_OBJECTIVE, rows)
    assert (found.verdict, found.unit) == (HELD, "log ratio of the objective")
    assert found.margin == pytest.approx(math.log(3))


def test_trust_models_are_not_mixed():
    rows = [row(a, s, epsilon=e, trust=t) for t, e, a in (
        ("local", 2.0, 0.3), ("local", 4.0, 0.2), ("secure-aggregation", 2.0, 0.3),
        ("secure-aggregation", 4.0, 0.6),
    ) for s in (0, 1)]  # fmt: skip
    verdicts = {j.where.split(", ")[-1]: j.verdict for j in of(NO_LOWER_ACCURACY, rows)}
    assert verdicts == {
        "local: epsilon 4 against epsilon 2": NOT_HELD,
        "secure-aggregation: epsilon 4 against epsilon 2": HELD,
    }


def test_partitions():
    rows = [
        row(a + 0.01 * s, s, partition=p)
        for p, a in (("iid", 0.5), ("non-iid", 0.6))
        for s in (0, 1, 2)
    ]
    (found,) = of(IID_NO_WORSE, rows)
    assert (found.verdict, round(found.margin, 6)) == (NOT_HELD, -0.1)
    assert found.where == "mnist, normalized, K 30, no noise"
    assert of(IID_NO_WORSE, rows[:3]) == []


def test_sites_per_round():
    rows = [
        row(a, s, epsilon=20.0, sites_per_round=k)
        for k, a in ((10, 0.4), (30, 0.5), (100, 0.45))
        for s in (0, 1)
    ]
    few, many = of(MORE_SITES_NO_WORSE, rows)
    assert (few.verdict, round(few.margin, 6)) == (HELD, 0.1)
    assert (many.verdict, round(many.margin, 6)) == (NOT_HELD, -0.05)
    assert many.where.endswith("100 against 30")


def rivals():
    exact = {"dp-fedc": 0.50, "federated-k-means": 0.55, "fuzzy-c-means": 0.45}
    noisy = {"dp-fedc": 0.48, "federated-k-means": 0.30, "fuzzy-c-means": 0.42}
    # Neither the ceiling nor methods that the paper does not have are rivals.
    exact |= {"pooled-k-means": 0.9, "k-fed": 0.8}
    return [
        row(a + 0.001 * s, s, method=m, epsilon=e)
        for e, table in ((None, exact), (20.0, noisy))
        for m, a in table.items()
        for s in (0, 1, 2)
    ]


def test_against_the_best_rival():
    exact, noisy = of(MOST_ACCURATE, rivals())
    assert exact.where == "mnist, iid, normalized, no noise: against federated k-means"
    assert (exact.verdict, round(exact.margin, 6)) == (NOT_HELD, -0.05)
    assert noisy.where == "mnist, iid, normalized, epsilon 20: against fuzzy c-means"
    assert (noisy.verdict, round(noisy.margin, 6)) == (HELD, 0.06)


def test_hurt_least_compares_losses():
    (found,) = of(HURT_LEAST, rivals())
    assert found.where == "mnist, iid, normalized, epsilon 20: against fuzzy c-means"
    assert (found.verdict, round(found.margin, 6)) == (HELD, 0.01)
    alone = [r for r in rivals() if r.method == "dp-fedc"]
    assert of(HURT_LEAST, alone) == of(MOST_ACCURATE, alone) == []


def test_seeds_that_only_one_side_has_are_left_out():
    rows = [row(0.5, s) for s in (0, 1, 2)] + [row(0.4, s, epsilon=2.0) for s in (1, 2, 3)]
    (found,) = of(NO_LOWER_ACCURACY, rows)
    assert found.n_seeds == 2


def test_nothing_is_claimed_from_nothing():
    assert judgements([]) == []


def test_a_rival_with_noise_in_every_round_is_one_more_rival():
    gentle = [
        replace(r, variant=PER_ROUND, accuracy=0.9)
        for r in rivals()
        if r.method == "federated-k-means" and r.epsilon is not None
    ]
    assert gentle
    _, noisy = of(MOST_ACCURATE, [*rivals(), *gentle])
    assert "federated k-means with noise per round" in noisy.where
    assert noisy.verdict == NOT_HELD
    # Its loss is against the same method without noise, which has no variant.
    (hurt,) = of(HURT_LEAST, [*rivals(), *gentle])
    assert "federated k-means with noise per round" in hurt.where
