"""`dpfedc run`: a run over the sites that are connected to a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfedc.cli.console import print_paragraphs, print_path, print_sentence, waiting
from dpfedc.cli.options import number_option
from dpfedc.errors import DataUnavailable, DPFedCError

if TYPE_CHECKING:
    from dpfedc.deployment.agreement import Agreement
    from dpfedc.deployment.coordinator import RoundEvent
    from dpfedc.deployment.flower.transport import FlowerTransport
    from dpfedc.deployment.server_folder import ServerFolder

run = typer.Typer(
    name="run",
    help="Cluster the records of the sites that are connected to a server.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_Server = Annotated[
    Path, typer.Option(metavar="FOLDER", help="The server's folder.", show_default=False)
]
_Wait = Annotated[
    float,
    number_option("How many seconds to wait for sites to connect, and then for them to accept."),
]


@run.command()
def start(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    server: _Server,
    site: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A site that takes part. Repeat it for more.",
            show_default="all that are enrolled",
        ),
    ] = None,
    wait: _Wait = 600.0,
) -> None:
    """Propose a plan to the sites, wait until they accept it, and run it.

    The same plan with the same sites is the same run: started again, it goes on where it stopped.
    For another run, change its name or its seed.
    """
    from dpfedc.deployment.flower.transport import FlowerTransport
    from dpfedc.deployment.runs import await_sites, chosen_sites, proposal
    from dpfedc.deployment.server_folder import ServerFolder

    if not plan.is_file():
        raise DataUnavailable(f"{plan} must be a plan, a TOML file")
    folder = ServerFolder.open(server)
    names = chosen_sites(folder, site or ())
    transport = FlowerTransport(folder)
    await_sites(
        transport,
        names,
        wait,
        on_change=lambda here: print_sentence(f"Sites online: {len(here)} of {len(names)}."),
    )
    agreement = proposal(folder, transport, plan, names)
    print_paragraphs(expected_in_words(agreement))
    _carried_out(folder, transport, agreement, wait)


@run.command()
def resume(
    server: _Server,
    start: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="The run, by the first digits of its identity.",
            show_default="the latest",
        ),
    ] = "",
    wait: _Wait = 600.0,
) -> None:
    """Go on with a run that stopped. Sites answer what they have answered before with no new noise.

    A run that is finished only sends its model again, for sites that were away.
    """
    from dpfedc.deployment.flower.transport import FlowerTransport
    from dpfedc.deployment.runs import stored_agreement
    from dpfedc.deployment.server_folder import ServerFolder

    folder = ServerFolder.open(server)
    _carried_out(folder, FlowerTransport(folder), stored_agreement(folder, start), wait)


def expected_in_words(agreement: Agreement) -> list[str]:
    """Return the verdict on an agreement's plan. Whoever asks rehearses it, and believes nobody."""
    from dpfedc.clustering.registry import method_named
    from dpfedc.verdict.kept import kept_verdict
    from dpfedc.verdict.verdict import verdict_in_words

    method = method_named(agreement.method)
    with waiting("Rehearsing the run, for a verdict"):
        verdict = kept_verdict(method, agreement.settings, agreement.facts, agreement.plan)
    return verdict_in_words(verdict, agreement.schema)


def _carried_out(
    folder: ServerFolder, transport: FlowerTransport, agreement: Agreement, wait: float
) -> None:
    from dpfedc.deployment.coordinator import Coordinator
    from dpfedc.deployment.runs import acceptances, judged, publish, run_folder
    from dpfedc.report.folder import CENTERS_NAME, write_page
    from dpfedc.report.output_files import centers_table
    from dpfedc.report.promise import privacy_paragraphs, verdict_paragraphs
    from dpfedc.whole_files import locked, write_whole

    path, short = run_folder(folder, agreement), agreement.digest[:12]
    with locked(path / "lock", refusal=f"run {short} is under way in another process"):
        print_sentence(
            f"Run {short}: {agreement.name}, {len(agreement.sites)} sites, "
            f"{agreement.plan.n_rounds} rounds, epsilon {agreement.epsilon:g}."
        )
        acceptances(transport, agreement, wait, on_change=_say_acceptances(agreement))
        with round_progress(transport) as on_event:
            finished = Coordinator(
                agreement, transport, path, key=folder.receipt_key, on_event=on_event
            ).run()
        try:
            with waiting("Rehearsing, for a verdict"):
                finished = judged(agreement, finished, path)
        except (DPFedCError, ValueError, ArithmeticError, MemoryError) as error:
            # The run is paid for: its model must reach the sites whatever a rehearsal does.
            print_sentence(f"No verdict could be found: {error}", style="red")
        have = publish(transport, agreement, path)
    write_whole(path / CENTERS_NAME, centers_table(finished.model))
    page = write_page(path)
    print_paragraphs(
        [*verdict_paragraphs(finished.record.results), *privacy_paragraphs(finished.record)]
    )
    print_sentence(f"Sites that have the model: {', '.join(sorted(have)) or 'none'}.")
    print_path("Results", path)
    print_path("Report", page)


def _say_acceptances(agreement: Agreement) -> Callable[[set[str], object], None]:
    def say(accepted: set[str], refusals: object) -> None:
        assert isinstance(refusals, dict)
        print_sentence(f"Accepted by {len(accepted)} of {len(agreement.sites)} sites.")
        for name, reason in refusals.items():
            print_sentence(f"{name} refuses: {reason}", style="red")

    return say


@contextmanager
def round_progress(transport: FlowerTransport) -> Iterator[Callable[[RoundEvent], None]]:
    """Show a bar with the round and its answers on a terminal, and a line per round elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda event: print_sentence(_round_line(event)) if event.done else None
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        task, shown, answers = progress.add_task("Rounds"), [""], set[str]()

        def show() -> None:
            progress.update(task, description=f"{shown[0]}, {len(answers)} answers")

        def on_answer(name: str) -> None:
            answers.add(name)
            show()

        def on_event(event: RoundEvent) -> None:
            answers.clear()
            shown[0] = f"{event.stage} {event.t}/{event.n_rounds}, {len(event.asked)} sites"
            progress.update(task, total=event.total, completed=event.number - (not event.done))
            show()
            if event.done and (event.refused or event.silent):
                progress.console.print(_round_line(event), markup=False, highlight=False)

        transport.on_answer = on_answer
        yield on_event


def _round_line(event: RoundEvent) -> str:
    parts = [f"{len(event.answered)} of {len(event.asked)} sites answered"]
    parts += [f"{name} refused ({reason})" for name, reason in event.refused.items()]
    if event.silent:
        parts.append(f"silent: {', '.join(event.silent)}")
    where = f"Round {event.number} of {event.total} ({event.stage} {event.t}/{event.n_rounds})"
    return f"{where}: {'; '.join(parts)}."
