"""What a NATS server must be told, so that it carries this federation and nothing else.

One account for the operator, one for each site: accounts see nothing of each other. A site's
account has one service, its answers, which only the operator may ask for; every question opens the
way back for one answer, and a site may send nothing else and hear nothing else. The system account
has no user; the operator may ask the nodes who they are, and have them read their file again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.certificates import certificate_pem, node_certificate
from dpfedc.deployment.keys import verifying_key
from dpfedc.deployment.mailbox.nats_wire import MAX_PAYLOAD, REQUEST, user_key
from dpfedc.deployment.server_folder import ServerFolder, with_loopback
from dpfedc.deployment.site_folder import require_address
from dpfedc.errors import InvalidInput
from dpfedc.whole_files import locked, write_together

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

PING_SUBJECT, RELOAD_SUBJECT = "nodes.ping", "nodes.reload"
MAX_CONNECTIONS, MAX_SUBSCRIPTIONS = 8, 8
"""Of one site, on all nodes together."""
MAX_PENDING = 2**30
"""Bytes that may wait for one reader. All sites may answer at once, and none of them may get the
operator cut off by it: this is enough for 4,000. A server that runs cannot change it."""
CONFIG = "nats.conf"
_CERTIFICATE, _KEY, _CALLERS, _AUTHORITY = "node.crt", "node.key", "callers.pem", "ca.crt"
_TAG = "configuration"


def site_subject(site: str) -> str:
    """Return the operator's subject for a site, in whose name a dot would begin another level."""
    return f"site.{site.replace('.', ':')}"


def one_at_a_time(folder: ServerFolder) -> AbstractContextManager[None]:
    """Keep other commands from writing the nodes' files, and having them read, meanwhile."""
    return locked(folder.path / "nats.lock")


def _account(site: str) -> str:
    return f"SITE-{site}"


@dataclass(frozen=True)
class Node:
    """A server, by the name and port by which all others reach it."""

    host: str
    port: int

    @classmethod
    def at(cls, address: str) -> Node:
        """Return the node at HOST:PORT."""
        host = require_address(address, "--node")
        return cls(host, int(address.rpartition(":")[2]))

    @property
    def address(self) -> str:
        """Return HOST:PORT, as callers write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """Return the name of its folder, and of itself in the cluster."""
        return f"{self.host.replace(':', '_')}-{self.port}"

    @property
    def route(self) -> str:
        """Return where the other nodes call it."""
        return self.address.removesuffix(str(self.port)) + str(self.cluster_port)

    @property
    def cluster_port(self) -> int:
        """Return the port for other nodes: 6222 where callers have 4222, as is usual."""
        return self.port + 2000

    @property
    def monitoring_port(self) -> int:
        """Return the port for monitoring: 8222 where callers have 4222, as is usual."""
        return self.port + 4000


@dataclass(frozen=True)
class Nodes:
    """All servers of a federation, and where each keeps its files."""

    folder: ServerFolder
    nodes: tuple[Node, ...]
    listen: str
    monitoring: bool

    @classmethod
    def of(cls, folder: ServerFolder) -> Nodes:
        """Return the nodes that a server's folder names."""
        try:
            settings = dict(folder.nats)
            nodes = tuple(Node.at(address) for address in settings["nodes"])
            made = cls(folder, nodes, str(settings["listen"]), bool(settings["monitoring"]))
        except (KeyError, TypeError) as error:
            raise InvalidInput(
                f"nats in {folder.path / 'server.toml'} must have nodes, listen and monitoring: "
                "dpfedc server nats-config writes them"
            ) from error
        made._require_ports()
        return made

    def _require_ports(self) -> None:
        """Refuse nodes that could not be started, or not beside each other."""
        addresses = [node.address.lower() for node in self.nodes]
        if not addresses or len({*addresses}) < len(addresses):
            raise InvalidInput(f"there must be nodes, each of them once, got {addresses}")
        takers: dict[tuple[str, int], Node] = {}
        for node in self.nodes:
            for port, what in self._ports(node).items():
                if port > 65535:
                    raise InvalidInput(
                        f"the port of a node must be at most {65535 - (port - node.port)}, since "
                        f"{what} is {port - node.port} higher, got {node.address}"
                    )
                other = takers.setdefault((node.host.lower(), port), node)
                if other != node:
                    raise InvalidInput(
                        f"nodes on one host must not share ports, got {other.address} and "
                        f"{node.address}, which both take {port} (in a cluster a node also takes "
                        "the port that is 2000 higher, with monitoring the one that is 4000 higher)"
                    )

    def _ports(self, node: Node) -> dict[int, str]:
        """Return all ports that a node takes, and what each is for."""
        ports = {node.port: "its own"}
        if len(self.nodes) > 1:
            ports[node.cluster_port] = "the one for other nodes"
        if self.monitoring:
            ports[node.monitoring_port] = "the one for monitoring"
        return ports

    @classmethod
    def chosen(
        cls, folder: ServerFolder, addresses: Sequence[str], *, listen: str, monitoring: bool
    ) -> Nodes:
        """Have these nodes carry the federation from now on."""
        settings = {"nodes": [*addresses], "listen": listen, "monitoring": monitoring}
        cls.of(replace(folder, nats=settings))  # or nothing is written
        with one_at_a_time(folder):
            return cls.of(folder.over_nats(settings))

    def place(self, node: Node) -> Path:
        """Return the folder of a node, which is to be copied to its machine as it is."""
        return self.folder.path / "nats" / node.name

    @property
    def for_sites(self) -> str:
        """Return what a site's operator gives as --server."""
        return "nats://" + ",".join(node.address for node in self.nodes)

    def write(self, *, renewed: bool = False) -> list[str]:
        """Write the files of all nodes from what is enrolled; return those without a certificate.

        What nats-server, where it is installed here, finds fault with is not written.
        """
        sites, bad = self.folder.certificates()
        drafts = {}
        for node in self.nodes:
            place = self.place(node)
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o700)
            files = self._files(node, sites, renewed=renewed)
            _require_good(place, files)
            drafts[place] = files
        for place, files in drafts.items():
            write_together(place, files, private=(_KEY, CONFIG))
        return bad

    def _files(
        self, node: Node, sites: Mapping[str, Certificate], *, renewed: bool
    ) -> dict[str, bytes]:
        place, folder = self.place(node), self.folder
        if renewed or not (place / _KEY).exists():
            certificate, key = node_certificate(folder.path, with_loopback([node.host]))
        else:
            _require_pair(place, folder.path)
            certificate, key = ((place / file).read_bytes() for file in (_CERTIFICATE, _KEY))
        authority = folder.authority.read_bytes()
        files = {
            # The authority vouches for the operator, whose certificate may be renewed at any time.
            _CALLERS: authority + b"".join(map(certificate_pem, sites.values())),
            _AUTHORITY: authority,
            _CERTIFICATE: certificate,
            _KEY: key,
        }
        settings = self._settings(node, sites)
        state = hashlib.sha256(json.dumps(settings).encode())
        for file in (_CALLERS, _CERTIFICATE):
            state.update(files[file])
        # By this a node says later which of our files it has read.
        settings["server_tags"] = [f"{_TAG}:{state.hexdigest()[:16]}"]
        files[CONFIG] = json.dumps(settings, indent=1).encode()
        return files

    def _settings(self, node: Node, sites: Mapping[str, Certificate]) -> dict[str, Any]:
        tls = {"cert_file": _CERTIFICATE, "key_file": _KEY, "verify": True, "min_version": "1.3"}
        settings: dict[str, Any] = {
            "server_name": node.name,
            "host": self.listen,
            "port": node.port,
            "tls": {**tls, "ca_file": _CALLERS, "handshake_first": True, "timeout": 30},
            "authorization": {"timeout": 35},
            "accounts": self._accounts(sites),
            "system_account": "SYSTEM",
            "max_payload": MAX_PAYLOAD,
            "max_pending": MAX_PENDING,
            "write_deadline": "60s",
            "ping_interval": "20s",
            "ping_max": 2,
            "lame_duck_duration": "30s",
            "lame_duck_grace_period": "2s",
        }
        if self.monitoring:
            settings["http"] = f"127.0.0.1:{node.monitoring_port}"
        if len(self.nodes) > 1:
            settings["cluster"] = {
                "name": "dpfedc",
                "host": self.listen,
                "port": node.cluster_port,
                "tls": {**tls, "ca_file": _AUTHORITY, "timeout": 30},
                "routes": [f"nats://{other.route}" for other in self.nodes if other != node],
                # A caller has all addresses, and takes none from a server.
                "no_advertise": True,
            }
        return settings

    def _accounts(self, sites: Mapping[str, Certificate]) -> dict[str, Any]:
        ping, reload = "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.*.RELOAD"
        services = [
            (_account(site), REQUEST, site_subject(site)) for site in sites
        ] + [("SYSTEM", ping, PING_SUBJECT), ("SYSTEM", reload, f"{RELOAD_SUBJECT}.*")]  # fmt: skip
        accounts: dict[str, Any] = {
            "SYSTEM": {
                "exports": [
                    {"service": ping, "response": "Stream", "accounts": ["OPERATOR"]},
                    {"service": reload, "accounts": ["OPERATOR"]},
                ]
            },
            "OPERATOR": {
                "users": [{"nkey": _user(self.folder.operator.certificate)}],
                "imports": [
                    {"service": {"account": account, "subject": subject}, "to": to}
                    for account, subject, to in services
                ],
            },
        }
        for site, certificate in sites.items():
            permissions = {
                "subscribe": {"allow": [REQUEST]},
                "publish": {"deny": [">"]},
                "allow_responses": {"max": 1, "expires": "1m"},
            }
            accounts[_account(site)] = {
                "users": [{"nkey": _user(certificate), "permissions": permissions}],
                "exports": [{"service": REQUEST, "accounts": ["OPERATOR"]}],
                "limits": {
                    "max_connections": MAX_CONNECTIONS,
                    "max_subscriptions": MAX_SUBSCRIPTIONS,
                    "max_payload": MAX_PAYLOAD,
                    "max_leafnodes": 0,
                },
            }
        return accounts

    def said(self, answers: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any] | None]:
        """Return of each node what it says of itself, None if it has said nothing."""
        found: dict[str, dict[str, Any] | None] = dict.fromkeys(node.name for node in self.nodes)
        for answer in answers:
            server = answer.get("server", {})
            if server.get("name") in found:
                found[server["name"]] = {
                    "id": server.get("id"),
                    "version": server.get("ver"),
                    "connections": answer.get("statsz", {}).get("connections"),
                    "current": server.get("tags") == self._tags(str(server["name"])),
                }
        return found

    def _tags(self, name: str) -> Any:
        """Return the tags of the file that a node should have read."""
        return json.loads((self.folder.path / "nats" / name / CONFIG).read_bytes())["server_tags"]


def _user(certificate: Certificate) -> str:
    return user_key(verifying_key(certificate).public_bytes_raw())


def _require_pair(place: Path, folder: Path) -> None:
    """Refuse a node's certificate and key that no server could use, and say how to get others."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place / _CERTIFICATE, place / _KEY)
    except OSError as error:  # also what ssl finds fault with
        raise InvalidInput(
            f"{_CERTIFICATE} and {_KEY} in {place} must be a certificate and its key, so the files "
            f"of all nodes stay as they were: dpfedc server renew {folder} makes new ones ({error})"
        ) from error


def _require_good(place: Path, files: Mapping[str, bytes]) -> None:
    """Refuse files that nats-server would refuse; without one here, the nodes themselves will."""
    program = shutil.which("nats-server")
    if program is None:
        return
    draft = place / ".draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    try:
        write_together(draft, files, private=tuple(files))
        done = subprocess.run(
            [program, "-t", "-c", CONFIG], cwd=draft, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise InvalidInput(
                f"nats-server does not take the configuration, so the old one stays: "
                f"{done.stderr.strip()[-500:]}"
            )
    finally:
        shutil.rmtree(draft, ignore_errors=True)
