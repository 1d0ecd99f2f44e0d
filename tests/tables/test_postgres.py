"""A site whose records are in PostgreSQL, with a real server in a temporary folder."""

import os
import pwd
import shutil
import subprocess
import tempfile
import traceback
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.tables.schema import Schema
from dpfedc.tables.sources import DataSource
from support.ports import reserved_port

psycopg = pytest.importorskip("psycopg", reason="the driver is an extra")

PASSWORD = "correct horse / battery"


def program(name):
    """Return where a PostgreSQL program is; Debian keeps them out of PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or next((str(place) for place in places), None)


def account():
    """Return the user to run the server as, since it refuses to run as root."""
    if os.getuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@pytest.fixture(scope="module")
def server():
    """Start a server that asks for a password; return its port."""
    initdb, pg_ctl = program("initdb"), program("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed")
    port, keeper = reserved_port()
    folder = Path(tempfile.mkdtemp(prefix="dpfedc-pg-"))
    who = account()
    (folder / "password").write_text(PASSWORD)
    if who:
        for path in (folder, folder / "password"):
            os.chown(path, who["user"], who["group"])

    def run(*command):
        log = folder / "log"
        with log.open("ab") as output:
            done = subprocess.run(
                command, cwd=folder, stdout=output, stderr=output, check=False, **who
            )
        assert done.returncode == 0, log.read_text()

    data = str(folder / "data")
    try:
        run(
            initdb, "-D", data, "-U", "site", "--pwfile", "password", "--auth", "scram-sha-256",
            "--no-locale", "--encoding", "UTF8", "--no-sync",
        )  # fmt: skip
        options = f"-F -c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        run(
            pg_ctl,
            "-D",
            data,
            "-w",
            "-t",
            "300",
            "-o",
            options,
            "-l",
            str(folder / "server"),
            "start",
        )
        try:
            yield port
        finally:
            run(pg_ctl, "-D", data, "-m", "immediate", "stop")
    finally:
        keeper.close()
        shutil.rmtree(folder)


@pytest.fixture
def database(server, monkeypatch):
    """Return a cursor, and a way to describe a table of the database as a source."""
    monkeypatch.setenv("SITE_DB_PASSWORD", PASSWORD)

    def source(table, **settings):
        settings = {"password_env": "SITE_DB_PASSWORD", **settings}
        return DataSource(
            url=f"postgresql://site@127.0.0.1:{server}/postgres", table=table, **settings
        )

    login = {"host": "127.0.0.1", "port": server, "user": "site", "password": PASSWORD}
    with psycopg.connect(**login, dbname="postgres", autocommit=True) as connection:
        cursor = connection.cursor()
        for name in ("public", "ward"):
            cursor.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
            cursor.execute(f"CREATE SCHEMA {name}")
        yield cursor, source


def test_every_type_of_number(database):
    cursor, source = database
    cursor.execute(
        'CREATE TABLE ward."Stays of 2024" (key text PRIMARY KEY, "age ""in"" years" smallint, '
        "cost numeric, weight double precision, heavy real, ill boolean, n bigint, "
        "note text, day date, shape point)"
    )
    rows = [
        ("b", 50, Decimal("0.1"), 70.25, 1.5, True, 2**62, "x", None, None),
        ("a", 40, Decimal("-12345678901234567890.5"), -1e-300, 0.5, False, -1, "y", None, None),
        ("e", None, Decimal(1), 1, 1, True, 1, None, None, None),
        ("d", 1, Decimal("NaN"), 1, 1, True, 1, None, None, None),
        ("c", 1, Decimal("Infinity"), 1, 1, True, 1, None, None, None),
        ("f", 1, Decimal("1e400"), 1, 1, True, 1, None, None, None),
    ]
    cursor.executemany(
        'INSERT INTO ward."Stays of 2024" VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)', rows
    )
    stays = source("Stays of 2024", table_schema="ward")
    names = ('age "in" years', "cost", "weight", "heavy", "ill", "n")
    assert stays.plain_schema().features == names
    records = stays.load(names)
    assert records.X[:2].tolist() == [
        [40, -12345678901234567890.5, -1e-300, 0.5, 0, -1],
        [50, 0.1, 70.25, 1.5, 1, 2.0**62],
    ]
    assert records.present.tolist() == [True, True, False, False, False, False]
    assert not records.X[2:].any()
    found = {(finding.column, finding.text) for finding in stays.check().findings}
    assert ("cost", "3 values; 3 gaps (50%); 2 of them no numbers") in found
    unread = "no numbers, so not read: 'note', 'day', 'shape'. --drop them, or use a --schema"
    assert ("", unread) in found
    with pytest.raises(InvalidInput, match="columns must hold numbers, got 'note'"):
        source("Stays of 2024", table_schema="ward", columns=["n", "note"]).plain_schema()


def test_a_file_and_a_database_agree(database, tmp_path, rng):
    """Rows come in the order of the key, over many blocks, wherever the server keeps them."""
    cursor, source = database
    X = rng.standard_normal((9001, 3))
    text = "\n".join(",".join(map(repr, row)) for row in X.tolist())
    (tmp_path / "t.csv").write_text(f"a,b,c\n{text}\n")
    cursor.execute("CREATE TABLE t (id integer PRIMARY KEY, a float8, b float8, c float8)")
    with cursor.copy("COPY t FROM STDIN") as copy:
        for j in rng.permutation(len(X)).tolist():
            copy.write_row((j, *X[j].tolist()))
    file, table = DataSource(tmp_path / "t.csv"), source("t")
    assert file.plain_schema() == table.plain_schema()
    names = file.plain_schema().features
    for records in (file.load(names), table.load(names)):
        np.testing.assert_array_equal(records.X, X)
        assert records.present.all()
    cursor.execute("UPDATE t SET a = a + 0 WHERE id < 100")  # moves rows to other pages
    np.testing.assert_array_equal(table.load(["b"]).X, X[:, [1]])


def test_a_view_is_ordered_as_told_and_its_errors_quote_no_value(database):
    cursor, source = database
    cursor.execute("CREATE TABLE t (a integer, typed text)")
    cursor.execute("INSERT INTO t VALUES (3, '30'), (1, '10'), (2, '20')")
    cursor.execute("CREATE VIEW v AS SELECT a, typed::numeric AS b FROM t")
    with pytest.raises(InvalidInput, match="must have a primary key, or else order_by"):
        source("v").load(["b"])
    assert source("v", order_by="a").load(["b"]).X.tolist() == [[10], [20], [30]]
    cursor.execute("INSERT INTO t VALUES (4, 'secret diagnosis')")
    with pytest.raises(DataUnavailable, match="must be readable, got: DataError") as caught:
        source("v", order_by="a").load(["b"])
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_a_wrong_password_is_not_repeated(database, monkeypatch):
    _, source = database
    monkeypatch.setenv("SITE_DB_PASSWORD", "hunter2")
    with pytest.raises(DataUnavailable, match="password authentication failed") as caught:
        source("t").load(["a"])
    report = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert "hunter2" not in "".join(report.format())
    assert caught.value.__context__ is None


def test_no_date_stops_a_table(database):
    """The driver knows no such dates; raised at a site, that would be seen by the server."""
    cursor, source = database
    cursor.execute(
        "CREATE TABLE visits (n int PRIMARY KEY, who text, age int, seen timestamp, born date, "
        "long interval, at time)"
    )
    cursor.execute(
        "INSERT INTO visits VALUES "
        "(1, 'a', 40, 'infinity', '0044-03-15 BC', '400000000 days', '24:00:00'), "
        "(2, 'a', 50, '2024-01-02 10:00', '12024-01-01', '-178000000 years', '10:00'), "
        "(3, 'b', 60, '-infinity', 'infinity', '1 day', NULL)"
    )
    age = {"name": "age", "kind": "number", "range": [0, 100]}
    for date in ("seen", "born", "long", "at"):
        more = {"person": "who", "rows": "last", "date": date}
        records = source("visits").load(Schema.of({"column": [age], **more}))
        assert records.ids == ("a", "b")
        assert records.present.all()
    seen = Schema.of({"column": [age], "person": "who", "rows": "last", "date": "seen"})
    assert source("visits").load(seen).X[0, 0] == pytest.approx(-0.2)  # infinity comes last
