"""The runs that were offered to a site, and what its operator decided: a folder for each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedc.deployment.messages import checked_head, plain_head
from dpfedc.errors import InvalidInput
from dpfedc.whole_files import write_whole

if TYPE_CHECKING:
    from dpfedc.deployment.agreement import Agreement
    from dpfedc.privacy.ledger import Head

AGREEMENT, ACCEPTED, MODEL = "agreement.json", "accepted", "model.npz"
DECLINED, CANCELLED, REFUSED, LOST = "declined", "cancelled", "refused", "lost-rows"
MAX_PENDING = 20
"""A server cannot fill a site's disk with offers that nobody accepts, or runs that never begin."""
MAX_OPEN = 50
"""Nor with runs that begin and never end: each keeps frozen records. Small charges end no cap."""


@dataclass(frozen=True)
class OfferedRuns:
    """The runs in a site's folder, known by the digests of their agreements."""

    path: Path

    def keep(self, agreement: Agreement) -> None:
        """Keep an offered agreement for the operator to read."""
        folder = self.run(agreement.digest)
        if (folder / AGREEMENT).exists():
            return
        if sum(self.state(run) == "offered" for run in self.offered()) >= MAX_PENDING:
            raise InvalidInput(f"there must be less than {MAX_PENDING} offers that wait here")
        folder.mkdir(exist_ok=True)
        write_whole(folder / AGREEMENT, agreement.to_json().encode())
        (self.path / REFUSED).unlink(missing_ok=True)

    def note_refusal(self, agreement: Agreement, reason: str) -> None:
        """Keep why the latest offer was refused, for the operator who looks for it."""
        words = f"run {agreement.digest[:12]} ({agreement.name}): {reason}"
        write_whole(self.path / REFUSED, words.encode())

    def note_lost(self, seen: Head) -> None:
        """Keep what the server has seen of the ledger and the ledger does not hold."""
        write_whole(self.path / LOST, json.dumps(plain_head(seen)).encode())

    def lost(self) -> Head | None:
        """Return what `note_lost` kept last."""
        try:
            return checked_head(json.loads((self.path / LOST).read_bytes()))
        except (OSError, ValueError):
            return None

    def offered(self) -> Iterator[str]:
        """Return the digests of the runs that were offered, the oldest first."""
        files = (self.path / "runs").glob(f"*/{AGREEMENT}")
        return iter([f.parent.name for f in sorted(files, key=lambda f: f.stat().st_mtime)])

    def agreement(self, digest: str) -> Agreement:
        """Return an offered agreement, checked against its digest."""
        from dpfedc.deployment.agreement import Agreement

        try:
            text = (self.run(digest) / AGREEMENT).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError) as error:
            raise InvalidInput(f"the agreement of run {digest[:12]} cannot be read") from error
        agreement = Agreement.from_json(text)
        if agreement.digest != digest:
            raise InvalidInput(f"the agreement of run {digest[:12]} has been changed on the disk")
        return agreement

    def state(self, digest: str) -> str:
        """Return unknown, offered, declined, accepted, cancelled or finished."""
        run, state = self.run(digest), "unknown"
        for name, after in (
            (AGREEMENT, "offered"), (ACCEPTED, "accepted"), (MODEL, "finished"),
            (DECLINED, "declined"), (CANCELLED, "cancelled"),
        ):  # fmt: skip
            state = after if (run / name).exists() else state
        return state

    def is_accepted(self, digest: str) -> bool:
        """Return whether a run was ever accepted, whatever came of it: it may have been charged."""
        return (self.run(digest) / ACCEPTED).exists()

    def accept(self, digest: str) -> None:
        """Accept a run that was offered."""
        self._mark(digest, ACCEPTED)

    def decline(self, digest: str) -> None:
        """Refuse a run that was offered, for good."""
        if (state := self.state(digest)) != "offered":
            raise InvalidInput(f"a run must wait to be declined, got {digest[:12]}, {state}")
        self._mark(digest, DECLINED)

    def cancel(self, digest: str) -> None:
        """Answer nothing more for an accepted run, for good. What was charged stays charged."""
        if (state := self.state(digest)) != "accepted":
            raise InvalidInput(
                f"a run must be accepted to be cancelled, got {digest[:12]}, {state}"
            )
        self._mark(digest, CANCELLED)

    def _mark(self, digest: str, name: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_whole(self.run(digest) / name, f"{now}\n".encode())

    def run(self, digest: str) -> Path:
        """Return the folder of a run."""
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise InvalidInput(f"a run must be 64 hexadecimal digits, got {digest[:80]!r}")
        return self.path / "runs" / digest
