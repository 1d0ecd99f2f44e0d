"""Persons and ids in the user's own files, and files that are read by a schema."""

import sqlite3

import numpy as np
import pytest

from dpfedc.errors import InvalidInput
from dpfedc.tables.schema import Schema
from dpfedc.tables.sources import DataSource
from dpfedc.tables.text_files import Dialect
from dpfedc.tables.trial_tables import opened_tables, read_encoded, read_tables


def csv_file(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def refused(path, message, **options):
    """Check that reading fails in one line that matches `message`."""
    with pytest.raises(InvalidInput, match=message) as caught:
        read_tables(path, **options)
    assert "\n" not in str(caught.value)


# --- ids and persons


def test_a_column_of_ids_is_refused_unless_it_is_to_keep(tmp_path):
    path = csv_file(tmp_path / "a.csv", "patient_id,a\n71,1\n72,2\n")
    message = "column 'patient_id' looks like ids or codes.*--drop patient_id .*--keep patient_id"
    refused(path, message)
    assert read_tables(path, keep=["patient_id"]).X.tolist() == [[71, 1], [72, 2]]
    assert read_tables(path, keep="patient_id").feature_names == ("patient_id", "a")
    assert read_tables(path, drop=["patient_id"]).feature_names == ("a",)
    refused(path, "must have column 'b'", keep=["b"])
    rows = "".join(f"{i},{i % 7}\n" for i in range(1000, 1200))  # by what it holds
    refused(csv_file(tmp_path / "b.csv", f"x,a\n{rows}"), "column 'x' looks like ids or codes")


def test_rows_of_a_person_are_one_record_at_each_site(tmp_path):
    text = "who,ward,a,ill\np,u,1,yes\nq,u,2,no\np,u,3,yes\np,v,10,yes\n"
    roles = {"site_column": "ward", "label_column": "ill", "person_column": "who"}
    table = read_tables(csv_file(tmp_path / "a.csv", text), **roles)
    assert (table.unit, table.ids) == ("person", ("p", "q", "p"))
    assert table.X.tolist() == [[2], [2], [10]]
    assert table.sites.tolist() == ["u", "u", "v"]
    assert table.y.tolist() == ["yes", "no", "yes"]
    assert table.rows.tolist() == [0, 1, 0, 2]
    files = [
        csv_file(tmp_path / "u.csv", "who,a\np,1\np,3\n"),
        csv_file(tmp_path / "v.csv", "a,who\n10,p\n"),
    ]
    table = read_tables(files, person_column="who")
    assert (table.X.tolist(), table.sites.tolist()) == ([[2], [10]], ["u", "v"])


@pytest.mark.parametrize("gap", ["", "NA", "null"])
def test_a_person_without_an_id_is_refused_with_the_row(gap, tmp_path):
    path = csv_file(tmp_path / "a.csv", f"who,a\np,1\n{gap},2\n{gap},3\n")
    refused(path, "'who' .* got 2 missing, the first in row 2", person_column="who")
    refused(path, "must have column 'id'", person_column="id")


# --- by a schema

AGE = {"name": "age", "kind": "number", "range": [0, 100]}
SEX = {"name": "sex", "kind": "category", "values": ["F", "M"]}


def encoded(paths, *columns, label_column=None, all_columns=True, **entries):
    schema = Schema.of({"column": list(columns) or [AGE, SEX], **entries})
    return read_encoded(paths, schema, label_column=label_column, all_columns=all_columns)


def test_a_schema_takes_words_and_gaps(tmp_path):
    path = csv_file(tmp_path / "oslo.csv", "sex,age,note\nF,50,x\n,200,\nM,,y\nx,word,\n,,z\n")
    table = encoded(path)
    nan = np.nan
    np.testing.assert_array_equal(
        table.X,
        [[0, 1, 0, 0], [1, nan, nan, nan], [nan, 0, 1, 0], [nan, 0, 0, 1], [nan] * 4],
    )
    assert table.present.tolist() == [True, True, True, True, False]
    assert table.sites.tolist() == ["oslo"] * 5
    assert table.feature_names == ("age", "sex=F", "sex=M", "sex=other")
    assert (table.unit, table.rows, table.ids) == ("record", None, None)


def test_a_schema_over_several_files(tmp_path):
    """Columns by name, one that a site has not is all gaps there, persons site by site."""
    files = [
        csv_file(tmp_path / "u.csv", "who,age,k\np,0,1\nq,50,2\np,100,1\n"),
        csv_file(tmp_path / "v.csv", "k,sex,who\n3,F,p\n4,M,r\n"),
    ]
    table = encoded(files, label_column="k", person="who", sites_per_person=2)
    np.testing.assert_array_equal(table.X[:, 0], [0, 0, np.nan, np.nan])
    np.testing.assert_array_equal(table.X[:, 1], [np.nan, np.nan, 1, 0])
    assert table.sites.tolist() == ["u", "u", "v", "v"]
    assert table.ids == ("p", "q", "p", "r")
    assert table.y.tolist() == [1, 2, 3, 4]
    assert table.rows.tolist() == [0, 1, 0, 2, 3]
    assert (table.unit, table.sites_per_person) == ("person", 2)


def test_a_schema_with_sites_in_a_column(tmp_path):
    path = csv_file(tmp_path / "a.csv", "ward,visit,age\nNA,v1,0\nEU,v2,50\nNA,v3,\nEU,v4,100\n")
    table = encoded(path, AGE, site="ward", id="visit")
    assert table.sites.tolist() == ["NA", "EU", "NA", "EU"]  # a site may be called so
    assert table.ids == ("v1", "v2", "v3", "v4")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a\n1\n2\n", {}, "no column of the schema is here"),
        ("age,sex\n1,F\n", {}, "must have at least 2 records, got 1"),
        ("age,sex\n", {}, "must have at least 2 records, got 0"),
        ("who,age,sex\np,1,F\np,2,M\n", {"person": "who"}, "at least 2 persons, got 1"),
        ("age,sex\n,\nNA,\n", {}, "must have a value in a column of the schema, got none"),
        ("who,age,sex\np,1,F\n,2,M\n", {"person": "who"}, "row 2 has no 'who': fill it in"),
        ("who,age,sex\np,1,F\nNA,2,M\n", {"person": "who"}, "row 2 has no 'who'"),
        ("age,sex\n1,F\n2,M\n", {"person": "who"}, "must have column 'who'"),
        ("at,age,sex\nu,1,F\n,2,M\nu,3,F\n", {"site": "at"}, "row 2 has no 'at'"),
        ("k,age,sex\nu,1,F\n,2,M\n", {"label_column": "k"}, "row 2 has no 'k'"),
        (
            "at,age,sex\nu,1,F\nu,2,M\nv,3,F\n",
            {"site": "at"},
            "must have at least 2 records at every site, got 1 at the site of row 3",
        ),
        (
            "at,who,age,sex\nu,p,1,F\nu,q,2,M\nv,p,3,F\nv,p,4,F\n",
            {"site": "at", "person": "who"},
            "at least 2 persons at every site, got 1 at the site of row 3",
        ),
        (
            "at,who,age,sex\nu,p,1,F\n,q,2,M\n",
            {"site": "at", "person": "who"},
            "row 2 has no 'at'",
        ),
    ],
)
def test_what_a_schema_cannot_mean_is_refused(text, options, message, tmp_path):
    with pytest.raises(InvalidInput, match=message) as caught:
        encoded(csv_file(tmp_path / "a.csv", text), **options)
    assert "\n" not in str(caught.value)


def test_new_records_may_lack_columns_and_be_alone(tmp_path):
    table = encoded(csv_file(tmp_path / "a.csv", "sex\nF\n"), all_columns=False)
    np.testing.assert_array_equal(table.X, [[np.nan, 1, 0, 0]])


def test_tables_are_opened_by_the_names_of_their_sites(tmp_path):
    path = csv_file(tmp_path / "p.csv", "a,x;b\n1;2\n")
    with sqlite3.connect(tmp_path / "d.db") as database:
        database.execute("CREATE TABLE stays (a REAL, k INTEGER PRIMARY KEY)")
    database.close()
    stays = DataSource(url=f"sqlite:///{tmp_path}/d.db", table="stays")
    opened = opened_tables([path, stays], None, Dialect(delimiter=";"))
    assert {name: list(table.columns) for name, table in opened.items()} == {
        "p": ["a,x", "b"], "stays": ["a", "k"],
    }  # fmt: skip
