"""A first schema: it parses, guesses little, and cannot be used before somebody fills it in."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput
from dpfedc.tables.draft import MAX_DISTINCT, drafted
from dpfedc.tables.schema import Schema
from dpfedc.tables.stored import column_table


def draft_of(**columns):
    """Return what a draft of these columns says, by their names."""
    return {c["name"]: c for c in tomllib.loads(text_of(**columns))["column"]}


def text_of(**columns):
    return drafted([column_table("t", columns)])


def read(tmp_path, text):
    path = tmp_path / "schema.toml"
    path.write_text(text, encoding="utf-8")
    return Schema.read(path)


MANY = [f"text {i}" for i in range(MAX_DISTINCT + 1)]


@pytest.mark.parametrize(
    ("name", "cells", "said"),
    [
        ("age", ["31", "42", "", "55"], {"kind": "number", "range": "?"}),
        ("lab", ["1.5", "2.5"], {"kind": "number", "range": "?"}),
        ("lab", ["1,5", "2,5", "3"], {"kind": "number", "range": "?"}),
        ("lab", ["1", "2", "3", "high"], {"kind": "number", "range": "?"}),
        ("ill", ["0", "1", "1", ""], {"kind": "category", "values": ["0", "1"]}),
        ("ill", [True, False, True], {"kind": "category", "values": ["false", "true"]}),
        ("sex", ["M", "F", "NA", "M"], {"kind": "category", "values": ["F", "M"]}),
        ("kind", ["a", "other", "b"], {"kind": "category", "values": ["a", "b"]}),
        ("kind", ["other", "other"], {"kind": "ignore"}),
        ("born", ["1990-01-01", "1985-05-05", ""], {"kind": "ignore"}),
        ("note", MANY, {"kind": "ignore"}),
        ("note", MANY[1:], {"kind": "category", "values": sorted(MANY[1:])}),
        ("void", ["", "NA", None], {"kind": "ignore"}),
        ("zip", ["1234", "5678", "9012"], {"kind": "ignore"}),
        ("visit_id", ["a", "b"], {"kind": "ignore"}),
        ("x", [str(i) for i in range(5000, 5200)], {"kind": "ignore"}),  # like ids
        ("x", [str(i % 90) for i in range(200)], {"kind": "number", "range": "?"}),
        ("x", [1e308, -1e308, float("inf"), 3.0], {"kind": "number", "range": "?"}),
    ],
)
def test_what_a_column_is_taken_for(name, cells, said):
    assert draft_of(**{name: cells}) == {name: {"name": name, **said}}


def test_persons_are_found():
    text = text_of(visit_id=["1", "2"], patientId=["p", "q"], age=["31.5", "42.5"])
    content = tomllib.loads(text)
    assert content["person"] == "patientId"
    assert [column["name"] for column in content["column"]] == ["visit_id", "age"]
    assert "person" not in tomllib.loads(text_of(visit_id=["1", "2"], age=["31", "42"]))
    assert "person" not in tomllib.loads(text_of(patient_age=["31.5", "42.5"]))


def test_columns_and_values_of_all_tables_are_in_it():
    tables = [
        column_table("u", {"age": ["1.5"], "sex": ["F"]}),
        column_table("v", {"sex": ["M"], "bmi": ["20.5"]}),
    ]
    columns = {c["name"]: c for c in tomllib.loads(drafted(tables))["column"]}
    assert list(columns) == ["age", "sex", "bmi"]
    assert columns["sex"]["values"] == ["F", "M"]


def test_no_number_of_the_table_is_in_it():
    """Ranges must be public knowledge: what the numbers are is not looked up for them."""
    text = text_of(age=["41.25", "77.75", "58.5"], who_id=["8123", "8124", "8125"])
    assert not any(number in text for number in ("41", "77", "58", "812"))


def test_it_cannot_be_used_before_it_is_filled_in(tmp_path):
    text = text_of(patient_id=["p", "q"], age=["31.5", "42.5"], sex=["F", "M"], zip=["1", "2"])
    advice = r"range must be filled in: \[least, largest\] as publicly known, or 'auto'"
    with pytest.raises(InvalidInput, match=rf"schema\.toml: column 'age': {advice}") as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    for filled in ("[0, 110]", '"auto"'):
        schema = read(tmp_path, text.replace('"?"', filled))
        assert schema.features == ("age", "sex=F", "sex=M", "sex=other")
        assert (schema.person, schema.ignored) == ("patient_id", ("zip",))


def test_it_says_what_must_not_be_shared():
    head = text_of(sex=["F", "M"])
    assert "from public knowledge" in head
    assert "share this file only then" in head


ODD = ['"', "\\", "é", "\x7f", "\x00", "\t", "#", "=", "[", "]", "'", "\u2028", "😀", "\x1b", " "]


@given(
    name=st.text(st.sampled_from([*"ab", *ODD]), min_size=1, max_size=8),
    values=st.sets(st.text(st.sampled_from([*"ab", *ODD]), min_size=1, max_size=6), max_size=5),
)
def test_any_name_and_value_is_written_as_toml(name, values):
    name = name.strip() or "x"
    cells = [value.strip() for value in values if value.strip()]
    schema = tomllib.loads(text_of(**{name: [*cells, "a", "b", "c"]}))
    (column,) = schema["column"]
    assert column["name"] == name
    assert column["values"] == sorted({*cells, "a", "b", "c"})
    Schema.of(schema)


def test_long_tables_are_counted_by_blocks():
    n = 9000
    columns = draft_of(sex=["F", "M"] * (n // 2), age=[str(i % 90) for i in range(n)])
    assert columns["sex"]["values"] == ["F", "M"]
    assert columns["age"]["kind"] == "number"


def test_only_ignored_columns_make_no_schema(tmp_path):
    with pytest.raises(InvalidInput, match="must have a column that is not ignored"):
        read(tmp_path, text_of(zip=["1", "2"]))


def test_texts_are_those_of_json():
    assert json.dumps("ä\n", ensure_ascii=False) in text_of(**{"ä\n": ["F", "M"]})
