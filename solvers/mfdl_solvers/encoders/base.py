"""What every encoder answers, and the state machine that makes its noise row by row."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..arithmetic import UNIT, Array
from ..problem import ProblemError

if TYPE_CHECKING:
    from .coefficients import Coefficients

LEAST_VARIANCE = 2.0**-960  # what it is summed from may have been rounded to 0


class Encoder(abc.ABC):
    """A causal encoder C: lower triangular, shape (T, T), positive diagonal; with structure no such array is made.

    Products and solutions act on the first axis of arrays of shape (T, ...). `solve` and the stepper are the noise that
    is really added; `defect` says how far that is from C^-1. An encoder of one's own is a frozen dataclass of read-only
    arrays and numbers that answers what is abstract here; of its structure nothing is known, so it is accounted by its
    products alone.

    Attributes:
        size: T.
        memory: rows that a `Stepper` keeps, each of the shape of one row of noise.
        keeps_fresh_rows: a stepper keeps the last rows of Z, so that it can start at any step from these.
        shared: one C for all columns of noise; else x has the columns along its second axis.
    """

    size: int
    keeps_fresh_rows = False
    shared = True

    # ---- structure ---------------------------------------------------------------------------------------------------

    @property
    def shipped(self) -> bool:
        """Its products, and those of its parts, are the library's: only then is its structure known."""
        return type(self).__module__.startswith("mfdl_solvers.")

    @property
    def in_blocks(self) -> bool:
        """Whether noise of some steps is a product with a block of C^-1, an array; else it is made row by row."""
        return False

    @property
    def bandwidth(self) -> int:
        """b with C[t, s] = 0 wherever t - s >= b, at most T."""
        return self.size

    @property
    @abc.abstractmethod
    def memory(self) -> int: ...

    @property
    def nonnegative(self) -> bool:
        """No entry of C is below 0, as far as is known."""
        return False

    @property
    def series(self) -> Array | None:
        """The coefficients of a Toeplitz C, at most T of them; None for another."""
        return None

    def noise_series(self) -> Array | None:
        """The coefficients of a Toeplitz C^-1, shape (T,); None for another, or where the structure is not known."""
        return None

    def certified_series(self) -> Coefficients | None:
        """Those of a Toeplitz C, certified; None for another, one of one's own, or for too many products."""
        return None

    def diagonals(self) -> Array | None:
        """[t, j] = C[t, t - j], shape (T, b), as they were given; None where they were not, or are too many."""
        return None

    def noise_diagonals(self) -> Array | None:
        """[t, j] = C^-1[t, t - j], shape (T, b), where these diagonals were given, entry by entry; else None."""
        return None

    def class_sums(self, period: int, classes: np.ndarray) -> Iterator[Array] | None:
        """Rows of sums of at least |C[t, s]| over the steps s of some classes s mod period, shape (classes,).

        They are those of C itself where it is `nonnegative`. None where nothing is known but products, or `diagonals`
        or `certified_series` say more.
        """
        return None

    def bin_gram(self, bins: int) -> Array | None:
        """M = (|C| E)^T (|C| E) or above, shape (bins, bins), step t in bin t mod bins; infinite where C is unbounded.

        None for an encoder whose structure is not known. Raises: ProblemError: more than `bins.MAX_PRODUCTS`.
        """
        return None

    def envelope(self) -> Array:
        """e with |C[s + j, s]| <= e_j at every s, shape (bandwidth,); infinite where no such bound is known."""
        return np.full(self.bandwidth, np.inf)

    # ---- products ----------------------------------------------------------------------------------------------------

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

    @property
    @abc.abstractmethod
    def noise_variances(self) -> Array:
        """diag(C^-1 C^-T), shape (T,): variance of each step's noise per unit of that of Z."""

    @abc.abstractmethod
    def scaled(self, factor: float) -> Encoder:
        """factor C, for a factor > 0."""

    def leading(self, size: int) -> Encoder:
        """The first `size` rows and columns: its noise is that of the first steps.

        Raises: ProblemError: an encoder whose structure is not known.
        """
        raise ProblemError(f"{type(self).__name__} cannot be cut to its first steps.")

    def dense(self) -> Array:
        """C as an array, for small T."""
        return self.times(np.eye(self.size))

    # ---- noise row by row --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        """Row `step` of C^-1 Z from row `step` of Z; the state, shape (memory, ...), is changed in place."""

    @abc.abstractmethod
    def weights_of(self, step: int) -> Array:
        """What a stepper adds up: C[t, t - j], or where it keeps fresh rows C^-1[t, t - j], for j <= min(t, memory)."""

    def stepper(self, shape: Sequence[int] = (), *, state: Array | None = None, position: int = 0) -> Stepper:
        """The noise row by row, from the start or from a state that was kept."""
        return Stepper(self, shape, state=state, position=position)

    # ---- rounding ----------------------------------------------------------------------------------------------------

    @property
    def entry_rounding(self) -> float:
        """How far entries of C as `dense` writes it out may be off, and C^T C beside |C|^T |C|."""
        return 64 * self.size * UNIT

    def step_rounding(self, x: Array) -> Array:
        """How far a stepper may miss C y = z, entry by entry, in units of roundoff: x >= 0 are norms of rows of C^-1.

        A row of noise is a sum of `memory` + 1 products, so it is |C| x times a few more units than these.
        """
        return (self.memory + 4) * self.absolute_times(x)

    def defect(self) -> float:
        """A bound on ||C N - I||, N the noise that is really added; infinite where none is below 1.

        Base noise Z is met up to rounding of the terms that each step adds up, of the size of |C| |N|. Row i of that
        has norm at most sum_s |C[i, s]| ||N_s||, and the defect at most the norm of all rows. Norms that are no float64
        numbers, or whose squares are none, tell nothing of it.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            variances = np.asarray(self.noise_variances)
            off = 3 * UNIT * float(np.linalg.norm(self.step_rounding(np.sqrt(variances))))
        known = ((variances >= LEAST_VARIANCE) & (variances < math.inf)).all()
        return off if known and off < 1 else math.inf

    @property
    def inflation(self) -> float:
        """By what factor X of the noise that is added exceeds, at most, C^T C (`defect_inflation`)."""
        return defect_inflation(self.defect())

    def written_defect(self, written: Array) -> float:
        """`defect` of C as `dense` writes it out, beyond `entry_rounding`: 0 but where C^-1 was given."""
        return 0.0


def defect_inflation(defect: float) -> float:
    """(1 - ||C N - I||)^-2, infinite where nothing bounds the defect below 1.

    With C N = I + E, N^-1 = (I + E)^-1 C, so the exact X of N is at most C^T C / (1 - ||E||)^2 and at least
    C^T C / (1 + ||E||)^2 >= C^T C (1 - ||E||)^2.
    """
    return math.inf if not defect < 1 else (1 - defect) ** -2


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
