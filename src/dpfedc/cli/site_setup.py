"""`dpfedc site init` and `dpfedc site check`: what a site is, and what is in its records."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedc.cli.console import print_path, print_sentence, print_table
from dpfedc.cli.options import flag_option, number_option

if TYPE_CHECKING:
    from dpfedc.tables.check import Report

_DATA = "Records"
SiteFolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")]


class CapKind(StrEnum):
    """The two kinds of lifetime cap."""

    GAUSSIAN = "gaussian"
    BASIC = "basic"


def init(
    folder: SiteFolderArgument,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the site is called.")],
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the server is.", show_default=False)
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE|URL",
            help="The records: a file (.csv, .tsv, .parquet, .arrow, .xlsx, .npz, .npy), or a "
            "database URL.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ],
    cap_epsilon: Annotated[
        float,
        number_option(
            "The epsilon that all runs together may ever spend on these records.",
            show_default=False,
        ),
    ],
    cap_delta: Annotated[float, number_option("The delta that belongs to it.", show_default=False)],
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's ca.crt.", show_default=False),
    ] = None,
    insecure: Annotated[
        bool,
        flag_option("--insecure", "No --ca and no encryption. For a server on this machine only."),
    ] = False,
    cap_kind: Annotated[
        CapKind,
        typer.Option(
            metavar="KIND",
            help="How spending adds up: gaussian (noise adds up, more runs fit in) or basic "
            "(epsilons add up).",
        ),
    ] = CapKind.GAUSSIAN,
    holding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the lifetime cap is for: the people or things the records are about.",
            show_default="--name",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The table or view of the database.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None,
    table_schema: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The schema that the table is in.",
            show_default="the database's default",
            rich_help_panel=_DATA,
        ),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The column that orders a table without a primary key.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A column that is no feature. Repeat it for more columns.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None,
    record_id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The column that says which rows belong to the same person.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None,
    password_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The environment variable with the database's password.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None,
) -> None:
    """Make the folder of a new site: a key, a ledger with a lifetime cap, and where records are.

    Reads the records once and says what is in them; nothing is sent. Then send site.pub to the
    server's operator.
    """
    from dpfedc.deployment.keys import fingerprint
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.errors import InvalidInput
    from dpfedc.privacy.ledger import BasicCap, GaussianCap
    from dpfedc.tables.sources import DataSource

    if insecure == (ca is not None):
        raise InvalidInput("either --ca or --insecure must be given, and not both")
    given: dict[str, Any] = {
        "table": table,
        "table_schema": table_schema,
        "order_by": order_by,
        "drop": drop or None,
        "record_id": record_id,
        "password_env": password_env,
    }
    settings = {**_place(data), **{key: value for key, value in given.items() if value is not None}}
    report = DataSource.of(settings, folder=folder.resolve()).check()
    print_report(report)
    if not report.ok:
        raise InvalidInput(f"{data} cannot be used; the table above says why")
    kind = GaussianCap if cap_kind is CapKind.GAUSSIAN else BasicCap
    made = SiteFolder.create(
        folder,
        name=name,
        server=server,
        authority=ca,
        data=settings,
        records=report.n_rows,
        cap=kind(cap_epsilon, cap_delta),
        holding=holding or name,
    )
    print_sentence(
        f"{name} will declare {report.n_rows:,} records, which everyone in the federation learns."
    )
    public = made.path / "site.pub"
    print_path("Send to the server's operator", public)
    print_sentence(f"Its fingerprint: {fingerprint(public.read_text(encoding='utf-8'))}")


def check(
    folder: SiteFolderArgument,
    declare: Annotated[
        bool, flag_option("--declare", "Declare the number of rows found, from the next run on.")
    ] = False,
) -> None:
    """Read the records and say what is in them. Nothing is sent."""
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.errors import InvalidInput

    opened = SiteFolder.open(folder)
    report = opened.source.check()
    print_report(report)
    if not report.ok:
        raise InvalidInput(f"{opened.source.where} cannot be used; the table above says why")
    if declare:
        opened = opened.declaring(report.n_rows)
    if opened.records != report.n_rows:
        raise InvalidInput(
            f"{opened.name} declares {opened.records:,} records, but there are "
            f"{report.n_rows:,}; use --declare, or take rows off"
        )
    print_sentence(f"{opened.name} declares {opened.records:,} records.")


def _place(data: str) -> dict[str, str]:
    """Return where the records are, wherever the site is started later."""
    if "://" not in data:
        return {"path": str(Path(data).resolve())}
    start, _, file = data.partition("sqlite:///")
    if not start and file:
        return {"url": f"sqlite:///{Path(file).resolve()}"}
    return {"url": data}


def print_report(report: Report) -> None:
    """Print what was found in the records."""
    marks = {"ok": "", "warning": "look at this", "error": "cannot be used"}
    print_table(
        ("what", "found", ""),
        [(label, value, marks[severity]) for label, value, severity in report.lines],
    )
