"""`dpfedc account`: epsilon of a plan, of a finished run, or of the paper's noise."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedc.cli.console import print_paragraphs, print_sentence, print_table
from dpfedc.cli.options import count_option, flag_option, number_option
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from dpfedc.privacy.privacy_plan import PrivacyPlan
    from dpfedc.report.accounts import Comparison

_PUBLISHED = "The paper's noise (with --published)"
_DISAGREES = 1
_PAPER: dict[str, Any] = {
    "--epsilon": 20.0,
    "--delta": 1e-4,
    "--rounds": 100,
    "--sites": 100,
    "--sites-per-round": 30,
    "--records-per-site": 100,
    "--batch-size": 50,
    "--extra-steps": 10,
}
"""The paper's own settings, for its experiments on images."""
_CLOSEST: dict[str, Any] = {
    "centroid_steps": 5,
    "batches": "cycling",
    "batch_gradient": "sum",
    "bound_on": "record",
}


def _shown(name: str) -> dict[str, Any]:
    return {"show_default": f"{_PAPER[name]:g}", "rich_help_panel": _PUBLISHED}


def account(
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN",
            help="A plan that `dpfedc plan --save-plan` wrote, or the run.jsonl of a run.",
            show_default=False,
        ),
    ] = None,
    published: Annotated[
        bool,
        flag_option(
            "--published",
            "Instead of a plan, take the noise that the paper states for the settings below.",
            rich_help_panel=_PUBLISHED,
        ),
    ] = False,
    epsilon: Annotated[
        float | None, number_option("The paper's total epsilon.", **_shown("--epsilon"))
    ] = None,
    delta: Annotated[float | None, number_option("Its delta.", **_shown("--delta"))] = None,
    rounds: Annotated[int | None, count_option("Rounds.", **_shown("--rounds"))] = None,
    sites: Annotated[int | None, count_option("Sites.", **_shown("--sites"))] = None,
    sites_per_round: Annotated[
        int | None,
        count_option("Sites that take part in a round.", **_shown("--sites-per-round")),
    ] = None,
    records_per_site: Annotated[
        int | None, count_option("Records of each site.", **_shown("--records-per-site"))
    ] = None,
    batch_size: Annotated[
        int | None, count_option("Records in a mini-batch.", **_shown("--batch-size"))
    ] = None,
    extra_steps: Annotated[
        int | None,
        count_option(
            "Round t takes this number over t, rounded down, plus one steps at each site.",
            least=0,
            **_shown("--extra-steps"),
        ),
    ] = None,
    no_clipping: Annotated[
        bool,
        flag_option(
            "--no-clipping",
            "Gradients are assumed to be bounded, as in the paper, but not clipped.",
            rich_help_panel=_PUBLISHED,
        ),
    ] = False,
    closest_reading: Annotated[
        bool,
        flag_option(
            "--closest-reading",
            "Read the paper as comes closest to its numbers: five steps in every round, batches "
            "that are not made smaller, and the bound on each record's part of a gradient.",
            rich_help_panel=_PUBLISHED,
        ),
    ] = False,
) -> None:
    """Say how private a plan, a run or the paper's noise is.

    For a plan: epsilon at several deltas, by three accountants. For a run also epsilon from the
    noise that each round logged, and whether it agrees with what the run reported (exit code 1 if
    not). With --published: what the paper claims, beside what the accountant makes of its noise.
    """
    given = {
        "--epsilon": epsilon,
        "--delta": delta,
        "--rounds": rounds,
        "--sites": sites,
        "--sites-per-round": sites_per_round,
        "--records-per-site": records_per_site,
        "--batch-size": batch_size,
        "--extra-steps": extra_steps,
    }
    if published and plan is not None:
        raise InvalidInput(f"account needs PLAN or --published, got --published and {plan}")
    if published:
        chosen = {name: _PAPER[name] if value is None else value for name, value in given.items()}
        reading = {**_CLOSEST} if closest_reading else {}
        _print_published(chosen, reading | ({"bound_on": "nothing"} if no_clipping else {}))
        return
    extra = [name for name, value in given.items() if value is not None]
    flags = {"--no-clipping": no_clipping, "--closest-reading": closest_reading}
    extra += [name for name, on in flags.items() if on]
    if extra:
        raise InvalidInput(f"{extra[0]} needs --published, got none")
    if plan is None:
        raise InvalidInput("account needs PLAN or --published, got neither")
    _print_plan(plan)


def _print_plan(path: Path) -> None:
    from dpfedc.privacy.statement import rounded_up
    from dpfedc.report.accounts import accounts, compared, read_account

    plan, record = read_account(path)
    n_rounds = sum(release.rounds_per_site for release in plan.releases)
    print_sentence(
        f"{len(plan.releases)} stages at {plan.n_sites:,} sites, trust {plan.trust}; a site takes "
        f"part in {n_rounds:,} rounds at most. Epsilon for {_whom(plan)}, at several deltas:"
    )
    rows = []
    for row in accounts(plan):
        own = " (plan)" if row.delta == plan.delta else ""
        values = [None if v is None else rounded_up(v, 4) for v in (row.pld, row.rdp, row.closed)]
        rows.append((f"{_power(row.delta)}{own}", *values))
    print_table(("delta", "PLD", "RDP", "closed form"), rows)
    print_sentence(
        "PLD is the accountant that promises rest on; it rounds up. The others check it: RDP is a "
        "looser bound by other mathematics, and the closed form is exact where no records are "
        "sampled.",
        style="dim",
    )
    if record is not None:
        _print_comparison(compared(record, plan))


def _whom(plan: PrivacyPlan) -> str:
    if plan.sites_per_person == 1:
        return f"every {plan.unit}"
    return f"every person, with rows at up to {plan.sites_per_person:,} sites"


def _power(delta: float) -> str:
    """Return delta as people write it, 1e-04 and not 0.0001."""
    short = f"{delta:.0e}"
    return short if float(short) == delta else f"{delta:g}"


def _print_comparison(found: Comparison) -> None:
    from dpfedc.privacy.statement import counted, rounded_up

    assumed = ""
    if found.n_assumed:
        rounds = counted(found.n_assumed, "round")
        assumed = f" Counted as released, too: {rounds} lost, or spare and not needed."
    verdict = "Verdict: the two agree."
    if not found.agrees:
        less = "less" if found.logged > found.reported else "more"
        verdict = f"Warning: the two do not agree; the log shows {less} noise than was reported."
    print_paragraphs(
        [
            f"Reported: epsilon {rounded_up(found.reported, 4)}, by the run.",
            f"Logged: epsilon {rounded_up(found.logged, 4)}, computed again from the noise that "
            f"the {found.n_rounds:,} rounds logged.{assumed}",
            verdict,
        ]
    )
    if not found.agrees:
        raise typer.Exit(_DISAGREES)


def _print_published(chosen: dict[str, Any], reading: dict[str, Any]) -> None:
    import numpy as np

    from dpfedc.clustering.run_plan import Federation
    from dpfedc.privacy.schedule import most_rounds_of_a_site
    from dpfedc.privacy.statement import rounded_up
    from dpfedc.research.published.published_account import worst_rounds
    from dpfedc.research.published.published_planner import (
        published_loss,
        published_noise_multipliers,
    )
    from dpfedc.settings import PrivacyTarget, require_integer

    n_sites, per_round, n_rounds = (
        chosen[name] for name in ("--sites", "--sites-per-round", "--rounds")
    )
    require_integer("--sites-per-round", per_round, least=1, most=n_sites)
    choices = {
        "n_rounds": n_rounds,
        "sites_per_round": per_round,
        "batch_size": chosen["--batch-size"],
        "extra_steps": chosen["--extra-steps"],
        **reading,
    }
    facts = Federation(1, np.full(n_sites, chosen["--records-per-site"]))
    target = PrivacyTarget(chosen["--epsilon"], chosen["--delta"])
    z, violated = published_noise_multipliers(choices, facts, target)
    most = most_rounds_of_a_site(n_sites, per_round, n_rounds)
    loss = published_loss(choices, facts, target)
    worst = worst_rounds(z, most)
    rows = [
        ("the paper's claim (Theorems 2 and 3)", target.epsilon),
        ("the same noise, by the accountant (PLD)", loss.stated),
    ]
    if loss.stated != loss.null:
        rows += [("if one record is replaced", loss.replaced), ("if it is made null", loss.null)]
    print_table(
        ("the whole run", f"epsilon at delta {_power(target.delta)}"),
        [(name, rounded_up(value, 4)) for name, value in rows],
    )
    print_paragraphs(
        [
            f"How: a site is in {most:,} of {n_rounds:,} rounds at most; the {most:,} with the "
            f"least noise are counted. Their noise is {worst.min():.3g} to {worst.max():.3g} times "
            "the most that one record can change an upload, by the paper's sensitivity.",
            f"Not protected: {_NOT_CLIPPED if math.isinf(loss.null) else _CLIPPED}",
            *_broken(violated),
        ]
    )


_CLIPPED = (
    "even so, step sizes computed from private memberships are not covered, so this is no promise. "
    "No gain from sampling is counted, since the paper draws batches of a fixed size without "
    "replacement."
)
_NOT_CLIPPED = (
    "nothing is clipped, so one record can change an upload by any amount, and no noise makes up "
    "for that."
)


def _broken(conditions: Sequence[str]) -> list[str]:
    """Return a warning that names the broken conditions, their numbers in three digits."""
    if not conditions:
        return []
    short = re.sub(r"\d+\.\d{3,}", _three_digits, "; ".join(conditions))
    return [f"Warning: these settings are outside the paper's own conditions: {short}."]


def _three_digits(found: re.Match[str]) -> str:
    value = float(found[0])
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
