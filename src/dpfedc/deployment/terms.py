"""An agreement in plain words: what an operator must see before accepting it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.exchanges import Exchange
from dpfedc.privacy.privacy_plan import RELATION
from dpfedc.privacy.statement import (
    FROM_WHOM,
    HOW_IT_WORKS,
    left_blank,
    less_protected,
    number,
    odds_factor,
    what_is_protected,
)
from dpfedc.tables.schema_columns import in_words

NOISE_WORDS = {
    "secure": "secure: exact sums, and integers drawn by the site from its operating system's own "
    "randomness, which nobody can draw again",
    "simulated": "SIMULATED: drawn from the public seed, so that anyone can take it off again. "
    "Nothing is protected. Never use it with real records",
}
MAX_NAMED, MAX_SETTINGS = 30, 1000
"""So many columns are listed; hundreds of pixels would hide all else."""


def terms(agreement: Agreement) -> list[str]:
    """Return paragraphs, each with its subject and a colon in front.

    The plan is made again and epsilon computed here, with the site's own code.
    """
    identity = agreement.verified()
    promise, plan = agreement.guarantee, agreement.plan
    most = sum(release.rounds_per_site for release in agreement.privacy.releases)
    unit = promise.unit
    sites = ", ".join(f"{site.name} ({site.n_records:,} {unit}s)" for site in agreement.sites)
    paragraphs = [
        f"Run: {agreement.name}, coordinated by {agreement.coordinator}; {agreement.method} with "
        f"{agreement.settings['n_clusters']} clusters.",
        *_settings(agreement),
        f"Sites: {sites}. These names and numbers are public.",
        f"Reads: the {_columns(agreement)} of your table, and nothing else of it.",
        f"Protected: {what_is_protected(promise)} ({RELATION} neighbours: the same data with "
        f"{left_blank(unit)} left blank). {' '.join(less_protected(promise))}",
        f"Promise: epsilon {number(promise.epsilon)}, delta {promise.delta:g} over the whole run, "
        f"computed by {promise.accountant} from the plan. Seeing all that is released changes "
        f"anyone's odds that a {unit} was there {odds_factor(promise.epsilon)}.",
        f"Trust: {promise.trust}. {HOW_IT_WORKS[promise.trust]} The promise holds against "
        f"{FROM_WHOM[promise.trust]}.",
        f"Noise: {NOISE_WORDS[agreement.noise]}.",
        "Ledger: yours charges this run for what leaves this site, and its lifetime cap is for "
        "this site alone. Who is in the data of other sites too has a cap at each of them.",
        f"Rounds: {plan.n_rounds:,}; a site answers in at most {most:,} of them. A round waits "
        f"{agreement.deadline:g} seconds and needs {agreement.min_answers} answers.",
    ]
    paragraphs += [
        _leaves(i, exchange, agreement) for i, exchange in enumerate(agreement.exchanges, 1)
    ]
    paragraphs.append(
        "Stays at the site: the records, their clusters and memberships, and every exact sum."
    )
    paragraphs.append(f"Identity: {identity}")
    return paragraphs


def _settings(agreement: Agreement) -> list[str]:
    """Return what the coordinator chose in place of the method's defaults."""
    chosen = [f"{n} {v}" for n, v in agreement.settings.items() if n != "n_clusters"]
    return [f"Settings: {', '.join(chosen)[:MAX_SETTINGS]}."] if chosen else []


def _columns(agreement: Agreement) -> str:
    names: Sequence[str] = agreement.features
    if agreement.schema is not None:
        names = [in_words(column) for column in agreement.schema.columns]
    named, n_more = ", ".join(names[:MAX_NAMED]), len(names) - MAX_NAMED
    noun = "column" if len(names) == 1 else "columns"
    text = f"{noun} {named}" + (f" and {n_more:,} more" if n_more > 0 else "")
    if agreement.schema is not None and agreement.schema.person is not None:
        date = f", {agreement.schema.date}, to put them in order" if agreement.schema.date else ""
        text += f"; {agreement.schema.person}, to bring a person's rows together{date};"
    return text


def _leaves(i: int, exchange: Exchange, agreement: Agreement) -> str:
    stage = exchange.stage.name
    release = agreement.privacy.of_stage(stage)
    times = "once" if release.rounds_per_site == 1 else f"at most {release.rounds_per_site} times"
    shape = " x ".join(map(str, exchange.form.shape)) or "1"
    sampled = ""
    if release.sampling_probability < 1:
        sampled = f", each record in it with a chance of {release.sampling_probability:g}"
    noun = "number" if math.prod(exchange.form.shape) == 1 else "numbers"
    return (
        f"Leaves the site {i}: {stage} ({exchange.stage.purpose}), {times}: one noisy sum of "
        f"{shape} {noun}{sampled}; noise multiplier {release.noise_multiplier:.3g}."
    )
