"""`dpfedc experiment` as a user meets it."""

import re

import pytest

from dpfedc.research.experiments import experiment_spec, runner
from support.command_line import outcome, read_csv
from support.tiny_experiment import TINY, tiny


@pytest.fixture
def dpfedc(capsys, monkeypatch, tmp_path):
    """Return a function that runs the command line in an empty folder, with a tiny table-1."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        experiment_spec, "named_experiment", lambda name: tiny('"tiny"', f'"{name}"')
    )
    return lambda *words: outcome(capsys, ["experiment", *words])


def test_list_names_every_experiment(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = outcome(capsys, ["experiment", "list"])
    assert (code, err) == (0, "")
    for name in ("fig-3", "fig-4", "table-1", "frontier", "convergence", "reproduction"):
        assert name in out


def test_run_resume_and_report(dpfedc, tmp_path):
    code, out, err = dpfedc("run", "table-1", "--quick", "--jobs", "1")
    assert (code, err) == (0, "")
    assert "5 of 5 runs finished now, 0 were there already, 0 failed." in out
    assert len(read_csv(tmp_path / "results" / "table-1-quick" / "results.csv")) == 6
    code, out, _ = dpfedc("run", "table-1", "--quick", "--jobs", "1")
    assert "0 of 5 runs finished now, 5 were there already" in out
    code, out, err = dpfedc("report")
    assert (code, err) == (0, "")
    assert out.strip() == "Report: results/report.html"
    page = (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
    assert "dpfedc experiment run table-1 --quick --jobs 1" in re.sub("<[^>]+>", "", page)
    assert "quick: fewer seeds" in page


def test_reproduction_makes_a_page_of_what_there_is(dpfedc, tmp_path):
    text = TINY.replace('shown = "rounds"', 'shown = "reproduction"')
    (tmp_path / "mine.toml").write_text(text)
    code, out, err = dpfedc("run", "mine.toml", "--quick", "--jobs", "1")
    assert (code, err) == (0, "")
    assert "Page: results/tiny-quick/reproduction.md" in out
    page = (tmp_path / "results" / "tiny-quick" / "reproduction.md").read_text(encoding="utf-8")
    assert "| DP-FedC, closest reading (G chosen with labels) | 50.5 |  | not run |" in page
    assert "dpfedc experiment run mine.toml --quick --jobs 1" in page


def test_a_file_of_the_users_own_is_run(dpfedc, tmp_path):
    (tmp_path / "mine.toml").write_text(TINY.replace('"tiny"', '"my-grid"'))
    code, out, err = dpfedc("run", "mine.toml", "--quick", "--jobs", "1")
    assert (code, err) == (0, "")
    assert "5 of 5 runs finished now" in out
    assert len(read_csv(tmp_path / "results" / "my-grid-quick" / "results.csv")) == 6
    (tmp_path / "mine.toml").write_text("name = 3")
    code, _, err = dpfedc("run", "mine.toml")
    assert code == 2
    assert err.startswith("dpfedc: error: mine.toml: the file must have")
    code, _, err = dpfedc("run", "none.toml")
    assert (code, err) == (2, "dpfedc: error: none.toml: No such file or directory\n")


def test_output_names_the_folder(dpfedc, tmp_path):
    words = ("run", "table-1", "--quick", "--output", tmp_path / "x", "--jobs", 1)
    assert dpfedc(*words)[0] == 0
    assert (tmp_path / "x" / "results.csv").exists()
    assert dpfedc("report", tmp_path / "x")[0] == 0


def test_a_failed_run_gives_exit_code_1(dpfedc, monkeypatch):
    def fails(cell, track):
        raise ValueError("no")

    monkeypatch.setattr(runner, "run_cell", fails)
    code, out, _ = dpfedc("run", "table-1", "--quick", "--jobs", "1")
    assert code == 1
    assert "5 failed" in out
    assert "failures.csv" in out


def test_mistakes_are_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["run", "fig-9"], "experiment must be one of convergence, fig-3"),
        (["run", "fig-3", "--jobs", "0"], "must be >= 1, got 0"),
        (["report"], "no such folder: results"),
        (["report", "."], "must hold the folder of an experiment, got none"),
    ):
        code, _, err = outcome(capsys, ["experiment", *words])
        assert code == 2, words
        assert message in err
        assert len(err.splitlines()) == 1
