"""Privacy on the command line: fits are private by default, and follow their plan."""

import json
import math
import re

import pytest

from dpfedc.engine.run_record import RunRecord
from dpfedc.privacy.accountant import gaussian_epsilon, plan_epsilon
from dpfedc.report.promise import recorded_plan, stage_rows
from support.command_line import HEAD, ROLES, patients, read_csv, write_csv

TOGETHER = ("--trust", "secure-aggregation")


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_fit_follows_the_plan_that_plan_prints(dpfedc, fitted, tmp_path):
    text, folder = fitted(*TOGETHER, "--epsilon", 2, "--rounds", 7, "--seed", 0)
    sites = [row[3] for row in patients(600)]
    sizes = f"{sites.count('Bergen')},{sites.count('Oslo')}"
    words = ("plan", "--records", sizes, "--features", 2, "--clusters", 3, *TOGETHER)
    path = tmp_path / "plan.json"
    assert dpfedc(*words, "--epsilon", 2, "--rounds", 7, "--save-plan", path)[0] == 0
    record = RunRecord.read(folder / "run.jsonl")
    assert record.results["privacy_plan"] == json.loads(path.read_text())
    n_rounds = len(record.rounds)
    n_stages = len(record.results["stages"])
    assert n_stages >= 5
    assert text.startswith(f"Plan: {n_rounds} rounds in {n_stages} stages; epsilon 2, delta 1e-05")


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_fit_is_private_unless_told_otherwise(fitted):
    text, folder = fitted("--norm-bound", 250)
    record = RunRecord.read(folder / "run.jsonl")
    promise = record.results["privacy"]
    assert (record.settings["epsilon"], record.settings["trust"]) == (1.0, "local")
    assert 0.999 < promise["epsilon"] <= 1
    assert record.settings["random_state"] is None
    assert "simulated noise: not a private release" in record.stamps
    assert "Protected every single record. With epsilon 1 and delta 0.00001" in text
    page = (folder / "report.html").read_text()
    assert "simulated noise: not a private release</li>" in page
    for name, *values in stage_rows(record):
        inside = "".join(f"<td>{value}</td>" for value in values)
        assert f'<tr><th scope="row">{name}</th>{inside}</tr>' in page


def test_fit_takes_all_options_on_privacy(fitted):
    words = ("--epsilon", 6, "--delta", 1e-4, *TOGETHER, "--min-survivors", 2)
    words += ("--colluding-sites", 1, "--norm-bound", 250, "--sampling-probability", 0.5)
    _, folder = fitted(*words, "--seed", 0)
    plan = recorded_plan(RunRecord.read(folder / "run.jsonl"))
    assert (plan.min_survivors, plan.colluding_sites, plan.delta) == (2, 1, 1e-4)
    assert "bound" not in {release.stage for release in plan.releases}
    assert plan.of_stage("factorisation").sampling_probability == 0.5
    assert 5.99 < plan_epsilon(plan) <= 6


def test_without_noise_fit_says_so(fitted):
    text, folder = fitted("--no-noise")
    assert "no noise, so no privacy is promised" in text
    assert "this run adds no noise, so it promises no privacy" in text
    results = RunRecord.read(folder / "run.jsonl").results
    assert (results["privacy"], results["privacy_plan"]) == (None, None)


@pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")
def test_a_seed_repeats_the_noise_and_none_draws_it_anew(fitted):
    words = {"a": ("--seed", 3), "b": ("--seed", 3), "c": (), "d": ()}
    centers = {
        name: read_csv(fitted("--norm-bound", 250, *more, name=name)[1] / "centres.csv")
        for name, more in words.items()
    }
    assert centers["a"] == centers["b"]
    assert centers["a"] != centers["c"] != centers["d"]


def test_published_variant_says_what_its_noise_is_worth(fitted):
    words = ("--variant", "published", "--epsilon", 5, "--gradient-bound", 1, "--rounds", 3)
    text, folder = fitted(*words)
    record = RunRecord.read(folder / "run.jsonl")
    assert record.settings["epsilon"] == 5
    assert record.results["privacy"] is None
    assert "the paper's noise for epsilon 5, delta 1e-05, which is not a proof" in text
    # Theorems 2 and 3 by hand: round 1 takes 11 steps, the others 6 and 4, each with q <= 1/2.
    sites = [row[3] for row in patients(600)]
    worst = 0.0
    ratios = {}
    for n in (sites.count("Bergen"), sites.count("Oslo")):
        ratios[n] = [s * min(50, n // (2 * s)) / n for s in (11, 6, 4)]
    largest = max(max(q) for q in ratios.values())
    per_round = 5 / (largest**2 * math.sqrt(3 / (1 - largest)))
    for found in ratios.values():
        z = [2 * q * math.sqrt(2 * math.log(1.25 * q / 1e-5)) / per_round for q in found]
        worst = max(worst, gaussian_epsilon(sum(1 / v**2 for v in z) ** 0.5, 1e-5))
    shown = re.search(r"it would give epsilon ([\d.,]+) at delta 1e-05", text)[1]
    assert float(shown.replace(",", "")) == pytest.approx(worst, rel=0.01)
    assert worst > 5


@pytest.mark.filterwarnings("default::dpfedc.errors.UtilityWarning")
def test_fit_warns_in_one_line_when_noise_swamps_the_clusters(dpfedc, tmp_path):
    table = write_csv(tmp_path / "few.csv", HEAD, patients())
    words = ("--clusters", 3, *ROLES, "--epsilon", 0.1, "--delta", 0.02, "--no-diagnostics")
    words += ("--norm-bound", 250, "--seed", 0)
    code, out, err = dpfedc("fit", table, *words, "--output", tmp_path / "r")
    assert code == 0
    assert "Verdict useless." in " ".join(out.split())
    lines = err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("dpfedc: warning: the noise is likely to swamp the clusters")
    assert lines[1].startswith("dpfedc: warning: delta should be well below 1 / n_records")
    assert lines[2].startswith("dpfedc: warning: the scale of the records is at its floor")
    assert lines[3].startswith(
        "dpfedc: warning: clusters 0, 1 and 2 hold too few records to stand out"
    )


def test_fit_refuses_what_cannot_be_found_and_says_what_to_declare(dpfedc, tmp_path):
    table = write_csv(tmp_path / "few.csv", HEAD, patients(195))
    words = ("--clusters", 3, *ROLES, "--epsilon", 0.5, "--output", tmp_path / "r")
    code, out, err = dpfedc("fit", table, *words)
    assert (code, out) == (2, "")
    assert err.startswith("dpfedc: error: the length of the longest records cannot be found among")
    assert "195 records" in err
    assert err.count("\n") == 1
    assert "norm_bound" in err
    assert not (tmp_path / "r").exists()
