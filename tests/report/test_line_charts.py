"""Line charts: where points lie, where lines break, and what is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.report.line_charts import BOTTOM, LEFT, RIGHT, TOP, choice_chart, line_chart
from dpfedc.summary.choice_of_k import ChoiceOfK, KPoint
from support.summaries import CHOICE

WORDS = {"heading": "h", "what": "the movement", "caption": "c"}


def record(*stages):
    rounds = [RoundRecord(name, t, 1, 1, 0.1) for name, n in stages for t in range(1, n + 1)]
    return RunRecord("m", "1", {}, tuple(rounds))


def test_points_lie_in_proportion_to_values_and_rounds():
    chart = line_chart(record(("mean", 1), ("fit", 3)), [(2, 0.0), (3, 0.5), (4, 1.0)], **WORDS)
    ((zero, half, one),) = chart.lines
    assert zero[1] == BOTTOM
    assert (zero[1] - half[1]) == pytest.approx((zero[1] - one[1]) / 2, abs=0.11)
    assert half[0] - zero[0] == pytest.approx(one[0] - half[0], abs=0.11)
    assert chart.across == ((zero[0], "2"), (half[0], "3"), (one[0], "4"))
    assert chart.upward[0] == (BOTTOM, "0")
    assert {text: y for y, text in chart.upward}["1"] == one[1]
    assert chart.alt == "Line chart of the movement per round: 0.00 in round 2, 1.00 in round 4."
    assert not chart.shades


def test_lines_break_between_stages_and_every_second_one_is_shaded():
    pairs = [(t, 0.3) for t in range(1, 11)]
    chart = line_chart(record(("mean", 4), ("factorisation", 6)), pairs, **WORDS)
    assert [len(line) for line in chart.lines] == [4, 6]
    ((left, width),) = chart.shades
    assert width == pytest.approx(0.6 * (RIGHT - LEFT), abs=0.2)
    assert left + width == pytest.approx(RIGHT, abs=0.2)
    assert [name for _, name in chart.stages] == ["mean", "factorisation"]
    tight = line_chart(record(("factorisation", 1), ("b", 9)), pairs, **WORDS)
    assert [name for _, name in tight.stages] == ["b"]  # a name that does not fit is left out


def test_a_choice_is_ringed_and_has_error_bars():
    chart = choice_chart(CHOICE)
    ((two, three),) = chart.lines  # of four clusters nothing is known
    assert chart.chosen == two
    assert two[1] == BOTTOM  # a link below 0 is noise around a gap
    (x, low, high), (_, _, top) = chart.bars
    assert (x, low) == (two[0], BOTTOM)
    assert TOP <= top < three[1] < high < BOTTOM
    assert three[1] - top == pytest.approx((BOTTOM - three[1]) * 1.96 * 0.05 / 0.25, abs=0.11)
    assert [text for _, text in chart.across] == ["2", "3", "4"]
    assert chart.axis == "number of clusters"
    assert "2 are chosen, which is clear" in chart.alt
    assert choice_chart(ChoiceOfK(2, 0.0, 0.1, (KPoint(2, None, None),))) is None


def test_no_values_no_chart():
    assert line_chart(record(("fit", 2)), [], **WORDS) is None
    assert line_chart(record(("fit", 2)), [(1, float("nan"))], **WORDS) is None
    one = line_chart(record(("fit", 2)), [(1, float("inf")), (2, 0.25)], **WORDS)
    assert one.alt.endswith("0.25 in round 2.")


@given(
    values=st.lists(st.floats(0, 1e6), min_size=1, max_size=50),
    reference=st.none() | st.floats(0, 1e6),
)
def test_everything_stays_within_the_axes(values, reference):
    pairs = list(enumerate(values, start=1))
    chart = line_chart(record(("fit", len(values))), pairs, reference=reference, **WORDS)
    points = [point for line in chart.lines for point in line]
    heights = [y for _, y in points] + [y for y, _ in chart.upward]
    heights += [] if reference is None else [chart.reference]
    assert all(LEFT <= x <= RIGHT for x, _ in points)
    assert all(TOP <= y <= BOTTOM for y in heights)
    assert 2 <= len(chart.upward) <= 6
    assert len(chart.across) <= 8
    assert not any("e" in text for _, text in (*chart.across, *chart.upward))
