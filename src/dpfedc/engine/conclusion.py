"""What a finished run comes to: its model, its record and its promise, simulated or deployed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from dpfedc.clustering.method import declares_bound
from dpfedc.clustering.plan_text import budget_shares
from dpfedc.clustering.registry import proved_methods
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.accountant import guarantee
from dpfedc.settings import PrivacyGuarantee, plain


@dataclass(frozen=True)
class Conclusion:
    """A run's results; without a promise where nothing is proved."""

    model: ClusterModel
    record: RunRecord
    privacy: PrivacyGuarantee | None


def concluded(
    method: str,
    settings: Mapping[str, Any],
    plan: RunPlan,
    facts: Federation,
    rounds: Sequence[RoundRecord],
    *,
    stamp: str | None,
    model: Callable[[dict[str, Any]], ClusterModel],
    results: Mapping[str, Any] | None = None,
) -> Conclusion:
    """Return the conclusion of a run whose rounds are over.

    `stamp` qualifies the noise (None: deployed noise, or none was added). `model` makes the model,
    given what is to be known about it. `results` are more than what every run has.
    """
    promise = None if plan.privacy is None else guarantee(plan.privacy, stamp)
    stamps = plan.stamps if stamp is None else (*plan.stamps, stamp)
    privacy = None if promise is None else promise.as_plain()
    about = {"method": method, "version": version("dpfedc")}
    record = RunRecord(
        **about,
        settings=_settings(method, settings, facts),
        rounds=tuple(rounds),
        stamps=stamps,
        results={
            "privacy": privacy,
            "privacy_plan": plan.privacy and json.loads(plan.privacy.to_json()),
            "stages": list(_stages(plan)),
            **(results or {}),
        },
    )
    fitted = model({**about, "stamps": list(stamps), "privacy": privacy})
    return Conclusion(fitted, record, promise)


def _settings(method: str, settings: Mapping[str, Any], facts: Federation) -> dict[str, Any]:
    """Return what the record says of how the run was made: plain values, and public facts."""
    known: dict[str, Any] = {
        name: plain(value)
        for name, value in settings.items()
        if isinstance(value, (int, float, str, bool, np.generic)) or value is None
    }
    if method in proved_methods():
        known["init"] = "random" if settings.get("init") is None else "given"
        known["declared_bound"] = declares_bound(settings)
    return {
        **known,
        "n_sites": facts.n_sites,
        "n_records": facts.n_records,
        "n_features": facts.n_features,
    }


def _stages(plan: RunPlan) -> Iterator[dict[str, Any]]:
    """Return each stage in words and numbers, for a reader who does not know the methods."""
    shares = {} if plan.privacy is None else budget_shares(plan.privacy)
    for stage in plan.stages:
        name = stage.name
        told = {"stage": name, "purpose": stage.purpose, "n_rounds": stage.n_rounds}
        if plan.privacy is not None:
            release = plan.privacy.of_stage(name)
            told |= {
                "rounds_per_site": release.rounds_per_site,
                "noise_multiplier": release.noise_multiplier,
                "budget_share": shares[name],
            }
        yield told
