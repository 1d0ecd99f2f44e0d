"""`dpfedc account`: epsilon of plans, of runs from their logs, and of the paper's noise."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from dpfedc import DPFedC
from dpfedc.engine.run_record import RunRecord
from dpfedc.privacy.accountant import dp_event, gaussian_epsilon, plan_epsilon, rdp_epsilon
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.report.accounts import accounts, compared, logged_releases, read_account
from dpfedc.report.promise import recorded_plan
from support.command_line import patients

TOGETHER = ("--trust", "secure-aggregation")
BOUND = ("--norm-bound", 250)

pytestmark = pytest.mark.filterwarnings("ignore::dpfedc.errors.UtilityWarning")


def cells(text, name):
    """Return the cells of the row of a printed table that starts with `name`."""
    row = next(line for line in text.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in row.split("│")[1:-1]]


RELEASES = (
    PlannedRelease("mean", 1, 10, 1, 4.0),
    PlannedRelease("factorisation", 9, 5, 5, 2.0),
)
MU = math.sqrt(1 / 16 + 5 / 4)


def written(path, **changes):
    plan = PrivacyPlan(RELEASES, 3e-6, "local", 10)
    plan = replace(plan, **changes)
    path.write_text(plan.to_json())
    return path, plan


def test_account_of_a_plan_at_several_deltas(dpfedc, tmp_path):
    path, plan = written(tmp_path / "plan.json")
    code, out, err = dpfedc("account", path)
    assert (code, err) == (0, "")
    for shown, delta in (("1e-04", 1e-4), ("3e-06 (plan)", 3e-6), ("1e-09", 1e-9)):
        _, pld, rdp, closed = cells(out, shown)
        exact = gaussian_epsilon(MU, delta)
        assert float(pld) == pytest.approx(exact, rel=1e-3)
        assert exact <= float(closed) <= exact * 1.001
        assert float(rdp) > float(pld)
    assert "a site takes part in 6 rounds at most" in " ".join(out.split())
    assert [row.delta for row in accounts(plan)] == [1e-4, 1e-5, 3e-6, 1e-6, 1e-7, 1e-8, 1e-9]


def test_account_of_a_sampled_plan_has_no_closed_form(dpfedc, tmp_path):
    sampled = (RELEASES[0], replace(RELEASES[1], sampling_probability=0.1))
    path, plan = written(tmp_path / "plan.json", releases=sampled)
    code, out, _ = dpfedc("account", path)
    assert code == 0
    _, pld, rdp, closed = cells(out, "1e-05")
    assert closed == "\N{EN DASH}"
    assert float(pld) == pytest.approx(plan_epsilon(plan, 1e-5), rel=1e-3)
    assert float(pld) < gaussian_epsilon(MU, 1e-5)
    assert float(pld) < float(rdp)
    assert float(rdp) == pytest.approx(rdp_epsilon(dp_event(sampled), 1e-5), rel=1e-3)


def test_a_delta_that_is_set_aside_already_gets_a_dash(dpfedc, tmp_path):
    path, _ = written(tmp_path / "plan.json", delta=1e-5, spare_delta=1e-7)
    code, out, _ = dpfedc("account", path)
    assert code == 0
    assert cells(out, "1e-07") == ["1e-07", "\N{EN DASH}", "\N{EN DASH}", "\N{EN DASH}"]
    exact = gaussian_epsilon(MU, 1e-6 - 1e-7)
    assert float(cells(out, "1e-06")[1]) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("trust", ["local", "secure-aggregation", "trusted-server"])
def test_the_log_of_a_run_gives_the_epsilon_that_it_reported(dpfedc, fitted, trust):
    _, folder = fitted("--trust", trust, "--sites-per-round", 1, "--rounds", 5, *BOUND)
    code, out, err = dpfedc("account", folder / "run.jsonl")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    reported, logged = re.findall(r"(?:Reported|Logged) epsilon ([\d.]+),", text)
    assert 0.999 < float(reported) <= 1
    assert logged == reported
    assert "the two agree" in text
    plan, record = read_account(folder / "run.jsonl")
    logged = {release.stage: release for release in logged_releases(record, plan)}
    for release in plan.releases:
        again = logged[release.stage]
        assert again.rounds_per_site == release.rounds_per_site
        assert again.noise_multiplier == pytest.approx(release.noise_multiplier, rel=1e-12)
    assert logged["factorisation"].rounds_per_site == 3  # 5 rounds with 1 of 2 sites


@pytest.mark.parametrize(("factor", "told"), [(0.5, "less noise"), (2.0, "more noise")])
def test_a_log_that_contradicts_the_report_is_found(dpfedc, fitted, factor, told):
    _, folder = fitted(*TOGETHER, *BOUND)
    path = folder / "run.jsonl"
    record = RunRecord.read(path)
    last = record.rounds[-1]
    changed = [
        replace(r, release={**r.release, "noise_std": r.release["noise_std"] * factor})
        if r.stage == last.stage
        else r
        for r in record.rounds
    ]
    replace(record, rounds=tuple(changed)).write(path)
    code, out, _ = dpfedc("account", path)
    assert code == 1
    assert f"do not agree; the log shows {told}" in " ".join(out.split())


def test_one_more_round_in_the_log_is_found(fitted):
    _, folder = fitted(*BOUND)
    record = RunRecord.read(folder / "run.jsonl")
    plan = recorded_plan(record)
    assert compared(record, plan).agrees
    last = [r for r in record.rounds if r.stage == "centres"]
    longer = replace(record, rounds=(*record.rounds, replace(last[-1], t=len(last) + 1)))
    found = compared(longer, plan)
    assert found.logged > found.reported
    assert not found.agrees


def test_account_of_the_papers_noise(dpfedc):
    code, out, err = dpfedc("account", "--published")
    assert (code, err) == (0, "")
    assert cells(out, "the paper's claim (Theorems 2 and 3)")[1] == "20.00"
    assert cells(out, "the same noise, by the accountant (PLD)")[1] == "143.6"
    text = " ".join(out.split())
    assert "even so, step sizes computed from private memberships are not covered" in text
    assert "a site is in 30 of 100 rounds at most" in text
    words = ("--epsilon", 20, "--delta", 1e-4, "--rounds", 100, "--sites", 100)
    words += ("--sites-per-round", 30, "--records-per-site", 100, "--batch-size", 50)
    assert dpfedc("account", "--published", *words, "--extra-steps", 10) == (0, out, "")
    _, out, _ = dpfedc("account", "--published", "--no-clipping")
    assert cells(out, "the same noise, by the accountant (PLD)")[1] == "infinite"
    assert "one record can change an upload by any amount" in " ".join(out.split())
    _, out, _ = dpfedc("account", "--published", "--closest-reading")
    assert cells(out, "the same noise, by the accountant (PLD)")[1] == "141.0"
    assert cells(out, "if one record is replaced")[1] == "62.33"
    assert cells(out, "if it is made null")[1] == "22.63"


def test_account_by_hand_of_a_single_round(dpfedc):
    words = ("--rounds", 1, "--sites", 1, "--sites-per-round", 1, "--extra-steps", 0)
    words += ("--records-per-site", 100, "--batch-size", 50, "--epsilon", 2, "--delta", 1e-3)
    code, out, _ = dpfedc("account", "--published", *words)
    assert code == 0
    per_round = 2 / (0.25 * math.sqrt(1 / 0.5))
    z = math.sqrt(2 * math.log(0.625 / 1e-3)) / per_round
    expected = gaussian_epsilon(1 / z, 1e-3)
    shown = float(cells(out, "the same noise, by the accountant (PLD)")[1])
    assert shown == pytest.approx(expected, rel=2e-3)


BAD_ACCOUNTS = {
    "nothing": ((), "needs PLAN or --published", "got neither"),
    "both": (("plan.json", "--published"), "got --published and plan.json"),
    "a setting of the paper": (("plan.json", "--rounds", 3), "--rounds needs --published"),
    "no clipping of a plan": (("plan.json", "--no-clipping"), "--no-clipping needs --published"),
    "no such file": (("none.json",), "no such plan or run record: none.json"),
    "another file": (("other.json",), "other.json must be a plan or a run record", "not a privacy"),
    "bytes": (("bytes.json",), "bytes.json must be a plan or a run record", "got"),
    "a run without a plan": (("exact.jsonl",), "with a privacy plan", "no noise was added"),
    "a cut record": (("cut.jsonl",), "cut.jsonl is not a complete run record"),
    "a run without a promise": (("bare.jsonl",), "must have reported its privacy"),
    "a round without noise": (("silent.jsonl",), "must log its noise, got one without"),
    "a stage of its own": (("foreign.jsonl",), "'extra' is not in the privacy plan"),
    "more sites a round": (("--published", "--sites-per-round", 200), "from 1 to 100, got 200"),
    "an epsilon of 0": (
        ("--published", "--epsilon", 0),
        "epsilon must be >= 1e-06 and <= 1000000, got 0.0",
    ),
    "outside the theorem": (
        ("--published", "--delta", 0.9, "--batch-size", 1),
        "Theorem 2 needs 1.25 q / delta > 1",
    ),
}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Return a folder with files that are not what `account` needs."""
    home = tmp_path_factory.mktemp("accounts")
    X = np.array([row[:2] for row in patients()], float)
    fits = {e: DPFedC(3, epsilon=e, random_state=0).fit(X).history_ for e in (None, 8.0)}
    whole = fits[8.0]
    fits[None].write(home / "exact.jsonl")
    whole.write(home / "cut.jsonl")
    (home / "cut.jsonl").write_text((home / "cut.jsonl").read_text()[:-40])
    replace(whole, results={**whole.results, "privacy": None}).write(home / "bare.jsonl")
    first = replace(whole.rounds[0], release={})
    replace(whole, rounds=(first, *whole.rounds[1:])).write(home / "silent.jsonl")
    first = replace(whole.rounds[0], stage="extra")
    replace(whole, rounds=(first, *whole.rounds[1:])).write(home / "foreign.jsonl")
    (home / "plan.json").write_text(json.dumps(whole.results["privacy_plan"]))
    (home / "other.json").write_text('{"a": 1}')
    (home / "bytes.json").write_bytes(b"\xff\xfe\x80")
    return home


@pytest.mark.parametrize("case", BAD_ACCOUNTS)
def test_bad_accounts_are_refused_in_one_line(dpfedc, damaged, monkeypatch, case):
    monkeypatch.chdir(damaged)
    words, *fragments = BAD_ACCOUNTS[case]
    code, _, err = dpfedc("account", *words)
    assert code == 2
    assert err.startswith("dpfedc: error: ")
    assert err.count("\n") == 1
    for fragment in fragments:
        assert fragment in err


def test_account_of_a_plan_for_persons(dpfedc, tmp_path):
    path, plan = written(tmp_path / "plan.json", unit="person", sites_per_person=3)
    code, out, err = dpfedc("account", path)
    assert (code, err) == (0, "")
    assert "Epsilon for every person, with rows at up to 3 sites, at" in " ".join(out.split())
    _, pld, rdp, closed = cells(out, "1e-05")
    exact = gaussian_epsilon(math.sqrt(3) * MU, 1e-5)
    assert float(pld) == pytest.approx(exact, rel=1e-3)
    assert exact <= float(closed) <= exact * 1.001
    assert float(rdp) > float(pld)
    sums = replace(plan, trust="trusted-server")
    assert accounts(sums)[1].closed == pytest.approx(gaussian_epsilon(3 * MU, 1e-5))


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_what_a_run_logged_is_accounted_for_its_unit(trust):
    """The log has what left the sites; a person at two of them meets more than a record."""
    X = np.array([[float(a), float(b)] for a, b, *_ in patients(400)])
    run = DPFedC(3, epsilon=5.0, trust=trust, random_state=0).fit(X, sites=np.arange(400) % 4)
    record, plan = run.history_, recorded_plan(run.history_)
    persons = replace(plan, unit="person", sites_per_person=2)
    privacy = {**record.results["privacy"], "unit": "person", "sites_per_person": 2}
    told = replace(record, results={**record.results, "privacy": privacy})
    assert compared(told, plan).agrees
    found = compared(told, persons)
    assert found.logged == pytest.approx(plan_epsilon(persons))
    assert found.logged > found.reported
