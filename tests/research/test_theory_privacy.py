"""Theorems 1 to 3 and the cost counts: values by hand, conditions, stamps, inverses."""

import doctest
import math
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput, OutsideConditions
from dpfedc.research import theory
from dpfedc.research.theory import theorems

SITE = {"gradient_bound": 1.5, "centroid_steps": 2, "eta": 3.0}
RUN = {"q": 0.5, "participation": 0.3, "n_rounds": 100}

small_epsilons = st.floats(0.01, 1.0)
deltas = st.floats(1e-9, 0.1)
counts = st.integers(1, 500)


def test_examples_in_the_docstrings():
    result = doctest.testmod(theorems)
    assert result.attempted >= 3
    assert result.failed == 0


# Steps, batches and the sampling ratio


def test_centroid_steps_of_the_figures():
    assert [theory.centroid_steps(t, 10) for t in range(1, 13)] == [
        *(11, 6, 4, 3, 3, 2, 2, 2, 2, 2),
        *(1, 1),
    ]
    assert theory.centroid_steps(1, 0) == 1


def test_the_papers_own_settings_ask_for_more_records_than_there_are():
    assert theory.data_sampling_ratio(11, 50, 100) == 5.5
    batch = theory.safe_batch_size(50, 100, 11)
    assert batch == 4
    assert theory.data_sampling_ratio(11, batch, 100) == 0.44


@given(batch_size=counts, n_records=counts, steps=counts)
def test_safe_batch_is_the_largest_with_half_the_records(batch_size, n_records, steps):
    batch = theory.safe_batch_size(batch_size, n_records, steps)
    assert 1 <= batch <= batch_size
    if n_records >= 2 * steps:
        assert theory.data_sampling_ratio(steps, batch, n_records) <= 0.5
    else:
        assert batch == 1
    if batch < batch_size:
        assert theory.data_sampling_ratio(steps, batch + 1, n_records) > 0.5


# Theorem 1


def test_amplification_by_hand():
    result = theory.amplified(0.8, 1e-4, 0.25)
    assert (result.epsilon, result.delta) == pytest.approx((0.4, 2.5e-5))
    assert result.holds
    assert result.theorem == "Theorem 1"


def test_no_gain_in_epsilon_above_half():
    assert theory.amplified(0.8, 1e-4, 0.75).epsilon == 0.8


@given(epsilon=small_epsilons, delta=deltas, q=st.floats(0.001, 1.0))
def test_sampling_never_costs_privacy_and_covers_the_tight_value(epsilon, delta, q):
    result = theory.amplified(epsilon, delta, q)
    assert result.epsilon <= epsilon
    assert result.delta <= delta
    # Appendix A: the tight value is ln(1 + q (e^epsilon - 1)); the theorem must not be below it.
    assert result.epsilon >= math.log1p(q * math.expm1(epsilon)) * (1 - 1e-12)


def test_theorem_1_fails_where_its_condition_fails():
    """Beyond epsilon = 1 the formula is too small: the condition is there for a reason."""
    q, epsilon = 0.01, 5.0
    stamped = theory.amplified(epsilon, 1e-4, q, outside_conditions="stamp")
    assert stamped.epsilon < math.log1p(q * math.expm1(epsilon))
    assert stamped.violated == ("Theorem 1 needs epsilon <= 1, got 5.0",)


# The sensitivity and Theorem 2


def test_sensitivity_by_hand():
    assert theory.sensitivity(1.5, 2, 3.0) == 2.0


def test_noise_without_amplification_has_eight_not_four():
    """The paper's intermediate formula prints 4; its own lemmas give 8."""
    delta, epsilon = 1.25 / math.e**2, 0.5
    by_hand = 8 * 1.5**2 * 2**2 * 2 / (3.0**2 * 0.5**2)
    assert by_hand == pytest.approx(64.0)
    assert float(theory.noise_variance(epsilon, delta, **SITE)) == pytest.approx(by_hand)


def test_noise_with_amplification_is_the_printed_formula():
    q, epsilon, delta = 0.4, 0.7, 1e-4
    by_hand = 32 * 1.5**2 * 2**2 * q**2 * math.log(1.25 * q / delta) / (3.0**2 * epsilon**2)
    result = theory.noise_variance(epsilon, delta, q=q, **SITE)
    assert result.value == pytest.approx(by_hand)
    assert result.holds
    assert result.theorem == "Theorem 2"


@given(epsilon=small_epsilons, delta=deltas, q=st.floats(0.005, 0.5))
def test_noise_agrees_with_theorem_1(epsilon, delta, q):
    """The noise for (epsilon, delta) after sampling is that for what sampling turns into it."""
    before = (epsilon, delta)
    after = theory.amplified(*before, q)
    amplified = theory.noise_variance(
        after.epsilon, after.delta, q=q, outside_conditions="stamp", **SITE
    )
    assert float(amplified) == pytest.approx(float(theory.noise_variance(*before, **SITE)))


@given(epsilon=small_epsilons, delta=deltas, q=st.floats(0.2, 0.5))
def test_amplification_only_lowers_noise(epsilon, delta, q):
    without = theory.noise_variance(epsilon, delta, **SITE)
    amplified = theory.noise_variance(epsilon, delta, q=q, outside_conditions="stamp", **SITE)
    assert 0 < amplified.value <= without.value * (1 + 1e-12)


@given(epsilon=small_epsilons, delta=deltas, factor=st.floats(1.01, 10))
def test_noise_falls_with_epsilon_and_grows_with_the_sensitivity(epsilon, delta, factor):
    value = float(theory.noise_variance(epsilon, delta, **SITE))
    assert float(theory.noise_variance(epsilon / factor, delta, **SITE)) > value
    assert float(theory.noise_variance(epsilon, delta / factor, **SITE)) > value
    wider = SITE | {"gradient_bound": SITE["gradient_bound"] * factor}
    assert float(theory.noise_variance(epsilon, delta, **wider)) == pytest.approx(value * factor**2)
    slower = SITE | {"eta": SITE["eta"] * factor}
    assert float(theory.noise_variance(epsilon, delta, **slower)) < value


# Theorem 3


def test_total_loss_by_hand():
    result = theory.total_loss(0.5, q=0.5, participation=0.25, n_rounds=8, c0=2.0)
    assert float(result) == pytest.approx(2.0 * 0.25 * 0.5 * 2.0)
    assert result.holds


def test_the_papers_total_of_20_needs_a_round_outside_theorem_2():
    with pytest.raises(OutsideConditions, match=r"per-round epsilon <= 1, got 10\.3"):
        theory.per_round_epsilon(20.0, **RUN)
    stamped = theory.per_round_epsilon(20.0, outside_conditions="stamp", **RUN)
    assert float(stamped) == pytest.approx(20 / (0.25 * math.sqrt(60)))
    assert not stamped.holds


def test_total_can_be_below_one_round():
    """Amplification is counted twice: a stated total below a single round is not a typo here."""
    assert float(theory.total_loss(1.0, q=0.1, participation=1.0, n_rounds=1)) < 0.02


@given(
    epsilon=small_epsilons,
    q=st.floats(0.01, 0.99),
    participation=st.floats(0.01, 1.0),
    n_rounds=st.integers(1, 10_000),
    c0=st.floats(0.1, 10),
)
def test_total_loss_and_per_round_epsilon_are_inverse(epsilon, q, participation, n_rounds, c0):
    run = {"q": q, "participation": participation, "n_rounds": n_rounds, "c0": c0}
    total = float(theory.total_loss(epsilon, **run))
    back = theory.per_round_epsilon(total, outside_conditions="stamp", **run)
    assert float(back) == pytest.approx(epsilon, rel=1e-12)
    assert float(theory.total_loss(epsilon, **(run | {"n_rounds": 4 * n_rounds}))) == pytest.approx(
        2 * total
    )
    assert float(theory.total_loss(epsilon, **(run | {"q": q * 0.9}))) < total


# Conditions, stamps, nonsense

OUTSIDE = [
    (theory.amplified, (3.0, 1e-4, 0.1), {}, ["Theorem 1 needs epsilon <= 1, got 3.0"]),
    (theory.amplified, (0.5, 1e-4, 5.5), {}, ["Theorem 1 needs q <= 1, got 5.5"]),
    (theory.noise_variance, (2.0, 1e-4), SITE, ["Theorem 2 needs epsilon <= 1, got 2.0"]),
    (
        theory.noise_variance,
        (0.5, 1e-4),
        SITE | {"q": 0.125},
        ["Theorem 1 needs epsilon / (2 q) <= 1 before sampling, got 2.0"],
    ),
    (
        theory.noise_variance,
        (2.0, 1e-4),
        SITE | {"q": 5.5},
        [
            "Theorem 2 needs epsilon <= 1, got 2.0",
            "Theorem 2 needs q <= 1/2 to amplify, got 5.5",
        ],
    ),
    (theory.total_loss, (10.0,), RUN, ["Theorem 3 needs a per-round epsilon <= 1, got 10.0"]),
]


@pytest.mark.parametrize(("function", "args", "options", "sentences"), OUTSIDE)
def test_outside_the_conditions_it_raises_or_stamps(function, args, options, sentences):
    with pytest.raises(OutsideConditions) as caught:
        function(*args, **options)
    assert str(caught.value) == "; ".join(sentences)
    stamped = function(*args, **options, outside_conditions="stamp")
    assert stamped.violated == tuple(sentences)
    assert not stamped.holds


def test_conditions_hold_up_to_their_limits_and_not_beyond():
    above = 1 + 1e-9
    calls = [
        lambda f: theory.amplified(f, 1e-4, 0.1),
        lambda f: theory.amplified(0.5, 1e-4, f),
        lambda f: theory.noise_variance(f, 1e-4, **SITE),
        lambda f: theory.noise_variance(0.5, 1e-4, q=f / 2, **SITE),
        lambda f: theory.noise_variance(0.5 * f, 1e-4, q=0.25, **SITE),
        lambda f: theory.total_loss(f, **RUN),
    ]
    for call in calls:
        assert call(1.0).holds
        with pytest.raises(OutsideConditions, match="needs"):
            call(above)


def test_the_stamp_changes_neither_type_nor_value_where_conditions_hold():
    calls = [
        (theory.amplified, (0.5, 1e-4, 0.1), {}),
        (theory.noise_variance, (0.5, 1e-4), SITE | {"q": 0.3}),
        (theory.total_loss, (0.5,), RUN),
        (theory.per_round_epsilon, (0.5,), RUN),
    ]
    for function, args, options in calls:
        plain = function(*args, **options)
        assert plain == function(*args, **options, outside_conditions="stamp")
        assert type(plain) is type(function(*args, **options, outside_conditions="stamp"))


def test_stamped_value_is_the_bare_formula():
    stamped = theory.noise_variance(2.0, 1e-4, q=5.5, outside_conditions="stamp", **SITE)
    by_hand = 32 * 1.5**2 * 2**2 * 5.5**2 * math.log(1.25 * 5.5 / 1e-4) / (3.0**2 * 2.0**2)
    assert float(stamped) == pytest.approx(by_hand)


@pytest.mark.parametrize("option", ["raise", "stamp"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda **o: theory.total_loss(0.5, **(RUN | {"q": 1.0}), **o),
            r"Theorem 3 needs q < 1, got 1\.0",
        ),
        (
            lambda **o: theory.per_round_epsilon(0.5, **(RUN | {"q": 5.5}), **o),
            r"Theorem 3 needs q < 1, got 5\.5",
        ),
        (
            lambda **o: theory.noise_variance(0.001, 0.01, q=0.004, **SITE, **o),
            r"Theorem 2 needs 1\.25 q / delta > 1, got 0\.5",
        ),
    ],
)
def test_an_undefined_value_raises_even_when_stamped(call, message, option):
    with pytest.raises(OutsideConditions, match=message):
        call(outside_conditions=option)


@pytest.mark.parametrize("option", ["raise", "stamp"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda **o: theory.amplified(-1.0, 0.1, 0.1, **o), r"epsilon must be > 0, got -1\.0"),
        (lambda **o: theory.amplified(math.inf, 0.1, 0.1, **o), "epsilon must be finite, got inf"),
        (lambda **o: theory.amplified(math.nan, 0.1, 0.1, **o), "epsilon must be > 0, got nan"),
        (lambda **o: theory.amplified(1.0, 0.1, 0.0, **o), r"q must be > 0, got 0\.0"),
        (lambda **o: theory.amplified(1.0, 1.0, 0.1, **o), r"delta must be in \(0, 1\), got 1\.0"),
        (lambda **o: theory.amplified(1.0, 0.0, 0.1, **o), r"delta must be in \(0, 1\), got 0\.0"),
        (
            lambda **o: theory.noise_variance(0.5, 0.1, **(SITE | {"gradient_bound": -2.0}), **o),
            r"gradient_bound must be > 0, got -2\.0",
        ),
        (
            lambda **o: theory.noise_variance(0.5, 0.1, **(SITE | {"eta": 0.0}), **o),
            r"eta must be > 0, got 0\.0",
        ),
        (
            lambda **o: theory.noise_variance(0.5, 0.1, **(SITE | {"centroid_steps": 1.5}), **o),
            r"centroid_steps must be an integer >= 1, got 1\.5",
        ),
        (
            lambda **o: theory.noise_variance(0.5, 0.1, q=-0.1, **SITE, **o),
            r"q must be > 0, got -0\.1",
        ),
        (
            lambda **o: theory.total_loss(0.5, **(RUN | {"participation": 1.5}), **o),
            r"participation must be in \(0, 1\], got 1\.5",
        ),
        (
            lambda **o: theory.total_loss(0.5, **(RUN | {"n_rounds": 0}), **o),
            "n_rounds must be an integer >= 1, got 0",
        ),
        (lambda **o: theory.total_loss(0.5, c0=0.0, **RUN, **o), r"c0 must be > 0, got 0\.0"),
        (lambda **o: theory.per_round_epsilon(0.0, **RUN, **o), r"total_epsilon must be > 0"),
    ],
)
def test_nonsense_is_invalid_with_and_without_the_stamp(call, message, option):
    with pytest.raises(InvalidInput, match=message):
        call(outside_conditions=option)


def test_bad_counts_and_options_are_named():
    with pytest.raises(InvalidInput, match="t must be an integer >= 1, got 0"):
        theory.centroid_steps(0, 10)
    with pytest.raises(InvalidInput, match="extra_steps must be an integer >= 0, got -1"):
        theory.centroid_steps(1, -1)
    with pytest.raises(InvalidInput, match="n_records must be an integer >= 1, got 0"):
        theory.data_sampling_ratio(1, 1, 0)
    with pytest.raises(InvalidInput, match="outside_conditions must be 'raise' or 'stamp'"):
        theory.amplified(0.5, 0.1, 0.1, outside_conditions="ignore")


def test_results_are_frozen():
    result = theory.total_loss(0.5, **RUN)
    assert {field.name for field in fields(result)} == {"value", "theorem", "violated"}
    with pytest.raises(FrozenInstanceError):
        result.value = 0.0


# Cost


def test_step_counts_add_up_the_terms_of_the_appendix():
    m, k, n, b = 5, 3, 7, 2
    assert theory.membership_step_operations(m, k, n) == (45 + 63 + 21) + (105 + 21) + 63 + 42
    assert theory.centroid_step_operations(m, k, b) == (30 + 30 + 15) + (30 + 15) + 15


def test_leading_terms_by_hand():
    assert theory.client_operations(5, 3, 7) == (5 + 7) * 9 + 5 * 7 * 3
    assert theory.all_clients_operations(5, 3, 70, 10) == (50 + 70) * 9 + 5 * 70 * 3
    assert theory.server_operations(5, 3, 10) == 150
    assert theory.federated_kmeans_server_operations(5, 3, 70) == 1050
    by_hand = 5 * 70 * 3 * 10 + 5 * 70 * 10 * math.log(10) ** 2
    assert theory.federated_kmeans_clients_operations(5, 3, 70, 10) == pytest.approx(by_hand)
    assert theory.uploaded_floats(784, 10, 30) == 235_200


@given(m=counts, k=counts, sizes=st.lists(counts, min_size=1, max_size=8))
def test_all_clients_are_the_sum_of_the_clients(m, k, sizes):
    total = sum(theory.client_operations(m, k, n) for n in sizes)
    assert theory.all_clients_operations(m, k, sum(sizes), len(sizes)) == total


@given(m=counts, k=counts, n=counts)
def test_leading_terms_are_the_order_of_the_full_count(m, k, n):
    lead = theory.client_operations(m, k, n)
    assert lead <= theory.membership_step_operations(m, k, n) <= 6 * lead


@given(m=st.integers(2, 2000), N=st.integers(3, 500), data=st.data())
def test_dp_fedc_costs_less_than_federated_kmeans_where_the_paper_says(m, N, data):
    k = data.draw(st.integers(1, N - 1))
    n = data.draw(st.integers(10 * N, 1000 * N))
    kmeans = theory.federated_kmeans_clients_operations(m, k, n, N)
    assert theory.all_clients_operations(m, k, n, N) < kmeans
    assert theory.server_operations(m, k, N) < theory.federated_kmeans_server_operations(m, k, n)


def test_costs_name_a_bad_count():
    with pytest.raises(InvalidInput, match="n_clusters must be an integer >= 1, got 0"):
        theory.client_operations(5, 0, 7)
