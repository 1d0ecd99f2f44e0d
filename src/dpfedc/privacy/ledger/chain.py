"""Rows that can be added but not changed: SQLite, with every row's hash over the one before.

What the rows mean is not known here; see book.py.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.ledger.ledger_file import SUFFIXES, OpenFiles
from dpfedc.whole_files import sync_folder

NEWEST = 3
"""The newest format that can be read, SQLite's user_version. Version 0.1.0 wrote format 0; a file
becomes one of a later format with the first row that needs it: units 1, lost rows 2, unmasking 3.
"""
_WAIT_S = 60.0
"""How long a process waits for another one that is writing."""

# Replacing a row would get past a rule against deleting alone, so each insert must be a new one.
_SCHEMA = (
    "CREATE TABLE chain (row INTEGER PRIMARY KEY, content TEXT NOT NULL, digest TEXT NOT NULL)",
    "CREATE TABLE answers (row INTEGER PRIMARY KEY, answer BLOB NOT NULL)",
    "CREATE TRIGGER chain_grows BEFORE INSERT ON chain WHEN NEW.row IS NOT "
    "(SELECT coalesce(max(row), 0) + 1 FROM chain) BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER answers_grow BEFORE INSERT ON answers WHEN NEW.row IN "
    "(SELECT row FROM answers) BEGIN SELECT RAISE(ABORT, 'append only'); END",
    *(
        f"CREATE TRIGGER {table}_{action}_refused BEFORE {action} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END"
        for table in ("chain", "answers")
        for action in ("UPDATE", "DELETE")
    ),
)


class Unusable(Refused):
    """A ledger that cannot be read or written now. The words hold a path: not to be sent."""


class Damaged(Unusable):
    """A ledger whose rows are not as they were written."""


@dataclass(frozen=True)
class Head:
    """The length of a chain and the hash of its last row, which stands for all rows up to it."""

    n_rows: int
    digest: str


EMPTY = Head(0, "")


class RowsLost(Refused):
    """A ledger without rows that somebody has seen. The words hold a path: not to be sent."""


class Chain:
    """The file. A row is a JSON object; rows are numbered from 1."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._explained():
            # Not the default mode, which would make a file where there is none.
            where = f"{path.resolve().as_uri()}?mode=rw"
            self._db = sqlite3.connect(where, uri=True, timeout=_WAIT_S, isolation_level=None)
            try:
                (found,) = self._db.execute("PRAGMA user_version").fetchone()
                if not 0 <= found <= NEWEST:
                    raise Unusable(
                        f"{path} must be a ledger of format {NEWEST} at most, got {found}"
                    )
                self._db.execute("PRAGMA journal_mode = WAL")
                # Every commit is on the disk before it returns; fullfsync makes macOS obey.
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("PRAGMA fullfsync = ON")
                # From the first look into the file on, its log and its locks are there to stay.
                self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            except (sqlite3.Error, Unusable):
                self._db.close()
                raise
        self._files = OpenFiles(path)

    @classmethod
    def create(cls, path: Path, first: Mapping[str, Any], *, needs: int = 0) -> Chain:
        """Make the file, which only its owner can read, with its first row."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise InvalidInput(f"ledger must be a new file, got {path}, which exists") from None
        try:
            chain = cls(path)
            try:
                with chain.transaction():
                    for statement in _SCHEMA:
                        chain._db.execute(statement)
                    chain.append(EMPTY, first, needs=needs)
                sync_folder(path.resolve().parent)
            except BaseException:
                chain.close()
                raise
        except BaseException:
            for suffix in SUFFIXES:  # all ours, and nothing is charged yet
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            raise
        return chain

    @classmethod
    def open(cls, path: Path) -> Chain:
        """Open a file that `create` made."""
        if not path.is_file():
            raise InvalidInput(f"ledger must be an existing file, got {path}")
        return cls(path)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep other writers out; at the end all that was written is on the disk, or nothing."""
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Do a transaction in the very file that was opened, as it lies on the disk now.

        At the end it is looked at once more: rows in a file that is gone would soon be nowhere.
        """
        self.require_same_files()
        with self._explained():
            # Pages in memory would hide that the file was written over.
            self._db.execute("PRAGMA shrink_memory")
        with self.transaction():
            yield
        self.require_same_files()

    def require_same_files(self) -> None:
        """Refuse files that are gone, were replaced, or are not their owner's only."""
        if (trouble := self._files.trouble()) is not None:
            raise Unusable(trouble)

    def append(self, head: Head, content: Mapping[str, Any], *, needs: int = 0) -> Head:
        """Add a row after the head and return the new head; `needs` is the row's format."""
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if needs > found:  # in the same transaction as the row
            self._db.execute(f"PRAGMA user_version = {needs}")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        new = Head(head.n_rows + 1, _digest(head, text))
        self._db.execute("INSERT INTO chain VALUES (?, ?, ?)", (new.n_rows, text, new.digest))
        return new

    def rows(self, after: Head = EMPTY) -> Iterator[tuple[Head, dict[str, Any]]]:
        """Yield the rows after a head, each with its own head.

        `Damaged` names the first row that does not follow from the one before, or says that the
        head's own row is not there any more.
        """
        head = after
        with self._explained():
            found = self._db.execute(
                "SELECT row, content, digest FROM chain WHERE row >= ? OR row < 1 ORDER BY row",
                (after.n_rows,),
            ).fetchall()
        if after != EMPTY:
            if not found or (found[0][0], found[0][2]) != (after.n_rows, after.digest):
                raise Damaged(f"{self.path}: row {after.n_rows} was there, and is no longer")
            del found[0]
        for number, text, digest in found:
            expected = head.n_rows + 1
            if number != expected:
                raise Damaged(f"{self.path}: row {expected} is missing, row {number} comes instead")
            if not isinstance(text, str) or digest != _digest(head, text):
                raise Damaged(f"{self.path}: row {number} is not as it was written")
            head = Head(number, digest)
            yield head, json.loads(text)

    def digest(self, number: int) -> str | None:
        """Return the hash of a row, None if there is no such row."""
        with self._explained():
            found = self._db.execute("SELECT digest FROM chain WHERE row = ?", (number,)).fetchone()
        return None if found is None else str(found[0])

    def store(self, number: int, answer: bytes) -> None:
        """Keep the bytes that belong to a row."""
        self._db.execute("INSERT INTO answers VALUES (?, ?)", (number, answer))

    def stored(self, number: int) -> bytes | None:
        """Return the bytes that belong to a row, None if there are none."""
        with self._explained():
            query = "SELECT answer FROM answers WHERE row = ?"
            found = self._db.execute(query, (number,)).fetchone()
        return found[0] if found is not None and isinstance(found[0], bytes) else None

    def rows_with_bytes(self) -> list[int]:
        """Return the numbers of the rows that bytes are kept for."""
        with self._explained():
            found = self._db.execute("SELECT row FROM answers ORDER BY row").fetchall()
        return [number for (number,) in found]

    def check_schema(self) -> None:
        """Refuse a file without the triggers that refuse changes, or with other tables."""
        with self._explained():
            query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
            found = {sql for (sql,) in self._db.execute(query)}
        for sql in found.symmetric_difference(_SCHEMA):
            what = "is missing" if sql in _SCHEMA else "does not belong to a ledger"
            raise Damaged(f"{self.path}: {' '.join(sql.split()[:3])!r} {what}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, no space, no such table
            raise Unusable(f"the ledger {self.path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise Damaged(f"{self.path}: not a ledger, or damaged: {error}") from error


def _digest(previous: Head, text: str) -> str:
    return sha256(json.dumps([previous.digest, text]).encode()).hexdigest()
