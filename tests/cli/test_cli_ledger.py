"""`dpfedc ledger`: what was spent, in words and tables, and whether the file is whole."""

import sqlite3
from pathlib import Path

import pytest

from dpfedc.deployment.offered_runs import AGREEMENT
from dpfedc.privacy.accountant import plan_epsilon
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Ledger
from dpfedc.privacy.statement import rounded_up
from support.command_line import ROLES, outcome
from support.ledgers import PLAN, TOGETHER, charge, used
from support.site_services import agreement_with, site_folder


@pytest.fixture
def dpfedc(capsys, monkeypatch):
    """Return a function that runs the command line and returns (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: outcome(capsys, words)


def cells(text):
    """Return the rows of all printed tables."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def test_show_a_ledger_in_use(dpfedc, tmp_path):
    path = used(tmp_path / "l")
    with Ledger.open(path) as ledger:
        totals, head = ledger.totals(), ledger.head()
    code, out, err = dpfedc("ledger", "show", path)
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert "ward 7; what is protected is one record (zero-out)" in words
    assert "gaussian, epsilon 100 at delta 1e-05" in words
    assert f"epsilon {rounded_up(totals.epsilon, 4)}; " in words
    assert f"{rounded_up(totals.epsilon_if_others_collude, 4)} if all others collude" in words
    rows = cells(out)
    limit = totals.limits["inverse_squares"]
    spent = 1 / 64 + 3 / 16
    alone = 1 / 64 + 2 / 16 + 3 / 16  # in the last round the others know two of three shares
    shown = [f"{value:.4g}" for value in (spent, limit - spent, limit, alone)]
    assert ["sum of 1/z^2", *shown] in rows
    assert not any("spare delta" in row for row in rows)  # none was set aside
    assert "colluding" not in words
    assert ["r", "local", "mean", "1", "1", "1", "1"] in rows
    assert ["r", "local", "rounds", "2", "3", "1", "5"] in rows
    assert ["s", "secure-aggregation", "rounds", "1", "3", "0", "1"] in rows
    assert f"7 rows; the last hash is {head.digest}" in words


def test_show_a_new_ledger_and_one_with_a_basic_cap(dpfedc, tmp_path):
    Ledger.create(tmp_path / "new", holding="h", cap=GaussianCap(2.0, 1e-6)).close()
    code, out, _ = dpfedc("ledger", "show", tmp_path / "new")
    assert code == 0
    assert "epsilon 0; 0 if all others collude" in " ".join(out.split())
    assert not any("stage" in row for row in cells(out))

    long_id = "0123456789abcdef" * 4
    cap = BasicCap(90.0, 1e-4)
    with Ledger.create(tmp_path / "l", holding="h", cap=cap, least_colluding_sites=1) as ledger:
        charge(ledger, long_id, PLAN)
        charge(ledger, "s", TOGETHER)
    code, out, _ = dpfedc("ledger", "show", tmp_path / "l")
    rows = cells(out)
    assert ["epsilon", f"{plan_epsilon(PLAN) * 2:.4g}"] in [row[:2] for row in rows]
    assert ["delta", "2e-06", "9.8e-05", "0.0001", "2e-06"] in rows
    assert ["0123456789ab", "local"] in [row[:2] for row in rows]
    assert "safe with 1 or more of them colluding" in " ".join(out.split())


def test_noise_of_a_trusted_server_is_marked_as_asserted(dpfedc, tmp_path):
    with Ledger.create(tmp_path / "l", holding="h", cap=GaussianCap(50.0, 1e-6)) as ledger:
        plan = type(PLAN)(PLAN.releases, 1e-6, "trusted-server", 4)
        charge(ledger, plan=plan)
    _, out, _ = dpfedc("ledger", "show", tmp_path / "l")
    assert ["r", "trusted-server (asserted)"] in [row[:2] for row in cells(out)]


def test_verify_says_which_row_is_wrong(dpfedc, tmp_path):
    path = used(tmp_path / "l")
    code, out, err = dpfedc("ledger", "verify", path)
    assert (code, err) == (0, "")
    assert out.startswith("Whole: 7 rows")
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("DROP TRIGGER answers_UPDATE_refused")
    db.execute("UPDATE answers SET answer = x'00' WHERE row = 6")
    db.close()
    code, out, err = dpfedc("ledger", "verify", path)
    assert (code, err) == (1, "")
    assert "Damaged" in out
    assert "the answer of row 6 is not as it was written" in " ".join(out.split())


@pytest.mark.parametrize("command", ["show", "verify"])
def test_files_that_are_no_ledger(dpfedc, tmp_path, command):
    code, out, err = dpfedc("ledger", command, tmp_path / "none")
    assert (code, out) == (2, "")
    assert "ledger must be an existing file" in err
    assert not list(tmp_path.iterdir())
    sqlite3.connect(tmp_path / "empty").close()
    (tmp_path / "empty").touch()
    code, out, err = dpfedc("ledger", command, tmp_path / "empty")
    assert (code, out) == (2, "")
    assert "cannot be used: no such table" in err


def spent(path):
    with Ledger.open(path) as ledger:
        return ledger.unit, ledger.totals().spent


def test_change_the_unit(dpfedc, tmp_path, monkeypatch):
    path = used(tmp_path / "l")
    words = ("ledger", "change-unit", path, "--to", "person", "--rows-per-person", 3)
    squares = 1 / 64 + 3 / 16
    monkeypatch.setattr("typer.confirm", lambda _: False)
    code, out, err = dpfedc(*words)
    assert (code, err) == (1, "")
    assert out.rstrip().endswith("Not changed.")
    assert spent(path) == ("record", {"inverse_squares": squares, "spare_delta": 0.0})
    shown = [f"{value:.4g}" for value in (squares, 9 * squares)]
    code, out, err = dpfedc(*words, "--yes")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "one record, and will be one person, with at most 3 rows per person" in text
    assert ["sum of 1/z^2", *shown] in [row[:3] for row in cells(out)]
    assert "Warning" not in text
    assert spent(path) == ("person", {"inverse_squares": 9 * squares, "spare_delta": 0.0})
    code, out, _ = dpfedc("ledger", "show", path)
    assert "what is protected is one person" in " ".join(out.split())
    assert "Warning" not in out
    assert dpfedc("ledger", "verify", path)[0] == 0


def test_a_change_that_leaves_nothing_says_so_before_and_after(dpfedc, tmp_path, monkeypatch):
    path, asked = used(tmp_path / "l"), []
    monkeypatch.setattr("typer.confirm", lambda question: asked.append(question) or True)
    words = ("ledger", "change-unit", path, "--to", "person", "--rows-per-person", 90)
    code, out, _ = dpfedc(*words)
    assert code == 0
    assert asked == ["Change the unit? This cannot be undone."]
    assert "nothing will be left of the cap for one person" in " ".join(out.split())
    code, out, _ = dpfedc("ledger", "show", path)
    assert code == 0
    assert "for one person, more was spent than the cap allows" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "record", "--rows-per-person", 2), "another than the ledger's own, got record"),
        (("--to", "visit", "--rows-per-person", 2), "visit"),
        (("--to", "person", "--rows-per-person", 0), "must be >= 1, got 0"),
        (("--to", "person"), "--rows-per-person"),
        (("--rows-per-person", 2), "--to"),
    ],
)
def test_changes_that_mean_nothing(dpfedc, tmp_path, words, message):
    path = used(tmp_path / "l")
    code, out, err = dpfedc("ledger", "change-unit", path, *words, "--yes")
    assert (code, out) == (2, "")
    assert message in err
    assert spent(path)[0] == "record"


@pytest.mark.filterwarnings("ignore:cluster.* too few records:dpfedc.errors.UtilityWarning")
def test_trials_are_charged_to_a_ledger_until_its_cap_is_spent(dpfedc, table, tmp_path):
    path, n_runs = tmp_path / "trials.ledger", 0
    fit = ("fit", table, "--clusters", 3, *ROLES, "--no-diagnostics", "--epsilon", 2, "--seed", 3)
    code, _, err = dpfedc(*fit, "--output", tmp_path / "none", "--ledger", path)
    assert code == 2
    assert f"this makes one: dpfedc ledger init {path} --cap-epsilon 10 --cap-delta 1e-5" in err
    assert not (tmp_path / "none").exists()

    code, out, err = dpfedc("ledger", "init", path, "--cap-epsilon", 3, "--cap-delta", 1e-5)
    assert (code, err) == (0, "")
    assert path.name in out
    for name in "abc":
        code, _, err = dpfedc(*fit, "--output", tmp_path / name, "--ledger", path)
        if code:
            break
        n_runs += 1
    assert (code, n_runs) == (2, 2)  # noise adds up: twice epsilon 2 is less than 3
    assert "error: over the lifetime cap of 'trials'" in err
    assert not (tmp_path / "c").exists()

    code, out, _ = dpfedc("ledger", "show", path)
    assert code == 0
    runs = {row[0] for row in cells(out) if row[0].startswith("trial-")}
    assert len(runs) == n_runs
    assert dpfedc("ledger", "verify", path)[0] == 0


def test_a_new_ledger_says_what_it_is_for(dpfedc, tmp_path):
    path = tmp_path / "l"
    words = ("--cap-epsilon", 4, "--cap-delta", 1e-6, "--cap-kind", "basic", "--unit", "person")
    assert dpfedc("ledger", "init", path, *words, "--holding", "ward 7")[0] == 0
    with Ledger.open(path) as ledger:
        assert ledger.unit == "person"
        assert ledger.opening.holding == "ward 7"
        assert ledger.opening.cap_kind == "basic"
        assert ledger.opening.limits == {"epsilon": 4.0, "delta": 1e-6}
    code, _, err = dpfedc("ledger", "init", path, *words)
    assert code == 2
    assert "ledger must be a new file" in err
    code, _, err = dpfedc("ledger", "init", tmp_path / "m", "--cap-epsilon", -1, "--cap-delta", 0.1)
    assert code == 2
    assert "epsilon must be" in err
    assert not (tmp_path / "m").exists()


def test_a_trial_without_noise_cannot_be_charged(dpfedc, table, tmp_path):
    dpfedc("ledger", "init", tmp_path / "l", "--cap-epsilon", 3, "--cap-delta", 1e-5)
    words = ("--clusters", 3, *ROLES, "--no-noise", "--ledger", tmp_path / "l")
    code, _, err = dpfedc("fit", table, *words, "--output", tmp_path / "r")
    assert code == 2
    assert "ledger must be left out where nothing is proved" in err


def restored(folder):
    """Let a site accept two runs and release in one, put its ledger back, and return the head."""
    first, second = agreement_with([folder]), agreement_with([folder], seed=8)
    backup = folder.ledger.read_bytes()
    for agreement in (first, second):
        folder.keep(agreement)
    folder.accept(first.digest)
    with Ledger.open(folder.ledger) as ledger:
        z = first.privacy.releases[0].noise_multiplier
        stage = first.privacy.releases[0].stage
        ledger.charge(first.digest, first.privacy, stage, 1, "q", noise_multiplier=z)
        seen = ledger.head()
    folder.ledger.write_bytes(backup)
    return first, f"{seen.n_rows}:{seen.digest}"


def test_recover_charges_all_that_is_left(dpfedc, tmp_path, monkeypatch):
    folder = site_folder(tmp_path, "berlin")
    _, seen = restored(folder)
    asked = []
    monkeypatch.setattr("typer.confirm", asked.append)
    words = ("ledger", "recover", folder.ledger, "--seen", seen)
    code, out, err = dpfedc(*words)
    assert (code, err) == (1, "")
    assert asked == ["Charge this? This cannot be undone."]
    assert out.rstrip().endswith("Not charged.")
    assert spent(folder.ledger)[1]["inverse_squares"] == 0
    code, out, err = dpfedc(*words, "--yes")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "2 rows with hash" in text
    assert "all that is left of the cap" in text
    assert "You affirm" not in text
    assert "only the server says so. If no backup was put back here, it is wrong or lies" in text
    with Ledger.open(folder.ledger) as ledger:
        assert ledger.totals().spent == ledger.totals().limits
    code, out, _ = dpfedc("ledger", "show", folder.ledger)
    text = " ".join(out.split())
    assert "Lost rows (2 had been seen) charged the worst case" in text.replace(":", "")
    assert "Warning" not in text
    assert dpfedc("ledger", "verify", folder.ledger)[0] == 0


@pytest.mark.parametrize("cancelled", [False, True])
def test_recover_charges_what_accepted_runs_can_have_cost(dpfedc, tmp_path, cancelled):
    """Also one that was cancelled: it may have been charged before."""
    folder = site_folder(tmp_path, "berlin")
    first, seen = restored(folder)
    if cancelled:
        folder.cancel(first.digest)
    words = ("ledger", "recover", folder.ledger, "--seen", seen, "--runs", folder.path, "--yes")
    code, out, err = dpfedc(*words)
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "no other run was accepted here since the backup was made" in text
    assert "no trial was charged since (`dpfedc fit --ledger`)" in text
    assert first.digest[:12] in text
    releases = first.privacy.releases
    due = sum(r.rounds_per_site / r.noise_multiplier**2 for r in releases)
    assert spent(folder.ledger)[1]["inverse_squares"] == pytest.approx(due, rel=1e-8)
    assert first.digest[:12] in " ".join(dpfedc("ledger", "show", folder.ledger)[1].split())
    code, _, err = dpfedc(*words)
    assert code == 2
    assert "rows that were seen: none is lost" in err


def test_recover_refuses_what_it_cannot_judge(dpfedc, tmp_path):
    folder = site_folder(tmp_path, "berlin")
    first, seen = restored(folder)
    path = ("ledger", "recover", folder.ledger, "--yes")
    for wrong in ("5", "x:y", f"0:{'a' * 64}", f"2:{'z' * 64}", ":"):
        code, _, err = dpfedc(*path, "--seen", wrong)
        assert code == 2
        assert "--seen must be ROWS:HASH" in err
    (tmp_path / "other").mkdir()
    other = site_folder(tmp_path / "other", "geneva")
    code, _, err = dpfedc(*path, "--seen", seen, "--runs", other.path)
    assert code == 2
    assert "--runs must be the folder" in err
    (folder.run(first.digest) / AGREEMENT).write_text("{}")
    code, _, err = dpfedc(*path, "--seen", seen, "--runs", folder.path)
    assert code == 2
    assert spent(folder.ledger)[1]["inverse_squares"] == 0
    with Ledger.open(folder.ledger) as ledger:
        assert ledger.head().n_rows == 1


def test_help_and_manual_say_whose_word_it_is_and_what_is_affirmed(dpfedc):
    helped = " ".join(dpfedc("ledger", "recover", "--help")[1].replace("│", " ").split())
    manual = Path(__file__).parents[2] / "docs" / "deployment.md"
    (row,) = (
        line
        for line in manual.read_text(encoding="utf-8").splitlines()
        if line.startswith("| a ledger was put back from a backup |")
    )
    for text in (helped, row):
        assert "the server's word" in text
        assert "if no backup was put back" in text.lower()
        assert "no trial" in text
        assert "fit --ledger" in text


def test_recover_without_a_head_that_anyone_has_seen(dpfedc, tmp_path):
    path = used(tmp_path / "l")
    code, out, err = dpfedc("ledger", "recover", path, "--yes")
    assert (code, err) == (0, "")
    assert "nobody has seen" in " ".join(out.split())
    assert "server" not in out  # nobody's word is taken
    with Ledger.open(path) as ledger:
        assert ledger.totals().left["inverse_squares"] == 0
        assert ledger.totals().closed == {"r", "s"}
