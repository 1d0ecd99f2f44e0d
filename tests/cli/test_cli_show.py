"""`dpfedc show` and `dpfedc name`: what they print of a run, and what they must not."""

import json
import shutil

import pytest

from dpfedc.engine.run_record import RunRecord
from dpfedc.model_file import ClusterModel
from support.command_line import fitted_tables, read_csv
from support.deployment import MemoryTransport, agreed
from support.summaries import table_model

FORMATS = ((), ("--json",), ("--csv",), ("--markdown",))
MARKER = "7391846205"


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return fitted_tables(tmp_path_factory.mktemp("trial"))


@pytest.fixture
def folder(trial, tmp_path):
    return shutil.copytree(trial[1], tmp_path / "run")


def test_show_says_who_the_groups_are_how_many_and_how_sure(dpfedc, folder):
    for path in (folder, folder / "model.npz"):
        code, out, err = dpfedc("show", path)
        assert (code, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80
        text = " ".join(out.split())
        assert "Sizes and centres are exact values of the last round: no noise was added" in text
        assert 'Stamped "no noise was added: not private"' in text
        assert "Cluster 0, 20 records (33 %)" in text
        assert "high age" in text
        assert "low pressure" in text


def test_it_opens_with_verdict_and_doubts(dpfedc, folder):
    record = RunRecord.read(folder / "run.jsonl")
    verdict = {"word": "useless", "sentences": ["Noise is all there is."]}
    record.with_results(verdict=verdict, doubts=["a centre is lost"]).write(folder / "run.jsonl")
    out = dpfedc("show", folder)[1]
    assert out.startswith("Verdict")
    assert "useless. Noise is all there is." in out.splitlines()[0]
    assert "a centre is lost." in out.splitlines()[1]
    found = json.loads(dpfedc("show", folder, "--json")[1])
    assert (found["verdict"], found["doubts"]) == (verdict, ["a centre is lost"])


@pytest.mark.parametrize("words", FORMATS)
def test_show_has_released_values_only(dpfedc, folder, words):
    """A planted seed, id, exact score, exact size, label, run and command are in no format."""
    path = folder / "run.jsonl"
    record = RunRecord.read(path)
    planted = RunRecord(
        record.method,
        record.version,
        {**record.settings, "random_state": int(MARKER), "run": MARKER, "name": MARKER},
        record.rounds,
        record.stamps,
        {
            **record.results,
            "scores": {"accuracy": float(f"0.{MARKER}")},
            "cluster_sizes": [int(MARKER)] * 3,
            "command": f"dpfedc fit {MARKER}.csv --seed {MARKER}",
            "title": MARKER,
            "pooled_kmeans": {"cost": float(MARKER)},
        },
    )
    planted.write(path)
    (folder / "labels.csv").write_text(f"site,id,cluster\n{MARKER},{MARKER},0\n")
    model = ClusterModel.read(folder / "model.npz")
    about = {**model.about, "run": MARKER, "seed": MARKER}
    ClusterModel(**{**vars(model), "about": about}).write(folder / "model.npz")
    code, out, err = dpfedc("show", folder, *words)
    assert (code, err) == (0, "")
    assert MARKER not in out.replace(",", "")
    assert "age" in out


def test_formats_exclude_each_other(dpfedc, folder):
    code, out, err = dpfedc("show", folder, "--json", "--csv")
    assert (code, out) == (2, "")
    assert "exclude each other" in err


def test_a_name_shows_wherever_the_cluster_does(dpfedc, trial, folder, tmp_path):
    table = trial[0]
    code, out, _ = dpfedc("name", folder, 1, "[b]frail")
    assert (code, out.splitlines()[0]) == (0, 'Cluster 1 is called "[b]frail".')
    assert ClusterModel.read(folder / "model.npz").names == {1: "[b]frail"}
    assert "Cluster 1: [b]frail" in dpfedc("show", folder)[1]
    for words in FORMATS[1:]:
        assert "frail" in dpfedc("show", folder, *words)[1]
    head, *rows = read_csv(folder / "centres.csv")
    assert head == ["cluster", "name", "size", "age", "pressure"]
    assert [row[1] for row in rows] == ["", "[b]frail", ""]
    out = dpfedc("predict", folder / "model.npz", table, "--output", tmp_path / "l.csv")[1]
    assert "[b]frail" in out
    assert dpfedc("name", folder, 1, "")[0] == 0
    assert read_csv(folder / "centres.csv")[0] == ["cluster", "size", "age", "pressure"]
    assert "frail" not in dpfedc("show", folder)[1]


@pytest.mark.parametrize(
    ("cluster", "name", "reason"),
    [
        (3, "x", "cluster must be from 0 to 2, got 3"),
        (0, "a\x1b[31m", "a cluster's name must be 1 to 60 printable characters"),
        (0, "x" * 61, "a cluster's name must be 1 to 60 printable characters"),
        (0, "=1+1", "a cluster's name must not start with one of = + - @"),
        ("one", "x", "must be a whole number >= 0, got 'one'"),
    ],
)
def test_a_name_is_refused_in_one_line(dpfedc, folder, cluster, name, reason):
    before = (folder / "model.npz").read_bytes()
    code, out, err = dpfedc("name", folder, cluster, name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert (folder / "model.npz").read_bytes() == before


def test_a_folder_without_a_model_is_refused(dpfedc, tmp_path):
    assert "must be the folder of a run that is over" in dpfedc("show", tmp_path)[2]
    assert "no such model file" in dpfedc("show", tmp_path / "x.npz")[2]


def test_terminals_are_safe_from_what_a_schema_calls_its_columns(dpfedc, tmp_path):
    model = table_model()
    evil = model.schema.to_json().replace('"smoker"', '"sm\\u001b[31moker [red]"')
    ClusterModel(**{**vars(model), "schema": type(model.schema).from_json(evil)}).write(
        tmp_path / "model.npz"
    )
    code, out, _ = dpfedc("show", tmp_path)
    assert code == 0
    assert "\x1b" not in out
    assert "[red]" in out


def test_deployed_runs_can_be_shown_and_named(dpfedc, tmp_path):
    """A server's or a site's folder stands for its one run; names outlive that it is resumed."""
    transport = MemoryTransport(agreed("dp-lloyd", noise="secure"), tmp_path)
    transport.coordinator().run()
    home = tmp_path / "hub"
    shutil.copytree(tmp_path / "run", home / "runs" / "abc")
    assert dpfedc("name", home, 2, "tall")[0] == 0
    code, out, err = dpfedc("show", home / "runs" / "abc")
    assert (code, err) == (0, "")
    assert "Cluster 2: tall" in out
    shutil.copytree(home / "runs" / "abc", home / "runs" / "def")
    assert "must be the folder of one run, got those of several" in dpfedc("show", home)[2]

    assert dpfedc("name", tmp_path / "run", 0, "small")[0] == 0
    again = transport.coordinator().run()
    assert again.model.names == {0: "small"}
    assert ClusterModel.read(tmp_path / "run" / "model.npz").names == {0: "small"}
