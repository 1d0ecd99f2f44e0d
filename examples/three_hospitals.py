"""Write the tables of three invented hospitals, and a schema for them, into a folder.

    python examples/three_hospitals.py FOLDER [--patients 8000] [--seed 0]

Four groups of patients with two to five visits each: age, sex, bmi, blood pressure, creatinine with
gaps, hba1c that one hospital does not measure, smoking, a chapter of ICD-10, some values that are
plainly wrong. The true group is in a file of its own (`truth.csv`), where no clustering looks.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

HOSPITALS = ("north", "south", "west")
SHARES = (0.45, 0.35, 0.2)
CHAPTERS = ("A", "C", "E", "F", "G", "I", "J", "K", "M", "N", "R", "Z")
GROUPS = {
    # age, bmi, systolic, log creatinine, hba1c; share of women, of smokers; usual chapters
    "young": ((31, 8), (23, 2.5), (117, 9), (4.25, 0.18), (5.2, 0.3), 0.55, 0.2, "JZ"),
    "metabolic": ((56, 9), (34, 4), (142, 11), (4.45, 0.2), (8.2, 0.9), 0.45, 0.25, "EI"),
    "smokers": ((62, 8), (25, 3), (134, 10), (4.4, 0.2), (5.7, 0.4), 0.3, 0.85, "CJ"),
    "renal": ((78, 7), (27, 3.5), (152, 12), (5.5, 0.35), (6.3, 0.6), 0.5, 0.1, "NI"),
}
SCHEMA = """\
# What the columns of the three hospitals are. Nothing in it was looked up in the data: ranges are
# what medicine knows, and the lists are how the forms are filled in.
person = "patient_id"            # all visits of a patient become one record

[[column]]
name = "age"
kind = "number"
range = [0, 110]

[[column]]
name = "sex"
kind = "category"
values = ["F", "M"]

[[column]]
name = "bmi"
kind = "number"
range = [10, 70]

[[column]]
name = "systolic"
kind = "number"
range = [60, 260]

[[column]]
name = "creatinine"
kind = "number"
range = [20, 2000]
transform = "log"                # spreads over orders of magnitude

[[column]]
name = "hba1c"
kind = "number"
range = [3, 18]

[[column]]
name = "smoker"
kind = "category"
values = ["yes", "no"]

[[column]]
name = "icd_chapter"
kind = "category"
values = ["A", "C", "E", "F", "G", "I", "J", "K", "M", "N", "R", "Z"]
"""


def write_hospitals(folder: Path, *, n_patients: int = 8000, seed: int = 0) -> list[Path]:
    """Write one table per hospital, schema.toml and truth.csv; return the tables' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    names = list(GROUPS)
    hospital = rng.choice(len(HOSPITALS), size=n_patients, p=SHARES)
    # Each hospital has its own mix of patients.
    mixes = rng.dirichlet([4.0] * len(names), size=len(HOSPITALS))
    group = np.array([rng.choice(len(names), p=mixes[h]) for h in hospital])
    tables: list[list[list[str]]] = [[] for _ in HOSPITALS]
    truth = []
    for patient in range(n_patients):
        at, kind = int(hospital[patient]), names[group[patient]]
        patient_id = str(100_000 + patient)
        truth.append([HOSPITALS[at], patient_id, kind])
        tables[at] += _visits(patient_id, kind, has_hba1c=at != 2, rng=rng)
    files = []
    for name, rows in zip(HOSPITALS, tables, strict=True):
        order = rng.permutation(len(rows))
        files.append(folder / f"{name}.csv")
        head = ["patient_id", "age", "sex", "bmi", "systolic", "creatinine", "hba1c", "smoker",
                "icd_chapter"]  # fmt: skip
        if name == "west":  # does not measure it
            head.remove("hba1c")
        _write(files[-1], head, [rows[i] for i in order])
    _write(folder / "truth.csv", ["hospital", "patient_id", "group"], truth)
    (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    return files


def _visits(
    patient_id: str, kind: str, *, has_hba1c: bool, rng: np.random.Generator
) -> list[list[str]]:
    *measures, women, smokers, chapters = GROUPS[kind]
    own = [rng.normal(mean, spread) for mean, spread in measures]
    sex = "F" if rng.random() < women else "M"
    smoker = "yes" if rng.random() < smokers else "no"
    rows = []
    for _ in range(rng.integers(2, 6)):
        age, bmi, systolic, log_creatinine, hba1c = own + rng.normal(0, [0.3, 0.6, 7.0, 0.08, 0.2])
        usual = rng.random() < 0.7
        chapter = rng.choice(list(chapters if usual else CHAPTERS))
        row = [patient_id, f"{max(age, 18):.0f}", sex, f"{bmi:.1f}", f"{systolic:.0f}"]
        row.append("" if rng.random() < 0.12 else f"{np.exp(log_creatinine):.0f}")
        if has_hba1c:
            row.append(f"{hba1c:.1f}")
        row += [smoker, chapter]
        if rng.random() < 0.01:  # a slip of the keyboard
            row[rng.choice([1, 3, 4])] = "999"
        rows.append(row)
    return rows


def _write(path: Path, head: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--patients", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for file in write_hospitals(given.folder, n_patients=given.patients, seed=given.seed):
        print(file)
