"""Files that are written whole or not at all, and by one process at a time."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from dpfedc.errors import InvalidInput

Parts = Iterable[bytes | memoryview]
"""The content of a file that is too large to be there twice."""


def write_whole(path: Path, content: bytes | Parts, *, private: bool = False) -> None:
    """Write a file so that after a crash it is the old one or the new one, never a part."""
    write_together(path.parent, {path.name: content}, private=(path.name,) if private else ())


def write_together(
    folder: Path,
    files: Mapping[str, bytes | Parts],
    *,
    gone: Iterable[str] = (),
    private: Sequence[str] = (),
) -> None:
    """Write files into a folder, and remove those that are to be `gone`.

    All of them lie on the disk before the first takes its place: a full disk changes nothing.
    Nobody but the owner can read those that are `private`.
    """
    drafts = {name: draft_of(folder / name) for name in files}
    try:
        for name, content in files.items():
            drafts[name].unlink(missing_ok=True)  # its mode would stay
            mode = 0o600 if name in private else 0o666
            handle = os.open(drafts[name], os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
                file.flush()
                os.fsync(file.fileno())
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        for name, draft in drafts.items():
            draft.replace(folder / name)
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on the disk as well, where the system can do that."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, and names are durable at once
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def draft_of(path: Path) -> Path:
    """Return where a file lies while it is written; a process that is killed leaves it there."""
    return path.with_name(f".{path.name}.draft")


def csv_bytes(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return the content of a CSV file."""
    stream = StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return stream.getvalue().encode()


@contextmanager
def locked(path: Path, *, refusal: str | None = None) -> Iterator[None]:
    """Hold a lock on a file, which ends with the process that holds it.

    Waits for it, or refuses at once if there are words for that.
    """
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal else 0))
        yield
    except BlockingIOError as error:
        raise InvalidInput(refusal or "locked") from error
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on a file now."""
    if not path.exists():
        return False
    try:
        with locked(path, refusal="held"):
            return False
    except InvalidInput:
        return True
