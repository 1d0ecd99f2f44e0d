"""Rows spread over threads, in place of BLAS's own threads.

The products here are tall and thin, and a second thread inside of BLAS costs more than it gives.
Given some rows of its own, a second thread gives what it should. How rows are grouped does not
depend on how many threads there are, so neither does any result.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class _Workers:
    """Threads of one process; `pool` is None once they are gone."""

    pool: ThreadPoolExecutor | None
    process: int


_workers: ContextVar[_Workers | None] = ContextVar("workers", default=None)


_held = Lock()
"""Taken while BLAS is held to one thread: the limit is the process's, and must not be set twice."""


@contextmanager
def rows_over_threads() -> Iterator[None]:
    """Hold BLAS to one thread, and let `each` use as many as BLAS had.

    Within itself, and in a second thread of the user's, it changes nothing.
    """
    if not _held.acquire(blocking=False):
        yield
        return
    try:
        blas = _blas(*(name in sys.modules for name in ("torch", "scipy.linalg")))
        libraries = blas.info()
        threads = max((library["num_threads"] or 1 for library in libraries), default=1)
        with blas.limit(limits=1):
            if threads == 1:
                yield
                return
            # With OpenMP the limit is one of the thread that sets it.
            openmp = any(library.get("threading_layer") == "openmp" for library in libraries)
            start = partial(blas.limit, limits=1) if openmp else None
            with ThreadPoolExecutor(threads, initializer=start) as pool:
                workers = _Workers(pool, os.getpid())
                before = _workers.set(workers)
                try:
                    yield
                finally:
                    _workers.reset(before)
                    workers.pool = None
    finally:
        _held.release()


def each(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what `work` makes of the items, in order; with threads where there are any."""
    known, workers = list(items), _workers.get()
    pool = None if workers is None or workers.process != os.getpid() else workers.pool
    if pool is None or len(known) == 1:
        return [work(item) for item in known]
    errors: Any = np.geterr()

    def as_here(item: Item) -> Result:
        with np.errstate(**errors):
            return work(item)

    return list(pool.map(as_here, known))


@cache
def _blas(*_loaded: bool) -> ThreadpoolController:
    """Return the BLAS libraries; looked for again when one is loaded that brings its own."""
    return ThreadpoolController().select(user_api="blas")
