"""What a run's record says of privacy: the promise in words, and how its budget was spent."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.plan_text import STAGE_PURPOSES, budget_shares, multiplier, percent
from dpfedc.clustering.run_plan import Choices, Federation
from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.privacy.statement import number, privacy_statement
from dpfedc.research.published.published_account import published_epsilon
from dpfedc.research.published.published_planner import published_noise_multipliers
from dpfedc.settings import PrivacyGuarantee, PrivacyTarget

EXACT_SHOWN = (
    "Not protected: scores, cluster sizes and the progress of each round, which are exact. They "
    "can be shown because this is a simulation; with real records, do not publish them."
)

STAGES_HEAD = ("stage", "rounds", "noise", "budget")
STAGES_CAPTION = (
    "How the privacy was paid for. Noise: its size over the most that one record can change a "
    "release (the noise multiplier). Budget: the stage's share of all that may be learnt."
)


def recorded_plan(record: RunRecord) -> PrivacyPlan | None:
    """Return the privacy plan that the run followed; None where nothing is proved."""
    plan = record.results.get("privacy_plan")
    return None if plan is None else PrivacyPlan.from_json(json.dumps(plan))


def recorded_guarantee(record: RunRecord) -> PrivacyGuarantee | None:
    """Return the promise that the run reported; None where nothing is proved."""
    plain = record.results.get("privacy")
    if plain is None:
        return None
    try:
        return PrivacyGuarantee(**plain, event=None)
    except TypeError as error:
        raise InvalidInput(f"the record's privacy is not a promise made here: {error}") from error


def privacy_paragraphs(record: RunRecord, records_per_site: npt.NDArray[np.int64]) -> list[str]:
    """Return what the run promises about any one record, and what it does not."""
    promise = recorded_guarantee(record)
    if promise is not None:
        return [*privacy_statement(promise), EXACT_SHOWN]
    if record.settings.get("epsilon") is None:
        return ["Not protected: this run adds no noise, so it promises no privacy."]
    if record.settings.get("variant") == "published":
        return _published_paragraphs(record, records_per_site)
    return ["Not protected: this run has no privacy plan, so it promises no privacy."]


def stage_rows(plan: PrivacyPlan) -> list[tuple[str, str, str, str]]:
    """Return a row per stage, under STAGES_HEAD."""
    shares = budget_shares(plan)
    rows = []
    for release in plan.releases:
        rounds, share = f"{release.n_rounds:,}", shares[release.stage]
        if release.rounds_per_site < release.n_rounds:
            rounds += f" ({release.rounds_per_site:,} per site)"
        budget = "the rest" if share is None else percent(share)
        purpose = STAGE_PURPOSES.get(release.stage)
        name = release.stage if purpose is None else f"{release.stage}: {purpose}"
        rows.append((name, rounds, multiplier(release.noise_multiplier), budget))
    return rows


def _published_paragraphs(record: RunRecord, records_per_site: npt.NDArray[np.int64]) -> list[str]:
    """Return the paper's claim beside what the accountant gives for the very same noise."""
    settings = record.settings
    target = PrivacyTarget(settings["epsilon"], settings["delta"])
    names = ({f.name for f in fields(Choices)} - {"init"}) & settings.keys()
    choices = Choices(**{name: settings[name] for name in names})
    facts = Federation(settings["n_features"], records_per_site)
    z, _ = published_noise_multipliers(choices, facts, target)
    per_round = choices.sites_per_round or facts.n_sites
    most = most_rounds_of_a_site(facts.n_sites, per_round, len(z))
    epsilon = published_epsilon(z, rounds_per_site=most, delta=target.delta, clipped=True)
    return [
        f"Not protected: this run adds the noise that the paper states for a total privacy loss of "
        f"epsilon {target.epsilon:g}, delta {target.delta:g} for each record. The paper's argument "
        "is not a proof, so this run promises no privacy.",
        f"The same noise: by the accountant it would give epsilon {number(epsilon)} at delta "
        f"{target.delta:g}, if the step sizes were public; here they are computed from private "
        "memberships, which nothing covers.",
        "Not protected: labels, cluster sizes and scores, which are exact.",
    ]
