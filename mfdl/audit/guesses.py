"""Lower confidence bounds on privacy loss from guesses about many canaries of a single run.

In: m canaries, each included by a fair coin of its own, and an attacker who guesses r of the coins. Out: bounds on mu,
or on epsilon at delta, that exceed the truth with probability at most `failure`. Nothing is assumed of the noise.

Let f be a trade-off function of the mechanism for a change of any one canary, h(x) = 1 - f(x), N the number of right
guesses and p_j = P(N = j). The event "guess i is right and N >= k" becomes, if coin i alone is turned, "guess i is
wrong and N >= k - 1". So its probability is at most h of the latter's; the average over i and coins gives, as h is
concave,

    A_k = sum_{j >= k} (j / m) p_j  <=  h(B_{k-1}),    B_k = sum_{j >= k} ((r - j) / m) p_j.

If P(N >= v) = t, the least total probability that these inequalities allow has all of t at v, and B_{k-1} =
max(B_k, h^{-1}(A_k)) for k = v, ..., 1. Where that exceeds 1, no such mechanism has P(N >= v) >= t.
docs/howto_audit.md has the proof.

Source: Steinke, Nasr, Jagielski, arXiv:2305.08846 (one run); Mahloujifar, Melis, Chaudhuri, arXiv:2410.22235 (f-DP).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from mfdl_solvers.ties import first_maximum

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput

ROUNDING = 1e-9  # by which the total must exceed 1; the recursion's rounding is below
GRID, ROUNDS = 33, 4  # each round narrows the bracket of a bound 32 times
MAX_LOSS = 64.0  # of mu and epsilon: more than any number of guesses shows

InverseBlowUp = Callable[[FloatArray, FloatArray], FloatArray]
"""h^{-1} of a family of trade-off functions: (losses, values y) -> the least x with h(x) >= y."""


def gaussian_inverse(mu: FloatArray, y: FloatArray) -> FloatArray:
    """h^{-1} of mu-Gaussian DP, h(x) = Phi(Phi^-1(x) + mu)."""
    return np.asarray(special.ndtr(special.ndtri(y) - mu))


def approximate_inverse(delta: float) -> InverseBlowUp:
    """h^{-1} of (epsilon, delta)-DP, h(x) = min(delta + e^epsilon x, 1 - e^-epsilon (1 - delta - x))."""

    def inverse(epsilon: FloatArray, y: FloatArray) -> FloatArray:
        by_slope = np.maximum(np.exp(-epsilon) * (y - delta), 1 - delta - np.exp(epsilon) * (1 - y))
        return np.maximum(0.0, by_slope)

    return inverse


@dataclasses.dataclass(frozen=True)
class Guesses:
    """What an attacker guessed in one run.

    Attributes: canaries: m, each with a fair coin of its own; guesses: r, fixed before the run; right: of the guesses.

    >>> round(Guesses(canaries=1000, guesses=250, right=214).mu(0.05), 2)  # of a truth of 1, at 95 %
    0.59
    """

    canaries: int
    guesses: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= check.integer_at_least(0, right=self.right) <= self.guesses <= self.canaries:
            raise InvalidInput(
                "right, guesses and canaries must satisfy 0 <= right <= guesses <= canaries, got "
                f"{self.right}, {self.guesses} and {self.canaries}."
            )

    def mu(self, failure: float) -> float:
        """The largest mu of Gaussian DP that these guesses refute, >= 0."""
        return self._largest_refuted(gaussian_inverse, failure)

    def epsilon(self, delta: float, failure: float) -> float:
        """The largest epsilon at delta that they refute, >= 0; it holds together with `mu`, of one failure."""
        return self._largest_refuted(approximate_inverse(check.open_unit(delta=delta)), failure)

    def refuted(self, losses: FloatArray, inverse: InverseBlowUp, failure: float) -> FloatArray:
        """Whether mechanisms of these losses have as many right guesses with a probability below `failure`; bool."""
        m, r, v = self.canaries, self.guesses, self.right
        A, B = np.full_like(losses, failure * v / m), np.full_like(losses, failure * (r - v) / m)
        for k in range(v, 0, -1):
            least = np.maximum(B, inverse(losses, np.minimum(A, 1.0)))
            A, B = A + (k - 1) / (r - k + 1) * (least - B), least
        return np.asarray((A + B) * m > r * (1 + ROUNDING))

    def _largest_refuted(self, inverse: InverseBlowUp, failure: float) -> float:
        failure = check.open_unit(failure=failure)
        if not self.right:
            return 0.0
        low, high = 0.0, MAX_LOSS
        for _ in range(ROUNDS):
            tried = np.linspace(low, high, GRID)
            refuted = self.refuted(tried, inverse, failure)
            if not refuted[0]:
                return 0.0
            if refuted.all():
                return high
            last = int(np.argmin(refuted)) - 1  # exact: booleans; a larger loss allows more
            low, high = float(tried[last]), float(tried[last + 1])
        return low


def best_number_of_guesses(canaries: int, mu: float, failure: float) -> int:
    """How many of m canaries to guess so that guesses at mu are expected to show most; m, m / 2, m / 4, ...

    Of the likelihood ratios of two normal distributions at distance mu, those are guessed that are furthest from 1.
    """
    counts = [canaries >> shift for shift in range(canaries.bit_length()) if canaries >> shift >= 8] or [canaries]
    return first_maximum(
        counts, lambda r: Guesses(canaries, r, math.floor(r * chance_of_right(r / canaries, mu))).mu(failure)
    )


def chance_of_right(share: float, mu: float) -> float:
    """Probability that a guess is right if the surest share is guessed, in (0, 1]; coins shift N(0, 1) by +-mu / 2.

    >>> round(chance_of_right(1.0, 1.0), 4)  # Phi(1 / 2)
    0.6915
    """
    low, high = 0.0, mu / 2 + 40.0
    for _ in range(100):
        middle = (low + high) / 2
        guessed = special.ndtr(mu / 2 - middle) + special.ndtr(-mu / 2 - middle)
        low, high = (middle, high) if guessed > share else (low, middle)
    right, wrong = special.ndtr(mu / 2 - low), special.ndtr(-mu / 2 - low)
    return float(right / (right + wrong))
