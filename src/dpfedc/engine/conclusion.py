"""What a finished run comes to: its model, its record and its promise, simulated or deployed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from dpfedc.clustering.method import declares_bound
from dpfedc.clustering.plan_text import budget_shares
from dpfedc.clustering.registry import method_named, proved_methods
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import State
from dpfedc.engine.rounds import Position
from dpfedc.engine.run_record import RunRecord
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.accountant import guarantee
from dpfedc.settings import PrivacyGuarantee, plain

_COLUMN = re.compile(r"\bcolumn (\d+) \(counted from 0\)")
"""How a stage, which knows no names, speaks of a column."""


@dataclass(frozen=True)
class Conclusion:
    """A run's results; without a promise where nothing is proved."""

    model: ClusterModel
    record: RunRecord
    privacy: PrivacyGuarantee | None
    doubts: tuple[str, ...] = ()
    """What in the released values looks like noise, in words."""


def concluded(
    method: str,
    settings: Mapping[str, Any],
    plan: RunPlan,
    facts: Federation,
    last: Position,
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
    fitted = model({**about, "stamps": list(stamps), "privacy": privacy})
    fitted = _sizes_of_all(fitted, last.state, facts)
    names = fitted.feature_names
    doubts = [_naming(text, names) for stage in plan.stages for text in stage.doubts(last.state)]
    if method in proved_methods():
        doubts += method_named(method).doubts(settings, fitted)
    record = RunRecord(
        **about,
        settings=_settings(method, settings, facts),
        rounds=last.rounds,
        stamps=stamps,
        results={
            "privacy": privacy,
            "doubts": list(doubts),
            "privacy_plan": plan.privacy and json.loads(plan.privacy.to_json()),
            "stages": list(_stages(plan)),
            **({} if fitted.quality is None else {"quality": fitted.quality.as_plain()}),
            **(results or {}),
        },
    )
    return Conclusion(fitted, record, promise, tuple(doubts))


def _naming(doubt: str, names: Sequence[str] | None) -> str:
    """Return a doubt with the name of the column that it is about, where names are known."""
    if names is None:
        return doubt
    return _COLUMN.sub(lambda found: f"column {names[int(found[1])]}", doubt)


def _sizes_of_all(model: ClusterModel, state: State, facts: Federation) -> ClusterModel:
    """Return the model with sizes for all records, where some sites were not in the last count.

    How much these differ from the others is not known, so such sizes have no error bars.
    """
    if model.sizes is None or "counted" not in state:
        return model
    up = facts.n_records / float(state["counted"])
    if math.isclose(up, 1.0, rel_tol=1e-6):
        return model
    return replace(model, sizes=up * model.sizes, size_errors=None)


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
                "spare_rounds": release.spare_rounds,
                "noise_multiplier": release.noise_multiplier,
                "budget_share": shares[name],
            }
        yield told
