"""What a ledger has admitted so far, for those who look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpfedc.privacy.ledger.book import Book
from dpfedc.privacy.ledger.ledger_rows import Recovery


@dataclass(frozen=True)
class StageCount:
    """How often a site has released in one stage of a run."""

    run: str
    trust: str
    stage: str
    n_charged: int
    n_planned: int
    n_answered: int
    last_round: int


@dataclass(frozen=True)
class Totals:
    """What a ledger has admitted so far.

    `spent`, `left` and `limits` have the names of what the cap limits. Epsilons are for
    information: what is promised is the cap. What is left is below 0 if a change of unit carried
    over more than the cap. Runs that are `closed` release nothing more, since rows were lost.
    """

    limits: Mapping[str, float]
    spent: Mapping[str, float]
    left: Mapping[str, float]
    spent_if_others_collude: Mapping[str, float]
    epsilon: float
    epsilon_if_others_collude: float
    stages: tuple[StageCount, ...]
    recoveries: tuple[Recovery, ...]
    closed: frozenset[str]

    @classmethod
    def of(cls, book: Book) -> Totals:
        """Return the totals of a ledger's rows."""
        spent = {name: float(value) for name, value in book.spent.items()}
        alone = {name: float(value) for name, value in book.spent_if_others_collude.items()}
        limits = book.opening.limits
        return cls(
            limits,
            spent,
            {name: float(limits[name] - value) for name, value in book.spent.items()},
            alone,
            book.cap.epsilon_of(spent),
            book.cap.epsilon_of(alone),
            tuple(
                StageCount(
                    run,
                    book.plans[run].trust,
                    stage,
                    len(done),
                    book.plans[run].of_stage(stage).rounds_per_site,
                    sum((run, stage, t) in book.answers for t in done),
                    next(reversed(done)),
                )
                for (run, stage), done in book.charges.items()
            ),
            tuple(book.recoveries),
            frozenset(book.closed),
        )
