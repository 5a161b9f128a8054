"""Secret random batches: which steps a record joins is drawn, and the draws are part of what protects it.

There are no public patterns: what needs them is refused. `mfdl.privacy.sampled_exposures` accounts for the draws; a
further scheme is a subclass of `Sampled`.
"""

from __future__ import annotations

import abc
import dataclasses

from mfdl_solvers.pattern_sets import PatternSet

from .. import check
from ..errors import InvalidInput, UnsupportedMechanism
from ..spec import storable
from .schemes import (
    SCHEMES,
    Cyclic,
    EpochScheme,
    MinSeparation,
    NumberedScheme,
    OncePerEpoch,
    Participation,
    StepScheme,
)


class Sampled(Participation):
    """A participation that is drawn secretly: it has no public patterns."""

    secret = True
    in_every_step = False

    def patterns_of_record(self) -> PatternSet:
        raise self.refusal()

    @property
    @abc.abstractmethod
    def expected_rate(self) -> float:
        """The share of a node's records that joins a step, on average: public, and what batches are divided by."""

    def refusal(self) -> UnsupportedMechanism:
        return UnsupportedMechanism(
            f"{self.describe()} has no public patterns and no mu: its guarantee is epsilon at delta, from mfdl.account "
            f"or mfdl.calibrate(..., epsilon=, delta=){self.limits}. Encoders are optimised for a public scheme such "
            "as Cyclic(epochs, period)."
        )

    limits = ""  # what of the guarantee ends where noise is correlated in time, for `refusal`


@storable
@dataclasses.dataclass(frozen=True)
class PoissonSampling(NumberedScheme, Sampled):
    """Each record joins each step with probability `rate`, by secret draws, independent over records and steps.

    Sums are divided by the public constant rate * (records of the node), as batch sizes stay secret.

    >>> PoissonSampling(rate=0.01, steps=1000).describe()
    'Poisson sampling (rate=0.01, 1000 steps)'
    """

    rate: float
    steps: int
    scheme = "poisson"
    limits = ", for noise that is fresh in every step and with every message seen"

    def __post_init__(self) -> None:
        if self.rate == 1:
            raise InvalidInput(f"rate must be below 1, got 1; a record in every step is EveryStep({self.steps}).")
        super().__post_init__()

    @property
    def num_steps(self) -> int:
        return self.steps

    @property
    def expected_rate(self) -> float:
        return self.rate

    def describe(self) -> str:
        return f"Poisson sampling (rate={self.rate:g}, {self.steps} steps)"


@storable
@SCHEMES.register(called={"bins": "period"})
@dataclasses.dataclass(frozen=True)
class BallsInBins(NumberedScheme, Sampled):
    """Each record draws one of `bins` bins, uniformly, secretly, once for the run; bin r takes part in t = r mod bins.

    Sums are divided by the public constant (records of the node) / bins, as batch sizes stay secret. Where the map from
    records to steps is public the scheme is `Cyclic(epochs, bins)`, and protects less.

    >>> BallsInBins(epochs=20, bins=16).describe()
    'balls-in-bins (epochs=20, bins=16)'
    """

    epochs: int
    bins: int
    scheme = "balls-in-bins"

    @property
    def num_steps(self) -> int:
        return self.epochs * self.bins

    @property
    def num_bins(self) -> int:
        return self.bins

    @property
    def public(self) -> Cyclic:
        return Cyclic(epochs=self.epochs, period=self.bins)

    @property
    def expected_rate(self) -> float:
        return 1 / self.bins

    def describe(self) -> str:
        return f"balls-in-bins (epochs={self.epochs}, bins={self.bins})"

    def refusal(self) -> UnsupportedMechanism:
        return UnsupportedMechanism(
            f"{self.describe()} has no public patterns and no mu: its guarantee is epsilon at delta, from mfdl.account "
            "or mfdl.calibrate(..., epsilon=, delta=). The encoder made for it is mafalda-bins, by "
            "mfdl.calibrate('mafalda-bins', privacy, dynamics=...); one for Cyclic(epochs, bins) can be used too, and "
            "may leave more noise than independent noise does."
        )


@storable
@SCHEMES.register()
@dataclasses.dataclass(frozen=True)
class CyclicPoisson(EpochScheme, Sampled):
    """Each record has one step of every epoch, as in `Cyclic`, and joins it with probability `rate`, secretly.

    Record r of a node has the steps t = r mod period: that is public. Where columns of the encoder that are `period`
    apart do not overlap the loss is that of Poisson sampling over as many steps as epochs (arXiv:2306.08153).
    """

    rate: float
    scheme = "cyclic-poisson"

    @property
    def public(self) -> Cyclic:
        return Cyclic(epochs=self.epochs, period=self.period)

    @property
    def expected_rate(self) -> float:
        return self.rate / self.period

    def describe(self) -> str:
        return f"cyclic Poisson sampling (epochs={self.epochs}, period={self.period}, rate={self.rate:g})"


@storable
@SCHEMES.register()
@dataclasses.dataclass(frozen=True)
class RandomAllocation(EpochScheme, Sampled):
    """Each record joins one uniform step of each epoch, by secret draws, independent over records and epochs.

    It is balls-in-bins with bins drawn anew for each epoch. With `per_epoch=False` a record joins `epochs` of all
    steps, uniformly without replacement (arXiv:2502.08202; balanced iteration subsampling in arXiv:2605.07072).
    """

    per_epoch: bool = True
    scheme = "random-allocation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.instance(bool, per_epoch=self.per_epoch)

    @property
    def public(self) -> Participation:
        if self.per_epoch:
            return OncePerEpoch(epochs=self.epochs, period=self.period)
        return MinSeparation(steps=self.num_steps, max_participations=self.epochs, separation=1)

    @property
    def expected_rate(self) -> float:
        return 1 / self.period

    def describe(self) -> str:
        if self.per_epoch:
            return f"random allocation (epochs={self.epochs}, period={self.period})"
        return f"random allocation ({self.epochs} of {self.num_steps} steps)"

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "per_epoch": self.per_epoch}


@storable
@SCHEMES.register(called={"separation": "period"})
@dataclasses.dataclass(frozen=True)
class MinSeparationSampling(StepScheme, Sampled):
    """Each record joins a step with probability `rate` unless it joined in the last `separation` - 1 steps, secretly.

    At the start a record waits w steps, w = 1, .., separation - 1 with probability rate / (1 + (separation - 1) rate)
    each, else 0: expected batch sizes are equal. It is b-min-sep subsampling with a warm start (arXiv:2602.09338,
    Algorithm 2).

    >>> MinSeparationSampling(steps=320, separation=16, rate=0.2).expected_rate
    0.05
    """

    separation: int
    rate: float
    scheme = "min-separation-sampling"

    @property
    def public(self) -> MinSeparation:
        return MinSeparation(
            steps=self.steps, max_participations=-(-self.steps // self.separation), separation=self.separation
        )

    @property
    def expected_rate(self) -> float:
        return self.rate / (1 + (self.separation - 1) * self.rate)

    def describe(self) -> str:
        return f"minimum separation sampling ({self.steps} steps, separation={self.separation}, rate={self.rate:g})"
