"""Algorithms with the same maps up to constants on what enters, such as another learning rate or other divisors.

In: two algorithms. Out: the constants by which gradients and injected noise of one enter the other, or None. A run of
the one is then a run of the other with inputs multiplied by constants, so that one executor trains both.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from ..check import FloatArray
from ..operators.linear_recursions import Map
from .linear_algorithm import LinearAlgorithm

TOLERANCE = 1e-14
"""Relative, of the ratios of entries: rates and divisors are multiplied in any order."""


@dataclasses.dataclass(frozen=True, eq=False)
class InputScales:
    """What inputs are multiplied by.

    Attributes: gradient: for each node's gradients, shape (n,); noise: for each injection slot, shape (slots,).
    """

    gradient: FloatArray
    noise: FloatArray


def input_scales(algorithm: LinearAlgorithm, base: LinearAlgorithm) -> InputScales | None:
    """The constants with which `base` does what `algorithm` does; None where there are none.

    Every other map, the released model and the order of rounds must be equal. Momentum and weight decay put the rate
    into maps of the state, so algorithms with them agree at equal rates only. Noise operators are not compared: what
    they inject enters as it is.
    Cost: O(entries) of the distinct maps.
    """
    if not _same_recursion(algorithm, base):
        return None
    gradient, noise = _Ratios(base.sizes["nodes"]), _Ratios(base.sizes["injection slots"])
    for first, other in zip(algorithm.kinds, base.kinds, strict=True):
        state = ("message_from_state", "state_from_message", "state_from_state")
        fits = all(_equal(getattr(first, name), getattr(other, name)) for name in state)
        for ratios, source in ((gradient, "gradient"), (noise, "noise")):
            for name in (f"message_from_{source}", f"state_from_{source}"):
                fits = fits and ratios.take(getattr(first, name), getattr(other, name))
        if not fits:
            return None
    return InputScales(gradient.scales, noise.scales)


def _same_recursion(algorithm: LinearAlgorithm, base: LinearAlgorithm) -> bool:
    """Whether all but the maps from inputs, and those between states, are equal."""
    return (
        algorithm.sizes == base.sizes
        and algorithm.step_of_round == base.step_of_round
        and np.array_equal(algorithm.kind_of_round, base.kind_of_round)
        and algorithm.released == base.released
        and algorithm.noise_enters_with_gradients == base.noise_enters_with_gradients
        and all(
            _equal(getattr(algorithm, name), getattr(base, name))
            for name in ("model_from_state", "state_from_start", "released_by_gossip")
        )
    )


def _equal(first: Map, other: Map) -> bool:
    if first is None or other is None or first is other:
        return first is other
    return _same_places(first, other) and np.array_equal(first.data, other.data)


def _same_places(first: sp.csr_array, other: sp.csr_array) -> bool:
    same = first.shape == other.shape and np.array_equal(first.indptr, other.indptr)
    return same and np.array_equal(first.indices, other.indices)


class _Ratios:
    """The ratio of each column of maps of one algorithm to that of another, if it is a constant."""

    def __init__(self, size: int) -> None:
        self._of_column = np.full(size, np.nan)

    def take(self, scaled: Map, other: Map) -> bool:
        """Whether these maps agree with all others so far."""
        if scaled is None or other is None:
            return scaled is other
        if not _same_places(scaled, other):
            return False
        with np.errstate(all="ignore"):
            ratios = scaled.data / other.data
        first = np.isnan(self._of_column[other.indices])
        self._of_column[other.indices[first]] = ratios[first]
        wanted = self._of_column[other.indices]
        with np.errstate(invalid="ignore"):
            return bool((np.abs(ratios - wanted) <= TOLERANCE * np.abs(wanted)).all())

    @property
    def scales(self) -> FloatArray:
        """By column; 1 for columns that no map uses."""
        return np.where(np.isnan(self._of_column), 1.0, self._of_column)
