"""The server's folder: its settings, certificates, the certificates of enrolled sites, its runs."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.certificates import (
    AUTHORITY,
    OPERATOR,
    SERVER,
    certificate_pem,
    good_site_certificate,
    renew_server_certificates,
    takes_the_place_of,
    write_server_certificates,
)
from dpfedc.deployment.keys import (
    Identity,
    fingerprint,
    name_in,
    pin,
    private_pem,
    read_certificate,
    require_cryptography,
    require_private,
    write_private,
)
from dpfedc.deployment.site_folder import require_name
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.settings import require_integer
from dpfedc.whole_files import write_whole

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

LOOPBACK = ("localhost", "127.0.0.1")
OLD_KEY = "receipts.key"
"""What version 0.1 had in place of operator.key."""


@dataclass(frozen=True)
class ServerFolder:
    """What the server's operator keeps. Whoever can read its keys can start runs, and nobody else.

    `signed_port` is for sites whose calls come through a proxy that opens TLS (0: there is none).
    """

    path: Path
    listen: str
    port: int
    signed_port: int = 0
    nats: Mapping[str, Any] = field(default_factory=dict)
    """The nodes, if this federation is carried by NATS (`mailbox.nats_config`)."""

    @classmethod
    def create(
        cls, path: Path, *, hosts: Sequence[str], listen: str, port: int, signed_port: int = 0
    ) -> ServerFolder:
        """Make the folder of a new server that sites will reach by the names `hosts`."""
        require_integer("port", port, least=1, most=65535)
        require_integer("signed_port", signed_port, least=0, most=65535)
        if path.exists() and any(path.iterdir()):
            raise InvalidInput(f"{path} must be a new or empty folder, got one with content")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        (path / "sites").mkdir()
        (path / "runs").mkdir()
        write_server_certificates(path, with_loopback(hosts))
        cls(path, listen, port, signed_port)._write()
        return cls.open(path)

    def _write(self) -> None:
        import tomli_w

        names = ("listen", "port", "signed_port", *(["nats"] if self.nats else []))
        settings = {name: getattr(self, name) for name in names}
        write_whole(self.path / "server.toml", tomli_w.dumps(settings).encode())

    def over_nats(self, settings: Mapping[str, Any]) -> ServerFolder:
        """Have this federation carried by these nodes from now on."""
        folder = replace(self, nats=dict(settings))
        folder._write()
        return folder

    @classmethod
    def open(cls, path: Path) -> ServerFolder:
        """Open a folder that `create` made."""
        try:
            settings = tomllib.loads((path / "server.toml").read_text(encoding="utf-8"))
            if settings.pop("insecure", False):  # of version 0.1
                raise InvalidInput(f"{path} must be served with TLS: take insecure out of its toml")
            return cls(path, **settings)
        except FileNotFoundError as error:
            raise DataUnavailable(f"{path} is not a server's folder: no server.toml") from error
        except (tomllib.TOMLDecodeError, TypeError) as error:
            raise InvalidInput(f"{path / 'server.toml'} cannot be read: {error}") from error

    @property
    def operator(self) -> Identity:
        """Return the identity that starts runs and signs requests."""
        if (self.path / OLD_KEY).exists():
            raise InvalidInput(
                f"{self.path} was made by version 0.1: `dpfedc server renew` brings it up to date"
            )
        return Identity.read(self.path / f"{OPERATOR}.key", self.path / f"{OPERATOR}.crt")

    @property
    def authority(self) -> Path:
        """Return the certificate that sites have."""
        return self.path / f"{AUTHORITY}.crt"

    @cached_property
    def receipt_key(self) -> bytes:
        """Return the operator's private key, 32 bytes, which signs receipts too."""
        return self.operator.key.private_bytes_raw()

    @property
    def runs(self) -> Path:
        """Return the folder of the runs."""
        return self.path / "runs"

    def renew(self, hosts: Sequence[str] = ()) -> None:
        """Make new certificates for server and operator; the authority and the names may stay."""
        old = self.path / OLD_KEY
        if old.exists():  # the same key, so that runs under way can be resumed
            require_cryptography()
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

            raw = bytes.fromhex(require_private(old).decode())
            new = self.path / f"{OPERATOR}.key"
            new.unlink(missing_ok=True)
            write_private(new, private_pem(Ed25519PrivateKey.from_private_bytes(raw)))
        renew_server_certificates(self.path, with_loopback(hosts) if hosts else None)
        old.unlink(missing_ok=True)

    def enrolled(self) -> dict[str, Certificate]:
        """Return the certificate of each enrolled site, by its name.

        A file that holds no good certificate admits nobody (`unreadable`), and is no reason to keep
        those in force that were removed.
        """
        return self.certificates()[0]

    def unreadable(self) -> list[str]:
        """Return the files of sites that hold no good certificate."""
        return self.certificates()[1]

    def certificates(self) -> tuple[dict[str, Certificate], list[str]]:
        """Return both: the enrolled sites, and the files that admit nobody."""
        found, bad = {}, []
        for file in sorted((self.path / "sites").glob("*.pub")):
            try:
                found[file.stem] = good_site_certificate(file.read_bytes())
            except InvalidInput:
                bad.append(f"sites/{file.name}")
            except FileNotFoundError:  # removed meanwhile
                continue
        return found, bad

    def enrolled_site(self, name: str) -> Certificate | None:
        """Return the certificate that a site is enrolled with now, None if it is not."""
        try:
            return read_certificate((self.path / "sites" / f"{name}.pub").read_bytes())
        except FileNotFoundError:
            return None

    def enrol(self, text: str, name: str | None = None) -> str:
        """Admit the owner of a site.pub, and return the name it has from now on.

        One name, one certificate, unless the new one is signed by the key that it replaces.
        """
        certificate = good_site_certificate(text.encode())
        chosen = require_name(name_in(certificate) if name is None else name)
        enrolled = self.enrolled()
        for other, known in enrolled.items():
            if pin(known) == pin(certificate):
                raise InvalidInput(f"this certificate is enrolled already, as {other!r}")
            if other != chosen and fingerprint(known) == fingerprint(certificate):
                raise InvalidInput(f"this key is enrolled already, as {other!r}")
            if other == chosen and not takes_the_place_of(known, text):
                raise InvalidInput(
                    f"the name {chosen!r} is taken by the certificate {fingerprint(known)}; "
                    "remove it first"
                )
        if chosen.lower() in {other.lower() for other in enrolled if other != chosen}:
            raise InvalidInput(f"a name must differ from others by more than case, got {chosen!r}")
        # Written from what was read: whatever else stands in the file stays out.
        write_whole(self.path / "sites" / f"{chosen}.pub", certificate_pem(certificate))
        return chosen

    def remove(self, name: str) -> None:
        """Refuse a site from now on. A server that runs cuts its connections.

        What was seen of its ledger is kept: it holds for whoever has this name next.
        """
        try:
            (self.path / "sites" / f"{require_name(name)}.pub").unlink()
        except FileNotFoundError as error:
            known = ", ".join(sorted(f.stem for f in (self.path / "sites").glob("*.pub"))) or "none"
            raise InvalidInput(f"no site {name!r} is enrolled; known: {known}") from error

    @property
    def certificate_files(self) -> tuple[Path, Path]:
        """Return the server's certificate and key."""
        return self.path / f"{SERVER}.crt", self.path / f"{SERVER}.key"

    def standing(self) -> tuple[object, ...]:
        """Return what changes whenever a certificate comes, goes or is renewed.

        Times alone would not do: two changes may fall into one tick of the clock.
        """
        with os.scandir(self.path / "sites") as entries:
            sites = sorted((entry.name, entry.inode()) for entry in entries)
        files = (self.path / "sites", self.certificate_files[0], self.path / f"{OPERATOR}.crt")
        stats = [file.stat() for file in files]
        return (*sites, *((stat.st_ino, stat.st_mtime_ns) for stat in stats))


def with_loopback(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the names by which a machine is reached, also from itself."""
    return tuple(dict.fromkeys((*hosts, *LOOPBACK)))
