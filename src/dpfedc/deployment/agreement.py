"""What coordinator and sites agree on before the first release: plain data with its own JSON.

The SHA-256 of its canonical JSON identifies the run: an agreement that differs in one character is
another run, which no operator has accepted. Nothing in it is believed. A site plans the run again
from the public facts with its own code, and refuses what it would not have planned itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.registry import method_named, proved_methods
from dpfedc.clustering.run_plan import Federation, RunPlan, planned_releases
from dpfedc.clustering.stage import Entry, Public, State
from dpfedc.deployment.bounded_json import bounded_json
from dpfedc.deployment.exchanges import Exchange, exchanges
from dpfedc.deployment.keys import SITE_NAME, mark_of
from dpfedc.deployment.limits import (
    MAX_FEATURES,
    MAX_RECORDS,
    MAX_SECONDS,
    MAX_SITES,
    MAX_WORDS,
    MIN_BOUND,
    require_countable,
    require_short,
    require_workable,
)
from dpfedc.deployment.messages import MAX_HEAD, OtherVersion, digest, require_hex
from dpfedc.deployment.secure_aggregation.circle import Circle
from dpfedc.deployment.secure_steps import MAX_WORDS_OF_A_PEER
from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import guarantee, plan_epsilon
from dpfedc.privacy.exact_sums import noise_in_units
from dpfedc.privacy.noise import SIMULATED
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.schedule import cohorts
from dpfedc.randomness import Randomness
from dpfedc.settings import (
    PrivacyGuarantee,
    PrivacyTarget,
    require_choice,
    require_epsilon,
    require_integer,
    require_number,
)
from dpfedc.tables.schema import Schema

FORMAT = "dpfedc-agreement-9"
"""A version of its own: it changes with what an agreement means, not with the package."""
NOISES = ("secure", "simulated")
DEPLOYED_TRUSTS = ("local", "secure-aggregation")
ROUNDING = 1e-3
"""By this part a noise multiplier may differ from a site's own: computers round differently, and
the search for it goes in steps."""


@dataclass(frozen=True)
class Site:
    """A site as everyone knows it: its name, how many records it declares, its key's fingerprint.

    The number of records is public, and counts null ones. With the `signing_key`, an Ed25519 public
    key, other sites verify what it says in secure aggregation.
    """

    name: str
    n_records: int
    key: str | None = None
    signing_key: str | None = None

    def __post_init__(self) -> None:
        require_name("a site's name", self.name)
        require_integer("n_records", self.n_records, least=1, most=MAX_RECORDS)
        if self.key is not None:
            require_name("a site's key", self.key)
        if self.signing_key is not None:
            require_hex("a site's signing_key", self.signing_key, 32)
            if self.key not in (None, mark_of(self.signing_key)):
                raise InvalidInput(f"the signing_key of {self.name} must be of its key {self.key}")


@dataclass(frozen=True)
class Agreement:
    """Everything that is fixed before the first release.

    `seed` is public: it decides who takes part when and where the search starts, and with simulated
    noise everything else. `deadline` is in seconds for each round; a round with fewer than
    `min_answers` answers ends the run, but for one that is lost for good: the run goes on without
    it, or with a spare one that the privacy plan has. `receipt_key` is the coordinator's public
    Ed25519 key.
    """

    name: str
    coordinator: str
    receipt_key: str
    method: str
    settings: Mapping[str, Any]
    features: tuple[str, ...]
    sites: tuple[Site, ...]
    epsilon: float
    noise: str
    seed: int
    deadline: float
    min_answers: int
    privacy: PrivacyPlan
    schema: Schema | None = None
    """What the sites' tables are; None: the features are columns of numbers as they stand."""

    def __post_init__(self) -> None:
        for name in ("name", "coordinator"):
            require_name(name, getattr(self, name))
        require_hex("receipt_key", self.receipt_key, 32)
        require_choice("method", self.method, proved_methods())
        require_short("sites", self.sites, MAX_SITES)
        require_short("features", self.features, MAX_FEATURES)
        if not isinstance(self.settings, Mapping):
            raise InvalidInput("settings must be a table, got something else")
        method = method_named(self.method)
        method.require_deployed(self.settings)
        if "n_clusters" not in self.settings:
            raise InvalidInput("n_clusters must be among the settings, got none")
        try:
            settings = json.loads(json.dumps(dict(self.settings), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"settings must be plain finite values: {error}") from error
        object.__setattr__(self, "settings", settings)
        self._check_features()
        names = [site.name for site in self.sites]
        if not names or len(set(names)) != len(names):
            raise InvalidInput("sites must have names of their own, got some twice or none")
        require_epsilon(self.epsilon)
        require_choice("noise", self.noise, NOISES)
        require_integer("seed", self.seed, least=0, most=2**63 - 1)
        require_number("deadline", self.deadline, above=0, most=MAX_SECONDS)
        require_choice("trust of separate sites", self.privacy.trust, DEPLOYED_TRUSTS)
        require_countable(self.privacy, len(self.sites))
        if self.is_masked:
            self._check_masks()
        least = min(release.sites_per_round for release in self.privacy.releases)
        require_integer("min_answers", self.min_answers, least=1, most=least)
        method.checked(self.settings, self.facts)

    @property
    def cluster_range(self) -> tuple[int, int]:
        """Return how many clusters a model of the run may have, at least and at most."""
        return method_named(self.method).cluster_range(self.settings, self.facts)

    @property
    def is_masked(self) -> bool:
        """Return whether uploads are hidden from the server, which learns their sum alone."""
        return self.privacy.trust == "secure-aggregation"

    def _check_masks(self) -> None:
        """Refuse what secure aggregation cannot keep secret."""
        if self.noise != "secure":
            raise InvalidInput(f"noise must be secure for secure aggregation, got {self.noise}")
        keys = {site.signing_key for site in self.sites}
        if None in keys or len(keys) < len(self.sites):
            raise InvalidInput(
                "each site must have a signing_key of its own for secure aggregation"
            )
        for site in self.sites:  # their names stand in commands, and beside keys to be compared
            if not SITE_NAME.fullmatch(site.name):
                raise InvalidInput(
                    "a site's name must be 1 to 64 letters, digits, '.', '_' or '-' for secure "
                    f"aggregation, got {site.name!r}"
                )
        if self.privacy.min_survivors is None:
            raise InvalidInput("min_survivors must be a number for secure aggregation, got none")
        for release in self.privacy.releases:
            self._circle(tuple(range(release.sites_per_round)))

    def _circle(self, sites: tuple[int, ...]) -> Circle:
        survivors = min(self.privacy.min_survivors or 0, len(sites))
        return Circle(sites, survivors, self.privacy.colluding_sites)

    def circle(self, stage: str, t: int) -> Circle:
        """Return who shares secrets with whom in round t of a stage (secure aggregation)."""
        return self._circle(tuple(self.cohort(stage, t).tolist()))

    def least_answers(self, n_asked: int) -> int:
        """Return how many answers a round of so many sites needs."""
        return min(self.privacy.min_survivors or 0, n_asked) if self.is_masked else self.min_answers

    def _check_features(self) -> None:
        for feature in self.features:
            require_name("a feature's name", feature)
        if not self.features or len(set(self.features)) < len(self.features):
            raise InvalidInput("features must have names of their own, got some twice or none")
        if self.schema is None:
            return
        planned = (self.privacy.unit, self.privacy.sites_per_person)
        if planned != (self.schema.unit, self.schema.sites_per_person):
            raise InvalidInput(f"the plan must be for the schema's {self.schema.unit}s, got others")
        if self.features != self.schema.features:
            raise InvalidInput("features must be those of the schema, got others")

    def to_json(self) -> str:
        """Return the canonical JSON: equal agreements have equal text."""
        content = {f.name: getattr(self, f.name) for f in fields(self)}
        content["sites"] = [asdict(site) for site in self.sites]
        content["privacy"] = json.loads(self.privacy.to_json())
        content["schema"] = self.schema and json.loads(self.schema.to_json())
        content["format"] = FORMAT
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Agreement:
        """Read what `to_json` wrote; anything else is refused."""
        try:
            content = dict(bounded_json(text, most=MAX_WORDS))
            got = content.pop("format")
            if got != FORMAT:
                raise OtherVersion("an agreement", repr(str(got)[:80]), FORMAT)
            content["sites"] = tuple(Site(**site) for site in content["sites"])
            content["features"] = tuple(content["features"])
            content["privacy"] = PrivacyPlan.from_json(json.dumps(content["privacy"]))
            if content["schema"] is not None:
                content["schema"] = Schema.from_content(content["schema"])
            agreement = cls(**content)
        except OtherVersion:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput(f"not an agreement: {error}") from error
        if agreement.to_json() != text.strip():
            raise InvalidInput("an agreement must be written in its canonical form")
        return agreement

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 that identifies the run."""
        return digest(self.to_json().encode())

    @property
    def facts(self) -> Federation:
        """Return the public facts that the plan is made from."""
        sizes = np.array([site.n_records for site in self.sites], dtype=np.int64)
        return Federation(
            len(self.features), sizes, None if self.schema is None else self.schema.layout
        )

    @property
    def public(self) -> Public:
        """Return what a method's start may know."""
        facts = self.facts
        return Public(
            facts.n_features,
            facts.records_per_site,
            lambda values: np.asarray(values, dtype=np.float64),
        )

    @cached_property
    def plan(self) -> RunPlan:
        """Return the run as this very code makes it from the facts, with the agreed noise.

        The agreed noise multipliers are taken, so that all sites use the same to the last bit;
        `verified` checks them. The releases must be those of the stages.
        """
        plan = method_named(self.method).plan(
            self.settings, self.facts, self.target, privacy=self.privacy
        )
        got = [
            (
                r.stage,
                r.n_rounds,
                r.sites_per_round,
                r.rounds_per_site,
                r.sampling_probability,
                r.spare_rounds,
            )
            for r in self.privacy.releases
        ]
        due = planned_releases(plan.stages, self.facts, self.target.spare_rounds)
        agreed = (self.privacy.n_sites, self.privacy.spare_delta)
        if got != due or agreed != (len(self.sites), 0):
            raise InvalidInput("the privacy plan must be the one that follows from the settings")
        if self.noise == "secure":
            require_integer("n_records", self.facts.n_records, least=1, most=MAX_RECORDS)
            for release in self.privacy.releases:
                noise_in_units(self.privacy.noise_of_site(release.stage))
        return plan

    def verified(self) -> str:
        """Return the digest for an operator to accept, once all was planned again here.

        The noise must be what this very code would have chosen, up to rounding, and keep epsilon by
        its own accountant. This takes seconds; accepting the digest makes it good for all requests.
        """
        _ = self.exchanges  # what is beyond bounds, or not the plan of the settings, ends here
        own = method_named(self.method).plan(self.settings, self.facts, self.target).privacy
        for stage in self.plan.stages:
            name = stage.name
            got = self.privacy.of_stage(name).noise_multiplier
            due = got if own is None else own.of_stage(name).noise_multiplier
            if abs(got / due - 1) > ROUNDING:
                raise InvalidInput(
                    f"the privacy plan must have noise multiplier {due:.6g} in stage {name!r}, "
                    f"got {got:.6g}"
                )
        bound = float(self.declared.get("bound", 1.0))
        if not MIN_BOUND <= bound <= 1 / MIN_BOUND:
            raise InvalidInput(
                f"the declared bound must be from {MIN_BOUND} to {1 / MIN_BOUND}, got {bound}"
            )
        epsilon = plan_epsilon(self.privacy)
        if epsilon > self.epsilon * (1 + 1e-6):
            raise InvalidInput(f"the privacy plan must keep epsilon {self.epsilon}, got {epsilon}")
        return self.digest

    @property
    def target(self) -> PrivacyTarget:
        """Return what the run may spend."""
        plan = self.privacy
        return PrivacyTarget(
            self.epsilon,
            plan.delta,
            trust=plan.trust,
            min_survivors=plan.min_survivors,
            colluding_sites=plan.colluding_sites,
            unit=plan.unit,
            sites_per_person=plan.sites_per_person,
            spare_rounds=max(release.spare_rounds for release in plan.releases),
        )

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return what each stage sends and receives."""
        declared = {name: Entry(values.shape) for name, values in self.fixed.items()}
        found = exchanges(self.plan.stages, declared, len(self.features))
        work = method_named(self.method).work_per_record(self.settings, self.facts)
        require_workable(found, work, max(site.n_records for site in self.sites))
        return found

    @cached_property
    def max_message_bytes(self) -> int:
        """Return the length of the longest message that the run has any use for."""
        numbers = max(sum(map(math.prod, exchange.shapes)) for exchange in self.exchanges)
        masks = MAX_WORDS_OF_A_PEER * len(self.sites) if self.is_masked else 0
        return 2 * MAX_HEAD + 8 * (numbers + masks)

    @cached_property
    def declared(self) -> State:
        """Return the run's first state: where records lie and how long they are, as declared."""
        declared = method_named(self.method).declared(self.settings, self.facts)
        return {"origin": np.zeros(len(self.features)), **declared}

    @property
    def fixed(self) -> State:
        """Return the broadcasts that no round changes: a site knows them beforehand."""
        return {n: values for n, values in self.declared.items() if n != "centers"}

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Return what the run promises, computed from the plan by the accountant."""
        return guarantee(self.privacy, SIMULATED if self.noise == "simulated" else None)

    def exchange(self, stage: str) -> Exchange:
        """Return what a stage sends and receives."""
        for exchange in self.exchanges:
            if exchange.stage.name == stage:
                return exchange
        known = ", ".join(exchange.stage.name for exchange in self.exchanges)
        raise InvalidInput(f"stage must be one of {known}, got {stage!r}")

    def cohort(self, stage: str, t: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the sites in round t of a stage, by the public schedule."""
        planned = self.exchange(stage).stage
        spare = self.plan.spare_rounds[stage]
        require_integer("t", t, least=1, most=planned.n_rounds + spare)
        rounds = cohorts(planned, len(self.sites), Randomness(self.seed), spare_rounds=spare)
        return next(cohort for i, cohort in enumerate(rounds, start=1) if i == t)

    def number_of(self, site: str) -> int:
        """Return a site's number in the run."""
        if site not in self._numbers:
            raise InvalidInput(f"site must be one of the run's {len(self.sites):,}, got {site!r}")
        return self._numbers[site]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {site.name: number for number, site in enumerate(self.sites)}


def require_name(what: str, value: Any) -> str:
    """Return a short text of printable characters, or say what was expected."""
    if isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable():
        return value
    raise InvalidInput(f"{what} must be a short text, got {str(value)[:80]!r}")
