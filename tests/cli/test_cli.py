"""The command line as a user meets it: what is printed and what is written."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfedc import __version__
from dpfedc.cli.console import print_sizes
from dpfedc.cli.options import NamedData, Trust
from dpfedc.engine.run_record import RunRecord
from dpfedc.kernels.metrics import scores
from dpfedc.model_file import ClusterModel
from dpfedc.research.datasets import LOADERS
from dpfedc.settings import TRUST_MODELS
from support.command_line import (
    CENTERS,
    EXACT,
    HEAD,
    ROLES,
    fitted_tables,
    patients,
    read_csv,
    write_csv,
)

OURS = {"model.npz", "centres.csv", "labels.csv", "run.jsonl", "report.html"}


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "patients.csv", HEAD, patients())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return fitted_tables(tmp_path_factory.mktemp("fitted"))


def command(*words, **options):
    """Run `python -m dpfedc` as its own process."""
    line = [sys.executable, "-m", "dpfedc", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, **options)


# --- the demo, once, as its own process on a narrow terminal -----------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    home = tmp_path_factory.mktemp("demo")
    return command("demo", cwd=home, env={**os.environ, "COLUMNS": "40"}), home / "demo"


def test_demo_prints_scores_a_promise_and_the_page(demo):
    done, folder = demo
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1] == f"Report: {Path('demo', 'report.html')}"
    assert max(map(len, lines)) <= 40
    text = " ".join(done.stdout.split())
    assert "epsilon 8, delta 1e-05 for every record" in text  # the plan, before the rounds
    for subject in ("Verdict", "Protected", "From whom", "Not protected"):
        assert f"{subject}: " in text
    assert "an ordinary generator drew the noise" in text
    assert text.index("share") < text.index("Verdict: ") < text.index("Protected: ")
    assert "Exact scores of this trial, not released." in text
    for name in ("accuracy", "NMI", "ARI", "cost"):
        row = next(line for line in lines if name in line and "│" in line)
        assert len(row.split("│")) == 5
    labels = np.array([int(row[2]) for row in read_csv(folder / "labels.csv")[1:]])
    data = LOADERS["digits"]()
    expected = scores(data.X, labels, data.y)
    for key, name in (("accuracy", "accuracy"), ("nmi", "NMI"), ("ari", "ARI")):
        row = next(line for line in lines if f"│ {name} " in line)
        assert float(row.split("│")[2]) == pytest.approx(expected[key], abs=6e-4)


def test_demo_writes_all_its_files(demo):
    _, folder = demo
    assert {path.name for path in folder.iterdir()} == OURS | {"prototypes.csv"}
    rows = read_csv(folder / "labels.csv")
    assert rows[0] == ["site", "record", "cluster"]
    assert len(rows) == 1798
    assert {row[0] for row in rows[1:]} == {str(i) for i in range(20)}
    centers = read_csv(folder / "centres.csv")
    assert centers[0][:4] == ["cluster", "size", "pixel_0_0", "pixel_0_1"]
    model = ClusterModel.read(folder / "model.npz")
    exact = model.cluster_centers
    np.testing.assert_array_equal(np.array(centers[1:])[:, 2:].astype(exact.dtype), exact)
    assert [row[:2] for row in centers[1:]] == [
        [str(c), f"{size:.0f}"] for c, size in enumerate(model.sizes)
    ]
    record = RunRecord.read(folder / "run.jsonl")
    assert record.settings["n_sites"] == 20
    assert len(record.series("objective")[0]) > 10
    assert len(record.series("accuracy")[0]) > 10
    assert "accuracy" in record.results["pooled_kmeans"]
    promise = record.results["privacy"]
    assert 7.99 < promise["epsilon"] <= 8
    assert (promise["delta"], promise["trust"]) == (1e-5, "secure-aggregation")
    for stage in record.results["privacy_plan"]["releases"]:
        assert f"{stage['stage']}: " in (folder / "report.html").read_text()
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png") == 11 + len(model.prototypes)  # with the sizes at each site
    words = re.sub("<[^>]*>", "", page)
    for subject in ("Protected", "From whom", "How much", "Assumed", "Not protected", "Note"):
        assert f"<strong>{subject}:</strong>" in page
    assert "epsilon 8, delta 1e-05" in words
    assert "simulated noise: not a private release" in words
    assert "dpfedc demo" in words


def test_demo_holds_two_digits_at_every_site(demo):
    _, folder = demo
    sites = np.array([row[0] for row in read_csv(folder / "labels.csv")[1:]])
    y = LOADERS["digits"]().y
    assert {len(set(y[sites == site])) for site in set(sites)} == {2}


# --- fit, predict, evaluate --------------------------------------------------------------------


def test_fit_writes_labels_in_input_order(dpfedc, table, tmp_path):
    words = ("--no-noise", "--seed", 0, "--output", tmp_path / "r")
    code, out, err = dpfedc("fit", table, "--clusters", 3, *ROLES, *words)
    assert (code, err) == (0, "")
    assert {path.name for path in (tmp_path / "r").iterdir()} == OURS
    rows = read_csv(tmp_path / "r" / "labels.csv")[1:]
    seen = {"Oslo": 0, "Bergen": 0}
    found = {}
    for (*_, group, hospital), (site, number, cluster) in zip(patients(), rows, strict=True):
        seen[hospital] += 1
        assert (site, int(number)) == (hospital, seen[hospital])
        assert found.setdefault(group, cluster) == cluster
    head, *centers = read_csv(tmp_path / "r" / "centres.csv")
    assert head == ["cluster", "size", "age", "pressure"]
    for group, cluster in found.items():
        distance = np.abs(np.array(centers[int(cluster)][2:], float) - CENTERS["abc".index(group)])
        assert distance.max() < 3
    assert "│ accuracy          │    1.000 │" in out
    assert "60 records at 2 sites were put into 3 clusters by 2 columns." in " ".join(out.split())


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_two_files_are_the_sites_of_one_table(dpfedc, tmp_path, table):
    head, parts = HEAD[:2], {"Bergen": [], "Oslo": []}
    for row in patients():
        parts[row[3]].append(row[:2])
    files = [write_csv(tmp_path / f"{name}.csv", head, rows) for name, rows in parts.items()]
    fit = ("--clusters", 3, "--norm-bound", 250, "--no-diagnostics", "--seed", 0, "--output")
    assert dpfedc("fit", *files, *fit, tmp_path / "two")[0] == 0
    assert dpfedc("fit", table, *ROLES, *fit, tmp_path / "one")[0] == 0
    one, two = (ClusterModel.read(tmp_path / name / "model.npz") for name in ("one", "two"))
    np.testing.assert_array_equal(one.cluster_centers, two.cluster_centers)
    assert one.feature_names == two.feature_names == ("age", "pressure")
    assert sorted(read_csv(tmp_path / "one" / "labels.csv")) == sorted(
        read_csv(tmp_path / "two" / "labels.csv")
    )


def test_predict_on_the_same_file_gives_the_same_labels(dpfedc, fitted, tmp_path):
    table, folder, _ = fitted
    out = tmp_path / "new" / "labels.csv"
    code, text, err = dpfedc("predict", folder / "model.npz", table, *ROLES, "--output", out)
    assert (code, err) == (0, "")
    assert out.read_bytes() == (folder / "labels.csv").read_bytes()
    assert str(out) in text
    assert [path.name for path in out.parent.iterdir()] == ["labels.csv"]
    code, *_ = dpfedc("predict", folder / "model.npz", table, *ROLES, "--output", out)
    assert code == 0  # labels may be replaced by labels


def test_predict_takes_arrays_without_names(dpfedc, fitted, tmp_path):
    table, folder, _ = fitted
    X = np.array([row[:2] for row in read_csv(table)[1:]], float)
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "labels.csv"
    code, *_ = dpfedc("predict", folder / "model.npz", tmp_path / "x.npy", "--output", out)
    assert code == 0
    clusters = [[row[2] for row in read_csv(path)] for path in (out, folder / "labels.csv")]
    assert clusters[0] == clusters[1]


def test_evaluate_gives_json_with_exact_scores(dpfedc, fitted):
    table, folder, new = fitted
    code, text, err = dpfedc("evaluate", folder / "model.npz", table, *ROLES, "--json")
    assert (code, err) == (0, "")
    found = json.loads(text)
    record = RunRecord.read(folder / "run.jsonl")
    assert {k: found[k] for k in ("accuracy", "nmi", "ari", "cost")} == record.results["scores"]
    assert [c["records"] for c in found["clusters"]] == record.results["cluster_sizes"]
    assert found["cost_to_centres"] >= found["cost"] * (1 - 1e-9)

    _, text, _ = dpfedc("evaluate", folder / "model.npz", new, *ROLES, "--json")
    rows = read_csv(new)[1:]
    X = np.array([row[:2] for row in rows], float)
    labels = ClusterModel.read(folder / "model.npz").labels(X)
    expected = scores(X, labels, np.array([row[2] for row in rows]))
    assert {k: json.loads(text)[k] for k in expected} == expected


def test_sizes_are_those_of_persons_where_persons_are_counted(capsys):
    print_sizes([{"cluster": 0, "records": 3, "sites": 1}], "person")
    out = capsys.readouterr().out
    assert "persons" in out
    assert "records" not in out


def test_evaluate_without_labels_prints_cost_and_sizes_only(dpfedc, fitted):
    table, folder, _ = fitted
    code, text, _ = dpfedc("evaluate", folder / "model.npz", table)
    assert code == 0
    assert "cost to the means" in text
    assert "accuracy" not in text
    assert "│ 2       │      20 │     1 │" in text


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_a_seed_repeats_a_run_to_the_byte(dpfedc, table, tmp_path):
    for name in ("a", "b"):
        words = ("--norm-bound", 250, "--seed", 5, "--output", tmp_path / name, "--no-diagnostics")
        assert dpfedc("fit", table, "--clusters", 3, *ROLES, *words)[0] == 0
    for name in ("labels.csv", "centres.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_records_can_be_dealt_to_simulated_sites(dpfedc, table, tmp_path):
    words = ["--drop", "hospital", "--label-column", "group", "--sites", 6, "--split", "labels"]
    words += ["--labels-per-site", 1, "--output", tmp_path / "r", *EXACT]
    assert dpfedc("fit", table, "--clusters", 3, *words)[0] == 0
    labels = read_csv(tmp_path / "r" / "labels.csv")[1:]
    pairs = {(row[0], record[2]) for row, record in zip(labels, patients(), strict=True)}
    assert sorted(site for site, _ in pairs) == list("012345")


# --- the frame: help, version, interruption, warnings, the bar ---------------------------------


HEAVY = {
    "numpy", "scipy", "sklearn", "matplotlib", "dp_accounting", "pandas", "pyarrow", "torch",
    "triton", "flwr", "grpc", "cryptography", "opendp", "sqlalchemy",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "Commands"),
        (["fit"], "--clusters"),
        (["plan"], "--records"),
        (["account"], "PLAN"),
        (["site", "init"], "--cap-epsilon"),
        (["server", "start"], "FOLDER"),
        (["run", "start"], "--server"),
        (["ledger", "show"], "FILE"),
        (["experiment", "run"], "--quick"),
    ],
)
def test_help_imports_nothing_heavy(words, told):
    code = (
        "import sys, dpfedc, dpfedc.cli\n"
        f"try: dpfedc.cli.main([*{words}, '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"heavy = {HEAVY} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize(
    "name", ["", "demo", "plan", "fit", "choose-k", "predict", "evaluate", "account"]
)
def test_help_fits_the_terminal(dpfedc, monkeypatch, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = dpfedc(*name.split(), "--help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= width


def test_help_groups_the_options(dpfedc):
    _, out, _ = dpfedc("fit", "--help")
    for panel in ("Columns", "Method", "Privacy", "Simulated sites"):
        assert f"─ {panel} ─" in out
    assert "[default: normalized]" in out


def test_no_words_show_the_help_and_version_is_told(dpfedc):
    code, out, _ = dpfedc()
    assert code == 0
    assert "demo" in out
    assert dpfedc("--version") == (0, f"dpfedc {__version__}\n", "")


def test_choices_are_those_of_the_package():
    assert tuple(Trust) == TRUST_MODELS
    assert tuple(NamedData) == tuple(LOADERS)


def test_a_terminal_shows_a_bar(dpfedc, table, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = (*ROLES, *EXACT, "--rounds", 5, "--output", tmp_path / "r")
    code, _, err = dpfedc("fit", table, "--clusters", 3, *words)
    assert code == 0
    n_rounds = len(RunRecord.read(tmp_path / "r" / "run.jsonl").rounds)
    assert f"{n_rounds}/{n_rounds}" in err
    code, _, err = dpfedc("fit", table, "--clusters", 99, *words)
    assert code == 2
    assert "rounds" not in err


def test_a_reader_that_goes_away_is_no_error(fitted):
    table, folder, _ = fitted
    words = ["evaluate", folder / "model.npz", table, *ROLES, "--json"]
    line = [sys.executable, "-m", "dpfedc", *map(str, words)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=120) == 128 + signal.SIGPIPE
    assert err == b""
