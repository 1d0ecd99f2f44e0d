"""The arguments and options that several commands share, and the values a choice may have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_COLUMNS = "Columns"


class Trust(StrEnum):
    """Who adds the noise, and so who must be trusted with the records."""

    LOCAL = "local"
    SECURE_AGGREGATION = "secure-aggregation"
    TRUSTED_SERVER = "trusted-server"


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


def require_count(value: int | None) -> int | None:
    """Return the value of an option that counts something."""
    if value is not None and value < 1:
        raise typer.BadParameter(f"must be >= 1, got {value}")
    return value


def require_seed(value: int) -> int:
    """Return a seed that every generator takes."""
    if not 0 <= value < 2**32:
        raise typer.BadParameter(f"must be from 0 to {2**32 - 1}, got {value}")
    return value


Folder = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder for the results.")]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The model.npz that `dpfedc fit` wrote.")
]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES",
        help="Tables with one record per row (.csv, .parquet, .npz, .npy). Several files: one "
        "file per site.",
    ),
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
        help="A column to leave out. Repeat it for more columns. All others must be numbers.",
        rich_help_panel=_COLUMNS,
        show_default=False,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        callback=require_seed, metavar="N", help="The same seed gives the same result again."
    ),
]
