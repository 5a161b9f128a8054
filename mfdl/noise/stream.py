"""The injected noise of one step, nu (N Z)_t, for all slots at once or for those of one node.

One stream serves every noise. Z is not stored but asked for: `base_of(columns)` yields the normals of some columns at
any step, a function of (column, step) alone, so a run can stop after any step and go on, nothing is replayed, nothing
is skipped, and step T of a T-step mechanism does not exist. It stands below the algorithms and knows of no secrets:
`mfdl.training` binds it to keys. Columns that no slot of a stream uses are dropped here, for every noise, never made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput
from .base import NoiseOperator
from .stepped import BaseNoise, SteppedRows, StreamState

BLOCK_STEPS = 32  # steps of correlated noise made per matrix product
BLOCK_BYTES = 2**28  # base noise of such a block at most, down to one step
KEEP_BYTES = 2**30  # base noise kept in memory up to this size; beyond, asked for again


class NoiseStream:
    """Injected noise step by step.

    Args:
        noise: N; noise_std: nu; dim: coordinates.
        base_of: the base noise of some columns of a step.
        tensor: which of several parameter tensors the noise is for; equal numbers would repeat it.
        slots: injection slots of a step, in the order wanted; default all.

    Raises: InvalidInput: no noise operator, noise_std below 0, dim below 1, a slot out of range or twice.
    Guarantees: every step is that of nu N Z, whichever steps were asked for before, bit for bit; a row computed with
        few slots has the bits of the row computed with all where noise is fresh, and equals it to rounding otherwise.
    Memory: for noise correlated in time T columns dim base normals where they fit in KEEP_BYTES, else a few blocks of
        at most BLOCK_STEPS steps and BLOCK_BYTES, whatever T is; of an encoder with structure its `memory` rows, or
        none where they are base noise that KEEP_BYTES does not hold; for noise that is not made in blocks all rows
        besides; for fresh noise one step.
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
        causal = self._used.causal
        self._stepped = (
            None
            if self._base is None or causal is None or causal.in_blocks
            else SteppedRows(causal.encoder, self._base, (columns.size, dim), tensor, KEEP_BYTES)
        )
        a_step = 8 * max(columns.size, 1) * dim
        at_once = 1 if self._used.fresh or self._stepped else max(1, min(BLOCK_STEPS, BLOCK_BYTES // a_step))
        self._steps = at_once if silent or self._stepped or self._used.in_blocks else noise.num_steps
        keep = 1 < self._steps < noise.num_steps and a_step * noise.num_steps <= KEEP_BYTES
        self._kept: dict[int, FloatArray] | None = {} if keep else None
        self.release()

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
        """Drops the rows made last, which are kept to be asked for again; not where an encoder stands."""
        self._start, self._block = -1, np.zeros((0, 0, self.dim))

    def state(self) -> StreamState:
        """Where an encoder with structure stands after the last step asked for: `resume` goes on from it at once.

        It is made of the noise, as secret as the keys. For noise without such an encoder there is nothing in it.
        """
        return StreamState.nowhere() if self._stepped is None else self._stepped.state()

    def resume(self, state: StreamState) -> None:
        """Goes on from the `state` of a stream of the same noise, keys, tensor and sizes; the steps are the same.

        Raises: InvalidInput: a state of another stream.
        """
        check.instance(StreamState, state=state)
        if self._stepped is not None:
            self._stepped.resume(state)
            self.release()

    def _make(self, start: int, stop: int) -> FloatArray:
        """nu (N Z) of some steps, shape (steps, slots, dim)."""
        if self._base is None:
            return np.zeros((stop - start, self._used.slots_per_step, self.dim))
        if self._stepped is not None:
            return self.noise_std * np.ascontiguousarray(self._used.spread(self._stepped.row(start)[None]))
        made: FloatArray | None = None
        # In place where products are the library's own, which make new arrays: blocks of large models are slow to
        # allocate. What another noise returns may be base noise that is kept, or an array of its own.
        ours = self._used in (self._used.causal, self._used.joint)
        for begin in range(start if self._used.fresh else 0, stop, self._steps):
            end = min(begin + self._steps, self.noise.num_steps)
            added = self._used.over_time(slice(start, stop), slice(begin, end), self._normals(begin, end))
            made = added if made is None else np.add(made, added, out=made if ours else None)
        assert made is not None
        spread = np.ascontiguousarray(self._used.spread(made))
        return np.multiply(self.noise_std, spread, out=spread if ours else None)

    def _normals(self, start: int, stop: int) -> FloatArray:
        if self._kept is not None and start in self._kept:
            return self._kept[start]
        assert self._base is not None
        made = self._base.block(np.arange(start, stop), self.dim, tensor=self.tensor)
        if self._kept is not None:
            self._kept[start] = made
        return made


def _slots(noise: NoiseOperator, slots: Sequence[int]) -> list[int]:
    rows = [check.integer_at_least(0, slots=slot) for slot in check.listed("slots of a step, e.g. [0]", slots=slots)]
    if max(rows, default=0) >= noise.slots_per_step or len(set(rows)) != len(rows):
        raise InvalidInput(f"slots must be distinct and below {noise.slots_per_step}, got {rows}.")
    return rows
