"""What the tests of the command line share: small tables and a fit on one of them."""

import csv

import numpy as np
import pytest

from dpfedc.cli import main

CENTERS = np.array([[20.0, 110.0], [50.0, 160.0], [80.0, 130.0]])


def write_csv(path, head, rows):
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([head, *rows])
    return path


def read_csv(path):
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


def patients(n=60, seed=0):
    """Return rows (age, pressure, group, hospital) of three clear groups at unequal sites."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(n) % 3
    values = np.round(CENTERS[groups] + rng.normal(scale=3, size=(n, 2)), 2)
    hospitals = np.array(["Oslo", "Bergen"])[(rng.random(n) < 0.4).astype(int)]
    return [[*map(str, v), "abc"[g], h] for v, g, h in zip(values, groups, hospitals, strict=True)]


HEAD = ["age", "pressure", "group", "hospital"]
ROLES = ("--site-column", "hospital", "--label-column", "group")
EXACT = ("--no-noise", "--seed", 0, "--no-diagnostics")


def outcome(capsys, words):
    """Run the command line and return (exit code, stdout, stderr)."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return end.value.code, out, err


def fitted_tables(home):
    """Return a table, the folder of a fit without noise, and another table with new records."""
    table = write_csv(home / "patients.csv", HEAD, patients())
    new = write_csv(home / "new.csv", HEAD, patients(seed=1))
    words = ["fit", table, "--clusters", 3, *ROLES, *EXACT, "--output", home / "r"]
    with pytest.raises(SystemExit) as end:
        main(list(map(str, words)))
    assert end.value.code == 0
    return table, home / "r", new
