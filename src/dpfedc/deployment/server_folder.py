"""The server's folder: its settings, certificates, the public keys of enrolled sites, its runs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfedc.deployment.certificates import write_server_certificates
from dpfedc.deployment.keys import (
    fingerprint,
    new_key,
    read_public_key,
    require_private,
    write_private,
)
from dpfedc.deployment.site_folder import require_loopback, require_name
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.settings import require_integer
from dpfedc.whole_files import write_whole

LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class ServerFolder:
    """What the server's operator keeps. Whoever can write here can start runs, and nobody else."""

    path: Path
    listen: str
    port: int
    insecure: bool = False

    @classmethod
    def create(
        cls, path: Path, *, hosts: Sequence[str], listen: str, port: int, insecure: bool = False
    ) -> ServerFolder:
        """Make the folder of a new server that sites will reach by the names `hosts`."""
        import tomli_w

        require_integer("port", port, least=1, most=65535)
        if insecure:
            require_loopback(listen)
        if path.exists() and any(path.iterdir()):
            raise InvalidInput(f"{path} must be a new or empty folder, got one with content")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        (path / "sites").mkdir()
        (path / "runs").mkdir()
        write_private(path / "receipts.key", new_key().hex().encode() + b"\n")
        write_server_certificates(path, tuple(dict.fromkeys((*hosts, *LOOPBACK))))
        settings = {"listen": listen, "port": port, "insecure": insecure}
        write_whole(path / "server.toml", tomli_w.dumps(settings).encode())
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> ServerFolder:
        """Open a folder that `create` made."""
        try:
            settings = tomllib.loads((path / "server.toml").read_text(encoding="utf-8"))
            folder = cls(path, **settings)
        except FileNotFoundError as error:
            raise DataUnavailable(f"{path} is not a server's folder: no server.toml") from error
        except (tomllib.TOMLDecodeError, TypeError) as error:
            raise InvalidInput(f"{path / 'server.toml'} cannot be read: {error}") from error
        if folder.insecure:
            require_loopback(folder.listen)
        return folder

    @property
    def database(self) -> Path:
        """Return the file of Flower's store. It can be deleted while no run is under way."""
        return self.path / "flower.db"

    @property
    def receipt_key(self) -> bytes:
        """Return the private key that signs receipts."""
        try:
            return bytes.fromhex(require_private(self.path / "receipts.key").decode())
        except ValueError as error:
            raise InvalidInput(f"{self.path / 'receipts.key'} must be hexadecimal") from error

    @property
    def runs(self) -> Path:
        """Return the folder of the runs."""
        return self.path / "runs"

    def enrolled(self) -> dict[str, str]:
        """Return the public key of each enrolled site, by its name."""
        files = sorted((self.path / "sites").glob("*.pub"))
        return {file.stem: file.read_text(encoding="utf-8").strip() for file in files}

    def enrol(self, name: str, line: str) -> None:
        """Admit the holder of a key under a name; one name, one key."""
        require_name(name)
        read_public_key(line)
        key = " ".join(line.split()[:2])
        for other, known in self.enrolled().items():
            if known == key:
                raise InvalidInput(f"this key is enrolled already, as {other!r}")
            if other == name:
                raise InvalidInput(
                    f"the name {name!r} is taken by the key {fingerprint(known)}; remove it first"
                )
        (self.path / "sites" / f"{name}.pub").write_text(key + "\n", encoding="utf-8")

    def remove(self, name: str) -> None:
        """Refuse a site from now on."""
        try:
            (self.path / "sites" / f"{require_name(name)}.pub").unlink()
        except FileNotFoundError as error:
            known = ", ".join(self.enrolled()) or "none"
            raise InvalidInput(f"no site {name!r} is enrolled; known: {known}") from error
