"""Run records: what is written is read back, and nothing else is taken for a record."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc import DPFedC
from dpfedc.engine.run_record import EXACT, RoundRecord, RunRecord
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.privacy.accountant import plan_epsilon
from dpfedc.privacy.privacy_plan import PrivacyPlan
from support.command_line import EXACT as NO_DIAGNOSTICS
from support.command_line import HEAD, ROLES, patients, write_csv

finite = st.floats(allow_nan=False, allow_infinity=False)
rounds = st.builds(
    RoundRecord,
    stage=st.text(max_size=8),
    t=st.integers(1, 10**6),
    n_sites=st.integers(1, 10**6),
    n_records=st.integers(1, 10**9),
    seconds=finite,
    release=st.dictionaries(st.text(max_size=8), finite, max_size=3),
    diagnostics=st.dictionaries(st.text(max_size=8), finite, max_size=3),
    moved=st.none() | finite,
)
settings_of_a_run = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers() | finite | st.text(max_size=8)
)
runs = st.builds(
    RunRecord,
    method=st.text(max_size=8),
    version=st.text(max_size=8),
    settings=settings_of_a_run,
    rounds=st.lists(rounds, max_size=4).map(tuple),
    stamps=st.lists(st.text(max_size=8), max_size=3).map(tuple),
    results=settings_of_a_run,
)


@pytest.fixture
def record():
    rounds = tuple(
        RoundRecord(stage, t, 5, 50, 0.01, diagnostics={"objective": 1.0 / t} if t != 2 else {})
        for stage, t in [("mean", 1), ("factorisation", 1), ("factorisation", 2), ("centres", 3)]
    )
    return RunRecord("dp-fedc", "1.2", {"k": 3}, rounds, ("no noise",), {"accuracy": 0.5})


@given(runs)
def test_a_record_survives_the_file(tmp_path_factory, run):
    path = tmp_path_factory.mktemp("records") / "run.jsonl"
    run.write(path)
    assert RunRecord.read(path) == run


def test_the_file_has_one_json_object_per_line(record, tmp_path):
    path = tmp_path / "run.jsonl"
    record.write(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["run", *["round"] * 4, "end"]


def test_series_numbers_the_rounds_of_all_stages(record):
    assert record.series("objective") == ([1, 2, 4], [1.0, 1.0, 1 / 3])
    assert record.series("accuracy") == ([], [])


def test_every_cut_file_is_refused(record, tmp_path):
    path = tmp_path / "run.jsonl"
    record.write(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match="not a complete run record"):
            RunRecord.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "[1, 2]\n[3]\n",
        "7\n8\n",
        '{"kind": "run"}\n{"kind": "end"}\n',
        '{"kind": "end", "stamps": [], "results": {}}\n',
        '{"kind": "run", "method": "x", "version": "1", "settings": {}}\n'
        '{"kind": "other"}\n{"kind": "end", "stamps": [], "results": {}}\n',
        '{"kind": "run", "method": "x", "version": "1", "settings": {}}\n'
        '{"kind": "round", "stage": "x"}\n{"kind": "end", "stamps": [], "results": {}}\n',
        '{"kind": "run", "method": "x", "version": "1", "settings": {}, "extra": 1}\n'
        '{"kind": "end", "stamps": [], "results": {}}\n',
    ],
)
def test_foreign_files_are_refused(text, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"run\.jsonl is not a complete run record"):
        RunRecord.read(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InvalidInput, match="not a complete run record"):
        RunRecord.read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataUnavailable, match=r"no such run record: .*nowhere\.jsonl"):
        RunRecord.read(tmp_path / "nowhere.jsonl")


def test_nothing_is_written_of_a_record_that_cannot_be(record, tmp_path):
    bad = RunRecord("m", "1", {"epsilon": float("inf")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        bad.write(tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_diagnostic_that_is_not_finite_is_written_as_null_and_read_as_nan(value, tmp_path):
    """It must not cost the user a finished run."""
    path = tmp_path / "run.jsonl"
    rounds = (
        RoundRecord("fit", 1, 1, 1, 0.1, diagnostics={"objective": value, "accuracy": 0.5}),
        RoundRecord("fit", 2, 1, 1, 0.1, diagnostics={"objective": 2.0}),
    )
    RunRecord("m", "1", {}, rounds).write(path)
    line = json.loads(path.read_text().splitlines()[1])
    assert line["diagnostics"] == {"objective": None, "accuracy": 0.5}
    found = RunRecord.read(path)
    assert np.isnan(found.rounds[0].diagnostics["objective"])
    assert found.rounds[0].diagnostics["accuracy"] == 0.5
    assert found.rounds[1] == rounds[1]
    assert found.series("objective")[0] == [1, 2]


def test_what_protects_a_round_must_be_finite(tmp_path):
    record = RunRecord("m", "1", {}, (RoundRecord("fit", 1, 1, 1, 0.1, {"noise_std": np.inf}),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.write(tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_the_history_of_a_fit_can_be_written_whatever_numbers_were_given(blobs, tmp_path):
    """Settings that come from a grid are NumPy scalars."""
    X, y, sites = blobs
    model = DPFedC(
        n_clusters=np.int64(3), n_rounds=np.int32(4), sites_per_round=np.int64(5),
        clip_norm=np.float32(0.1), step=np.float64(12), refine_rounds=np.int64(2),
        membership_steps=np.int64(5), extra_steps=np.int64(1), momentum=np.float32(0.5),
        orthogonality=np.float32(0.5), constant_feature=np.float64(0.5), batch_size=np.int8(9),
        delta=np.float32(1e-5), random_state=np.int64(3), diagnostics=np.True_,
        center=np.True_, scale=np.True_, nonnegative=np.False_, norm_bound=np.float32(12),
        epsilon=np.float64(20), trust="secure-aggregation", min_survivors=np.int64(4),
        colluding_sites=np.int8(1), sampling_probability=np.float32(1),
    ).fit(X, y, sites=sites)  # fmt: skip
    path = tmp_path / "run.jsonl"
    model.history_.write(path)
    read = RunRecord.read(path)
    assert read.rounds == model.history_.rounds
    assert read.settings["random_state"] == 3
    assert read.results["privacy"] == model.privacy_.as_plain()
    plan = PrivacyPlan.from_json(json.dumps(read.results["privacy_plan"]))
    assert plan_epsilon(plan) == model.privacy_.epsilon <= 20
    assert (plan.min_survivors, plan.colluding_sites) == (4, 1)
    published = DPFedC(n_clusters=3, variant="published", n_rounds=3, extra_steps=0, random_state=0,
                       epsilon=np.float32(5), gradient_bound=np.float32(1)).fit(abs(X))  # fmt: skip
    published.history_.write(path)
    assert RunRecord.read(path).settings["epsilon"] == 5


def test_exact_values_come_with_their_stamp_once(record):
    once = record.with_exact(scores={"cost": 2.0})
    twice = once.with_exact(cluster_sizes=[3, 4])
    assert once.stamps == twice.stamps == ("no noise", EXACT)
    assert twice.results == {"accuracy": 0.5, "scores": {"cost": 2.0}, "cluster_sizes": [3, 4]}


def test_the_record_of_a_fit_without_diagnostics_stamps_its_scores(dpfedc, tmp_path):
    folder = tmp_path / "r"
    table = write_csv(tmp_path / "patients.csv", HEAD, patients())
    code, _, _ = dpfedc("fit", table, "--clusters", 3, *ROLES, *NO_DIAGNOSTICS, "--output", folder)
    found = RunRecord.read(folder / "run.jsonl")
    assert code == 0
    assert {"scores", "cluster_sizes"} <= found.results.keys()
    assert EXACT in found.stamps
