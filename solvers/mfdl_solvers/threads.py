"""How many threads a dense solver gives the BLAS."""

from __future__ import annotations

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits

SINGLE_THREAD_SIZE = 512
SINGLE_THREAD_SIZE_OF_SVD = 1024


def threads_for(size: int, *, single_up_to: int = SINGLE_THREAD_SIZE) -> AbstractContextManager[object]:
    """One BLAS thread for small matrices: below about 500 the second thread costs more than it brings
    (T = 320: 4 ms against 9 ms per iteration on two cores). Singular values gain less from a second thread
    (n = 1,000: 0.27 s against 0.39 s on two idle cores) than they lose to it when the cores are busy (6 s)."""
    return threadpool_limits(1 if size <= single_up_to else None, user_api="blas")
