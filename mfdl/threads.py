"""How many threads linear algebra gets: one for small matrices, where a second costs more than it brings."""

from __future__ import annotations

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits

SINGLE_THREAD_SIZE = 1024


def blas_threads(size: int) -> AbstractContextManager[object]:
    """One BLAS thread for matrices up to SINGLE_THREAD_SIZE rows, all of them above; a context manager."""
    return threadpool_limits(1 if size <= SINGLE_THREAD_SIZE else None, user_api="blas")
