"""Where a site's records are: four kinds of storage agree, and no value makes loading fail."""

import csv
import hashlib
import math
import sqlite3
import subprocess
import sys
import traceback
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfedc.errors import DataUnavailable, InvalidInput, MissingExtra
from dpfedc.tables.schema import Schema
from dpfedc.tables.sources import DataSource

reuse_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
names_strategy = st.lists(
    st.text("abcXYZ éß\"'%:().,;[]", max_size=6).map(lambda tail: f"c{tail}".strip()),
    min_size=1,
    max_size=4,
    unique_by=str.lower,  # SQLite does not tell case apart
)
cells_strategy = st.one_of(st.floats(), st.none(), st.integers(-(2**62), 2**62).map(float))


@st.composite
def tables(draw):
    names = draw(names_strategy)
    return names, draw(st.lists(st.tuples(*[cells_strategy] * len(names)), max_size=12))


def csv_source(path, names, rows, **settings):
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL).writerow(
            names
        )  # a mark in a name is no delimiter
        writer = csv.writer(stream)
        writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return DataSource(path, **settings)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def sqlite_source(path, names, rows, *, kind="REAL", key=True, **settings):
    path.unlink(missing_ok=True)
    columns = [f"{quoted(name)} {kind}" for name in names]
    columns += ["place INTEGER PRIMARY KEY"] if key else []
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE records ({', '.join(columns)})")
        marks = ", ".join("?" * len(names))
        into = ", ".join(quoted(name) for name in names)
        database.executemany(f"INSERT INTO records ({into}) VALUES ({marks})", rows)
    database.close()
    return DataSource(url=f"sqlite:///{path}", table="records", **settings)


def stored(folder, names, rows):
    """Return the same table in every kind of storage."""
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    arrays = [pa.array(column, type=pa.float64()) for column in columns]
    pq.write_table(pa.table(arrays, names=list(names)), folder / "t.parquet")
    X = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))  # None becomes NaN
    np.savez(folder / "t.npz", X=X, feature_names=np.asarray(names))
    return (
        csv_source(folder / "t.csv", names, rows),
        DataSource(folder / "t.parquet"),
        DataSource(folder / "t.npz"),
        sqlite_source(folder / "t.db", names, rows),
    )


def found_in(report, column):
    """Return what was found in a column ("": in the table), and how serious each is."""
    return [(f.text, f.severity) for f in report.findings if f.column == column]


def features(source):
    return source.plain_schema().features


# --- every storage gives the same records


@reuse_folder
@given(table=tables())
def test_storage_makes_no_difference(tmp_path, table):
    names, rows = table
    whole = [all(cell is not None and math.isfinite(cell) for cell in row) for row in rows]
    both = zip(rows, whole, strict=True)
    expected = [list(row) if good else [0.0] * len(names) for row, good in both]
    for source in stored(tmp_path, names, rows):
        assert source.plain_schema() == Schema.plain(names)
        assert source.plain_schema().fingerprint == Schema.plain(names).fingerprint
        records = source.load(features(source))
        assert records.X.dtype == np.float64
        assert records.X.flags.c_contiguous
        assert records.X.shape == (len(rows), len(names))
        assert records.X.tolist() == expected
        assert records.present.tolist() == whole
        report, n_null = source.check(), len(rows) - sum(whole)
        assert report.n_records == len(rows)
        null = f"{n_null} row{'s' * (n_null > 1)} with a gap; each keeps its place and is null."
        assert any(text.startswith(null) for text, _ in found_in(report, "")) == (n_null > 0)


def test_more_rows_than_a_block(tmp_path, rng):
    rows = rng.standard_normal((9001, 2)).tolist()
    rows[5000][1] = None
    for source in stored(tmp_path, ["a", "b"], rows):
        records = source.load(["b", "a"])
        assert np.flatnonzero(~records.present).tolist() == [5000]
        assert records.X[8999].tolist() == rows[8999][::-1]


def test_fingerprint():
    """It is part of what sites agree on, so it may not change between versions."""
    number = (
        rb'"kind":"number","missing":"mean","name":"%s","range":"auto","transform":"none",'
        rb'"typical":null,"values":[],"weight":1.0'
    )
    columns = b",".join(b"{%s}" % (number % name) for name in (b"age", rb"gr\u00f6\u00dfe"))
    text = b'{"columns":[%s],"date":null,"person":%s,"rows":"mean","sites_per_person":1}'
    for person, written in ((None, b"null"), ("who", b'"who"')):
        schema = Schema.plain(("age", "größe"), person=person)
        assert schema.fingerprint == hashlib.sha256(text % (columns, written)).hexdigest()
    names = (("a", "b"), ("b", "a"), ("a",), ("ab",), ("a,b",))
    assert len({Schema.plain(n).fingerprint for n in names}) == 5


# --- no value makes loading fail, and no row changes another


junk = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])), st.floats(), st.integers(), st.none()
)


@reuse_folder
@given(cell=junk, row=st.integers(0, 4))
def test_a_csv_cell_spoils_its_own_row_only(tmp_path, cell, row):
    rows = [[float(i), i / 3] for i in range(5)]
    rows[row][0] = cell
    records = csv_source(tmp_path / "t.csv", ["a", "b"], rows).load(["a", "b"])
    others = np.arange(5) != row
    assert records.X[others].tolist() == [[i, i / 3] for i in range(5) if i != row]
    assert records.present[others].all()
    assert np.isfinite(records.X).all()


@reuse_folder
@given(
    cell=st.one_of(junk.filter(lambda v: not isinstance(v, int) or abs(v) < 2**63), st.binary()),
    row=st.integers(0, 4),
    kind=st.sampled_from(["REAL", "NUMERIC(10, 2)", "BOOLEAN", "INTEGER"]),
)
def test_sqlite_lets_anything_into_a_column(tmp_path, cell, row, kind):
    rows = [[float(i), i / 3] for i in range(5)]
    rows[row][0] = cell
    records = sqlite_source(tmp_path / "t.db", ["a", "b"], rows, kind=kind).load(["a", "b"])
    others = np.arange(5) != row
    assert records.X[others].tolist() == [[i, i / 3] for i in range(5) if i != row]
    assert records.present[others].all()
    assert np.isfinite(records.X).all()


def test_sqlite_text_that_is_no_text(tmp_path):
    source = sqlite_source(tmp_path / "t.db", ["a"], [(1,), (2,)])
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("UPDATE records SET a = CAST(x'ff61' AS TEXT) WHERE place = 2")
    database.close()
    assert source.load(["a"]).present.tolist() == [True, False]


GAPS = "2 values; 1 gaps (33%)"
WORD = f"{GAPS}; 1 of them no numbers"
BROKEN = (
    "1 row with too few or too many cells (first: row 2); each keeps its place and adds nothing"
)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"1", BROKEN),
        (b"1,2,3", BROKEN),
        (b"", BROKEN),
        (b'"1,2', BROKEN),  # a quote that is not closed
        (b'1,2"\r3', BROKEN),  # a lone carriage return
        (b"\r", BROKEN),
        (b"\xff,2", WORD),
        (b"\x00,2", WORD),
        (b"1e999,2", WORD),
        (b"-inf,2", WORD),
        (b"NA,2", None),
        (b"9" * 200_000 + b",2", WORD),
        (b'"' + b"9" * 200_000 + b'",2', BROKEN),  # beyond the limit of Python's parser
        (b"9" * 2_000_000 + b",2", BROKEN),  # beyond the limit of a line
    ],
)
def test_csv_rows_that_do_not_fit(tmp_path, row, reason):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf a ,b\r\n3,4\r\n" + row + b"\r\n5,6\r\n")
    source = DataSource(path)
    records = source.load(("a", "b"))
    assert records.present.tolist() == [True, False, True]
    assert records.X.tolist() == [[3, 4], [0, 0], [5, 6]]
    report = source.check()
    assert ((BROKEN, "warning") in found_in(report, "")) == (reason == BROKEN)
    expected = (WORD, "warning") if reason == WORD else (GAPS, "ok")
    assert found_in(report, "a") == [expected]


@pytest.mark.parametrize("last", [b"5,6", b"", b'"5,6', b"5\r,6", b"\x00"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_no_text_in_a_line_changes_how_many_there_are(tmp_path, last, end):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n1,2\n3,4\n" + (last or b" ") + end)
    assert len(DataSource(path).load(("a", "b")).X) == 3


def test_numbers_of_any_type(tmp_path):
    columns = {
        "yes": [True, False],
        "price": [Decimal("1.25"), None],
        "small": np.array([1.5, 2], dtype=np.float32),
        "count": np.array([2**64 - 1, 0], dtype=np.uint64),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    source = DataSource(tmp_path / "t.parquet")
    assert features(source) == ("yes", "price", "small", "count")
    records = source.load(features(source))
    assert records.X[0].tolist() == [1, 1.25, 1.5, 2.0**64]
    assert records.present.tolist() == [True, False]


def test_beyond_float64_is_null(tmp_path):
    X = np.array([[np.finfo(np.longdouble).max], [1]], dtype=np.longdouble)
    np.save(tmp_path / "t.npy", X)
    fits = math.isfinite(float(X[0, 0]))  # so it does where a long double is no longer
    assert DataSource(tmp_path / "t.npy").load(["x0"]).present.tolist() == [fits, True]


def test_messages_of_load_quote_no_value(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("3141.5,2718.2\n1,2\n")
    with pytest.raises(InvalidInput, match="row of column names") as caught:
        DataSource(path).load(["a"])
    assert "3141" not in str(caught.value)


# --- which columns are features


def test_words_are_no_features(tmp_path):
    rows = [(1, "x", "1", ""), (2, "y", "2", ""), (3, "3", "typo", "")]
    names = ["n", "word", "typed", "empty"]
    source = csv_source(tmp_path / "t.csv", names, rows)
    assert features(source) == ("n", "typed", "empty")
    report = source.check()
    text = "no numbers, so not read: 'word'. --drop them, or use a --schema"
    assert (text, "warning") in found_in(report, "")
    assert (report.unread, report.n_gapped) == (("word",), 3)
    dropped = csv_source(tmp_path / "t.csv", names, rows, drop=["word", "empty", "typed"]).check()
    assert ("not read: 'word', 'typed', 'empty'", "ok") in found_in(dropped, "")
    assert (dropped.unread, dropped.n_gapped) == ((), 0)
    chosen = csv_source(tmp_path / "t.csv", names, rows, columns=["word", "n"])
    with pytest.raises(InvalidInput, match="must hold numbers, got 'word'"):
        chosen.plain_schema()
    assert not chosen.load(["n", "word"]).present[:2].any()


def test_a_text_column_of_a_database_is_refused_by_its_type(tmp_path):
    source = sqlite_source(tmp_path / "t.db", ["a"], [("1",)], kind="TEXT")
    with pytest.raises(InvalidInput, match="must have a column of numbers, got 'a'"):
        source.plain_schema()
    with pytest.raises(InvalidInput, match="must offer columns of numbers 'a'"):
        source.load(["a"])
    assert not source.check().ok
    assert source.load(Schema.plain(["a"])).X.tolist() == [[1]]  # a schema goes by its texts


def test_columns_drop_and_keys(tmp_path):
    rows = [(1, 2, 3)]
    names = ["a", "b", "c"]
    assert csv_source(tmp_path / "t.csv", names, rows, drop=["b"]).plain_schema() == (
        Schema.plain(["a", "c"])
    )
    source = sqlite_source(tmp_path / "t.db", names, rows, person="c", order_by="b")
    assert source.plain_schema() == Schema.plain(["a"], person="c")
    source = sqlite_source(tmp_path / "t.db", names, rows, columns=["place", "a"])
    assert source.load(features(source)).X.tolist() == [[1, 1]]


def test_only_what_is_offered_is_loaded(tmp_path):
    """A column that the operator dropped stays at home, whatever the federation expects."""
    names, rows = ["a", "b", "c"], [(1, 2, 3)]
    for settings_ in ({"drop": ["b"]}, {"columns": ["c", "a"]}, {"person": "b"}):
        source = csv_source(tmp_path / "t.csv", names, rows, **settings_)
        assert source.load(["a", "c"]).X.tolist() == [[1, 3]]
        with pytest.raises(InvalidInput, match="must offer columns of numbers 'b'"):
            source.load(["a", "b"])


def test_archive(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.eye(2), ids=np.array(["p", "p"]), y=np.arange(2))
    source = DataSource(tmp_path / "t.npz", person="ids")
    assert features(source) == ("x0", "x1")
    assert found_in(source.check(), "ids") == [("1 person, at most 2 rows each", "ok")]
    assert source.load(["x0", "x1"]).X.tolist() == [[0.5, 0.5]]
    with pytest.raises(InvalidInput, match="must have columns 'X'"):
        DataSource(tmp_path / "t.npz", columns=["X"]).load(["X"])


# --- the order of rows


def test_rows_are_ordered_by_key_not_by_where_they_lie(tmp_path):
    rows = [(float(j), j % 3) for j in range(30)]
    for key, order_by in ((True, None), (False, "a"), (False, "b")):
        loaded = []
        for order in (rows, rows[::-1]):
            path = tmp_path / "t.db"
            source = sqlite_source(path, ["a", "b"], [], key=key, order_by=order_by)
            with sqlite3.connect(path) as database:
                for row in order:
                    place = (int(row[0]),) if key else ()
                    marks = ", ".join("?" * len(row + place))
                    database.execute(f"INSERT INTO records VALUES ({marks})", row + place)
            database.close()
            loaded.append(source.load(["a"] if order_by != "a" else ["b"]).X.tolist())
        assert loaded[0] == loaded[1]


def test_a_table_without_order_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="must have a primary key, or else order_by"):
        sqlite_source(tmp_path / "t.db", ["a"], [], key=False).load(["a"])
    with pytest.raises(InvalidInput, match="must have the column order_by='b'"):
        sqlite_source(tmp_path / "t.db", ["a"], [], order_by="b").load(["a"])


# --- the operator's dry run


def test_check(tmp_path):
    rows = [
        (1, 5, "ann", 0.5), (2, 5, "ann", None), ("x", 5, "bob", math.inf), ("", 5, "", -1),
    ]  # fmt: skip
    source = csv_source(tmp_path / "t.csv", ["a", "same", "who", "c"], rows)
    report = source.check(Schema.plain(["a", "same", "c", "height"], person="who"))
    assert (report.where, report.n_records, report.ok) == (str(tmp_path / "t.csv"), 2, False)
    assert found_in(report, "") == [("4 rows", "ok")]
    assert found_in(report, "a") == [("2 values; 2 gaps (50%); 1 of them no numbers", "warning")]
    assert found_in(report, "same") == [("4 values", "ok")]
    assert found_in(report, "c") == [("2 values; 2 gaps (50%); 1 of them no numbers", "warning")]
    assert found_in(report, "who") == [
        ("2 persons, at most 2 rows each", "ok"),
        ("1 row without an id (first: row 4): fill them in, or take these rows out", "error"),
    ]
    assert found_in(report, "height") == [("not here: all gaps at this site", "warning")]
    few = source.check(Schema.plain(["a"]))
    assert few.ok
    assert ("not in the schema, so not read: 'same', 'who', 'c'", "ok") in found_in(few, "")


def test_check_refuses_ids_where_nobody_wrote_a_schema(tmp_path):
    rows = [(i % 3, i) for i in range(8)]
    source = csv_source(tmp_path / "t.csv", ["a", "patient_id"], rows)
    assert not source.check().ok
    assert found_in(source.check(), "patient_id")[-1] == (
        "looks like ids or codes, which are no measurements: --drop it, or use a --schema",
        "error",
    )
    for chosen in ({"drop": ["patient_id"]}, {"person": "patient_id"}):
        assert csv_source(tmp_path / "t.csv", ["a", "patient_id"], rows, **chosen).check().ok
    wanted = {"columns": ["a", "patient_id"]}  # the operator asked for it by name
    assert csv_source(tmp_path / "t.csv", ["a", "patient_id"], rows, **wanted).check().ok


def test_check_counts_ragged_rows(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3\n\n4,5,6\n7,8\n")
    report = DataSource(tmp_path / "t.csv").check()
    text = "3 rows with too few or too many cells (first: row 2); each keeps its place and adds "
    text += "nothing"
    assert (text, "warning") in found_in(report, "")


@pytest.mark.parametrize("schema", [None, Schema.plain(["a"])])
def test_check_of_rows_that_share_their_place(tmp_path, schema):
    rows = [(1, 7), (2, 7), (3, None)]
    source = sqlite_source(tmp_path / "t.db", ["a", "at"], rows, key=False, order_by="at")
    text = "2 rows have no value of their own, so their places may change"
    assert found_in(source.check(schema), "at") == [(text, "error")]
    source = sqlite_source(tmp_path / "t.db", ["at", "a"], rows, key=False, order_by="at")
    assert found_in(source.check(schema), "at") == [("gives every row its place", "ok")]


def test_check_of_persons_whose_ids_give_the_order(tmp_path):
    rows = [(1, 7), (2, 8)]
    source = sqlite_source(
        tmp_path / "t.db", ["a", "at"], rows, key=False, order_by="at", person="at"
    )
    assert found_in(source.check(), "at") == [
        ("2 persons, at most 1 row each", "ok"), ("gives every row its place", "ok"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,a\n1,2\n", "column names must differ, got twice 'a'"),
        ("", "must hold a table, got an empty file"),
        ("\n", "row of column names"),
        ("a\nx\n", "must have a column of numbers, got 'a'"),
    ],
)
def test_check_tells_what_a_plain_schema_raises(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    report = DataSource(tmp_path / "t.csv").check()
    assert not report.ok
    ((found, severity),) = found_in(report, "")
    assert message in found
    assert severity == "error"


def test_nothing_usable_is_an_error(tmp_path):
    assert not csv_source(tmp_path / "t.csv", ["a"], []).check().ok
    assert not csv_source(tmp_path / "t.csv", ["a"], [("NA",)] * 3).check().ok
    assert not csv_source(tmp_path / "t.csv", ["a"], [(1,)] * 3).check(Schema.plain(["b"])).ok
    assert not csv_source(tmp_path / "t.csv", ["a"], [(1,)]).check().ok  # too few
    assert not DataSource(tmp_path / "absent.parquet").check().ok


# --- persons, schemas and dialects


def test_rows_of_a_person_are_one_record(tmp_path):
    rows = [("ann", 1, 10), ("bob", 2, ""), ("ann", 3, 20), ("", 9, 9), ("bob", 4, "")]
    source = csv_source(tmp_path / "t.csv", ["who", "a", "b"], rows, person="who")
    records = source.load(["a", "b"])
    assert records.ids == ("ann", "bob")
    assert records.rows.tolist() == [0, 1, 0, -1, 1]
    assert records.X.tolist() == [[2, 15], [0, 0]]
    assert records.present.tolist() == [True, False]
    declared = source.load(["b"], persons=("BOB", "EVE", "ANN"), key=str.upper)
    assert declared.X.tolist() == [[0], [0], [15]]
    assert declared.present.tolist() == [False, False, True]


def test_a_schema_keeps_rows_with_gaps(tmp_path):
    age = {"name": "age", "kind": "number", "range": [0, 100]}
    sex = {"name": "sex", "kind": "category", "values": ["F", "M"]}
    rows = [(50, "F"), ("", "x"), ("", "")]
    source = csv_source(tmp_path / "t.csv", ["age", "sex"], rows)
    schema = Schema.of({"column": [age, sex]})
    records = source.load(schema)
    assert records.present.tolist() == [True, True, False]
    np.testing.assert_array_equal(records.X, [[0, 1, 0, 0], [math.nan, 0, 0, 1], [math.nan] * 4])
    # What a trial's file needs of columns is no matter of one site's own table.
    of_trial = Schema.of({"column": [age, sex], "site": "hospital", "id": "visit"})
    np.testing.assert_array_equal(source.load(of_trial).X, records.X)


def test_how_a_text_file_is_written(tmp_path):
    (tmp_path / "t.csv").write_bytes("größe;b,c\n1,5;2\n2,5;3\n".encode("latin-1"))
    written = {"delimiter": ";", "encoding": "latin-1", "decimal": ","}
    source = DataSource.of({"path": "t.csv", **written}, folder=tmp_path)
    assert source.load(features(source)).X.tolist() == [[1.5, 2], [2.5, 3]]
    assert features(source) == ("größe", "b,c")


# --- configuration


def test_settings_of_a_file(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    sqlite_source(tmp_path / "t.db", ["a"], [(3,)])
    source = DataSource.of({"path": "t.csv", "columns": ["b"]}, folder=tmp_path)
    assert source.load(["b"]).X.tolist() == [[2]]
    assert hash(source) == hash(DataSource(str(tmp_path / "t.csv"), columns=("b",)))
    source = DataSource.of({"url": "sqlite:///t.db", "table": "records"}, folder=tmp_path)
    assert source.load(["a"]).X.tolist() == [[3]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either a path or a url"),
        ({"path": "a.csv", "url": "sqlite:///a.db"}, "either a path or a url"),
        ({"path": "a.csv", "table": "t"}, "table must be left out for a file"),
        ({"url": "sqlite:///a.db"}, "table must name a table"),
        ({"url": "nonsense", "table": "t"}, "url must be dialect://"),
        ({"path": 3}, "path must be text, got 3"),
        ({"path": "a.csv", "columns": "a"}, "columns must be a list of column names, got 'a'"),
        ({"path": "a.csv", "columns": []}, "columns must be a list of column names"),
        ({"path": "a.csv", "columns": ["a", "a"]}, "columns must differ, got twice 'a'"),
        ({"path": "a.csv", "columns": ["a"], "drop": ["b"]}, "drop must be empty"),
        ({"path": "a.csv", "colour": 1}, "got 'colour'"),
        ({"path": "a.csv", "record_id": "a"}, "got 'record_id'"),
        ({"path": "a.csv", "person": ""}, "person must be text, got ''"),
        ({"path": "a.csv", "delimiter": "ab"}, "delimiter must be one character"),
        ({"path": "a.csv", "decimal": ";"}, "decimal must be '.' or ','"),
        ({"url": "sqlite:///a.db", "table": "t", "decimal": ","}, "left out for a database"),
    ],
)
def test_settings_that_are_refused(tmp_path, given, message):
    with pytest.raises(InvalidInput, match=message):
        DataSource.of(given, folder=tmp_path)


def test_places_that_are_not_there(tmp_path):
    with pytest.raises(DataUnavailable, match="must be a readable file"):
        DataSource(tmp_path / "absent.csv").load(["a"])
    with pytest.raises(DataUnavailable, match="must be a database file"):
        DataSource(url=f"sqlite:///{tmp_path}/absent.db", table="t").load(["a"])
    assert not (tmp_path / "absent.db").exists()
    sqlite_source(tmp_path / "t.db", ["a"], [])
    with pytest.raises(DataUnavailable, match="got: no such table"):
        DataSource(url=f"sqlite:///{tmp_path}/t.db", table="t").load(["a"])
    with pytest.raises(InvalidInput, match=r"t\.db must have columns 'b'"):
        DataSource(url=f"sqlite:///{tmp_path}/t.db", table="records", drop=["b"]).load(["a"])
    with pytest.raises(InvalidInput, match=r"t\.db must have columns 'b'"):
        DataSource(url=f"sqlite:///{tmp_path}/t.db", table="records", person="b").load(["a"])
    with pytest.raises(InvalidInput, match="must end in"):
        DataSource(tmp_path / "a.xls").load(["a"])


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@host/db", "postgresql://me@host/db?password=hunter2"]
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url):
    with pytest.raises(InvalidInput, match="must hold no password") as caught:
        DataSource(url=url, table="t")
    assert "hunter2" not in str(caught.value)


def test_a_password_is_in_no_error(monkeypatch):
    source = DataSource(url="postgresql://me@127.0.0.1:1/db", table="t", password_env="SITE_PASS")
    with pytest.raises(InvalidInput, match="environment variable SITE_PASS must hold"):
        source.load(["a"])
    monkeypatch.setenv("SITE_PASS", "hunter2")
    with pytest.raises(DataUnavailable, match="must be readable, got: connection failed") as caught:
        source.load(["a"])
    error = caught.value
    assert error.__context__ is None
    written = traceback.TracebackException.from_exception(error, capture_locals=True).format()
    assert "hunter2" not in "".join(written) + repr(source) + source.where


# --- extras


def test_databases_are_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dpfedc\[sql\]'"):
        DataSource(url="sqlite:///a.db", table="t")


def test_a_driver_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match="needs psycopg"):
        DataSource(url="postgresql://me@127.0.0.1:1/db", table="t").load(["a"])


def test_files_need_no_database_package():
    code = (
        "import sys, dpfedc.tables.sources; "
        "print({'sqlalchemy', 'pyarrow', 'python_calamine', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
