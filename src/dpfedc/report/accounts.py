"""Epsilon of a plan at several deltas, and of a run from the releases in its log."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.privacy.accountant import (
    composed_mu,
    dp_event,
    gaussian_epsilon,
    plan_epsilon,
    plan_reach,
    rdp_epsilon,
)
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.report.promise import recorded_guarantee, recorded_plan

DELTAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
AGREEMENT = 1e-6
"""Two epsilons agree if they differ by less than this part of themselves."""


@dataclass(frozen=True)
class Account:
    """Epsilon at one delta, by three accountants; None where one does not apply.

    `closed` is the exact value for Gaussian noise without sampling. `rdp` is an upper bound that
    rests on other mathematics. `pld`, on which promises rest, is the exact value rounded up.
    """

    delta: float
    pld: float | None
    rdp: float | None
    closed: float | None


@dataclass(frozen=True)
class Comparison:
    """What a run reported, and what follows from the releases that it logged.

    `n_assumed` rounds are counted as released though their noise is not logged: some sites may have
    been charged for one that was lost, and a spare one is paid for whether it is needed or not.
    """

    reported: float
    logged: float
    n_rounds: int
    n_assumed: int = 0

    @property
    def agrees(self) -> bool:
        """Return whether the two are the same but for rounding."""
        return math.isclose(self.reported, self.logged, rel_tol=AGREEMENT)


def read_account(path: Path) -> tuple[PrivacyPlan, RunRecord | None]:
    """Return the privacy plan in a file: a plan as JSON, or the record of a run that had one."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataUnavailable(f"no such plan or run record: {path}") from error
    except ValueError as error:
        raise InvalidInput(f"{path} must be a plan or a run record, got no text") from error
    if not text.startswith('{"kind"'):
        try:
            return PrivacyPlan.from_json(text), None
        except InvalidInput as error:
            raise InvalidInput(f"{path} must be a plan or a run record: {error}") from error
    record = RunRecord.read(path)
    plan = recorded_plan(record)
    if plan is None:
        got = record.stamps[0] if record.stamps else "no stamp"
        raise InvalidInput(
            f"{path} must be of a run with a privacy plan, got one without ({got}). For the noise "
            "of the paper use --published"
        )
    return plan, record


def accounts(plan: PrivacyPlan, deltas: Iterable[float] = DELTAS) -> list[Account]:
    """Return epsilon at the given deltas and at the plan's own, largest delta first."""
    return [_account(plan, delta) for delta in sorted({*deltas, plan.delta}, reverse=True)]


def _account(plan: PrivacyPlan, delta: float) -> Account:
    usable = delta - plan.spare_delta
    if usable <= 0:
        return Account(delta, None, None, None)
    closed, reach = None, plan_reach(plan)
    if all(release.sampling_probability == 1 for release in plan.releases):
        closed = gaussian_epsilon(composed_mu(plan.releases, reach), usable)
    rdp = rdp_epsilon(dp_event(plan.releases, reach), usable)
    return Account(delta, plan_epsilon(plan, delta), rdp, closed)


def logged_releases(record: RunRecord, plan: PrivacyPlan) -> tuple[PlannedRelease, ...]:
    """Return what the log says that a site has met at most, stage by stage.

    z is computed again from each round's noise, sensitivity and number of sites; in a stage the
    least z and the largest sampling probability count for all rounds. Participation is balanced, so
    the most used site was in ceil(sum of the rounds' sites / N) rounds. Rounds that were lost, and
    spare ones, count as if all their sites had released.
    """
    return tuple(_logged_stage(stage, rounds, plan) for stage, rounds in _by_stage(record).items())


def _by_stage(record: RunRecord) -> dict[str, list[RoundRecord]]:
    stages: dict[str, list[RoundRecord]] = {}
    for entry in record.rounds:
        stages.setdefault(entry.stage, []).append(entry)
    return stages


def _logged_stage(stage: str, rounds: list[RoundRecord], plan: PrivacyPlan) -> PlannedRelease:
    planned, used = plan.of_stage(stage), [r for r in rounds if not r.lost]
    if not used:
        raise InvalidInput(f"stage {stage!r} must have a round that was not lost, got none")
    try:
        z = [
            r.release["noise_std"] / r.release["sensitivity"]
            / (plan.noise_of_sum(stage, r.n_sites) / planned.noise_multiplier)
            for r in used
        ]  # fmt: skip
        chances = [r.release["sampling_probability"] for r in used]
    except KeyError as error:
        raise InvalidInput(
            f"every round of stage {stage!r} must log its noise, got one without"
        ) from error
    n_assumed = _n_assumed(rounds, planned)
    met = sum(r.n_sites for r in used) + n_assumed * planned.sites_per_round
    return PlannedRelease(
        stage,
        len(used) + n_assumed,
        max(r.n_sites for r in used),
        -(-met // plan.n_sites),
        min(z),
        max(chances),
    )


def _n_assumed(rounds: list[RoundRecord], planned: PlannedRelease) -> int:
    """Return how many rounds of a stage were lost, or spare and not needed."""
    unused = planned.n_rounds + planned.spare_rounds - len(rounds)
    return sum(r.lost for r in rounds) + min(max(unused, 0), planned.spare_rounds)


def compared(record: RunRecord, plan: PrivacyPlan) -> Comparison:
    """Return the epsilon that the run reported beside the one that its log gives."""
    promise = recorded_guarantee(record)
    if promise is None:
        raise InvalidInput("the run must have reported its privacy, got a plan without a promise")
    epsilon = plan_epsilon(replace(plan, releases=logged_releases(record, plan)))
    stages = _by_stage(record).items()
    n_assumed = sum(_n_assumed(rounds, plan.of_stage(stage)) for stage, rounds in stages)
    return Comparison(promise.epsilon, epsilon, len(record.rounds), n_assumed)
