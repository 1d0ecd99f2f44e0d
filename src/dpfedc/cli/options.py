"""The arguments and options that several commands share, and the values a choice may have."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfedc.errors import InvalidInput

_COLUMNS, _READING, PRIVACY = "Columns", "How tables are read", "Privacy"
METHOD = "Method"

DEFAULT_EPSILON = 1.0


class Trust(StrEnum):
    """Who adds the noise, and so who must be trusted with the records."""

    LOCAL = "local"
    SECURE_AGGREGATION = "secure-aggregation"
    TRUSTED_SERVER = "trusted-server"


class Unit(StrEnum):
    """What epsilon protects."""

    RECORD = "record"
    PERSON = "person"


class Variant(StrEnum):
    """The two forms of the method."""

    NORMALIZED = "normalized"
    PUBLISHED = "published"


class NamedData(StrEnum):
    """The data sets that are known by name."""

    DIGITS = "digits"
    MNIST = "mnist"
    TCGA_MIRNA = "tcga-mirna"


class Split(StrEnum):
    """The ways to deal records to simulated sites."""

    IID = "iid"
    LABELS = "labels"
    KMEANS = "kmeans"
    DIRICHLET = "dirichlet"


def whole_number(text: str | int, *, least: int = 1, most: float = math.inf) -> int:
    """Return the value of an option that counts something."""
    allowed = f">= {least}" if math.isinf(most) else f"from {least} to {most}"
    try:
        value = int(text)
    except ValueError as error:
        raise typer.BadParameter(f"must be a whole number {allowed}, got {text!r}") from error
    if not least <= value <= most:
        raise typer.BadParameter(f"must be {allowed}, got {value}")
    return value


def number(text: str | float) -> float:
    """Return the value of an option that measures something."""
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"must be a number, got {text!r}") from error


def count_option(help_text: str, *, least: int = 1, **more: Any) -> Any:
    """Return an option for a whole number. Its parser says what was got and what was expected."""
    return typer.Option(
        parser=lambda text: whole_number(text, least=least), metavar="N", help=help_text, **more
    )


def number_option(help_text: str, **more: Any) -> Any:
    """Return an option for a number. Its parser says what was got and what was expected."""
    return typer.Option(parser=number, metavar="NUMBER", help=help_text, **more)


def flag_option(name: str, help_text: str, **more: Any) -> Any:
    """Return an option without a value."""
    return typer.Option(name, metavar="", help=help_text, **more)


def seed_option(help_text: str, *, shown: str) -> Any:
    """Return an option for a seed that every generator takes."""
    return typer.Option(
        parser=lambda text: whole_number(text, least=0, most=2**32 - 1),
        metavar="N",
        help=help_text,
        show_default=shown,
    )


Folder = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder for the results.")]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The model.npz that `dpfedc fit` wrote.")
]
FILES_HELP = (
    "Tables: .csv, .tsv (also .gz), .parquet, .arrow, .xlsx, .npz or .npy files, or a database URL "
    "with --table. Several: one for each site."
)
Files = Annotated[list[str], typer.Argument(metavar="FILES", help=FILES_HELP)]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        help="What the columns are, in TOML: ranges, categories, persons, gaps. `dpfedc schema "
        "draft` makes a first one.",
        rich_help_panel=_COLUMNS,
        show_default="all columns are numbers",
    ),
]
PersonColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column with a person's id. All rows of a person become one record, and the "
        "person is what epsilon protects.",
        rich_help_panel=_COLUMNS,
        show_default="the schema's, or each row is a record",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A column to cluster though it looks like ids or codes. Repeat it for more columns.",
        rich_help_panel=_COLUMNS,
        show_default=False,
    ),
]


def _reading(metavar: str, help_text: str, default: Any, *names: str) -> Any:
    """Return an option that says how a table is read."""
    panel = {"rich_help_panel": _READING, "show_default": default}
    return typer.Option(*names, metavar=metavar, help=help_text, **panel)


def _of_each(metavar: str, help_text: str, default: Any) -> Any:
    """Return the same option for several tables, of which each may have its own."""
    more = f"{help_text} Repeat it as FILE=... for a single file."
    return _reading(f"[FILE=]{metavar}", more, default)


_DELIMITER = (
    "CHARACTER",
    "What separates the cells of a text file: , ; | or tab.",
    "what the header has",
)
_ENCODING = ("NAME", "How a text file is encoded, such as latin-1.", "utf-8")
_DECIMAL = ("CHARACTER", "The decimal mark of a text file's numbers, . or a comma.", ".")
Delimiter = Annotated[str | None, _reading(*_DELIMITER)]
Encoding = Annotated[str | None, _reading(*_ENCODING)]
Decimal = Annotated[str | None, _reading(*_DECIMAL)]
Delimiters = Annotated[list[str] | None, _of_each(*_DELIMITER)]
Encodings = Annotated[list[str] | None, _of_each(*_ENCODING)]
Decimals = Annotated[list[str] | None, _of_each(*_DECIMAL)]
DatabaseTable = Annotated[
    str | None, _reading("NAME", "The table or view of a database.", False, "--table")
]
OrderBy = Annotated[
    str | None,
    _reading("NAME", "The column that orders a database table without a primary key.", False),
]
PasswordEnv = Annotated[
    str | None,
    _reading("NAME", "The environment variable with the database's password.", False),
]
SiteColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column that says at which site a record is. Without it, each file is a site.",
        rich_help_panel=_COLUMNS,
        show_default=False,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column with the true groups, if known. It is used to score the result only.",
        rich_help_panel=_COLUMNS,
        show_default=False,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Without a schema: a column to leave out. Repeat it for more columns. All others must "
        "be numbers.",
        rich_help_panel=_COLUMNS,
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    seed_option(
        "The same seed gives the same result again. Whoever knows it can predict the simulated "
        "noise and take it off, so a seed is for trials only.",
        shown="drawn anew",
    ),
]
Epsilon = Annotated[
    float | None,
    number_option(
        "How much may be learnt about any one record from all that leaves the sites. Less is more "
        "private and more noisy: up to 1 is strong protection, above 10 there is little.",
        show_default=f"{DEFAULT_EPSILON:g}",
        rich_help_panel=PRIVACY,
    ),
]
Delta = Annotated[
    float,
    number_option(
        "The probability with which the promise of --epsilon may fail. Choose it well below one "
        "over the number of records.",
        rich_help_panel=PRIVACY,
    ),
]
WhoIsTrusted = Annotated[
    Trust,
    typer.Option(
        metavar="WHO",
        help="Who adds the noise: local (each site, trusting nobody), secure-aggregation (the "
        "sites together; the server learns only sums, and much less noise is needed) or "
        "trusted-server (the server, which sees exact sums).",
        rich_help_panel=PRIVACY,
    ),
]
MinSurvivors = Annotated[
    int | None,
    count_option(
        "With secure-aggregation: the fewest sites whose uploads arrive in a round.",
        show_default="all that take part",
        rich_help_panel=PRIVACY,
    ),
]
ColludingSites = Annotated[
    int | None,
    count_option(
        "With secure-aggregation: how many sites may work with the server against the others.",
        least=0,
        show_default="0",
        rich_help_panel=PRIVACY,
    ),
]
WhatIsProtected = Annotated[
    Unit | None,
    typer.Option(
        "--unit",
        metavar="UNIT",
        help="What epsilon protects: record, or person (all rows of a person at once; every site "
        "makes one record of them).",
        show_default="the schema's, or record",
        rich_help_panel=PRIVACY,
    ),
]
SitesPerPerson = Annotated[
    int | None,
    count_option(
        "Where persons are protected: the most sites at which one person may have rows. More sites "
        "need more noise.",
        show_default="the schema's, or 1",
        rich_help_panel=PRIVACY,
    ),
]
Quality = Annotated[
    bool,
    flag_option(
        "--quality",
        "Also release how good the clusters are: sizes, cost and silhouette with error bars, at 2 "
        "% of the budget.",
    ),
]
SamplingProbability = Annotated[
    float,
    number_option(
        "The chance of a record to be in a round of the search. Below 1, a record hides among "
        "those that are not, and less noise is needed for each; planning takes some seconds.",
        rich_help_panel=PRIVACY,
    ),
]


def privacy_settings(
    *,
    epsilon: float | None,
    no_noise: bool = False,
    delta: float,
    trust: Trust,
    min_survivors: int | None,
    colluding_sites: int | None,
    sampling_probability: float,
) -> dict[str, Any]:
    """Return the estimator's settings on privacy, or say which options exclude each other."""
    if no_noise and epsilon is not None:
        raise InvalidInput(f"--no-noise and --epsilon exclude each other, got --epsilon {epsilon}")
    if trust is not Trust.SECURE_AGGREGATION:
        together = {"--min-survivors": min_survivors, "--colluding-sites": colluding_sites}
        for option, value in together.items():
            if value is not None:
                raise InvalidInput(
                    f"{option} needs --trust secure-aggregation, got --trust {trust}"
                )
    chosen = DEFAULT_EPSILON if epsilon is None else epsilon
    return {
        "epsilon": None if no_noise else chosen,
        "delta": delta,
        "trust": str(trust),
        "min_survivors": min_survivors,
        "colluding_sites": colluding_sites or 0,
        "sampling_probability": sampling_probability,
    }
