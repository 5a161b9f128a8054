"""Secret random batches: which steps a record joins is drawn, and the draws are part of what protects it.

There are no public patterns, so nothing that maximises over patterns applies: everything that asks for them is refused
in words. What accounts for the draws is `mfdl.sampled`; a further scheme is a further subclass of `Sampled`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from .. import check
from ..errors import UnsupportedMechanism
from .schemes import Participation, Pattern


class Sampled(Participation):
    """A participation that is drawn secretly: it has no patterns that anybody may know."""

    secret = True

    @property
    def num_patterns(self) -> int:
        """Refused by UnsupportedMechanism: always."""
        raise self.refusal()

    def patterns(self) -> Iterator[Pattern]:
        """Refused by UnsupportedMechanism: always."""
        raise self.refusal()

    def allows(self, steps: Sequence[int]) -> bool:
        """Refused by UnsupportedMechanism: always."""
        raise self.refusal()

    def refusal(self) -> UnsupportedMechanism:
        """What everything that needs public patterns says."""
        return UnsupportedMechanism(
            f"{self.describe()} has no public patterns, and sampling amplifies only what is proven: noise that is "
            "fresh in every step, with every message seen; account for it with mfdl.sampled.account or "
            "mfdl.sampled.calibrate, or take a public scheme such as Cyclic(epochs, period)."
        )


@dataclasses.dataclass(frozen=True)
class PoissonSampling(Sampled):
    """Each record joins each step with probability `rate`, by secret draws, independent over records and steps.

    Batches have random sizes, which stay secret: sums are divided by the public constant rate * (records of the node).

    Attributes: rate: q in (0, 1); steps: T >= 1.

    >>> PoissonSampling(rate=0.01, steps=1000).describe()
    'Poisson sampling (rate=0.01, 1000 steps)'
    """

    rate: float
    steps: int
    scheme = "poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check.open_unit(rate=self.rate))
        object.__setattr__(self, "steps", check.integer_at_least(1, steps=self.steps))

    @property
    def num_steps(self) -> int:
        return self.steps

    def describe(self) -> str:
        return f"Poisson sampling (rate={self.rate:g}, {self.steps} steps)"

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "rate": self.rate, "steps": self.steps}
