"""`dpfedc schema`: say what the columns of tables are, and see whether the tables are so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import print_path, print_reports, print_sentence
from dpfedc.cli.input_records import Tables
from dpfedc.cli.options import (
    DatabaseTable,
    Decimals,
    Delimiters,
    Encodings,
    Files,
    OrderBy,
    PasswordEnv,
    flag_option,
)

schema = typer.Typer(
    name="schema",
    help="Say what the columns of tables are: ranges, categories, persons, gaps.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@schema.command()
def draft(
    files: Files,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the schema goes.")
    ] = Path("schema.toml"),
    delimiter: Delimiters = None,
    encoding: Encodings = None,
    decimal: Decimals = None,
    table: DatabaseTable = None,
    order_by: OrderBy = None,
    password_env: PasswordEnv = None,
) -> None:
    """Write a first schema from the names and types of the columns, for you to finish.

    Ranges are left open: they must come from public knowledge, not from the data. Values of
    categories are looked up in the tables, so look through them before you share the file.
    """
    options = locals()
    from dpfedc.errors import InvalidInput
    from dpfedc.tables.draft import drafted
    from dpfedc.whole_files import write_whole

    given = Tables.of(options)
    if output.exists():
        raise InvalidInput(f"{output} must be a new file, got one that is there already")
    text = drafted(list(given.opened.values()))
    write_whole(output, text.encode())
    left = sum(line.startswith('range = "?"') for line in text.splitlines())
    print_path("Schema", output)
    if left:
        print_sentence(
            f'Left open: {left} of its ranges. Fill them in from public knowledge, or put "auto" '
            "to have them found out with part of the privacy budget."
        )
    print_sentence(
        "Lists of values were looked up in the data: look through them before you share the file."
    )


@schema.command()
def check(
    files: Files,
    schema: Annotated[Path, typer.Option(metavar="FILE", help="The schema, a TOML file.")] = Path(
        "schema.toml"
    ),
    delimiter: Delimiters = None,
    encoding: Encodings = None,
    decimal: Decimals = None,
    table: DatabaseTable = None,
    order_by: OrderBy = None,
    password_env: PasswordEnv = None,
    quiet: Annotated[bool, flag_option("--quiet", "Print problems only.")] = False,
) -> None:
    """Read tables by a schema and print all that is worth a look, for all of them at once.

    It counts and names rows and columns, and prints no value of any cell. Nothing is written.
    """
    options = locals()
    from dpfedc.errors import InvalidInput
    from dpfedc.tables.check import checked_tables
    from dpfedc.tables.schema import Schema

    given = Tables.of(options)
    described = Schema.read(schema)
    if len(files) > 1:
        described = described.for_site()
    reports = checked_tables(list(given.opened.values()), described)
    print_reports(reports, quiet=quiet)
    bad = [report.where for report in reports if not report.ok]
    if bad:
        raise InvalidInput(f"{', '.join(bad)} cannot be used; the table above says why")
    unit = described.unit
    total = sum(report.n_records for report in reports)
    print_sentence(
        f"{total:,} {unit}s in {len(reports)} tables, {len(described.features)} features. "
        f"Fingerprint of the schema: {described.fingerprint[:12]}."
    )
