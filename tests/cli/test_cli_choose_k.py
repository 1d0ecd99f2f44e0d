"""`dpfedc choose-k`, and the options on number and shape of `fit` and `plan`."""

import json

import numpy as np
import pytest

from dpfedc.model_file import ClusterModel
from support.command_line import HEAD, ROLES, patients, read_csv, write_csv

NOISY = ("--epsilon", 50, "--trust", "secure-aggregation", "--seed", 0, "--no-diagnostics")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("k") / "patients.csv", HEAD, patients(n=600))


def words_of(out):
    return " ".join(out.split())


def test_choose_k_prints_the_curve_the_choice_and_what_is_next(
    dpfedc, table, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where predict writes its labels
    folder = tmp_path / "chosen"
    words = (table, "--k-range", "2,5", *ROLES, *NOISY, "--output", folder)
    code, out, err = dpfedc("choose-k", *words)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= max(80, len(str(folder)) + 30)
    rows = [line.split("│")[1:-1] for line in out.splitlines() if "chosen │" in line]
    assert [row[0].strip() for row in rows] == ["3"]
    text = words_of(out)
    assert "Number 3 clusters, chosen from 2 to 5. The choice is clear." in text
    assert "nothing need be run again" in text
    assert "`dpfedc fit --clusters 3` would cost its budget once more" in text
    model = ClusterModel.read(folder / "model.npz")
    assert len(model.directions) == model.choice.n_clusters == 3
    assert len(read_csv(folder / "centres.csv")) == 4
    head, *prototypes = read_csv(folder / "prototypes.csv")
    assert head == ["cluster", "age", "pressure"]
    assert [int(row[0]) for row in prototypes] == model.groups.astype(int).tolist()
    places = np.array([row[1:] for row in prototypes], dtype=float)
    np.testing.assert_array_equal(places, model.prototype_centers)
    page = (folder / "report.html").read_text()
    assert "How many clusters?" in page
    assert "Prototypes of the clusters" in page
    for command in ("predict", "evaluate"):
        assert dpfedc(command, folder / "model.npz", table, *ROLES)[0] == 0
    code, out, _ = dpfedc("show", folder)
    assert code == 0
    assert "Number 3 clusters" in words_of(out)
    assert dpfedc("show", folder, "--json")[1].count('"n_prototypes"') == 3
    assert dpfedc("report", folder, "--shareable")[0] == 0
    assert "How many clusters?" in (folder / "shareable.html").read_text()
    # A run of round clusters in the same folder has no prototypes, and leaves none behind.
    words = (table, "--clusters", 3, *ROLES, *NOISY, "--output", folder)
    assert dpfedc("fit", *words)[0] == 0
    assert not (folder / "prototypes.csv").exists()


def test_fit_takes_shape_and_prototypes(dpfedc, table, tmp_path):
    words = (table, "--clusters", 3, *ROLES, *NOISY, "--output", tmp_path / "r")
    code, _, err = dpfedc("fit", *words, "--shape", "Any", "--prototypes", 7)
    assert (code, err) == (0, "")
    model = ClusterModel.read(tmp_path / "r" / "model.npz")
    assert (len(model.prototypes), len(model.directions), model.choice) == (7, 3, None)


def test_plan_rehearses_a_choice(dpfedc):
    words = ("plan", "--records", 9000, "--sites", 3, "--features", 3, "--clusters", "auto")
    code, out, err = dpfedc(*words, "--k-range", "2,4", "--epsilon", 8, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["verdict"] in ("usable", "rough")
    assert found["privacy_plan"]["releases"][-1]["stage"] == "neighbours"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--clusters", 0), "must be >= 1"),
        (("--clusters", "many"), "must be a whole number >= 1 or auto, got 'many'"),
        (("--clusters", 3, "--k-range", "2,4"), "--k-range needs --clusters auto"),
        (("--clusters", "auto", "--k-range", "2"), "two whole numbers such as 2,20, got '2'"),
        (("--clusters", "auto", "--k-range", "5,2"), "first number must be the smaller one"),
        (("--clusters", "Auto", "--k-range", "3,3"), "must be two different numbers, got '3,3'"),
        (("--clusters", "auto", "--k-range", "1,4"), "must start at 2 or more"),
        (("--clusters", 3, "--shape", "square"), "--shape"),
        (("--clusters", 3, "--prototypes", 3), "--prototypes must be more than --clusters 3"),
        (("--clusters", 3, "--prototypes", 1), "must be >= 2"),
        (("--clusters", 3, "--prototypes", 5000), "n_prototypes must be from 2 to 1000"),
        (("--clusters", "auto", "--variant", "published"), "--clusters auto and --variant"),
        (("--clusters", 3, "--variant", "published", "--quality"), "--quality and --variant"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(dpfedc, table, tmp_path, words, told):
    code, out, err = dpfedc("fit", table, *words, *ROLES, "--output", tmp_path / "r")
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "r").exists()
