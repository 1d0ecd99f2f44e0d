"""The user's own files: formats that agree, and one line of help for every bad file."""

import gzip
import io
import sys
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfedc.errors import DataUnavailable, InvalidInput, MissingExtra
from dpfedc.tables.text_files import Dialect
from dpfedc.tables.trial_records import TrialRecords
from dpfedc.tables.trial_tables import read_tables

reuse_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def csv_file(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def parquet_file(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def npz_file(path, **arrays):
    np.savez(path, **arrays)
    return path


def refused(path, message, *, error=InvalidInput, read=read_tables, **options):
    """Check that reading fails in one line that matches `message`."""
    with pytest.raises(error, match=message) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)


def table_or_message(path):
    """Return what reading gives: a table and no message, or no table and why."""
    try:
        return read_tables(path), ""
    except (InvalidInput, DataUnavailable) as error:
        return None, str(error)


# --- what is read


def test_csv(tmp_path):
    path = csv_file(
        tmp_path / "a.csv",
        '\ufeffage, ward ,weight,ill,note\n1,"north, left",2.5,yes,x\n-3e1, south,4,no,\n',
    )
    table = read_tables(path, site_column="ward", label_column="ill", drop=["note"])
    assert table.X.tolist() == [[1, 2.5], [-30, 4]]
    assert table.X.dtype == np.float64
    assert table.X.flags.c_contiguous
    assert table.sites.tolist() == ["north, left", "south"]
    assert table.y.tolist() == ["yes", "no"]
    assert table.feature_names == ("age", "weight")


def test_csv_without_roles(tmp_path):
    table = read_tables(str(csv_file(tmp_path / "a.CSV", "a,b\n1,2\n")))
    assert isinstance(table, TrialRecords)
    assert (table.sites.tolist(), table.y, table.feature_names) == (["a"], None, ("a", "b"))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["3", "-1", "0"], [3, -1, 0]),
        (["007", "7", "8"], ["007", "7", "8"]),
        (["1", "x", "2"], ["1", "x", "2"]),
        (["1.0", "2.0", "2.0"], ["1.0", "2.0", "2.0"]),
        (["9" * 18, "1", "1"], [int("9" * 18), 1, 1]),
        (["9" * 30, "1", "1"], ["9" * 30, "1", "1"]),
        ([str(2**63), "1", "1"], [str(2**63), "1", "1"]),
        (["NA", "EU", "EU"], ["NA", "EU", "EU"]),
    ],
)
def test_text_ids_become_integers_only_without_loss(cells, expected, tmp_path):
    text = "x,site\n" + "".join(f"1,{cell}\n" for cell in cells)
    sites = read_tables(csv_file(tmp_path / "a.csv", text), site_column="site").sites
    assert sites.tolist() == expected
    assert sites.dtype.kind == ("i" if isinstance(expected[0], int) else "U")


@pytest.mark.parametrize("header", ["0,1,2", "1,2,3", "a,1,2", "2019,2020,total"])
def test_headers_of_some_numbers_are_headers(header, tmp_path):
    table = read_tables(csv_file(tmp_path / "a.csv", f"{header}\n5,6,7\n"))
    assert table.X.tolist() == [[5, 6, 7]]


def test_parquet_types(tmp_path):
    path = parquet_file(
        tmp_path / "a.parquet",
        whole=pa.array([1, 2], pa.int8()),
        real=pa.array([0.5, 1.5], pa.float32()),
        flag=pa.array([True, False]),
        money=pa.array([Decimal("1.25"), Decimal("2.50")]),
        text=pa.array(["3", "4e1"]),
        ward=pa.array(["a", "b"]).dictionary_encode(),
        ill=pa.array([2.0, 3.0]),
        day=pa.array([date(2020, 1, 1)] * 2),
    )
    table = read_tables(path, site_column="ward", label_column="ill", drop="day")
    assert table.X.tolist() == [[1, 0.5, 1, 1.25, 3], [2, 1.5, 0, 2.5, 40]]
    assert table.X.dtype == np.float64
    assert table.sites.tolist() == ["a", "b"]
    assert table.y.dtype == np.int64
    assert table.y.tolist() == [2, 3]
    assert table.feature_names == ("whole", "real", "flag", "money", "text")


def test_ids_of_any_type_are_texts(tmp_path):
    path = parquet_file(
        tmp_path / "a.parquet",
        x=[1.0, 2.0],
        site=[1.0, 1.5],
        label=[date(2020, 1, 1), date(2021, 1, 1)],
    )
    table = read_tables(path, site_column="site", label_column="label")
    assert table.sites.tolist() == ["1", "1.5"]
    assert table.y.tolist() == ["2020-01-01", "2021-01-01"]


def test_parquet_ids_keep_all_digits(tmp_path):
    ids = [2**62 + 1, 2**62 + 2]
    path = parquet_file(
        tmp_path / "a.parquet", x=[1.0, 2.0], site=ids, label=pa.array([2**64 - 1, 0], pa.uint64())
    )
    table = read_tables(path, site_column="site", label_column="label")
    assert table.sites.tolist() == list(map(str, ids))
    assert table.y.tolist() == [str(2**64 - 1), "0"]


def test_parquet_ignores_the_folder_name(tmp_path):
    folder = tmp_path / "site=3"
    folder.mkdir()
    table = read_tables(parquet_file(folder / "a.parquet", x=[1.0]))
    assert table.feature_names == ("x",)


def test_npz_roles_by_name(tmp_path):
    path = npz_file(
        tmp_path / "a.npz",
        X=np.asarray([[1, 2], [3, 4]], dtype=np.int16),
        sites=np.asarray([b"p", b"q"]),
        y=np.asarray([1, 0], dtype=np.uint8),
        ward=np.asarray(["u", "v"]),
        feature_names=np.asarray(["X", "feature_names"]),
        unread=np.asarray([None, {}]),
    )
    table = read_tables(path)
    assert table.X.tolist() == [[1, 2], [3, 4]]
    assert (table.sites.tolist(), table.y.tolist()) == (["p", "q"], [1, 0])
    assert table.feature_names == ("X", "feature_names")
    assert table.y.dtype == np.int64
    other = read_tables(path, site_column="ward", label_column="sites", drop=["X"])
    assert (other.sites.tolist(), other.y.tolist()) == (["u", "v"], ["p", "q"])
    assert other.X.tolist() == [[2], [4]]


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int64", "uint8", "bool"])
def test_only_float32_stays_float32(kind, tmp_path):
    X = np.asarray([[0, 1], [1, 0]]).astype(kind)
    np.save(tmp_path / "a.npy", np.asfortranarray(X))
    npz_file(tmp_path / "a.npz", X=X)
    parquet_file(tmp_path / "a.parquet", x0=pa.array(X[:, 0]), x1=pa.array(X[:, 1]))
    for suffix in ("npy", "npz", "parquet"):
        table = read_tables(tmp_path / f"a.{suffix}")
        assert table.X.dtype == (np.float32 if kind == "float32" else np.float64)
        assert table.X.tolist() == [[0, 1], [1, 0]]
        assert table.feature_names == ("x0", "x1")


cells = st.floats(-1e9, 1e9, allow_subnormal=False)
site_names = st.text("abcXYZ é_7", min_size=1, max_size=4).filter(lambda s: s == s.strip())


@reuse_folder
@given(rows=st.lists(st.tuples(cells, cells, site_names, st.integers(0, 9)), min_size=1))
def test_all_formats_agree(rows, tmp_path):
    a, b, sites, y = (list(column) for column in zip(*rows, strict=True))
    lines = [f'{row[0]!r},{row[1]!r},"{row[2]}",{row[3]}' for row in rows]
    X = np.asarray([a, b]).T
    names = np.asarray(["a", "b"])
    files = [
        csv_file(tmp_path / "t.csv", "\n".join(["a,b,s,y", *lines])),
        parquet_file(tmp_path / "t.parquet", a=a, b=b, s=sites, y=y),
        npz_file(tmp_path / "t.npz", X=X, s=np.asarray(sites), y=y, feature_names=names),
    ]
    tables = [read_tables(file, site_column="s", label_column="y") for file in files]
    for table in tables:
        assert np.array_equal(table.X, X)
        assert table.sites.astype(str).tolist() == sites
        assert table.sites.tolist() == tables[0].sites.tolist()
        assert table.y.tolist() == y
        assert table.feature_names == ("a", "b")


# --- several files


def test_one_file_per_site(tmp_path):
    files = [
        csv_file(tmp_path / "oslo.csv", "a,b,k\n1,2,0\n3,4,1\n"),
        parquet_file(tmp_path / "rome.parquet", a=[5], b=[6], k=["x"]),
        npz_file(
            tmp_path / "bern.npz", X=[[7.0, 8.0]], k=["y"], feature_names=np.asarray(["a", "b"])
        ),
    ]
    table = read_tables(files, label_column="k")
    assert table.X.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert table.sites.tolist() == ["oslo", "oslo", "rome", "bern"]
    assert table.y.tolist() == ["0", "1", "x", "y"]
    assert table.feature_names == ("a", "b")


def test_dropped_columns_need_not_agree_in_place(tmp_path):
    files = [
        csv_file(tmp_path / "p.csv", "a,note,b\n1,x,2\n"),
        csv_file(tmp_path / "q.csv", "note,a,b\nx,3,4\n"),
    ]
    assert read_tables(files, drop=("note",)).X.tolist() == [[1, 2], [3, 4]]


def test_columns_are_matched_by_name(tmp_path):
    files = [
        csv_file(tmp_path / "p.csv", "a,b,c\n1,2,3\n"),
        csv_file(tmp_path / "q.csv", "c,a,b\n6,4,5\n"),
    ]
    table = read_tables(files)
    assert table.X.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert table.feature_names == ("a", "b", "c")


def test_one_file_is_one_site_or_has_a_site_column(tmp_path):
    path = csv_file(tmp_path / "clinic.csv", "a,ward\n1,7\n2,8\n")
    assert read_tables([path], site_column="ward").sites.tolist() == [7, 8]
    for paths in (path, str(path), [path]):
        alone = read_tables(paths, drop=["ward"])
        assert alone.sites.tolist() == ["clinic", "clinic"]
        assert alone.X.tolist() == [[1], [2]]
    stored = npz_file(tmp_path / "b.npz", X=[[1.0], [2.0]], sites=[4, 5])
    assert read_tables(stored).sites.tolist() == [4, 5]


def test_a_packed_file_names_its_site(tmp_path):
    with gzip.open(tmp_path / "oslo.csv.gz", "wt") as stream:
        stream.write("a;b\n1,5;2\n")
    dialect = Dialect(decimal=",")
    table = read_tables(tmp_path / "oslo.csv.gz", dialect=dialect)
    assert (table.X.tolist(), table.sites.tolist()) == ([[1.5, 2]], ["oslo"])
    path = parquet_file(tmp_path / "a.parquet", a=[1])
    message = "delimiter, encoding and decimal are for text files only"
    refused(path, message, read=read_tables, dialect=dialect)


def test_float32_files_stay_float32(tmp_path):
    for name in ("p", "q"):
        np.save(tmp_path / f"{name}.npy", np.ones((2, 2), np.float32))
    table = read_tables([tmp_path / "p.npy", tmp_path / "q.npy"])
    assert table.X.dtype == np.float32
    assert table.sites.tolist() == ["p", "p", "q", "q"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("a,c\n1,2\n", r"q.csv must have the columns of .*p.csv: missing 'b', unexpected 'c'"),
        ("a\n1\n", "missing 'b', unexpected none; .*use a --schema"),
        ("a,b,c\n1,2,3\n", "missing none, unexpected 'c'"),
        ("a,b\n1,\n", r"q.csv must have finite numbers .*column 'b', row 1"),
    ],
)
def test_files_of_sites_must_be_alike(second, message, tmp_path):
    files = [csv_file(tmp_path / "p.csv", "a,b\n1,2\n"), csv_file(tmp_path / "q.csv", second)]
    refused(files, message, read=read_tables)


def test_sites_of_files_must_be_clear(tmp_path):
    (tmp_path / "x").mkdir()
    plain = csv_file(tmp_path / "p.csv", "a\n1\n")
    twin = csv_file(tmp_path / "x" / "p.csv", "a\n1\n")
    inner = npz_file(tmp_path / "q.npz", X=[[1.0]], sites=["s"])
    labelled = npz_file(tmp_path / "r.npz", X=[[1.0]], y=[1], feature_names=["a"])
    refused([plain, twin], r"stems must differ.* got '.*p\.csv', '.*x.p\.csv'", read=read_tables)
    refused([], "at least one file, got none", read=read_tables)
    several = "site_column must be None for several files, got 'a'"
    refused([plain, inner], several, read=read_tables, site_column="a")
    refused([inner, plain], "q.npz must have no array 'sites'", read=read_tables)
    refused([plain, labelled], "r.npz and .*p.csv must both have labels", read=read_tables)


# --- what is refused


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n2,z\n", {}, "column 'b' must be numeric, got something else in row 2"),
        ("a,b\n,2\n2,z\n", {}, "column 'b' must be numeric, got something else in row 2"),
        ("a,b\n1,2\n,nan\nNA,4\n", {}, "got 3 missing or infinite, .*column 'a', row 2"),
        ("a,b\n1,2\n3,-inf\n", {}, "got 1 missing or infinite, .*column 'b', row 2"),
        ("a,b\n1,2\n3,1e999\n", {}, "got 1 missing or infinite, .*column 'b', row 2"),
        ("a,b\n1,2\n3\n", {}, "row 2 must have 2 cells, one for each"),
        ("a,b\n\n1,2\n", {}, "row 1 must have 2 cells, one for each"),
        ("a,b\n1,2\n\n", {}, "row 2 must have 2 cells, one for each"),
        ("a,b\n1,2,3\n", {}, "row 1 must have 2 cells, one for each"),
        ("a,b\n", {}, "at least one row of data, got none"),
        ("\n\n", {}, "row of column names, one for each column"),
        (",a\n1,2\n", {}, "row of column names, one for each column"),
        ("1.5,2\n1,2\n", {}, "row of column names, one for each column"),
        ("a,b,a\n1,2,3\n", {}, "column names must differ, got twice 'a'"),
        ("a,b\n1,2\n", {"site_column": "c"}, "must have column 'c', got 'a', 'b'$"),
        ("a,b\n1,2\n", {"label_column": "c"}, "must have column 'c', got 'a', 'b'$"),
        ("a,b\n1,2\n", {"drop": ["c"]}, "must have column 'c', got 'a', 'b'$"),
        ("a,b\n1,2\n", {"drop": ["a"], "site_column": "b"}, "feature column, got only 'a', 'b'"),
        ("a,s\n1,x\n2,\n3,\n", {"site_column": "s"}, "'s' .* got 2 missing, the first in row 2"),
        ("a,s\n1,x\n2,\n", {"label_column": "s"}, "'s' .* got 1 missing, the first in row 2"),
    ],
)
def test_csv_is_refused_with_the_place(text, options, message, tmp_path):
    refused(csv_file(tmp_path / "a.csv", text), f"a.csv.* {message}", **options)


def test_many_columns_are_not_all_listed(tmp_path):
    names = ",".join(f"c{j}" for j in range(500))
    path = csv_file(tmp_path / "a.csv", names + "\n" + "1," * 499 + "1\n")
    refused(path, r"'c9', ... \(500 in all\)$", site_column="s")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": [1], "b": ["x"]}, {}, "column 'b' must be numeric, got something else in row 1"),
        ({"a": [date(2020, 1, 1)]}, {}, r"'a' must be numeric, got something else \(drop"),
        ({"a": [[1.0]]}, {}, "'a' must be numeric"),
        ({"a": [1, None]}, {}, "got 1 missing or infinite, .*column 'a', row 2"),
        ({"a": [None, True]}, {}, "got 1 missing or infinite, .*column 'a', row 1"),
        ({"a": [None, None]}, {}, "got 2 missing or infinite, .*column 'a', row 1"),
        ({"a": pa.array([], pa.float64())}, {}, "at least one row of data, got none"),
        ({"a": [1], "s": [None]}, {"site_column": "s"}, "got 1 missing, the first in row 1"),
        ({"a": [1], "s": [[1]]}, {"site_column": "s"}, "got 1 missing, the first in row 1"),
        ({"a": [1]}, {"site_column": "s"}, "must have column 's', got 'a'$"),
    ],
)
def test_parquet_is_refused_with_the_place(columns, options, message, tmp_path):
    refused(parquet_file(tmp_path / "a.parquet", **columns), f"a.parquet.*{message}", **options)


def test_parquet_with_equal_names(tmp_path):
    pq.write_table(
        pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet"
    )
    refused(tmp_path / "a.parquet", "column names must differ, got twice 'a'")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    path = parquet_file(tmp_path / "a.parquet", a=[1])
    monkeypatch.delitem(sys.modules, "dpfedc.tables.arrow_files", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(path, r"needs pyarrow: pip install 'dpfedc\[tables\]'", error=MissingExtra)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"Z": [[1.0]]}, {}, "must have column 'X', got 'Z'$"),
        ({"X": [1.0]}, {}, r"X must be numbers in 2-D, got float64 of shape \(1,\)"),
        ({"X": [["a"]]}, {}, "X must be numbers in 2-D, got <U1"),
        ({"X": [[1j]]}, {}, "X must be numbers in 2-D, got complex128"),
        ({"X": np.empty((0, 2))}, {}, "at least one row of data, got none"),
        ({"X": np.empty((2, 0))}, {}, "must have a feature column, got only none"),
        ({"X": [[1, np.nan], [np.inf, 2]]}, {}, "got 2 missing or .*column 'x1', row 1"),
        ({"X": [[1.0]], "sites": [1, 2]}, {}, r"'sites' must have shape \(1,\), got \(2,\)"),
        ({"X": [[1.0]], "y": [[1]]}, {}, r"'y' must have shape \(1,\), got \(1, 1\)"),
        ({"X": [[1.0]], "y": [""]}, {}, "'y' .* got 1 missing"),
        ({"X": [[1.0]], "y": [np.nan]}, {}, "'y' .* got 1 missing"),
        ({"X": [[1.0]], "y": [1j]}, {}, "'y' .* got 1 missing"),
        ({"X": [[1.0]], "y": [1], "feature_names": ["y"]}, {}, "must differ, got 'y'"),
        ({"X": [[1.0]], "feature_names": ["a", "b"]}, {}, r"must be \(1,\), got shape \(2,\)"),
        ({"X": [[1.0]], "feature_names": "a"}, {}, r"must be \(1,\), got shape \(\)"),
        ({"X": [[1.0, 2.0]], "feature_names": ["a", "a"]}, {}, "got twice 'a'"),
        ({"X": [[1.0]]}, {"site_column": "s"}, "must have column 's', got 'x0'$"),
        ({"X": [[1.0]]}, {"drop": "x9"}, "must have column 'x9', got 'x0'$"),
        ({"X": np.asarray([[None]])}, {}, "array 'X' must hold numbers or text .*[Pp]ickle"),
        ({"X": [[1.0]], "sites": np.asarray([None])}, {}, "array 'sites' must .*[Pp]ickle"),
        ({"X": [[1.0]], "feature_names": np.asarray([None])}, {}, "'feature_names' must"),
    ],
)
def test_npz_is_refused_with_the_place(arrays, options, message, tmp_path):
    refused(npz_file(tmp_path / "a.npz", **arrays), f"a.npz.*{message}", **options)


def test_npy_has_no_column_names(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    for option in ("site_column", "label_column"):
        message = "must have column 's', got 'x0', 'x1'$"
        refused(tmp_path / "a.npy", message, **{option: "s"})


def test_a_suffix_that_lies(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    npz_file(tmp_path / "b.npz", X=np.ones((2, 2)))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    refused(tmp_path / "a.npz", "must be an archive of arrays, got one array")
    refused(tmp_path / "b.npy", "must be one array, got an archive of arrays")
    csv_file(tmp_path / "c.npz", "a,b\n1,2\n")
    csv_file(tmp_path / "c.parquet", "a,b\n1,2\n")
    for suffix in ("npz", "parquet"):
        refused(tmp_path / f"c.{suffix}", f"c.{suffix} must be a readable", error=DataUnavailable)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz", "npy"])
def test_files_that_are_not_there(suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    refused(path, f"a.{suffix} must be .*no such file", error=DataUnavailable)
    path.touch()
    refused(path, f"a.{suffix} must hold a table, got an empty file")
    path.unlink()
    path.mkdir()
    refused(path, f"a.{suffix} must be a readable file", error=DataUnavailable)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.txt.gz", "csv"])
def test_unknown_suffix(name, tmp_path):
    suffix = (tmp_path / name).suffix
    known = ".csv, .csv.gz, .tsv, .tsv.gz, .parquet, .arrow, .feather, .xlsx, .npz, .npy"
    message = f"must end in {known}; got suffix '{suffix}'"
    refused(tmp_path / name, message)


def test_csv_that_is_no_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n\xff\xfe,2\n")
    refused(tmp_path / "a.csv", "column 'a' must be numeric, got something else in row 1")
    csv_file(tmp_path / "b.csv", 'a,b\n"1,2\n')
    refused(tmp_path / "b.csv", "row 1 must have 2 cells")


def content_of(suffix):
    X = np.random.default_rng(0).normal(size=(7, 3))
    stream = io.BytesIO()
    if suffix == "npy":
        np.save(stream, X)
    elif suffix == "npz":
        np.savez_compressed(stream, X=X, sites=np.arange(7))
    elif suffix == "parquet":
        pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "sites": range(7)}), stream)
    return stream.getvalue()


@pytest.mark.parametrize("suffix", ["parquet", "npz", "npy"])
def test_every_truncation_is_refused(suffix, tmp_path):
    content = content_of(suffix)
    path = tmp_path / f"a.{suffix}"
    for length in range(1, len(content), max(1, len(content) // 40)):
        path.write_bytes(content[:length])
        refused(path, f"a.{suffix} must ", error=DataUnavailable)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
@reuse_folder
@given(data=st.data())
def test_a_damaged_array_never_raises_anything_else(suffix, tmp_path, data):
    content = bytearray(content_of(suffix))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    table, message = table_or_message(path)
    assert "\n" not in message
    assert table is None or np.isfinite(table.X).all()


@reuse_folder
@given(text=st.text('a1.,"\n é-', max_size=60))
def test_any_text_is_a_table_or_refused(text, tmp_path):
    table, message = table_or_message(csv_file(tmp_path / "a.csv", text))
    assert "\n" not in message
    if table is not None:
        assert table.X.shape == (len(table.X), len(table.feature_names))
        assert np.isfinite(table.X).all()
