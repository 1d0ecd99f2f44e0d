"""A site's ledger: every release is charged here before it is computed, for good.

It belongs to a data holding, whatever version of the data is in use, and outlives runs, restarts
and processes. It answers three questions: may this release be made, what was answered to this
request, and how much of the lifetime cap is left. Design and limits: docs/decisions/0005-ledger.md.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Self

from dpfedc.errors import DPFedCError, Refused
from dpfedc.privacy.ledger.book import Book
from dpfedc.privacy.ledger.caps import Cap
from dpfedc.privacy.ledger.chain import EMPTY, Chain, Damaged, Head, RowsLost
from dpfedc.privacy.ledger.ledger_rows import (
    Opening,
    Recovery,
    Row,
    UnitChange,
    as_content,
    as_row,
    require_text,
)
from dpfedc.privacy.ledger.totals import Totals
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.settings import require_integer, require_number

SALT_BYTES = 16


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
        needs = int(unit != "record")  # the only unit of format 0
        return cls._ready(Chain.create(Path(path), _dated(opening), needs=needs))

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
        with self._writing():
            row = self._read().charge(run, plan, stage, t, request, z)
            head = self._chain.append(self._head, _dated(row))
        return head

    def settle(self, run: str, stage: str, t: int, answer: bytes) -> Head:
        """Store the answer to a charged request; it may be sent when this returns."""
        with self._writing():
            row = self._read().answer(run, stage, t, sha256(answer).hexdigest())
            head = self._chain.append(self._head, _dated(row))
            self._chain.store(head.n_rows, answer)
        return head

    def unmask(self, run: str, stage: str, t: int, request: str) -> Head:
        """Note that the site gives away its shares of a round's masks; they may be sent after it.

        Refuses a second time, whatever the request: two sums of one round would tell the sites
        apart.
        """
        require_text("request", request)
        with self._writing():
            row = self._read().unmask(run, stage, t, request)
            head = self._chain.append(self._head, _dated(row), needs=3)
        return head

    def change_unit(self, unit: str, *, rows_per_person: int) -> Head:
        """Let the cap be for another unit from now on, and carry over what was spent.

        `rows_per_person` is for the operator to declare: no person ever had more rows in this
        holding. The spend grows by it and never falls, perhaps beyond the cap: the change is
        written all the same, and no release is admitted after it. A run under way for the old unit
        goes no further.
        """
        with self._writing():
            row = self._read().change_unit(unit, rows_per_person)
            head = self._chain.append(self._head, _dated(row), needs=1)
        return head

    def change_of_unit(self, unit: str, *, rows_per_person: int) -> UnitChange:
        """Return what `change_unit` would write now; nothing is written."""
        return self._read().change_unit(unit, rows_per_person)

    def recover(self, seen: Head | None, *, plans: Mapping[str, PrivacyPlan] | None = None) -> Head:
        """Charge the most that lost rows can have cost, and go on; all runs so far are closed.

        `seen` is the head that is lost, if anybody has seen one: it counts as held from then on.
        Without `plans` all that is left of the cap is charged. They are for the operator to
        declare: no run, nor any trial, was charged since the rows were lost but those in the ledger
        and these, the unit was not changed, and nothing was charged since the file was put back.
        """
        with self._writing():
            row = self.worst_case(seen, plans=plans)
            head = self._chain.append(self._head, _dated(row), needs=2)
        return head

    def worst_case(
        self, seen: Head | None, *, plans: Mapping[str, PrivacyPlan] | None = None
    ) -> Recovery:
        """Return what `recover` would write now; nothing is written."""
        book = self._read()
        if seen is not None and self._holds(book, seen):
            raise Refused(f"the ledger holds the {seen.n_rows} rows that were seen: none is lost")
        return book.recovery(self._head.n_rows, seen, plans)

    def head(self) -> Head:
        """Return the number of rows and the hash that stands for all of them."""
        self._read()
        return self._head

    def require(self, head: Head) -> None:
        """Refuse unless the chain contains this head, which somebody has seen.

        It does not if the file was restored from a backup made before, and nobody has charged for
        what was lost.
        """
        if not self._holds(self._read(), head):
            path = shlex.quote(str(self._chain.path))
            raise RowsLost(
                f"{self._chain.path}: {head.n_rows} rows with hash {head.digest[:12]} have been "
                f"seen, but are not in its {self._head.n_rows}: was it restored from a backup? "
                "That is only the server's word: if no backup was put back here, the server is "
                "wrong or lies; ask its operator before you charge anything. If one was: stop, and "
                "put the newest file back; or charge the most that was lost: "
                f"dpfedc ledger recover {path} --seen {head.n_rows}:{head.digest} (charges all "
                "that is left of the cap; with --runs FOLDER only what accepted runs could cost, "
                "if no trial was charged since the backup)"
            )
        self._chain.require_same_files()

    def check_plan(self, run: str, plan: PrivacyPlan) -> None:
        """Refuse a plan that this ledger could not charge for."""
        self._read().check_plan(run, plan)

    def require_open(self, run: str) -> None:
        """Refuse a run that was closed because rows were lost."""
        self._read().require_open(run)

    def _holds(self, book: Book, head: Head) -> bool:
        if head == EMPTY or [head.n_rows, head.digest] in [row.seen for row in book.recoveries]:
            return True
        # Compared first, since SQLite has no numbers as large as somebody may send.
        known = head.n_rows <= self._head.n_rows
        return known and self._chain.digest(head.n_rows) == head.digest

    def totals(self) -> Totals:
        """Return what has been spent and what is left."""
        return Totals.of(self._read())

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

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Write rows, and take them up once they are on the disk: they must never be gone again."""
        with self._chain.writing():
            yield
        self._read()

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
    """Return a row as what is written, with the time for those who read it, and a salt.

    Others see hashes of rows. Without 16 bytes that nobody can guess they could try what a row may
    say: rows per person, a cap. The salt stands with the time, which readers of all formats skip.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"at": f"{now} {secrets.token_hex(SALT_BYTES)}", **as_content(row)}
