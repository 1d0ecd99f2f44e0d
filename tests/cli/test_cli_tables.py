"""Tables through the command line: each file as it is written, and what is said of them."""

from __future__ import annotations

import gzip

import pytest

from support.command_line import outcome

SCHEMA = """
person = "who"
[[column]]
name = "age"
kind = "number"
range = [0, 100]
[[column]]
name = "town"
kind = "category"
values = ["Köln", "Bonn"]
"""


@pytest.fixture
def files(tmp_path):
    """Return three tables that say the same in three ways, and a schema."""
    rows = [(i, 20.5 + i, "Köln" if i % 2 else "Bonn") for i in range(30)]
    plain = "who,age,town\n" + "".join(f"{w},{a},{t}\n" for w, a, t in rows)
    other = plain.replace(",", ";").replace(".", ",")
    (tmp_path / "a.csv").write_text(plain, encoding="utf-8")
    (tmp_path / "b.csv").write_bytes(other.encode("latin-1"))
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(plain.encode()))
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    return [tmp_path / name for name in ("a.csv", "b.csv", "c.csv.gz")]


def run(capsys, *words):
    code, out, err = outcome(capsys, words)
    return code, " ".join(out.split()), err


def test_every_file_is_read_as_it_is_written(capsys, files):
    schema = files[0].parent / "schema.toml"
    words = ("schema", "check", *files, "--schema", schema)
    code, out, err = run(capsys, *words)
    assert code == 2
    assert "cells, but no numbers" in out
    assert "some letters cannot" in out
    how = ("--decimal", "b.csv=,", "--encoding", f"{files[1]}=latin-1")
    code, out, err = run(capsys, *words, *how)
    assert (code, err) == (0, "")
    assert "90 persons in 3 tables" in out
    assert "30 ids are in" in out
    folder = files[0].parent / "r"
    words = ("fit", *files, "--schema", schema, "--clusters", 2, "--output", folder)
    code, out, _ = run(capsys, *words, "--no-noise", "--seed", 1, *how)
    assert code == 0
    labels = (folder / "labels.csv").read_text().splitlines()[1:]
    by_site = {s: [line.split(",")[1:] for line in labels if line[0] == s] for s in "abc"}
    assert by_site["a"] == by_site["b"] == by_site["c"]


def test_an_option_for_a_file_that_is_not_there_is_refused(capsys, files):
    words = ("fit", files[0], "--clusters", 2, "--decimal", "x.csv=,")
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "--decimal must be for one of the files that are text, got one for 'x.csv'" in err


def test_a_plan_for_a_table_says_how_many_clusters_were_asked_for(capsys, files):
    schema = files[0].parent / "schema.toml"
    words = ("plan", "--schema", schema, "--records", 100_000, "--sites", 3, "--clusters", 2)
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "2 clusters among 100,000 persons with 4 features" in out
    assert "cells (sums and counts of 64 cells" in out
