"""The log of callers that were turned away: a file that cannot fill the disk."""

from __future__ import annotations

import json
import time
from collections import deque
from datetime import UTC, datetime
from logging import Handler, Logger, LogRecord, getLogger
from logging.handlers import RotatingFileHandler
from pathlib import Path

from dpfedc.errors import printable

LINES_A_SECOND = 20
MAX_BYTES = 2**20
FILE = "refused.log"


class RefusedCallers:
    """Writes who was turned away and why, one JSON object a line, at most so many a second."""

    def __init__(self, folder: Path) -> None:
        self._file = RotatingFileHandler(folder / FILE, maxBytes=MAX_BYTES, backupCount=1)
        self._second, self._lines, self._left_out = 0, 0, 0
        self._closed = False
        self.n_refused = 0
        self.last: deque[dict[str, str]] = deque(maxlen=5)

    def add(self, address: str, reason: str, *, caller: str = "") -> None:
        """Note a caller; `caller` is the site's name where it is known."""
        self.n_refused += 1
        entry = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "address": address,
                 "reason": printable(reason)[:300]}  # fmt: skip
        if caller:
            entry["caller"] = caller
        self.last.append(entry)
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._closed:  # the server has stopped; a late line would open the file again
            return
        if self._lines > LINES_A_SECOND:
            self._left_out += 1
            return
        if self._left_out:
            entry["left_out_before"] = str(self._left_out)
            self._left_out = 0
        self._file.emit(_record(json.dumps(entry)))

    def logger(self) -> Logger:
        """Return where others may log that a caller is at fault: it ends up here."""
        made = Logger("dpfedc.refused")
        made.addHandler(_Passed(self))
        return made

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        self._file.close()


class _Passed(Handler):
    """Passes on what a library logs of a caller, without the lines of its code."""

    def __init__(self, refused: RefusedCallers) -> None:
        super().__init__()
        self._refused = refused

    def emit(self, record: LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        words = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
        self._refused.add("-", f"not a good call: {words}")


def _record(line: str) -> LogRecord:
    return getLogger("dpfedc").makeRecord("dpfedc", 20, "", 0, line, (), None)
