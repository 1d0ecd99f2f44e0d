"""The one rule for what may be released next, asked by the gate and by a site's ledger."""

from __future__ import annotations

from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan


def due_release(
    plan: PrivacyPlan, stage: str, t: int, *, n_charged: int, last_round: int
) -> PlannedRelease:
    """Return what is planned for round t of a stage, or refuse the round.

    A site has been charged for `n_charged` rounds of the stage, the last of them `last_round`. A
    round is charged once and in order: coins and simulated noise are keyed by it, and a second
    release would share them. No site releases more often than planned, spare rounds included: they
    are charged as any other.
    """
    try:
        planned = plan.of_stage(stage)
    except InvalidInput as error:
        raise Refused(str(error)) from error
    if t <= last_round:
        raise Refused(f"round {t} of stage {stage!r} must come after round {last_round}")
    if n_charged >= planned.rounds_per_site:
        raise Refused(
            f"stage {stage!r} is planned for {planned.rounds_per_site} releases of a site, "
            "got one more"
        )
    return planned
