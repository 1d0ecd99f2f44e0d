"""The commands of a federation: what operators type, what they read, what is refused."""

import io
import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_runs import PLAN

from dpfedc.cli.run import RoundLog
from dpfedc.deployment.mailbox import https_operator
from dpfedc.deployment.mailbox.mailbox import Delivery
from dpfedc.deployment.round_calls import RoundEvent
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.whole_files import locked
from support.command_line import outcome, read_csv
from support.deployment import FEATURES, SIZES, by_site
from support.site_services import DeskTransport, write_records


@pytest.fixture
def dpfedc(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder; return its output, which must be without errors."""
    monkeypatch.chdir(tmp_path)

    def call(text, *, code=0):
        got, out, err = outcome(capsys, text.split())
        assert got == code, err
        return " ".join((out if code == 0 else err).split())

    return call


CAP = "--cap-epsilon 1000 --cap-delta 1e-3"


def init_site(dpfedc, name, more="--ca server/ca.crt"):
    write_records(f"{name}.csv", by_site()[name])
    return dpfedc(
        f"site init {name} --name {name} --server 127.0.0.1:8470 --data {name}.csv {CAP} {more}"
    )


@pytest.fixture
def federation(dpfedc, monkeypatch):
    """A server and its sites, enrolled by the commands, asked in memory."""
    dpfedc("server init server --listen 127.0.0.1")
    for name in SIZES:
        init_site(dpfedc, name)
        assert f"Enrolled {name}, key " in dpfedc(f"server enrol server {name}/site.pub")
    made = []

    def in_memory(_):
        made.append(DeskTransport([SiteFolder.open(Path(name)) for name in SIZES]))
        return made[-1]

    monkeypatch.setattr(https_operator, "HttpsMailbox", in_memory)
    Path("plan.toml").write_text(PLAN)
    yield made
    for transport_ in made:
        transport_.close()


def test_from_nothing_to_labels(dpfedc, federation):
    said = dpfedc("run start plan.toml --server server --wait 0", code=2)
    assert "must be accepted by 2 sites, got 0" in said
    run = next(SiteFolder.open(Path("berlin")).offered())
    for name in SIZES:
        assert "waits for you: dpfedc site accept" in dpfedc(f"site status {name}")
        terms = dpfedc(f"site accept {name} --yes")
        for words in (
            "Promise epsilon 50", "SIMULATED", "Leaves the site 1", "Accepted run",
            "the columns age, weight, height of your table", "Spent so far: 0; after this run",
            "Compare",
        ):  # fmt: skip
            assert words in terms
        assert run in terms.replace(" ", "")  # whole, on however many lines
        assert "accepted already" in dpfedc(f"site accept {name} {run[:8]}")
    said = dpfedc("run start plan.toml --server server --wait 0")
    assert "Sites online: 3 of 3. " in said
    assert "3 of 3 sites answered." in said
    assert "How much epsilon 50, delta 0.0001" in said
    assert "│ set apart by" in said  # the clusters are told as fit tells them
    assert "Sites that have the model: berlin, geneva, lisbon." in said
    assert f"{run[:12]} │ study │ finished" in dpfedc("server status server")
    assert "finished" in dpfedc("site status berlin")
    dpfedc(f"site labels berlin --run {run[:8]} -o berlin-labels.csv")
    rows = read_csv(Path("berlin-labels.csv"))
    assert len(rows) == 1 + SIZES["berlin"]
    assert {row[0] for row in rows[1:]} == {"berlin"}
    again = dpfedc("run resume --server server --wait 0")
    assert "Round" not in again
    assert "Sites that have the model: berlin, geneva, lisbon." in again


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[run]", "[run", "the plan must be TOML"),
        ("epsilon = 50", "epsilon = -50", "epsilon must be"),
        ("clusters = 3", "clusters = 0", "n_clusters must be"),
        ('"dp-lloyd"', '"dp-magic"', "method must be one of"),
        ("features", "schema", "schema must be the path"),
        ("rounds = 2", "speed = 2", "what [rounds] says must be"),
    ],
)
def test_a_plan_is_read_before_anybody_is_waited_for(dpfedc, federation, old, new, message):
    plan = Path("plan.toml")
    assert old in plan.read_text()
    plan.write_text(plan.read_text().replace(old, new))
    said = dpfedc("run start plan.toml --server server --wait 600", code=2)
    assert message in said
    assert not federation  # nobody has called the server


def test_a_plan_that_is_not_there_is_said_not_to_be(dpfedc, federation):
    assert "nope.toml does not exist" in dpfedc("run start nope.toml --server server", code=2)


def test_on_a_terminal_a_bar_shows_rounds_and_answers(dpfedc, federation, capsys, monkeypatch):
    dpfedc("run start plan.toml --server server --wait 0", code=2)
    for name in ("berlin", "lisbon"):
        dpfedc(f"site accept {name} --yes")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    words = ["run", "start", "plan.toml", "--server", "server", "--wait", "0"]
    code, _, err = outcome(capsys, words)
    assert code == 0
    assert "lloyd 2/2, 3 sites" in err
    assert "geneva refused (run " in err


def lines(capsys, text):
    """Run a command and return the lines that it prints, each with its spaces as they are."""
    code, out, err = outcome(capsys, text.split())
    assert code == 0, err
    return out.splitlines()


def test_a_site_that_declined_is_named_once_and_not_asked_to_come_later(
    dpfedc, federation, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")
    said = dpfedc("run start plan.toml --server server --wait 0", code=2)
    assert "got 0. Not accepted yet: berlin, geneva, lisbon. Nothing has been released" in said
    run = next(SiteFolder.open(Path("berlin")).offered())
    status = dpfedc("server status server")
    assert "0 of 3; not yet: berlin, geneva, lisbon" in status
    dpfedc("site decline geneva --yes")
    dpfedc("site accept berlin --yes")
    said = dpfedc("run start plan.toml --server server --wait 0", code=2)
    assert "got 1 (berlin). Not accepted yet: lisbon. geneva refuses: run" in said
    assert "1 of 3; not yet: lisbon; refused by geneva" in dpfedc("server status server")
    dpfedc("site accept lisbon --yes")
    said = lines(capsys, "run start plan.toml --server server --wait 0")
    rounds = [line for line in said if line.startswith("Round ")]
    assert ["geneva refused" in line for line in rounds] == [True] + [False] * (len(rounds) - 1)
    assert all(": 2 of 3 sites answered" in line for line in rounds)
    assert f"Without geneva: run {run[:12]} was declined here." in said
    assert not any("later" in line for line in said)
    content = json.loads(dpfedc("server status server --json"))["runs"][0]
    assert (content["accepted"], [*content["refused"]]) == (["berlin", "lisbon"], ["geneva"])


def test_who_was_away_gets_the_model_with_the_command_that_is_printed(
    dpfedc, federation, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")
    dpfedc("run start plan.toml --server server --wait 0", code=2)
    run = next(SiteFolder.open(Path("berlin")).offered())
    for name in SIZES:
        dpfedc(f"site accept {name} --yes")
    federation[0].close()
    away = {*SIZES}

    def online(self):
        if (Path("server") / "runs" / run / "model.npz").exists() and not away:
            away.add("geneva")
        return {name: name not in away for name in self.services}

    monkeypatch.setattr(DeskTransport, "online", online)
    said = dpfedc("run resume study --server server --wait 0", code=2)
    assert "no connection from berlin, geneva, lisbon within 0 seconds" in said
    assert "Accepted" not in said
    away.clear()
    said = lines(capsys, "run resume study --server server --wait 0")
    later = f"dpfedc run resume {run[:12]} --server server"
    assert f"For geneva, later: {later}" in said
    away.clear()
    away |= {"berlin", "lisbon"}  # who has it already need not be there
    said = lines(capsys, later.removeprefix("dpfedc ") + " --wait 0")
    assert "Sites online: 1 of 3 (not connected: berlin, lisbon)." in said
    assert "Sites that have the model: berlin, geneva, lisbon." in said
    assert not any("later" in line for line in said)


def test_the_last_to_answer_is_one_that_answered():
    log = RoundLog()
    log.add(Delivery("berlin", 1.0, 1000, 1000))
    log.add(Delivery("geneva", 9.0, 1000, 10))
    asked = ("berlin", "geneva", "lisbon")
    event = RoundEvent("lloyd", 1, 2, 1, 2, asked, ("berlin",), {"geneva": "not now"}, done=True)
    line = log._line(event)
    assert "1 of 3 sites answered in 1.00 s (the last was berlin), 2.0 kB out" in line
    assert "geneva refused (not now); silent: lisbon." in line
    assert "geneva refused (as before)" in log._line(event)
    gone = replace(event, refused={"geneva": "over"}, closed=frozenset({"geneva"}))
    assert "geneva refused (over), and will in all rounds" in log._line(gone)
    assert "geneva" not in log._line(gone)


def test_labels_of_a_run_that_is_not_over_are_refused(dpfedc, federation):
    dpfedc("run start plan.toml --server server --wait 0", code=2)
    run = next(SiteFolder.open(Path("berlin")).offered())
    assert "has not come to its end yet" in dpfedc(f"site labels berlin --run {run}", code=2)


def test_an_operator_can_say_no(dpfedc, federation, monkeypatch):
    dpfedc("run start plan.toml --server server --wait 0", code=2)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    run = next(SiteFolder.open(Path("berlin")).offered())
    dpfedc(f"site accept berlin {run}", code=1)
    assert not SiteFolder.open(Path("berlin")).is_accepted(run)


def test_records_with_gaps_get_no_label(dpfedc, federation, tmp_path):
    dpfedc("run start plan.toml --server server --wait 0", code=2)
    run = next(SiteFolder.open(Path("berlin")).offered())
    for name in SIZES:
        dpfedc(f"site accept {name} {run} --yes")
    dpfedc("run start plan.toml --server server --wait 0")
    X = by_site()["berlin"]
    X[3, 1] = np.nan
    write_records("berlin.csv", X)
    assert "1 record with gaps has the label -1" in dpfedc(
        f"site labels berlin --run {run} -o out.csv"
    )
    assert read_csv(Path("out.csv"))[1 + 3][2] == "-1"


def test_a_site_says_what_is_in_its_records_before_anything_is_made(dpfedc):
    dpfedc("server init server --listen 127.0.0.1")
    said = init_site(dpfedc, "berlin")
    assert "berlin will declare 120 records" in said
    for name in FEATURES:
        assert f"{name} │ 120 values" in said
    write_records("berlin.csv", by_site()["berlin"][:100])
    said = dpfedc("site check berlin", code=2)
    assert "declares 120 records, and there are 100; use --declare" in said
    assert "berlin declares 100 records" in dpfedc("site check berlin --declare")
    assert SiteFolder.open(Path("berlin")).records == 100


@pytest.mark.parametrize(
    ("head", "row", "found", "remedy"),
    [
        ("age,ward", "50,north", "columns that are no numbers ('ward')", "--drop ward"),
        ("age,weight", "50,", "a row with a gap", ""),
        ("age,ward", ",north", "columns that are no numbers ('ward') and a row with a gap", ""),
    ],
)
def test_a_table_of_more_than_numbers_needs_a_schema_or_a_yes(
    dpfedc, monkeypatch, head, row, found, remedy
):
    dpfedc("server init server --listen 127.0.0.1")
    whole = "51,south" if "ward" in head else "51,80"
    Path("t.csv").write_text(f"{head}\n{row}\n{whole}\n{whole}\n")
    words = f"site init s --name s --server localhost:1 --ca server/ca.crt --data t.csv {CAP}"
    for answer in ("n\n", ""):  # somebody says no, and nobody is there
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        said = dpfedc(words, code=2)
        assert f"must have numbers without gaps only, or a --schema, got {found}" in said
        assert not Path("s").exists()
    if remedy:
        assert "Without a --schema" not in dpfedc(f"{words} {remedy}")
        return
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    said = dpfedc(words)
    assert "s will declare 3 records" in said
    assert "are for one record: a row of the table" in said


def test_a_site_of_persons_is_not_told_that_its_unit_is_a_record(dpfedc):
    dpfedc("server init server --listen 127.0.0.1")
    Path("t.csv").write_text("who,age\na,50\na,51\nb,60\n")
    words = f"site init s --name s --server localhost:1 --ca server/ca.crt --data t.csv {CAP}"
    said = dpfedc(f"{words} --person-column who")
    assert "s will declare 2 persons" in said
    assert "for one record" not in said


def test_a_database_in_this_folder_is_found_from_any_other(dpfedc, monkeypatch, tmp_path):
    with sqlite3.connect("clinic.db") as database:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, age REAL)")
        database.executemany("INSERT INTO people (age) VALUES (?)", [(20.0,), (30.0,), (None,)])
    database.close()
    dpfedc("server init server --listen 127.0.0.1")
    said = dpfedc(
        "site init s --name s --server localhost:1 --ca server/ca.crt "
        f"--data sqlite:///clinic.db --table people {CAP} --yes"
    )
    assert "s will declare 3 records" in said
    site = SiteFolder.open(tmp_path / "s")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    records = site.source.load(["age"])
    assert records.present.tolist() == [True, True, False]


def test_records_that_cannot_be_used_make_no_site(dpfedc):
    dpfedc("server init server --listen 127.0.0.1")
    words = f"site init x --name x --server localhost:1 {CAP} --ca server/ca.crt"
    assert "none.csv cannot be used" in dpfedc(f"{words} --data none.csv", code=2)
    assert "a site takes no workbooks" in dpfedc(f"{words} --data none.xlsx", code=2)
    assert not Path("x").exists()


@pytest.mark.parametrize("wrong", ["none", "server/server.crt", "server/server.toml"])
def test_what_is_no_authority_is_refused_before_the_table_is_read(dpfedc, wrong):
    dpfedc("server init server --listen 127.0.0.1")
    words = f"site init x --name x --server localhost:1 {CAP} --ca {wrong} --data none.csv"
    assert f"{wrong} must be the ca.crt of an authority" in dpfedc(words, code=2)


def test_the_formats_that_a_site_takes_are_in_the_help(dpfedc):
    said = dpfedc("site init --help")
    assert ".feather" in said
    assert ".xlsx" not in said


def test_a_ledger_that_others_can_read_is_said_at_the_start(dpfedc):
    dpfedc("server init server --listen 127.0.0.1")
    init_site(dpfedc, "berlin")
    (Path("berlin") / "ledger.sqlite").chmod(0o644)
    assert "must be its owner's only, got mode 644" in dpfedc("site start berlin", code=2)


def test_callers_that_are_not_enrolled_are_said_to_be(dpfedc, federation, monkeypatch):
    last = [
        {"at": "now", "address": "10.0.0.1", "reason": "no handshake: certificate verify failed"},
        {"at": "now", "address": "10.0.0.2", "reason": "no handshake: the caller was too slow"},
    ]
    refused = {"callers": 1, "last": last}
    monkeypatch.setattr(
        DeskTransport, "status", lambda self: {"online": self.online(), "refused": refused}
    )
    said = dpfedc("server status server")
    assert "Turned away since the start: 1 caller." in said
    assert "certificate verify failed (not enrolled, or removed)" in said
    assert said.endswith("the caller was too slow")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--server localhost", "--server must be HOST:PORT, got 'localhost'"),
        ("--server localhost:99999", "--server must be HOST:PORT"),
        ("--server localhost:1 --ca berlin.csv", "must be the ca.crt of an authority"),
        ("--server localhost:1 --proxy-ca berlin.csv", "must be the ca.crt of an authority"),
        ("--server localhost:1 --cap-epsilon 0", "epsilon must be"),
        ("--server localhost:1 --name a/b", "a site's name must be"),
    ],
)
def test_what_a_site_cannot_be(dpfedc, change, message):
    dpfedc("server init server --listen 127.0.0.1")
    write_records("berlin.csv", by_site()["berlin"])
    words = f"site init s --name s --ca server/ca.crt --data berlin.csv {CAP} {change}"
    assert message in dpfedc(words, code=2)
    assert not (Path("s") / "site.toml").exists()


def test_what_a_server_cannot_be(dpfedc):
    assert "port must be" in dpfedc("server init s --port 70000", code=2)
    assert "not a server's folder" in dpfedc("server status s", code=2)
    assert "not a site's folder" in dpfedc("site status s", code=2)
    dpfedc("server init s --listen 127.0.0.1")
    assert "a new or empty folder" in dpfedc("server init s", code=2)
    Path("key.pub").write_text("hello world x\n")
    assert "not a certificate as in a site's site.pub" in dpfedc("server enrol s key.pub", code=2)


def test_a_removed_site_is_gone(dpfedc):
    dpfedc("server init server --listen 127.0.0.1")
    init_site(dpfedc, "berlin")
    for _ in range(2):  # the same key again
        dpfedc("server enrol server berlin/site.pub")
        said = dpfedc("server status server")
        assert "berlin" in said
        assert "NOT RUNNING" in said
        dpfedc("server remove server berlin")
        assert "berlin" not in dpfedc("server status server")
    content = json.loads(dpfedc("server status server --json"))
    assert (content["running"], content["sites"], content["runs"]) == (None, {}, [])
    assert content["certificate_days_left"] > 700


def test_a_key_is_exchanged_and_certificates_renewed_by_commands(dpfedc):
    dpfedc("server init server --listen 127.0.0.1")
    init_site(dpfedc, "berlin")
    dpfedc("server enrol server berlin/site.pub")
    before = dpfedc("server status server --json")
    assert "berlin/next/site.pub" in dpfedc("site rotate-key berlin").replace(" ", "")
    assert "Enrolled berlin" in dpfedc("server enrol server berlin/next/site.pub")
    assert dpfedc("server status server --json") != before
    assert "Renewed, for 729 days" in dpfedc("server renew server --host hub.example.org")


def test_without_its_packages_the_commands_say_what_to_install(dpfedc, monkeypatch):
    dpfedc("server init server --listen 127.0.0.1")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert "pip install 'dpfedc[deploy]'" in dpfedc("server start server", code=2)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert "pip install 'dpfedc[deploy]'" in dpfedc("server init other", code=2)


def test_two_processes_do_not_serve_one_site(dpfedc):
    dpfedc("server init server --listen 127.0.0.1")
    init_site(dpfedc, "berlin")
    with locked(Path("berlin") / "lock"):
        said = dpfedc("site start berlin", code=2)
    assert "another process serves berlin already" in said
