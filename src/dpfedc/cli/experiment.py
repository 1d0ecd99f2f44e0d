"""`dpfedc experiment`: run the paper's experiments and ours, and make a page of the results."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import print_path, print_sentence, print_table, progress_bar
from dpfedc.cli.options import count_option, flag_option

experiment = typer.Typer(
    name="experiment",
    help="Repeat the paper's experiments, and compare methods under one accountant.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_SOME_FAILED = 1


@experiment.command("list")
def list_experiments() -> None:
    """List the experiments with the number of runs of each."""
    from dpfedc.research.experiments.experiment_spec import experiment_names, named_experiment

    found = [named_experiment(name) for name in experiment_names()]
    rows = [(e.name, e.title, e.paper, len(e.cells), len(e.quick_cells)) for e in found]
    print_table(("name", "what it shows", "paper", "runs", "quick"), rows)


@experiment.command()
def run(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="One of `experiment list`, or the .toml file of one of your own."
        ),
    ],
    quick: Annotated[
        bool,
        flag_option("--quick", "Small data that need no download, few seeds: within a minute."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The folder for the results.", show_default="results/NAME"
        ),
    ] = None,
    jobs: Annotated[
        int | None, count_option("Runs at the same time.", show_default="one per core")
    ] = None,
) -> None:
    """Run an experiment. After Ctrl-C, the same command takes up where it stopped.

    MNIST and TCGA miRNA are looked for in the folder that DPFEDC_DATA names; runs on data that
    are not there are skipped. Exit code 1 if any run failed; it is tried again next time.
    """
    import joblib

    from dpfedc.research.experiments.experiment_spec import named_experiment, read_experiment
    from dpfedc.research.experiments.runner import run_experiment

    chosen = read_experiment(Path(name)) if name.endswith(".toml") else named_experiment(name)
    folder = output or Path("results", f"{chosen.name}-quick" if quick else chosen.name)
    with progress_bar(chosen.name, "runs") as tell:
        summary = run_experiment(
            chosen,
            folder,
            quick=quick,
            jobs=jobs or joblib.cpu_count(),
            on_cell=lambda progress: tell(progress.n_done, progress.n_cells),
            command=shlex.join(ctx.find_root().obj),
        )
    for data, reason in summary.skipped.items():
        print_sentence(f"Skipped all runs on {data}: {reason}.")
    print_sentence(
        f"{summary.n_finished} of {summary.n_cells} runs finished now, {summary.n_found} were "
        f"there already, {summary.n_failed} failed."
    )
    print_path("Results", folder / "results.csv")
    if chosen.shown == "reproduction" and summary.n_found + summary.n_finished:
        from dpfedc.research.experiments.reproduction_page import write_reproduction

        print_path("Page", write_reproduction(folder))
    if summary.n_failed:
        print_path("Failures", folder / "failures.csv")
        raise typer.Exit(_SOME_FAILED)


@experiment.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]", help="The folder of one experiment, or one that holds several."
        ),
    ] = Path("results"),
) -> None:
    """Make the figures and a page: our numbers beside the paper's, and its claims judged."""
    from dpfedc.research.experiments.experiment_page import write_experiment_report

    print_path("Report", write_experiment_report(folder))
