"""What every encoder answers, and the state machine that makes its noise row by row."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np

from ..arithmetic import Array
from ..problem import ProblemError


class Encoder(abc.ABC):
    """A causal encoder C: lower triangular, shape (T, T), positive diagonal; never an array of that shape.

    Products and solutions act on the first axis of arrays of shape (T, ...).

    Attributes:
        size: T.
        bandwidth: b with C[t, s] = 0 wherever t - s >= b, at most T.
        memory: rows that a `Stepper` keeps, each of the shape of one row of noise.
        nonnegative: no entry of C is below 0.
        keeps_fresh_rows: a stepper keeps the last rows of Z, so that it can start at any step from these.
    """

    size: int
    keeps_fresh_rows = False

    @property
    @abc.abstractmethod
    def bandwidth(self) -> int: ...

    @property
    @abc.abstractmethod
    def memory(self) -> int: ...

    @property
    @abc.abstractmethod
    def nonnegative(self) -> bool: ...

    @property
    def series(self) -> Array | None:
        """The coefficients of a Toeplitz C, at most T of them; None for another."""
        return None

    @property
    def noise_series(self) -> Array | None:
        """The coefficients of a Toeplitz C^-1, shape (T,); None for another."""
        return None

    @abc.abstractmethod
    def times(self, x: Array) -> Array:
        """C x."""

    @abc.abstractmethod
    def transposed_times(self, x: Array) -> Array:
        """C^T x."""

    @abc.abstractmethod
    def solve(self, x: Array) -> Array:
        """C^-1 x."""

    @abc.abstractmethod
    def transposed_solve(self, x: Array) -> Array:
        """C^-T x."""

    @abc.abstractmethod
    def absolute_times(self, x: Array) -> Array:
        """An upper bound on |C| x, entry by entry, for x >= 0; C x itself where C is nonnegative."""

    def step_rounding(self, x: Array) -> Array:
        """How far a stepper may miss C y = z, entry by entry, in units of roundoff: x >= 0 are norms of rows of C^-1.

        A row of noise is a sum of `memory` + 1 products, so it is |C| x times a few more units than these.
        """
        return (self.memory + 4) * self.absolute_times(x)

    @property
    @abc.abstractmethod
    def noise_variances(self) -> Array:
        """diag(C^-1 C^-T), shape (T,): variance of each step's noise per unit of that of Z."""

    @abc.abstractmethod
    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        """Row `step` of C^-1 Z from row `step` of Z; the state, shape (memory, ...), is changed in place."""

    @abc.abstractmethod
    def weights_of(self, step: int) -> Array:
        """What a stepper adds up: C[t, t - j], or for `Inverse` C^-1[t, t - j], for j <= min(t, b - 1), row t of the
        banded one."""

    @abc.abstractmethod
    def scaled(self, factor: float) -> Encoder:
        """factor C, for a factor > 0."""

    @abc.abstractmethod
    def envelope(self) -> Array:
        """e with |C[s + j, s]| <= e_j at every s, shape (bandwidth,); infinite where no such bound is known."""

    def stepper(self, shape: Sequence[int] = (), *, state: Array | None = None, position: int = 0) -> Stepper:
        """The noise row by row, from the start or from a state that was kept."""
        return Stepper(self, shape, state=state, position=position)

    def dense(self) -> Array:
        """C as an array, for small T."""
        return self.times(np.eye(self.size))


class Stepper:
    """The noise C^-1 Z of an encoder, row by row, from fresh rows of Z.

    Args:
        encoder: C; shape: of one row.
        state, position: to go on from: those of an earlier stepper. For encoders that keep rows of Z (`Inverse`), and
            of noise otherwise (`Toeplitz`, `Banded`), the row of step s stands at s % memory, so that a state can also
            be made again from these rows; rows before step 0 are zero.

    Raises: ProblemError: a state of another shape; a step beyond T.
    Memory: `encoder.memory` rows, whatever T. Cost: as many rows read in each step.

    >>> from mfdl_solvers.encoders import Toeplitz
    >>> stepper = Toeplitz([1.0, 0.5], size=4).stepper()
    >>> [float(stepper.step(np.array(1.0))) for _ in range(3)]
    [1.0, 0.5, 0.75]
    """

    def __init__(
        self, encoder: Encoder, shape: Sequence[int] = (), *, state: Array | None = None, position: int = 0
    ) -> None:
        wanted = (encoder.memory, *shape)
        if state is not None and state.shape != wanted:
            raise ProblemError(f"state must have shape {wanted}, got {state.shape}.")
        if state is None and position:
            raise ProblemError(f"state is needed to start at step {position}; only step 0 starts from nothing.")
        self.encoder, self.position = encoder, position
        self.state = np.zeros(wanted) if state is None else np.array(state, dtype=np.float64)

    def step(self, fresh: Array) -> Array:
        """The next row of C^-1 Z, given the next row of Z."""
        if not self.position < self.encoder.size:
            raise ProblemError(f"the encoder has {self.encoder.size} steps; there is no noise beyond.")
        row = self.encoder.advance(self.position, self.state, np.asarray(fresh, dtype=np.float64))
        self.position += 1
        return row
