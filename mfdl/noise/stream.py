"""The injected noise of one step, nu (N Z)_t, for all slots at once or for those of one node.

Z is not stored: `base_of(columns)` yields the normals of some columns at any step, a function of (column, step) alone,
so a run can stop after any step and go on. `mfdl.training` binds it to keys. Columns that no slot uses are never made.

Rows of C^-1 Z of an encoder with structure come one after another (`SteppedRows`). A row is a function of the step
alone: every way to it, forward, from the start, or from a state, makes the same sums in the same order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mfdl_solvers.encoders import Encoder

from .. import check
from ..check import FloatArray
from ..display import short_repr
from ..errors import InvalidInput, UnusualSetting
from .base import NoiseOperator
from .encoder_arguments import content

BLOCK_STEPS = 32  # steps of correlated noise made per matrix product
BLOCK_BYTES = 2**28  # base noise of such a block at most, down to one step
LONG_WORK = 5e11  # products of numbers that take minutes
NORMAL = 100  # products in the time of one base normal
KEEP_BYTES = 2**30  # base noise kept in memory up to this size; beyond, asked for again


def kept_bytes(noise: NoiseOperator, dim: int) -> int:
    """Largest size of the base noise that a stream of all slots keeps."""
    return 1 if noise.fresh else min(KEEP_BYTES, 8 * noise.num_steps * noise.columns_per_step * dim)


class NoiseStream:
    """Injected noise step by step.

    Args:
        noise: N; noise_std: nu; dim: coordinates; base_of: the base noise of some columns of a step.
        tensor: which of several parameter tensors the noise is for; equal numbers would repeat it.
        slots: injection slots of a step, in the order wanted; default all.

    Raises: InvalidInput: a slot out of range or twice.
    Guarantees: every step is that of nu N Z, whichever steps were asked for before, bit for bit; a row computed with
        few slots has the bits of the row computed with all where noise is fresh, and equals it to rounding otherwise.
    Memory: T columns dim base normals where they fit in KEEP_BYTES, else a few blocks of at most BLOCK_STEPS steps and
        BLOCK_BYTES; of an encoder with structure its `memory` rows, or none where they are base noise that KEEP_BYTES
        does not hold; for noise that is not made in blocks all rows besides; for fresh noise one step.
    Cost: of an encoder with structure, forward one step at a time; an earlier step, and the first one asked for, takes
        all steps before it (fresh rows: the last `memory` of them) or a `state`.
    """

    _start: int
    _block: FloatArray

    def __init__(
        self,
        noise: NoiseOperator,
        noise_std: float,
        base_of: Callable[[NDArray[np.intp]], BaseNoise],
        dim: int,
        tensor: int = 0,
        slots: Sequence[int] | None = None,
    ) -> None:
        check.instance(NoiseOperator, noise=noise)
        check.non_negative(noise_std=noise_std)
        check.integer_at_least(1, dim=dim)
        self.noise, self.noise_std, self.dim, self.tensor = noise, noise_std, dim, tensor
        columns, self._used = noise.cut(None if slots is None else _slots(noise, slots))
        silent = noise_std == 0 or 0 in self._used.shape
        self._base = None if silent else base_of(columns)
        encoder = self._used.stepped
        self._stepped = (
            None
            if self._base is None or encoder is None
            else SteppedRows(encoder, self._base, (columns.size, dim), tensor, KEEP_BYTES)
        )
        a_step = 8 * max(columns.size, 1) * dim
        at_once = 1 if self._used.fresh or self._stepped else max(1, min(BLOCK_STEPS, BLOCK_BYTES // a_step))
        self._steps = at_once if silent or self._stepped or self._used.in_blocks else noise.num_steps
        keep = 1 < self._steps < noise.num_steps and a_step * noise.num_steps <= KEEP_BYTES
        self._kept: dict[int, FloatArray] | None = {} if keep else None
        self._warn_where_long(columns.size)
        self.release()

    def _warn_where_long(self, columns: int) -> None:
        """Warns before work that takes minutes: an array C^-1 meets all base noise of all steps, kept or made again."""
        if self._base is None or self._used.fresh:
            return
        causal, T, numbers = self._used.causal, self.noise.num_steps, columns * self.dim
        rows = T / 2 if self._stepped is None or causal is None else causal.encoder.memory
        work = T * rows * numbers * (1 if causal is not None else self._used.slots_per_step)
        if self._stepped is None and self._kept is None:
            work += NORMAL * T * max(1.0, rows / self._steps) * numbers
        if work > LONG_WORK:
            warnings.warn(
                f"the noise of {T} steps, {columns} columns and {self.dim} coordinates takes the time of about "
                f"{work:.0e} products of numbers for a run, minutes or more: an encoder given as an array has no "
                "structure. An encoder with few bands or states (mfdl.factorization.encoders, "
                "mfdl.factorization.factorize_long) takes T of them a column and coordinate.",
                UnusualSetting,
                stacklevel=3,
            )

    def step(self, t: int) -> FloatArray:
        """nu (N Z)_t, shape (injection slots, dim), float64, read-only.

        Raises: InvalidInput: t is not a step of the mechanism; noise for more steps was never calibrated.
        """
        if not (isinstance(t, int | np.integer) and 0 <= t < self.noise.num_steps):
            raise InvalidInput(
                f"step must lie in [0, {self.noise.num_steps}), got {t}: the mechanism was calibrated for "
                f"{self.noise.num_steps} steps and has no noise beyond; calibrate a longer one."
            )
        start = t - t % self._steps
        if start != self._start:
            self._block, self._start = self._make(start, min(start + self._steps, self.noise.num_steps)), start
            self._block.setflags(write=False)
        return self._block[t - start]

    def release(self) -> None:
        """Drops the cached rows."""
        self._start, self._block = -1, np.zeros((0, 0, self.dim))

    def state(self) -> StreamState:
        """State after the last requested step, as secret as the keys; empty without an encoder with structure."""
        return StreamState.nowhere() if self._stepped is None else self._stepped.state()

    def resume(self, state: StreamState) -> None:
        """Goes on from the `state` of an equal stream. Raises: InvalidInput: a state of another stream."""
        check.instance(StreamState, state=state)
        if self._stepped is not None:
            self._stepped.resume(state)
            self.release()

    def _make(self, start: int, stop: int) -> FloatArray:
        if self._base is None:
            return np.zeros((stop - start, self._used.slots_per_step, self.dim))
        if self._stepped is not None:
            return self.noise_std * np.ascontiguousarray(self._used.spread(self._stepped.row(start)[None]))
        total: FloatArray | None = None
        ours = self._used.fills_new_arrays  # then in place: blocks of large models are slow to allocate
        for begin in range(start if self._used.fresh else 0, stop, self._steps):
            end = min(begin + self._steps, self.noise.num_steps)
            added = self._used.over_time(slice(start, stop), slice(begin, end), self._normals(begin, end))
            total = added if total is None else np.add(total, added, out=total if ours else None)
        assert total is not None
        spread = np.ascontiguousarray(self._used.spread(total))
        return np.multiply(self.noise_std, spread, out=spread if ours else None)

    def _normals(self, start: int, stop: int) -> FloatArray:
        if self._kept is not None and start in self._kept:
            return self._kept[start]
        assert self._base is not None
        normals = self._base.block(np.arange(start, stop), self.dim, tensor=self.tensor)
        if self._kept is not None:
            self._kept[start] = normals
        return normals


def _slots(noise: NoiseOperator, slots: Sequence[int]) -> list[int]:
    rows = [check.integer_at_least(0, slots=slot) for slot in check.listed("slots of a step, e.g. [0]", slots=slots)]
    if max(rows, default=0) >= noise.slots_per_step or len(set(rows)) != len(rows):
        raise InvalidInput(f"slots must be distinct and below {noise.slots_per_step}, got {rows}.")
    return rows


MARKED = 8  # normals by which a state is known again


class BaseNoise(Protocol):
    """Standard normals of fixed columns: any steps, in any order, always the same."""

    def block(self, steps: NDArray[np.int64], dim: int, *, tensor: int = 0) -> FloatArray:
        """Shape (steps, columns, dim)."""


@dataclasses.dataclass(frozen=True, eq=False)
class StreamState:
    """Position of a stream, as secret as the keys: they allow the noise to be subtracted.

    Attributes: position: the next step; rows: (memory, columns, dim), kept by the encoder; mark: of equal streams.
    """

    __repr__ = short_repr

    position: int
    rows: FloatArray
    mark: str

    @classmethod
    def nowhere(cls) -> Self:
        return cls(0, np.zeros((0, 0, 0)), "")


class SteppedRows:
    """C^-1 Z row by row; rows of Z that take more than `keep_bytes` are made again in every step instead of kept."""

    def __init__(self, encoder: Encoder, base: BaseNoise, shape: tuple[int, int], tensor: int, keep_bytes: int) -> None:
        self._encoder, self._base, self._shape, self._tensor = encoder, base, shape, tensor
        self._sums = encoder.keeps_fresh_rows
        again = self._sums and 8 * encoder.memory * shape[0] * shape[1] > keep_bytes
        self._memory = 0 if again else encoder.memory
        self._position, self._state = 0, np.zeros((self._memory, *shape))

    def row(self, step: int) -> FloatArray:
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
        row = self._summed(step, fresh) if wanted else fresh
        if self._memory:
            self._state[step % self._memory] = fresh
        return row

    def _fresh(self, step: int) -> FloatArray:
        return self._base.block(np.array([step]), self._shape[1], tensor=self._tensor)[0]

    def _summed(self, step: int, fresh: FloatArray) -> FloatArray:
        """sum_j C^-1[t, t - j] z_(t - j), one row at a time, whether rows are kept or made again."""
        weights = self._encoder.weights_of(step)
        row = weights[0] * fresh
        for j in range(1, min(len(weights), step + 1)):
            row += weights[j] * (self._state[(step - j) % self._memory] if self._memory else self._fresh(step - j))
        return row

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
