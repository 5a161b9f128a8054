"""Sensitivity of a view Gram under a participation scheme: a certified upper bound, exact where it can be.

For one pattern pi, max over ||g_t|| <= 1 of sum_{s,t in pi} X[s,t] <g_s, g_t> is at most sum |X[s,t]|, with
equality when X >= 0 on pi or when flipping signs of some steps makes it so, and at most |pi| lambda_max(X_pi).
The smaller of the two is returned, rounded up by the rounding error of X and of the sums.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput
from ..operators import LocalNoise
from ..participation import Participation, Pattern
from ..trust import TrustModel
from .view_gram import UNIT, ViewGram, view_gram


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """How far one record moves the view, per unit record shift and unit noise.

    Attributes:
        squared: sens^2, never below the truth; may be inf.
        exact: True if `squared` is the true value up to `tolerance`, False if it is only an upper bound.
        pattern: the steps that attain it.
        node: index of the node that holds the record.
        tolerance: relative rounding slack included in `squared`.
    """

    squared: float
    exact: bool
    pattern: tuple[int, ...]
    node: int
    tolerance: float

    @property
    def value(self) -> float:
        """sens, rounded up."""
        return math.inf if math.isinf(self.squared) else math.nextafter(math.sqrt(self.squared), math.inf)


def sensitivity_of_gram(gram: ViewGram, participation: Participation, *, node: int = 0) -> Sensitivity:
    """The largest certified bound over the patterns of one node.

    Guarantees: never below the true value; exact (up to `tolerance`) when X >= 0 on the worst pattern up to signs.
    Raises: InvalidInput: a participation with another number of steps.
    Cost: O(sum over patterns of |pi|^3).
    """
    if participation.num_steps != len(gram.matrix):
        raise InvalidInput(
            f"participation must have the mechanism's {len(gram.matrix)} steps, got {participation.num_steps} "
            f"({participation.describe()}); patterns of another length miss steps that a record can join."
        )
    worst = Sensitivity(-1.0, True, (), node, 0.0)
    for pattern in participation.patterns():
        squared, exact, slack = _pattern_bound(gram, pattern)
        if squared > worst.squared:
            worst = Sensitivity(squared, exact, tuple(int(t) for t in pattern), node, slack)
    return worst


def worst_sensitivity(
    algorithm: LinearAlgorithm, trust: TrustModel, participation: Participation | None = None
) -> Sensitivity:
    """The largest sensitivity over all nodes; participation defaults to the algorithm's own."""
    scheme = participation or algorithm.participation
    noise = algorithm.noise
    nodes = range(algorithm.num_nodes) if isinstance(noise, LocalNoise) and not noise.shared else range(1)
    found = [sensitivity_of_gram(view_gram(algorithm, trust, node), scheme, node=node) for node in nodes]
    return max(found, key=lambda s: s.squared)


def _pattern_bound(gram: ViewGram, pattern: Pattern) -> tuple[float, bool, float]:
    """(upper bound on sens^2 of one pattern, exact?, relative slack)."""
    if math.isinf(gram.inflation):
        return math.inf, True, 0.0
    index = np.ix_(pattern, pattern)
    X, error = gram.matrix[index], gram.entry_error[index]
    k = pattern.size
    summation = k * k * UNIT / (1 - k * k * UNIT)
    plain = float(np.abs(X).sum())
    by_sum = (plain + float(error.sum())) * (1 + 3 * summation)
    # eigvalsh is backward stable: |lambda - computed| <= k eps ||X||_F with ample room
    top = float(np.linalg.eigvalsh(X)[-1])
    by_eigenvalue = k * (top + (4 * k * UNIT) * float(np.linalg.norm(X)) + float(np.linalg.norm(error)))
    bound = min(by_sum, by_eigenvalue) * gram.inflation * (1 + 4 * UNIT)
    unrounded = min(plain, k * top)
    slack = bound / unrounded - 1 if unrounded > 0 else 0.0
    # the plain sum is then attained, whichever of the two bounds lies closer above it
    exact = _non_negative_up_to_signs(X, error)
    return bound, exact, max(slack, 0.0)


def _non_negative_up_to_signs(X: FloatArray, error: FloatArray) -> bool:
    """Whether signs d with d_s X[s,t] d_t >= 0 exist; entries within the rounding error count as zero."""
    signed = np.where(np.abs(X) <= error, 0.0, X)
    if (signed >= 0).all():
        return True
    signs = np.zeros(len(X))
    for root in range(len(X)):
        if signs[root]:
            continue
        signs[root], stack = 1.0, [root]
        while stack:
            here = stack.pop()
            for other in np.flatnonzero(signed[here]):
                wanted = signs[here] * np.sign(signed[here, other])
                if signs[other] == 0:
                    signs[other] = wanted
                    stack.append(int(other))
                elif signs[other] != wanted:
                    return False
    return True
