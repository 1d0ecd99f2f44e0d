"""Sites that spoil rounds for others in secure aggregation, and are not asked any more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.secure_aggregation.masks import accused
from dpfedc.whole_files import write_whole

FILE = "left-out.json"
SPOILED = "it is left out of this run: its boxes or shares spoiled a round before"


@dataclass(frozen=True)
class LeftOut:
    """The sites that a run goes on without, by their numbers, in the run's folder."""

    folder: Path

    def read(self) -> set[int]:
        """Return who is left out."""
        path = self.folder / FILE
        return set(json.loads(path.read_bytes())) if path.exists() else set()

    def add(self, *sites: int) -> None:
        """Leave sites out from now on."""
        known = self.read()
        if not known >= set(sites):
            write_whole(self.folder / FILE, json.dumps(sorted(known | set(sites))).encode())

    def hear(self, came: Mapping[int, bytes | Refusal | None], *, c: int, enough: bool) -> None:
        """Leave out whose boxes do not open at others.

        More than c sites do not lie about it. If it costs the round, the most accused goes, and
        where one stands against one, both.
        """
        blame = {n: accused(r.reason) for n, r in came.items() if isinstance(r, Refusal)}
        times = Counter(n for n in blame.values() if n is not None)
        most = max(times.values(), default=0)
        if most > c or (most and not enough):
            worst = {n for n, count in times.items() if count == most}
            self.add(*worst, *(n for n, of in blame.items() if of in worst and most == 1))
