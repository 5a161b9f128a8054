"""What searches over encoders of one form share: when they end, and what they found."""

from __future__ import annotations

import dataclasses

from ..encoders import Encoder
from ..problem import Array

SETTLED, WITHIN = 1e-8, 10  # a search ends once the logarithm of the loss fell by less in so many iterations


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """An encoder of its form, and the iterations that it took."""

    encoder: Encoder
    iterations: int


class Settled:
    """Ends a search whose value hardly falls."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, iteration: int, x: Array, value: float, gradient: Array) -> bool:
        self.values.append(value)
        return len(self.values) > WITHIN and self.values[-1 - WITHIN] - value < SETTLED
