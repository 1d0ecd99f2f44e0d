"""An agreement in plain words: what an operator must see before accepting it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.exchanges import Exchange
from dpfedc.deployment.keys import mark_of
from dpfedc.errors import printable
from dpfedc.privacy.privacy_plan import RELATION
from dpfedc.privacy.statement import (
    FROM_WHOM,
    HOW_IT_WORKS,
    assumption,
    counted,
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
MAX_VALUE = 500
"""Letters of a setting: a table of numbers would hide the settings after it."""
LEAST_RANGE = 4
"""So many columns with consecutive numbers are named by the first and the last of them."""
_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


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
        f"{_clusters(agreement)}.",
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
        *(_masks(agreement) if agreement.is_masked else ()),
        f"Noise: {NOISE_WORDS[agreement.noise]}.",
        "Ledger: yours charges this run for what leaves this site, and its lifetime cap is for "
        "this site alone. Who is in the data of other sites too has a cap at each of them.",
        f"Rounds: {plan.n_rounds:,}{_spares(agreement)}; a site answers in at most {most:,} of "
        f"them. A round waits {agreement.deadline:g} seconds and needs "
        f"{_answers(agreement)}.",
    ]
    paragraphs += [
        _leaves(i, exchange, agreement) for i, exchange in enumerate(agreement.exchanges, 1)
    ]
    paragraphs.append(
        "Stays at the site: the records, their clusters and memberships, and every exact sum. The "
        "records are read once, and kept in a file of this site until the run is over."
    )
    paragraphs.append(f"Identity: {_in_groups(identity)}")
    return [printable(paragraph) for paragraph in paragraphs]


def _masks(agreement: Agreement) -> list[str]:
    """Return what hides the uploads, from whom, and what the operator must do for it."""
    survivors = agreement.privacy.min_survivors
    keys = ", ".join(f"{s.name} {mark_of(s.signing_key or '')}" for s in agreement.sites)
    return [
        f"Assumed: {assumption(agreement.guarantee)}",
        "Server: it may read all that passes, and may deviate: leave sites out, tell them "
        "different things, ask again. Sites sign their keys and who is in a sum, hide their "
        "uploads by what they were told, and open one sum a round, of at least "
        f"{survivors} sites or of all where fewer are asked. It can stop the run or give out a "
        "wrong sum. It could invent sites: these count as colluding ones.",
        f"Keys: {keys}. They hide your uploads, and came through the server. The run's identity "
        "stands for all of them: compare it with the operators of the other sites before you "
        "accept, by telephone or mail and not through the server. Accepting pins these keys.",
    ]


def identity_in_words(agreement: Agreement) -> str:
    """Return the run's identity so that it can be read out, and what for."""
    groups = _in_groups(agreement.digest)
    if not agreement.is_masked:
        return (
            f"Compare: {groups}. It stands for all that is said above. Your protection does not "
            "need it; but if the operator of another site reads out another one, the server has "
            "offered you different things."
        )
    return (
        f"Compare: {groups}. Read all of it to the operators of the other sites, or have them read "
        "it to you. If one has another, do not accept."
    )


def _in_groups(digest: str) -> str:
    """Return digits so that they can be read out, and a line ends between groups of them."""
    return " ".join(digest[i : i + 4] for i in range(0, len(digest), 4))


def _answers(agreement: Agreement) -> str:
    needed = sorted(
        {agreement.least_answers(r.sites_per_round) for r in agreement.privacy.releases}
    )
    return f"{' or '.join(map(str, needed))} answers"


def pins_in_words(strangers: Sequence[Site]) -> list[str]:
    """Return which keys an operator must compare, beside what the terms say."""
    if not strangers:
        return ["Pinned: the keys of all peers are those that were pinned here before."]
    names = ", ".join(site.name for site in strangers)
    return [
        f"Warning: the keys of {names} are pinned here neither from a file nor by an earlier run. "
        "Compare the identity below before you accept."
    ]


def _clusters(agreement: Agreement) -> str:
    low, high = agreement.cluster_range
    if low == high:
        return f"{low} clusters"
    return f"{low} to {high} clusters, as many as the released values support"


def _spares(agreement: Agreement) -> str:
    if not any(agreement.plan.spare_rounds.values()):
        return ""
    return ", and one more in a stage of one round if that is lost; all are paid for"


def _settings(agreement: Agreement) -> list[str]:
    """Return what the coordinator chose in place of the method's defaults."""
    chosen = [f"{n} {_cut(str(v))}" for n, v in agreement.settings.items() if n != "n_clusters"]
    return [f"Settings: {', '.join(chosen)}."] if chosen else []


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} ... ({len(text):,} letters)"


def _columns(agreement: Agreement) -> str:
    """Return all columns that are read: an operator must not have to guess any of them."""
    columns = [(name, "") for name in agreement.features]
    if agreement.schema is not None:
        columns = [(c.name, in_words(c).removeprefix(c.name)) for c in agreement.schema.columns]
    text = f"{'column' if len(columns) == 1 else 'columns'} {', '.join(_named(columns))}"
    if agreement.schema is not None and agreement.schema.person is not None:
        date = f", {agreement.schema.date}, to put them in order" if agreement.schema.date else ""
        text += f"; {agreement.schema.person}, to bring a person's rows together{date};"
    return text


def _named(columns: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield columns and what is read of them; p0, p1, ..., p783 are "p0 to p783 (784)"."""
    start = 0
    for end in range(1, len(columns) + 1):
        if end < len(columns) and _follows(columns[end], columns[end - 1]):
            continue
        (first, words), n = columns[start], end - start
        if n < LEAST_RANGE:
            yield from (f"{name}{words}" for name, words in columns[start:end])
        else:
            yield f"{first} to {columns[end - 1][0]} ({n:,}){words}"
        start = end


def _follows(column: tuple[str, str], before: tuple[str, str]) -> bool:
    """Return whether a column is the next in a range, and the same is read of it."""
    own, last = _NUMBERED.fullmatch(column[0]), _NUMBERED.fullmatch(before[0])
    if own is None or last is None or own[1] != last[1] or column[1] != before[1]:
        return False
    return own[2] == str(int(last[2]) + 1).zfill(len(last[2]))


def _leaves(i: int, exchange: Exchange, agreement: Agreement) -> str:
    stage = exchange.stage.name
    release = agreement.privacy.of_stage(stage)
    times = "once" if release.rounds_per_site == 1 else f"at most {release.rounds_per_site} times"
    if release.spare_rounds and release.rounds_per_site > 1:
        times = "once, and once more if that round is lost"
    shape = " x ".join(map(str, exchange.form.shape)) or "1"
    sampled = ""
    if release.sampling_probability < 1:
        sampled = f", each record in it with a chance of {release.sampling_probability:g}"
    noun = "number" if math.prod(exchange.form.shape) == 1 else "numbers"
    what, own = "noisy sum", ""
    if agreement.is_masked:
        what = "noisy sum under masks"
        share = agreement.privacy.noise_of_site(stage)
        together = agreement.privacy.honest_shares(release.sites_per_round)
        own = f" of {counted(together, 'site')} together, {share:.3g} of this one"
    return (
        f"Leaves the site {i}: {stage} ({exchange.stage.purpose}), {times}: one {what} of "
        f"{shape} {noun}{sampled}; noise multiplier {release.noise_multiplier:.3g}{own}."
    )
