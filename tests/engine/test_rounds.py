"""How far released centres move, from the states before and after a round."""

import json

import numpy as np
import pytest

from dpfedc import DPFedC, DPLloyd
from dpfedc.engine.rounds import moved
from dpfedc.engine.run_record import RunRecord

CENTERS = np.array([[3.0, 0.0], [-3.0, 0.0]])


@pytest.mark.parametrize("name", ["centers", "W"])
def test_movement_is_measured_against_how_far_apart_the_centers_are(name):
    after = CENTERS + np.array([[0.0, 3.0], [0.0, -3.0]])
    # Both move by 3, and are then 3 sqrt(2) from their mean.
    assert moved({name: CENTERS}, {name: after}) == pytest.approx(1 / np.sqrt(2))
    assert moved({name: CENTERS}, {name: CENTERS}) == 0
    assert moved({name: 10 * CENTERS}, {name: 10 * after}) == pytest.approx(1 / np.sqrt(2))


def test_centers_count_before_directions():
    states = [{"centers": CENTERS, "W": w * np.eye(2)} for w in (1.0, 2.0)]
    assert moved(*states) == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"centers": CENTERS}),
        ({"scale": np.ones(1)}, {"scale": np.ones(1)}),
        ({"W": np.eye(3)}, {"W": np.eye(2)}),
        ({"centers": CENTERS}, {"centers": np.ones((2, 2))}),  # all in one place
        ({"centers": CENTERS}, {"centers": np.full((2, 2), np.inf)}),
        ({"centers": CENTERS}, {"centers": np.full((2, 2), np.nan)}),
    ],
)
def test_where_nothing_can_be_said_nothing_is(before, after):
    with np.errstate(all="ignore"):
        assert moved(before, after) is None


def test_the_rounds_of_a_run_say_it(blobs, tmp_path):
    X, _, sites = blobs
    model = DPFedC(3, epsilon=None, n_rounds=5, random_state=0).fit(X, sites=sites)
    told = {entry.stage: entry.moved for entry in model.history_.rounds}
    assert told["mean"] is told["scale"] is None
    assert told["factorisation"] >= 0
    lloyd = DPLloyd(3, epsilon=None, n_rounds=30, random_state=0).fit(X, sites=sites)
    path = [entry.moved for entry in lloyd.history_.rounds if entry.stage == "lloyd"]
    assert path[0] > 0
    assert path[-1] == 0  # it has converged
    lloyd.history_.write(tmp_path / "run.jsonl")
    assert RunRecord.read(tmp_path / "run.jsonl").rounds == lloyd.history_.rounds
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["moved"] for line in lines if "moved" in line][-1] == 0
