"""A plan in plain words: what will be released, how noisy it will be, and why.

Everything here follows from the plan; nothing sees a record.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.dp_fedc_planner import LOW_DIMENSION, MAX_USABLE_NOISE, auto_rounds
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import Method, Stage
from dpfedc.clustering.standardize import Subspace
from dpfedc.privacy.accountant import gaussian_mu, guarantee, plan_epsilon
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.statement import FROM_WHOM, HOW_IT_WORKS, assumption, number, odds_factor
from dpfedc.settings import PrivacyGuarantee, PrivacyTarget

MAX_HARMLESS_NOISE = 0.2
"""Below this noise ratio a run finds about what it would find without noise."""

STAGE_PURPOSES = {
    "bound": "how long records are, as a histogram",
    "mean": "where the middle of all records lies",
    "scale": "how far records are from that middle",
    "subspace": "the few directions in which records differ most",
    "factorisation": "the search for the clusters",
    "choice": "which of several starts has the least objective",
    "centres": "the centres in the units of the data",
}
"""What each stage finds out, by its name."""


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


def noise_in_words(noise_ratio: float) -> str:
    """Return what to expect of a result at this ratio of noise to a cluster's signal."""
    if noise_ratio < MAX_HARMLESS_NOISE:
        return "little is lost to noise"
    if noise_ratio <= MAX_USABLE_NOISE:
        return "noise costs some accuracy"
    return "noise swamps the clusters; expect a poor result"


def plan_in_brief(plan: RunPlan, target: PrivacyTarget | None) -> str:
    """Return the plan in one line."""
    n_stages = len(plan.stages)
    size = f"Plan: {_counted(plan.n_rounds, 'round')} in {_counted(n_stages, 'stage')}"
    if target is None:
        return f"{size}; no noise, so no privacy is promised."
    if plan.privacy is None:
        return (
            f"{size}; the paper's noise for epsilon {number(target.epsilon)}, delta "
            f"{target.delta:g}, which is not a proof."
        )
    epsilon = number(plan_epsilon(plan.privacy))
    return (
        f"{size}; epsilon {epsilon}, delta {target.delta:g} for every record; "
        f"{noise_in_words(plan.noise_ratio)} (noise ratio {ratio(plan.noise_ratio)})."
    )


def plan_in_words(plan: RunPlan, facts: Federation, target: PrivacyTarget | None) -> list[str]:
    """Return the plan in sentences, each with its subject and a colon in front.

    In order: what is planned, the promise and whom it trusts, the noise, the planner's choices, the
    stages, and warnings where the result is likely to be poor or delta too large to mean much.
    """
    paragraphs = [_subject(plan, facts)]
    if plan.privacy is None:
        noise = "" if target is None else f"; the paper's noise for epsilon {target.epsilon:g}"
        paragraphs.append(f"Promise: none{noise}; {'; '.join(plan.stamps)}.")
    else:
        promise = guarantee(plan.privacy, stamp=None)
        paragraphs += [*_promise(promise), _noise(plan.noise_ratio)]
    paragraphs += [*_choices(plan, facts), *_stages(plan, facts)]
    return paragraphs + [f"Warning: {text}" for text in _warnings(plan, facts)]


def _counted(n: int, what: str) -> str:
    return f"one {what}" if n == 1 else f"{n:,} {what}s"


def _subject(plan: RunPlan, facts: Federation) -> str:
    n_clusters = next(s.method.n_clusters for s in plan.stages if hasattr(s.method, "n_clusters"))
    sizes = facts.records_per_site
    least, most = int(sizes.min()), int(sizes.max())
    where = f"at {facts.n_sites:,} sites with {least:,} to {most:,} records each"
    if least == most:
        where = f"at {facts.n_sites:,} sites with {_counted(most, 'record')} each"
    if facts.n_sites == 1:
        where = "at one site"
    return (
        f"Plan: {_counted(n_clusters, 'cluster')} among {_counted(facts.n_records, 'record')} with "
        f"{_counted(facts.n_features, 'feature')} {where}. It is made from these numbers alone; no "
        "record was read."
    )


def _promise(promise: PrivacyGuarantee) -> Iterator[str]:
    yield (
        f"Promise: epsilon {number(promise.epsilon)}, delta {promise.delta:g} for every "
        f"{promise.unit}, over the whole run. Seeing all that is released changes anyone's odds "
        f"that a {promise.unit} was there {odds_factor(promise.epsilon)}; delta is the chance that "
        f"more is learnt. Computed by {promise.accountant}."
    )
    whom = f"The promise holds against {FROM_WHOM[promise.trust]}."
    yield f"Trust: {promise.trust}. {HOW_IT_WORKS[promise.trust]} {whom}"
    if promise.trust == "secure-aggregation":
        yield f"Assumed: {assumption(promise)}"


def _noise(noise_ratio: float) -> str:
    return (
        f"Noise: {ratio(noise_ratio)} times the signal of a cluster of average size. Below "
        f"{MAX_HARMLESS_NOISE:g} little is lost, above {MAX_USABLE_NOISE:g} the result is poor. "
        f"Here {noise_in_words(noise_ratio)}."
    )


def _choices(plan: RunPlan, facts: Federation) -> Iterator[str]:
    """Return one sentence on rounds, refinement and subspace: what was chosen, and why."""
    methods = {stage.method.name: stage for stage in plan.stages}
    search = methods.get("factorisation")
    if search is None or not isinstance(search.method, Factorization):
        return
    subspace = "subspace" in methods
    yield f"Rounds: {_why_rounds(plan, facts, search, subspace)}"
    if plan.refine:
        n_refine = methods["centres"].method.n_rounds
        why = f"{n_refine} rounds move each centre to the mean of its records, since noise is low"
        few = f" and there are at most {LOW_DIMENSION} features"
        yield f"Refinement: {why}{few if facts.n_features <= LOW_DIMENSION else ''}."
    else:
        many = facts.n_features > LOW_DIMENSION
        why = f"more than {LOW_DIMENSION} features" if many else "this much noise"
        yield f"Refinement: none; with {why} it would add more noise than it removes error."
    if subspace:
        yield (
            f"Subspace: clusters are sought in {_purpose(methods['subspace'].method)}, because "
            "noise is strong and there are many features."
        )
    else:
        yield "Subspace: none; all features are used, for a subspace pays only in strong noise."


def _why_rounds(plan: RunPlan, facts: Federation, search: Stage, subspace: bool) -> str:
    n_rounds = search.method.n_rounds
    told = f"{_counted(n_rounds, 'round')} of search"
    if plan.privacy is None:
        return f"{told}; without noise more rounds only help."
    if plan.refine:
        return f"{told}; few are enough, since the refinement does the rest."
    if subspace:
        return f"{told}; few, since every round needs its own share of the budget."
    best = auto_rounds(plan.noise_ratio, facts.n_sites / (search.sites_per_round or facts.n_sites))
    trade = f"{told}; each brings the clusters nearer but needs its own share of the budget"
    return f"{trade}." if n_rounds == best else f"{trade}. The planner would take {best}."


def _stages(plan: RunPlan, facts: Federation) -> Iterator[str]:
    privacy, n_stages = plan.privacy, len(plan.stages)
    if privacy is not None:
        most = sum(release.rounds_per_site for release in privacy.releases)
        yield (
            f"Stages: {n_stages}. Each round releases one noisy sum over its sites; no site takes "
            f"part in more than {_counted(most, 'round')}. The noise multiplier is the size of the "
            "noise over the most that one record can change the sum."
        )
    shares = {} if privacy is None else budget_shares(privacy)
    for i, stage in enumerate(plan.stages, start=1):
        name = stage.method.name
        text = f"Stage {i}: {name} ({_purpose(stage.method)}). {_who(stage, facts, privacy)}"
        if privacy is not None:
            planned = privacy.of_stage(name)
            share = shares[name]
            budget = "what the others leave" if share is None else f"{percent(share)}"
            text += (
                f"; noise multiplier {multiplier(planned.noise_multiplier)}; {budget} of the budget"
            )
            if planned.sampling_probability < 1:
                chance = percent(planned.sampling_probability)
                text += f"; each record is in a round with a chance of {chance}"
        yield f"{text}."


def ratio(value: float) -> str:
    """Return a ratio with two decimals, or two digits if it is small.

    >>> ratio(1.0446), ratio(0.0267)
    ('1.04', '0.027')
    """
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def multiplier(z: float) -> str:
    """Return a noise multiplier in three digits.

    >>> multiplier(6.0023), multiplier(37.31), multiplier(1234.5)
    ('6.00', '37.3', '1,230')
    """
    return f"{z:#.3g}" if z < 100 else f"{float(f'{z:.3g}'):,.0f}"


def percent(share: float) -> str:
    """Return a share as a percentage with two digits at least.

    >>> percent(0.01), percent(0.8765)
    ('1 %', '88 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def _purpose(method: Method) -> str:
    if isinstance(method, Subspace):
        return f"the {method.n_dimensions} directions in which records differ most"
    if isinstance(method, Lengths):
        return "how far each cluster reaches along its direction"
    if isinstance(method, Centers) and method.refine:
        return "centres moved to the means of their records"
    return STAGE_PURPOSES.get(method.name, method.name)


def _who(stage: Stage, facts: Federation, privacy: PrivacyPlan | None) -> str:
    n_rounds, n_sites = stage.method.n_rounds, facts.n_sites
    per_round = stage.sites_per_round or n_sites
    rounds = _counted(n_rounds, "round").capitalize()
    if n_sites == 1:
        return f"{rounds} at the one site"
    if per_round == n_sites:
        return f"{rounds} with all {n_sites:,} sites"
    told = f"{rounds} with {per_round:,} of {n_sites:,} sites"
    if privacy is None:
        return told
    return f"{told} (a site is in {privacy.of_stage(stage.method.name).rounds_per_site} at most)"


def _warnings(plan: RunPlan, facts: Federation) -> Iterator[str]:
    if plan.privacy is None:
        return
    if plan.noise_ratio > MAX_USABLE_NOISE:
        several = facts.n_sites > 1 and plan.privacy.trust == "local"
        other = "; so would trust in secure aggregation" if several else ""
        yield (
            f"the noise is {ratio(plan.noise_ratio)} times the signal of a cluster, and likely to "
            f"swamp it; at most {MAX_USABLE_NOISE:g} is wanted. More records, fewer clusters or a "
            f"larger epsilon would help{other}."
        )
    if plan.privacy.delta >= 1 / facts.n_records:
        yield (
            f"delta {plan.privacy.delta:g} is too large to mean much: it should be well below one "
            f"over the number of records, {1 / facts.n_records:.2g}. Take "
            f"{0.1 / facts.n_records:.1g} or less."
        )
