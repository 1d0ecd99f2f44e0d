"""The promise in words says no more than its epsilon does."""

import pytest

from dpfedc.privacy.accountant import guarantee
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.statement import how_likely, odds_factor, privacy_statement


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
