"""What sites have said to a run so far, kept in its folder for whoever asks where it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfedc.deployment.messages import Refusal
from dpfedc.whole_files import write_whole

FILE = "acceptances.json"
MAX_NAMED = 10


@dataclass
class Decisions:
    """Who has accepted a run, and who refuses it; a site is in one of the two at most.

    `closed` are those of the latter that will never take part: there the run was declined,
    cancelled, or has ended. `served` have got the model. It is no more than the server was told:
    sites decide, and may decide anew.
    """

    accepted: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    served: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, folder: Path) -> Decisions:
        """Return what is kept in a run's folder; a file that cannot be read holds nothing."""
        try:
            kept = json.loads((folder / FILE).read_bytes())
            names = (set(kept[name]) for name in ("closed", "served"))
            return cls(set(kept["accepted"]), dict(kept["refused"]), *names)
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def write(self, folder: Path) -> None:
        """Keep it."""
        plain = {
            "accepted": sorted(self.accepted),
            "refused": dict(sorted(self.refused.items())),
            "closed": sorted(self.closed),
            "served": sorted(self.served),
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, json.dumps(plain, indent=1).encode())

    def accept(self, site: str) -> None:
        """Note that a site has accepted."""
        self.refused.pop(site, None)
        self.closed.discard(site)
        self.accepted.add(site)

    def refuse(self, site: str, refusal: Refusal) -> None:
        """Note that a site refuses, for now or for good."""
        self.accepted.discard(site)
        self.refused[site] = refusal.reason
        (self.closed.add if refusal.of_run else self.closed.discard)(site)

    def in_words(self, sites: Sequence[str]) -> str:
        """Return who of these sites has accepted."""
        waiting = [s for s in sites if s not in self.accepted and s not in self.refused]
        refused = [site for site in sites if site in self.refused]
        parts = [f"{len(self.accepted)} of {len(sites)}"]
        parts += [f"not yet: {named(waiting)}"] if waiting else []
        parts += [f"refused by {named(refused)}"] if refused else []
        return "; ".join(parts)


def named(sites: Sequence[str] | Mapping[str, object] | set[str]) -> str:
    """Return the names of sites, of the first few if they are many."""
    names = sorted(sites)
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
