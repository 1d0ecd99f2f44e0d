"""The command line when something is wrong: exit code 2, one line, and nothing is lost."""

import errno
import os
import warnings

import numpy as np
import pytest

from dpfedc.errors import UtilityWarning
from dpfedc.estimators.dp_fedc import DPFedC
from support.command_line import HEAD, ROLES, fitted_tables, patients, read_csv, write_csv

OURS = {"model.npz", "centres.csv", "labels.csv", "run.jsonl", "report.html"}


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "patients.csv", HEAD, patients())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return fitted_tables(tmp_path_factory.mktemp("fitted"))


# --- bad input: exit code 2, one line, nothing written ----------------------------------------


def rows_of(values, *, site=lambda j: j % 2):
    return [[*row, site(j)] for j, row in enumerate(values)]


GOOD = [[float(j % 7), float(j % 5)] for j in range(20)]
NAMES = ["a", "b", "site"]
BAD_TABLES = {
    "a missing cell": ([["", 1.0], *GOOD], (), "must have finite numbers", "got 1"),
    "a NaN": ([[1.0, "nan"], *GOOD], (), "must have finite numbers", "'b'"),
    "an infinity": ([["inf", 1.0], *GOOD], (), "must have finite numbers", "'a'"),
    "text": ([["x", 1.0], *GOOD], (), "'a' must be numeric", "in row 1", "schema"),
    "no records": ([], (), "must have", "got none"),
    "fewer records than clusters": (GOOD[:2], (), "n_samples=2", "n_clusters=3"),
    "constant data": ([[1.0, 2.0]] * 9, (), "constant", "9 records are equal"),
    "duplicate rows": ([[1.0, 2.0], [3.0, 4.0]] * 9, (), "2 distinct records", "n_clusters=3"),
    "negative data": ([[-1.0, 2.0], *GOOD], ("--nonnegative",), ">= 0", "got a least value of -1"),
    "more sites a round than sites": (GOOD, ("--sites-per-round", 3), "from 1 to 2", "got 3"),
    "zero sites a round": (GOOD, ("--sites-per-round", 0), ">= 1", "got 0"),
    "zero rounds": (GOOD, ("--rounds", 0), "'--rounds'", "must be >= 1, got 0"),
    "rounds in words": (GOOD, ("--rounds", "many"), "'--rounds': must be a whole number >= 1, got"),
    "epsilon in words": (GOOD, ("--epsilon", "low"), "'--epsilon': must be a number, got 'low'"),
    "zero clusters": (GOOD, ("--clusters", 0), "'--clusters'", "must be >= 1 or auto, got 0"),
    "a negative seed": (GOOD, ("--seed", -1), "must be from 0", "got -1"),
    "an unknown variant": (GOOD, ("--variant", "x"), "'--variant': 'x' is not", "'published'"),
    "an unknown option": (GOOD, ("--x",), "--x", "dpfedc fit --help"),
    "an unknown column": (GOOD, ("--label-column", "x"), "must have", "'x'"),
    "epsilon below 0": (
        GOOD,
        ("--epsilon", -1),
        "epsilon must be >= 1e-06 and <= 1000000, got -1.0",
    ),
    "both noise and none": (GOOD, ("--epsilon", 1, "--no-noise"), "--epsilon exclude", "got"),
    "no bound for the noise": (GOOD, ("--variant", "published"), "--gradient-bound", "got neither"),
    "survivors alone": (GOOD, ("--min-survivors", 1), "needs --trust secure-aggregation", "local"),
    "too many colluding": (
        GOOD,
        ("--trust", "secure-aggregation", "--colluding-sites", 2),
        "colluding_sites must be from 0 to 1, got 2",
    ),
    "a bound of nothing": (GOOD, ("--norm-bound", 0), "norm_bound must be > 0, got 0.0"),
    "a chance above 1": (GOOD, ("--sampling-probability", 2), "<= 1, got 2.0"),
    "delta above 1": (GOOD, ("--delta", 2), "< 1", "got 2.0"),
    "both sites and a site column": (GOOD, ("--sites", 2), "without sites", "got --site-column"),
    "both files and data": (GOOD, ("--data", "digits"), "its own records", "got FILES"),
    "a subset of files": (GOOD, ("--n-records", 2), "needs --data", "got FILES"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_are_refused_in_one_line(dpfedc, tmp_path, case):
    values, words, *fragments = BAD_TABLES[case]
    table = write_csv(tmp_path / "t.csv", NAMES, rows_of(values))
    output = ("--output", tmp_path / "r")
    result = dpfedc("fit", table, "--clusters", 3, "--site-column", "site", *output, *words)
    assert_refused(result, fragments)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def assert_refused(result, fragments):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("dpfedc: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for fragment in fragments:
        assert fragment in err


def damaged_files(home):
    """Return the words of commands whose files are not what they should be."""
    good = write_csv(home / "good.csv", NAMES[:2], GOOD)
    other = write_csv(home / "other.csv", ["a", "c"], GOOD)
    empty_site = write_csv(home / "empty_site.csv", NAMES[:2], [])
    (home / "empty.csv").write_bytes(b"")
    (home / "ragged.csv").write_text("a,b\n1,2\n3\n")
    np.savez(home / "whole.npz", X=np.array(GOOD))
    whole = (home / "whole.npz").read_bytes()
    (home / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.save(home / "text.npy", np.array([["a", "b"]]))
    fit = ("--clusters", 3)
    return {
        "mismatched columns": (("fit", good, other, *fit), "'c'", "'b'"),
        "an empty site": (("fit", good, empty_site, *fit), "empty_site.csv must have", "got none"),
        "an empty file": (("fit", home / "empty.csv", *fit), "empty.csv must", "got an empty file"),
        "a ragged file": (("fit", home / "ragged.csv", *fit), "row 2 must have 2 cells"),
        "a truncated file": (("fit", home / "cut.npz", *fit), "cut.npz must be", "got"),
        "text for numbers": (("fit", home / "text.npy", *fit), "must be numbers", "got"),
        "no such file": (("fit", home / "none.csv", *fit), "none.csv must be", "got"),
        "a folder": (("fit", home, *fit), "must", "got"),
        "an unknown format": (("fit", home / "x.doc", *fit), "must end in", "got"),
        "one file twice": (("fit", good, good, *fit), "must differ", "got"),
        "no files": (("fit", *fit), "needs FILES or --data", "got neither"),
        "no clusters": (("fit", good), "Missing option '--clusters'", "--help"),
        "labels to deal by": (("fit", good, *fit, "--split", "labels"), "--label-column", "none"),
        "too many sites": (("fit", good, *fit, "--sites", 50), "(20)", "got 50"),
        "too many digits": (("fit", "--data", "digits", *fit, "--n-records", 5), "n_records"),
        "an unknown command": (("fti",), "No such command 'fti'", "--help"),
    }


DAMAGED = (
    "mismatched columns", "an empty site", "an empty file", "a ragged file", "a truncated file",
    "text for numbers", "no such file", "a folder", "an unknown format", "one file twice",
    "no files", "no clusters", "labels to deal by", "too many sites", "too many digits",
    "an unknown command",
)  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_bad_files_are_refused_in_one_line(dpfedc, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    cases = damaged_files(tmp_path)
    assert set(cases) == set(DAMAGED)
    before = set(tmp_path.iterdir())
    words, *fragments = cases[case]
    assert_refused(dpfedc(*words), fragments)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["predict", "evaluate"])
@pytest.mark.parametrize("case", ["truncated", "a table", "absent", "fewer", "others"])
def test_models_that_do_not_fit_are_refused(dpfedc, fitted, tmp_path, monkeypatch, name, case):
    table, folder, _ = fitted
    monkeypatch.chdir(tmp_path)
    model = folder / "model.npz"
    (tmp_path / "cut.npz").write_bytes(model.read_bytes()[:300])
    renamed = write_csv(tmp_path / "t.csv", ["age", "weight"], GOOD)
    lone = write_csv(tmp_path / "u.csv", ["pressure"], [row[:1] for row in GOOD])
    words, *fragments = {
        "truncated": ((tmp_path / "cut.npz", table, *ROLES), "not a model file"),
        "a table": ((table, table, *ROLES), "not a model file"),
        "absent": ((tmp_path / "none.npz", table, *ROLES), "no such model file"),
        "fewer": ((model, lone), "2 features", "got 1", "missing 'age'; unexpected none"),
        "others": ((model, renamed), "must have the model's features", "missing 'pressure'"),
    }[case]
    assert_refused(dpfedc(name, *words), fragments)
    assert {path.name for path in tmp_path.iterdir()} == {"cut.npz", "t.csv", "u.csv"}


# --- the output folder -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_a_second_run_replaces_its_own_files_only(dpfedc, table, tmp_path):
    folder = tmp_path / "r"
    bound = ("--norm-bound", 250)
    assert dpfedc("fit", table, "--clusters", 3, *bound, *ROLES, "--output", folder)[0] == 0
    (folder / "notes.txt").write_text("mine")
    (folder / "other.png").write_text("mine too")
    words = ("--site-column", "hospital", "--drop", "group", "--output", folder)
    assert dpfedc("fit", table, "--clusters", 2, *bound, *words)[0] == 0
    names = {path.name for path in folder.iterdir()}
    assert names == OURS | {"notes.txt", "other.png"}
    assert (folder / "notes.txt").read_text() == "mine"
    assert len(read_csv(folder / "centres.csv")) == 3


def test_files_of_others_are_never_replaced(dpfedc, fitted, tmp_path):
    table, folder, _ = fitted
    mine = tmp_path / "labels.csv"
    mine.write_text("patient,diagnosis\n1,flu\n")
    for words in (
        ("fit", table, "--clusters", 3, *ROLES, "--output", tmp_path),
        ("predict", folder / "model.npz", table, *ROLES, "--output", mine),
        ("predict", folder / "model.npz", table, *ROLES, "--output", folder / "model.npz"),
        ("demo", "--output", tmp_path),
    ):
        code, _, err = dpfedc(*words)
        assert code == 2
        assert err.startswith("dpfedc: error: ")
        assert "the output must" in err
        assert "got" in err
        assert err.count("\n") == 1
    assert mine.read_text() == "patient,diagnosis\n1,flu\n"
    assert [path.name for path in tmp_path.iterdir()] == ["labels.csv"]


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_file_in_the_way_of_the_folder(dpfedc, table, tmp_path, inside):
    (tmp_path / "r").write_text("a file")
    output = tmp_path / "r" / inside
    code, _, err = dpfedc("fit", table, "--clusters", 3, *ROLES, "--output", output)
    assert code == 2
    assert err == f"dpfedc: error: {tmp_path / 'r'} must be a folder to write into, got a file\n"
    assert (tmp_path / "r").read_text() == "a file"


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_a_full_disk_leaves_the_earlier_run_as_it_was(dpfedc, table, tmp_path, monkeypatch):
    folder = tmp_path / "r"
    words = ("--clusters", 3, "--norm-bound", 250, *ROLES, "--no-diagnostics", "--output", folder)
    assert dpfedc("fit", table, *words)[0] == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    real, written = os.fsync, []

    def full(place):
        written.append(place)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "centres.csv")
        real(place)

    monkeypatch.setattr(os, "fsync", full)
    code, out, err = dpfedc("fit", table, *words, "--seed", 1)
    assert code == 2
    assert out.startswith("Plan: ")  # the disk was found full after the rounds
    assert "Report" not in out
    assert err.startswith("dpfedc: error: ")
    assert err.endswith("No space left on device\n")
    assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# --- interruption and warnings


def test_interruption_is_one_line_and_writes_nothing(dpfedc, table, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(DPFedC, "fit_records", interrupted)
    result = dpfedc("fit", table, "--clusters", 3, *ROLES, "--output", tmp_path / "r")
    assert result == (130, "", "dpfedc: interrupted\n")
    assert not (tmp_path / "r").exists()


@pytest.mark.filterwarnings("default::dpfedc.errors.UtilityWarning")
def test_warnings_follow_a_result_and_never_hide_an_error(dpfedc, table, tmp_path, monkeypatch):
    fit = DPFedC.fit_records

    def warned(self, *arguments, **named):
        for _ in range(2):
            warnings.warn("the result is\npoor", UtilityWarning, stacklevel=1)
        return fit(self, *arguments, **named)

    monkeypatch.setattr(DPFedC, "fit_records", warned)
    words = ("--site-column", "hospital", "--drop", "group", "--no-diagnostics", "--no-noise")
    result = dpfedc("fit", table, "--clusters", 3, *words, "--output", tmp_path / "r")
    assert result[::2] == (0, "dpfedc: warning: the result is poor\n")
    result = dpfedc("fit", table, "--clusters", 99, *words, "--output", tmp_path / "s")
    assert_refused(result, ["n_samples=60", "n_clusters=99"])
