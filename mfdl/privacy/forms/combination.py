"""X_u of a view of one combination c^T m of each round's messages, in algorithms that average by that very c.

If every row of every K_t (next state <- messages) is an exact multiple of c^T, a state is a multiple of what was seen
of the round before. So the combinations seen determine, one by one and injectively, the numbers c^T Q_t (g_t + e_t);
every model, released ones included, is a function of them; and with noise fresh in every step X_u is diagonal, entry
t = (c^T Q_t)_u^2 / (variance of c^T Q_t e_t that the attacker does not know). A server that averages everybody is the
case in point.

"Exact" is meant: proportionality is decided on the floats as rational numbers, never within a tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Self

import numpy as np
import scipy.sparse as sp

from ...algorithms import LinearAlgorithm, Round
from ...check import FloatArray
from ...floats import UNIT
from ...view import AlgorithmView, View, combined
from ._base import ViewForm, ViewGram

SILENT = "the combination that is seen has no noise that the attacker does not know"


class Combination(ViewForm):
    """One combination seen, noise fresh in every step. Cost of `of`: O(n^2) rational numbers a distinct round."""

    def __init__(self, view: AlgorithmView, combination: sp.csr_array, mixing: FloatArray) -> None:
        self.algorithm, self.known = view.algorithm, view.knowledge.known_noise
        self.combination, self.mixing = combination.toarray()[0], mixing

    @classmethod
    def of(cls, view: View) -> Self | None:
        if not isinstance(view, AlgorithmView) or (c := view.knowledge.combination) is None:
            return None
        algorithm, noise = view.algorithm, view.algorithm.noise.causal
        if noise is None or noise.is_zero or not noise.fresh or algorithm.noise_on_messages:
            return None
        if not states_are_multiples(algorithm, c):
            return None
        of_steps = {k for k, t in zip(algorithm.kind_of_round, algorithm.step_of_round, strict=True) if t >= 0}
        inputs = ((algorithm.kinds[k].message_from_gradient, algorithm.kinds[k].message_from_noise) for k in of_steps)
        return None if any(m is None for pair in inputs for m in pair) else cls(view, c, noise.mixing.toarray())

    def cost(self, victims: Sequence[int]) -> float:
        return float(self.mixing.size) * self.algorithm.num_steps

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        T, n = self.algorithm.num_steps, self.algorithm.num_nodes
        values, errors, silent = np.zeros((n, T)), np.zeros((n, T)), np.zeros(T, dtype=bool)
        made: dict[tuple[int, bytes], tuple[FloatArray, FloatArray, bool]] = {}
        for k, t in zip(self.algorithm.kind_of_round, self.algorithm.step_of_round, strict=True):
            if t >= 0:
                known = self.known[t]
                key = (k, known.tobytes())
                if key not in made:
                    made[key] = self._of_round(self.algorithm.kinds[k], known)
                values[:, t], errors[:, t], silent[t] = made[key]
        why = SILENT if silent.any() else ""
        form = "one combination of the messages"
        return [ViewGram(values[u], errors[u], leaks=silent.copy(), why=why, form=form) for u in victims]

    def _of_round(self, kind: Round, known: np.ndarray) -> tuple[FloatArray, FloatArray, bool]:
        """(entries of all nodes, bounds on their rounding errors, the variance is zero)."""
        c, F = self.combination, self.mixing * ~known
        assert kind.message_from_gradient is not None
        assert kind.message_from_noise is not None
        row, noise = c @ kind.message_from_gradient.toarray(), kind.message_from_noise.toarray()
        mixed, size = (c @ noise) @ F, (np.abs(c) @ np.abs(noise)) @ np.abs(F)
        variance = float(mixed @ mixed)
        # |fl(mixed) - mixed| <= rounding * size entrywise
        rounding = 2 * (c.size + F.shape[0] + 4) * UNIT
        slack = rounding * float(2 * np.abs(mixed) @ size + rounding * size @ size) + (len(mixed) + 2) * UNIT * variance
        if variance <= 4 * slack:
            return np.zeros(row.size), np.zeros(row.size), True
        relative = slack / (variance - slack) + 4 * (c.size + 4) * UNIT
        return row**2 / variance, 2 * relative * row**2 / variance, False


def states_are_multiples(algorithm: LinearAlgorithm, combination: sp.csr_array) -> bool:
    """Whether every state after a round is an exact multiple of the single combination c^T m seen of that round."""
    c = np.asarray(combination.toarray())
    if len(c) != 1 or not algorithm.sent.any(axis=1).all() or not combined(algorithm).all():
        return False
    for kind in algorithm.kinds:
        if any(m is not None for m in (kind.state_from_state, kind.state_from_gradient, kind.state_from_noise)):
            return False
        if kind.state_from_message is None:
            return False
        if not all(is_multiple(row, c[0]) for row in np.unique(kind.state_from_message.toarray(), axis=0)):
            return False
    return True


def is_multiple(row: FloatArray, of: FloatArray) -> bool:
    """Whether row = a * of for some number a, exactly, on the float64 values given.

    >>> is_multiple(np.full(3, 0.1), np.full(3, 1 / 3)), is_multiple(np.array([0.1, 0.3]), np.array([1.0, 3.0]))
    (True, False)
    """
    if np.ptp(row) == 0 and np.ptp(of) == 0:
        return bool(of.size == 0 or of[0] != 0 or row[0] == 0)
    pivot = int(np.argmax(np.abs(of)))
    at, scale = Fraction(float(of[pivot])), Fraction(float(row[pivot]))
    return at != 0 and all(Fraction(float(r)) * at == Fraction(float(o)) * scale for r, o in zip(row, of, strict=True))
