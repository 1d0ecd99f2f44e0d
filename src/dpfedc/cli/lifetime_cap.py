"""The options that set a lifetime cap, for `dpfedc site init` and `dpfedc ledger init`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dpfedc.cli.options import number_option

if TYPE_CHECKING:
    from dpfedc.privacy.ledger.caps import Cap


class CapKind(StrEnum):
    """The two kinds of lifetime cap."""

    GAUSSIAN = "gaussian"
    BASIC = "basic"


CapEpsilon = Annotated[
    float,
    number_option(
        "The epsilon that all runs together may ever spend on these records.", show_default=False
    ),
]
CapDelta = Annotated[float, number_option("The delta that belongs to it.", show_default=False)]
KindOfCap = Annotated[
    CapKind,
    typer.Option(
        metavar="KIND",
        help="How spending adds up: gaussian (noise adds up, more runs fit in) or basic "
        "(epsilons add up).",
    ),
]


def chosen_cap(kind: CapKind, epsilon: float, delta: float) -> Cap:
    """Return the cap that was asked for."""
    from dpfedc.privacy.ledger.caps import cap_of

    return cap_of(str(kind), {"epsilon": epsilon, "delta": delta})
