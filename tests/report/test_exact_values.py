"""The exact values of a trial: what is there, in which words, and nothing where there is none."""

import numpy as np
import pytest

from dpfedc.engine.run_record import RunRecord
from dpfedc.report.exact_values import exact_values
from dpfedc.summary.number_text import shown
from support.shared_runs import promised_record


def test_everything_is_told_in_the_unit_of_the_run():
    exact = exact_values(promised_record(), [[1, 2], [3, 4]], ["a", "b"])
    assert exact.scores.head == ("score", "this run", "pooled k-means")
    assert list(exact.scores.rows) == [("accuracy", 0.875, 0.9), ("cost to the means", 2.5, 2.25)]
    assert "distance of a person to the mean" in exact.scores.caption
    assert "1 is perfect" in exact.scores.caption
    assert exact.sizes.head == ("cluster", "persons")
    assert list(exact.sizes.rows) == [("cluster 0", 310), ("cluster 1", 90)]
    assert "share of persons" in exact.accuracy.caption
    assert "pooled data, 0.900." in exact.accuracy.caption
    assert exact.accuracy.reference is not None
    assert "persons per site: 3 to 7" in exact.per_site.caption


def test_without_labels_there_is_neither_accuracy_nor_its_explanation():
    record = RunRecord("m", "1", {}, results={"scores": {"cost": 2.0}})
    exact = exact_values(record)
    assert exact.scores.head == ("score", "this run")
    assert "perfect" not in exact.scores.caption
    assert "distance of a record" in exact.scores.caption
    assert (exact.sizes, exact.accuracy, exact.per_site) == (None, None, None)
    assert exact_values(RunRecord("m", "1", {})) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.489, "0.4890"),
        (123.44, "123.4"),
        (999.97, "1000"),
        (1234567.8, "1,234,568"),
        (np.int64(12345), "12,345"),
        (np.float32(0.5), "0.5000"),
        (-3.14159, "-3.142"),
        (0, "0"),
        (None, "\N{EN DASH}"),
        (float("nan"), "\N{EN DASH}"),
        ("0.5 (at most)", "0.5 (at most)"),
    ],
)
def test_numbers_are_shown_in_four_figures(value, text):
    assert shown(value) == text
