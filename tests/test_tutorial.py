"""The commands of docs/tables.md, one after the other, in an empty folder."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    return BLOCK.findall((ROOT / "docs" / "tables.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder in which all commands were run."""
    path = tmp_path_factory.mktemp("tutorial")
    (path / "examples").symlink_to(ROOT / "examples")
    there = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{there}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    )
    said = ""
    for kind, text in blocks():
        command = ["bash", "-e", "-c", text] if kind == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        said += done.stdout
    (path / "said.txt").write_text(said, encoding="utf-8")
    return path


def test_there_are_commands():
    assert len(blocks()) >= 8


def test_it_ends_with_a_report_and_labels_of_patients(folder):
    assert (folder / "results" / "report.html").stat().st_size > 5_000
    shared = (folder / "groups.html").read_text(encoding="utf-8")
    assert "4 groups of persons" in shared
    assert not any(word in shared for word in ("north", "patient_id", "hospitals", "--seed"))
    with (folder / "results" / "labels.csv").open(newline="") as stream:
        labels = list(csv.DictReader(stream))
    assert len(labels) == 8000
    assert set(labels[0]) == {"site", "patient_id", "cluster"}
    with (folder / "west-labels.csv").open(newline="") as stream:
        again = {row["patient_id"]: row["cluster"] for row in csv.DictReader(stream)}
    assert again == {row["patient_id"]: row["cluster"] for row in labels if row["site"] == "west"}


def test_what_is_promised_is_for_persons(folder):
    said = " ".join((folder / "said.txt").read_text(encoding="utf-8").split())
    assert "every single person: all of their rows at once" in said
    assert "hba1c │ not here: all gaps at this site" in said


def test_no_id_is_in_any_other_file(folder):
    with (folder / "results" / "labels.csv").open(newline="") as stream:
        ids = [row["patient_id"] for row in csv.DictReader(stream)][::200]
    # Standing alone: six digits in a row are somewhere among the digits of thousands of numbers.
    alone = re.compile(rf"(?<![0-9.])({'|'.join(ids)})(?![0-9])".encode())
    assert alone.search((folder / "results" / "labels.csv").read_bytes())
    for path in (folder / "results").iterdir():
        if path.name != "labels.csv":
            assert not alone.search(path.read_bytes()), path.name
