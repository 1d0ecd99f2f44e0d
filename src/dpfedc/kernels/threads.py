"""Rows spread over threads, in place of BLAS's own threads.

The products here are tall and thin, and a second thread inside of BLAS costs more than it gives.
Given some rows of its own, a second thread gives what it should. How rows are grouped does not
depend on how many threads there are, so neither does any result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")

_pool: ContextVar[Executor | None] = ContextVar("pool", default=None)


@contextmanager
def rows_over_threads() -> Iterator[None]:
    """Hold BLAS to one thread, and let `each` use as many as BLAS had."""
    blas = _blas("torch" in sys.modules)
    threads = max((library["num_threads"] for library in blas.info()), default=1)
    with blas.limit(limits=1):
        if threads == 1:
            yield
            return
        with ThreadPoolExecutor(threads) as pool:
            before = _pool.set(pool)
            try:
                yield
            finally:
                _pool.reset(before)


def each(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what `work` makes of the items, in order; with threads where there are any."""
    pool, known = _pool.get(), list(items)
    if pool is None or len(known) == 1:
        return [work(item) for item in known]
    return list(pool.map(work, known))


@cache
def _blas(_with_torch: bool) -> ThreadpoolController:
    """Return the loaded BLAS libraries; looked for again once Torch is there, which has its own."""
    return ThreadpoolController().select(user_api="blas")
