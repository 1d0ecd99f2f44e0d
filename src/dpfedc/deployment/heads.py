"""What a server has seen of its sites' ledgers, kept from run to run.

A ledger that was put back from a backup is whole in itself: only somebody who has seen the rows
that it lost can tell. The server says with every hello and every offer what it has seen last, and
a site whose ledger does not hold that refuses before anything more is released.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedc.deployment.messages import checked_head, plain_head
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.privacy.ledger import Head
from dpfedc.whole_files import locked, write_whole

HEADS, _LOCK = "heads.json", "heads.lock"


class KeptHeads:
    """The last heads of all sites, in a file of the server's folder. Runs side by side share it."""

    def __init__(self, folder: Path) -> None:
        self._file, self._lock = folder / HEADS, folder / _LOCK

    def read(self) -> dict[str, Head]:
        """Return the last head that was seen of each site."""
        try:
            return {site: checked_head(seen) for site, seen in self._content().items()}
        except (ValueError, AttributeError) as error:
            # Never taken for an empty file: nobody would notice what it was kept for.
            raise DataUnavailable(
                f"{self._file} is damaged: {error}; put a copy back. Without any, delete it: what "
                "sites lost before goes unseen then"
            ) from error

    def saw(
        self, heads: Mapping[str, Any], *, sent: Mapping[str, Head | None] | None = None
    ) -> None:
        """Keep heads that sites have said, as they come in an answer; on the disk at the return.

        A head takes the place of one with fewer rows. A site that answers to the very head that is
        kept (`sent`) holds it, and goes on from the head that it says: after its operator has
        charged for lost rows, that one can have fewer. What is no head is left out.
        """
        with locked(self._lock):
            kept = self.read()
            new = dict(kept)
            for site, said in heads.items():
                head, before = _head(said), kept.get(site)
                if head is None:
                    continue
                vouched = before is not None and before == (sent or {}).get(site)
                if before is None or vouched or head.n_rows > before.n_rows:
                    new[site] = head
            if new != kept:
                self._write(new)

    def forget(self, site: str) -> None:
        """Forget a site, whose ledger is to be another one from now on."""
        with locked(self._lock):
            kept = self.read()
            if kept.pop(site, None) is not None:
                self._write(kept)

    def _content(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        return content

    def _write(self, heads: Mapping[str, Head]) -> None:
        plain = {site: plain_head(head) for site, head in sorted(heads.items())}
        write_whole(self._file, json.dumps(plain, indent=0).encode())


def _head(said: Any) -> Head | None:
    """Return a head as a site says it, None if it says something else: it is alone in this."""
    if isinstance(said, Head):
        return said
    try:
        return checked_head(said)
    except InvalidInput:
        return None
