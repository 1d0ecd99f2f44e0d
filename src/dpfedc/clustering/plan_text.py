"""A plan in plain words: what will be released, how noisy it will be, and why.

Everything here follows from the plan; nothing sees a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpfedc.clustering.run_plan import (
    Federation,
    RunPlan,
)
from dpfedc.clustering.stage import Stage
from dpfedc.privacy.accountant import gaussian_mu, guarantee, plan_epsilon
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.statement import (
    FROM_WHOM,
    HOW_IT_WORKS,
    assumption,
    changes_the_sum,
    counted,
    less_protected,
    multiplier,
    number,
    odds_factor,
    percent,
    what_is_protected,
)
from dpfedc.settings import PrivacyGuarantee, PrivacyTarget


def budget_shares(plan: PrivacyPlan) -> dict[str, float | None]:
    """Return each stage's share of the budget, counted in mu^2: rounds_per_site / z^2 over the sum.

    A stage that samples its records has no such share (None): it takes what the others leave of
    the mu^2 that one Gaussian release with the plan's epsilon and delta has.
    """
    spent = {r.stage: r.rounds_per_site / r.noise_multiplier**2 for r in plan.releases}
    sampled = {r.stage for r in plan.releases if r.sampling_probability < 1}
    whole = sum(spent.values())
    if sampled:
        whole = gaussian_mu(plan_epsilon(plan), plan.delta - plan.spare_delta) ** 2
    return {stage: None if stage in sampled else used / whole for stage, used in spent.items()}


def plan_in_brief(plan: RunPlan, target: PrivacyTarget | None) -> str:
    """Return the plan in one line."""
    n_stages = len(plan.stages)
    size = f"Plan: {counted(plan.n_rounds, 'round')} in {counted(n_stages, 'stage')}"
    if target is None:
        return f"{size}; no noise, so no privacy is promised."
    if plan.privacy is None:
        return (
            f"{size}; the paper's noise for epsilon {number(target.epsilon)}, delta "
            f"{target.delta:g}, which is not a proof."
        )
    epsilon = number(plan_epsilon(plan.privacy))
    return f"{size}; epsilon {epsilon}, delta {target.delta:g} for every {plan.privacy.unit}."


def plan_in_words(
    plan: RunPlan,
    facts: Federation,
    target: PrivacyTarget | None,
    verdict: Sequence[str] = (),
) -> list[str]:
    """Return the plan in sentences, each with its subject and a colon in front.

    In order: what is planned, the verdict on it, the promise and whom it trusts, the planner's
    choices, the stages, and a warning where delta is too large to mean much.
    """
    paragraphs = [_subject(plan, facts), *verdict]
    if plan.privacy is None:
        noise = "" if target is None else f"; the paper's noise for epsilon {target.epsilon:g}"
        paragraphs.append(f"Promise: none{noise}; {'; '.join(plan.stamps)}.")
    else:
        promise = guarantee(plan.privacy, stamp=None)
        paragraphs += _promise(promise)
    paragraphs += [*plan.explain(), *_stages(plan, facts)]
    return paragraphs + [f"Warning: {text}" for text in _warnings(plan, facts)]


def _unit(plan: RunPlan) -> str:
    """Return what the records are of: where every site makes one of a person, persons."""
    return "record" if plan.privacy is None else plan.privacy.unit


def _subject(plan: RunPlan, facts: Federation) -> str:
    unit = _unit(plan)
    # Whatever is measured at the end, the stage that merges says how many there may be.
    merging = (stage for stage in plan.stages if hasattr(stage, "least_clusters"))
    last = next(merging, plan.stages[-1])
    most = getattr(last, "n_clusters", 0)
    least = getattr(last, "least_clusters", most)
    clusters = counted(most, "cluster") if least == most else f"{least:,} to {most:,} clusters"
    sizes = facts.records_per_site
    least, most = int(sizes.min()), int(sizes.max())
    where = f"at {facts.n_sites:,} sites with {least:,} to {most:,} {unit}s each"
    if least == most:
        where = f"at {facts.n_sites:,} sites with {counted(most, unit)} each"
    if facts.n_sites == 1:
        where = "at one site"
    return (
        f"Plan: {clusters} among {counted(facts.n_records, unit)} with "
        f"{counted(facts.n_features, 'feature')} {where}. It is made from these numbers alone; no "
        "record was read."
    )


def _promise(promise: PrivacyGuarantee) -> Iterator[str]:
    yield (
        f"Promise: epsilon {number(promise.epsilon)}, delta {promise.delta:g} for every "
        f"{promise.unit}, over the whole run. Seeing all that is released changes anyone's odds "
        f"that a {promise.unit} was there {odds_factor(promise.epsilon)}; delta is the chance that "
        f"more is learnt. Computed by {promise.accountant}."
    )
    if promise.unit != "record":
        weaker = " ".join(less_protected(promise))
        yield f"Protected: {what_is_protected(promise)}. {weaker}"
    whom = f"The promise holds against {FROM_WHOM[promise.trust]}."
    yield f"Trust: {promise.trust}. {HOW_IT_WORKS[promise.trust]} {whom}"
    if promise.trust == "secure-aggregation":
        yield f"Assumed: {assumption(promise)}"


def _stages(plan: RunPlan, facts: Federation) -> Iterator[str]:
    privacy, n_stages = plan.privacy, len(plan.stages)
    if privacy is not None:
        most = sum(release.rounds_per_site for release in privacy.releases)
        yield (
            f"Stages: {n_stages}. Each round releases one noisy sum over its sites; no site takes "
            f"part in more than {counted(most, 'round')}. The noise multiplier is the size of the "
            f"noise over the most that {changes_the_sum(privacy.unit)} can change the sum."
        )
    shares = {} if privacy is None else budget_shares(privacy)
    for i, stage in enumerate(plan.stages, start=1):
        name = stage.name
        text = f"Stage {i}: {name} ({stage.purpose}). {_who(stage, facts, privacy)}"
        if privacy is not None:
            planned = privacy.of_stage(name)
            share = shares[name]
            budget = "what the others leave" if share is None else f"{percent(share)}"
            text += (
                f"; noise multiplier {multiplier(planned.noise_multiplier)}; {budget} of the budget"
            )
            if planned.sampling_probability < 1:
                chance = percent(planned.sampling_probability)
                text += f"; each {privacy.unit} is in a round with a chance of {chance}"
        yield f"{text}."


def _who(stage: Stage, facts: Federation, privacy: PrivacyPlan | None) -> str:
    n_rounds, n_sites = stage.n_rounds, facts.n_sites
    per_round = stage.taking_part(n_sites)
    rounds = counted(n_rounds, "round").capitalize()
    if privacy is not None and privacy.of_stage(stage.name).spare_rounds:
        rounds += ", and one more if it is lost,"
    if n_sites == 1:
        return f"{rounds} at the one site"
    if per_round == n_sites:
        return f"{rounds} with all {n_sites:,} sites"
    told = f"{rounds} with {per_round:,} of {n_sites:,} sites"
    if privacy is None:
        return told
    return f"{told} (a site is in {privacy.of_stage(stage.name).rounds_per_site} at most)"


def _warnings(plan: RunPlan, facts: Federation) -> Iterator[str]:
    if plan.privacy is None:
        return
    unit = plan.privacy.unit
    if plan.privacy.delta >= 1 / facts.n_records:
        yield (
            f"delta {plan.privacy.delta:g} is too large to mean much: it should be well below one "
            f"over the number of {unit}s, {1 / facts.n_records:.2g}. Take "
            f"{0.1 / facts.n_records:.1g} or less."
        )
