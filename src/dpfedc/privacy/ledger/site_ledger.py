"""A site's ledger: every release is charged here before it is computed, for good.

It belongs to a data holding, whatever version of the data is in use, and outlives runs, restarts
and processes. It answers three questions: may this release be made, what was answered to this
request, and how much of the lifetime cap is left. Design and limits: docs/decisions/0005-ledger.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Self

from dpfedc.errors import DPFedCError, Refused
from dpfedc.privacy.ledger.book import Book
from dpfedc.privacy.ledger.caps import BasicCap, Cap, GaussianCap
from dpfedc.privacy.ledger.chain import EMPTY, Chain, Damaged, Head, Unusable
from dpfedc.privacy.ledger.ledger_rows import (
    Opening,
    Row,
    UnitChange,
    as_content,
    as_row,
    require_text,
)
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.settings import require_integer, require_number

__all__ = [
    "BasicCap",
    "Damaged",
    "GaussianCap",
    "Head",
    "Ledger",
    "StageCount",
    "Totals",
    "Unusable",
]


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
    over more than the cap.
    """

    limits: Mapping[str, float]
    spent: Mapping[str, float]
    left: Mapping[str, float]
    spent_if_others_collude: Mapping[str, float]
    epsilon: float
    epsilon_if_others_collude: float
    stages: tuple[StageCount, ...]


class Ledger:
    """A ledger on disk. Use `create` once and `open` from then on.

    For each release: `answer`; if that is None, `charge`, compute, `settle`, send. A refusal is a
    `Refused`, and nothing has been written.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._head = EMPTY
        self._book: Book | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        holding: str,
        cap: Cap,
        least_colluding_sites: int = 0,
        unit: str = "record",
    ) -> Ledger:
        """Start the ledger of a holding. All but the unit is fixed here for its lifetime."""
        opening = Opening.of(holding, cap, least_colluding_sites, unit)
        newest = unit != "record"  # the only unit of format 0
        return cls._ready(Chain.create(Path(path), _dated(opening), newest=newest))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open a ledger and check its rows; `Damaged` says which one is wrong."""
        return cls._ready(Chain.open(Path(path)))

    @classmethod
    def _ready(cls, chain: Chain) -> Ledger:
        ledger = cls(chain)
        try:
            ledger._read()
        except BaseException:
            chain.close()
            raise
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._chain.close()

    @property
    def opening(self) -> Opening:
        """Return what was said when the ledger was created."""
        return self._read().opening

    @property
    def unit(self) -> str:
        """Return what the cap is for now, one record or one person; plans must be for the same."""
        return self._read().unit

    def answer(self, run: str, stage: str, t: int, request: str) -> bytes | None:
        """Return the stored answer to this very request, None if its round is not charged.

        Refuses if the round was charged for another request, or if its answer was lost in a crash:
        noise is drawn once.
        """
        found = self._read().answered(run, stage, t, request)
        return None if found is None else self._stored(found[0], found[1].digest)

    def charge(
        self,
        run: str,
        plan: PrivacyPlan,
        stage: str,
        t: int,
        request: str,
        *,
        noise_multiplier: float,
    ) -> Head:
        """Charge a release; when this returns, the charge is on the disk.

        `noise_multiplier` is z as the site's adversary sees it: of the sum, if sites add their
        noise together. Refuses what the plan or the lifetime cap does not allow.
        """
        require_text("run", run)
        require_text("request", request)
        t = require_integer("t", t, least=1)
        z = require_number("noise_multiplier", noise_multiplier, above=0)
        with self._chain.transaction():
            row = self._read().charge(run, plan, stage, t, request, z)
            head = self._chain.append(self._head, _dated(row))
        return head

    def settle(self, run: str, stage: str, t: int, answer: bytes) -> Head:
        """Store the answer to a charged request; it may be sent when this returns."""
        with self._chain.transaction():
            row = self._read().answer(run, stage, t, sha256(answer).hexdigest())
            head = self._chain.append(self._head, _dated(row))
            self._chain.store(head.n_rows, answer)
        return head

    def change_unit(self, unit: str, *, rows_per_person: int) -> Head:
        """Let the cap be for another unit from now on, and carry over what was spent.

        `rows_per_person` is for the operator to declare: no person ever had more rows in this
        holding. The spend grows by it and never falls, perhaps beyond the cap: the change is
        written all the same, and no release is admitted after it. A run under way for the old unit
        goes no further.
        """
        with self._chain.transaction():
            row = self._read().change_unit(unit, rows_per_person)
            head = self._chain.append(self._head, _dated(row), newest=True)
        return head

    def change_of_unit(self, unit: str, *, rows_per_person: int) -> UnitChange:
        """Return what `change_unit` would write now; nothing is written."""
        return self._read().change_unit(unit, rows_per_person)

    def head(self) -> Head:
        """Return the number of rows and the hash that stands for all of them."""
        self._read()
        return self._head

    def require(self, head: Head) -> None:
        """Refuse unless the chain contains this head, which somebody has seen.

        It does not if the file was restored from a backup made before.
        """
        self._read()
        # Compared first, since SQLite has no numbers as large as somebody may send.
        known = head.n_rows <= self._head.n_rows
        if head != EMPTY and not (known and self._chain.digest(head.n_rows) == head.digest):
            raise Refused(
                f"{self._chain.path}: {head.n_rows} rows with hash {head.digest[:12]} have been "
                f"seen, but are not in its {self._head.n_rows}: was it restored from a backup?"
            )

    def totals(self) -> Totals:
        """Return what has been spent and what is left."""
        book = self._read()
        spent = {name: float(value) for name, value in book.spent.items()}
        alone = {name: float(value) for name, value in book.spent_if_others_collude.items()}
        limits = book.opening.limits
        return Totals(
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
        )

    def verify(self) -> Head:
        """Check every row, every stored answer and the file's triggers; return the head.

        `Damaged` says what is wrong. Rows cut off at the end leave a shorter, valid chain: that is
        what `require` is for.
        """
        with self._chain.transaction():  # so that nobody adds rows meanwhile
            fresh = Ledger(self._chain)
            answers = dict(fresh._read().answers.values())
            for number, row in answers.items():
                fresh._stored(number, row.digest)
            for number in self._chain.rows_with_bytes():
                if number not in answers:
                    raise Damaged(f"{self._chain.path}: row {number}, which has bytes, is missing")
            self._chain.check_schema()
        return fresh._head

    def _read(self) -> Book:
        """Take up the rows that were added, also by other processes."""
        for head, content in self._chain.rows(after=self._head):
            try:
                del content["at"]
                row = as_row(content)
                if self._book is not None:
                    self._book.add(head.n_rows, row)
                elif isinstance(row, Opening):
                    self._book = Book(row)
                else:
                    raise Refused("a ledger starts with its holding and its cap")
            except (DPFedCError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                where = f"{self._chain.path}: row {head.n_rows}"
                raise Damaged(f"{where} could not have been written: {error}") from error
            self._head = head
        if self._book is None:
            raise Damaged(f"{self._chain.path}: row 1 is missing")
        return self._book

    def _stored(self, number: int, digest: str) -> bytes:
        answer = self._chain.stored(number)
        if answer is None or sha256(answer).hexdigest() != digest:
            state = "missing" if answer is None else "not as it was written"
            raise Damaged(f"{self._chain.path}: the answer of row {number} is {state}")
        return answer


def _dated(row: Row) -> dict[str, object]:
    """Return a row as what is written, with the time for those who read it."""
    return {"at": datetime.now(UTC).isoformat(timespec="seconds"), **as_content(row)}
