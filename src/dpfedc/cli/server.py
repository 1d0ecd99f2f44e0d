"""`dpfedc server`: the coordinator's side of a federation on separate machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedc.cli.console import print_paragraphs, print_path, print_sentence, print_table
from dpfedc.cli.options import count_option, flag_option

server = typer.Typer(
    name="server",
    help="Set up and run the server that sites on other machines connect to.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The server's folder.")]


@server.command()
def init(
    folder: _Folder,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A host name or IP address by which sites reach this machine. Repeat it for more.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.")
    ] = "0.0.0.0",
    port: Annotated[int, count_option("The port to listen on.")] = 8470,
    insecure: Annotated[
        bool,
        flag_option(
            "--insecure", "Do not encrypt. For trials; --listen must be a loopback address."
        ),
    ] = False,
) -> None:
    """Make the folder of a new server: a certificate authority, a certificate, keys, settings.

    Sites need ca.crt from it, and nothing else. All that ends in .key must stay private.
    """
    from dpfedc.deployment.server_folder import ServerFolder

    made = ServerFolder.create(
        folder, hosts=host or (), listen=listen, port=port, insecure=insecure
    )
    print_path("Server", made.path)
    print_path("For the sites", made.path / "ca.crt")
    if not host and not insecure:
        print_sentence("No --host was given: only sites on this machine can connect.")


@server.command()
def start(folder: _Folder) -> None:
    """Serve enrolled sites until interrupted. Runs are started with `dpfedc run start`."""
    from dpfedc.deployment.flower.fleet_server import serve
    from dpfedc.deployment.server_folder import ServerFolder

    opened = ServerFolder.open(folder)

    def on_ready() -> None:
        how = "WITHOUT encryption" if opened.insecure else "with TLS"
        print_sentence(f"Listening on {opened.listen} port {opened.port}, {how}.")

    serve(opened, on_ready=on_ready)


@server.command()
def enrol(
    folder: _Folder,
    key: Annotated[
        Path, typer.Argument(metavar="SITE.PUB", help="The site.pub that a site's operator sent.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The site's name, the one in its site.toml.",
            show_default="the name that site.pub ends with",
        ),
    ] = None,
) -> None:
    """Admit a site. Compare the fingerprint with the site's operator, by telephone for example."""
    from dpfedc.deployment.keys import fingerprint
    from dpfedc.deployment.server_folder import ServerFolder
    from dpfedc.errors import InvalidInput

    opened = ServerFolder.open(folder)
    line = key.read_text(encoding="utf-8", errors="replace")
    words = line.split()
    if name is None and len(words) != 3:
        raise InvalidInput(f"--name must be given: {key} does not end with one")
    chosen = words[2] if name is None else name
    opened.enrol(chosen, line)
    _admit(opened.path)
    print_sentence(f"Enrolled {chosen}, key {fingerprint(line)}.")


@server.command()
def remove(
    folder: _Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name.")],
) -> None:
    """Stop admitting a site, for example because its key was lost."""
    from dpfedc.deployment.server_folder import ServerFolder

    ServerFolder.open(folder).remove(name)
    _admit(folder)
    print_sentence(f"Removed {name}.")


@server.command()
def status(folder: _Folder) -> None:
    """Show which sites are enrolled and online, and where the runs stand."""
    from dpfedc.deployment.flower.store import Store
    from dpfedc.deployment.keys import fingerprint
    from dpfedc.deployment.runs import name_of, standing
    from dpfedc.deployment.server_folder import ServerFolder

    opened = ServerFolder.open(folder)
    nodes = Store(opened).nodes()
    how = "not encrypted" if opened.insecure else "TLS"
    print_paragraphs([f"Server: {opened.listen} port {opened.port}, {how}."])
    rows = [
        (name, fingerprint(line), "online" if nodes[name].online else "-")
        for name, line in opened.enrolled().items()
    ]
    print_table(("site", "key", "state"), rows)
    runs = sorted(opened.runs.glob("*/agreement.json"), key=lambda file: file.stat().st_mtime)
    if runs:
        paths = [file.parent for file in runs]
        print_table(
            ("run", "name", "state"),
            [(path.name[:12], name_of(path), standing(path)) for path in paths],
        )


def _admit(folder: Path) -> None:
    """Let a running server know at once."""
    from dpfedc.deployment.flower.store import Store
    from dpfedc.deployment.server_folder import ServerFolder

    Store(ServerFolder.open(folder))
