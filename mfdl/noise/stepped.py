"""Rows of C^-1 Z one after another, for an encoder C with structure: its state machine on base noise that is asked for.

A row is a function of the step alone: every way to it, forward, from the start, or from a state, makes the same sums in
the same order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mfdl_solvers.encoders import Encoder

from ..check import FloatArray
from ..errors import InvalidInput
from ..shown import short_repr
from .encoder_arguments import MAX_DENSE_STEPS, content

AGREE = 1e-6  # relative: noise further from what is accounted is another one
MARKED = 8  # normals by which a state is known again


class BaseNoise(Protocol):
    """Standard normals of fixed columns: any steps, in any order, always the same."""

    def block(self, steps: NDArray[np.int64], dim: int, *, tensor: int = 0) -> FloatArray:
        """Shape (steps, columns, dim)."""


@dataclasses.dataclass(frozen=True, eq=False)
class StreamState:
    """Where a stream stands. As secret as the keys: whoever has it can subtract noise.

    Attributes:
        position: the next step.
        rows: what the encoder keeps, shape (memory, columns, dim).
        mark: tells whether another stream makes the same noise.
    """

    __repr__ = short_repr

    position: int
    rows: FloatArray
    mark: str

    @classmethod
    def nowhere(cls) -> Self:
        """Of noise that keeps nothing."""
        return cls(0, np.zeros((0, 0, 0)), "")


class SteppedRows:
    """C^-1 Z row by row.

    Args:
        encoder: C; base: Z; shape: (columns, dim) of a row; tensor: see `NoiseStream`.
        keep_bytes: rows of Z that take more are made again in every step instead of kept.
    """

    def __init__(self, encoder: Encoder, base: BaseNoise, shape: tuple[int, int], tensor: int, keep_bytes: int) -> None:
        self._encoder, self._base, self._shape, self._tensor = encoder, base, shape, tensor
        self._sums = encoder.keeps_fresh_rows
        again = self._sums and 8 * encoder.memory * shape[0] * shape[1] > keep_bytes
        self._memory = 0 if again else encoder.memory
        self._position, self._state = 0, np.zeros((self._memory, *shape))

    def row(self, step: int) -> FloatArray:
        """Row `step`, shape (columns, dim)."""
        if self._sums and not step - self._memory <= self._position <= step:
            self._position = max(0, step - self._memory)
        elif step < self._position:
            self._position = 0
            self._state[...] = 0
        while self._position < step:
            self._advance(self._position, wanted=False)
        return self._advance(step)

    def _advance(self, step: int, wanted: bool = True) -> FloatArray:
        """Row `step`, the next one; where it is not wanted and costs something, just what is kept of it."""
        fresh = self._fresh(step)
        self._position = step + 1
        if not self._sums:
            return self._encoder.advance(step, self._state, fresh)
        made = self._summed(step, fresh) if wanted else fresh
        if self._memory:
            self._state[step % self._memory] = fresh
        return made

    def _fresh(self, step: int) -> FloatArray:
        return self._base.block(np.array([step]), self._shape[1], tensor=self._tensor)[0]

    def _summed(self, step: int, fresh: FloatArray) -> FloatArray:
        """sum_j C^-1[t, t - j] z_(t - j), one row at a time, whether rows are kept or made again."""
        weights = self._encoder.weights_of(step)
        made = weights[0] * fresh
        for j in range(1, min(len(weights), step + 1)):
            made += weights[j] * (self._state[(step - j) % self._memory] if self._memory else self._fresh(step - j))
        return made

    # ---- states ------------------------------------------------------------------------------------------------

    def state(self) -> StreamState:
        return StreamState(self._position, self._state.copy(), self._mark(self._position))

    def resume(self, state: StreamState) -> None:
        """Raises: InvalidInput: a state of another stream."""
        if state.rows.shape != self._state.shape or not 0 <= state.position <= self._encoder.size:
            raise InvalidInput(
                f"state must be of a stream with rows of shape {self._state.shape} over {self._encoder.size} steps, "
                f"got {state.rows.shape} at step {state.position}."
            )
        if state.mark != self._mark(state.position):
            raise InvalidInput(
                "state must be of a stream of the same encoder, keys, columns and tensor, got that of another one, "
                "whose noise would be added a second time; ask for the step itself, which needs no state."
            )
        self._position, self._state = state.position, np.array(state.rows)

    def _mark(self, position: int) -> str:
        step = min(position, self._encoder.size - 1)
        normals = self._base.block(np.array([step]), min(self._shape[1], MARKED), tensor=self._tensor)
        return hashlib.sha256(content(self._encoder) + normals.tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True, eq=False)
class _Given:
    rows: FloatArray

    def block(self, steps: NDArray[np.int64], dim: int, *, tensor: int = 0) -> FloatArray:
        return self.rows[steps]


def require_stepped(encoder: Encoder) -> None:
    """Raises InvalidInput: an encoder of the user's own that streams another noise than its solve, or dense C, says."""
    if encoder.shipped or encoder.in_blocks:
        return
    Z = np.random.default_rng(0).standard_normal((encoder.size, 1, 1))
    stepped = SteppedRows(encoder, _Given(Z), (1, 1), 0, Z.nbytes)
    made = np.stack([stepped.row(t) for t in range(encoder.size)])
    solved = np.asarray(encoder.solve(Z))
    off = [_share(made - solved, solved)]
    if encoder.size <= MAX_DENSE_STEPS:
        C = np.asarray(encoder.dense())
        off.append(_share(C @ made[:, 0] - Z[:, 0], np.abs(C) @ np.abs(made[:, 0])))
    if not max(off) <= AGREE:
        raise InvalidInput(
            f"encoder {type(encoder).__name__} must stream what it solves for, got rows step by step that are no "
            f"C^-1 Z (off by {max(off):.2g}); advance and weights_of, solve, and dense must be of one C."
        )


def _share(part: FloatArray, whole: FloatArray) -> float:
    size = float(np.abs(whole).max())
    return float(np.abs(part).max()) / size if size > 0 else math.inf
