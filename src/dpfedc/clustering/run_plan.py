"""What a plan is made from, and what it is: public facts, the stages, and what they may release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.stage import Stage
from dpfedc.privacy.calibration import StageBudget, calibrated_plan
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.settings import Penalty, PrivacyTarget
from dpfedc.tables.layout import Layout

NO_NOISE = "no noise was added: not private"
MAX_ROUNDS = 100_000
"""Of one stage: planning and paying for more would keep a site busy before anyone accepts."""
MAX_CLUSTERS = 10_000
"""More are no summary of anything, and memberships in them would fill a site's memory."""
MAX_USABLE_NOISE = 0.7
"""Above this noise ratio results are poor, and a subspace is worth its price."""


@dataclass(frozen=True)
class Federation:
    """The public facts a plan is made from."""

    n_features: int
    records_per_site: npt.NDArray[np.int64]
    layout: Layout | None = None
    """What a schema makes of a table's columns; None for records that are numbers already."""

    @property
    def n_sites(self) -> int:
        """Return the number of sites."""
        return len(self.records_per_site)

    @property
    def n_records(self) -> int:
        """Return the number of records of all sites."""
        return int(self.records_per_site.sum())


@dataclass(frozen=True)
class RunPlan:
    """A list of stages with what they may release, and the stamps of their results.

    `noise_ratio` is the noise against the signal of a cluster of average size (0: no noise).
    `penalty` and `refine` are what `predict` must know. `explain` says in words what was
    chosen, and why.
    """

    stages: tuple[Stage, ...]
    penalty: Penalty = field(default_factory=Penalty)
    refine: bool = False
    stamps: tuple[str, ...] = ()
    privacy: PrivacyPlan | None = None
    noise_ratio: float = 0.0
    explain: Callable[[], Iterable[str]] = field(default=tuple, compare=False)

    @property
    def n_rounds(self) -> int:
        """Return the number of rounds of all stages."""
        return sum(stage.n_rounds for stage in self.stages)

    @property
    def spare_rounds(self) -> Mapping[str, int]:
        """Return how many more rounds each stage may have in place of lost ones."""
        releases = () if self.privacy is None else self.privacy.releases
        return {release.stage: release.spare_rounds for release in releases}

    def hopeless(self, facts: Federation) -> str:
        """Return why the run must fail whatever the records are, or "" if it need not."""
        reasons = (stage.hopeless(facts.n_records) for stage in self.stages)
        return next((reason for reason in reasons if reason), "")


def planned_releases(
    stages: Sequence[Stage], facts: Federation, spare_rounds: int = 0
) -> list[tuple[str, int, int, int, float, int]]:
    """Return for each stage its name, rounds, sites in a round, a site's rounds at most, q, spares.

    Only a stage of one round has spare ones: one of many can do without a round that is lost.
    """
    found = []
    for stage in stages:
        per_round, n_rounds = stage.taking_part(facts.n_sites), stage.n_rounds
        spare = spare_rounds if n_rounds == 1 else 0
        most = most_rounds_of_a_site(facts.n_sites, per_round, n_rounds + spare)
        found.append((stage.name, n_rounds, per_round, most, stage.sampling_probability, spare))
    return found


def private_stages(
    stages: Sequence[Stage],
    shares: Mapping[str, float],
    facts: Federation,
    target: PrivacyTarget,
    *,
    privacy: PrivacyPlan | None = None,
    spare_delta: float = 0.0,
) -> tuple[tuple[Stage, ...], PrivacyPlan]:
    """Return the stages, told of their noise, and the privacy plan that spends the target on them.

    `shares` are the stages' parts of the budget, counted in mu^2. A privacy plan that was made
    before is taken as it is, which saves the time to make it again.
    """
    if privacy is None:
        budgets = tuple(
            StageBudget(name, n_rounds, per_round, most, shares[name], q, spare)
            for name, n_rounds, per_round, most, q, spare in planned_releases(
                stages, facts, target.spare_rounds
            )
        )
        privacy = calibrated_plan(
            budgets,
            epsilon=target.epsilon,
            delta=target.delta,
            trust=target.trust,
            n_sites=facts.n_sites,
            min_survivors=target.min_survivors,
            colluding_sites=target.colluding_sites,
            spare_delta=spare_delta,
            unit=target.unit,
            sites_per_person=target.sites_per_person,
        )
    return told_of_noise(stages, facts, privacy), privacy


def told_of_noise(
    stages: Sequence[Stage], facts: Federation, privacy: PrivacyPlan
) -> tuple[Stage, ...]:
    """Return the stages, each told of the noise that its sums will have."""
    return tuple(
        stage.told(
            privacy.noise_of_sum(stage.name, stage.taking_part(facts.n_sites)), facts.n_records
        )
        for stage in stages
    )


@dataclass(frozen=True)
class Way:
    """How clusters are found once records have a mean and a scale."""

    stages: tuple[Stage, ...]
    shares: Mapping[str, float]
    refine: bool
    """Whether records belong to the nearest centre."""
    penalty: Penalty = field(default_factory=Penalty)
    spare_delta: float = 0.0
    n_prototypes: int = 0
    """How many the clusters are made of in the end; 0 if they have centres alone."""
    n_places: int = 0
    """How many places may tell in the end which cluster a record belongs to; 0: centres alone."""
    longest: float = 1.0
    """Records longer than so many scales are clipped to that length."""
