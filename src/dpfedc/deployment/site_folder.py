"""A site's folder: its settings, its key, its ledger and its runs."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.certificates import write_site_key
from dpfedc.deployment.keys import (
    SITE_KEY,
    SITE_NAME,
    SITE_PUB,
    Identity,
    fingerprint,
    is_authority,
    read_certificate,
)
from dpfedc.deployment.mailbox.mailbox import NATS, is_nats
from dpfedc.deployment.offered_runs import OfferedRuns
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.tables.persons import DeclaredPersons
from dpfedc.tables.schema import Schema
from dpfedc.whole_files import sync_folder, write_whole

if TYPE_CHECKING:
    from dpfedc.deployment.agreement import Agreement
    from dpfedc.privacy.ledger.caps import Cap
    from dpfedc.tables.encode import Records
    from dpfedc.tables.sources import DataSource

SCHEMA, PERSONS, PROXY_CA, NEXT = "schema.toml", "persons", "proxy-ca.crt", "next"
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def require_name(name: str) -> str:
    """Return a site's name, if it has plain characters only."""
    if not SITE_NAME.fullmatch(name):
        raise InvalidInput(
            f"a site's name must be 1 to 64 letters, digits, '.', '_' or '-', got {name!r}"
        )
    return name


def require_address(address: str, option: str = "--server") -> str:
    """Return HOST:PORT without the brackets that only IPv6 needs; refuse anything else."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 2**16:
        raise InvalidInput(f"{option} must be HOST:PORT, got {address!r}")
    return match["host"].strip("[]")


def require_server(address: str, *, opened_on_the_way: bool) -> None:
    """Refuse what a site cannot call: HOST:PORT, or nats://HOST:PORT,HOST:PORT."""
    for each in address.removeprefix(NATS).split(",") if is_nats(address) else [address]:
        require_address(each)
    if is_nats(address) and opened_on_the_way:
        raise InvalidInput(
            "a server over NATS cannot be called through a proxy that opens TLS: such a site needs "
            "a server over HTTPS, with --signed-port"
        )


def require_readable(data: Mapping[str, Any]) -> None:
    """Refuse a table of which one cell could make all unreadable, which the server would see."""
    if str(data.get("path", "")).lower().endswith(".xlsx"):
        raise InvalidInput(
            "a site takes no workbooks, in which one cell can make all unreadable: save it as .csv "
            "or .parquet"
        )


def require_authorities(server: Path, proxy: Path | None) -> None:
    """Refuse files that hold no authority's certificate: a site would never get through with them.

    A proxy's may be of an old kind, which does not say that it is one.
    """
    for file in (server, proxy):
        if file is None:
            continue
        expected = f"{file} must be the ca.crt of an authority"
        if not file.is_file():
            raise DataUnavailable(f"{expected}, got no such file")
        try:
            certificate = read_certificate(file.read_bytes())
        except InvalidInput as error:
            raise InvalidInput(f"{expected}, got no certificate") from error
        if file is server and not is_authority(certificate):
            raise InvalidInput(f"{expected}, got the certificate of something else")


@dataclass(frozen=True)
class SiteFolder(OfferedRuns):
    """What a site's operator keeps. `records` is the number of records that the site declares."""

    name: str
    server: str
    records: int
    data: Mapping[str, Any]
    inspected: bool = False
    """Whether a proxy opens TLS on the way, so that calls are signed one by one."""

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        name: str,
        server: str,
        authority: Path,
        proxy_authority: Path | None = None,
        data: Mapping[str, Any],
        records: int,
        cap: Cap,
        holding: str,
        schema: Path | None = None,
        persons: DeclaredPersons | None = None,
    ) -> SiteFolder:
        """Make the folder of a new site, which trusts the server's authority, and its proxy's.

        With `persons` the lifetime cap is for one person, otherwise for one record. The `schema` is
        kept as it is.
        """
        from dpfedc.privacy.ledger import Ledger

        require_name(name)
        require_readable(data)
        require_server(server, opened_on_the_way=proxy_authority is not None)
        require_authorities(authority, proxy_authority)
        if path.exists() and any(path.iterdir()):
            raise InvalidInput(f"{path} must be a new or empty folder, got one with content")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        (path / "runs").mkdir()
        write_site_key(path, name)
        shutil.copyfile(authority, path / "ca.crt")
        if proxy_authority is not None:
            shutil.copyfile(proxy_authority, path / PROXY_CA)
        unit = "record" if persons is None else "person"
        Ledger.create(
            path / "ledger.sqlite",
            holding=holding,
            cap=cap,
            unit=unit,
            # With none, any site could take its own share of the noise off a sum.
            least_colluding_sites=1,
        ).close()
        folder = cls(path, name, server, records, dict(data), proxy_authority is not None)
        return folder.declaring(records, persons, schema)

    def write(self) -> None:
        """Write the settings."""
        import tomli_w

        names = ("name", "server", "records", "inspected", "data")
        settings = {name: getattr(self, name) for name in names}
        write_whole(self.path / "site.toml", tomli_w.dumps(settings).encode())

    @classmethod
    def open(cls, path: Path) -> SiteFolder:
        """Open a folder that `create` made."""
        try:
            settings = tomllib.loads((path / "site.toml").read_text(encoding="utf-8"))
            if settings.pop("insecure", False):  # of version 0.1
                raise InvalidInput(f"{path} must use TLS: a new folder is made by `site init --ca`")
            return cls(path, **settings)
        except FileNotFoundError as error:
            raise DataUnavailable(f"{path} is not a site's folder: no site.toml") from error
        except (tomllib.TOMLDecodeError, TypeError) as error:
            raise InvalidInput(f"{path / 'site.toml'} cannot be read: {error}") from error

    def stamp(self) -> tuple[int, int]:
        """Return what tells whether the settings were written again."""
        status = (self.path / "site.toml").stat()
        return status.st_ino, status.st_mtime_ns

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
    def authority(self) -> Path:
        """Return the certificate that vouches for the server and its operator."""
        return self.path / "ca.crt"

    @property
    def proxy_authority(self) -> Path | None:
        """Return the certificate of a proxy that opens TLS, if there is one on the way."""
        return self.path / PROXY_CA if self.inspected else None

    def identities(self) -> list[Identity]:
        """Return as whom the site calls; first the key that is to take the other's place."""
        place = self.path / NEXT
        if (place / SITE_PUB).exists() and not (place / SITE_KEY).exists():
            self._take_over()  # it was cut off in the middle
        found = [Identity.read(self.path / SITE_KEY, self.path / SITE_PUB)]
        if (place / SITE_KEY).exists():
            with suppress(InvalidInput, DataUnavailable):  # half written: the old one is good
                found.insert(0, Identity.read(place / SITE_KEY, place / SITE_PUB))
        return found

    def keys(self) -> set[str]:
        """Return the fingerprints of the certificates that the site answers to."""
        places = (self.path / NEXT, self.path)
        files = [place / SITE_PUB for place in places if (place / SITE_PUB).exists()]
        return {fingerprint(read_certificate(file.read_bytes())) for file in files}

    def rotate_key(self) -> Path:
        """Make a new key beside the one in use; return the site.pub to be enrolled.

        It says, signed by the key in use, that it takes its place, unless that key is lost or of
        version 0.1. What a crash left of an earlier one goes.
        """
        place = self.path / NEXT
        try:
            before = self.identities()[-1]
        except (InvalidInput, DataUnavailable):
            before = None
        if before is not None and len(self.identities()) > 1:
            raise InvalidInput(f"a new key waits already: have {place / SITE_PUB} enrolled")
        shutil.rmtree(place, ignore_errors=True)
        made = self.path / f".{NEXT}.draft"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o700)
        write_site_key(made, self.name, before=before)
        if before is None:  # it cannot be used any more
            for name in (SITE_KEY, SITE_PUB):
                (made / name).replace(self.path / name)
            made.rmdir()
            return self.path / SITE_PUB
        made.rename(place)
        sync_folder(self.path)
        return place / SITE_PUB

    def admitted(self, identity: Identity) -> None:
        """Take the new key into use, once the server has admitted it."""
        if identity.key_file.parent == self.path / NEXT:
            self._take_over()

    def _take_over(self) -> None:
        place = self.path / NEXT
        for name in (SITE_KEY, SITE_PUB):
            if (place / name).exists():
                (place / name).replace(self.path / name)
        shutil.rmtree(place, ignore_errors=True)
