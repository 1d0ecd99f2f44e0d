"""The schema: what it says, what it refuses, and when two are the same."""

from __future__ import annotations

import math

import pytest

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.tables.schema import Schema, difference

AGE = {"name": "age", "kind": "number", "range": [0, 110]}
LAB = {"name": "lab", "kind": "number", "range": [20, 2000], "transform": "log"}
GAPPY = {"name": "hba1c", "kind": "number", "range": [3, 18], "missing": "indicator"}
SEX = {"name": "sex", "kind": "category", "values": ["F", "M"]}


def schema(*columns, **more):
    return Schema.of({"column": list(columns) or [AGE, LAB, GAPPY, SEX], **more})


def test_it_names_the_features_and_lays_them_out():
    made = schema(person="patient")
    assert made.features == ("age", "lab", "hba1c", "hba1c missing", "sex=F", "sex=M", "sex=other")
    assert [(g.kind, g.start, g.width, g.weight) for g in made.layout] == [
        ("number", 0, 1, 1.0), ("number", 1, 1, 1.0), ("number", 2, 1, 1.0), ("gaps", 3, 1, 0.5),
        ("shares", 4, 3, 0.5),
    ]  # fmt: skip
    assert (made.unit, schema().unit) == ("person", "record")


def test_typical_values_are_encoded():
    number = schema({**AGE, "typical": [33, 66]}).layout[0]
    assert number.typical == pytest.approx(((49.5 - 55) / 55, 16.5 / 55))
    logs = schema({**LAB, "typical": [20, 200]}).layout[0]
    assert logs.typical == pytest.approx((-0.5, 0.5))
    shares = schema({**SEX, "typical": [0.5, 0.4]}).layout[0]
    assert shares.typical == pytest.approx((0.5, 0.4, 0.1))


def test_ignored_columns_and_roles_of_one_table_are_no_part_of_the_agreement():
    plain = schema(AGE, SEX)
    more = schema(AGE, SEX, {"name": "notes", "kind": "ignore"}, site="hospital", id="visit")
    assert more.ignored == ("notes",)
    assert plain.fingerprint == more.fingerprint
    assert plain == more
    assert difference(plain, more) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (schema({**AGE, "range": [0, 120]}, LAB, GAPPY, SEX), r"column 'age' has range"),
        (schema(AGE, LAB, GAPPY), "column 'sex' is only here"),
        (schema(AGE, LAB, GAPPY, SEX, {**AGE, "name": "bmi"}), "column 'bmi' is only there"),
        (schema(SEX, LAB, GAPPY, AGE), "another order"),
        (schema(person="id"), "person is None here and 'id' there"),
        (schema(AGE, LAB, GAPPY, {**SEX, "values": ["F"]}), "column 'sex' has values"),
    ],
)
def test_a_difference_is_named(other, words):
    assert words in difference(schema(), other)
    assert schema().fingerprint != other.fingerprint


def test_its_json_is_canonical_and_nothing_else_is_taken():
    for made in (schema(), schema(person="p", rows="last", date="day", sites_per_person=2)):
        assert Schema.from_json(made.to_json()) == made
        for text in (made.to_json() + " ", made.to_json().replace("age", "age "), "{}", "[]", "3"):
            with pytest.raises(InvalidInput):
                Schema.from_json(text)
    auto = schema({**AGE, "range": "auto", "weight": 3})
    assert Schema.from_json(auto.to_json()) == auto


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({**AGE, "range": [110, 0]}, "column 'age': range must have its lower end first"),
        ({**AGE, "range": [0, 0]}, "lower end first"),
        (
            {"name": "age", "kind": "number"},
            r"range must be \[least, largest\] or 'auto', got None",
        ),
        ({**AGE, "range": "?"}, "range must be filled in"),
        ({**AGE, "range": [0, math.nan]}, "range must be a number"),
        ({**AGE, "range": [0, math.inf]}, "range must be a number"),
        ({**AGE, "range": [0, 1, 2]}, r"range must be \[least, largest\]"),
        ({**LAB, "range": [0, 10]}, "range must be above 0 for transform = 'log'"),
        ({**AGE, "transform": "sqrt"}, "transform must be one of none, log"),
        ({**AGE, "missing": "zero"}, "missing must be one of mean, indicator"),
        ({**AGE, "typical": [50, 200]}, "typical must lie in the range"),
        ({**AGE, "range": "auto", "typical": [1, 2]}, "typical needs a range"),
        ({**AGE, "weight": 0}, "weight must be > 0"),
        ({**AGE, "values": ["a"]}, "a number may have range, transform, missing, weight, typical"),
        ({**AGE, "name": " age"}, "name must be a short text"),
        ({**AGE, "kind": "text"}, "kind must be one of number, category, ignore"),
        ({**SEX, "values": []}, "values must be a list of 1 to 1,000 values"),
        ({"name": "sex", "kind": "category"}, "values must be a list"),
        ({**SEX, "values": ["F", "M", "F"]}, "values must differ and not be empty, got 'F' twice"),
        ({**SEX, "values": ["F", ""]}, "values must differ and not be empty"),
        ({**SEX, "values": ["F", "other"]}, "'other', which is there anyway"),
        ({**SEX, "values": [1.5]}, "values must be texts or whole numbers"),
        ({**SEX, "typical": [0.5]}, "typical must be one share for each of 2 values"),
        ({**SEX, "typical": [0.5, 0.6]}, "shares must sum to at most 1"),
    ],
)
def test_a_bad_column_is_named_in_one_line(column, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        schema(column)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"person": "age"}, "column 'age' must not be both the person and clustered"),
        ({"site": "sex"}, "column 'sex' must not be both the site and clustered"),
        ({"person": ""}, "person must name a column"),
        ({"rows": "last"}, "need person, which is not given"),
        ({"sites_per_person": 2}, "need person, which is not given"),
        ({"person": "p", "rows": "median"}, "rows must be one of mean, first, last"),
        ({"person": "p", "date": "day"}, "date needs rows = 'first' or 'last'"),
        ({"person": "p", "sites_per_person": 0}, "sites_per_person must be >= 1"),
        ({"patient": "p"}, "an entry of the schema must be one of"),
        ({"column": [AGE, AGE]}, "column 'age' must be described once"),
        ({"column": []}, r"must have from 1 to 20,000 tables \[\[column\]\]"),
        ({"column": [{"name": "a", "kind": "ignore"}]}, "a column that is not ignored"),
    ],
)
def test_a_bad_schema_is_named_in_one_line(more, words):
    with pytest.raises(InvalidInput, match=words):
        Schema.of({"column": [AGE, LAB, GAPPY, SEX], **more})


def test_a_file_that_is_no_schema_is_named(tmp_path):
    with pytest.raises(DataUnavailable, match=r"none.toml must be a schema in TOML"):
        Schema.read(tmp_path / "none.toml")
    for text, words in (("x = ", "must be a schema in TOML"), ("rows = 3", "must have from 1")):
        path = tmp_path / "schema.toml"
        path.write_text(text)
        with pytest.raises(InvalidInput, match=words) as caught:
            Schema.read(path)
        assert str(path) in str(caught.value)
