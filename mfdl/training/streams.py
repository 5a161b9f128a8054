"""Noise streams: the injected noise of one step, for all nodes at once.

Every stream computes rows of nu N Z, Z a function of (holders' key, index among their columns, step) alone
(`shared_randomness`), so a run can stop after any step and go on: nothing is replayed, nothing is skipped, and step T
of a T-step mechanism does not exist. `MaterialisedNoise` serves any noise operator; the others are special cases that
equal it. Base noise is always made on the CPU, so that every device trains with the same numbers.
"""

from __future__ import annotations

import abc

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..check import FloatArray
from ..errors import InvalidInput
from ..operators import IndependentNoise, JointNoise, LocalNoise, NoiseOperator, SpaceTimeNoise, StepNoise, ZeroNoise
from .keys import NoiseKey
from .shared_randomness import HolderKeys, base_columns

BLOCK_STEPS = 32  # steps of correlated noise made per matrix product
BLOCK_COORDINATES = 256
KEEP_BYTES = 2**30  # base noise kept in memory up to this size; beyond, regenerated from counters


class NoiseStream(abc.ABC):
    """Injected noise step by step.

    Args:
        key: root secret of a simulation, or the keys of all holder sets.
        tensor: which of several parameter tensors the noise is for; equal numbers would repeat it.
    """

    def __init__(
        self, noise: NoiseOperator, noise_std: float, key: NoiseKey | HolderKeys, dim: int, tensor: int = 0
    ) -> None:
        self.noise, self.noise_std, self.dim, self.tensor = noise, noise_std, dim, tensor
        self.keys = key if isinstance(key, HolderKeys) else HolderKeys.simulated(key)

    def step(self, t: int) -> FloatArray:
        """nu (N Z)_t, shape (injection slots, dim), float64.

        Raises: InvalidInput: t is not a step of the mechanism; noise for more steps was never calibrated.
        """
        if not 0 <= t < self.noise.num_steps:
            raise InvalidInput(
                f"step must lie in [0, {self.noise.num_steps}), got {t}: the mechanism was calibrated for "
                f"{self.noise.num_steps} steps and has no noise beyond; calibrate a longer one."
            )
        rows = self._rows(t)
        rows.setflags(write=False)  # it may be part of a cached block
        return rows

    @abc.abstractmethod
    def _rows(self, t: int) -> FloatArray: ...


class NoNoise(NoiseStream):
    """Zeros."""

    def _rows(self, t: int) -> FloatArray:
        return np.zeros((self.noise.slots_per_step, self.dim))


class IndependentStream(NoiseStream):
    """Fresh noise: N = I. State: none."""

    def __init__(
        self, noise: IndependentNoise, noise_std: float, key: NoiseKey | HolderKeys, dim: int, tensor: int = 0
    ) -> None:
        super().__init__(noise, noise_std, key, dim, tensor)
        self._base = base_columns(noise, self.keys)

    def _rows(self, t: int) -> FloatArray:
        return self.noise_std * self._base.step(t, self.dim, tensor=self.tensor)


class StepStream(NoiseStream):
    """N = I_T (x) F: nu F times the step's base noise. State: none.

    Only the columns that F uses are made, and each row is summed over its own columns in increasing order, so a row
    computed alone has the bits of the row computed with all others.
    """

    def __init__(
        self, noise: StepNoise, noise_std: float, key: NoiseKey | HolderKeys, dim: int, tensor: int = 0
    ) -> None:
        super().__init__(noise, noise_std, key, dim, tensor)
        factor = sp.csr_array(noise.factor, copy=True)
        factor.sum_duplicates()  # sorts the columns of each row
        factor.eliminate_zeros()
        used = np.unique(factor.indices)
        self._factor = sp.csr_array(factor[:, used])
        self._base = base_columns(noise, self.keys, used)

    def _rows(self, t: int) -> FloatArray:
        return self.noise_std * np.asarray(self._factor @ self._base.step(t, self.dim, tensor=self.tensor))


class CausalStream(NoiseStream):
    """Noise correlated in time: rows of a causal N times base noise, a block of steps per matrix product.

    Memory: T columns dim base normals when they fit in KEEP_BYTES; otherwise they are regenerated from the counters
    for every block, BLOCK_STEPS steps at a time.
    """

    def __init__(
        self, noise: NoiseOperator, noise_std: float, key: NoiseKey | HolderKeys, dim: int, tensor: int = 0
    ) -> None:
        super().__init__(noise, noise_std, key, dim, tensor)
        self._columns = base_columns(noise, self.keys, self._used())
        self._block_start = -1
        self._block: FloatArray | None = None
        keep = 8 * noise.num_steps * len(self._columns) * dim <= KEEP_BYTES
        self._kept: dict[int, FloatArray] | None = {} if keep else None

    def _used(self) -> NDArray[np.int64]:
        """Columns of a step that are made."""
        return np.arange(self.noise.columns_per_step)

    def _base(self, start: int, stop: int) -> FloatArray:
        if self._kept is not None and start in self._kept:
            return self._kept[start]
        made = self._columns.block(np.arange(start, stop), self.dim, tensor=self.tensor)
        if self._kept is not None:
            self._kept[start] = made
        return made

    def _rows(self, t: int) -> FloatArray:
        start = t - t % BLOCK_STEPS
        if self._block is None or start != self._block_start:
            self._block, self._block_start = self._make(start), start
        return self._block[t - start]

    @abc.abstractmethod
    def _make(self, start: int) -> FloatArray:
        """nu (N Z) of the steps from `start` to the end of its block, shape (steps, slots, dim), steps 0 .. of Z."""


class LocalStream(CausalStream):
    """N = blockdiag(C_u^-1)."""

    noise: LocalNoise

    def _make(self, start: int) -> FloatArray:
        T, n = self.noise.num_steps, self.noise.num_nodes
        stop = min(start + BLOCK_STEPS, T)
        out = np.zeros((stop - start, n, self.dim))
        inverse = self.noise.inverse
        for begin in range(0, stop, BLOCK_STEPS):
            end = min(begin + BLOCK_STEPS, T)
            base = self._base(begin, end)
            if self.noise.shared:
                out += (inverse[start:stop, begin:end] @ base.reshape(end - begin, -1)).reshape(out.shape)
            else:
                out += np.matmul(inverse[:, start:stop, begin:end], base.transpose(1, 0, 2)).transpose(1, 0, 2)
        out *= self.noise_std
        return out


class SpaceTimeStream(CausalStream):
    """N[(t, i), (s, k)] = F[i, k] E_k[t, s]: columns correlated over time, then spread over nodes by F.

    Only the columns that F uses are made.
    """

    noise: SpaceTimeNoise

    def _used(self) -> NDArray[np.int64]:
        factor = self.noise.factor
        return np.unique(factor.indices[factor.data != 0]).astype(np.int64)

    def _make(self, start: int) -> FloatArray:
        stop, used = min(start + BLOCK_STEPS, self.noise.num_steps), self._used()
        columns = np.zeros((used.size, stop - start, self.dim))
        E = self.noise.inverse
        E = E[None] if self.noise.shared else E[used]  # one for all columns, or one each
        for begin in range(0, stop, BLOCK_STEPS):
            end = min(begin + BLOCK_STEPS, self.noise.num_steps)
            columns += np.matmul(E[:, start:stop, begin:end], self._base(begin, end).transpose(1, 0, 2))
        mixed = np.asarray(self.noise.factor[:, used] @ columns.reshape(used.size, (stop - start) * self.dim))
        mixed *= self.noise_std
        return np.ascontiguousarray(mixed.reshape(-1, stop - start, self.dim).transpose(1, 0, 2))


class JointStream(CausalStream):
    """N = C^-1 over all of time x nodes."""

    noise: JointNoise

    def _make(self, start: int) -> FloatArray:
        T, n = self.noise.num_steps, self.noise.num_nodes
        stop = min(start + BLOCK_STEPS, T)
        out = np.zeros(((stop - start) * n, self.dim))
        for begin in range(0, stop, BLOCK_STEPS):
            end = min(begin + BLOCK_STEPS, T)
            rows = self.noise.inverse[start * n : stop * n, begin * n : end * n]
            out += rows @ self._base(begin, end).reshape(-1, self.dim)
        out *= self.noise_std
        return out.reshape(stop - start, n, self.dim)


class MaterialisedNoise(NoiseStream):
    """Any noise operator: nu N Z in blocks of coordinates, kept as (T, slots, dim).

    Memory: 8 (rows + columns) dim bytes.
    """

    def __init__(
        self, noise: NoiseOperator, noise_std: float, key: NoiseKey | HolderKeys, dim: int, tensor: int = 0
    ) -> None:
        super().__init__(noise, noise_std, key, dim, tensor)
        T = noise.num_steps
        Z = base_columns(noise, self.keys).block(np.arange(T), dim, tensor=tensor).reshape(-1, dim)
        rows = np.empty((noise.shape[0], dim))
        for begin in range(0, dim, BLOCK_COORDINATES):
            rows[:, begin : begin + BLOCK_COORDINATES] = noise @ Z[:, begin : begin + BLOCK_COORDINATES]
        self._all = (noise_std * rows).reshape(T, -1, dim)

    def _rows(self, t: int) -> FloatArray:
        return self._all[t]


def noise_stream(
    noise: NoiseOperator, noise_std: float, key: NoiseKey | HolderKeys, dim: int, tensor: int = 0
) -> NoiseStream:
    """The cheapest stream for a noise operator; every choice emits the same numbers up to rounding.

    Args: key: root secret of a simulation, from which `HolderKeys.simulated` derives that of every holder set; or the
        keys themselves.
    """
    if isinstance(noise, ZeroNoise) or noise_std == 0:
        return NoNoise(noise, noise_std, key, dim, tensor)
    if isinstance(noise, IndependentNoise):
        return IndependentStream(noise, noise_std, key, dim, tensor)
    if isinstance(noise, LocalNoise):
        return LocalStream(noise, noise_std, key, dim, tensor)
    if isinstance(noise, StepNoise):
        return StepStream(noise, noise_std, key, dim, tensor)
    if isinstance(noise, SpaceTimeNoise):
        return SpaceTimeStream(noise, noise_std, key, dim, tensor)
    if isinstance(noise, JointNoise):
        return JointStream(noise, noise_std, key, dim, tensor)
    return MaterialisedNoise(noise, noise_std, key, dim, tensor)
