"""The page of a run, made from the files in its folder alone."""

import re

import numpy as np
import pytest

from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.report import folder as run_folder
from dpfedc.report.output_files import Labels, centers_table, read_sizes
from support.command_line import fitted_tables, outcome
from support.deployment import MemoryTransport, agreed
from support.summaries import plain_model


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return fitted_tables(tmp_path_factory.mktemp("trial"))[1]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_page_of_a_trial_can_be_made_again_from_its_files(trial, capsys, tmp_path):
    whole, copy = files(trial), tmp_path / "copy"
    copy.mkdir()
    for name in ("model.npz", "run.jsonl", "labels.csv"):
        (copy / name).write_bytes(whole[name])
    code, out, err = outcome(capsys, ["report", copy])
    assert (code, out, err) == (0, f"Report: {copy / 'report.html'}\n", "")
    assert files(copy) == {name: whole[name] for name in whole if name != "centres.csv"}
    page = whole["report.html"].decode()
    assert "<h1>Clusters in patients.csv</h1>" in page
    assert all(f"<span>{word}</span>" in page for word in ("dpfedc", "--site-column", "hospital"))
    assert "Cluster sizes per site" in page
    (copy / "labels.csv").unlink()
    outcome(capsys, ["report", copy])
    assert "Cluster sizes per site" not in (copy / "report.html").read_text()


def visible(page):
    return " ".join(re.sub("<[^>]+>", " ", page[page.index("<body>") :]).split())


@pytest.mark.parametrize("method", ["dp-lloyd", "dp-fedc"])
def test_the_page_of_a_deployed_run(method, capsys, tmp_path):
    agreement = agreed(method, noise="secure")
    run = MemoryTransport(agreement, tmp_path).coordinator().run()
    folder = tmp_path / "run"
    assert {"model.npz", "run.jsonl"} <= files(folder).keys()
    assert outcome(capsys, ["report", folder])[::2] == (0, "")
    page = (folder / "report.html").read_text()
    text = visible(page)
    n_rounds = agreement.plan.n_rounds
    for words in (
        *("study", "300 records at 3 sites were put into 3 clusters by 3 columns."),
        *(f"It took {n_rounds} rounds;", "coordinated by university", agreement.digest[:12]),
        *("Protected: every single record.", "Each site adds its own noise", "epsilon 50,"),
        *("operating system's own randomness", "bound: how long records are"),
        *("Who the groups are", "Column by column", "age", "How far the released centres moved"),
    ):
        assert words in text.replace("&#39;", "'"), words
    for stage in run.record.results["stages"]:
        assert f"{stage['stage']}: {stage['purpose']}" in text
    assert "simul" not in text.lower()
    known = ("labels and memberships are exact", "hold the exact value")
    assert "exact" not in text.lower().replace(known[0], "").replace(known[1], "")
    headings = re.findall("<h2>([^<]+)</h2>", page)
    first = ["Who the groups are", "Column by column"]
    assert headings == [*first, "Privacy", "How the run went", "Settings"]
    assert "src=" not in page
    assert run.model.summary().clusters[0].size > 50


def test_simulated_noise_of_separate_sites_is_named(capsys, tmp_path):
    MemoryTransport(agreed(), tmp_path).coordinator().run()
    assert outcome(capsys, ["report", tmp_path / "run"])[0] == 0
    text = visible((tmp_path / "run" / "report.html").read_text())
    assert "simulated noise: not a private release" in text
    assert "whoever knows its seed can take the noise off again" in text


def test_a_page_that_cannot_be_made_costs_no_run_and_leaves_no_other_page(
    trial, tmp_path, monkeypatch
):
    model, record = ClusterModel.read(trial / "model.npz"), RunRecord.read(trial / "run.jsonl")
    sites, labels = np.arange(6) % 2, np.arange(6) % 3
    run_folder.write_results(tmp_path, model, record, Labels(sites, labels))
    assert (tmp_path / "report.html").exists()

    def fails(*_):
        raise OSError("no space left")

    monkeypatch.setattr(run_folder, "write_report", fails)
    again = record.with_results(title="another")
    with pytest.raises(OSError, match="no space left"):
        run_folder.write_results(tmp_path, model, again, Labels(sites, labels))
    assert RunRecord.read(tmp_path / "run.jsonl").results["title"] == "another"
    assert sorted(files(tmp_path)) == ["centres.csv", "labels.csv", "model.npz", "run.jsonl"]


def test_sizes_are_counted_from_labels(tmp_path):
    path, sites = tmp_path / "labels.csv", np.array([10, 2, 10, 2, 10])
    Labels(sites, np.array([0, 1, 0, 2, 1])).write(path)
    assert path.stat().st_mode & 0o077 == 0
    sizes, names = read_sizes(path, 3)
    assert names == ["2", "10"]
    assert sizes.tolist() == [[0, 1, 1], [2, 1, 0]]
    Labels(np.array(["b, c", "2", "10", "x"]), np.array([0, 1, 0, -1]), ids="abcd").write(path)
    assert read_sizes(path, 2)[1] == ["10", "2", "b, c"]
    for n_clusters, text in (
        (1, None),
        (2, "site,record,cluster\n"),
        (2, "site,record,cluster\na,1,x\n"),
        (2, "site,record,cluster\na,1\n"),
        (2, "a,b\n1,2\n"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(InvalidInput, match="is not a table of this run's labels"):
            read_sizes(path, n_clusters)


def test_a_folder_without_a_run_is_named(capsys, tmp_path):
    code, _, err = outcome(capsys, ["report", tmp_path])
    assert code == 2
    assert "no such run record" in err
    with pytest.raises(DataUnavailable, match="no such run record"):
        run_folder.write_page(tmp_path / "nowhere")


def test_centres_csv_keeps_its_columns_apart_from_features_of_that_name():
    model = plain_model(np.eye(2), feature_names=("size", "b"), sizes=np.array([-3.2, 7.6]))
    lines = centers_table(model.named(1, "big")).decode().splitlines()
    assert lines == ["cluster,name,size_,size,b", "0,,0,1.0,0.0", "1,big,8,0.0,1.0"]
