"""What a run promises, in plain words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfedc.settings import PrivacyGuarantee

FROM_WHOM = {
    "local": "everyone who sees the uploads: the server, the other sites, and whoever listens in",
    "secure-aggregation": "the server and everyone outside the federation who sees the results; "
    "against curious sites as far as they are counted as colluding",
    "trusted-server": "everyone but the server",
}
HOW_IT_WORKS = {
    "local": "Each site adds its own noise before anything leaves it.",
    "secure-aggregation": "The uploads are added up in secret (secure aggregation): of them the "
    "server learns the sum alone, and each site adds a share of the noise.",
    "trusted-server": "The server adds the noise, and sees the sites' exact uploads.",
}

AGAINST_THE_SERVER = (
    "a sum of fewer sites is never opened, nor a second one of a round, also if the server breaks "
    "the rules. That the sites are real, and not the server's own, rests on the operators: they "
    "must have compared the run's identity before they accepted it. If the cryptography is broken "
    "one day, whoever kept the traffic knows what all others together know."
)

_PRONOUN = {"record": "it was", "person": "they were"}

ALMOST = 0.1
"""Up to this epsilon, a tenth more or less, words may say `almost`."""
MAX_FACTOR = 1e4
"""A factor beyond it limits nothing, and is not written out."""

NOT_COVERED = ("Not protected", "Note", "Warning")
"""How the subjects of paragraphs start that must stand out: what a promise does not cover."""


def split_subject(paragraph: str) -> tuple[str, str]:
    """Return the subject in front of a paragraph's first colon, and the rest.

    >>> split_subject("From whom: everyone."), split_subject("No subject.")
    (('From whom', 'everyone.'), ('', 'No subject.'))
    """
    subject, colon, rest = paragraph.partition(": ")
    return (subject, rest) if colon and len(subject) <= 24 else ("", paragraph)


def rounded_up(value: float, digits: int) -> str:
    """Return epsilon with so many digits, rounded up.

    >>> rounded_up(7.99992, 4), rounded_up(9.9991, 4), rounded_up(2980.96, 3)
    ('8.000', '10.00', '2,990')
    """
    if not math.isfinite(value):
        return "infinite"
    if value <= 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(value))
    rounded = math.ceil(value * 10.0**places - 1e-9) / 10.0**places
    # 9.996 becomes 10.00, which has a digit more in front of the point.
    places = digits - 1 - math.floor(math.log10(rounded))
    return f"{rounded:,.{max(places, 0)}f}"


def number(value: float) -> str:
    """Return epsilon as people write it: three digits at most, rounded up.

    >>> number(0.99991), number(58.724), number(math.inf)
    ('1', '58.8', 'infinite')
    """
    text = rounded_up(value, 3)
    return text.rstrip("0").rstrip(".") if "." in text else text


def counted(n: int, what: str) -> str:
    """Return a number with what it counts.

    >>> counted(1, "round"), counted(1200, "record")
    ('one round', '1,200 records')
    """
    return f"one {what}" if n == 1 else f"{n:,} {what}s"


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


def odds_factor(epsilon: float) -> str:
    """Return by how much seeing the results can change the odds that a record was there."""
    factor = math.exp(min(epsilon, 700.0))
    within = factor < MAX_FACTOR
    return f"by at most a factor of {number(factor)}" if within else "by any factor"


def how_likely(epsilon: float) -> str:
    """Return how much likelier a result can be with a record than without it, by the number.

    >>> how_likely(0.05), how_likely(1.0)
    ('almost as likely', 'at most 2.72 times more or less likely')
    """
    factor = math.exp(min(epsilon, 700.0))
    if epsilon <= ALMOST:
        return "almost as likely"
    if factor < MAX_FACTOR:
        return f"at most {number(factor)} times more or less likely"
    return "any number of times more or less likely"


def privacy_statement(guarantee: PrivacyGuarantee) -> list[str]:
    """Return paragraphs: what is protected, from whom, how much, and what is not.

    Each starts with its subject and a colon.
    """
    unit = guarantee.unit
    paragraphs = [
        f"Protected: {what_is_protected(guarantee)}. Whatever the run released would be "
        f"{how_likely(guarantee.epsilon)} if {left_blank(unit)} had been left blank.",
        f"From whom: {FROM_WHOM[guarantee.trust]}. {HOW_IT_WORKS[guarantee.trust]}",
        f"How much: epsilon {number(guarantee.epsilon)}, delta {guarantee.delta:g}, for everything "
        "that the run released, preprocessing included. Epsilon says how much may be learnt about "
        f"one {unit}: the results change anyone's odds that {_PRONOUN[unit]} there "
        f"{odds_factor(guarantee.epsilon)}. Delta is the chance that more is learnt. As a rule, "
        "epsilon up to 1 is strong protection, and above 10 there is little.",
    ]
    if guarantee.trust == "secure-aggregation":
        paragraphs.append(f"Assumed: {assumption(guarantee)}")
    if guarantee.trust == "secure-aggregation" and not guarantee.stamp:
        paragraphs.append(f"Server: {AGAINST_THE_SERVER}")
    if not guarantee.stamp:
        paragraphs.append(
            "Noise: integers that each site drew from its operating system's own randomness. "
            "Nobody can draw them again and take them off."
        )
    paragraphs.append(
        f"Not protected: how many {unit}s each site has, which sites took part, and what is true "
        f"of whole groups. {' '.join(less_protected(guarantee))} "
        "Labels and memberships are exact: they stay at the sites and must not be published."
    )
    if guarantee.stamp:
        paragraphs.append(
            f'Note: this run is stamped "{guarantee.stamp}". An ordinary random generator drew the '
            "noise: whoever knows its seed can take the noise off again."
        )
    return paragraphs


def what_is_protected(guarantee: PrivacyGuarantee) -> str:
    """Return the unit in words, with how far it reaches."""
    if guarantee.unit == "record":
        return "every single record"
    n_sites = guarantee.sites_per_person
    where = "" if n_sites == 1 else f", with rows at up to {n_sites:,} sites"
    return f"every single person{where}: all of their rows at once"


def left_blank(unit: str) -> str:
    """Return what is left blank in the data that a run is compared with."""
    return "that record" if unit == "record" else "all rows of that person"


def changes_the_sum(unit: str) -> str:
    """Return whose effect on a release the noise multiplier is relative to."""
    return "one record" if unit == "record" else "one person's rows at one site"


def less_protected(guarantee: PrivacyGuarantee) -> list[str]:
    """Return sentences: for whom, or for what, the promise is weaker than its epsilon."""
    if guarantee.unit == "record":
        return ["A person with several records has less protection than one with one."]
    twice, n_sites = number(2 * guarantee.epsilon), guarantee.sites_per_person
    where = "several sites" if n_sites == 1 else f"more than {n_sites:,} sites"
    return [
        "To change one row of a person who stays, one visit say, is a replacement: for that "
        f"epsilon is {twice}, twice as much.",
        f"A person with rows at {where} has less protection than is promised here.",
    ]


def assumption(guarantee: PrivacyGuarantee) -> str:
    """Return what secure aggregation takes for granted, and what is left if it does not hold."""
    survivors, colluding = guarantee.min_survivors, guarantee.colluding_sites
    arrive, fewer = "of all sites that take part", ""
    if survivors is not None:
        arrive = f"of at least {survivors} sites"
        fewer = " (of all, where fewer are asked)"
    together = "no site works"
    if colluding:
        together = "at most one site works" if colluding == 1 else f"at most {colluding} sites work"
    against = "For a site against which all others and the server work together"
    if guarantee.sites_per_person > 1:
        against = "For a person against whom all sites but their own and the server work together"
    return (
        f"in every round the uploads {arrive} arrive{fewer}, and {together} with the server "
        f"against the others. {against}, epsilon is {number(guarantee.epsilon_if_others_collude)}."
    )
