"""`dpfedc site`: one site's side of a federation on separate machines."""

from __future__ import annotations

from typing import Annotated

import typer

from dpfedc.cli import site_runs
from dpfedc.cli.console import showable
from dpfedc.cli.options import flag_option
from dpfedc.cli.site_setup import SiteFolderArgument, check, init, rotate_key

site = typer.Typer(
    name="site",
    help="Take part in a federation with the records of this site, which never leave it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


for _command in (init, check, rotate_key):
    site.command()(_command)


@site.command()
def start(
    folder: SiteFolderArgument,
    accept: Annotated[
        bool,
        flag_option(
            "--accept",
            "Accept every run that keeps within the lifetime cap, without asking anyone.",
        ),
    ] = False,
    allow_simulated: Annotated[
        bool,
        flag_option(
            "--allow-simulated", "Also take part with noise that protects nobody. For tests."
        ),
    ] = False,
) -> None:
    """Connect to the server and answer its requests until interrupted.

    Only code that is installed here runs here; the server sends numbers. Nothing leaves the site
    for a run that was not accepted.
    """
    from concurrent.futures import ThreadPoolExecutor

    from dpfedc.deployment.mailbox.site_side import SiteLine, attend
    from dpfedc.deployment.site_folder import SiteFolder
    from dpfedc.deployment.site_service import SiteService
    from dpfedc.whole_files import locked

    opened = SiteFolder.open(folder)
    with (
        locked(opened.path / "lock", refusal=f"another process serves {opened.path} already"),
        ThreadPoolExecutor(1) as worker,  # the ledger is used by one thread alone
    ):
        service = worker.submit(
            SiteService, opened, accept=accept, allow_simulated=allow_simulated, tell=tell
        ).result()
        line = SiteLine(
            opened.name,
            opened.server,
            opened.authority,
            opened.identities,
            proxy_authority=opened.proxy_authority,
            most_bytes=service.most_bytes,
            on_admitted=opened.admitted,
        )
        line.identities()  # says now what is wrong with a key
        try:
            attend(line, service.reply, tell=tell, executor=worker)
        finally:
            worker.submit(service.close).result()


for _of_runs in (
    site_runs.status, site_runs.accept, site_runs.decline, site_runs.cancel, site_runs.labels,
    site_runs.peers,
):  # fmt: skip
    site.command()(_of_runs)


def tell(text: str) -> None:
    """Print a line for the operator, with the time, at once."""
    from datetime import datetime

    print(f"{datetime.now().isoformat(timespec='seconds')} {showable(text)}", flush=True)
