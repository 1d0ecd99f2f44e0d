"""Trial fits charged to a ledger file, by the rules of a deployed site.

All sites of a trial are in one process and share one file. It is charged what the site that takes
part most often would be charged, so what it holds is true of every record.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.gate import OnCharge
from dpfedc.privacy.ledger.caps import cap_of
from dpfedc.privacy.ledger.site_ledger import Ledger
from dpfedc.privacy.privacy_plan import PrivacyPlan


@contextmanager
def charged_trial(path: str | os.PathLike[str], plan: PrivacyPlan) -> Iterator[OnCharge]:
    """Open the ledger for one new fit, and return what its gate is to call.

    A plan that is more than is left of the cap is refused here, before its first release.
    """
    if not Path(path).is_file():
        raise InvalidInput(
            f"ledger must be an existing file, got {path}; this makes one: dpfedc ledger init "
            f"{shlex.quote(str(path))} --cap-epsilon 10 --cap-delta 1e-5 --unit {plan.unit}"
        )
    with Ledger.open(path) as ledger:
        _require_one_site(ledger, plan)
        _require_room(ledger, plan)
        run = f"trial-{secrets.token_hex(16)}"

        def charge(stage: str, t: int) -> None:
            z = plan.of_stage(stage).noise_multiplier
            ledger.charge(run, plan, stage, t, "trial", noise_multiplier=z)

        yield charge


def _require_one_site(ledger: Ledger, plan: PrivacyPlan) -> None:
    """Refuse persons at several sites where the cap counts the releases of one site alone."""
    if ledger.opening.cap_kind == "gaussian" and plan.sites_per_person > 1:
        raise InvalidInput(
            "ledger must have a basic cap (dpfedc ledger init --cap-kind basic) where persons are "
            f"at up to {plan.sites_per_person} sites, got a gaussian one: it counts for one site"
        )


def _require_room(ledger: Ledger, plan: PrivacyPlan) -> None:
    """Refuse a plan whose releases, all together, cost more than is left of the cap.

    It saves a fit that could not be finished. What may be charged is for the ledger to say, at each
    release: other processes may charge meanwhile.
    """
    opening = ledger.opening
    cap = cap_of(opening.cap_kind, opening.cap)
    releases = [release for release in plan.releases for _ in range(release.rounds_per_site)]
    costs = [
        cap.costs(plan, release.noise_multiplier, shares=1, first=i == 0)[0]
        for i, release in enumerate(releases)
    ]
    for name, left in ledger.totals().left.items():
        needed = math.fsum(cost[name] for cost in costs)
        if not needed <= left:
            raise Refused(
                f"over the lifetime cap of {opening.holding!r}: the {needed:.6g} of {name} that "
                f"the fit needs must be at most {left:.6g}, what is left"
            )
