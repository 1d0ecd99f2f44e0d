"""Sites that spoil rounds for others in secure aggregation, and are not asked any more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.secure_aggregation.masks import accused
from dpfedc.whole_files import write_whole

FILE = "left-out.json"
SPOILED = "it is left out of this run: its boxes or shares spoiled a round before"
RESTS = "it sits out until a round comes out: its shares did not bring its secret back before"
MAX_STRIKES = 2


@dataclass
class _Known:
    """What the file holds, sites by their numbers."""

    proven: list[int] = field(default_factory=list)
    suspected: list[int] = field(default_factory=list)
    """In the order in which they came under suspicion."""
    strikes: dict[str, list[str]] = field(default_factory=dict)
    """Of each site the rounds in which its secret did not come back."""
    resting: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class LeftOut:
    """The sites that a run goes on without, by their numbers, in the run's folder.

    Of those that are only suspected no more than `most` are left out, so that enough remain. Who is
    proven to have spoiled a round goes in any case: with it every round would be paid for and lost.
    """

    folder: Path
    most: int

    def read(self) -> dict[int, str]:
        """Return who is left out, each with the reason."""
        known = self._load()
        found = [*known.proven, *known.suspected[: max(self.most - len(known.proven), 0)]]
        resting = [site for site in known.resting if site not in found]
        resting = resting[: max(self.most - len(found), 0)]
        return dict.fromkeys(found, SPOILED) | dict.fromkeys(resting, RESTS)

    def prove(self, *sites: int) -> None:
        """Leave sites out that must have spoiled a round."""
        known = self._load()
        known.proven = sorted({*known.proven, *sites})
        known.suspected = [site for site in known.suspected if site not in known.proven]
        self._save(known)

    def suspect(self, *sites: int) -> None:
        """Leave sites out that may have spoiled a round, the first ones first."""
        known = self._load()
        new = [site for site in sites if site not in (*known.proven, *known.suspected)]
        known.suspected += dict.fromkeys(new)
        self._save(known)

    def strike(self, site: int, place: str) -> None:
        """Note that a site's secret did not come back in a round, though others gave enough shares.

        Perhaps another site lied. So this one sits out until a round comes out, since a stage may
        have one more round only, and goes the second time.
        """
        known = self._load()
        # A round may be read twice, by a coordinator that starts again.
        places = known.strikes[str(site)] = sorted({*known.strikes.get(str(site), ()), place})
        known.resting = sorted({*known.resting, site})
        self._save(known)
        if len(places) >= MAX_STRIKES:
            self.suspect(site)

    def rested(self) -> bool:
        """Take those in again that sit out; return whether there were any."""
        known = self._load()
        if not known.resting:
            return False
        known.resting = []
        self._save(known)
        return True

    def hear(
        self,
        came: Mapping[int, bytes | Refusal | None],
        *,
        there: Collection[int],
        c: int,
        enough: bool,
    ) -> None:
        """Leave out whose boxes do not open at others.

        More than c sites do not lie about it. If it costs the round, the most accused goes. Where
        one stands against one, the accuser goes, too, unless the accused is not `there`, with an
        upload of its own.
        """
        blame = accusations(came)
        times = Counter(blame.values())
        most = max(times.values(), default=0)
        worst = [of for of, count in times.items() if count == most]
        if most > c:
            self.prove(*worst)
        elif most and not enough:
            here = [of for of in worst if of in there]
            accusers = [n for n, of in blame.items() if of in here and most == 1]
            # The first ones first: who was not there, then who was, then who says so.
            self.suspect(*(of for of in worst if of not in there), *here, *accusers)

    def _load(self) -> _Known:
        path = self.folder / FILE
        content = json.loads(path.read_bytes()) if path.exists() else {}
        # A list is of a run that was begun before there were suspects.
        return _Known(proven=content) if isinstance(content, list) else _Known(**content)

    def _save(self, known: _Known) -> None:
        if known != self._load():
            write_whole(self.folder / FILE, json.dumps(asdict(known)).encode())


def accusations(came: Mapping[int, bytes | Refusal | None]) -> dict[int, int]:
    """Return who says that whose box does not open; others have a say in the words."""
    said = {n: accused(r.reason) for n, r in came.items() if isinstance(r, Refusal)}
    return {n: of for n, of in said.items() if of is not None and of in came and of != n}
