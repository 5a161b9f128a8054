"""How many threads linear algebra gets: one for small matrices, where a second costs more than it brings."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import scipy.linalg  # noqa: F401  the libraries to limit must be loaded when they are looked for
from threadpoolctl import ThreadpoolController

SINGLE_THREAD_SIZE = 1024


def blas_threads(size: int) -> AbstractContextManager[object]:
    """One BLAS thread for matrices up to SINGLE_THREAD_SIZE rows, all of them above; a context manager."""
    limit = 1 if size <= SINGLE_THREAD_SIZE else None
    found: AbstractContextManager[object] = _libraries().limit(limits=limit, user_api="blas")
    return found


@functools.cache
def _libraries() -> ThreadpoolController:
    """Looking for them takes milliseconds."""
    return ThreadpoolController()
