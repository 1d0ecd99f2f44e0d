"""The privacy plan of a run: every release it may make, fixed before the first one.

Plain data, with its own JSON. Epsilon follows from it by `accountant.plan_epsilon` and is never
typed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpfedc.errors import InvalidInput
from dpfedc.settings import (
    TRUST_MODELS,
    require_choice,
    require_delta,
    require_integer,
    require_number,
    require_unit,
)

RELATION = "zero-out"
MIN_NOISE_MULTIPLIER = 1e-6
"""No epsilon that can be asked for needs so little noise; less cannot be squared and counted."""


def require_unsampled(sites_per_person: int, *, sampled: bool) -> None:
    """Refuse sampling of records where a person may be at several sites: it is not proved."""
    if sampled and sites_per_person > 1:
        raise InvalidInput(
            "sites_per_person must be 1 where records are sampled (sampling_probability < 1), "
            f"got {sites_per_person}"
        )


@dataclass(frozen=True)
class PlannedRelease:
    """The releases of one stage.

    `noise_multiplier` is z: the standard deviation of the noise that protects a site, as its
    adversary sees it, over the release's sensitivity. `rounds_per_site` is the most rounds that
    any one site takes part in, spare ones included. `sampling_probability` is the chance of a
    record to be in a round. The stage combines `n_rounds`; `spare_rounds` more may be asked for in
    place of rounds that were lost, each with noise of its own.
    """

    stage: str
    n_rounds: int
    sites_per_round: int
    rounds_per_site: int
    noise_multiplier: float
    sampling_probability: float = 1.0
    spare_rounds: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.stage, str) or not self.stage:
            raise InvalidInput(f"stage must be a name, got {self.stage!r}")
        require_integer("n_rounds", self.n_rounds, least=1)
        require_integer("sites_per_round", self.sites_per_round, least=1)
        require_integer("spare_rounds", self.spare_rounds, least=0)
        most = self.n_rounds + self.spare_rounds
        require_integer("rounds_per_site", self.rounds_per_site, least=1, most=most)
        require_number("noise_multiplier", self.noise_multiplier, least=MIN_NOISE_MULTIPLIER)
        require_number("sampling_probability", self.sampling_probability, above=0, most=1)


@dataclass(frozen=True)
class PrivacyPlan:
    """All releases of a run, who adds the noise, and what is assumed of the sites.

    `spare_delta` is the part of delta set aside for events that the accountant does not see
    (mini-batches larger than the step size allows for); epsilon is accounted at delta less that.
    `unit` is what epsilon protects: a record, or a person with rows at up to `sites_per_person`
    sites, each of which makes one record of them.
    """

    releases: tuple[PlannedRelease, ...]
    delta: float
    trust: str
    n_sites: int
    min_survivors: int | None = None
    colluding_sites: int = 0
    spare_delta: float = 0.0
    unit: str = "record"
    sites_per_person: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "releases", tuple(self.releases))  # nobody adds to it later
        require_choice("trust", self.trust, TRUST_MODELS)
        require_delta(self.delta)
        require_number("spare_delta", self.spare_delta, least=0, below=self.delta)
        require_integer("n_sites", self.n_sites, least=1)
        require_unit(self.unit, self.sites_per_person, n_sites=self.n_sites)
        most = self.n_sites - 1
        require_integer("colluding_sites", self.colluding_sites, least=0, most=most)
        if self.min_survivors is not None:
            least = self.colluding_sites + 1
            require_integer("min_survivors", self.min_survivors, least=least, most=self.n_sites)
        names = [release.stage for release in self.releases]
        if len(set(names)) != len(names):
            raise InvalidInput(f"every stage must be planned once, got {', '.join(names)}")
        sampled = any(release.sampling_probability < 1 for release in self.releases)
        require_unsampled(self.sites_per_person, sampled=sampled or self.spare_delta > 0)
        for release in self.releases:
            most = self.n_sites
            require_integer("sites_per_round", release.sites_per_round, least=1, most=most)
            if self.trust == "secure-aggregation":
                self.honest_shares(release.sites_per_round)  # refuse now, not after some releases

    def of_stage(self, stage: str) -> PlannedRelease:
        """Return the releases planned for a stage; what is not planned is not released."""
        for release in self.releases:
            if release.stage == stage:
                return release
        known = ", ".join(release.stage for release in self.releases)
        raise InvalidInput(f"stage {stage!r} is not in the privacy plan, which has {known}")

    def honest_shares(self, n_taking_part: int) -> int:
        """Return how many honest sites' noise a sum holds at least (secure aggregation)."""
        survivors = n_taking_part
        if self.min_survivors is not None:
            survivors = min(survivors, self.min_survivors)
        if survivors <= self.colluding_sites:
            raise InvalidInput(
                f"a round must have more survivors than colluding_sites={self.colluding_sites}, "
                f"got {survivors}"
            )
        return survivors - self.colluding_sites

    def noise_of_sum(self, stage: str, n_taking_part: int) -> float:
        """Return the noise's standard deviation in a sum over sites, in units of sensitivity."""
        z = self.of_stage(stage).noise_multiplier
        if self.trust == "local":
            return float(z * n_taking_part**0.5)
        if self.trust == "trusted-server":
            return z
        return float(z * (n_taking_part / self.honest_shares(n_taking_part)) ** 0.5)

    def noise_of_site(self, stage: str) -> float:
        """Return the standard deviation of what a site adds by itself, in units of sensitivity.

        With secure aggregation that is a share: as many of them as survive for certain and are
        honest come to z.
        """
        planned = self.of_stage(stage)
        if self.trust == "local":
            return planned.noise_multiplier
        if self.trust == "trusted-server":
            raise InvalidInput("sites must add noise themselves, got trust trusted-server")
        return float(planned.noise_multiplier / self.honest_shares(planned.sites_per_round) ** 0.5)

    def to_json(self) -> str:
        """Return the plan as JSON."""
        content = asdict(self)
        unit, n_sites = content.pop("unit"), content.pop("sites_per_person")
        # Written only where they say something: plans of before they were known stay as they were.
        more = {} if n_sites == 1 else {"sites_per_person": n_sites}
        for release in content["releases"]:
            if not release["spare_rounds"]:
                del release["spare_rounds"]
        return json.dumps({"unit": unit, "relation": RELATION, **content, **more}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> PrivacyPlan:
        """Read what `to_json` wrote; anything else is refused."""
        try:
            content: Mapping[str, Any] = json.loads(text)
            fields = dict(content)
            if (got := fields.pop("relation")) != RELATION:
                raise InvalidInput(f"its relation must be {RELATION}, got {got!r}")
            releases = tuple(PlannedRelease(**release) for release in fields.pop("releases"))
            return cls(releases, unit=fields.pop("unit"), **fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInput(f"not a privacy plan: {error}") from error
