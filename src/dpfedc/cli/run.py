"""`dpfedc run`: a run over the sites that are connected to a server."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfedc.cli.console import (
    print_clusters,
    print_paragraphs,
    print_path,
    print_sentence,
    print_table,
    waiting,
)
from dpfedc.cli.options import number_option
from dpfedc.errors import DataUnavailable, DPFedCError

if TYPE_CHECKING:
    from dpfedc.deployment.agreement import Agreement
    from dpfedc.deployment.mailbox.mailbox import Delivery
    from dpfedc.deployment.mailbox.operator_side import OperatorSide
    from dpfedc.deployment.round_calls import RoundEvent
    from dpfedc.deployment.server_folder import ServerFolder

INTERRUPTED = 130
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
    from dpfedc.deployment.mailbox.operator_side import mailbox_of
    from dpfedc.deployment.proposal import read_plan
    from dpfedc.deployment.runs import await_sites, chosen_sites, proposal
    from dpfedc.deployment.server_folder import ServerFolder

    if not plan.exists():
        raise DataUnavailable(f"{plan} does not exist; it must be a plan, a TOML file")
    if not plan.is_file():
        raise DataUnavailable(f"{plan} must be a plan, a TOML file")
    folder = ServerFolder.open(server)
    names = chosen_sites(folder, site or ())
    # Before anybody is waited for. Only what depends on numbers of records is found out later.
    read_plan(plan.read_text(encoding="utf-8"), n_sites=len(names), folder=plan.parent)
    with closing(mailbox_of(folder)) as mailbox:
        await_sites(
            mailbox,
            names,
            wait,
            on_change=_say_online(names),
        )
        agreement = proposal(folder, mailbox, plan, names, wait_s=wait)
        print_paragraphs(expected_in_words(agreement))
        with _can_be_resumed(folder, agreement):
            _carried_out(folder, mailbox, agreement, wait)


@run.command()
def resume(
    server: _Server,
    start: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="The run, by its name or the first digits of its identity.",
            show_default="the latest",
        ),
    ] = "",
    wait: _Wait = 600.0,
) -> None:
    """Go on with a run that stopped. Sites answer what they have answered before with no new noise.

    A run that is finished only sends its model again, for sites that were away.
    """
    from dpfedc.deployment.mailbox.operator_side import mailbox_of
    from dpfedc.deployment.runs import await_sites, is_over, run_folder, stored_agreement
    from dpfedc.deployment.server_folder import ServerFolder

    folder = ServerFolder.open(server)
    agreement = stored_agreement(folder, start)
    names = [one.name for one in agreement.sites]
    over = is_over(run_folder(folder, agreement))
    least = 1 if over else agreement.least_answers(len(names))
    with closing(mailbox_of(folder)) as mailbox, _can_be_resumed(folder, agreement):
        await_sites(
            mailbox,
            names,
            wait,
            least=least,
            advice=f"start it (dpfedc site start). The run goes on with {least} of {len(names)}",
            on_change=_say_online(names),
        )
        _carried_out(folder, mailbox, agreement, wait)


@contextmanager
def _can_be_resumed(folder: ServerFolder, agreement: Agreement) -> Iterator[None]:
    """Say to whom interrupts a run how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"dpfedc: interrupted; go on with: {_resuming(folder, agreement)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _resuming(folder: ServerFolder, agreement: Agreement) -> str:
    return f"dpfedc run resume {agreement.digest[:12]} --server {shlex.quote(str(folder.path))}"


def _say_online(names: Sequence[str]) -> Callable[[set[str]], None]:
    from dpfedc.deployment.decisions import named

    def say(here: set[str]) -> None:
        away = set(names) - here
        also = f" (not connected: {named(away)})" if away else ""
        print_sentence(f"Sites online: {len(here)} of {len(names)}{also}.")

    return say


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
    folder: ServerFolder, mailbox: OperatorSide, agreement: Agreement, wait: float
) -> None:
    from dpfedc.deployment.coordinator import Coordinator
    from dpfedc.deployment.decisions import Decisions
    from dpfedc.deployment.heads import KeptHeads
    from dpfedc.deployment.runs import LOCK, acceptances, is_over, judged, publish, run_folder
    from dpfedc.privacy.statement import counted
    from dpfedc.report.folder import model_tables, write_page
    from dpfedc.report.promise import privacy_paragraphs, verdict_paragraphs
    from dpfedc.whole_files import locked, write_together

    path, short = run_folder(folder, agreement), agreement.digest[:12]
    heads = KeptHeads(folder.path)
    with locked(path / LOCK, refusal=f"run {short} is under way in another process"):
        print_sentence(
            f"Run {short}: {agreement.name}, {counted(len(agreement.sites), 'site')}, "
            f"{counted(agreement.plan.n_rounds, 'round')}, epsilon {agreement.epsilon:g}."
        )
        if not is_over(path):  # else nobody is asked for anything more
            say = _say_acceptances(agreement)
            acceptances(mailbox, agreement, wait, folder=path, heads=heads, on_change=say)
        log = RoundLog()
        mailbox.on_delivery = log.add
        mailbox.most_answer = agreement.max_message_bytes
        with log.shown() as on_event:
            finished = Coordinator(
                agreement, mailbox, path, key=folder.receipt_key, heads=heads, on_event=on_event
            ).run()
        log.print_summary()
        try:
            with waiting("Rehearsing, for a verdict"):
                finished = judged(agreement, finished, path)
        except (DPFedCError, ValueError, ArithmeticError, MemoryError) as error:
            # The run is paid for: its model must reach the sites whatever a rehearsal does.
            print_sentence(f"No verdict could be found: {error}", style="red")
        have = publish(mailbox, agreement, path)
    write_together(path, model_tables(finished.model))
    page = write_page(path)
    print_clusters(finished.model)
    print_paragraphs(
        [*verdict_paragraphs(finished.record.results), *privacy_paragraphs(finished.record)]
    )
    print_sentence(f"Sites that have the model: {', '.join(sorted(have)) or 'none'}.")
    decided = Decisions.read(path)
    for name in sorted(decided.closed):
        print_sentence(f"Without {name}: {decided.refused[name]}.")
    away = sorted({site.name for site in agreement.sites} - have - decided.closed)
    if away:
        print_sentence(f"For {', '.join(away)}, later: {_resuming(folder, agreement)}")
    print_path("Results", path)
    print_path("Report", page)


def _say_acceptances(agreement: Agreement) -> Callable[[set[str], Mapping[str, str]], None]:
    from dpfedc.deployment.decisions import named
    from dpfedc.privacy.statement import counted

    names, told = {site.name for site in agreement.sites}, set[str]()

    def say(accepted: set[str], refusals: Mapping[str, str]) -> None:
        waiting = names - accepted - refusals.keys()
        also = f"; not yet by {named(waiting)}" if waiting else ""
        print_sentence(f"Accepted by {len(accepted)} of {counted(len(names), 'site')}{also}.")
        for name in refusals.keys() - told:
            told.add(name)
            print_sentence(f"{name} refuses: {refusals[name]}", style="red")

    return say


class RoundLog:
    """Who answered how fast and what it cost: each round as it goes, and all of them at the end."""

    def __init__(self) -> None:
        self._round: dict[str, list[Delivery]] = {}
        self._all: dict[str, list[Delivery]] = {}
        self._told: dict[str, str] = {}
        """What each site refused with, the last time that it was said."""
        self._refresh: Callable[[], None] = lambda: None

    def add(self, delivery: Delivery) -> None:
        """Take up an answer."""
        self._round.setdefault(delivery.site, []).append(delivery)
        self._all.setdefault(delivery.site, []).append(delivery)
        self._refresh()

    @contextmanager
    def shown(self) -> Iterator[Callable[[RoundEvent], None]]:
        """Show a bar with the round and its answers on a terminal, and a line per round elsewhere.

        What came before, such as acceptances, is not counted.
        """
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._all.clear()
        console = Console(stderr=True)
        if not console.is_terminal:

            def on_line(event: RoundEvent) -> None:
                if event.done:
                    print_sentence(self._line(event))
                self._round.clear()

            yield on_line
            return
        with Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
        ) as progress:
            task, what = progress.add_task("Rounds"), [""]

            def refresh() -> None:
                progress.update(task, description=f"{what[0]}, {len(self._round)} answers")

            def on_event(event: RoundEvent) -> None:
                if event.done and (self._refused(event) or event.silent or event.notes):
                    progress.console.print(self._line(event), markup=False, highlight=False)
                self._round.clear()
                what[0] = f"{event.stage} {event.t}/{event.n_rounds}, {len(event.asked)} sites"
                progress.update(task, total=event.total, completed=event.number - (not event.done))
                refresh()

            self._refresh = refresh
            yield on_event
            self._refresh = lambda: None

    def _refused(self, event: RoundEvent) -> dict[str, str]:
        """Return who refused; a site where the run is closed is named once, not in every round."""
        return {
            name: reason
            for name, reason in event.refused.items()
            if name not in event.closed or self._told.get(name) != reason
        }

    def _line(self, event: RoundEvent) -> str:
        parts = [f"{len(event.answered)} of {len(event.asked)} sites answered{self._cost(event)}"]
        for name, reason in self._refused(event).items():
            again = self._told.get(name) == reason
            parts.append(f"{name} refused ({'as before' if again else reason})")
            if name in event.closed:
                parts[-1] += ", and will in all rounds"
        self._told |= event.refused
        if event.silent:
            parts.append(f"silent: {', '.join(event.silent)}")
        parts += event.notes
        if event.lost:
            parts.append("it is lost, and the run goes on without it")
        where = f"Round {event.number} of {event.total} ({event.stage} {event.t}/{event.n_rounds})"
        return f"{where}: {'; '.join(parts)}."

    def _cost(self, event: RoundEvent) -> str:
        """Return what this round took, and who was the last to answer; a refusal is no answer."""
        seconds = {
            site: sum(delivery.seconds for delivery in found)
            for site, found in self._round.items()
            if site in event.answered
        }
        if not seconds:
            return ""
        last = max(seconds, key=lambda site: seconds[site])
        deliveries = [delivery for found in self._round.values() for delivery in found]
        sent = sum(delivery.n_sent for delivery in deliveries)
        received = sum(delivery.n_received for delivery in deliveries)
        return (
            f" in {seconds[last]:.2f} s (the last was {last}), {_size(sent)} out, "
            f"{_size(received)} in"
        )

    def print_summary(self) -> None:
        """Print what each site took and sent, over all rounds."""
        if not self._all:
            return
        rows = []
        for site, deliveries in sorted(self._all.items()):
            seconds = sorted(delivery.seconds for delivery in deliveries)
            rows.append(
                (
                    site,
                    len(deliveries),
                    f"{seconds[len(seconds) // 2]:.2f}",
                    f"{seconds[-1]:.2f}",
                    _size(sum(delivery.n_sent for delivery in deliveries)),
                    _size(sum(delivery.n_received for delivery in deliveries)),
                )
            )
        print_table(("site", "answers", "median s", "longest s", "sent to it", "received"), rows)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.1f} kB"
