"""The options that say how many clusters are found, and what they may look like."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from dpfedc.cli.options import METHOD, count_option, whole_number
from dpfedc.errors import InvalidInput

AUTO = "auto"


class Shape(StrEnum):
    """What clusters may look like."""

    AUTO = "auto"
    ROUND = "round"
    ANY = "any"


def cluster_count(text: str | int) -> int | str:
    """Return how many clusters there shall be, or that the run is to choose."""
    if str(text).lower() == AUTO:
        return AUTO
    try:
        return whole_number(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message.replace(",", f" or {AUTO},", 1)) from error


def number_range(text: str | tuple[int, int]) -> tuple[int, int]:
    """Return the two ends of a range."""
    parts = text.split(",") if isinstance(text, str) else list(map(str, text))
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"must be two whole numbers such as 2,20, got {text!r}")
    low, high = int(parts[0]), int(parts[1])
    if low < 2:
        raise typer.BadParameter(f"must start at 2 or more, got {text!r}")
    if low == high:
        raise typer.BadParameter(
            f"must be two different numbers, got {text!r}; for one number take --clusters {low}"
        )
    if low > high:
        raise typer.BadParameter(f"the first number must be the smaller one, got {text!r}")
    return low, high


Clusters = Annotated[
    Any,
    typer.Option(
        parser=cluster_count,
        metavar="K",
        help="How many clusters to find, or auto: the run chooses, see --k-range.",
        show_default=False,
    ),
]
KRange = Annotated[
    Any,
    typer.Option(
        parser=number_range,
        metavar="LOW,HIGH",
        help="With --clusters auto: the least and the largest number of clusters.",
        show_default="2,20",
        rich_help_panel=METHOD,
    ),
]
ClusterShape = Annotated[
    Shape,
    typer.Option(
        "--shape",
        metavar="SHAPE",
        case_sensitive=False,
        help="round (a record belongs to the nearest centre), any (clusters are groups of smaller "
        "prototypes, and may be bent) or auto (any for 3 clusters and more above 50 columns; with "
        "fewer round, unless noise is low and there are no gaps).",
        rich_help_panel=METHOD,
    ),
]
Prototypes = Annotated[
    int | None,
    count_option(
        "How many prototypes are made, to be merged to clusters: more than clusters, at most 1000. "
        "Without --shape, too; with --shape round, records then go to the nearest centre of merged "
        "prototypes.",
        least=2,
        show_default="chosen by the planner",
        rich_help_panel=METHOD,
    ),
]


def cluster_settings(
    clusters: int | str,
    k_range: tuple[int, int] | None,
    shape: Shape,
    prototypes: int | None,
) -> dict[str, Any]:
    """Return the estimator's settings on number and shape, or say what contradicts what."""
    if k_range is not None and clusters != AUTO:
        raise InvalidInput(f"--k-range needs --clusters auto, got --clusters {clusters}")
    if prototypes is not None and clusters != AUTO and prototypes <= int(clusters):
        raise InvalidInput(
            f"--prototypes must be more than --clusters {clusters}, got {prototypes}"
        )
    return {
        "n_clusters": clusters,
        "k_range": k_range,
        "shape": str(shape),
        "n_prototypes": AUTO if prototypes is None else prototypes,
    }
