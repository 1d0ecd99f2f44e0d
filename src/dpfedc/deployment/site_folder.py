"""A site's folder: its settings, its key, its ledger, and the runs that were offered to it."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.keys import write_site_key
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.tables.persons import DeclaredPersons
from dpfedc.tables.schema import Schema
from dpfedc.whole_files import write_whole

if TYPE_CHECKING:
    from dpfedc.deployment.agreement import Agreement
    from dpfedc.privacy.ledger.caps import Cap
    from dpfedc.tables.encode import Records
    from dpfedc.tables.sources import DataSource

AGREEMENT, ACCEPTED, MODEL = "agreement.json", "accepted", "model.npz"
SCHEMA, PERSONS = "schema.toml", "persons"
MAX_PENDING = 20
"""A server cannot fill a site's disk with offers that nobody accepts."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def require_name(name: str) -> str:
    """Return a site's name; it becomes a file's name, so it is kept to plain characters."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"a site's name must be 1 to 64 letters, digits, '.', '_' or '-', got {name!r}"
        )
    return name


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_loopback(host: str) -> None:
    """Refuse plain text on any address that another machine could reach."""
    if not is_loopback(host):
        raise InvalidInput(f"--insecure must stay on a loopback address, got {host}")


def require_address(address: str) -> str:
    """Return HOST:PORT without the brackets that only IPv6 needs; refuse anything else."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 2**16:
        raise InvalidInput(f"--server must be HOST:PORT, got {address!r}")
    return match["host"].strip("[]")


def require_readable(data: Mapping[str, Any]) -> None:
    """Refuse a table of which one cell could make all unreadable, which the server would see."""
    if str(data.get("path", "")).lower().endswith(".xlsx"):
        raise InvalidInput(
            "a site's table must not be a workbook, in which one cell can make all unreadable: "
            "save it as .csv or .parquet"
        )


@dataclass(frozen=True)
class SiteFolder:
    """What a site's operator keeps. `records` is the number of records that the site declares."""

    path: Path
    name: str
    server: str
    records: int
    data: Mapping[str, Any]
    insecure: bool = False

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        name: str,
        server: str,
        authority: Path | None,
        data: Mapping[str, Any],
        records: int,
        cap: Cap,
        holding: str,
        schema: Path | None = None,
        persons: DeclaredPersons | None = None,
    ) -> SiteFolder:
        """Make the folder of a new site; without an authority there is no TLS.

        With `persons` the lifetime cap is for one person, otherwise for one record. The `schema` is
        kept as it is.
        """
        from dpfedc.privacy.ledger import Ledger

        require_name(name)
        require_readable(data)
        host = require_address(server)
        if authority is None:
            require_loopback(host)
        elif "BEGIN CERTIFICATE" not in authority.read_text(encoding="utf-8", errors="replace"):
            raise InvalidInput(f"{authority} must be the server's ca.crt, got no certificate")
        if path.exists() and any(path.iterdir()):
            raise InvalidInput(f"{path} must be a new or empty folder, got one with content")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        (path / "runs").mkdir()
        write_site_key(path, name)
        if authority is not None:
            shutil.copyfile(authority, path / "ca.crt")
        unit = "record" if persons is None else "person"
        Ledger.create(path / "ledger.sqlite", holding=holding, cap=cap, unit=unit).close()
        folder = cls(path, name, server, records, dict(data), authority is None)
        return folder.declaring(records, persons, schema)

    def write(self) -> None:
        """Write the settings."""
        import tomli_w

        names = ("name", "server", "records", "insecure", "data")
        settings = {name: getattr(self, name) for name in names}
        write_whole(self.path / "site.toml", tomli_w.dumps(settings).encode())

    @classmethod
    def open(cls, path: Path) -> SiteFolder:
        """Open a folder that `create` made."""
        try:
            settings = tomllib.loads((path / "site.toml").read_text(encoding="utf-8"))
            folder = cls(path, **settings)
        except FileNotFoundError as error:
            raise DataUnavailable(f"{path} is not a site's folder: no site.toml") from error
        except (tomllib.TOMLDecodeError, TypeError) as error:
            raise InvalidInput(f"{path / 'site.toml'} cannot be read: {error}") from error
        if folder.insecure:
            require_loopback(require_address(folder.server))
        return folder

    def declaring(
        self,
        records: int,
        persons: DeclaredPersons | None = None,
        schema: Path | None = None,
    ) -> SiteFolder:
        """Declare so many records from now on, or these persons, perhaps by another schema."""
        folder = replace(self, records=records)
        if schema is not None:
            write_whole(self.path / SCHEMA, schema.read_bytes())
        if persons is None:
            (self.path / PERSONS).unlink(missing_ok=True)
        else:
            write_whole(self.path / PERSONS, persons.to_bytes(), private=True)
        folder.write()
        return folder

    @property
    def schema(self) -> Schema | None:
        """Return what the table is, if that was said."""
        path = self.path / SCHEMA
        return Schema.read(path).for_site() if path.exists() else None

    @property
    def persons(self) -> DeclaredPersons | None:
        """Return the declared persons; None where each row is a record."""
        path = self.path / PERSONS
        return DeclaredPersons.from_bytes(path.read_bytes()) if path.exists() else None

    @property
    def unit(self) -> str:
        """Return what a slot is: a row, or a person, who is then named and declared."""
        schema, declared = self.schema, self.persons is not None
        named = self.data.get("person") if schema is None else schema.person
        if (named is not None) != declared:
            raise InvalidInput(
                "the site's persons must be declared if its table has any, and only then: "
                "`dpfedc site check FOLDER --declare`"
            )
        return "person" if declared else "record"

    def load(self, agreement: Agreement) -> Records:
        """Return the records of a run, in the slots that were declared."""
        expected = agreement.schema or agreement.features
        persons = self.persons if self.unit == "person" else None
        if persons is None:
            return self.source.load(expected)
        return self.source.load(expected, persons=persons.digests, key=persons.digest)

    @property
    def source(self) -> DataSource:
        """Return where the records are."""
        from dpfedc.tables.sources import DataSource

        require_readable(self.data)
        return DataSource.of(self.data, folder=self.path)

    @property
    def ledger(self) -> Path:
        """Return the ledger's file."""
        return self.path / "ledger.sqlite"

    @property
    def authority(self) -> bytes | None:
        """Return the certificate that the server's must come from, None without TLS."""
        return None if self.insecure else (self.path / "ca.crt").read_bytes()

    def keep(self, agreement: Agreement) -> None:
        """Keep an offered agreement for the operator to read."""
        folder = self.run(agreement.digest)
        if (folder / AGREEMENT).exists():
            return
        pending = [run for run in self.offered() if not self.is_accepted(run)]
        if len(pending) >= MAX_PENDING:
            raise InvalidInput(f"there must be less than {MAX_PENDING} offers that wait here")
        folder.mkdir(exist_ok=True)
        write_whole(folder / AGREEMENT, agreement.to_json().encode())

    def offered(self) -> Iterator[str]:
        """Return the digests of the runs that were offered, the oldest first."""
        files = (self.path / "runs").glob(f"*/{AGREEMENT}")
        return iter([f.parent.name for f in sorted(files, key=lambda f: f.stat().st_mtime)])

    def agreement(self, digest: str) -> Agreement:
        """Return an offered agreement, checked against its digest."""
        from dpfedc.deployment.agreement import Agreement

        agreement = Agreement.from_json((self.run(digest) / AGREEMENT).read_text(encoding="utf-8"))
        if agreement.digest != digest:
            raise InvalidInput(f"the agreement of run {digest[:12]} has been changed on the disk")
        return agreement

    def is_accepted(self, digest: str) -> bool:
        """Return whether the operator has accepted a run."""
        return (self.run(digest) / ACCEPTED).exists()

    def accept(self, digest: str) -> None:
        """Accept a run that was offered."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_whole(self.run(digest) / ACCEPTED, f"{now}\n{self._slots()}\n".encode())

    def require_same_slots(self, digest: str) -> None:
        """Refuse to go on with a run whose slots were declared anew since it was accepted."""
        _, *slots = (self.run(digest) / ACCEPTED).read_text(encoding="utf-8").splitlines()
        if slots and slots != [self._slots()]:
            raise InvalidInput(
                f"run {digest[:12]} was accepted for other records than are declared now; it can "
                "only be offered anew"
            )

    def _slots(self) -> str:
        """Return what tells one declaration from another; it stays here."""
        path = self.path / PERSONS
        named = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "rows"
        return f"{self.records} {named}"

    def run(self, digest: str) -> Path:
        """Return the folder of a run."""
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise InvalidInput(f"a run must be 64 hexadecimal digits, got {digest[:80]!r}")
        return self.path / "runs" / digest

    def resolve(self, start: str) -> str:
        """Return the one offered run whose digest starts so ("": the one that waits)."""
        found = [run for run in self.offered() if run.startswith(start)]
        if not start:
            found = [run for run in found if not self.is_accepted(run)]
        if len(found) != 1:
            known = ", ".join(run[:12] for run in self.offered()) or "none"
            what = f"{start!r} must be the start of" if start else "there must be"
            raise InvalidInput(f"{what} one offered run, got {len(found)}; known: {known}")
        return found[0]
