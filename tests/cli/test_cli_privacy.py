"""Privacy on the command line: plans, and fits that are private by default."""

import json
import math
import re

import pytest

from dpfedc.engine.run_record import RunRecord
from dpfedc.privacy.accountant import gaussian_epsilon, plan_epsilon
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.report.promise import recorded_plan, stage_rows
from support.command_line import HEAD, ROLES, patients, read_csv, write_csv

TOGETHER = ("--trust", "secure-aggregation")


# --- plan --------------------------------------------------------------------------------------

IMAGES = ("plan", "--records", 10000, "--sites", 100, "--features", 784, "--clusters", 10)


def test_plan_prints_the_promise_and_writes_the_plan(dpfedc, tmp_path):
    path = tmp_path / "new" / "plan.json"
    code, out, err = dpfedc(*IMAGES, *TOGETHER, "--json", path)
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "Plan 10 clusters among 10,000 records with 784 features at 100 sites" in text
    assert "Promise epsilon 1, delta 1e-05 for every record" in text
    assert "Warning" not in text
    assert out.splitlines()[-1] == f"Privacy plan: {path}"
    plan = PrivacyPlan.from_json(path.read_text())
    assert 0.999 < plan_epsilon(plan) <= 1
    assert dpfedc(*IMAGES, "--json", path)[0] == 0  # a plan may replace a plan
    assert PrivacyPlan.from_json(path.read_text()).trust == "local"


def test_plan_warns_when_noise_swamps_the_signal(dpfedc):
    code, out, _ = dpfedc(*IMAGES)
    assert code == 0
    assert re.search(r"^Warning +the noise is 1\.04 times the signal", out, re.MULTILINE)


def test_a_plan_for_persons(dpfedc, tmp_path):
    path = tmp_path / "plan.json"
    words = ("--unit", "person", "--sites-per-person", 2, "--json", path)
    code, out, err = dpfedc(*IMAGES, *TOGETHER, *words)
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "Plan 10 clusters among 10,000 persons with 784 features" in text
    assert "Protected every single person, with rows at up to 2 sites" in text
    plan = PrivacyPlan.from_json(path.read_text())
    assert (plan.unit, plan.sites_per_person) == ("person", 2)
    assert 0.999 < plan_epsilon(plan) <= 1


@pytest.mark.parametrize("width", [40, 60, 80])
def test_plan_fits_the_terminal(dpfedc, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = dpfedc(*IMAGES)
    assert code == 0
    assert max(map(len, out.splitlines())) <= width


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (("--records", "100,250,80"), [100, 250, 80]),
        (("--records", "100, 250,80", "--sites", 3), [100, 250, 80]),
        (("--records", 11, "--sites", 4), [3, 3, 3, 2]),
    ],
)
def test_records_are_given_for_each_site_or_split_evenly(dpfedc, words, sizes):
    code, out, _ = dpfedc("plan", *words, "--features", 2, "--clusters", 2, "--epsilon", 50)
    assert code == 0
    text = " ".join(out.split())
    assert f"{sum(sizes)} records with 2 features at {len(sizes)} sites" in text
    assert f"with {min(sizes)} to {max(sizes)} records each" in text


def test_plan_takes_all_its_options(dpfedc, tmp_path):
    path = tmp_path / "plan.json"
    words = ("--epsilon", 4, "--delta", 1e-6, *TOGETHER, "--min-survivors", 20, "--rounds", 12)
    words += ("--colluding-sites", 2, "--sites-per-round", 25, "--sampling-probability", 0.5)
    assert dpfedc(*IMAGES, *words, "--bound-declared", "--json", path)[0] == 0
    plan = PrivacyPlan.from_json(path.read_text())
    assert (plan.min_survivors, plan.colluding_sites, plan.delta) == (20, 2, 1e-6)
    search = plan.of_stage("factorisation")
    assert (search.n_rounds, search.sites_per_round, search.rounds_per_site) == (12, 25, 3)
    assert search.sampling_probability == 0.5
    assert "bound" not in {release.stage for release in plan.releases}
    assert 3.99 < plan_epsilon(plan) <= 4


BAD_PLANS = {
    "records in words": (("--records", "many", "--sites", 3), "must be whole numbers", "'many'"),
    "no records": (("--records", 0, "--sites", 3), "must be whole numbers >= 1", "'0'"),
    "a comma for thousands": (("--records", "10,000", "--sites", 3), "got '10,000'"),
    "another number of sites": (("--records", "9,9", "--sites", 3), "--sites 3", "got 2 numbers"),
    "one number, no sites": (("--records", 100), "needs --sites", "got none"),
    "an empty site": (("--records", 3, "--sites", 5), "every site", "got 3 for 5 sites"),
    "too few records": (("--records", 4, "--sites", 2), "--clusters 5", "got 4"),
    "more a round than there are": (
        ("--records", 90, "--sites", 3, "--sites-per-round", 4),
        "from 1 to 3, got 4",
    ),
    "too many survivors": (
        ("--records", 90, "--sites", 3, *TOGETHER, "--min-survivors", 4),
        "from 1 to 3, got 4",
    ),
    "survivors of local trust": (
        ("--records", 90, "--sites", 3, "--min-survivors", 2),
        "needs --trust secure-aggregation",
        "got --trust local",
    ),
    "a delta of 1": (("--records", 90, "--sites", 3, "--delta", 1), "< 1, got 1"),
    "an infinite epsilon": (
        ("--records", 90, "--sites", 3, "--epsilon", "inf"),
        "<= 1000000, got inf",
    ),
    "no chance": (("--records", 90, "--sites", 3, "--sampling-probability", 0), "> 0", "got 0.0"),
    "records at several sites": (
        ("--records", 90, "--sites", 3, "--sites-per-person", 2),
        "sites_per_person must be 1 with unit record, got 2",
    ),
    "more sites than there are": (
        ("--records", 90, "--sites", 3, "--unit", "person", "--sites-per-person", 4),
        "sites_per_person must be from 1 to 3, got 4",
    ),
    "persons at several sites, sampled": (
        (
            "--records",
            90,
            "--sites",
            3,
            "--unit",
            "person",
            "--sites-per-person",
            2,
            "--sampling-probability",
            0.5,
        ),
        "sites_per_person must be 1 where records are sampled",
    ),
    "another unit": (("--records", 90, "--sites", 3, "--unit", "visit"), "visit"),
    "features in words": (
        ("--records", 90, "--sites", 3, "--features", "x"),
        "'--features': must be a whole number >= 1, got 'x'",
    ),
}


@pytest.mark.parametrize("case", BAD_PLANS)
def test_bad_plans_are_refused_in_one_line(dpfedc, tmp_path, case):
    words, *fragments = BAD_PLANS[case]
    words = ("--features", 2, "--clusters", 5, *words, "--json", tmp_path / "plan.json")
    code, out, err = dpfedc("plan", *words)
    assert (code, out) == (2, "")
    assert err.startswith("dpfedc: error: ")
    assert err.count("\n") == 1
    for fragment in fragments:
        assert fragment in err
    assert not list(tmp_path.iterdir())


def test_a_plan_never_replaces_another_file(dpfedc, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text("{}")
    code, out, err = dpfedc(*IMAGES, "--json", mine)
    assert (code, out) == (2, "")
    assert "must be a new file or an earlier plan, got" in err
    assert mine.read_text() == "{}"


# --- fit ---------------------------------------------------------------------------------------


def test_fit_follows_the_plan_that_plan_prints(dpfedc, fitted, tmp_path):
    text, folder = fitted(*TOGETHER, "--epsilon", 2, "--rounds", 7)
    sites = [row[3] for row in patients(600)]
    sizes = f"{sites.count('Bergen')},{sites.count('Oslo')}"
    words = ("plan", "--records", sizes, "--features", 2, "--clusters", 3, *TOGETHER)
    path = tmp_path / "plan.json"
    assert dpfedc(*words, "--epsilon", 2, "--rounds", 7, "--json", path)[0] == 0
    record = RunRecord.read(folder / "run.jsonl")
    assert record.results["privacy_plan"] == json.loads(path.read_text())
    n_rounds = len(record.rounds)
    assert text.startswith(f"Plan: {n_rounds} rounds in 5 stages; epsilon 2, delta 1e-05")


def test_fit_is_private_unless_told_otherwise(fitted):
    text, folder = fitted()
    record = RunRecord.read(folder / "run.jsonl")
    promise = record.results["privacy"]
    assert (record.settings["epsilon"], record.settings["trust"]) == (1.0, "local")
    assert 0.999 < promise["epsilon"] <= 1
    assert record.settings["random_state"] is None
    assert "simulated noise: not a private release" in record.stamps
    assert "How much epsilon 1, delta 1e-05" in text
    page = (folder / "report.html").read_text()
    assert "simulated noise: not a private release</li>" in page
    for name, *values in stage_rows(record):
        inside = "".join(f"<td>{value}</td>" for value in values)
        assert f'<tr><th scope="row">{name}</th>{inside}</tr>' in page


def test_fit_takes_all_options_on_privacy(fitted):
    words = ("--epsilon", 6, "--delta", 1e-4, *TOGETHER, "--min-survivors", 2)
    words += ("--colluding-sites", 1, "--norm-bound", 250, "--sampling-probability", 0.5)
    _, folder = fitted(*words)
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


def test_a_seed_repeats_the_noise_and_none_draws_it_anew(fitted):
    words = {"a": ("--seed", 3), "b": ("--seed", 3), "c": (), "d": ()}
    centers = {
        name: read_csv(fitted(*more, name=name)[1] / "centres.csv") for name, more in words.items()
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
    code, _, err = dpfedc("fit", table, *words, "--output", tmp_path / "r")
    assert code == 0
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("dpfedc: warning: the noise is likely to swamp the clusters")
    assert lines[1].startswith("dpfedc: warning: delta should be well below 1 / n_records")
