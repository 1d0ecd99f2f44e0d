"""The command line: parse, call, print. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from dpfedc import __version__
from dpfedc.cli.account import account
from dpfedc.cli.choose_k import choose_k
from dpfedc.cli.demo import demo
from dpfedc.cli.evaluate import evaluate
from dpfedc.cli.experiment import experiment
from dpfedc.cli.fit import fit
from dpfedc.cli.ledger import ledger
from dpfedc.cli.options import flag_option
from dpfedc.cli.plan import plan
from dpfedc.cli.predict import predict
from dpfedc.cli.report import report
from dpfedc.cli.run import INTERRUPTED, run
from dpfedc.cli.schemas import schema
from dpfedc.cli.server import server
from dpfedc.cli.show import name, show
from dpfedc.cli.site import site
from dpfedc.errors import DPFedCError

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
for _command in (demo, plan, fit, choose_k, show, name, predict, evaluate, report, account):
    app.command()(_command)
app.add_typer(schema)
app.add_typer(experiment)
app.add_typer(ledger)
for _group in (server, site, run):
    app.add_typer(_group)

# Newer releases of typer carry a copy of click: its errors are reached through the one exported.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

_BAD_INPUT, _BROKEN_PIPE = 2, 141


@app.callback(invoke_without_command=True)
def _dpfedc(
    ctx: typer.Context,
    version: Annotated[bool, flag_option("--version", "Show the version and exit.")] = False,
) -> None:
    """Cluster data that may not be pooled.

    Each site keeps its records. Sites and a server find the centres of clusters together, in
    rounds, with noise that hides every single record. Start with `dpfedc demo`: it takes a few
    seconds.
    """
    if version:
        print(f"dpfedc {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 if all is well, 2 and one line if the input is not."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings(record=True) as caught:
        code = _exit_code(words)
    # After an error its one line says all; before it, warnings would only hide it.
    for message in dict.fromkeys(str(warning.message) for warning in caught if code == 0):
        print(f"dpfedc: warning: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _exit_code(words: list[str]) -> int:
    """Run the command line and return its exit code; what the user did wrong is said in a line."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("dpfedc", list(words), obj=("dpfedc", *words)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        print("dpfedc: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads on; without this, Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (_CommandLineError, DPFedCError, ValueError, OSError, MemoryError) as error:
        print(f"dpfedc: error: {' '.join(_reason(error).split())}", file=sys.stderr)
        return _BAD_INPUT
    return 0


def _reason(error: Any) -> str:
    """Return what was wrong, in words."""
    if isinstance(error, _CommandLineError):
        path = error.ctx.command_path if getattr(error, "ctx", None) else "dpfedc"
        # Newer releases of typer put this in front of what a choice must be.
        message = error.format_message().replace("Value error, ", "").rstrip(".")
        return f"{message}. See: {path} --help"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
