"""Whom a site knows: the keys of its peers, pinned, for runs with secure aggregation.

Peers' keys reach a site through the server, which could invent sites or put its own keys in their
place. A key that was compared outside the server is pinned: by reading a peer's site.pub, or by
accepting a run whose identity the operators have compared. From then on that name has that key.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.keys import mark_of, name_in, signing_key
from dpfedc.deployment.messages import require_hex
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.whole_files import locked, write_whole

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

FILE = "peers.json"


@dataclass(frozen=True)
class PinnedPeers:
    """The pinned peers of a site: their signing keys by their names."""

    folder: Path

    def read(self) -> dict[str, str]:
        """Return who is pinned."""
        path = self.folder / FILE
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_bytes())
            return {str(n): require_hex("signing_key", key, 32) for n, (key, _) in content.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise DataUnavailable(f"{path} is damaged: {error}") from error

    def sources(self) -> dict[str, str]:
        """Return where each pinned key came from, in words."""
        path = self.folder / FILE
        content = json.loads(path.read_bytes()) if path.exists() else {}
        return {name: str(source) for name, (_, source) in content.items()}

    def pin(self, certificate: Certificate) -> str:
        """Pin the key of a peer's site.pub; return the peer's name."""
        name = name_in(certificate)
        self._add({name: signing_key(certificate)}, "a file")
        return name

    def pin_roster(self, agreement: Agreement, own: str) -> None:
        """Pin all peers of a run that the operator has accepted."""
        keys = {site.name: site.signing_key or "" for site in _others(agreement, own)}
        self._add(keys, f"run {agreement.digest[:12]} ({agreement.name}), accepted here")

    def forget(self, name: str) -> None:
        """Take a peer's pin away, so that it may have another key."""
        with self._writing():
            known = self.read()
            if known.pop(name, None) is None:
                raise InvalidInput(f"a peer must be pinned to be forgotten, got {name!r}")
            self._write(known, self.sources())

    def unpinned(self, agreement: Agreement, own: str) -> list[Site]:
        """Return the peers of a run that are not pinned; refuse one that has another key now."""
        known, found = self.read(), []
        for site in _others(agreement, own):
            if site.name not in known:
                found.append(site)
            else:
                _require_pinned(site.name, known[site.name], site.signing_key or "")
        return found

    def _add(self, more: dict[str, str], source: str) -> None:
        with self._writing():
            known, sources = self.read(), self.sources()
            for name, key in more.items():
                _require_pinned(name, known.get(name, key), key)
            new = dict.fromkeys(more, source)
            # What came from a file is better known than what a run had.
            kept = {n: s for n, s in sources.items() if n not in more or source != "a file"}
            self._write({**known, **more}, {**new, **kept})

    def _writing(self) -> AbstractContextManager[None]:
        return locked(self.folder / f"{FILE}.lock")

    def _write(self, known: dict[str, str], sources: dict[str, str]) -> None:
        content = {name: [key, sources[name]] for name, key in sorted(known.items())}
        write_whole(self.folder / FILE, json.dumps(content, indent=1).encode())


def _require_pinned(name: str, pinned: str, key: str) -> None:
    if key != pinned:
        raise InvalidInput(
            f"site {name} must have the pinned key {mark_of(pinned)}, got {mark_of(key)}. If its "
            "operator confirms the new one, forget the old: dpfedc site peers FOLDER --forget "
            f"{name}"
        )


def _others(agreement: Agreement, own: str) -> list[Site]:
    return [site for site in agreement.sites if site.name != own]
