"""What secure aggregation takes a site and the coordinator, a round: all of them in one process.

python benchmarks/secure_aggregation.py [--sites 4 20 100 1000] [--repeats 3] [--output DIR]

A round of K sites, each with 7,840 numbers (10 clusters of 784 features), and one of 20 sites with
a million. As many sites drop out after the shares as may (`--all-stay`: nobody does), one of them
in ten unless the plan is for more; `complete` is a plan by which as many may drop out as can be, so
that all sites are neighbours. Nothing is sent: this is keys, boxes, shares, masks, signatures and
checks, in processor time of one thread; the least of some repeats, the median over sites. Bytes are
those of the protocol's parts, 8 for each site's number among them; the broadcast and the heads of
messages are left out. Of 1,000 sites one round is played, some minutes. Writes
secure_aggregation.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from measuring import machine, timed, write_json

from dpfedc.deployment.secure_aggregation.circle import Circle, least_survivors, usual_survivors
from dpfedc.deployment.secure_aggregation.masks import Words, context_of
from dpfedc.deployment.secure_aggregation.server_round import SecretSum
from dpfedc.deployment.secure_aggregation.site_round import Roster, SiteRound

T = TypeVar("T")
COLLUDING = 1
NUMBER_BYTES = 8
FEW_REPEATS = 1000
"""So many sites play one round only."""


@dataclass(frozen=True)
class Case:
    """A round of so many sites and numbers."""

    n_sites: int
    n_numbers: int
    complete: bool = False

    @property
    def circle(self) -> Circle:
        """Return who is whose neighbour."""
        survivors = least_survivors if self.complete else usual_survivors
        least = survivors(self.n_sites, COLLUDING)
        return Circle(tuple(range(self.n_sites)), least, COLLUDING)


CASES = (
    Case(4, 7_840),
    Case(20, 7_840),
    Case(100, 7_840),
    Case(100, 7_840, complete=True),
    Case(1_000, 7_840),
    Case(20, 1_000_000),
)


@dataclass
class Tally:
    """What each site has taken so far: processor seconds, bytes sent and received."""

    seconds: dict[int, float] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)

    def step(self, site: int, work: Callable[[], T], *, got: int, gave: Callable[[T], int]) -> T:
        """Let a site work, with so many bytes, and count what it gives."""
        took, answer = timed(work)
        self.seconds[site] = self.seconds.get(site, 0.0) + took.cpu
        self.received[site] = self.received.get(site, 0) + got
        self.sent[site] = self.sent.get(site, 0) + gave(answer)
        return answer


@dataclass(frozen=True)
class Measured:
    """One round: of the sites that stay until its end, and of the coordinator."""

    site_seconds: float
    coordinator_seconds: float
    sent: int
    received: int


def listed(sites: Sequence[int]) -> int:
    """Return the bytes of some sites' numbers."""
    return NUMBER_BYTES * len(sites)


def parts(parts_of: Mapping[int, bytes]) -> int:
    """Return the bytes of some sites' parts, with their numbers."""
    return sum(NUMBER_BYTES + len(part) for part in parts_of.values())


def played(case: Case, *, all_stay: bool) -> Measured:
    """Play one round, check its sum and return what it took."""
    circle, tally = case.circle, Tally()
    context = context_of("benchmark", "a stage", 1, os.urandom(16).hex())
    keys = {i: Ed25519PrivateKey.generate() for i in circle.sites}
    public = {i: key.public_key().public_bytes_raw() for i, key in keys.items()}
    value = np.random.default_rng(0).integers(2**63, size=case.n_numbers, dtype="<u8")

    sites: dict[int, SiteRound] = {}
    for i in circle.sites:
        roster, sign = Roster(circle, i, public), keys[i].sign
        sites[i] = tally.step(
            i,
            lambda roster=roster, sign=sign: SiteRound(context, roster, sign),
            got=0,
            gave=lambda site: NUMBER_BYTES + len(site.bundle),
        )
    bundles = {i: site.bundle for i, site in sites.items()}
    boxes: dict[int, dict[int, bytes]] = {}
    for i, site in sites.items():
        theirs = {j: bundles[j] for j in circle.neighbors(i)}
        boxes[i] = tally.step(
            i,
            lambda site=site, theirs=theirs: site.shares(circle.sites, theirs),
            got=listed(circle.sites) + parts(theirs),
            gave=parts,
        )
    n_lost = 0 if all_stay else case.n_sites - circle.min_survivors
    spread = np.linspace(0, case.n_sites, n_lost, endpoint=False).astype(int).tolist()
    survivors = [i for i in circle.sites if i not in set(spread)]
    uploads: dict[int, Words] = {}
    for i in survivors:
        site, mine = sites[i], {j: boxes[j][i] for j in circle.neighbors(i)}

        def uploaded(site: SiteRound = site, mine: dict[int, bytes] = mine) -> Words:
            site.receive(circle.sites, mine, b"a broadcast")
            return site.masked(value)

        uploads[i] = tally.step(
            i, uploaded, got=listed(circle.sites) + parts(mine), gave=lambda words: words.nbytes
        )
    signatures = {
        i: tally.step(
            i,
            lambda site=sites[i]: site.agreed(survivors),
            got=listed(survivors),
            gave=lambda signature: NUMBER_BYTES + len(signature),
        )
        for i in survivors
    }
    enough = {i: signatures[i] for i in survivors[: circle.n_signatures]}
    openings = {
        i: tally.step(
            i,
            lambda site=sites[i]: site.opened(enough, persist=lambda: None),
            got=parts(enough),
            gave=parts,
        )
        for i in survivors
    }
    found = SecretSum(context, circle, bundles, circle.sites, tuple(survivors), b"a broadcast")
    took, (total, liars) = timed(lambda: found.opened(uploads, openings))
    assert not liars
    assert np.array_equal(total, value * np.uint64(len(survivors)))

    def median(of: Mapping[int, float]) -> float:
        return statistics.median(of[i] for i in survivors)

    return Measured(
        median(tally.seconds), took.cpu, int(median(tally.sent)), int(median(tally.received))
    )


def measured(case: Case, repeats: int, *, all_stay: bool) -> dict[str, Any]:
    rounds = [
        played(case, all_stay=all_stay)
        for _ in range(1 if case.n_sites >= FEW_REPEATS else repeats)
    ]
    circle = case.circle
    return {
        **asdict(case),
        "min_survivors": circle.min_survivors,
        "holders": circle.n_holders,
        "shares_needed": circle.n_shares,
        "signatures_needed": circle.n_signatures,
        "repeats": len(rounds),
        "site_cpu_ms": 1e3 * min(one.site_seconds for one in rounds),
        "coordinator_cpu_s": min(one.coordinator_seconds for one in rounds),
        "bytes_sent": rounds[0].sent,
        "bytes_received": rounds[0].received,
    }


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--sites", type=int, nargs="*", help="only cases of so many sites")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--all-stay", action="store_true", help="nobody drops out")
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    chosen = parser.parse_args()
    rows = []
    print(
        "  sites    numbers  survive  holders  site ms  coordinator s  kB sent  kB received",
        flush=True,
    )
    for case in CASES:
        if chosen.sites and case.n_sites not in chosen.sites:
            continue
        row = measured(case, chosen.repeats, all_stay=chosen.all_stay)
        rows.append(row)
        print(
            f"{case.n_sites:>7,} {case.n_numbers:>10,} {row['min_survivors']:>8} "
            f"{row['holders']:>8} {row['site_cpu_ms']:>8.1f} {row['coordinator_cpu_s']:>14.3f} "
            f"{row['bytes_sent'] / 1e3:>8,.1f} {row['bytes_received'] / 1e3:>12,.1f}",
            flush=True,
        )
    content = {"machine": machine(), "all_stay": chosen.all_stay, "rounds": rows}
    write_json(chosen.output / "secure_aggregation.json", content)


if __name__ == "__main__":
    main()
