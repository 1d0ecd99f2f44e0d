"""`dpfedc plan`: what a run would do, promise and be worth, from numbers alone."""

import json

import pytest

from dpfedc.privacy.accountant import plan_epsilon
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.verdict import kept
from dpfedc.verdict.mixtures import SEPARATIONS

TOGETHER = ("--trust", "secure-aggregation")

MANY = ("plan", "--records", 9000, "--sites", 30, "--features", 5, "--clusters", 3)
FEW = ("plan", "--records", 195, "--sites", 3, "--features", 2, "--clusters", 3, "--epsilon", 1)


def words_of(out):
    return " ".join(out.split())


def test_plan_prints_the_verdict_and_the_promise_and_saves_the_plan(dpfedc, tmp_path):
    path = tmp_path / "new" / "plan.json"
    code, out, err = dpfedc(*MANY, *TOGETHER, "--save-plan", path)
    assert (code, err) == (0, "")
    text = words_of(out)
    assert "Plan 3 clusters among 9,000 records with 5 features at 30 sites" in text
    assert text.index("Verdict usable. Rehearsed with invented") < text.index("Promise")
    assert "Centres noise moves that of a cluster of average size by 0.0" in text
    assert "Promise epsilon 1, delta 1e-05 for every record" in text
    assert "Warning" not in text
    assert out.splitlines()[-1] == f"Privacy plan: {path}"
    plan = PrivacyPlan.from_json(path.read_text())
    assert 0.999 < plan_epsilon(plan) <= 1
    assert dpfedc(*MANY, "--save-plan", path)[0] == 0  # a plan may replace a plan
    assert PrivacyPlan.from_json(path.read_text()).trust == "local"


def test_195_records_at_epsilon_1_are_called_useless_with_what_to_declare(dpfedc):
    code, out, err = dpfedc(*FEW)
    assert (code, err) == (0, "")
    text = words_of(out)
    assert "Verdict useless. No run can succeed: the length of the longest records" in text
    assert "cannot be found among 195 records" in text
    for what in ("schema", "feature_ranges", "norm_bound"):
        assert what in text


def test_json_is_one_object_and_nothing_else(dpfedc, tmp_path):
    path = tmp_path / "plan.json"
    code, out, err = dpfedc(*MANY, *TOGETHER, "--json", "--save-plan", path)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["verdict"] == "usable"
    expected = found["expected"]
    assert 0.75 <= expected["score"] <= 1
    assert 0 < expected["center_std"] < 0.2
    assert expected["column_std"] == {}
    assert [one["name"] for one in expected["rehearsed"]] == list(SEPARATIONS)
    assert expected["sentences"][0].startswith("Rehearsed with invented clusters")
    assert found["privacy_plan"] == json.loads(path.read_text())
    plan = PrivacyPlan.from_json(json.dumps(found["privacy_plan"]))
    assert (found["epsilon"], found["delta"]) == (plan_epsilon(plan), 1e-5)
    assert found["n_rounds"] == sum(release.n_rounds for release in plan.releases)


def test_json_of_a_hopeless_plan(dpfedc):
    code, out, _ = dpfedc(*FEW, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["expected"]["score"]) == (0, "useless", 0.0)
    assert found["expected"]["center_std"] is None
    assert found["privacy_plan"]["releases"]


def test_a_schema_gives_the_units(dpfedc, tmp_path):
    (tmp_path / "schema.toml").write_text(
        '[[column]]\nname = "age"\nkind = "number"\nrange = [0, 100]\n'
        '[[column]]\nname = "pressure"\nkind = "number"\nrange = [50, 250]\n'
    )
    words = ("--schema", tmp_path / "schema.toml", "--records", 3000, "--sites", 3)
    words = ("plan", *words, "--clusters", 2, "--epsilon", 4)
    found = json.loads(dpfedc(*words, "--json")[1])["expected"]
    age, pressure = (found["column_std"][name] for name in ("age", "pressure"))
    assert pressure == pytest.approx(2 * age)
    assert age < 10
    text = words_of(dpfedc(*words)[1])
    assert f"fill their ranges well: age {age:.2g}, pressure {pressure:.2g}." in text


def test_the_same_plan_is_rehearsed_once(dpfedc, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    judge, asked = kept.expected_verdict, []
    monkeypatch.setattr(kept, "expected_verdict", lambda *what: asked.append(1) or judge(*what))
    first, again = (dpfedc(*FEW, "--bound-declared") for _ in range(2))
    assert first == again
    assert len(asked) == 1
    dpfedc(*FEW, "--bound-declared", "--rounds", 4)
    assert len(asked) == 2


def test_a_plan_for_persons(dpfedc, tmp_path):
    path = tmp_path / "plan.json"
    words = ("--unit", "person", "--sites-per-person", 2, "--save-plan", path)
    code, out, err = dpfedc(*MANY, *TOGETHER, *words)
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "Plan 3 clusters among 9,000 persons with 5 features" in text
    assert "Protected every single person, with rows at up to 2 sites" in text
    plan = PrivacyPlan.from_json(path.read_text())
    assert (plan.unit, plan.sites_per_person) == ("person", 2)
    assert 0.999 < plan_epsilon(plan) <= 1


@pytest.mark.parametrize("width", [40, 60, 80])
def test_plan_fits_the_terminal(dpfedc, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = dpfedc(*MANY)
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
    assert dpfedc(*MANY, *words, "--bound-declared", "--save-plan", path)[0] == 0
    plan = PrivacyPlan.from_json(path.read_text())
    assert (plan.min_survivors, plan.colluding_sites, plan.delta) == (20, 2, 1e-6)
    search = plan.of_stage("factorisation")
    assert (search.n_rounds, search.sites_per_round, search.rounds_per_site) == (12, 25, 10)
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
    words = ("--features", 2, "--clusters", 5, *words, "--save-plan", tmp_path / "plan.json")
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
    code, out, err = dpfedc(*MANY, "--save-plan", mine)
    assert (code, out) == (2, "")
    assert "must be a new file or an earlier plan, got" in err
    assert mine.read_text() == "{}"
