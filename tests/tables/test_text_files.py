"""Text files: a line is a row, and the fast way reads every cell as the slow way does."""

import gzip
import io
import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.tables import text_files
from dpfedc.tables.arrow_lines import ArrowLines
from dpfedc.tables.formats import file_table
from dpfedc.tables.sources import DataSource
from dpfedc.tables.text_files import Dialect, Lines, whole_lines
from dpfedc.tables.trial_tables import read_tables

reuse_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def cells_of(block):
    """Return a block as plain values: numbers, texts by row, and which rows are broken."""
    texts = [[None if c < 0 else t.distinct[c] for c in t.codes.tolist()] for t in block.texts]
    numbers = [[None if math.isnan(x) else repr(x) for x in row] for row in block.numbers.tolist()]
    return numbers, texts, block.broken.tolist()


def both_ways(path, numbers, texts, monkeypatch, dialect=Dialect()):  # noqa: B008
    """Return the cells of a file, after having read it with and without pyarrow."""
    fast = cells_of(file_table(path, dialect).whole(numbers, texts))
    with monkeypatch.context() as patch:
        patch.setattr(text_files, "_fast", lambda *_: None)
        assert cells_of(file_table(path, dialect).whole(numbers, texts)) == fast
    return fast


def written(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- the fast way and the slow way

NASTY = [
    *(bytes([b]) for b in b'01.,;\t|"+-eE_ \n\n\n\r\0x\x1f\x85\xa0\xff'), b"\r\n", b"inf", b"NaN",
    b"nan(1)", b"NA", b" na ", b"None", b"1e999", b"-1e-999", b"0x1p3", b'""', b'"a"', b"1,5",
    "é".encode(), "٣".encode(), "\u00a0".encode(), "\u2028".encode(), "\ufeff".encode(),
    b"\xe2\x82", b"\xed\xa0\x80",
]  # fmt: skip
SPELLED = [
    b"1", b"-2.5", b"+3", b" 4 ", b"1_000", b"\t5", b"infinity", b"-Inf", b"nan", b"+nan", b"nan()",
    b"0x10", b"1e400", b"4.9e-324", b"2.5e-324", b"9007199254740993", b"0.1e1", b".5", b"5.", b".",
    b"1e", b"1d5", b"1f", b"", b"  ", b"NULL", b"n/a", b"true", b"+-1", b"--1", b"\xc2\xa07",
    b"1\xe2\x80\xa8", b"\xff", b'"6"', b'" 7 "', b'""', b'8"', b'"9', b'"a""b"', b"1.5", b"1;5",
    b"1" * 400, b"0." + b"3" * 800, b"2.2250738585072011e-308", "٣".encode(), b"\xef\xbb\xbf1",
]  # fmt: skip


def ways_agree(data, lines):
    """Check that whatever the fast way takes, it reads as the slow way does."""
    fast = ArrowLines(lines, 2**20)
    for _ in range(2):  # the second time it knows which columns hold words
        block = fast.block(data)
        if block is not None:
            assert cells_of(block) == cells_of(lines.block(data))
    return block is not None


@settings(max_examples=400)
@given(
    parts=st.lists(st.sampled_from(NASTY), max_size=30),
    n_columns=st.integers(1, 3),
    delimiter=st.sampled_from(",;\t|\x1f "),
    decimal=st.sampled_from(".,"),
)
@example([b"1", b"\n", b"\n"], 1, ",", ".")
@example([b"\xef", b"\xbb", b"\xbf", b"1,2\n"], 2, ",", ".")
def test_nasty_bytes_are_read_alike(parts, n_columns, delimiter, decimal):
    columns = tuple(range(n_columns))
    for numbers, texts in ((columns, ()), (columns[:1], columns[1:]), (columns, columns), ((), ())):
        lines = Lines(n_columns, delimiter, decimal, numbers, texts)
        ways_agree(b"".join(parts) + b"\n", lines)


@settings(max_examples=400)
@given(
    cells=st.lists(st.tuples(*[st.sampled_from(SPELLED)] * 2), min_size=1, max_size=6),
    decimal=st.sampled_from(".,"),
    point=st.sampled_from([b".", b","]),
)
@example([(b"1.5", b"2.5")], ",", b".")
def test_spellings_of_numbers_are_read_alike(cells, decimal, point):
    data = b"".join(b";".join(row) + b"\n" for row in cells).replace(b".", point)
    ways_agree(data, Lines(2, ";", decimal, (0, 1), ()))
    ways_agree(data, Lines(2, ";", decimal, (1,), (0, 1)))


@pytest.mark.parametrize("cell", SPELLED)
def test_each_spelling_by_itself(cell):
    ways_agree(cell + b"\t1\n", Lines(2, "\t", ".", (0, 1), ()))


def test_numbers_are_rounded_alike(rng):
    """Digits that lie next to the middle between two floats, and random ones."""
    halfway = [
        f"{base}{tail}"
        for base in ("9007199254740993", "1.00000000000000011102230246251565404236316680908203125")
        for tail in ("", "0", "1")
    ]
    texts = [repr(x) for x in rng.integers(0, 2**63, 5000).view(np.float64).tolist()]
    texts += [f"{a}.{b}e{e}" for a, b, e in rng.integers(0, 300, (5000, 3)).tolist()]
    data = "".join(f"{cell}\n" for cell in (*halfway, *texts)).encode()
    assert ways_agree(data, Lines(1, ",", ".", (0,), ()))


def test_what_the_fast_way_takes():
    """It would be of no use if it took nothing: plain, quoted, worded and empty cells."""
    plain = b"1,a\n2.5,\n,c\r\nNA,d\n"
    quoted = b'1,"a, b"\n"2",""\n,"c"\r\n'
    for data, taken in (
        (plain, True), (quoted, True), (b"x,1\n", True), (b"\xff,1\n", True),
        (b'1,"a\n2,b"\n', False), (b"1,a\n\n", False), (b"1,a\r2,b\n", False), (b"1\n", False),
        (b"1,a\r\n\r\n", False),
        (b'1,a"b"\n', False), (b"1,a\0\n", False), (b"1,2,3\n", False), (b'1,"a""b"\n', False),
    ):  # fmt: skip
        assert ways_agree(data, Lines(2, ",", ".", (0,), (1,))) == taken, data


def test_one_bad_line_leaves_the_rest_to_the_fast_way(tmp_path, monkeypatch):
    rows = [f"{i},{i % 7}" for i in range(20_000)]
    rows[11_111] = '"lone'
    path = written(tmp_path, "\n".join(["a,b", *rows]))
    slow = []
    line_way = Lines.block
    monkeypatch.setattr(Lines, "block", lambda *a: slow.append(line_way(*a)) or slow[-1])
    block = file_table(path).whole(["a"], ["b"])
    assert np.flatnonzero(block.broken).tolist() == [11_111]
    assert np.array_equal(
        np.delete(block.numbers[:, 0], 11_111), np.delete(np.arange(20_000), 11_111)
    )
    assert 0 < sum(part.n_rows for part in slow) <= 256


@reuse_folder
@given(
    rows=st.lists(st.lists(st.sampled_from([*NASTY, *SPELLED]), max_size=5), max_size=12),
    size=st.integers(1, 40),
    limit=st.integers(3, 30),
)
def test_it_does_not_matter_how_a_file_is_cut(rows, size, limit):
    content = b"\n".join(b"".join(row).replace(b"\n", b"") for row in rows)
    expected = content.split(b"\n")[: -1 if content.endswith(b"\n") or not content else None]
    expected = [line if len(line) <= limit else b"" for line in expected]
    for stream in (io.BytesIO(content), io.BytesIO(content + b"\n")):
        blocks = list(whole_lines(stream, limit, size))
        if stream.getvalue().endswith(b"\n") and content and not content.endswith(b"\n"):
            assert b"".join(blocks).split(b"\n")[:-1] == expected
        assert all(block.endswith(b"\n") for block in blocks)
    lines = b"".join(whole_lines(io.BytesIO(content), limit, size))
    assert lines.split(b"\n")[:-1] == expected


# --- hostile files, read in a trial and at a site

WIDE = 100_000
HOSTILE = {
    "lone quotes": b'a,b\n1,2\n3,"4\n5,6"\n7,8\n"9,10\n11,12\n',
    "carriage returns": b"a,b\n1,2\n3\r,4\n5,6\r\n\r7,8\n9,10\r\r\n",
    "nul": b"a,b\n1,2\n\0,3\n4\0,5\n6,7\n",
    "bom": b"\xef\xbb\xbfa,b\r\n1,2\r\n\xef\xbb\xbf3,4\r\n",
    "wide": (
        ",".join(f"c{j}" for j in range(WIDE - 2)) + ",a,b\n" + ("1," * (WIDE - 2) + "5,6\n") * 3
    ).encode(),
    "a large cell": b"a,b\n1,2\n3," + b"4" * 20_000_000 + b"\n5,6\n",
    "latin-1": "a,b\nä,2\n3,é\n5,6\n".encode("latin-1"),
    "mixed newlines": b"a,b\r\n1,2\n3,4\r\n5,6\r7,8\n9,10",
    "blank tail": b"a,b\n1,2\n\n3,4\n \n\n\n",
    "ragged": b"a,b\n1\n1,2\n1,2,3\n,\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_have_the_same_slots_everywhere(tmp_path, monkeypatch, name):
    content = HOSTILE[name]
    path = written(tmp_path, content)
    n_lines = content.count(b"\n") - content.endswith(b"\n")
    numbers, texts, broken = both_ways(path, ["b", "a"], ["a", "b"], monkeypatch)
    assert len(numbers) == len(texts[0]) == len(broken) == n_lines
    records = DataSource(path).load(["b", "a"])
    assert len(records.X) == n_lines
    assert [None not in row for row in numbers] == records.present.tolist()
    drop = [f"c{j}" for j in range(WIDE - 2)] if name == "wide" else []
    if records.present.all():
        assert read_tables(path, drop=drop).X[:, ::-1].tolist() == records.X.tolist()
    else:  # what a site has as a null row is refused in a trial
        with pytest.raises(InvalidInput, match=r"row|finite"):
            read_tables(path, drop=drop)


def test_a_duplicate_header_is_refused_everywhere(tmp_path):
    path = written(tmp_path, b"a,b,a\n1,2,3\n")
    for read in (read_tables, lambda p: DataSource(p).load(["a"])):
        with pytest.raises(InvalidInput, match="column names must differ, got twice 'a'"):
            read(path)


def test_a_large_cell_takes_no_memory(tmp_path):
    """A line beyond the limit is not kept while it is read, with or without pyarrow."""
    path = written(tmp_path, HOSTILE["a large cell"])
    tracemalloc.start()
    try:
        block = file_table(path).whole(["a"], ["b"])
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    assert block.broken.tolist() == [False, True, False]


def test_how_long_a_line_may_be(tmp_path, monkeypatch):
    """The limit is for all of the line, and the same however it is read."""
    limit = 2**20
    for n, broken in ((limit - 2, False), (limit - 1, True)):
        path = written(tmp_path, b"a,b\n1," + b"x" * n + b"\n2,y\n")
        found = both_ways(path, ["a"], ["b"], monkeypatch)
        assert found[2] == [broken, False]
        assert found[0][0] == [None if broken else "1.0"]


def test_how_long_a_quoted_cell_may_be(tmp_path, monkeypatch):
    """Python's parser has a limit for cells, which the fast way must not pass."""
    rows = [f'{i},"{"x" * n}"\n'.encode() for i, n in enumerate([200_000, 100_000, 1])]
    path = written(tmp_path, b"a,b\n" + b"".join(rows))
    assert both_ways(path, ["a"], ["b"], monkeypatch)[2] == [True, False, False]


def test_lines_across_pyarrows_own_blocks(tmp_path, monkeypatch):
    """Long lines and short ones, in a file of several blocks."""
    sizes = itertools.cycle([1, 900_000, 10, 400_000, 1_000_000, 3])
    rows = [f"{i}," + "x" * next(sizes) for i in range(40)]
    path = written(tmp_path, "\n".join(["a,b", *rows]))
    numbers, texts, broken = both_ways(path, ["a"], ["b"], monkeypatch)
    assert [row[0] for row in numbers] == [repr(float(i)) for i in range(40)]
    assert [len(t) for t in texts[0]] == [len(row.split(",")[1]) for row in rows]
    assert not any(broken)


# --- how files are written


@pytest.mark.parametrize(
    ("header", "row"),
    [("a,b", "1,2"), ("a;b", "1;2"), ("a\tb", "1\t2"), ("a|b", "1|2"), ('"a;x",b', "1,2")],
)
def test_the_header_tells_the_delimiter(tmp_path, header, row):
    table = file_table(written(tmp_path, f"{header}\n{row}\n"))
    assert table.whole(list(table.columns)).numbers.tolist() == [[1, 2]]


def test_delimiters_that_are_given(tmp_path):
    path = written(tmp_path, "a;x,b\n1,2\n")
    with pytest.raises(InvalidInput, match=r"t\.csv must have one of , ; tab \|.*--delimiter"):
        file_table(path)
    assert list(file_table(path, Dialect(delimiter=",")).columns) == ["a;x", "b"]
    tabs = written(tmp_path, "a,x\tb\n1\t2\n", "t.tsv")
    assert list(file_table(tabs).columns) == ["a,x", "b"]
    assert list(file_table(tabs, Dialect(delimiter="tab")).columns) == ["a,x", "b"]
    with pytest.raises(InvalidInput, match=r"t\.tsv must be separated by tabs, got ';'"):
        file_table(tabs, Dialect(delimiter=";"))


def test_one_column(tmp_path, monkeypatch):
    path = written(tmp_path, 'a\n1\n2,5\n\n"x"\n4\n')
    numbers, texts, broken = both_ways(path, ["a"], ["a"], monkeypatch)
    assert numbers == [["1.0"], [None], [None], [None], ["4.0"]]
    assert texts == [["1", "2,5", None, "x", "4"]]
    assert broken == [False, False, True, False, False]
    comma = both_ways(path, ["a"], [], monkeypatch, Dialect(decimal=","))
    assert comma[0][1] == ["2.5"]


def test_a_comma_in_numbers(tmp_path, monkeypatch):
    path = written(tmp_path, "a;b\n1,5;x\n-2,5e3;y\n1.5;z\n1.000,5;w\n7;v\n")
    numbers, _, _ = both_ways(path, ["a"], ["b"], monkeypatch, Dialect(decimal=","))
    assert numbers == [["1.5"], ["-2500.0"], [None], [None], ["7.0"]]
    with pytest.raises(InvalidInput, match="delimiter and decimal must differ"):
        file_table(written(tmp_path, "a,b\n1,2\n"), Dialect(decimal=","))


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "gbk", "shift_jis"]
)
def test_encodings(tmp_path, monkeypatch, encoding):
    word = {"gbk": "男性", "shift_jis": "表ソ"}.get(encoding, "größe")
    path = written(tmp_path, f"n,{word}\n1,{word}\n2,x\n".encode(encoding) + b"3,\x81\n4,y\n")
    dialect = Dialect(encoding=encoding)
    numbers, texts, broken = both_ways(path, ["n"], [word], monkeypatch, dialect)
    assert [row[0] for row in numbers] == ["1.0", "2.0", "3.0", "4.0"]
    assert texts[0][:2] == [word, "x"]
    assert texts[0][3] == "y"
    assert not any(broken)


@pytest.mark.parametrize("encoding", ["gb18030", "euc_jp", "euc_kr", "utf-8"])
def test_no_line_changes_how_the_one_before_is_decoded(tmp_path, encoding):
    """Some decoders swallow a newline, or take more for broken where the data end."""
    for tail in (b"\x8e0", b"\x8f", b"\x8f0A", b"\x8e\x8f\x8f", b"\xa4\xd4A0", b"\xe2\x82"):
        texts = []
        for rest in (tail, tail + b"\n", tail + b"\n2,x\n"):
            path = written(tmp_path, b"a,b\n1," + rest)
            block = file_table(path, Dialect(encoding=encoding)).whole([], ["b"])
            texts.append(cells_of(block)[1][0])
        assert [len(column) for column in texts] == [1, 1, 2]
        assert len({column[0] for column in texts}) == 1


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"delimiter": ""}, "delimiter must be one character"),
        ({"delimiter": "::"}, "delimiter must be one character"),
        ({"delimiter": '"'}, "delimiter must be one character"),
        ({"delimiter": "é"}, "delimiter must be one character"),
        ({"delimiter": "x"}, "delimiter must be no letter"),
        ({"decimal": "'"}, "decimal must be"),
        ({"delimiter": ",", "decimal": ","}, "must differ"),
        *(({"encoding": e}, "encoding must be utf-8, latin-1") for e in (
            "utf-16", "utf-16-le", "utf-32", "utf-7", "cp037", "hex", "rot13", "nonsense",
            "unicode_escape", "iso2022_jp", "hz", "idna", "",
        )),
    ],
)  # fmt: skip
def test_dialects_that_are_refused(settings_, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        Dialect(**settings_)
    assert "\n" not in str(caught.value)


def test_utf_16_is_told(tmp_path):
    with pytest.raises(InvalidInput, match="got UTF-16"):
        file_table(written(tmp_path, "a,b\n1,2\n".encode("utf-16")))


@pytest.mark.parametrize("header", ["", " ,a", "1.5,2", "a,,b", "NA,1"])
def test_headers_that_are_refused_are_not_quoted(tmp_path, header):
    with pytest.raises(InvalidInput, match="must start with a row of column names") as caught:
        file_table(written(tmp_path, f"{header}\n3,4\n"))
    assert "1.5" not in str(caught.value)


def test_a_header_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_MAX_HEADER", 8)
    assert list(file_table(written(tmp_path, "a,b,cd\n1,2,3\n")).columns) == ["a", "b", "cd"]
    with pytest.raises(InvalidInput, match="must start with a row of column names"):
        file_table(written(tmp_path, "a,b,cdef\n1,2,3\n"))


def test_a_damaged_archive(tmp_path):
    content = gzip.compress(b"a,b\n" + b"1,2\n" * 100_000)
    for damaged in (
        content[:-9],
        content[:40],
        content[:60] + b"\0\0\0" + content[63:],
        b"a,b\n1,2",
    ):
        path = written(tmp_path, damaged, "t.csv.gz")
        with pytest.raises(DataUnavailable, match=r"t\.csv\.gz must be a readable file") as caught:
            file_table(path).whole(["a"])
        assert "\n" not in str(caught.value)
