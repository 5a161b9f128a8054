"""Secret random batches: which steps a record joins is drawn, and the draws are part of what protects it.

There are no public patterns, so nothing that maximises over patterns applies: everything that asks for them is refused
in words. What accounts for the draws is `mfdl.privacy.sampled_exposures`; a further scheme is a subclass of `Sampled`.
"""

from __future__ import annotations

import abc
import dataclasses

from mfdl_solvers.pattern_sets import PatternSet

from .. import check
from ..errors import UnsupportedMechanism
from ..storable import storable
from .schemes import SCHEMES, Cyclic, Participation


class Sampled(Participation):
    """A participation that is drawn secretly: it has no patterns that anybody may know."""

    secret = True
    in_every_step = False

    def patterns_of_record(self) -> PatternSet:
        """Refused by UnsupportedMechanism: always."""
        raise self.refusal()

    @property
    @abc.abstractmethod
    def expected_rate(self) -> float:
        """The share of a node's records that joins a step, on average: public, and what batches are divided by."""

    def refusal(self) -> UnsupportedMechanism:
        """What everything that needs public patterns says."""
        return UnsupportedMechanism(
            f"{self.describe()} has no public patterns. Amplification by sampling is proven only for "
            "noise that is fresh in every step, with every message seen; account for it with "
            "mfdl.account or mfdl.calibrate, or take a public scheme such as Cyclic(epochs, period)."
        )


@storable
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

    @property
    def expected_rate(self) -> float:
        return self.rate

    def describe(self) -> str:
        return f"Poisson sampling (rate={self.rate:g}, {self.steps} steps)"

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "rate": self.rate, "steps": self.steps}


@storable
@SCHEMES.register(called={"bins": "period"})
@dataclasses.dataclass(frozen=True)
class BallsInBins(Sampled):
    """Each record draws one of `bins` bins, uniformly, secretly, once for the run; bin r takes part in t = r mod bins.

    Batches have random sizes, which stay secret: sums are divided by the public constant (records of the node) / bins.
    Where the map from records to steps is public the scheme is `Cyclic(epochs, bins)`, and protects less.

    Attributes: epochs: k >= 1, how often each record takes part; bins: b >= 1, steps per epoch.

    >>> BallsInBins(epochs=20, bins=16).describe()
    'balls-in-bins (epochs=20, bins=16)'
    """

    epochs: int
    bins: int
    scheme = "balls-in-bins"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epochs", check.integer_at_least(1, epochs=self.epochs))
        object.__setattr__(self, "bins", check.integer_at_least(1, bins=self.bins))

    @property
    def num_steps(self) -> int:
        return self.epochs * self.bins

    @property
    def num_bins(self) -> int:
        return self.bins

    @property
    def public(self) -> Cyclic:
        """The same participation with public bins (`Cyclic`). Encoders are optimised for it."""
        return Cyclic(epochs=self.epochs, period=self.bins)

    @property
    def expected_rate(self) -> float:
        return 1 / self.bins

    def describe(self) -> str:
        return f"balls-in-bins (epochs={self.epochs}, bins={self.bins})"

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "epochs": self.epochs, "bins": self.bins}

    def refusal(self) -> UnsupportedMechanism:
        return UnsupportedMechanism(
            f"{self.describe()} has no public patterns and no mu: its guarantee is epsilon at delta, from mfdl.account "
            "or mfdl.calibrate(..., epsilon=, delta=). The encoder made for it is mafalda-bins, by "
            "mfdl.calibrate_named; one for Cyclic(epochs, bins) can be used too, and may leave more noise than "
            "independent noise does."
        )
