"""What coordinator and sites agree on before the first release: plain data with its own JSON.

The SHA-256 of its canonical JSON identifies the run: an agreement that differs in one character is
another run, which no operator has accepted. Nothing in it is believed. A site plans the run again
from the public facts with its own code, and refuses what it would not have planned itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.registry import PROVED_METHODS, declared_state, declares_bound, proved_plan
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import Public, State
from dpfedc.deployment.exchanges import Exchange, exchanges
from dpfedc.deployment.messages import digest, require_hex
from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import guarantee, plan_epsilon
from dpfedc.privacy.exact import LARGEST_SUM, SENSITIVITY, noise_in_units
from dpfedc.privacy.noise import SIMULATED
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.schedule import most_rounds_of_a_site, schedule
from dpfedc.randomness import Randomness
from dpfedc.settings import (
    PrivacyGuarantee,
    PrivacyTarget,
    require_choice,
    require_epsilon,
    require_integer,
    require_number,
)
from dpfedc.tables.sources import Schema

FORMAT = "dpfedc-agreement-1"
VERSION = version("dpfedc")
NOISES = ("secure", "simulated")
MIN_BOUND = 1e-100
"""Lengths beyond it, either way, cannot be squared: every round would fail, and stay charged."""
LLOYD_SETTINGS = frozenset({"n_clusters", "n_rounds", "sites_per_round", "norm_bound", "init"})
DP_FEDC_SETTINGS = LLOYD_SETTINGS | {
    "center", "scale", "feature_ranges", "constant_feature", "refine_rounds", "subspace",
    "nonnegative", "membership_steps", "update", "sampling_probability", "orthogonality",
    "clip_norm", "step", "momentum",
}  # fmt: skip
ROUNDING = 1e-3
"""By this part a noise multiplier may differ from a site's own: computers round differently, and
the search for it goes in steps."""
MAX_RECORDS = LARGEST_SUM // SENSITIVITY - 1
"""Of all sites together: exact sums over more could wrap around."""
MAX_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True)
class Site:
    """A site as everyone knows it: its name, how many records it declares, its key's fingerprint.

    The number of records is public, and counts null ones.
    """

    name: str
    n_records: int
    key: str | None = None

    def __post_init__(self) -> None:
        require_name("a site's name", self.name)
        require_integer("n_records", self.n_records, least=1, most=MAX_RECORDS)
        if self.key is not None:
            require_name("a site's key", self.key)


@dataclass(frozen=True)
class Agreement:
    """Everything that is fixed before the first release.

    `seed` is public: it decides who takes part when and where the search starts, and with simulated
    noise everything else. `deadline` is in seconds for each round; a round with fewer than
    `min_answers` answers ends the run. `receipt_key` is the coordinator's public Ed25519 key.
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
    version: str = VERSION

    def __post_init__(self) -> None:
        for name in ("name", "coordinator", "version"):
            require_name(name, getattr(self, name))
        require_hex("receipt_key", self.receipt_key, 32)
        require_choice("method", self.method, PROVED_METHODS)
        known = DP_FEDC_SETTINGS if self.method == "dp-fedc" else LLOYD_SETTINGS
        if not isinstance(self.settings, Mapping) or not set(self.settings) <= known:
            raise InvalidInput(
                f"settings of {self.method} must be among {', '.join(sorted(known))}, "
                f"got {', '.join(map(str, self.settings))}"
            )
        require_integer("n_clusters", self.settings.get("n_clusters"), least=1)
        try:
            settings = json.loads(json.dumps(dict(self.settings), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"settings must be plain finite values: {error}") from error
        object.__setattr__(self, "settings", settings)
        Schema(self.features)
        for feature in self.features:
            require_name("a feature's name", feature)
        names = [site.name for site in self.sites]
        if not names or len(set(names)) != len(names):
            raise InvalidInput(f"sites must have names of their own, got {', '.join(names)}")
        require_epsilon(self.epsilon)
        require_choice("noise", self.noise, NOISES)
        require_integer("seed", self.seed, least=0, most=2**63 - 1)
        require_number("deadline", self.deadline, above=0, most=MAX_SECONDS)
        if self.privacy.trust != "local":
            raise InvalidInput(
                "trust must be local for separate sites (each adds its own noise), "
                f"got {self.privacy.trust}"
            )
        least = min(release.sites_per_round for release in self.privacy.releases)
        require_integer("min_answers", self.min_answers, least=1, most=least)

    def to_json(self) -> str:
        """Return the canonical JSON: equal agreements have equal text."""
        content = {f.name: getattr(self, f.name) for f in fields(self)}
        content["sites"] = [asdict(site) for site in self.sites]
        content["privacy"] = json.loads(self.privacy.to_json())
        content["format"] = FORMAT
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Agreement:
        """Read what `to_json` wrote; anything else is refused."""
        try:
            content = dict(json.loads(text))
            if content.pop("format") != FORMAT:
                raise InvalidInput(f"an agreement must have format {FORMAT}")
            content["sites"] = tuple(Site(**site) for site in content["sites"])
            content["features"] = tuple(content["features"])
            content["privacy"] = PrivacyPlan.from_json(json.dumps(content["privacy"]))
            agreement = cls(**content)
        except (
            ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ) as error:  # fmt: skip
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
        return Federation(len(self.features), sizes)

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
        if self.version != VERSION:
            raise InvalidInput(f"version must be {VERSION}, as installed, got {self.version}")
        plan = proved_plan(
            self.method, self.settings, self.facts, self.target, privacy=self.privacy
        )
        n_sites, expected = len(self.sites), []
        for stage in plan.stages:
            per_round, n_rounds = stage.sites_per_round or n_sites, stage.method.n_rounds
            most = most_rounds_of_a_site(n_sites, per_round, n_rounds)
            searching = stage.method.name == "factorisation"
            q = self.settings.get("sampling_probability", 1.0) if searching else 1.0
            expected.append((stage.method.name, n_rounds, per_round, most, q))
        got = [
            (r.stage, r.n_rounds, r.sites_per_round, r.rounds_per_site, r.sampling_probability)
            for r in self.privacy.releases
        ]
        if got != expected or (self.privacy.n_sites, self.privacy.spare_delta) != (n_sites, 0):
            raise InvalidInput("the privacy plan must be the one that follows from the settings")
        if self.noise == "secure":
            require_integer("n_records", self.facts.n_records, least=1, most=MAX_RECORDS)
            for release in self.privacy.releases:
                noise_in_units(release.noise_multiplier)
        return plan

    def verified(self) -> str:
        """Return the digest for an operator to accept, once all was planned again here.

        The noise must be what this very code would have chosen, up to rounding, and keep epsilon by
        its own accountant. This takes seconds; accepting the digest makes it good for all requests.
        """
        own = proved_plan(self.method, self.settings, self.facts, self.target).privacy
        for stage in self.plan.stages:
            name = stage.method.name
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
        return PrivacyTarget(self.epsilon, self.privacy.delta)

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return what each stage sends and receives."""
        declared = declares_bound(self.settings)
        facts = self.facts
        return exchanges(self.plan, facts.n_features, facts.n_sites, declared_bound=declared)

    @cached_property
    def declared(self) -> State:
        """Return the run's first state: where records lie and how long they are, as declared."""
        origin = np.zeros(len(self.features))
        declared = declared_state(self.method, self.settings, len(self.features))
        return {"origin": origin, **declared}

    @property
    def fixed(self) -> State:
        """Return the broadcasts that no round changes: a site knows them beforehand."""
        return {n: values for n, values in self.declared.items() if n in ("origin", "bound")}

    @property
    def schema(self) -> Schema:
        """Return the columns that every site must offer."""
        return Schema(self.features)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Return what the run promises, computed from the plan by the accountant."""
        return guarantee(self.privacy, SIMULATED if self.noise == "simulated" else None)

    def exchange(self, stage: str) -> Exchange:
        """Return what a stage sends and receives."""
        for exchange in self.exchanges:
            if exchange.method.name == stage:
                return exchange
        known = ", ".join(exchange.method.name for exchange in self.exchanges)
        raise InvalidInput(f"stage must be one of {known}, got {stage!r}")

    def cohort(self, stage: str, t: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the sites in round t of a stage, by the public schedule."""
        exchange = self.exchange(stage)
        n_rounds = exchange.method.n_rounds
        require_integer("t", t, least=1, most=n_rounds)
        rng = Randomness(self.seed).generator(f"participation {stage}")
        rounds = schedule(len(self.sites), exchange.sites_per_round, n_rounds, rng=rng)
        return next(cohort for i, cohort in enumerate(rounds, start=1) if i == t)

    def number_of(self, site: str) -> int:
        """Return a site's number in the run."""
        names = [known.name for known in self.sites]
        if site not in names:
            raise InvalidInput(f"site must be one of {', '.join(names)}, got {site!r}")
        return names.index(site)


def require_name(what: str, value: Any) -> str:
    """Return a short text of printable characters, or say what was expected."""
    if isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable():
        return value
    raise InvalidInput(f"{what} must be a short text, got {value!r}")
