"""How many threads linear algebra gets: one for small matrices, where a second costs more than it brings.

Two limits, for a second thread pays at different sizes (measured on two cores):

- ITERATION, for products and triangular factors over and over: at T = 320 an iteration of L-BFGS takes 4 ms on one
  thread and 9 ms on two; from about 500 on the second pays.
- DECOMPOSITION, for eigenvalues and singular values, which gain less: at n = 1,000 0.27 s instead of 0.39 s while the
  cores are idle, and 6 s once they are busy.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import scipy.linalg  # noqa: F401  the libraries to limit must be loaded when they are looked for
from threadpoolctl import ThreadpoolController

ITERATION, DECOMPOSITION = 512, 1024


def blas_threads(size: int, *, single_up_to: int = DECOMPOSITION) -> AbstractContextManager[object]:
    """One BLAS thread for matrices up to that many rows, all of them above; a context manager."""
    limited: AbstractContextManager[object] = _libraries().limit(
        limits=1 if size <= single_up_to else None, user_api="blas"
    )
    return limited


@functools.cache
def _libraries() -> ThreadpoolController:
    """Looking for them takes milliseconds."""
    return ThreadpoolController()
