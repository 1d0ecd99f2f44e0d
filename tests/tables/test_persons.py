"""One record per person, against a slow oracle; what orders a person's rows; declared persons."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpfedc.tables.persons import DeclaredPersons, per_person, time_of

NAN = math.nan
N_PERSONS = 4
CELL = st.one_of(st.just(NAN), st.floats(-1e6, 1e6))
TIME = st.sampled_from([NAN, -math.inf, math.inf, 0.0, 1.0, 2.0])
ROWS = st.lists(st.tuples(st.integers(-1, N_PERSONS - 1), TIME, CELL, CELL), max_size=15)


def by_hand(rows, rule, *, timed):
    """Return one row per person, by loops."""
    out = []
    for person in range(N_PERSONS):
        mine = [row for row in rows if row[0] == person]
        if rule == "mean":
            record = []
            for column in (2, 3):
                there = [row[column] for row in mine if not math.isnan(row[column])]
                record.append(sum(there) / len(there) if there else NAN)
        else:

            def when(row):  # a row without a time comes before all others
                return (not math.isnan(row[1]), 0.0 if math.isnan(row[1]) else row[1])

            ordered = sorted(mine, key=when) if timed else mine  # stable: ties go by place
            chosen = ordered[0 if rule == "first" else -1] if ordered else (None, None, NAN, NAN)
            record = list(chosen[2:])
        out.append(record)
    return out


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("rule", ["mean", "first", "last"])
@given(rows=ROWS)
@example(rows=[])
@example(rows=[(-1, 0.0, 1.0, 2.0)])
@example(rows=[(0, NAN, 1.0, NAN), (0, -math.inf, 2.0, 5.0), (0, NAN, 3.0, 4.0)])
@example(rows=[(2, 1.0, 1.0, 1.0), (2, 1.0, 2.0, 2.0), (0, 1.0, 3.0, 3.0)])
def test_it_agrees_with_loops(rule, timed, rows):
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 4)
    times = table[:, 1] if timed else None
    found = per_person(table[:, 2:], table[:, 0].astype(np.int64), N_PERSONS, rule, times)
    expected = np.array(by_hand(rows, rule, timed=timed))
    assert found.shape == (N_PERSONS, 2)
    # Sums are over a person's rows in their order, so even the last digit agrees.
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rule", ["mean", "first", "last"])
@given(rows=ROWS, data=st.data())
def test_a_person_depends_on_no_other(rule, rows, data):
    """To the last bit, wherever the others' rows stand and whatever is in them."""
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 4)
    mine = table[table[:, 0] == 0]
    others = data.draw(ROWS.map(lambda found: [(max(row[0], 1), *row[1:]) for row in found]))
    mixed = [*mine.tolist()]
    for row in others:
        mixed.insert(data.draw(st.integers(0, len(mixed))), list(row))
    records = []
    for found in (mine, np.array(mixed).reshape(len(mixed), 4)):
        owners = found[:, 0].astype(np.int64)
        records.append(per_person(found[:, 2:], owners, N_PERSONS, rule, found[:, 1])[0])
    np.testing.assert_array_equal(records[0], records[1])


def test_infinite_cells_are_gaps_of_a_mean():
    X = np.array([[math.inf], [1.0], [-math.inf], [3.0]])
    assert per_person(X, np.zeros(4, np.int64), 1, "mean").tolist() == [[2.0]]


# --- what orders rows


def test_times_are_ordered():
    texts = [
        "0001-01-01", "1999-12-31", "2024-03-01", "2024-03-01T10:00", "2024-03-01 10:00:01",
        "2024-03-01T10:00:01.5", "20240302", "2024-03-03T01:00+02:00", "2024-03-03",
        "9999-12-31T23:59:59",
    ]  # fmt: skip
    dates = [text for text in texts if text != "20240302"]  # which is a number
    times = [time_of(text) for text in dates]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    assert time_of("20240302") == 20240302
    assert time_of("2024-03-01T10:00Z") == time_of("2024-03-01T12:00+02:00")


@pytest.mark.parametrize("text", ["soon", "", "NA", "nan", "2024-13-01", "31.12.2024", "1/2/2024"])
def test_no_times(text):
    assert math.isnan(time_of(text))


@pytest.mark.parametrize("text", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"])
def test_times_that_are_in_no_year_of_utc(text):
    assert math.isfinite(time_of(text))


@given(st.one_of(st.text(), st.datetimes(timezones=st.timezones()).map(lambda t: t.isoformat())))
def test_no_text_makes_it_fail(text):
    assert isinstance(time_of(text), float)


# --- declared persons


@given(st.lists(st.text(), unique=True, max_size=8))
def test_declared_persons_come_back(ids):
    declared = DeclaredPersons.of(ids)
    again = DeclaredPersons.from_bytes(declared.to_bytes())
    assert again == declared
    assert len(set(again.digests)) == len(ids)
    assert tuple(map(again.digest, ids)) == declared.digests


def test_each_declaration_has_a_key_of_its_own():
    """Else sites could compare whom they have, and whoever guesses an id could look it up."""
    first, second = (DeclaredPersons.of(["ann", "bob"]) for _ in range(2))
    assert first.key != second.key
    assert not {*first.digests} & {*second.digests}
    assert first.digest("bob") == first.digests[1]
    assert b"ann" not in first.to_bytes()


def test_an_id_that_is_no_text_has_a_digest():
    """NumPy's texts may hold half a character."""
    declared = DeclaredPersons.of(["\ud800", "\ud801", "?"])
    assert len(set(declared.digests)) == 3
