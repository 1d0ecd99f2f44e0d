"""Records of a trial: from data frames by a schema, one per person, and labels back to rows."""

import numpy as np
import pandas as pd
import pytest

from dpfedc.errors import InvalidInput
from dpfedc.tables.schema import Schema
from dpfedc.tables.trial_records import (
    TrialRecords,
    as_schema,
    frame_records,
    id_array,
    named_columns,
    of_rows,
    person_records,
)

NAN = np.nan
CONTENT = {"column": [{"name": "age", "kind": "number", "range": [0, 100]}]}
SCHEMA = Schema.of(CONTENT)
FRAME = pd.DataFrame(
    {
        "age": [0.0, 50, NAN, 100, 75],
        "at": ["u", "v", "u", "v", "u"],
        "who": [7, 7, 8, 9, 7],
        "k": ["x", "y", "x", "y", "x"],
    },
    index=[9, 8, 7, 6, 5],  # which is not read
)


# --- data frames by a schema


def test_each_row_of_a_frame_is_a_record():
    records = frame_records(FRAME, SCHEMA)
    np.testing.assert_array_equal(records.X[:, 0], [-1, 0, NAN, 1, 0.5])
    assert records.present.tolist() == [True, True, False, True, True]
    assert (records.sites, records.y, records.rows, records.ids) == (None,) * 4
    assert (records.unit, records.schema, records.feature_names) == ("record", SCHEMA, ("age",))


def test_sites_persons_and_labels_by_name_or_as_arrays_are_the_same():
    by_name = frame_records(FRAME, SCHEMA, sites="at", persons="who", y="k")
    bare = FRAME[["age"]]
    arrays = frame_records(
        bare, SCHEMA, sites=FRAME["at"].to_numpy(), persons=FRAME["who"].to_numpy(), y=FRAME["k"]
    )
    lists = frame_records(
        bare, SCHEMA, sites=FRAME["at"].tolist(), persons=[float(p) for p in FRAME["who"]],
        y=FRAME["k"].tolist(),
    )  # fmt: skip
    for records in (by_name, arrays, lists):
        assert records.unit == "person"
        assert records.ids == ("7", "7", "8", "9")
        assert records.sites.tolist() == ["u", "v", "u", "v"]
        assert records.y.tolist() == ["x", "y", "x", "y"]
        assert records.rows.tolist() == [0, 1, 2, 3, 0]
        np.testing.assert_array_equal(records.X[:, 0], [-0.25, 0, NAN, 1])


def test_the_schema_names_roles_that_are_not_given():
    schema = Schema.of({**CONTENT, "person": "who", "site": "at", "sites_per_person": 2})
    records = frame_records(FRAME, schema)
    assert (records.unit, records.sites_per_person) == ("person", 2)
    assert records.sites.tolist() == ["u", "v", "u", "v"]
    other = frame_records(FRAME, schema, persons=list("abcde"), sites=[1, 1, 2, 2, 2])
    assert other.ids == tuple("abcde")
    assert other.sites.tolist() == [1, 1, 2, 2, 2]


def test_a_row_without_a_person_is_refused():
    with pytest.raises(InvalidInput, match="row 2 has no 'person of each row'"):
        frame_records(FRAME, SCHEMA, persons=[1, NAN, 2, None, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sites": "gone"}, "the data frame must have column 'gone'"),
        ({"persons": "gone"}, "the data frame must have column 'gone'"),
        ({"y": "gone"}, "the data frame must have column 'gone'"),
        ({"sites": [1, 2]}, r"the site of each row must be given: expected shape \(5,\), got \(2"),
        ({"persons": [[1]] * 5}, r"the person of each row .*\(5,\), got \(5, 1\)"),
        ({"y": np.array(1)}, r"the label of each row .*\(5,\), got \(\)"),
        ({"sites": ["u", None, "v", "v", "u"]}, "row 2 has no 'site of each row'"),
        ({"sites": ["u", "v", "v", NAN, "u"], "persons": "who"}, "row 4 has no 'site of each"),
        ({"y": ["x", "y", "", "x", "y"]}, "row 3 has no 'label of each row'"),
    ],
)
def test_roles_that_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        frame_records(FRAME, SCHEMA, **given)
    assert "\n" not in str(caught.value)


def test_an_array_has_no_columns_for_a_schema():
    with pytest.raises(InvalidInput, match="X must be a DataFrame with a schema, got ndarray"):
        frame_records(np.ones((2, 1)), SCHEMA)


def test_schemas_in_any_form(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text('[[column]]\nname = "age"\nkind = "number"\nrange = [0, 100]\n')
    for given in (SCHEMA, CONTENT, path, str(path)):
        assert as_schema(given) == SCHEMA
    with pytest.raises(InvalidInput, match="schema must be a Schema, a path or a mapping, got int"):
        as_schema(3)


# --- columns that are named


def test_named_columns_are_taken_out():
    X, sites, persons = named_columns(FRAME, "at", "who")
    assert list(X.columns) == ["age", "k"]
    assert (sites.tolist(), persons.tolist()) == (list("uvuvu"), [7, 7, 8, 9, 7])
    assert "at" in FRAME.columns
    X, sites, persons = named_columns(FRAME, [1, 2, 3, 4, 5], None)
    assert X is FRAME
    assert (sites, persons) == ([1, 2, 3, 4, 5], None)


@pytest.mark.parametrize("X", [FRAME, np.ones((5, 2)), [[1.0]]])
def test_a_name_needs_a_column(X):
    with pytest.raises(InvalidInput, match="sites must name a column of X or hold the ids"):
        named_columns(X, "gone", None)
    with pytest.raises(InvalidInput, match="persons must name a column of X or hold the ids"):
        named_columns(X, None, "gone")


# --- persons of plain numbers


def test_the_mean_of_each_persons_rows_at_each_site():
    X = np.array([[1.0, 10], [2, 20], [3, 30], [5, 50]])
    records = person_records(
        X, ["v", "u", "v", "u"], ["p", "p", "p", "q"], [4, 5, 4, 6], names=("a", "b")
    )
    found = zip(records.sites, records.ids, records.X.tolist(), records.y, strict=True)
    assert sorted(found) == [
        ("u", "p", [2, 20], 5), ("u", "q", [5, 50], 6), ("v", "p", [2, 20], 4),
    ]  # fmt: skip
    np.testing.assert_array_equal(records.X[records.rows][:, 0], [2, 2, 2, 5])
    assert (records.unit, records.feature_names) == ("person", ("a", "b"))
    alone = person_records(X, None, ["p", "p", "p", "q"])
    assert (alone.X.tolist(), alone.sites, alone.y) == ([[2, 20], [5, 50]], None, None)


@pytest.mark.parametrize(
    ("kind", "expected"), [(np.float32, np.float32), (np.float64, np.float64), (int, np.float64)]
)
def test_means_keep_their_fractions(kind, expected):
    records = person_records(np.array([[1], [2]], dtype=kind), None, [1, 1])
    assert records.X.dtype == expected
    assert records.X.tolist() == [[1.5]]


@pytest.mark.parametrize("persons", [[1, 2, 1], [1.0, 2.0, 1.0], ["1", "2", "1"], [1, "2", 1.0]])
def test_ids_are_alike_however_they_are_typed(persons):
    given = np.array(persons, dtype=object)
    assert person_records(np.eye(3), None, given).ids == ("1", "2")


@pytest.mark.parametrize(
    ("persons", "message"),
    [
        ([1, 2], r"persons must hold one id per row: expected shape \(3,\), got \(2,\)"),
        ([[1], [2], [3]], r"got \(3, 1\)"),
        ([1.0, NAN, 3.0], "an id for every row, got none in row 2"),
        (["p", None, "q"], "got none in row 2"),
        (np.array(["p", "q", NAN], dtype=object), "got none in row 3"),
        (["p", "q", "nan"], "got none in row 3"),  # as NumPy writes NaN among texts
        (["", "q", "p"], "got none in row 1"),
        (pd.array([1, None, 2], dtype="Int64"), "got none in row 2"),
    ],
)
def test_persons_that_are_refused(persons, message):
    with pytest.raises(InvalidInput, match=message):
        person_records(np.eye(3), None, persons)


# --- labels of rows


def test_labels_of_rows():
    labels = np.array([4, 5, 6], dtype=np.int32)
    X = np.zeros((3, 1))
    present = np.array([True, False, True])
    rows = np.array([2, 0, -1, 1, 2])
    for given, expected in (
        ({}, [4, 5, 6]),
        ({"present": present}, [4, -1, 6]),
        ({"rows": rows}, [6, 4, -1, 5, 6]),
        ({"rows": rows, "present": present}, [6, 4, -1, -1, 6]),
    ):
        found = of_rows(labels, TrialRecords(X, None, **given))
        assert found.tolist() == expected
        assert found.dtype == np.int32
    assert labels.tolist() == [4, 5, 6]


# --- ids


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["3", "-1", "0"], [3, -1, 0]),
        (["9" * 18], [10**18 - 1]),
        (["007", "7"], ["007", "7"]),
        (["1", "x"], ["1", "x"]),
        (["-0"], ["-0"]),
        (["1.0"], ["1.0"]),
        (["+1"], ["+1"]),
        (["9" * 19], ["9" * 19]),
        (["٣"], ["٣"]),
        (["1\n"], ["1\n"]),
        ([], []),
    ],
)
def test_ids_become_integers_only_without_loss(texts, expected):
    found = id_array(texts)
    assert found.tolist() == expected
    assert found.dtype.kind == ("U" if texts and isinstance(expected[0], str) else "i")
