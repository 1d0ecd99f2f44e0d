"""Verdicts: the words, what they rest on, and that the worse of two counts."""

import json
import math

import numpy as np
import pytest

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.settings import PrivacyTarget
from dpfedc.tables.schema import Schema
from dpfedc.verdict import verdict as module
from dpfedc.verdict.mixtures import SEPARATIONS, SPREAD_IN_RANGE
from dpfedc.verdict.rehearsal import Outcome
from dpfedc.verdict.verdict import (
    LEAST,
    Rehearsed,
    Verdict,
    column_stds,
    expected_verdict,
    reached_verdict,
    verdict_in_words,
)

GIVEN = {"n_clusters": 2, "norm_bound": 5.0, "n_rounds": 3}


def plan_of(n_records=600, epsilon=4.0, method="dp-lloyd", **given):
    """Return what verdicts take: method, settings, facts, plan."""
    method, facts = method_named(method), Federation(2, np.full(3, n_records // 3))
    given = {**GIVEN, **given}
    target = None if epsilon is None else PrivacyTarget(epsilon, 1e-5)
    return method, given, facts, method.plan(given, facts, target)


def found(score, seed=0, *, k=2):
    """Return an outcome with this score, and centres that noise has moved by 0.1."""
    rng = np.random.default_rng(seed)
    exact = np.arange(2.0 * k).reshape(k, 2)
    centers = exact + 0.1 * rng.standard_normal((k, 2))
    return Outcome(score, centers, exact, centers / 2.0)


@pytest.fixture
def acted(monkeypatch):
    """Return a function that has rehearsals come to given outcomes, with and without noise."""

    def act(noisy, quiet=lambda _: found(1.0)):
        class Acted:
            def __init__(self, method, given, facts, plan):
                self.play = noisy if plan.privacy is not None else quiet

            too_large, in_full = False, True

            def outcome(self, mixture, *, records, noise):
                return self.play(mixture)

        monkeypatch.setattr(module, "Rehearsal", Acted)

    return act


def nobody(_):
    raise AssertionError("nothing is to be rehearsed")


# --- before a run ------------------------------------------------------------------------------


def test_more_noise_is_called_worse(monkeypatch):
    """Real rehearsals, few of them: from usable to useless as epsilon falls."""
    monkeypatch.setattr(module, "GEOMETRIES", 1)
    found = [expected_verdict(*plan_of(300, epsilon, "dp-fedc")) for epsilon in (20.0, 0.05)]
    assert [verdict.word for verdict in found] == ["usable", "useless"]
    assert found[1].center_std > 5 * found[0].center_std


def test_a_verdict_follows_from_the_plan_alone():
    one, again = (expected_verdict(*plan_of(300)) for _ in range(2))
    assert one == again
    assert [r.name for r in one.rehearsed] == list(SEPARATIONS)
    assert [r.separation for r in one.rehearsed] == list(SEPARATIONS.values())


def test_a_hopeless_plan_is_useless_and_not_rehearsed(acted):
    acted(nobody, nobody)
    verdict = expected_verdict(*plan_of(60, 1.0, norm_bound="auto"))
    assert (verdict.word, verdict.score, verdict.rehearsed) == ("useless", 0.0, ())
    (said,) = verdict.sentences
    assert said.startswith("No run can succeed: the length of the longest records cannot be found")
    assert "norm_bound" in said


def test_without_noise_nothing_is_in_the_way(acted):
    acted(nobody, nobody)
    verdict = expected_verdict(*plan_of(epsilon=None))
    assert (verdict.word, verdict.score, verdict.center_std) == ("usable", 1.0, None)


@pytest.mark.parametrize(
    ("noisy", "quiet", "word"),
    [
        (0.80, 1.0, "usable"),
        (LEAST["usable"], 1.0, "usable"),
        (0.74, 1.0, "rough"),
        (0.59, 0.8, "rough"),  # it is the part that counts
        (0.61, 0.8, "usable"),
        (0.5, 0.5, "rough"),  # but what fails without noise is not usable
        (LEAST["rough"], 1.0, "rough"),
        (0.39, 1.0, "useless"),
        (0.9, 0.8, "usable"),
        (0.0, 0.0, "useless"),
    ],
)
def test_the_word_is_by_the_part_of_the_score_without_noise(acted, noisy, quiet, word):
    acted(lambda _: found(noisy), lambda _: found(quiet))
    verdict = expected_verdict(*plan_of())
    assert verdict.word == word
    assert verdict.score == pytest.approx(min(noisy / max(quiet, 1e-9), 1.0))
    assert f"near {noisy:.2f} of {quiet:.2f}" in verdict.sentences[0]


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ((10**9, 20), {"n_clusters": 10_000}),
        ((10**6, 10**6), {}),
        ((10**6, 20), {"n_rounds": 100_000}),
        ((10**6, 20), {"membership_steps": 10_000}),
    ],
)
def test_a_plan_that_would_keep_its_readers_busy_is_not_rehearsed(shape, given):
    method, facts = method_named("dp-fedc"), Federation(shape[1], np.full(10, shape[0] // 10))
    given = {"n_clusters": 10, **given}
    verdict = expected_verdict(
        method, given, facts, method.plan(given, facts, PrivacyTarget(8.0, 1e-6))
    )
    assert (verdict.word, verdict.rehearsed) == ("rough", ())
    assert "too large to be rehearsed" in verdict.sentences[0]


def test_separations_count_together(acted):
    scores = {"near": 0.3, "middling": 0.9, "far": 1.0}
    acted(lambda mixture: found(scores[mixture.name]))
    verdict = expected_verdict(*plan_of())
    assert verdict.score == pytest.approx(sum(scores.values()) / 3)
    assert [r.score for r in verdict.rehearsed] == pytest.approx(list(scores.values()))


def test_runs_that_stopped_are_told_of(acted):
    acted(lambda mixture: Outcome(0.0) if mixture.name == "far" else found(1.0))
    verdict = expected_verdict(*plan_of())
    assert [r.lost for r in verdict.rehearsed] == [0.0, 0.0, 1.0]
    assert verdict.word == "rough"
    assert "In 33 % of the rehearsals the run stopped" in verdict.sentences[1]
    assert verdict.sentences[1].endswith("declare it.")
    acted(lambda _: Outcome(0.0))
    assert expected_verdict(*plan_of()).center_std is None


def test_the_standard_deviation_is_that_of_the_noise_in_a_typical_center(acted):
    """Centres moved by 0.1 in records of spread 2; one that went astray says nothing."""
    seeds = iter(range(1000))

    def play(_):
        outcome = found(1.0, next(seeds), k=9)
        if next(seeds) % 4 == 1:
            outcome.columns[0] += 50.0
        return outcome

    acted(play)
    std = expected_verdict(*plan_of()).center_std
    assert std == pytest.approx(0.05, rel=0.25)


def reached(*planned_and_found):
    return reached_verdict(expected_verdict(*planned_and_found[:4]), *planned_and_found)


# --- after it ----------------------------------------------------------------------------------


def model_of(**changes):
    centers = np.array([[0.4, 0.0], [-0.4, 0.0]])
    fields = {"scale": 2.0, "within": 0.1, "sizes": np.array([300.0, 300.0]), **changes}
    return ClusterModel(np.eye(2), np.zeros(2), centers=centers, by_membership=False, **fields)


@pytest.mark.parametrize(
    ("expected", "again", "word"),
    [
        (0.9, 0.9, "usable"),
        (0.9, 0.5, "rough"),
        (0.9, 0.1, "useless"),
        (0.5, 1.0, "rough"),
        (0.1, 1.0, "useless"),
    ],
)
def test_the_worse_of_expected_and_found_again_counts(acted, expected, again, word):
    acted(lambda mixture: found(again if mixture.name == "released" else expected))
    verdict, _ = reached(*plan_of(), model_of())
    assert verdict.word == word
    assert verdict.again == pytest.approx(again)
    assert verdict.score == pytest.approx(expected)
    assert f"found again with a score of {again:.2f} of 1" in verdict.sentences[-1]


def test_doubts_are_told_and_count_where_nothing_could_be_found_again(acted):
    for expected, looked_for, bare in (
        (1.0, "usable", "rough"),
        (0.5, "rough", "rough"),
        (0.1, "useless", "useless"),
    ):
        acted(lambda _, score=expected: found(score))
        for model, word in ((model_of(), looked_for), (model_of(scale=None, within=None), bare)):
            verdict, _ = reached(*plan_of(), model, ["cluster 1 is small"])
            assert verdict.word == word
            assert verdict.sentences[-1] == "Cluster 1 is small."


def test_many_clusters_within_their_noise_make_it_rough(acted):
    """One empty cluster of two is more than a fifth of them."""
    acted(lambda _: found(1.0))
    errors = {"size_errors": np.array([20.0, 20.0])}
    for sizes, word in (((300.0, 59.0), "rough"), ((300.0, 61.0), "usable")):
        verdict, _ = reached(*plan_of(), model_of(sizes=np.array(sizes), **errors))
        assert verdict.word == word


def test_errors_that_the_run_could_not_tell_are_filled_in(acted):
    acted(lambda _: found(1.0))
    _, model = reached(*plan_of(), model_of())
    outcome = found(1.0)
    gaps = np.abs(outcome.centers - outcome.exact)
    typical = np.sqrt((gaps**2).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(model.center_errors, np.maximum(gaps, typical) / 2.0)
    known = np.full((2, 2), 0.3)
    _, model = reached(*plan_of(), model_of(center_errors=known))
    assert model.center_errors is known
    acted(lambda mixture: Outcome(0.0) if mixture.name == "released" else found(1.0))
    verdict, model = reached(*plan_of(), model_of())
    assert np.isinf(model.center_errors).all()
    assert verdict.word == "useless"


def test_a_model_that_says_too_little_has_the_verdict_of_its_plan(acted):
    acted(lambda _: found(1.0))
    bare = model_of(scale=None, within=None)
    verdict, model = reached(*plan_of(), bare, ["it is bare"])
    assert (verdict.word, verdict.again) == ("rough", None)
    assert model is bare


def test_a_real_run_is_looked_for_again():
    """No noise, clusters far apart: they are found again."""
    verdict, model = reached(*plan_of(epsilon=None), model_of(within=0.005))
    assert verdict.word == "usable"
    assert verdict.again > 0.9
    assert np.isfinite(model.center_errors).all()


# --- words and files ---------------------------------------------------------------------------


def verdict_of(**changes):
    rehearsed = (Rehearsed("near", 4.0, 0.5, 0.8, 0.25),)
    fields = {"sentences": ("So.", "And so."), "center_std": 0.2, "rehearsed": rehearsed}
    return Verdict("rough", 0.625, **{**fields, **changes})


def test_a_verdict_survives_json():
    for verdict in (verdict_of(), verdict_of(center_std=None, rehearsed=(), again=0.5)):
        assert Verdict.from_plain(json.loads(json.dumps(verdict.as_plain()))) == verdict


@pytest.mark.parametrize(
    "wrong",
    [{}, [], 7, {"word": "rough"}, {**verdict_of().as_plain(), "more": 1},
     {**verdict_of().as_plain(), "rehearsed": [{"name": "near"}]}],
)  # fmt: skip
def test_what_is_no_verdict_is_refused(wrong):
    with pytest.raises(InvalidInput, match="not a verdict"):
        Verdict.from_plain(wrong)


SCHEMA = Schema.of({"column": [
    {"name": "age", "kind": "number", "range": [0, 100]},
    {"name": "lab", "kind": "number", "range": [1, 100], "transform": "log"},
    {"name": "pulse", "kind": "number", "range": "auto"},
    {"name": "sex", "kind": "category", "values": ["F", "M"]},
]})  # fmt: skip


def test_standard_deviations_are_told_in_units():
    stds = column_stds(verdict_of(), SCHEMA)
    assert list(stds) == ["age", "lab"]
    assert stds["age"] == pytest.approx(0.2 * SPREAD_IN_RANGE * 50)
    # At 10, the middle of 1 to 100 on a log scale, whose half is log(10).
    up = 10 * (math.exp(0.2 * SPREAD_IN_RANGE * math.log(10)) - 1)
    assert stds["lab"] == pytest.approx(up, rel=1e-6)
    assert column_stds(verdict_of(), None) == {}
    assert column_stds(verdict_of(center_std=None), SCHEMA) == {}


def test_a_verdict_in_words():
    told = verdict_in_words(verdict_of(), SCHEMA)
    assert told[0] == "Verdict: rough. So. And so."
    assert "a cluster of average size by 0.2 of a column's spread" in told[1]
    assert "age 3.5, lab" in told[1]
    assert "units" not in verdict_in_words(verdict_of())[1]
    assert len(verdict_in_words(verdict_of(center_std=None), SCHEMA)) == 1
