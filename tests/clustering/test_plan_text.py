"""A plan in words: every number in them is computed again here from the plan."""

import math

import numpy as np
import pytest

from dpfedc.clustering.dp_fedc_planner import DP_FEDC
from dpfedc.clustering.plan_text import budget_shares, plan_in_brief, plan_in_words
from dpfedc.clustering.run_plan import NO_NOISE, Federation
from dpfedc.privacy.accountant import gaussian_epsilon, gaussian_mu, plan_epsilon
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.statement import (
    NOT_COVERED,
    multiplier,
    number,
    percent,
    rounded_up,
    split_subject,
)
from dpfedc.research.published.published_planner import AS_PUBLISHED, PUBLISHED
from dpfedc.settings import PrivacyTarget

IMAGES = Federation(784, np.full(100, 100))
TABLE = Federation(4, np.array([900, 2000, 3100]))


def words(facts, target, n_clusters=10, **choices):
    plan = DP_FEDC.plan({"n_clusters": n_clusters, **choices}, facts, target)
    paragraphs = plan_in_words(plan, facts, target)
    pairs = [split_subject(text) for text in paragraphs]
    assert all(subject for subject, _ in pairs)
    assert all(rest.endswith(".") for _, rest in pairs)
    return plan, dict(pairs)


def together(epsilon=1.0, **more):
    return PrivacyTarget(epsilon, 1e-5, "secure-aggregation", **more)


# --- shares of the budget ----------------------------------------------------------------------


def test_shares_are_rounds_over_z_squared():
    releases = (
        PlannedRelease("mean", 1, 10, 1, 2.0),  # 1 / 4
        PlannedRelease("factorisation", 9, 3, 3, 1.0),  # 3, for a site is in 3 of the 9 rounds
    )
    shares = budget_shares(PrivacyPlan(releases, 1e-5, "local", 10))
    assert shares == pytest.approx({"mean": 1 / 13, "factorisation": 12 / 13})


@pytest.mark.parametrize("facts", [IMAGES, TABLE])
def test_shares_of_a_plan_sum_to_one(facts):
    plan, _ = words(facts, together())
    shares = budget_shares(plan.privacy)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["bound"] == pytest.approx(0.01, rel=1e-6)


def test_a_sampled_stage_has_no_share_and_the_others_are_of_the_whole_budget():
    plan, told = words(TABLE, together(), 3, sampling_probability=0.5)
    shares = budget_shares(plan.privacy)
    assert shares["factorisation"] is None
    bound = plan.privacy.of_stage("bound")
    whole = gaussian_mu(plan_epsilon(plan.privacy), 1e-5) ** 2
    assert shares["bound"] == pytest.approx(1 / bound.noise_multiplier**2 / whole)
    assert shares["bound"] == pytest.approx(0.01, rel=1e-3)
    stage = next(text for text in told.values() if text.startswith("factorisation"))
    assert "what the others leave of the budget" in stage
    assert "each record is in a round with a chance of 50 %" in stage


# --- the words ---------------------------------------------------------------------------------


def test_a_range_is_told_whatever_comes_last():
    for more in ({}, {"quality": True}):
        _, told = words(TABLE, together(), "auto", k_range=(2, 6), **more)
        assert told["Plan"].startswith("2 to 6 clusters among 6,000 records")
        assert "allows no more" not in told["Number of clusters"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (None, "At most 120, not 500: the number of records allows no more."),
        (together(), "not 500: noise allows no more."),
    ],
)
def test_a_range_that_is_cut_says_by_what(target, said):
    _, told = words(TABLE, target, "auto", k_range=(2, 500))
    assert told["Number of clusters"].endswith(said)


def test_where_no_prototypes_can_be_made_clusters_are_said_to_be_round():
    round_ = ", so clusters are round although any shape was asked for."
    noisy = together(0.1)
    _, told = words(TABLE, noisy, 5, shape="any")
    assert told["Prototypes"] == f"none; noise allows no more than 5{round_}"
    _, told = words(Federation(4, np.array([100, 100])), None, 5, shape="any")
    assert told["Prototypes"] == f"none; the number of records allows no more than 5{round_}"
    _, told = words(TABLE, together(), 5, shape="any", n_prototypes=5)
    assert told["Prototypes"] == f"none; 5 were asked for, as many as clusters{round_}"
    assert "Prototypes" not in words(TABLE, noisy, 5)[1]


def test_the_words_state_the_numbers_of_the_plan():
    plan, told = words(IMAGES, together(), sites_per_round=30)
    assert list(told)[:5] == ["Plan", "Promise", "Trust", "Assumed", "Rounds"]
    assert "10 clusters among 10,000 records with 784 features at 100 sites" in told["Plan"]
    assert "100 records each" in told["Plan"]
    assert told["Promise"].startswith("epsilon 1, delta 1e-05 for every record")
    assert "a factor of 2.72" in told["Promise"]
    assert "dp-accounting" in told["Promise"]
    assert told["Trust"].startswith("secure-aggregation. ")
    releases = plan.privacy.releases
    most = sum(release.rounds_per_site for release in releases)
    assert f"no site takes part in more than {most} rounds" in told["Stages"]
    assert told["Stages"].startswith(f"{len(releases)}. ")
    shares = budget_shares(plan.privacy)
    for i, release in enumerate(releases, start=1):
        text = told[f"Stage {i}"]
        assert text.startswith(f"{release.stage} (")
        assert f"noise multiplier {multiplier(release.noise_multiplier)}; " in text
        assert f"; {percent(shares[release.stage])} of the budget." in text
    search = plan.privacy.of_stage("factorisation")
    stage = next(text for text in told.values() if text.startswith("factorisation"))
    assert f"{search.n_rounds} rounds with 30 of 100 sites" in stage
    assert f"a site is in {math.ceil(search.n_rounds * 0.3)} at most" in stage
    assert f"Stage {len(releases) + 1}" not in told
    assert "Warning" not in told


def test_sites_of_unequal_size_and_a_single_site():
    _, told = words(TABLE, together(), 3)
    assert "6,000 records with 4 features at 3 sites with 900 to 3,100 records" in told["Plan"]
    _, told = words(Federation(4, np.array([6000])), together(), 1)
    assert "one cluster among 6,000 records with 4 features at one site." in told["Plan"]
    assert "One round at the one site" in told["Stage 1"]


def test_the_epsilon_if_all_others_collude_is_that_of_one_share_of_the_noise():
    _, told = words(TABLE, together(), 3)
    mu = gaussian_mu(1.0, 1e-5)
    alone = gaussian_epsilon(math.sqrt(3) * mu, 1e-5)  # a third of the noise's variance is left
    assert alone == pytest.approx(1.9, abs=0.1)
    assert f"epsilon is {number(alone)}." in told["Assumed"]
    assert "of all sites that take part arrive" in told["Assumed"]
    assert "no site works with the server" in told["Assumed"]
    _, told = words(TABLE, together(min_survivors=3, colluding_sites=1), 3)
    words_of_it = "at least 3 sites arrive (of all, where fewer are asked), and at most one site"
    assert words_of_it in told["Assumed"]
    _, told = words(TABLE, PrivacyTarget(1.0, 1e-5, "local"), 3)
    assert "Assumed" not in told
    assert "whoever listens in" in told["Trust"]


def test_the_verdict_comes_right_after_what_is_planned():
    """What the noise comes to is for rehearsals to say, and not for the plan."""
    target = PrivacyTarget(1.0, 1e-5, "local")
    plan = DP_FEDC.plan({"n_clusters": 10}, IMAGES, target)
    verdict = ["Verdict: useless. It is.", "Centres: anywhere."]
    told = plan_in_words(plan, IMAGES, target, verdict)
    assert told[1:3] == verdict
    assert [told[0], *told[3:]] == plan_in_words(plan, IMAGES, target)
    for word in ("lost to noise", "poor result", "noise ratio", "the signal"):
        assert word not in " ".join(told)


def test_a_delta_too_large_to_mean_much_is_named():
    _, told = words(IMAGES, PrivacyTarget(8.0, 1e-4, "secure-aggregation"))
    assert "delta 0.0001" in told["Warning"]
    assert "Take 1e-05 or less" in told["Warning"]
    assert "Warning".startswith(NOT_COVERED)
    _, told = words(IMAGES, PrivacyTarget(8.0, 1e-5, "secure-aggregation"))
    assert "Warning" not in told


# --- the planner's choices ---------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
@pytest.mark.parametrize("n_features", [2, 64, 784])
def test_the_planner_never_contradicts_itself(n_features, trust, epsilon):
    facts = Federation(n_features, np.full(20, 200))
    plan, told = words(facts, PrivacyTarget(epsilon, 1e-5, trust), 5)
    by_stage = {stage.name: stage for stage in plan.stages}
    if "cells" in by_stage:
        assert told["Cells"].startswith(f"{by_stage['cells'].n_clusters} small cells")
        assert "Rounds" not in told
    else:
        assert "The planner would take" not in told["Rounds"]
        search = plan.privacy.of_stage("factorisation")
        assert told["Rounds"].startswith(f"{search.n_rounds} rounds of search; ")
    assert told["Refinement"].startswith("none;") != plan.refine
    subspace = by_stage.get("subspace")
    fewer = subspace is not None and subspace.n_dimensions < n_features
    assert told["Subspace"].startswith("none;") != fewer


def test_rounds_that_the_user_asked_for_are_set_beside_the_planners():
    plan, _ = words(IMAGES, together(), shape="round")
    own = plan.privacy.of_stage("factorisation").n_rounds
    _, told = words(IMAGES, together(), shape="round", n_rounds=own + 7)
    assert told["Rounds"].startswith(f"{own + 7} rounds of search")
    assert f"The planner would take {own}." in told["Rounds"]


def test_refinement_is_explained_by_features_or_noise():
    _, told = words(TABLE, together(), 3)
    assert told["Refinement"] == (
        "2 rounds move each prototype, and 1 each centre, to the mean of its records."
    )
    assert told["Start"].startswith("prototypes are put together to 3 clusters from many starts")
    _, told = words(TABLE, together(), 2)
    assert told["Refinement"] == "3 rounds move each centre to the mean of its records."
    assert "Start" not in told
    _, told = words(TABLE, together(), 3, cells=None)
    assert "rounds move each centre to the mean of its records" in told["Refinement"]
    assert "at most 50 features" in told["Refinement"]
    _, told = words(IMAGES, together())
    assert "more than 50 features" in told["Refinement"]
    _, told = words(Federation(4, np.full(3, 40)), together(), 3)
    assert "this much noise" in told["Refinement"]


def test_a_subspace_is_explained():
    _, told = words(IMAGES, together(), subspace=12)
    assert "the 12 directions in which records differ most" in told["Subspace"]
    assert sum("the 12 directions" in text for text in told.values()) == 2


# --- without a proof, and in a line ------------------------------------------------------------


def test_a_plan_without_noise_promises_nothing():
    plan, told = words(TABLE, None, 3, cells=None)
    assert told["Promise"] == f"none; {NO_NOISE}."
    assert "without noise more rounds only help" in told["Rounds"]
    assert not any("multiplier" in text for text in told.values())
    assert plan_in_brief(plan, None).endswith("no noise, so no privacy is promised.")


def test_the_published_variant_promises_nothing():
    target = PrivacyTarget(20.0, 1e-4)
    choices = {"n_clusters": 10, "gradient_bound": 1.0, "n_rounds": 7, "mean_energy": 1.0}
    plan = PUBLISHED.plan(choices, IMAGES, target)
    told = dict(split_subject(text) for text in plan_in_words(plan, IMAGES, target))
    assert told["Promise"].startswith(
        f"none; the paper's noise for epsilon 20; {AS_PUBLISHED}; Theorem 3"
    )
    assert "7 rounds with all 100 sites" in told["Stage 1"]
    brief = plan_in_brief(plan, target)
    assert brief.startswith("Plan: 7 rounds in one stage; the paper's noise for epsilon 20")
    assert brief.endswith("not a proof.")


def test_the_plan_in_a_line():
    plan, _ = words(IMAGES, together())
    brief = plan_in_brief(plan, together())
    n_stages = len(plan.privacy.releases)
    assert brief.startswith(f"Plan: {plan.n_rounds} rounds in {n_stages} stages; epsilon 1, delta")
    assert brief.endswith(", delta 1e-05 for every record.")
    assert "\n" not in brief


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.99991, "1.000"),
        (9.9996, "10.00"),
        (58.724, "58.73"),
        (2980.96, "2,981"),
        (0.0, "0"),
        (math.inf, "infinite"),
    ],
)
def test_epsilon_is_rounded_up_and_never_down(value, shown):
    text = rounded_up(value, 4)
    assert text == shown
    if math.isfinite(value):
        assert float(text.replace(",", "")) >= value
        assert float(number(value).replace(",", "")) >= value


# --- persons -----------------------------------------------------------------------------------


def test_a_plan_for_persons_in_words():
    target = together(2.0, unit="person", sites_per_person=2)
    plan, told = words(TABLE, target, 3)
    assert told["Plan"].startswith("3 clusters among 6,000 persons with 4 features at 3 sites with")
    assert "900 to 3,100 persons each" in told["Plan"]
    assert told["Promise"].startswith("epsilon 2, delta 1e-05 for every person, over")
    assert "odds that a person was there" in told["Promise"]
    assert told["Protected"].startswith("every single person, with rows at up to 2 sites: all of")
    assert "for that epsilon is 4, twice as much" in told["Protected"]
    assert "the most that one person's rows at one site can change the sum" in told["Stages"]
    assert plan_in_brief(plan, target).endswith(" for every person.")
    _, told = words(TABLE, together(2.0), 3)
    assert "Protected" not in told
    assert "one record can change the sum" in told["Stages"]
    many = Federation(4, np.full(10, 100_000))
    _, told = words(many, PrivacyTarget(8.0, 1e-4, "local", unit="person"), 3)
    assert "one over the number of persons" in told["Warning"]
