"""What a run's record says of privacy: the promise in words, and how its budget was spent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dpfedc.engine.run_record import EXACT, RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.statement import (
    FROM_WHOM,
    assumption,
    changes_the_sum,
    how_likely,
    left_blank,
    multiplier,
    number,
    percent,
    privacy_statement,
    what_is_protected,
)
from dpfedc.settings import PrivacyGuarantee

EXACT_SHOWN = (
    "Not protected: scores, cluster sizes and the progress of each round, which are exact. They "
    "can be shown because this is a simulation; with real records, do not publish them."
)

STAGES_HEAD = ("stage", "rounds", "noise", "budget")


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


def privacy_paragraphs(record: RunRecord) -> list[str]:
    """Return what the run promises about any one record or person, and what it does not."""
    promise = recorded_guarantee(record)
    if promise is not None:
        shown = [EXACT_SHOWN] if EXACT in record.stamps else []
        return [*privacy_statement(promise), *shown]
    if record.settings.get("epsilon") is None:
        return ["Not protected: this run adds no noise, so it promises no privacy."]
    unproved = ["Not protected: this run has no privacy plan, so it promises no privacy."]
    return list(record.results.get("privacy_notes", unproved))


def promise_in_short(promise: PrivacyGuarantee) -> list[str]:
    """Return in short what is protected and how much, from whom, and what is not."""
    open_to = f"what is true of whole groups, and how many {promise.unit}s each site has."
    if promise.stamp:
        open_to += (
            " Against whoever knows this trial's seed nothing is protected: an ordinary generator "
            "drew the noise, and can draw it again."
        )
    return [
        f"Protected: {what_is_protected(promise)}. With epsilon {number(promise.epsilon)} and "
        f"delta {number(promise.delta)}, what was released would be {how_likely(promise.epsilon)} "
        f"if {left_blank(promise.unit)} had been left blank.",
        f"From whom: {FROM_WHOM[promise.trust]}.",
        *([f"Assumed: {assumption(promise)}"] if promise.trust == "secure-aggregation" else ()),
        f"Not protected: {open_to}",
    ]


def privacy_in_short(record: RunRecord) -> list[str]:
    """Return what the run promises in short, or that it promises nothing."""
    promise = recorded_guarantee(record)
    return privacy_paragraphs(record)[:1] if promise is None else promise_in_short(promise)


def verdict_paragraphs(results: Mapping[str, Any]) -> list[str]:
    """Return whether the result is to be relied on, as the run recorded, and what is doubtful."""
    verdict, doubts = results.get("verdict"), results.get("doubts") or ()
    said = [] if not verdict else [f"Verdict: {verdict['word']}. {' '.join(verdict['sentences'])}"]
    # A verdict that was reached after the run has the doubts in it.
    told = " ".join(said).lower()
    return [*said, *(f"Doubt: {doubt}." for doubt in doubts if doubt.lower() not in told)]


def unit_of(record: RunRecord) -> str:
    """Return what the run's records are of, as it recorded: records as such, or persons."""
    return str((record.results.get("privacy") or {}).get("unit", "record"))


def stages_caption(record: RunRecord) -> str:
    """Return what stands under the table of the stages."""
    return (
        f"How the privacy was paid for. Noise: its size over the most that "
        f"{changes_the_sum(unit_of(record))} can change a release (the noise multiplier). Budget: "
        "the stage's share of all that may be learnt."
    )


def stage_rows(record: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return a row per stage of a run with a privacy plan, under STAGES_HEAD."""
    rows = []
    for stage in record.results.get("stages", ()):
        if "noise_multiplier" not in stage:
            continue
        rounds, share = f"{stage['n_rounds']:,}", stage["budget_share"]
        spare = stage.get("spare_rounds", 0)
        if spare:
            rounds += f" + {spare:,} spare"
        if stage["rounds_per_site"] < stage["n_rounds"] + spare:
            rounds += f" ({stage['rounds_per_site']:,} per site)"
        budget = "the rest" if share is None else percent(share)
        name = f"{stage['stage']}: {stage['purpose']}"
        rows.append((name, rounds, multiplier(stage["noise_multiplier"]), budget))
    return rows
