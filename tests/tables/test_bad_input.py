"""Tables and schemas that cannot be meant, by the command line: one line, and nothing written."""

import gzip
import sys

import pytest

from support.command_line import write_csv
from support.site_services import authority_in

AGE = '[[column]]\nname = "age"\nkind = "number"\nrange = [0, 110]\n'
LAB = '[[column]]\nname = "lab"\nkind = "number"\nrange = [0, 9]\n'
SEX = '[[column]]\nname = "sex"\nkind = "category"\nvalues = ["F", "M"]\n'
HEAD = ["who", "at", "age", "sex"]
ROWS = [[f"qx{i // 2}", "uv"[i % 4 // 2], 40.625 + i % 7, "FM"[i % 2]] for i in range(24)]
SECRETS = ("qx", "40.6", "zqword", "73519")
"""Parts of cells of the tables below, which no message may hold."""


def with_cell(row, column, cell):
    """Return the rows, one cell of which (rows count from 1) is another."""
    changed = [list(cells) for cells in ROWS]
    changed[row - 1][column] = cell
    return changed


def ranged(text):
    return AGE.replace("range = [0, 110]\n", text)


SCHEMAS = {
    "a column that nobody has": (AGE + LAB, ROWS, "column 'lab' of the schema must be in a file"),
    "a range reversed": (ranged("range = [110, 0]\n"), ROWS, "range must have its lower end first"),
    "a range missing": (ranged(""), ROWS, "range must be [least, largest] or 'auto', got None"),
    "a range left open": (ranged('range = "?"\n'), ROWS, "range must be filled in"),
    "a range of NaN": (ranged("range = [0, nan]\n"), ROWS, "column 'age': range must be a number"),
    "no values": (SEX.replace('"F", "M"', ""), ROWS, "values must be a list of 1 to 1,000 values"),
    "a value twice": (SEX.replace('"M"', '"F"'), ROWS, "values must differ", "got 'F' twice"),
    "no person column": ('person = "gone"\n' + AGE, ROWS, "must have column 'gone'"),
    "a person without an id": (
        'person = "who"\n' + AGE, with_cell(17, 0, ""), "row 17 has no 'who'", "fill it in",
    ),
    "a person called NA": ('person = "who"\n' + AGE, with_cell(3, 0, "NA"), "row 3 has no 'who'"),
    "no site column": ('site = "gone"\n' + AGE, ROWS, "must have column 'gone'"),
    "a row without a site": (
        'site = "at"\n' + AGE, with_cell(5, 1, ""), "row 5 has no 'at'", "fill it in",
    ),
    "all rows null": (
        AGE, [[w, at, "zqword", s] for w, at, _, s in ROWS], "must have a value in a column",
    ),
    "a site below 2 persons": (
        'person = "who"\nsite = "at"\n' + AGE, [*ROWS, ["qx99", "w", 1, "F"]],
        "at least 2 persons at every site, got 1 at the site of row 25",
    ),
    "one person in all": ('person = "who"\n' + AGE, ROWS[:2], "at least 2 persons, got 1"),
    "no TOML": ("[[column", ROWS, "s.toml must be a schema in TOML"),
}  # fmt: skip


def assert_refused(result, fragments):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("dpfedc: error: ")
    assert err.count("\n") == 1
    for fragment in fragments:
        assert fragment in err
    assert not any(secret in err for secret in SECRETS)


@pytest.fixture
def refused(dpfedc, tmp_path):
    """Return a function that fits and checks that it is refused, and nothing written."""

    def run(*words, fragments):
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        result = dpfedc("fit", *words, "--clusters", 2, "--output", tmp_path / "r")
        assert_refused(result, fragments)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    return run


@pytest.mark.parametrize("case", SCHEMAS)
def test_schemas_and_tables_that_do_not_fit(refused, tmp_path, case):
    schema, rows, *fragments = SCHEMAS[case]
    (tmp_path / "s.toml").write_text(schema)
    table = write_csv(tmp_path / "t.csv", HEAD, rows)
    refused(table, "--schema", tmp_path / "s.toml", fragments=fragments)


def test_a_file_below_2_persons(refused, tmp_path):
    (tmp_path / "s.toml").write_text('person = "who"\n' + AGE)
    large = write_csv(tmp_path / "large.csv", HEAD, ROWS)
    small = write_csv(tmp_path / "small.csv", HEAD, ROWS[:2])
    fragments = ["small.csv must have at least 2 persons, got 1"]
    refused(large, small, "--schema", tmp_path / "s.toml", fragments=fragments)


WITHOUT_SCHEMA = {
    "ids": ("age,patient_id\n", "{i},{id}\n", "", (), "column 'patient_id' looks like ids or codes",
            "--drop patient_id", "--keep patient_id"),
    "ids by what they are": ("age,x\n", "{i},{id}\n", "", (), "column 'x' looks like ids or codes"),
    "text": ("age,b\n", "{i},1\n", "1,zqword\n", (), "'b' must be numeric", "in row 201", "schema"),
    "a gap": ("age,b\n", "{i},1\n", "1,\n", (), "column 'b', row 201", "with a schema gaps are"),
    "no person column": ("age,b\n", "{i},1\n", "", ("--person-column", "gone"),
                         "must have column 'gone'"),
    "a person without an id": ("age,who\n", "{i},qx{i}\n", "1,\n", ("--person-column", "who"),
                               "'who' must have an id in every row", "the first in row 201"),
    "two delimiters": ("age;x,b\n", "{i};1,5\n", "", (), "got several: give the delimiter"),
    "a decimal comma": ("age;b\n", "{i};73519,5\n", "", (), "'b' must be numeric", "in row 1"),
    "a comma for both": ("age,b\n", "{i},1\n", "", ("--decimal", ","),
                         "delimiter and decimal must differ"),
    "a lone quote": ("age,b\n", "{i},1\n", '"zqword,1\n', (), "row 201 must have 2 cells"),
    "no header": ("73519,2\n", "{i},1\n", "", (), "must start with a row of column names"),
}  # fmt: skip


@pytest.mark.parametrize("case", WITHOUT_SCHEMA)
def test_tables_without_a_schema(refused, tmp_path, case):
    head, row, tail, words, *fragments = WITHOUT_SCHEMA[case]
    rows = "".join(row.format(i=i % 9, id=73_000 + i) for i in range(200))
    (tmp_path / "t.csv").write_text(head + rows + tail)
    refused(tmp_path / "t.csv", *words, fragments=["t.csv", *fragments])


def test_a_truncated_archive(refused, tmp_path):
    content = gzip.compress(b"age,b\n" + b"".join(b"%d,73519\n" % i for i in range(5000)))
    (tmp_path / "t.csv.gz").write_bytes(content[: len(content) // 2])
    refused(tmp_path / "t.csv.gz", fragments=["t.csv.gz must be a readable file"])


def test_a_workbook_without_its_reader(refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    fragments = ["t.xlsx needs python-calamine: pip install 'dpfedc[tables]'"]
    refused(tmp_path / "t.xlsx", fragments=fragments)


def test_options_that_are_not_for_a_schema(refused, tmp_path):
    (tmp_path / "s.toml").write_text(AGE)
    table = write_csv(tmp_path / "t.csv", HEAD, ROWS)
    for option in ("--drop", "--keep"):
        words = ("--schema", tmp_path / "s.toml", option, "sex")
        refused(table, *words, fragments=["--drop and --keep are not for a schema"])
    refused(table, "--schema", tmp_path / "none.toml", fragments=["none.toml must be a schema"])


# --- `dpfedc schema` and a site's first check say why above the line


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
@pytest.mark.parametrize(
    ("schema", "rows", "words"),
    [
        (AGE + LAB, ROWS, "no file has this column"),
        ('person = "who"\n' + AGE, with_cell(17, 0, ""), "first: row 17"),
        ('person = "who"\n' + AGE, ROWS[:2], "at least 2 persons, got 1"),
        ('person = "gone"\n' + AGE, ROWS, "there must be this column"),
        (AGE, [[w, at, "zqword", s] for w, at, _, s in ROWS], "all rows are null"),
    ],
)
def test_a_check_that_finds_an_error(dpfedc, tmp_path, schema, rows, words, quiet):
    (tmp_path / "s.toml").write_text(schema)
    table = write_csv(tmp_path / "t.csv", HEAD, rows)
    code, out, err = dpfedc("schema", "check", table, "--schema", tmp_path / "s.toml", *quiet)
    assert code == 2
    assert err == f"dpfedc: error: {table} cannot be used; the table above says why\n"
    assert words in " ".join(out.split())
    assert not any(secret in out for secret in SECRETS)
    assert {path.name for path in tmp_path.iterdir()} == {"s.toml", "t.csv"}


def test_a_draft_is_refused_until_it_is_filled_in(dpfedc, refused, tmp_path):
    table = write_csv(tmp_path / "t.csv", ["patient_id", *HEAD[1:]], ROWS)
    path = tmp_path / "s.toml"
    assert dpfedc("schema", "draft", table, "-o", path)[::2] == (0, "")
    refused(table, "--schema", path, fragments=["column 'age': range must be filled in"])
    assert dpfedc("schema", "draft", table, "-o", path)[0] == 2  # it is never replaced
    path.write_text(path.read_text().replace('"?"', "[0, 110]"))
    assert dpfedc("schema", "check", table, "--schema", path)[::2] == (0, "")


def test_a_site_whose_table_cannot_be_used(dpfedc, tmp_path):
    table = write_csv(
        tmp_path / "t.csv", ["age", "patient_id"], [[i % 9, 73_519 + i] for i in range(9)]
    )
    folder = tmp_path / "site"
    words = ("--name", "u", "--server", "127.0.0.1:1", "--ca", authority_in(tmp_path),
             "--cap-epsilon", 1)  # fmt: skip
    init = ("site", "init", folder, *words, "--cap-delta", 1e-5, "--data", table)
    code, out, err = dpfedc(*init)
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be used" in err
    assert "looks like ids or codes" in " ".join(out.split())
    assert "73519" not in out
    assert not folder.exists()
    assert dpfedc(*init, "--person-column", "gone")[0] == 2
    assert not folder.exists()
