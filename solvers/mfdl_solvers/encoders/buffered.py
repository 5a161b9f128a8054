"""Buffered linear Toeplitz encoders (BLT): coefficients that are sums of a few exponentials."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..arithmetic import UNIT, Array
from ..problem import ProblemError
from ._rows import own_numbers
from .coefficients import Coefficients
from .toeplitz_encoder import Toeplitz, convolved


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Buffered(Toeplitz):
    """C[t, t] = diagonal, C[t, s] = diagonal * sum_i scales[i] decays[i]^(t - s - 1) below it.

    Its noise takes one buffer for each exponential, whatever T is.

    Attributes: scales, decays: shape (d,), |decay| <= 1; size: T; diagonal: > 0.
    Raises: ProblemError: numbers that are not finite or of different lengths, a decay outside [-1, 1], T < 1.
    Source: arXiv:2404.16706 (BLT), arXiv:2408.08868 (over several participations).

    >>> Buffered([0.5], [0.5], size=3).dense().tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """

    coefficients: Array = dataclasses.field(init=False, repr=False)
    scales: Array | Sequence[float] = ()
    decays: Array | Sequence[float] = ()
    diagonal: float = 1.0

    def __init__(
        self, scales: Array | Sequence[float], decays: Array | Sequence[float], size: int, diagonal: float = 1.0
    ) -> None:
        arrays = {"scales": own_numbers("scales", scales, 1), "decays": own_numbers("decays", decays, 1)}
        if arrays["scales"].shape != arrays["decays"].shape:
            raise ProblemError(
                f"decays must be one for each scale, got {arrays['decays'].size} for {arrays['scales'].size} scales."
            )
        if (np.abs(arrays["decays"]) > 1).any():
            raise ProblemError(f"decays must lie in [-1, 1], got {np.abs(arrays['decays']).max():g} in size.")
        for name, value in {**arrays, "size": size, "diagonal": float(diagonal)}.items():
            object.__setattr__(self, name, value)
        with np.errstate(over="ignore"):  # refused as any other coefficient
            object.__setattr__(self, "coefficients", diagonal * _series(arrays["scales"], arrays["decays"], size))
        super().__post_init__()

    def certified_series(self) -> Coefficients | None:
        if not self.shipped:
            return None
        scales, decays = self._numbers
        absolute = Buffered(np.abs(scales), np.abs(decays), self.size, self.diagonal).series
        return Coefficients(self.series, 4 * (len(scales) + 8) * UNIT * absolute)

    @property
    def memory(self) -> int:
        return len(self.scales)

    def step_rounding(self, x: Array) -> Array:
        """A buffer is rounded twice in each step, so that what it holds of a row j steps back has lost 2 j units, and
        buffers that cancel in C are rounded one by one.
        """
        scales, decays = np.abs(self._numbers)
        units = 2 * np.arange(self.size) + len(scales) + 4
        return convolved(self.diagonal * units * _series(scales, decays, self.size), x)

    @cached_property
    def _numbers(self) -> tuple[Array, Array]:
        return np.asarray(self.scales), np.asarray(self.decays)

    def advance(self, step: int, state: Array, fresh: Array) -> Array:
        scales, decays = self._numbers
        row = fresh / self.diagonal - np.tensordot(scales, state, 1)
        state *= decays.reshape(-1, *[1] * (state.ndim - 1))
        state += row
        return row

    def scaled(self, factor: float) -> Buffered:
        return Buffered(self.scales, self.decays, self.size, factor * self.diagonal)

    def leading(self, size: int) -> Buffered:
        return Buffered(self.scales, self.decays, size, self.diagonal)


def _series(scales: Array, decays: Array, size: int) -> Array:
    """1, sum_i scales[i], sum_i scales[i] decays[i], ..."""
    series = np.zeros(max(size, 1))
    series[0] = 1.0
    ages = np.arange(max(size - 1, 0))
    for scale, decay in zip(scales, decays, strict=True):
        series[1:] += scale * decay**ages
    return series
