"""Floating-point range and BLAS threads: what solvers must know of the machine.

Error Grams at the ends of the float range are solved as H 2^-k, and objective and bound are multiplied by 2^k.
Certificates hold squares of entries of H, and those of 1e155 or 1e-170 are no float64 numbers. Between 2^-ORDINARY and
2^ORDINARY k is 0 and nothing changes; beyond, k is even, so that H, its eigenvalues and its square roots are all scaled
exactly.

Small matrices get one BLAS thread, because a second costs more than it brings (measured on two cores): for repeated
products and triangular factors up to ITERATION rows (an iteration of L-BFGS at T = 320 takes 4 ms on one thread, 9 ms
on two), for eigenvalues and singular values up to DECOMPOSITION (n = 1,000: 0.27 s instead of 0.39 s, and 6 s on two
busy cores).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from contextlib import AbstractContextManager
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import scipy.linalg  # noqa: F401  the BLAS libraries must be loaded before threadpoolctl looks for them
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)  # twice the relative error of one rounding
UNIT = EPS / 2
ORDINARY = 128  # binary digits: products of four such numbers, with condition numbers of 1e16 between, stay finite
ITERATION, DECOMPOSITION = 512, 1024


def even_exponent(array: Array) -> int:
    """The even k with the largest |entry| of array 2^-k in [1, 4); 0 where that entry is ordinary, 0 or not finite.

    >>> even_exponent(np.array([3.0, -1e-3])), even_exponent(np.array([2.0**301])), even_exponent(np.array([5e-324]))
    (0, 300, -1074)
    """
    _, binary = math.frexp(float(np.abs(array).max(initial=0.0)))
    return (binary - 1) & ~1 if abs(binary) > ORDINARY else 0


def scaled(array: Array, k: int) -> Array:
    """array 2^k; the array itself for k = 0."""
    return np.ldexp(array, k) if k else array


class AtAnyScale:
    """A problem whose error Gram is the array named by `_costs`; a frozen dataclass."""

    _costs: ClassVar[str] = "error_gram"

    @cached_property
    def exponent(self) -> int:
        """k, the Gram being 2^k times that of `normalised`; 0 unless its entries are near an end of the float range."""
        return even_exponent(getattr(self, self._costs))

    @cached_property
    def normalised(self) -> Self:
        """The problem of H 2^-k, the one that solvers solve; itself for k = 0."""
        if not self.exponent:
            return self
        changed = {self._costs: scaled(getattr(self, self._costs), -self.exponent)}
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]


def scaled_up(value: float, k: int) -> float:
    """value 2^k, rounded up where it is subnormal; raises OverflowError."""
    product = math.ldexp(value, k)
    return math.nextafter(product, math.inf) if math.ldexp(product, -k) < value else product


def scaled_down(value: float, k: int) -> float:
    """value 2^k, rounded down where it is subnormal; raises OverflowError."""
    product = math.ldexp(value, k)
    return math.nextafter(product, -math.inf) if math.ldexp(product, -k) > value else product


def blas_threads(size: int, *, single_up_to: int = DECOMPOSITION) -> AbstractContextManager[object]:
    """One BLAS thread for matrices up to that many rows, all of them above; a context manager."""
    return _libraries().limit(limits=1 if size <= single_up_to else None, user_api="blas")


@functools.cache
def _libraries() -> ThreadpoolController:
    """Looking for them takes milliseconds."""
    return ThreadpoolController()
