"""`dpfedc server nats-config`: the servers of a federation that NATS carries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedc.cli.console import print_paragraphs, print_path, print_sentence, print_table
from dpfedc.cli.options import flag_option

if TYPE_CHECKING:
    from dpfedc.deployment.server_folder import ServerFolder

ServerFolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The server's folder.")
]


def nats_config(
    folder: ServerFolderArgument,
    node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A nats-server, by the name and port that sites call. Repeat it for a cluster, "
            "whose nodes call each other on the port that is 2000 higher.",
            show_default="those of before",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="With --node: the address to listen on.")
    ] = "0.0.0.0",
    monitoring: Annotated[
        bool,
        flag_option(
            "--monitoring",
            "With --node: answer to monitoring, on 127.0.0.1 and a port that is 4000 higher.",
        ),
    ] = False,
) -> None:
    """Have NATS carry this federation: write what its servers need, and have them read it.

    Each node's folder, in FOLDER/nats, goes to its machine, where `nats-server -c nats.conf` is
    started in it. Given again without --node, it writes the files anew and has all nodes read them.
    """
    from dpfedc.deployment.mailbox.nats_config import Nodes
    from dpfedc.deployment.mailbox.nats_wire import require_nats
    from dpfedc.deployment.server_folder import ServerFolder
    from dpfedc.errors import InvalidInput

    require_nats()
    opened = ServerFolder.open(folder)
    if node:
        opened = Nodes.chosen(opened, node, listen=listen, monitoring=monitoring).folder
    elif not opened.nats:
        raise InvalidInput("there must be a --node HOST:PORT at first, got none")
    nodes = Nodes.of(opened)
    take_up(opened)
    for each in nodes.nodes:
        print_path("Node", nodes.place(each))
    print_sentence(f"For the sites: --server {nodes.for_sites}")


def take_up(folder: ServerFolder, *, renewed: bool = False) -> None:
    """Tell a federation's NATS servers, if it has some, what has changed."""
    if not folder.nats:
        return
    from dpfedc.deployment.mailbox.nats_operator import NOT_THERE, taken_up

    wrong = taken_up(folder, renewed=renewed)
    if wrong and set(wrong.values()) == {NOT_THERE}:
        which = (
            "No node can"
            if len(wrong) == len(folder.nats["nodes"])
            else f"{', '.join(wrong)} cannot"
        )
        print_sentence(f"{which} be reached: a node goes by it once it is started.")
        return
    for name, why in sorted(wrong.items()):
        print_sentence(f"{name} does not go by it yet: {why}.", style="red")
    if wrong:
        print_sentence(
            f"A node on another machine needs a copy of its folder, in {folder.path / 'nats'}; "
            f"then: dpfedc server nats-config {folder.path}"
        )


def print_nodes(running: Mapping[str, Any] | None) -> None:
    """Show how the nodes are, in a table."""
    if running is None:
        print_paragraphs(["Carried by NATS: NOT RUNNING (nats-server, see `server nats-config`)."])
        return
    rows = []
    for name, node in running["nodes"].items():
        if node is None:
            rows.append((name, "-", "-", "NOT RUNNING, or cut off from the others"))
            continue
        state = "as it should be" if node["current"] else "WITH OLD FILES (server nats-config)"
        rows.append((name, node["version"], str(node["connections"]), state))
    print_table(("node", "nats-server", "connections", "state"), rows)
