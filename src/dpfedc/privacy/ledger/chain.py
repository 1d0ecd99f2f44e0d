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

FORMATS = (0, 1)
"""SQLite's user_version of the files that can be read. Version 0.1.0 wrote and reads format 0; a
file becomes one of format 1 with the first row that it would not understand."""
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
                if found not in FORMATS:
                    known = " or ".join(map(str, FORMATS))
                    raise Unusable(f"{path} must be a ledger of format {known}, got {found}")
                self._db.execute("PRAGMA journal_mode = WAL")
                # Every commit is on the disk before it returns; fullfsync makes macOS obey.
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("PRAGMA fullfsync = ON")
            except (sqlite3.Error, Unusable):
                self._db.close()
                raise

    @classmethod
    def create(cls, path: Path, first: Mapping[str, Any], *, newest: bool = False) -> Chain:
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
                    chain.append(EMPTY, first, newest=newest)
                _sync_folder(path.resolve().parent)
            except BaseException:
                chain.close()
                raise
        except BaseException:
            for suffix in ("", "-wal", "-shm"):  # all ours, and nothing is charged yet
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

    def append(self, head: Head, content: Mapping[str, Any], *, newest: bool = False) -> Head:
        """Add a row after the head and return the new head; `newest` if it needs that format."""
        if newest:  # in the same transaction as the row
            self._db.execute(f"PRAGMA user_version = {FORMATS[-1]}")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        new = Head(head.n_rows + 1, _digest(head, text))
        self._db.execute("INSERT INTO chain VALUES (?, ?, ?)", (new.n_rows, text, new.digest))
        return new

    def rows(self, after: Head = EMPTY) -> Iterator[tuple[Head, dict[str, Any]]]:
        """Yield the rows after a head, each with its own head.

        `Damaged` names the first row that does not follow from the one before.
        """
        head = after
        with self._explained():
            found = self._db.execute(
                "SELECT row, content, digest FROM chain WHERE row > ? OR row < 1 ORDER BY row",
                (after.n_rows,),
            ).fetchall()
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


def _sync_folder(folder: Path) -> None:
    """Put a new file's name on the disk as well, where the system can do that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
