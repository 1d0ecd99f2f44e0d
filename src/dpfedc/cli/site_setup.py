"""`dpfedc site init` and `dpfedc site check`: what a site is, and what is in its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedc.cli.console import confirmed, print_path, print_reports, print_sentence
from dpfedc.cli.lifetime_cap import CapDelta, CapEpsilon, CapKind, KindOfCap, chosen_cap
from dpfedc.cli.options import (
    DatabaseTable,
    Decimal,
    Delimiter,
    Drop,
    Encoding,
    OrderBy,
    PasswordEnv,
    PersonColumn,
    SchemaFile,
    flag_option,
)

if TYPE_CHECKING:
    from dpfedc.tables.check import Report
    from dpfedc.tables.persons import DeclaredPersons
    from dpfedc.tables.schema import Schema
    from dpfedc.tables.sources import DataSource

SiteFolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")]


def init(
    folder: SiteFolderArgument,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the site is called.")],
    server: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the server is. Over NATS: nats://HOST:PORT, with all nodes of a cluster "
            "(nats://HOST:PORT,HOST:PORT,HOST:PORT).",
            show_default=False,
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE|URL",
            help="The table: a .csv, .tsv (both also .gz), .parquet, .arrow, .feather, .npz or "
            ".npy file, or a database URL.",
            show_default=False,
        ),
    ],
    cap_epsilon: CapEpsilon,
    cap_delta: CapDelta,
    ca: Annotated[
        Path, typer.Option(metavar="FILE", help="The server's ca.crt.", show_default=False)
    ],
    proxy_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The authority of a proxy that opens TLS on the way to the server. --server then "
            "names the server's port for signed calls.",
            show_default="there is none",
        ),
    ] = None,
    cap_kind: KindOfCap = CapKind.GAUSSIAN,
    holding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the lifetime cap is for: the people or things the records are about.",
            show_default="--name",
        ),
    ] = None,
    schema: SchemaFile = None,
    person_column: PersonColumn = None,
    drop: Drop = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    table: DatabaseTable = None,
    table_schema: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The database's schema that the table is in.",
            show_default="the database's default",
            rich_help_panel="How tables are read",
        ),
    ] = None,
    order_by: OrderBy = None,
    password_env: PasswordEnv = None,
    yes: Annotated[
        bool,
        flag_option(
            "--yes",
            "Without a --schema, do not ask: columns without numbers are not read, and a row with "
            "a gap is null.",
        ),
    ] = False,
) -> None:
    """Make the folder of a new site: a key, a ledger with a lifetime cap, and where records are.

    Reads the records once and says what is in them; nothing is sent. Then send site.pub to the
    server's operator.
    """
    from dpfedc.deployment.site_folder import SiteFolder, require_authorities, require_readable
    from dpfedc.errors import InvalidInput
    from dpfedc.tables.schema import Schema
    from dpfedc.tables.sources import DataSource

    require_authorities(ca, proxy_ca)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} must be a new or empty folder, got one with content")
    given: dict[str, Any] = {
        "table": table,
        "table_schema": table_schema,
        "order_by": order_by,
        "drop": drop or None,
        "person": person_column if schema is None else None,
        "password_env": password_env,
        "delimiter": delimiter,
        "encoding": encoding,
        "decimal": decimal,
    }
    settings = {**_place(data), **{key: value for key, value in given.items() if value is not None}}
    require_readable(settings)
    described = None if schema is None else Schema.read(schema).for_site()
    if described is not None and person_column not in (None, described.person):
        raise InvalidInput(
            f"--person-column must be the schema's, {described.person!r}, got {person_column!r}"
        )
    source = DataSource.of(settings, folder=folder.resolve())
    report = source.check(described)
    print_reports([report])
    if not report.ok:
        raise InvalidInput(f"{data} cannot be used; the table above says why")
    if described is None and not yes:
        _ask(data, report)
    persons = _declared(source, described)
    made = SiteFolder.create(
        folder,
        name=name,
        server=server,
        authority=ca,
        proxy_authority=proxy_ca,
        data=settings,
        records=report.n_records,
        cap=chosen_cap(cap_kind, cap_epsilon, cap_delta),
        holding=holding or name,
        schema=schema,
        persons=persons,
    )
    unit = "records" if persons is None else "persons"
    print_sentence(
        f"{name} will declare {report.n_records:,} {unit}, which everyone in the federation learns."
    )
    if persons is None:
        print_sentence(
            "The lifetime cap, and what runs promise, are for one record: a row of the table. If "
            "somebody can have several rows, that protects each of them and not the person: name "
            "the column of the persons (--person-column, or person in a --schema)."
        )
    public = made.path / "site.pub"
    print_path("Send to the server's operator", public)
    print_sentence(f"Its fingerprint: {_fingerprint(public)}")


def _ask(data: str, report: Report) -> None:
    """Have the operator say that a table is meant as it stands, where nobody wrote a schema.

    Content may be looked at here, and nowhere later: a site that refused for what is in its table
    would tell the server of it.
    """
    from dpfedc.errors import InvalidInput
    from dpfedc.tables.stored import listed

    doubts = []
    if report.unread:
        doubts.append(f"columns that are no numbers ({listed(report.unread)})")
    if report.n_gapped:
        doubts.append("a row with a gap" if report.n_gapped == 1 else "rows with gaps")
    if not doubts:
        return
    found = " and ".join(doubts)
    print_sentence(
        f"Without a --schema all columns must be numbers, without gaps. There are {found}. Such "
        "columns would not be read, and such rows be null for good."
    )
    if not confirmed("Take the table as it stands?"):
        raise InvalidInput(
            f"{data} must have numbers without gaps only, or a --schema, got {found}: --drop "
            "columns, write a --schema (dpfedc schema draft), or say --yes"
        )


def rotate_key(folder: SiteFolderArgument) -> None:
    """Make a new key for the site. Its ledger and its runs stay.

    The old key stays in use until the server's operator has enrolled the new site.pub.
    """
    from dpfedc.deployment.site_folder import SiteFolder

    opened = SiteFolder.open(folder)
    public = opened.rotate_key()
    print_path("Send to the server's operator", public)
    print_sentence(f"Its fingerprint: {_fingerprint(public)}")
    print_sentence("The site takes it into use by itself once it is enrolled.")
    print_sentence(
        "For sums in secret, send it to the operators of the other sites, too: "
        f"dpfedc site peers FOLDER --forget {opened.name} --pin site.pub"
    )


def check(
    folder: SiteFolderArgument,
    declare: Annotated[
        bool, flag_option("--declare", "Declare the rows or persons found, from the next run on.")
    ] = False,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --declare: take this schema from the next run on.",
            show_default="the one that the site has",
        ),
    ] = None,
) -> None:
    """Read the records and say what is in them. Nothing is sent."""
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.errors import InvalidInput
    from dpfedc.privacy.ledger import Ledger
    from dpfedc.tables.schema import Schema

    if schema is not None and not declare:
        raise InvalidInput("--schema needs --declare, as the slots may be others then")
    opened = SiteFolder.open(folder)
    described = opened.schema if schema is None else Schema.read(schema).for_site()
    report = opened.source.check(described)
    print_reports([report])
    if not report.ok:
        raise InvalidInput(f"{opened.source.where} cannot be used; the table above says why")
    if declare:
        persons = _declared(opened.source, described)
        opened = opened.declaring(report.n_records, persons, schema)
        with Ledger.open(opened.ledger) as ledger:
            if ledger.unit != opened.unit:
                print_sentence(
                    f"Its ledger is for unit {ledger.unit}, its slots are {opened.unit}s now. "
                    "Before it takes part: dpfedc ledger change-unit"
                )
    unit = "records" if opened.persons is None else "persons"
    if not declare and opened.records != report.n_records:
        found = f"{opened.name} declares {opened.records:,} {unit}, and there are "
        if opened.persons is None:
            raise InvalidInput(f"{found}{report.n_records:,}; use --declare, or take rows off")
        print_sentence(f"{found}{report.n_records:,}. Who is not declared is left out: --declare.")
    print_sentence(f"{opened.name} declares {opened.records:,} {unit}.")


def _fingerprint(public: Path) -> str:
    from dpfedc.deployment.keys import fingerprint, read_certificate

    return fingerprint(read_certificate(public.read_bytes()))


def _declared(source: DataSource, schema: Schema | None) -> DeclaredPersons | None:
    """Return the persons of the table, who become the site's slots."""
    from dpfedc.tables.encode import encoded_table
    from dpfedc.tables.persons import DeclaredPersons
    from dpfedc.tables.schema import Schema

    person = source.person if schema is None else schema.person
    if person is None:
        return None
    ids = encoded_table(source.opened(), Schema((), person=person)).ids
    return DeclaredPersons.of(ids or ())


def _place(data: str) -> dict[str, str]:
    """Return where the records are, wherever the site is started later."""
    if "://" not in data:
        return {"path": str(Path(data).resolve())}
    start, _, file = data.partition("sqlite:///")
    if not start and file:
        return {"url": f"sqlite:///{Path(file).resolve()}"}
    return {"url": data}
