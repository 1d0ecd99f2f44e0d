"""One process at a time: a lock on a file, which ends with the process that holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfedc.errors import InvalidInput


@contextmanager
def locked(path: Path, *, refusal: str | None = None) -> Iterator[None]:
    """Hold a lock; wait for it, or refuse at once if there are words for that."""
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal else 0))
        yield
    except BlockingIOError as error:
        raise InvalidInput(refusal or "locked") from error
    finally:
        os.close(handle)
