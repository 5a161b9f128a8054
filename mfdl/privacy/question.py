"""What a privacy number is computed for: the question about an algorithm, and the target that noise must meet."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .. import check
from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput, UnsupportedMechanism, require_known
from ..participation import Participation
from ..trust import TrustModel
from ..view import View
from . import gaussian
from .guarantee import UNITS

if TYPE_CHECKING:
    from .curves import MonteCarlo, PrivacyCurve

BOUNDS = ("tightest", "renyi")


@dataclasses.dataclass(frozen=True)
class Question:
    """What a privacy number is computed for.

    Attributes:
        trust: who sees and knows what.
        adjacency: "zero-out", "add-remove" or "replace-one".
        clip_norm: bound on the norm of one record's gradient, or of a node's mean gradient at user level, > 0.
        participation: default the algorithm's own; with one per node, each victim is held to its own. Left out with
            secret batches.
        release: "none", "average" or "all" final models published, where messages are hidden; default the trust
            model's own, `trust.default_release`. Left out with secret batches, whose every message counts as seen.
        unit: "record", or "user" for all data of a node, which needs participation in every step.
        method: "exact" or "certified" (fast upper bound); with balls-in-bins also "monte-carlo" or a `MonteCarlo`.
        lipschitz: L of the local gradient maps, for shift reduction where the view alone is not adaptive; with
            unit "record" only.
    """

    trust: TrustModel
    adjacency: str
    clip_norm: float
    participation: Participation | None = None
    release: str | None = None
    unit: str = "record"
    method: str | MonteCarlo = "exact"
    lipschitz: float | None = None

    @property
    def record_shift(self) -> float:
        """How far one record moves a sum of clipped gradients. Raises: InvalidInput: adjacency or clip_norm."""
        return gaussian.record_shift(self.adjacency, self.clip_norm)

    def scheme(self, algorithm: LinearAlgorithm | View) -> Participation:
        """The participation of the question, public or secret.

        Raises: InvalidInput: either is none, or a view whose participation is not given.
        """
        if self.participation is None:
            if isinstance(algorithm, View):
                raise InvalidInput(
                    "participation must be given beside a View, e.g. participation=mfdl.EveryStep(T): matrices do not "
                    "say which steps a record joins."
                )
            check.instance(LinearAlgorithm, algorithm=algorithm)
            return algorithm.participation
        check.instance(Participation, participation=self.participation)
        return self.participation

    def participation_in(self, algorithm: LinearAlgorithm) -> Participation:
        """The same where it has public patterns. Raises: UnsupportedMechanism: it has none."""
        scheme = self.scheme(algorithm)
        scheme.require_public()
        return scheme


@dataclasses.dataclass(frozen=True)
class Target:
    """What calibrated noise must meet: a mu, or an epsilon at a delta.

    Attributes: mu > 0, or epsilon > 0 and delta in (0, 1); by: which bounds choose the noise of Poisson sampling.

    Raises: InvalidInput: none or two targets, or a number out of range.
    """

    mu: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    by: str = "tightest"

    def __post_init__(self) -> None:
        require_known("by", self.by, BOUNDS)
        if (self.mu is None) == (self.epsilon is None):
            raise InvalidInput("give exactly one target: mu, or epsilon with delta.")
        if self.mu is not None:
            check.positive(mu=self.mu)
            return
        if self.delta is None:
            raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-6.")
        check.positive(epsilon=self.epsilon)
        check.open_unit(delta=self.delta)

    @property
    def largest_mu(self) -> float:
        """The largest mu of a Gaussian mechanism that meets it."""
        if self.mu is not None:
            return float(self.mu)
        assert self.epsilon is not None
        assert self.delta is not None
        return gaussian.mu_from_epsilon(float(self.epsilon), float(self.delta))

    def missed_by(self, curve: PrivacyCurve) -> bool:
        """Whether the curve loses more than this."""
        if self.epsilon is not None and self.delta is not None and curve.epsilon(self.delta) > self.epsilon:
            return True
        if curve.mu is None and self.epsilon is None:
            raise UnsupportedMechanism("this privacy curve is not Gaussian, so it has no mu; give epsilon and delta.")
        return curve.mu is not None and curve.mu > self.largest_mu


def require_noise(noise_std: float | None, noise_multiplier: float | None) -> None:
    """Raises: InvalidInput: none or two, or one out of range."""
    if (noise_std is None) == (noise_multiplier is None):
        raise InvalidInput("give exactly one of noise_std and noise_multiplier.")
    for name, value in (("noise_std", noise_std), ("noise_multiplier", noise_multiplier)):
        if value is not None:
            check.non_negative(**{name: value})


def require_unit(unit: str, participation: Participation, *, lipschitz: float | None = None) -> None:
    """Refuses a unit of privacy that these circumstances cannot protect; "record" is never refused.

    Args: lipschitz: the constant that a guarantee would rest on; bounded for sums of clipped per-record gradients
        only, as the clipped mean of a node is another map.

    Raises: InvalidInput: an unknown unit; "user" where not every step is one of the user's, or with `lipschitz`.
    """
    require_known("unit", unit, UNITS)
    if unit == "record":
        return
    check.instance(Participation, participation=participation)
    if not participation.in_every_step:
        raise InvalidInput(
            f"unit 'user' needs participation in every step, got {participation.describe()}: a user's data take part "
            f"in every step; build the algorithm with EveryStep({participation.num_steps})."
        )
    if lipschitz is not None:
        raise InvalidInput(
            f"unit 'user' cannot rest on lipschitz={lipschitz!r}: the constant is one of local maps with per-record "
            "clipping, and a clipped mean gradient is another map; leave lipschitz out."
        )
