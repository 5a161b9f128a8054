"""Encoders without structure: the identity, one array for all columns of noise, one for each of them."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ..arithmetic import UNIT, Array
from ..problem import ProblemError
from .base import Encoder
from .coefficients import keep

LARGEST_DENSE = 1e60  # of entries, and of one over the diagonal: products of their squares stay numbers


class ArrayEncoder(Encoder):
    """Encoders whose noise of some steps is a product with a block of C^-1, inverted once in float64."""

    keeps_fresh_rows = True

    @property
    def in_blocks(self) -> bool:
        return self.shipped

    @property
    @abc.abstractmethod
    def array(self) -> Array | None:
        """C, shape (T, T) or (columns, T, T); None: the identity."""

    @property
    @abc.abstractmethod
    def inverse(self) -> Array | None:
        """C^-1 as it makes the noise, the shape of `array`; lower triangular, read-only. None: the identity."""

    @abc.abstractmethod
    def absolute_transposed_solve(self, x: Array) -> Array:
        """|C^-T| x, |C^-T| the entries' absolute values."""

    def select_columns(self, columns: NDArray[np.intp]) -> Encoder:
        """The encoder of some columns of noise."""
        return self

    def noise_block(self, rows: slice, columns: slice, base: Array) -> Array:
        """What base noise of some steps, shape (steps, columns, d), adds in other steps."""
        return base.copy()


@dataclasses.dataclass(frozen=True, eq=False)
class Identity(ArrayEncoder):
    """C = I over `size` steps: noise that is fresh in every step."""

    size: int
    array = None
    inverse = None

    bandwidth = 1
    memory = 0
    nonnegative = True
    entry_rounding = 0.0

    def times(self, x: Array) -> Array:
        return x.copy()

    transposed_times = solve = transposed_solve = absolute_times = times
    absolute_transposed_solve = times

    @property
    def noise_variances(self) -> Array:
        return np.ones(self.size)

    def envelope(self) -> Array:
        return np.ones(1)

    def diagonals(self) -> Array | None:
        return np.ones((self.size, 1)) if self.shipped else None

    def scaled(self, factor: float) -> Encoder:
        return Dense(factor * np.eye(self.size))

    def leading(self, size: int) -> Encoder:
        return Identity(size)

    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        return fresh

    def weights_of(self, step: int) -> Array:
        return np.ones(1)

    def defect(self) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(ArrayEncoder):
    """Any C, as an array.

    Attributes: entries: C, shape (T, T), lower triangular with a positive diagonal; read-only.
    Raises: ProblemError: another shape, an entry above the diagonal, a diagonal entry <= 0, entries beyond
        LARGEST_DENSE in size or not finite.
    Cost: O(T^3) once, products and solutions O(T^2) for each column.

    >>> Dense([[1.0, 0.0], [0.5, 1.0]]).solve(np.eye(2)).tolist()
    [[1.0, 0.0], [-0.5, 1.0]]
    """

    entries: Array | Sequence[Sequence[float]]
    axes = 2
    entry_rounding = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", _causal(self.entries, self.axes))

    @classmethod
    def from_computed(cls, array: Array) -> Self:
        """C as it was computed, not checked: of entries out of range `defect` tells."""
        encoder = object.__new__(cls)
        array.setflags(write=False)
        object.__setattr__(encoder, "entries", array)
        return encoder

    @property
    def array(self) -> Array:
        return np.asarray(self.entries)

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.array.shape[-1]

    @property
    def memory(self) -> int:
        return self.size - 1

    @property
    def nonnegative(self) -> bool:
        return bool((self.array >= 0).all())

    @cached_property
    def inverse(self) -> Array:
        return noising_array(self.array)

    def noise_block(self, rows: slice, columns: slice, base: Array) -> Array:
        return product(self.inverse[..., rows, columns], base)

    def times(self, x: Array) -> Array:
        return product(self.array, x)

    def transposed_times(self, x: Array) -> Array:
        return product(self.array.swapaxes(-1, -2), x)

    def solve(self, x: Array) -> Array:
        return product(self.inverse, x)

    def transposed_solve(self, x: Array) -> Array:
        return product(self.inverse.swapaxes(-1, -2), x)

    def absolute_times(self, x: Array) -> Array:
        return product(np.abs(self.array), x)

    def absolute_transposed_solve(self, x: Array) -> Array:
        return product(np.abs(self.inverse).swapaxes(-1, -2), x)

    @property
    def noise_variances(self) -> Array:
        return np.asarray((self.inverse**2).sum(axis=-1))

    def envelope(self) -> Array:
        return np.array([np.abs(np.diagonal(self.array, -j)).max() for j in range(self.size)])

    def dense(self) -> Array:
        return self.array

    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        weights = self.inverse[..., step, : step + 1]
        rows = np.concatenate([state[:step], fresh[None]])
        if step < len(state):
            keep(step, state, fresh)
        return np.asarray(np.tensordot(weights, rows, 1))

    def weights_of(self, step: int) -> Array:
        return np.asarray(self.inverse[..., step, step::-1])

    def scaled(self, factor: float) -> Encoder:
        return type(self)(factor * self.array)

    def leading(self, size: int) -> Encoder:
        return type(self)(self.array[..., :size, :size])

    def defect(self) -> float:
        return inverse_defect(self.array, self.inverse)


@dataclasses.dataclass(frozen=True, eq=False)
class PerColumn(Dense):
    """A C of its own for each column of noise.

    Attributes: entries: C_k, shape (columns, T, T), each as of `Dense`. Arrays x have the shape (T, columns, ...).
    """

    axes = 3
    shared = False

    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        rows = np.concatenate([state[:step], fresh[None]])
        if step < len(state):
            keep(step, state, fresh)
        return np.asarray(np.einsum("ks,sk...->k...", self.inverse[:, step, : step + 1], rows))

    def select_columns(self, columns: NDArray[np.intp]) -> PerColumn:
        return PerColumn(self.array[columns])

    def envelope(self) -> Array:
        lags = range(self.size)
        return np.array([np.abs(np.diagonal(self.array, -j, axis1=1, axis2=2)).max(initial=0.0) for j in lags])

    def defect(self) -> float:
        return max((inverse_defect(C, N) for C, N in zip(self.array, self.inverse, strict=True)), default=0.0)


def noising_array(encoder: Array) -> Array:
    """C^-1 as it makes the noise, of one encoder or of each along a first axis; lower triangular, read-only."""
    eye, inverted = np.eye(encoder.shape[-1]), np.empty_like(encoder)
    for at in np.ndindex(encoder.shape[:-2]):
        inverted[at] = np.tril(scipy.linalg.solve_triangular(encoder[at], eye, lower=True))
    inverted.setflags(write=False)
    return inverted


def inverse_defect(encoder: Array, inverse: Array) -> float:
    """A bound on ||C N - I|| of C and its computed inverse; infinite where none is below 1."""
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite or undefined defect is not < 1: no claim
        defect = encoder @ inverse
        defect[np.diag_indices(len(encoder))] -= 1.0
        absolute = float(np.linalg.norm(np.abs(encoder) @ np.abs(inverse)))
        off = float(np.linalg.norm(defect)) + sum_rounding(len(encoder)) * absolute
    return off if off < 1 else math.inf


def sum_rounding(terms: int) -> float:
    """How far a sum of so many products may be off, relative to the sum of their sizes."""
    return terms * UNIT / (1 - terms * UNIT)


def product(E: Array, columns: Array) -> Array:
    """E[t, s] times (s, ...), or E_k[t, s] times (s, k, d): shape (t, ...)."""
    if E.ndim == 2:
        return (E @ columns.reshape(len(columns), -1)).reshape(len(E), *columns.shape[1:])
    return np.matmul(E, columns.transpose(1, 0, 2)).transpose(1, 0, 2)


def _causal(given: object, axes: int) -> Array:
    """An own read-only encoder, or several along a first axis; raises ProblemError."""
    C = np.asarray(given)
    if C.dtype != np.float64 or C.flags.writeable or C.base is not None:
        C = np.array(C, dtype=np.float64)
    if C.ndim != axes or C.shape[-1] != C.shape[-2] or not C.shape[-1] or not np.isfinite(C).all():
        shape = "(T, T)" if axes == 2 else "(columns, T, T)"
        raise ProblemError(f"encoder must be finite numbers of shape {shape}, got shape {C.shape}.")
    if np.triu(C, 1).any():
        raise ProblemError(
            "encoder must be causal (lower triangular): an entry above the diagonal would need noise of a later step; "
            "use causal_encoder on its Gram matrix."
        )
    diagonal = np.diagonal(C, axis1=-2, axis2=-1)
    if not (diagonal > 0).all():
        at = tuple(int(i) for i in np.argwhere(~(diagonal > 0))[0])
        raise ProblemError(f"encoder must have a positive diagonal, got {diagonal[at]:g} at index {(*at, at[-1])}.")
    largest, least = float(np.abs(C).max(initial=0.0)), float(diagonal.min(initial=1.0))
    if largest > LARGEST_DENSE or least < 1 / LARGEST_DENSE:
        raise ProblemError(
            f"encoder must have a diagonal of at least {1 / LARGEST_DENSE:g} and entries of at most {LARGEST_DENSE:g} "
            f"in size, got {least:g} and {largest:g}; its scale is free, so divide it and noise_std by one number."
        )
    C.setflags(write=False)
    return C
