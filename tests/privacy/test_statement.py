"""The promise in words says no more than its epsilon does."""

import pytest

from dpfedc.privacy.accountant import guarantee
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.statement import (
    how_likely,
    number,
    odds_factor,
    privacy_statement,
    split_subject,
)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.01, "almost as likely"),
        (0.1, "almost as likely"),
        (0.5, "at most 1.65 times more or less likely"),
        (1.0, "at most 2.72 times more or less likely"),
        (8.0, "at most 2,990 times more or less likely"),
        (10.0, "any number of times more or less likely"),
        (1e6, "any number of times more or less likely"),
    ],
)
def test_words_follow_the_number(epsilon, words):
    assert how_likely(epsilon) == words


def test_the_statement_says_almost_only_where_it_is_so():
    for z, almost in ((100.0, True), (0.7, False)):
        plan = PrivacyPlan((PlannedRelease("mean", 1, 5, 1, z),), 1e-5, "local", 5)
        promise = guarantee(plan, None)
        text = " ".join(privacy_statement(promise))
        assert ("almost" in text) == almost
        assert how_likely(promise.epsilon) in text
        assert odds_factor(promise.epsilon) in text


def told(unit="record", sites=1, trust="local"):
    plan = PrivacyPlan(
        (PlannedRelease("mean", 1, 5, 1, 4.0),), 1e-5, trust, 5, unit=unit, sites_per_person=sites
    )
    promise = guarantee(plan, None)
    return promise, dict(map(split_subject, privacy_statement(promise)))


def test_words_for_records():
    _, words = told()
    assert words["Protected"].startswith("every single record. Whatever")
    assert words["Protected"].endswith("if that record had been left blank.")
    assert (
        "about one record: the results change anyone's odds that it was there" in words["How much"]
    )
    assert words["Not protected"].startswith("how many records each site has")
    assert "A person with several records has less protection" in words["Not protected"]


def test_words_for_persons():
    promise, words = told("person")
    assert words["Protected"].startswith("every single person: all of their rows at once. Whatever")
    assert words["Protected"].endswith("if all rows of that person had been left blank.")
    assert "about one person: the results change anyone's odds that they were" in words["How much"]
    assert words["Not protected"].startswith("how many persons each site has")
    assert (
        f"a replacement: for that epsilon is {number(2 * promise.epsilon)}, twice as much"
        in (words["Not protected"])
    )
    assert "A person with rows at several sites has less protection" in words["Not protected"]
    assert "record" not in " ".join(words.values())


@pytest.mark.parametrize("trust", ["local", "secure-aggregation", "trusted-server"])
def test_words_for_persons_at_several_sites(trust):
    promise, words = told("person", 3, trust)
    assert "every single person, with rows at up to 3 sites: all of" in words["Protected"]
    assert "A person with rows at more than 3 sites has less" in words["Not protected"]
    assert how_likely(promise.epsilon) in words["Protected"]  # that of all three sites together
    if trust == "secure-aggregation":
        assert "against whom all sites but their own and the server" in words["Assumed"]
        assert f"epsilon is {number(promise.epsilon_if_others_collude)}." in words["Assumed"]
