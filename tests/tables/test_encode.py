"""A table becomes records: against a slow oracle, cell by cell, and one row at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.errors import InvalidInput
from dpfedc.tables.encode import decoded, encoded_table
from dpfedc.tables.schema import Schema
from dpfedc.tables.stored import column_table
from dpfedc.tables.trial_tables import read_encoded

SCHEMA = Schema.of({
    "column": [
        {"name": "age", "kind": "number", "range": [0, 100]},
        {"name": "lab", "kind": "number", "range": [10, 1000], "transform": "log",
         "missing": "indicator"},
        {"name": "sex", "kind": "category", "values": ["F", "M", "none"]},
        {"name": "raw", "kind": "number", "range": "auto"},
        {"name": "lograw", "kind": "number", "range": "auto", "transform": "log"},
    ],
})  # fmt: skip
NAN = math.nan
NUMBERS = st.sampled_from(
    ["", "7", " 12.5 ", "-3", "1e3", "nan", "NA", "inf", "word", "99999", "0", "0.5", None]
)
WORDS = st.sampled_from(["F", "M", " M ", "x", "", "NA", "none", None])
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, WORDS, NUMBERS, NUMBERS), min_size=1, max_size=8)


def table(rows, **more):
    names = [column.name for column in SCHEMA.columns]
    columns = {name: [row[j] for row in rows] for j, name in enumerate(names)}
    return column_table("rows", {**columns, **more})


def by_hand(row):
    """Return the encoded row, from each cell alone."""
    age, lab, sex, raw, lograw = row

    def number(cell):
        try:
            value = float(cell)
        except (TypeError, ValueError):
            return NAN
        return value if math.isfinite(value) else NAN

    def clipped(value, low, high):
        return NAN if math.isnan(value) else min(max(value, low), high)

    x = clipped(number(age), 0, 100) / 50 - 1
    y = clipped(number(lab), 10, 1000)
    y = (math.log10(y) - 2) if y == y else NAN  # noqa: PLR0124
    sex = None if sex is None else sex.strip()
    values = ["F", "M", "none"]
    shares = [float(sex == value) for value in values] + [float(sex not in values)]
    if sex in (None, "", "NA"):
        shares = [NAN] * 4
    z = number(lograw)
    z = math.log(z) if z > 0 else NAN
    return [x, y, float(y != y), *shares, number(raw), z]  # noqa: PLR0124


@given(ROWS)
def test_each_cell_is_encoded_as_by_hand(rows):
    records = encoded_table(table(rows), SCHEMA)
    expected = np.array([by_hand(row) for row in rows])
    np.testing.assert_allclose(records.X, expected, atol=1e-12)
    there = np.delete(np.isfinite(expected), 2, axis=1)
    np.testing.assert_array_equal(records.present, there.any(axis=1))


@given(ROWS, st.data())
def test_a_record_depends_on_its_own_row_alone(rows, data):
    j = data.draw(st.integers(0, len(rows) - 1))
    other = data.draw(st.tuples(NUMBERS, NUMBERS, WORDS, NUMBERS, NUMBERS))
    changed = [*rows[:j], other, *rows[j + 1 :]]
    rest = np.arange(len(rows)) != j
    first, second = (encoded_table(table(r), SCHEMA) for r in (rows, changed))
    assert first.X.shape == second.X.shape
    np.testing.assert_array_equal(first.X[rest], second.X[rest])
    np.testing.assert_array_equal(first.present[rest], second.present[rest])


def test_units_come_back():
    rows = [
        ("25", "10", "F", "7", "2"),
        ("99", "500", "x", "-3", "30"),
        ("0", "1000", "none", "0", "1"),
    ]
    X = encoded_table(table(rows), SCHEMA).X
    np.testing.assert_allclose(
        decoded(X, SCHEMA),
        [[25, 10, 0, 1, 0, 0, 0, 7, 2], [99, 500, 0, 0, 0, 0, 1, -3, 30],
         [0, 1000, 0, 0, 0, 1, 0, 0, 1]],
        atol=1e-9,
    )  # fmt: skip
    noisy = decoded(X + 0.3, SCHEMA)
    assert (noisy[:, 0] <= 100).all()
    np.testing.assert_allclose(noisy[:, 3:7].sum(axis=1), 1.0)


@given(st.lists(st.floats(-2, 2), min_size=4, max_size=4))
def test_noisy_shares_become_the_nearest_that_can_be(row):
    E = np.zeros((1, 9))
    E[:, 3:7] = row
    shares = decoded(E, SCHEMA)[0, 3:7]
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)
    # Nearest: what was taken away is the same for all that are left, and more than the others had.
    shift = (np.array(row) - shares)[shares > 1e-12]
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)
    assert (np.array(row)[shares <= 1e-12] <= shift[0] + 1e-9).all()


def test_columns_are_found_by_name_and_one_that_is_not_there_is_all_gaps():
    few = column_table("few", {"sex": ["M", "F"], "notes": ["a", "b"], "age": [50, 100]})
    X = encoded_table(few, SCHEMA).X
    np.testing.assert_array_equal(X[:, 0], [0.0, 1.0])
    np.testing.assert_array_equal(X[:, 4], [1.0, 0.0])
    assert np.isnan(X[:, [1, 7, 8]]).all()
    np.testing.assert_array_equal(X[:, 2], [1.0, 1.0])


PERSONS = Schema.of({
    "person": "who",
    "column": [
        {"name": "age", "kind": "number", "range": [0, 100], "missing": "indicator"},
        {"name": "sex", "kind": "category", "values": ["F", "M"]},
    ],
})  # fmt: skip


def visits(**more):
    return column_table("visits", {
        "who": ["b", "a", "b", "b", "c", "a"],
        "age": [50, None, 100, None, None, None],
        "sex": ["F", "M", "F", "M", "", "M"],
        "day": ["2024-02-01", "2024-01-01", "2023-05-05", "2024-03-01", "", "2024-01-02"],
        **more,
    })  # fmt: skip


def test_rows_of_a_person_become_their_mean_gaps_left_out():
    records = encoded_table(visits(), PERSONS)
    assert records.ids == ("b", "a", "c")
    np.testing.assert_array_equal(records.rows, [0, 1, 0, 0, 2, 1])
    np.testing.assert_allclose(
        records.X,
        [[0.5, 0, 2 / 3, 1 / 3, 0], [NAN, 1, 0, 1, 0], [NAN, 1, NAN, NAN, NAN]],
    )
    np.testing.assert_array_equal(records.present, [True, True, False])


@pytest.mark.parametrize(
    ("rule", "date", "ages"),
    [("first", None, [0.0, NAN, NAN]), ("last", None, [NAN, NAN, NAN]),
     ("first", "day", [1.0, NAN, NAN]), ("last", "day", [NAN, NAN, NAN])],
)  # fmt: skip
def test_one_row_of_a_person_is_taken_by_its_date(rule, date, ages):
    age = {"name": "age", "kind": "number", "range": [0, 100]}
    schema = Schema.of({"person": "who", "rows": rule, "date": date, "column": [age]})
    np.testing.assert_array_equal(encoded_table(visits(), schema).X[:, 0], ages)


def test_a_person_is_one_at_every_site_anew():
    schema = Schema.of({"person": "who", "site": "at", "column": [
        {"name": "age", "kind": "number", "range": [0, 100]}]})  # fmt: skip
    records = encoded_table(visits(at=["x", "x", "y", "x", "x", "y"]), schema)
    assert records.ids == ("b", "a", "b", "c", "a")
    assert records.sites == ("x", "x", "y", "x", "y")
    np.testing.assert_array_equal(records.X[:, 0], [0.0, NAN, 1.0, NAN, NAN])


def test_declared_persons_are_the_slots_whatever_rows_there_are():
    records = encoded_table(visits(), PERSONS, persons=("A", "D", "B"), key=str.upper)
    assert records.ids is None
    np.testing.assert_array_equal(records.rows, [2, 0, 2, 2, -1, 0])
    np.testing.assert_array_equal(records.present, [True, False, True])
    assert records.X.shape == (3, 5)


def test_a_column_with_a_role_must_be_there():
    with pytest.raises(InvalidInput, match="visits must have column 'at'"):
        encoded_table(visits(), Schema.of({"person": "at", "column": [
            {"name": "age", "kind": "number", "range": [0, 100]}]}))  # fmt: skip


def test_ids_that_cannot_be_read_are_nobodys():
    """Two of them might be read alike, and two persons would share a record."""
    schema = Schema.of({"person": "who", "column": [
        {"name": "age", "kind": "number", "range": [0, 100]}]})  # fmt: skip
    records = encoded_table(
        column_table("t", {"who": ["M\ufffdller", "a", "M\ufffdller"], "age": [1, 2, 3]}), schema
    )
    assert records.ids == ("a",)
    assert records.rows.tolist() == [-1, 0, -1]


def test_a_broken_line_is_nobodys_and_stops_nothing(tmp_path):
    schema = Schema.of({"person": "who", "column": [
        {"name": "age", "kind": "number", "range": [0, 100]}]})  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text("who,age\na,1\nb\nb,2\n")
    assert read_encoded(path, schema).ids == ("a", "b")
    path.write_text("who,age\na,1\n,3\nb,2\n")
    with pytest.raises(InvalidInput, match="row 2 has no 'who'"):
        read_encoded(path, schema)
