"""Clusters as text: numbers rounded to their error bars, every format whole and escaped."""

import csv
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.report.summary_text import CSV_HEAD, Reading, as_csv, as_json, as_markdown, opening
from dpfedc.summary.choice_of_k import ChoiceOfK, KPoint
from dpfedc.summary.cluster_text import brief_rows, detail_rows, heading
from dpfedc.summary.number_text import with_bars
from support.shared_runs import QUALITY
from support.summaries import CENTERS, bent_model, plain_model, table_model


@pytest.mark.parametrize(
    ("value", "reach", "text"),
    [
        (54.31, 1.2, "54.3 ± 1.2"),
        (3021, 150, "3,020 ± 150"),
        (3021, 0.004, "3,021.000 ± 0.004"),
        (-0.0004, 0.03, "0.00 ± 0.03"),
        (1234567, 43210, "1,230,000 ± 40,000"),
        (8.1e-9, 2e-10, "8.1e-09 ± 2e-10"),
    ],
)
def test_numbers_are_rounded_to_their_bars(value, reach, text):
    assert with_bars(value, value - reach, value + reach) == text


@given(value=st.floats(-1e9, 1e9), reach=st.floats(1e-5, 1e9))
def test_rounding_stays_far_within_the_bar(value, reach):
    text = with_bars(value, value - reach, value + reach)
    read = float(text.split(" ")[0].replace(",", ""))
    assert "e" not in text
    assert abs(read - value) <= 0.18 * reach + 1e-6 * abs(value)


def test_a_cluster_in_text():
    summary = table_model().summary()
    old = summary.clusters[1]
    assert heading(old) == "Cluster 1, 100 ± 10 persons (25 %)"
    assert detail_rows(old) == [
        ("smoker = yes", "70.0 ± 2.0 %", "25.0 %"),
        ("age", "70.0 ± 1.0", "40.0"),
    ]
    head, rows = brief_rows(summary)
    assert head == ("cluster", "persons", "share", "set apart by")
    assert rows[0] == ("0", "300 ± 10", "75 %", "smoker = no, low age")
    assert rows[1][-1] == "smoker = yes, high age"


def test_values_without_bars_in_text():
    exact = table_model(error=0, size_errors=np.zeros(2)).summary().clusters[1]
    assert heading(exact) == "Cluster 1, 100 persons (25 %)"
    assert detail_rows(exact)[1] == ("age", "70.00", "40.00")
    unknown = plain_model(np.array([[1.23456], [2.0]])).summary().clusters[0]
    assert heading(unknown) == "Cluster 0"
    assert detail_rows(unknown) == [("x0", "1.23", "1.62")]


def test_it_opens_with_the_verdict_and_the_doubts():
    results = {"verdict": {"word": "rough", "sentences": ["Few records."]}, "doubts": ["so so"]}
    first, second, *_ = opening(Reading.of(table_model().summary(), results))
    assert (first, second) == ("Verdict: rough. Few records.", "Doubt: so so.")
    results["verdict"]["sentences"] = ["Few records.", "So so."]  # it has the doubt in it
    first, second, *_ = opening(Reading.of(table_model().summary(), results))
    assert (first, second[:9]) == ("Verdict: rough. Few records. So so.", "How sure:")


def test_csv_has_all_values():
    centers = CENTERS.copy()
    centers[:, 1] = 0.1
    summary = table_model(centers=centers).named(1, "old, or so").summary()
    text = as_csv(Reading(summary)).decode()
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == list(CSV_HEAD)
    found = [(r["column"], r["value"]) for r in rows if r["cluster"] == "1"]
    assert found == [
        *(("age", ""), ("age", "missing"), ("smoker", "yes"), ("smoker", "no")),
        *(("stage", "III"), ("stage", "II"), ("stage", "I")),
    ]
    last = rows[-1]
    assert (last["name"], last["size"], last["certainty"]) == ("old, or so", "100", "error bars")
    assert float(last["low"]) <= float(last["mean"]) <= float(last["high"])


def test_json_has_all_values_and_stable_keys():
    found = json.loads(as_json(Reading(table_model().summary())))
    assert list(found) == [
        *("unit", "verdict", "doubts", "notes", "stamps", "size_certainty", "certainty"),
        *("choice", "clusters", "quality"),
    ]
    cluster = found["clusters"][1]
    assert list(cluster) == [
        *("cluster", "name", "size", "size_low", "size_high", "share", "note", "is_mean"),
        *("n_prototypes", "set_apart_by", "columns"),
    ]
    assert cluster["set_apart_by"] == ["smoker", "age"]
    column = cluster["columns"][1]
    assert list(column) == ["column", "kind", "compared", "apart", "values"]
    assert list(column["values"][0]) == ["value", "mean", "low", "high", "overall", "stands_out"]


def test_markdown_escapes_what_is_not_its_own():
    model = table_model().named(0, "a|b <i>*x*")
    text = as_markdown(Reading(model.summary()))
    assert r"a\|b \<i\>\*x\*" in text
    for line in filter(lambda line: line.startswith("|"), text.splitlines()):
        assert len(re.findall(r"(?<!\\)\|", line)) in (4, 5)


def test_quality_is_told_in_markdown():
    text = as_markdown(Reading.of(table_model().summary(), {}, QUALITY))
    assert "## How good the clusters are\n\nSilhouette: 0.38 ± 0.03." in text
    assert "| 0 | 300 ± 10 | 0.80 ± 0.06 | 0.50 ± 0.04 |\n| 1 | 4 (0 to 14) |" in text


def test_a_link_of_nothing_has_no_sign():
    choice = ChoiceOfK(2, 0.05, 0.1, (KPoint(2, -0.004, 0.015), KPoint(3, 0.05, None)))
    assert [row[1] for row in choice.rows()] == ["0.00 ± 0.03", "0.05"]
    number, why = choice.paragraphs()
    assert "The choice is not clear." in number
    assert "by 0.05 more than with so many or fewer, needed at least 0.10." in why
    assert why.endswith("2 is the best guess.")


def test_a_choice_and_prototypes_are_told_in_every_format():
    reading = Reading(bent_model().summary())
    told = " ".join(opening(reading))
    assert "Number: 2 clusters, chosen from 2 to 4. The choice is clear." in told
    assert "Made of: 5 prototypes: 4 in cluster 0, 1 in cluster 1." in told
    found = json.loads(as_json(reading))
    assert (found["choice"]["n_clusters"], found["choice"]["clear"]) == (2, True)
    assert found["choice"]["curve"][2] == {"n_clusters": 4, "link": None, "error": None}
    assert [cluster["n_prototypes"] for cluster in found["clusters"]] == [4, 1]
    assert "| 2 | -0.02 ± 0.06 | chosen |" in as_markdown(reading)
    assert "| 4 | not so many to make |  |" in as_markdown(reading)
    plain = json.loads(as_json(Reading(table_model().summary())))
    assert plain["choice"] is None
