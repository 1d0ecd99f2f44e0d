"""The files of an open ledger: whether they are still those that were opened.

SQLite goes on with a file that was deleted or replaced as if nothing had happened: what it writes
is then in no file that anybody will open again. Its log (-wal) and its locks (-shm) are files of
their own; without the one rows are lost in a crash, without the other two processes write at once.
Files are looked at by name only: to open and close one would drop the locks that SQLite holds.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

SUFFIXES = ("", "-wal", "-shm")


class OpenFiles:
    """What the files were when the ledger was opened. They stay the same until it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.abspath(path))
        self._opened = {suffix: self._found(suffix) for suffix in SUFFIXES}

    def trouble(self) -> str | None:
        """Return what is wrong with the files now, None if nothing is."""
        for suffix in SUFFIXES:
            now, then = self._found(suffix), self._opened[suffix]
            place = f"{self._path}{suffix}"
            if now is None or then is None:
                if now is not then:
                    return f"{place} is not where it was. {_ADVICE}"
            elif (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino):
                return f"{place} is another file than the one that was opened. {_ADVICE}"
            elif not stat.S_ISREG(now.st_mode):
                return f"{place} must be a plain file, got a link or something else"
            elif os.name == "posix" and now.st_uid != os.geteuid():
                return f"{place} must belong to who uses it, got a file of user {now.st_uid}"
            elif os.name == "posix" and now.st_mode & 0o077:
                mode = stat.S_IMODE(now.st_mode)
                return f"{place} must be its owner's only, got mode {mode:o}: chmod 600 it"
        return None

    def _found(self, suffix: str) -> os.stat_result | None:
        try:
            return os.lstat(f"{self._path}{suffix}")
        except OSError:
            return None


_ADVICE = "Stop whoever uses the ledger, put the newest file back, and start again"
