"""`dpfedc server`: the coordinator's side of a federation on separate machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedc.cli.console import print_paragraphs, print_path, print_sentence, print_table
from dpfedc.cli.options import count_option, flag_option
from dpfedc.cli.server_nats import ServerFolderArgument, nats_config, print_nodes, take_up

if TYPE_CHECKING:
    from dpfedc.deployment.server_folder import ServerFolder

server = typer.Typer(
    name="server",
    help="Set up and run the server that sites on other machines connect to.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_Hosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A host name or IP address by which sites reach this machine. Repeat it for more.",
        show_default=False,
    ),
]
_SOON_DAYS = 60
_UNKNOWN = "certificate verify failed"
"""In the words of TLS, a caller whose certificate is not among those that are enrolled."""


@server.command()
def init(
    folder: ServerFolderArgument,
    host: _Hosts = None,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.")
    ] = "0.0.0.0",
    port: Annotated[int, count_option("The port to listen on.")] = 8470,
    signed_port: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="A second port, for sites whose proxy opens TLS: their calls are signed one by "
            "one. 0: none.",
        ),
    ] = 0,
) -> None:
    """Make the folder of a new server: a certificate authority, certificates, keys, settings.

    Sites need ca.crt from it, and nothing else. All that ends in .key must stay private.
    """
    from dpfedc.deployment.server_folder import ServerFolder

    made = ServerFolder.create(
        folder, hosts=host or (), listen=listen, port=port, signed_port=signed_port
    )
    print_path("Server", made.path)
    print_path("For the sites", made.path / "ca.crt")
    if not host:
        print_sentence("No --host was given: only sites on this machine can connect.")


@server.command()
def start(folder: ServerFolderArgument) -> None:
    """Serve enrolled sites until interrupted. Runs are started with `dpfedc run start`."""
    from dpfedc.deployment.mailbox.https_server import serve
    from dpfedc.deployment.server_folder import ServerFolder
    from dpfedc.errors import InvalidInput
    from dpfedc.whole_files import locked

    opened = ServerFolder.open(folder)
    if opened.nats:
        raise InvalidInput(
            f"{folder} is carried by NATS: start nats-server -c nats.conf in the folder of each "
            f"node, in {folder / 'nats'}"
        )

    def on_ready() -> None:
        also = f", and port {opened.signed_port} for signed calls" if opened.signed_port else ""
        print_sentence(f"Listening on {opened.listen} port {opened.port}, with TLS{also}.")
        for words in _ending(opened):
            print_sentence(words)

    with locked(folder / "lock", refusal=f"another process serves {folder} already"):
        serve(opened, on_ready=on_ready)


@server.command()
def enrol(
    folder: ServerFolderArgument,
    key: Annotated[
        Path, typer.Argument(metavar="SITE.PUB", help="The site.pub that a site's operator sent.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The site's name, the one in its site.toml.",
            show_default="the name that site.pub is made out to",
        ),
    ] = None,
) -> None:
    """Admit a site. Compare the fingerprint with the site's operator, by telephone for example.

    The site.pub of `dpfedc site rotate-key` takes the place of the one that is enrolled. A server
    that runs takes it up at once.
    """
    from dpfedc.deployment.keys import fingerprint, read_certificate
    from dpfedc.deployment.server_folder import ServerFolder

    text = key.read_text(encoding="ascii", errors="replace")
    opened = ServerFolder.open(folder)
    chosen = opened.enrol(text, name)
    print_sentence(f"Enrolled {chosen}, key {fingerprint(read_certificate(text.encode()))}.")
    take_up(opened)


@server.command()
def remove(
    folder: ServerFolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name.")],
    forget_ledger: Annotated[
        bool,
        flag_option(
            "--forget-ledger",
            "Also forget what was seen of its ledger: if its key was stolen, the thief may have "
            "said it. A ledger put back from a backup then goes unseen once.",
        ),
    ] = False,
) -> None:
    """Stop admitting a site, for example because its key was lost. Its connections are cut."""
    from dpfedc.deployment.heads import KeptHeads
    from dpfedc.deployment.server_folder import ServerFolder

    opened = ServerFolder.open(folder)
    opened.remove(name)
    if forget_ledger:
        KeptHeads(folder).forget(name)
    print_sentence(f"Removed {name}.")
    take_up(opened)


@server.command()
def renew(folder: ServerFolderArgument, host: _Hosts = None) -> None:
    """Make new certificates for the server and its operator. Nothing changes for the sites.

    With --host the server is reached by these names from now on. A server that runs takes them up
    at once, and no run is disturbed.
    """
    from dpfedc.deployment.certificates import days_left
    from dpfedc.deployment.server_folder import ServerFolder

    opened = ServerFolder.open(folder)
    opened.renew(host or ())
    print_sentence(f"Renewed, for {days_left(opened.certificate_files[0])} days.")
    take_up(opened, renewed=True)


server.command()(nats_config)


@server.command()
def status(
    folder: ServerFolderArgument,
    as_json: Annotated[bool, flag_option("--json", "Print it as JSON.")] = False,
) -> None:
    """Show which sites are enrolled and online, who was turned away, and where the runs stand."""
    from dpfedc.deployment.server_folder import ServerFolder

    opened = ServerFolder.open(folder)
    content = _status(opened)
    if as_json:
        print(json.dumps(content, indent=1))
        return
    running = content["running"]
    if opened.nats:
        print_nodes(running)
    else:
        how = "with TLS" if running else "NOT RUNNING (dpfedc server start)"
        print_paragraphs([f"Server: {opened.listen} port {opened.port}, {how}."])
    rows = [
        (name, site["key"], "online" if site["online"] else "-")
        for name, site in content["sites"].items()
    ]
    print_table(("site", "key", "state"), rows)
    for file in content["unreadable"]:
        print_sentence(f"{file} holds no good certificate, and admits nobody.", style="red")
    if content["runs"]:
        print_table(
            ("run", "name", "state", "accepted by"),
            [
                (run["run"][:12], run["name"], run["state"], _accepted(run))
                for run in content["runs"]
            ],
        )
    if running and running.get("refused", {}).get("callers"):
        n_callers = running["refused"]["callers"]
        callers = "1 caller" if n_callers == 1 else f"{n_callers:,} callers"
        print_sentence(f"Turned away since the start: {callers}.")
        for entry in running["refused"]["last"]:
            who = entry.get("caller") or entry["address"]
            also = " (not enrolled, or removed)" if _UNKNOWN in entry["reason"] else ""
            print_sentence(f"{entry['at']} {who}: {entry['reason']}{also}")
    for words in _ending(opened):
        print_sentence(words)


def _status(folder: ServerFolder) -> dict[str, Any]:
    """Return what there is to know, as plain values."""
    from dpfedc.deployment.certificates import days_left
    from dpfedc.deployment.keys import fingerprint
    from dpfedc.deployment.mailbox.mailbox import ConnectionLost
    from dpfedc.deployment.mailbox.operator_side import mailbox_of

    mailbox = mailbox_of(folder)
    running: dict[str, Any] | None = None
    try:
        running = mailbox.status()
    except ConnectionLost:
        running = None
    finally:
        mailbox.close()
    online = {} if running is None else running.pop("online")
    sites, bad = folder.certificates()
    files = sorted(folder.runs.glob("*/agreement.json"), key=lambda file: file.stat().st_mtime)
    return {
        "listen": folder.listen,
        "port": folder.port,
        "signed_port": folder.signed_port,
        "nats": dict(folder.nats),
        "certificate_days_left": days_left(folder.certificate_files[0]),
        "running": running,
        "sites": {
            name: {"key": fingerprint(certificate), "online": bool(online.get(name))}
            for name, certificate in sites.items()
        },
        "unreadable": bad,
        "runs": [_run(file.parent) for file in files],
    }


def _run(path: Path) -> dict[str, Any]:
    """Return where a run stands, and what its sites have said as far as the server knows."""
    from dpfedc.deployment.decisions import Decisions
    from dpfedc.deployment.runs import name_of, sites_of, standing

    said = Decisions.read(path)
    return {
        "run": path.name,
        "name": name_of(path),
        "state": standing(path),
        "sites": sites_of(path),
        "accepted": sorted(said.accepted),
        "refused": said.refused,
    }


def _accepted(run: Mapping[str, Any]) -> str:
    from dpfedc.deployment.decisions import Decisions

    return Decisions(set(run["accepted"]), run["refused"]).in_words(run["sites"])


def _ending(folder: ServerFolder) -> list[str]:
    """Return a warning if the server's certificate ends soon."""
    from dpfedc.deployment.certificates import days_left

    left = days_left(folder.certificate_files[0])
    if left > _SOON_DAYS:
        return []
    return [f"The server's certificate ends in {left} days: dpfedc server renew {folder.path}"]
