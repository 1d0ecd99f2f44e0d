"""`dpfedc choose-k`: a trial that also finds how many clusters there are, and says how clearly."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpfedc.cli.cluster_options import AUTO
from dpfedc.cli.console import print_paragraphs, print_table
from dpfedc.cli.fit import fit

if TYPE_CHECKING:
    from dpfedc.summary.choice_of_k import ChoiceOfK

_OF_FIT_ALONE = ("clusters", "variant", "gradient_bound")
"""The paper's own method has no prototypes to choose by."""


def choose_k(ctx: typer.Context, **options: Any) -> None:
    """Find how many clusters there are in the records of many sites, and fit that many.

    It is `dpfedc fit --clusters auto`, and prints what speaks for the number. One budget pays for
    all of it: 5 % goes to the choice, and what is written to the output folder is the whole fit.
    """
    from dpfedc.model_file import ClusterModel
    from dpfedc.report.folder import MODEL_NAME

    fit(ctx, AUTO, **options)
    choice = ClusterModel.read(options["output"] / MODEL_NAME).choice
    if choice is None:  # of two records
        print_paragraphs(["Choice: none, as only one number of clusters is possible."])
        return
    print_table(choice.HEAD, choice.rows())
    print_paragraphs([*choice.paragraphs(), next_step(choice, options["output"])])


def next_step(choice: ChoiceOfK, folder: Path) -> str:
    """Return what to do with the choice."""
    k = choice.n_clusters
    done = (
        f"Next: nothing need be run again: {folder} has the fit with {k} clusters, paid for by the "
        f"same budget. `dpfedc fit --clusters {k}` would cost its budget once more. For a deployed "
        f'run write clusters = "auto" into its plan: {k}, put there by hand, would be learnt from '
        "these records, and the promise of that run would not cover it."
    )
    if choice.clear:
        return done
    return f"{done} If you know from elsewhere how many clusters you need, take that number."


def _takes_options_of_fit() -> None:
    """Give choose-k the options of fit, but for the number of clusters."""
    known = inspect.signature(fit, eval_str=True)
    own = [p for name, p in known.parameters.items() if name not in _OF_FIT_ALONE]
    choose_k.__signature__ = known.replace(parameters=own)  # type: ignore[attr-defined]
    choose_k.__annotations__ = {p.name: p.annotation for p in own}


_takes_options_of_fit()
