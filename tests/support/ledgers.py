"""What the tests of the ledger share: a plan, and a ledger with some history."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace

from dpfedc.privacy.ledger import GaussianCap, Ledger
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan

RELEASES = (PlannedRelease("mean", 1, 4, 1, 8.0), PlannedRelease("rounds", 9, 4, 3, 4.0))
PLAN = PrivacyPlan(RELEASES, 1e-6, "local", 4)
TOGETHER = replace(PLAN, trust="secure-aggregation", min_survivors=4, colluding_sites=1)
WIDE = GaussianCap(100.0, 1e-5)


@contextmanager
def ledgers_in(folder):
    """Hand out a function that makes a ledger; all are closed at the end."""
    with ExitStack() as made:

        def make(cap=WIDE, name="site.ledger", **more):
            ledger = Ledger.create(folder / name, holding="ward 7", cap=cap, **more)
            return made.enter_context(ledger)

        yield make


def charge(ledger, run="r", plan=PLAN, stage="rounds", t=1, request="q", z=None):
    z = plan.of_stage(stage).noise_multiplier if z is None else z
    return ledger.charge(run, plan, stage, t, request, noise_multiplier=z)


def used(path):
    """Make a ledger with some history: two runs, two answers, one answer lost."""
    with Ledger.create(path, holding="ward 7", cap=WIDE) as ledger:
        charge(ledger, stage="mean")
        ledger.settle("r", "mean", 1, b"noisy mean")
        charge(ledger, t=2)
        charge(ledger, t=5)
        ledger.settle("r", "rounds", 5, b"noisy round")
        charge(ledger, "s", TOGETHER)
    return path
