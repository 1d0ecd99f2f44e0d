"""One table in every format, and the types that only some of them have."""

import csv
import gzip
import io
import sqlite3
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from dpfedc.errors import DataUnavailable, InvalidInput, MissingExtra
from dpfedc.tables.database import database_table, parsed_url
from dpfedc.tables.formats import file_table
from dpfedc.tables.stored import column_table, frame_table
from dpfedc.tables.text_files import Dialect
from support.workbook import write_workbook

COLUMNS = {
    "age": [61, None, 47, 1_000_000],
    "weight": [70.5, 64.0, None, -1e-3],
    "ward": ["north", None, "NA", "größe, 2"],
    "code": ["007", "7", " x ", None],
}
ROWS = list(zip(*COLUMNS.values(), strict=True))
NAN = float("nan")
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
NUMBERS = [[70.5, 61], [64, NAN], [NAN, 47], [-1e-3, 1e6]]
TEXTS = [
    ["north", None, "NA", "größe, 2"],
    ["61", None, "47", "1000000"],
    ["70.5", "64", None, "-0.001"],
    ["007", "7", "x", None],
]


def lines(delimiter):
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    rows = [[int(x) if x == 64 else x for x in row] for row in ROWS]  # as a person writes it
    writer.writerows([COLUMNS, *rows])
    return stream.getvalue().encode()


def stored(folder):
    """Return the table as it is in every kind of storage."""
    (folder / "t.csv").write_bytes(lines(","))
    (folder / "t.tsv").write_bytes(lines("\t"))
    (folder / "t.csv.gz").write_bytes(gzip.compress(lines(";")))
    (folder / "t.TSV.GZ").write_bytes(gzip.compress(lines("\t")))
    table = pa.table(COLUMNS)
    pq.write_table(table, folder / "t.parquet", row_group_size=3)
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    pyarrow.feather.write_feather(table, folder / "t.feather")
    write_workbook(folder / "t.xlsx", [list(COLUMNS), *ROWS])
    with sqlite3.connect(folder / "t.db") as database:
        database.execute(
            "CREATE TABLE t (place INTEGER PRIMARY KEY, age INT, weight REAL, ward TEXT, code TEXT)"
        )
        database.executemany("INSERT INTO t VALUES (NULL, ?, ?, ?, ?)", ROWS)
    database.close()
    url = parsed_url(f"sqlite:///{folder}/t.db")
    sql = {"schema": None, "order_by": None, "password_env": None, "where": "t"}
    yield database_table(url, "t", **sql)
    yield frame_table(pd.DataFrame(COLUMNS))
    yield column_table("columns", COLUMNS)
    for suffix in ("csv", "tsv", "csv.gz", "TSV.GZ", "parquet", "arrow", "feather", "xlsx"):
        yield file_table(folder / f"t.{suffix}")


def texts_of(block):
    return [[None if c < 0 else t.distinct[c] for c in t.codes.tolist()] for t in block.texts]


def test_every_format_has_the_same_cells(tmp_path):
    tables = list(stored(tmp_path))
    for table in tables:
        block = table.whole(["weight", "age"], ["ward", "age", "weight", "code"])
        np.testing.assert_array_equal(block.numbers, NUMBERS, err_msg=table.where)
        assert block.numbers.flags.c_contiguous
        assert texts_of(block) == TEXTS, table.where
        assert not block.broken.any()
        assert [n for n in table.columns if n not in table.keys] == list(COLUMNS)
        np.testing.assert_array_equal(table.whole(["code"]).numbers[:, 0], [7, 7, NAN, NAN])
        assert table.whole().n_rows == 4
        assert all(
            set(t.distinct) == set(texts_of(block)[j]) - {None} for j, t in enumerate(block.texts)
        )
        with pytest.raises(InvalidInput, match="must have columns 'height'"):
            table.blocks(["height"])


def test_types_of_numbers_truth_and_time(tmp_path):
    table = pa.table(
        {
            "yes": [True, None, False],
            "small": pa.array([1.5, None, 2], pa.float32()),
            "large": pa.array([2**64 - 1, 0, None], pa.uint64()),
            "price": [Decimal("1.25"), Decimal("3.00"), None],
            "day": [date(2020, 2, 29), None, date(1, 1, 1)],
            "at": pa.array([NOON, None, None], pa.timestamp("ns", "UTC")),
            "kind": pa.array(["a", None, "a"]).dictionary_encode(),
            "list": [[1], None, [2]],
            "bytes": [b"1", b"2", None],
            "nothing": pa.nulls(3),
        }
    )  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "t.feather")
    names = table.column_names
    for name in ("t.parquet", "t.feather"):
        found = file_table(tmp_path / name)
        assert found.columns == {
            "yes": True, "small": True, "large": True, "price": True, "day": False, "at": False,
            "kind": None, "list": False, "bytes": False, "nothing": None,
        }  # fmt: skip
        block = found.whole(names, names)
        np.testing.assert_array_equal(
            block.numbers[:, :4], [[1, 1.5, 2.0**64, 1.25], [NAN, NAN, 0, 3], [0, 2, NAN, NAN]]
        )
        assert np.isnan(block.numbers[:, 4:]).all()
        assert texts_of(block) == [
            ["true", None, "false"], ["1.5", None, "2"], [str(2**64 - 1), "0", None],
            ["1.25", "3", None], ["2020-02-29", None, "0001-01-01"],
            ["2020-01-01T12:00:00+00:00", None, None], ["a", None, "a"],
            [None] * 3, [None] * 3, [None] * 3,
        ]  # fmt: skip


def test_no_cell_of_a_typed_file_makes_reading_fail(tmp_path):
    """Text that is no UTF-8, and times that Python does not have."""
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"a\xff1")]
    )
    far = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("s"))
    pyarrow.feather.write_feather(pa.table({"a": broken, "at": far}), tmp_path / "t.feather")
    block = file_table(tmp_path / "t.feather").whole(["a"], ["a", "at"])
    assert np.isnan(block.numbers).all()
    assert texts_of(block) == [["a", "\ufffd1"], [None, "1970-01-01T00:00:00"]]


def test_frames():
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "k": pd.Categorical(["u", None, "v"]),
            "at": pd.to_datetime(["2020-01-01 12:00", None, "2021-02-03 04:05"]),
            "mixed": [np.int64(4), "x", 2.5],
            "f": np.array([1, 2, 3], dtype=np.float32),
        },
        index=[5, 5, 5],
    )
    table = frame_table(frame)
    assert table.columns == {
        "n": True, "b": True, "k": None, "at": False, "mixed": None, "f": True
    }  # fmt: skip
    block = table.whole(["n", "b", "mixed", "f"], list(frame.columns))
    expected = [[1, 1, 4, 1], [NAN, NAN, NAN, 2], [3, 0, 2.5, 3]]
    np.testing.assert_array_equal(block.numbers, expected)
    assert texts_of(block) == [
        ["1", None, "3"], ["true", None, "false"], ["u", None, "v"],
        ["2020-01-01T12:00:00", None, "2021-02-03T04:05:00"], ["4", "x", "2.5"], ["1", "2", "3"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame([[1, 2]]), "column names that are text"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "column names must differ, got twice 'a'"),
    ],
)
def test_frames_that_are_refused(frame, message):
    with pytest.raises(InvalidInput, match=message):
        frame_table(frame)


def test_workbooks(tmp_path):
    rows = [
        ["a", 2019, "yes", "day"],
        [1, 2.5, True, date(2020, 2, 29)],
        [None] * 4,
        ["x", 3, None, None],
    ]
    table = file_table(write_workbook(tmp_path / "t.xlsx", rows))
    assert list(table.columns) == ["a", "2019", "yes", "day"]
    block = table.whole(["a", "2019", "yes"], ["a", "yes", "day"])
    np.testing.assert_array_equal(block.numbers, [[1, 2.5, 1], [NAN] * 3, [NAN, 3, NAN]])
    texts = [["1", None, "x"], ["true", None, None], ["2020-02-29", None, None]]
    assert texts_of(block) == texts
    unnamed = write_workbook(tmp_path / "u.xlsx", [["a", "b"], [1, 2, 3]])
    assert file_table(unnamed).whole(["a", "b"]).numbers.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("rows", "first_row"),
    [([["a"], [1]], 2), ([["a", None, "b"], [1, 2, 3]], 1), ([[1.5], [2]], 1), ([], 1)],
)
def test_a_workbook_needs_a_header_in_its_first_row(tmp_path, rows, first_row):
    path = write_workbook(tmp_path / "t.xlsx", rows, first_row=first_row)
    with pytest.raises(InvalidInput, match=r"t\.xlsx must start with a row of column names"):
        file_table(path)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "feather", "xlsx"])
def test_damaged_files(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    for content in (b"a,b\n1,2\n", b"PK\x03\x04", b"PAR1PAR1", b"ARROW1\0\0"):
        path.write_bytes(content)
        with pytest.raises(
            DataUnavailable, match=rf"t\.{suffix} must be a readable file"
        ) as caught:
            file_table(path).whole()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "package", "module"),
    [
        ("parquet", "pyarrow", "pyarrow"),
        ("arrow", "pyarrow", "pyarrow"),
        ("feather", "pyarrow", "pyarrow"),
        ("xlsx", "python-calamine", "python_calamine"),
    ],
)
def test_packages_that_are_not_installed(tmp_path, monkeypatch, suffix, package, module):
    (tmp_path / f"t.{suffix}").write_bytes(b"x")
    monkeypatch.delitem(sys.modules, "dpfedc.tables.arrow_files", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"needs {package}: pip install 'dpfedc\[tables\]'"):
        file_table(tmp_path / f"t.{suffix}")


def test_text_files_need_no_package(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_bytes(lines(","))
    expected = file_table(tmp_path / "t.csv").whole(["age"], ["ward"])
    monkeypatch.delitem(sys.modules, "dpfedc.tables.arrow_lines")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = file_table(tmp_path / "t.csv").whole(["age"], ["ward"])
    np.testing.assert_array_equal(found.numbers, expected.numbers)
    assert texts_of(found) == texts_of(expected)


@pytest.mark.parametrize("dialect", [{"delimiter": ";"}, {"encoding": "latin-1"}, {"decimal": ","}])
def test_a_dialect_is_for_text(tmp_path, dialect):
    np.save(tmp_path / "t.npy", np.eye(2))
    with pytest.raises(InvalidInput, match=r"t\.npy: delimiter, encoding and decimal are for text"):
        file_table(tmp_path / "t.npy", Dialect(**dialect))
