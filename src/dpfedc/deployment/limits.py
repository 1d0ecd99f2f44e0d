"""The most that an offer may ask of a site, whoever sends it: what is more is not even planned.

Each limit is far beyond any use, and low enough that reading, planning and answering end. What a
method's settings may be is in its own table (`Method.settings`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dpfedc.deployment.exchanges import Exchange
from dpfedc.errors import InvalidInput
from dpfedc.privacy.exact_sums import LARGEST_SUM, SENSITIVITY
from dpfedc.privacy.privacy_plan import PrivacyPlan

MAX_WORDS = 8 * 2**20
"""Bytes of an offer: 20,000 columns with a schema take 4.6 million."""
MAX_SITES, MAX_FEATURES, MAX_RELEASES = 10_000, 100_000, 100
MAX_TURNS = 10_000_000
"""Rounds of a stage times the sites that take turns in them: a site deals them all out itself."""
MAX_SAMPLED_ROUNDS, MAX_DELTA = 10_000, 0.1
"""Beyond them the accountant takes minutes: of rounds in which records are sampled, and of delta,
which nobody would call a promise from there on."""
MAX_RECORDS = LARGEST_SUM // SENSITIVITY - 1
"""Of all sites together: exact sums over more could wrap around."""
MAX_SECONDS = 7 * 24 * 3600
MIN_BOUND = 1e-100
"""Lengths beyond it, either way, cannot be squared: every round would fail, and stay charged."""
MAX_NUMBERS = 2**25
"""Of one message, which takes 8 bytes for each."""
MAX_WORK = 1e14
"""Multiplications for a round at a site: hours."""


def require_at_most(what: str, value: float, most: float) -> None:
    """Refuse more than the limit of something that follows from an offer."""
    if not value <= most:
        raise InvalidInput(f"{what} must be at most {most:,}, got {value:,}")


def require_short(what: str, values: Any, most: int) -> None:
    """Refuse what is no list, or too long a one."""
    if not isinstance(values, (list, tuple)):
        raise InvalidInput(f"{what} must be a list, got something else")
    require_at_most(f"the number of {what}", len(values), most)


def require_countable(privacy: PrivacyPlan, n_sites: int) -> None:
    """Refuse a plan that a site cannot deal out and count in seconds."""
    require_short("releases", privacy.releases, MAX_RELEASES)
    require_at_most("delta", privacy.delta, MAX_DELTA)
    for release in privacy.releases:
        turns = release.n_rounds * n_sites
        require_at_most("n_rounds times the number of sites", turns, MAX_TURNS)
        if release.sampling_probability < 1:
            require_at_most("n_rounds with sampling", release.n_rounds, MAX_SAMPLED_ROUNDS)


def require_workable(exchanges: Iterable[Exchange], work_per_record: float, n_records: int) -> None:
    """Refuse rounds whose messages, or whose work at a site of so many records, are beyond bounds.

    `work_per_record` is the method's own count of multiplications; what a record adds to an upload
    is one for each of its numbers at least.
    """
    for exchange in exchanges:
        name = exchange.stage.name
        numbers = sum(map(math.prod, exchange.shapes))
        require_at_most(f"the numbers in a message of stage {name!r}", numbers, MAX_NUMBERS)
        work = n_records * max(math.prod(exchange.form.shape), work_per_record)
        require_at_most(f"the multiplications of a round of stage {name!r}", work, MAX_WORK)
