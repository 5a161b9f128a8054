"""What one victim loses: a number for non-adaptive gradients, one for adaptive gradients, and why.

`sensitivity_squared` is that of the linear view, for gradients that are functions of the data alone.
`adaptive_sensitivity_squared` holds for adaptive gradients, as in training; `adaptive_by` says by which rule
(`attacking_sets`).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Self

from mfdl_solvers.ties import first_largest

from .. import check
from ..display import short_repr
from . import gaussian
from .forms import INJECTIONS
from .gram_sensitivity import Sensitivity
from .owners import Victim
from .questions import Fingerprint

if TYPE_CHECKING:
    from .curves import PrivacyCurve
    from .questions import Privacy, Target


THE_VIEW = "the view"
SHIFT_REDUCTION = "shift reduction"
ALL_MESSAGES = "all messages seen"
MOST_SHOWN = ("not applicable", "none", "average", "all")
ADAPTIVE_BY = (THE_VIEW, SHIFT_REDUCTION, ALL_MESSAGES, INJECTIONS)
_RULES = {
    ALL_MESSAGES: """gradients depend on noise that this attacker does not see, so the number is the one for the
        same attackers if they see every message. For plain gossip whose local maps have a public Lipschitz constant,
        lipschitz=L can give a smaller number by shift reduction""",
    INJECTIONS: """even if every message is seen, gradients depend on unseen noise, so every injected sum (gradient
        plus noise) is assumed to be seen. The number is exact if the messages determine these sums""",
    SHIFT_REDUCTION: """messages are hidden and gradients are adaptive, so the number comes from shift reduction with
        the given Lipschitz constant. A smaller constant gives a smaller number""",
}


@dataclasses.dataclass(frozen=True)
class VictimSensitivity:
    """What one victim loses, per unit record shift and unit noise: two sensitivities, and what they are about.

    Attributes:
        non_adaptive_sensitivity: for non-adaptive gradients; adaptive_sensitivity: for gradients chosen adaptively.
            Either may be infinite.
        adaptive: whether the first already holds for adaptive gradients.
        adaptive_by: where the second comes from, one of ADAPTIVE_BY.
        attacker: who attains the first number; release: which final models the view holds.
        unit: "record" or "user"; fingerprint: of the question this answers; a copy with other fields has none.
        lipschitz: the constant that the second number, or one that it is the worst of, rests on, if any; of constants
            for single steps the smallest.
    """

    __repr__ = short_repr

    non_adaptive_sensitivity: Sensitivity
    adaptive_sensitivity: Sensitivity
    adaptive: bool
    adaptive_by: str
    attacker: str
    release: str
    unit: str = "record"
    lipschitz: float | None = None
    fingerprint: Fingerprint | None = dataclasses.field(default=None, init=False)

    @property
    def victim(self) -> Victim:
        """Node index, or those of the owners of one record."""
        return self.non_adaptive_sensitivity.node

    @property
    def node(self) -> int:
        """The victim, of records that one node holds."""
        assert isinstance(self.victim, int)
        return self.victim

    @property
    def sensitivity_squared(self) -> float:
        """For non-adaptive gradients; may be inf."""
        return self.non_adaptive_sensitivity.squared

    @property
    def adaptive_sensitivity_squared(self) -> float:
        """For gradients chosen adaptively; may be inf."""
        return self.adaptive_sensitivity.squared

    @property
    def bound(self) -> str:
        """ "exact" or "upper", of `sensitivity_squared`."""
        return self.non_adaptive_sensitivity.bound

    @property
    def adaptive_bound(self) -> str:
        """ "exact" or "upper", of `adaptive_sensitivity_squared`."""
        return self.adaptive_sensitivity.bound

    @property
    def adaptive_why(self) -> str:
        """What makes the second number infinite, if not the first."""
        return "" if self.adaptive else self.adaptive_sensitivity.why

    def number(self, *, adaptive: bool = True) -> Sensitivity:
        """The number for adaptive gradients, or for non-adaptive ones."""
        return self.adaptive_sensitivity if check.flag(adaptive=adaptive) else self.non_adaptive_sensitivity

    def mu(self, *, record_shift: float, noise_std: float, adaptive: bool = True) -> float:
        """The Gaussian DP parameter, rounded up; inf without noise."""
        return gaussian.mu_from_noise_std(self.number(adaptive=adaptive).value, record_shift, noise_std)

    def answering(self, fingerprint: Fingerprint | None) -> Self:
        """The same as the answer to this question: for those who computed it."""
        answer = copy.copy(self)
        object.__setattr__(answer, "fingerprint", fingerprint)
        return answer

    def raised_to(self, largest: Sensitivity, *, adaptive: bool = True) -> Self:
        """The same with a number that ties with its own, and the same fingerprint; see `Sensitivity.raised_to`."""
        number = self.number(adaptive=adaptive).raised_to(largest)
        if number is self.number(adaptive=adaptive):
            return self
        fixed = number if self.adaptive or not adaptive else self.non_adaptive_sensitivity
        in_training = number if self.adaptive or adaptive else self.adaptive_sensitivity
        raised = dataclasses.replace(self, non_adaptive_sensitivity=fixed, adaptive_sensitivity=in_training)
        return raised.answering(self.fingerprint)

    # ---- what noise makes of it ----------------------------------------------------------------------------------

    retry_step = 2.0**-52
    """By what share calibration adds noise where the target is still missed: here by rounding only."""

    def sensitivity(self, *, adaptive: bool = True) -> float:
        """The L2 sensitivity per unit record shift and unit noise, rounded up; may be inf."""
        return self.number(adaptive=adaptive).value

    def curve(self, privacy: Privacy, noise_std: float, *, adaptive: bool = True, tries: int = 0) -> PrivacyCurve:
        """What is lost to base noise of this standard deviation.

        Args: tries: how often fresh samples were drawn before; of numbers by samples only.
        """
        from .curves import Gaussian

        mu = self.mu(record_shift=privacy.record_shift, noise_std=noise_std, adaptive=adaptive)
        return Gaussian(mu, privacy.adjacency, self.number(adaptive=adaptive).bound)

    def least_noise(self, privacy: Privacy, target: Target, *, adaptive: bool = True) -> float:
        """The least standard deviation that meets a target, but for rounding. Raises: InvalidInput: an infinite one."""
        return gaussian.noise_std(1 / target.largest_mu, self.sensitivity(adaptive=adaptive), privacy.record_shift)

    def explanation(self, *, adaptive: bool = True, victim: str = "") -> str:
        """Why the number is what it is: the rule that gave an upper bound or none, and what would give a better one.

        Empty where the number is exact. Args: victim: in words, named where the number is infinite.
        """
        number = self.number(adaptive=adaptive)
        if math.isinf(number.squared):
            reason = (adaptive and self.adaptive_why) or self.non_adaptive_sensitivity.why or "no rule covers this view"
            return f"No finite number: {reason}{victim and f' ({victim})'}."
        if number.bound == "exact":
            return ""
        if not adaptive or self.adaptive:
            return f"Upper bound: {self.non_adaptive_sensitivity.why}." if self.non_adaptive_sensitivity.why else ""
        non_adaptive = ""
        if self.sensitivity_squared < number.squared:
            share = math.sqrt(self.sensitivity_squared / number.squared)
            non_adaptive = f"; for non-adaptive gradients mu is {share:.3g} times that"
        rule = _RULES.get(self.adaptive_by) or self.adaptive_why or "bounds do not meet"
        return f"Upper bound: {' '.join(rule.split())}{non_adaptive}."


def pointwise_worst(a: VictimSensitivity, b: VictimSensitivity) -> VictimSensitivity:
    """The pointwise worst of two attacking sets, `a` where they tie, which names the most that either is shown."""
    first, second = worst_loss([a, b], adaptive=False), worst_loss([a, b])
    return dataclasses.replace(
        first,
        adaptive_sensitivity=second.adaptive_sensitivity,
        adaptive_by=second.adaptive_by,
        adaptive=a.adaptive and b.adaptive,
        release=max(a.release, b.release, key=MOST_SHOWN.index),  # exact: a place in a tuple
        lipschitz=b.lipschitz if a.lipschitz is None else a.lipschitz,
    )


def worst_loss(losses: Sequence[VictimSensitivity], *, adaptive: bool = True) -> VictimSensitivity:
    """The first of the losses whose number is the largest up to rounding, raised to it, so that no loss is larger."""
    numbers = [loss.number(adaptive=adaptive) for loss in losses]
    largest = max(numbers, key=attrgetter("squared"))  # bound
    if largest is numbers[0]:  # the usual case of two attacking sets, of which there are many
        return losses[0]
    return losses[first_largest([number.squared for number in numbers])].raised_to(largest, adaptive=adaptive)


def worst_adaptive(losses: Sequence[VictimSensitivity]) -> Sensitivity:
    """The largest adaptive number as a Sensitivity: what calibration and training use."""
    return worst_loss(losses).adaptive_sensitivity
