"""The operator's dry run: every finding in its words, and no cell in any of them."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfedc.tables.check import NONE_HERE, checked_table, checked_tables
from dpfedc.tables.encode import encoded_table
from dpfedc.tables.formats import file_table
from dpfedc.tables.schema import Schema
from dpfedc.tables.sources import DataSource
from dpfedc.tables.stored import column_table
from dpfedc.tables.text_files import Dialect

AGE = {"name": "age", "kind": "number", "range": [0, 100]}
SEX = {"name": "sex", "kind": "category", "values": ["F", "M", "none"]}


def of(*columns, **entries):
    return Schema.of({"column": list(columns), **entries})


def checked(schema, **columns):
    return checked_table(column_table("rows", columns), schema)


def found_in(report, column):
    """Return what was found in a column ("": in the table), and how serious each is."""
    return [(f.text, f.severity) for f in report.findings if f.column == column]


# --- columns


@pytest.mark.parametrize(
    ("cells", "text", "severity"),
    [
        (["1", "2", "3", "4"], "4 values", "ok"),
        (["1", "", "NA", None], "1 values; 3 gaps (75%)", "ok"),
        (["1", "x", "", "4"], "2 values; 2 gaps (50%); 1 of them no numbers", "warning"),
        (["1", "inf", "3", "1e999"], "2 values; 2 gaps (50%); 2 of them no numbers", "warning"),
        (["-1", "101", "0", "100"], "4 values; 2 outside the range, clipped to it", "warning"),
        (["1"] * 39 + ["101"], "40 values; 1 outside the range, clipped to it", "ok"),
        (["", "NA", "null", None], "no values: all gaps here", "warning"),
        (["a", "b", "", "c"], "cells, but no numbers", "error"),
        (
            ["1,5", "2", "3", "x"],
            "2 values; 2 gaps (50%); 2 of them no numbers (a decimal comma? then --decimal ,)",
            "warning",
        ),
        (
            ["1,5", "2,5"],
            "cells, but no numbers (a decimal comma? then --decimal ,)",
            "error",
        ),
    ],
)
def test_numbers(cells, text, severity):
    report = checked(of(AGE), age=cells)
    assert found_in(report, "age") == [(text, severity)]


@pytest.mark.parametrize(
    ("cells", "text", "severity"),
    [
        (["F", " M ", "none", "F"], "4 values", "ok"),  # listed, so "none" is no gap
        (["F", "", "NA", None], "1 values; 3 gaps (75%)", "ok"),
        (["F", "M", "x", "y"], "4 values; 2 that are not listed, counted as 'other'", "warning"),
        (["F"] * 39 + ["x"], "40 values; 1 that are not listed, counted as 'other'", "ok"),
        (["", "NA"], "no values: all gaps here", "warning"),
    ],
)
def test_categories(cells, text, severity):
    assert found_in(checked(of(SEX), sex=cells), "sex") == [(text, severity)]


def test_logarithms():
    """Without a range there is nothing to clip to, so what has no logarithm is a gap."""
    log = {**AGE, "transform": "log"}
    auto = of({**log, "range": "auto"})
    cells = ["5", "0", "-3", "7"]
    text = "2 values; 2 gaps (50%); 2 of them not above 0"
    assert found_in(checked(auto, age=cells), "age") == [(text, "warning")]
    clipped = checked(of({**log, "range": [1, 100]}), age=cells)
    assert found_in(clipped, "age") == [("4 values; 2 outside the range, clipped to it", "warning")]
    assert not checked(auto, age=["0", "-1"]).ok  # all rows are null, as encoding has it
    assert not encoded_table(column_table("t", {"age": ["0", "-1"]}), auto).present.any()
    plain = of({**AGE, "range": "auto"})
    assert found_in(checked(plain, age=["-1e9", "0"]), "age") == [("2 values", "ok")]


def test_a_column_that_is_not_here():
    report = checked(of(AGE, SEX), age=["1", "2"], note=["x", "y"])
    assert report.ok
    assert found_in(report, "sex") == [("not here: all gaps at this site", "warning")]
    assert found_in(report, "") == [
        ("2 rows", "ok"), ("not in the schema, so not read: 'note'", "ok"),
    ]  # fmt: skip
    ignored = of(AGE, SEX, {"name": "note", "kind": "ignore"})
    assert found_in(checked(ignored, age=["1", "2"], note=["x", "y"]), "") == [("2 rows", "ok")]


def test_no_column_is_here():
    report = checked(of(AGE, SEX), a=["1", "2"], b=["3", "4"])
    assert not report.ok
    assert found_in(report, "")[0] == (
        NONE_HERE, "error",
    )  # fmt: skip


def test_a_column_that_nobody_has():
    weight = {**AGE, "name": "weight"}
    schema = of(AGE, SEX, weight)
    tables = [
        column_table("first", {"age": ["1", "2"]}),
        column_table("second", {"age": ["1", "2"], "sex": ["F", "M"]}),
    ]
    first, second = checked_tables(tables, schema)
    assert ("no file has this column of the schema", "error") in found_in(first, "weight")
    assert [first.where, second.where] == ["first", "second"]
    assert found_in(first, "sex") == [("not here: all gaps at this site", "warning")]
    assert second.ok
    assert all(report.ok for report in checked_tables(tables, of(AGE, SEX)))


# --- rows


def test_rows_that_are_too_few_or_null():
    nothing = checked(of(AGE), age=[])
    assert found_in(nothing, "") == [
        ("0 rows", "error"), ("there must be at least 2 records, got 0", "error"),
    ]  # fmt: skip
    one = checked(of(AGE), age=["1"])
    assert ("there must be at least 2 records, got 1", "error") in found_in(one, "")
    null = checked(of(AGE, SEX), age=["", "x", "NA"], sex=["", None, ""])
    text = "all rows are null: no column of the schema has a value"
    assert (text, "error") in found_in(null, "")
    assert [report.n_records for report in (nothing, one, null)] == [0, 1, 3]


def test_rows_without_any_value():
    report = checked(of(AGE, SEX), age=["1", "", "x", "4"], sex=["F", "", "", "x"])
    text = "2 rows without any value (first: row 2); each keeps its place and adds nothing"
    assert (text, "warning") in found_in(report, "")
    assert report.ok


def test_broken_rows(tmp_path):
    (tmp_path / "t.csv").write_text("age,sex\n1,F\n2\n3,M\n4,M,9\n\n")
    report = checked_table(file_table(tmp_path / "t.csv"), of(AGE, SEX))
    text = "3 rows with too few or too many cells (first: row 2); each keeps its place and adds "
    text += "nothing"
    assert (text, "warning") in found_in(report, "")
    assert found_in(report, "age") == [("2 values; 3 gaps (60%)", "ok")]


def test_first_rows_are_counted_over_all_blocks():
    n = 10_000  # more than a block
    age, who, sex = ["1"] * n, [str(i // 2) for i in range(n)], ["F"] * n
    age[9_000], who[9_500], sex[9_000], who[9_700] = "", "", "", "NA"
    report = checked(of(AGE, SEX, person="who"), age=age, sex=sex, who=who)
    texts = [text for text, _ in found_in(report, "")]
    assert texts[0] == "10,000 rows"
    assert texts[1].startswith("1 row without any value (first: row 9,001)")
    assert found_in(report, "who")[1][0].startswith("2 rows without an id (first: row 9,501)")
    assert report.n_records == n // 2


# --- persons, dates and sites


def test_persons():
    schema = of(AGE, person="who")
    report = checked(schema, age=["1", "2", "3", "4"], who=["p", "q", "p", "p"])
    assert (report.n_records, report.ok) == (2, True)
    assert found_in(report, "who") == [("2 persons, at most 3 rows each", "ok")]
    gaps = checked(schema, age=["1", "2", "3", "4"], who=["p", "NA", "q", ""])
    assert found_in(gaps, "who") == [
        ("2 persons, at most 1 row each", "ok"),
        ("2 rows without an id (first: row 2): fill them in, or take these rows out", "error"),
    ]
    few = checked(schema, age=["1", "2"], who=["p", "p"])
    assert ("there must be at least 2 persons, got 1", "error") in found_in(few, "")


def test_a_site_must_be_named():
    schema = of(AGE, site="at")
    report = checked(schema, age=["1", "2", "3"], at=["NA", "u", ""])
    text = "1 row without a site (first: row 3): fill them in, or take these rows out"
    assert found_in(report, "at") == [(text, "error")]


@pytest.mark.parametrize("role", ["person", "date", "site", "id"])
def test_a_column_with_a_role_that_is_not_here(role):
    others = {"person": "who", "rows": "last"} if role == "date" else {}
    report = checked(of(AGE, **{**others, role: "gone"}), age=["1", "2"], who=["p", "q"])
    assert found_in(report, "gone") == [(f"there must be this column, the {role}'s", "error")]


def test_dates():
    schema = of(AGE, person="who", rows="last", date="day")
    day = ["2024-01-01", "soon", "", "31.12.2024"]
    report = checked(schema, age=["1", "2", "3", "4"], who=list("ppqq"), day=day)
    assert found_in(report, "day") == [("2 values are no dates like 2024-12-31", "warning")]


def test_a_date_may_be_clustered_too():
    """Its cells are counted once."""
    schema = of({**AGE, "name": "day"}, person="who", rows="last", date="day")
    report = checked(schema, day=["1", "", "x", "4"], who=list("ppqq"))
    assert found_in(report, "day") == [
        ("2 values; 2 gaps (50%); 1 of them no numbers", "warning"),
        ("1 values are no dates like 2024-12-31", "warning"),
    ]


# --- it counts, and tells no cell

NUMBERS = ["918273.25", "-7351.5", "64209", "1e999", "918273,25", "0.0004417"]
WORDS = ["qzxword", "Ünïcode·Q", "x" * 40, '"qq""zz"', "7351-64209"]
OTHERS = ["", "NA", "1", "F", '"', "\x00", "\r", ",", "2024-05-17"]
CELL = st.sampled_from([*NUMBERS, *WORDS, *OTHERS])
LINES = st.lists(st.lists(CELL, min_size=2, max_size=6).map(",".join), max_size=8)
MARKS = ["918273", "7351", "64209", "0.0004", "4417", "e+05", "qzx", "qq", "Ünï", "xxxx", "05-17"]
SCHEMAS = [
    None,
    of(AGE, SEX),
    of({**AGE, "range": "auto", "transform": "log"}, SEX, person="who"),
    of(AGE, person="who", rows="first", date="day"),
    of(AGE, SEX, site="who", id="day"),
    of({**AGE, "name": "who"}, person="gone"),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("delimiter", [",", ";"])
@given(lines=LINES)
def test_no_cell_is_in_any_finding(tmp_path, schema, delimiter, lines):
    path = tmp_path / "t.csv"
    content = "\n".join(["age,sex,who,day", *lines]).replace(",", delimiter)
    path.write_text(content, encoding="utf-8", newline="")
    for source in (
        DataSource(path),
        DataSource(path, columns=["age"]),
        DataSource(path, person="who"),
    ):
        texts = [finding.text for finding in source.check(schema).findings]
        for mark in MARKS:
            assert not any(mark in text for text in texts)


@given(
    cells=st.lists(st.floats(allow_nan=True), min_size=1, max_size=6),
    bound=st.sampled_from([[0, 1], [-1e100, 1e100], "auto"]),
)
def test_counts_add_up_with_what_encoding_does(cells, bound):
    schema = of({**AGE, "range": bound})
    table = column_table("t", {"age": cells})
    n_gaps = sum(not math.isfinite(cell) for cell in cells)
    (found,) = (f.text for f in checked_table(table, schema).findings if f.column == "age")
    assert int((~encoded_table(table, schema).present).sum()) == n_gaps
    assert found.startswith("no " if n_gaps == len(cells) else f"{len(cells) - n_gaps} values")
    assert (f"; {n_gaps} gaps" in found) == (0 < n_gaps < len(cells))


def test_a_comma_is_read_as_told(tmp_path):
    (tmp_path / "t.csv").write_text("age;b\n1,5;1\n2,5;2\n")
    told = checked_table(file_table(tmp_path / "t.csv", Dialect(decimal=",")), of(AGE))
    assert found_in(told, "age") == [("2 values", "ok")]


def test_a_comma_that_was_told_of_is_not_asked_for_again(tmp_path):
    (tmp_path / "t.csv").write_text("age;b\n1,5;1\n1,000,5;2\n")
    told = checked_table(file_table(tmp_path / "t.csv", Dialect(decimal=",")), of(AGE))
    assert found_in(told, "age") == [("1 values; 1 gaps (50%); 1 of them no numbers", "warning")]


def test_broken_rows_of_persons_are_left_out(tmp_path):
    (tmp_path / "t.csv").write_text("who,age\na,1\nb,2\nb\n")
    report = checked_table(file_table(tmp_path / "t.csv"), of(AGE).having(person="who"))
    text = "1 row with too few or too many cells (first: row 3); nobody can tell whose, so left out"
    assert (text, "warning") in found_in(report, "")
