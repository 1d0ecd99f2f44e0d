"""What a record says of privacy: the promise in words, and the table of its stages."""

from dataclasses import replace

import numpy as np
import pytest

from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.privacy.statement import split_subject
from dpfedc.report.content import summary_sentences
from dpfedc.report.promise import (
    EXACT_SHOWN,
    privacy_in_short,
    privacy_paragraphs,
    recorded_guarantee,
    recorded_plan,
    stage_rows,
    stages_caption,
)
from support.summaries import plain_model, table_model

PROMISE = {
    "epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "zero-out", "trust": "local",
    "min_survivors": None, "colluding_sites": 0, "epsilon_if_others_collude": 1.0,
    "accountant": "PLD", "rounds_per_site": {"mean": 1}, "stamp": "simulated noise",
}  # fmt: skip


def told(record):
    return dict(map(split_subject, privacy_paragraphs(record)))


def test_a_recorded_promise_is_stated_in_words():
    record = RunRecord("m", "1", {"epsilon": 1.0}, results={"privacy": PROMISE})
    words = told(record)
    assert {"Protected", "From whom", "How much", "Not protected", "Note"} == set(words)
    assert words["How much"].startswith("epsilon 1, delta 1e-05, ")
    assert "by at most a factor of 2.72" in words["How much"]
    assert '"simulated noise"' in words["Note"]
    assert EXACT_SHOWN not in privacy_paragraphs(record)
    assert privacy_paragraphs(record.with_exact())[-1] == EXACT_SHOWN
    together = {**PROMISE, "trust": "secure-aggregation", "colluding_sites": 3}
    together |= {"min_survivors": 20, "epsilon_if_others_collude": 12.34, "stamp": None}
    words = told(replace(record, results={"privacy": together}))
    assert (
        "at least 20 sites arrive (of all, where fewer are asked), and at most 3 sites work"
        in words["Assumed"]
    )
    assert "epsilon is 12.4." in words["Assumed"]
    assert "(secure aggregation)" in words["From whom"]
    assert "Note" not in words
    assert "Nobody can draw them again" in words["Noise"]
    words = told(replace(record, results={"privacy": {**PROMISE, "trust": "trusted-server"}}))
    assert words["From whom"].startswith("everyone but the server.")


def test_a_large_epsilon_is_not_dressed_up():
    results = {"privacy": {**PROMISE, "epsilon": 20.0}}
    words = told(RunRecord("m", "1", {"epsilon": 20.0}, results=results))
    assert "by any factor" in words["How much"]


def test_no_noise_is_no_promise():
    paragraphs = privacy_paragraphs(RunRecord("m", "1", {"epsilon": None}))
    assert paragraphs == ["Not protected: this run adds no noise, so it promises no privacy."]
    other = privacy_paragraphs(RunRecord("m", "1", {"epsilon": 1.0}))
    assert other == ["Not protected: this run has no privacy plan, so it promises no privacy."]


def test_a_foreign_promise_is_refused():
    record = RunRecord("m", "1", {}, results={"privacy": {"epsilon": 1}})
    with pytest.raises(InvalidInput, match="not a promise made here"):
        recorded_guarantee(record)
    record = RunRecord("m", "1", {}, results={"privacy_plan": {"releases": []}})
    with pytest.raises(InvalidInput, match="not a privacy plan"):
        recorded_plan(record)


def test_rows_of_the_stages():
    mean = {"stage": "mean", "purpose": "the middle", "n_rounds": 1, "rounds_per_site": 1}
    mean |= {"noise_multiplier": 2.0, "budget_share": 0.501}
    search = {"stage": "search", "purpose": "the clusters", "n_rounds": 1200}
    search |= {"rounds_per_site": 600, "noise_multiplier": 49.0, "budget_share": None}
    record = RunRecord("m", "1", {}, results={"stages": [mean, search]})
    assert stage_rows(record) == [
        ("mean: the middle", "1", "2.00", "50 %"),
        ("search: the clusters", "1,200 (600 per site)", "49.0", "the rest"),
    ]
    bare = {"stage": "mean", "purpose": "the middle", "n_rounds": 1}
    assert stage_rows(RunRecord("m", "1", {}, results={"stages": [bare]})) == []
    assert stage_rows(RunRecord("m", "1", {})) == []


def test_what_the_published_noise_comes_to_is_told_as_recorded():
    record = RunRecord("m", "1", {"epsilon": 1.0}, results={"privacy_notes": ["Note: a", "b"]})
    assert privacy_paragraphs(record) == ["Note: a", "b"]


def test_a_run_for_persons_says_so():
    promise = {**PROMISE, "unit": "person", "sites_per_person": 2}
    settings = {"epsilon": 1.0, "n_sites": 3, "n_records": 600, "n_features": 4, "n_clusters": 3}
    results = {"privacy": promise, "cluster_sizes": [100, 200, 300]}
    record = RunRecord("m", "1", settings, results=results)
    assert "with rows at up to 2 sites" in told(record)["Protected"]
    assert "one person's rows at one site can change a release" in stages_caption(record)
    did = summary_sentences(record, table_model())
    assert did == [
        "600 persons at 3 sites were put into 2 clusters by 3 columns.",  # 9 features
        "It took 0 rounds; each site kept its persons to itself.",
    ]
    old = replace(record, results={"privacy": PROMISE})  # a record of before units were told apart
    assert recorded_guarantee(old).sites_per_person == 1
    assert "one record can change a release" in stages_caption(old)
    assert "one record can change a release" in stages_caption(RunRecord("m", "1", {}))
    assert "600 records" in summary_sentences(old, table_model())[0]
    alone = replace(old, settings={**settings, "n_sites": 1})
    assert summary_sentences(alone, plain_model(np.eye(2)))[0].endswith(
        "at one site were put into 2 clusters by 2 columns."
    )


def test_the_promise_in_short_says_what_how_much_from_whom_and_what_not():
    record = RunRecord("m", "1", {"epsilon": 1.0}, results={"privacy": PROMISE})
    what, whom, not_this = privacy_in_short(record)
    assert what.startswith("Protected: every single record. With epsilon 1 and delta 0.00001, ")
    assert "at most 2.72 times more or less likely if that record had been left blank" in what
    assert whom == (
        "From whom: everyone who sees the uploads: the server, the other sites, and whoever "
        "listens in."
    )
    assert not_this.startswith("Not protected: what is true of whole groups, and how many records")
    assert "Against whoever knows this trial's seed nothing is protected" in not_this
    real = {**PROMISE, "stamp": None, "unit": "person"}
    *_, not_this = privacy_in_short(replace(record, results={"privacy": real}))
    assert not_this == (
        "Not protected: what is true of whole groups, and how many persons each site has."
    )
    nothing = privacy_in_short(RunRecord("m", "1", {"epsilon": None}))
    assert nothing == ["Not protected: this run adds no noise, so it promises no privacy."]


def test_the_promise_in_short_says_what_secure_aggregation_rests_on():
    shared = {"trust": "secure-aggregation", "min_survivors": 20, "colluding_sites": 3}
    record = RunRecord("m", "1", {}, results={"privacy": {**PROMISE, **shared}})
    _, _, assumed, _ = privacy_in_short(record)
    assert assumed.startswith("Assumed: in every round the uploads of at least 20 sites arrive")
    assert "at most 3 sites work with the server" in assumed
