"""X_u of a view of one combination c^T m of each round's messages, in algorithms that average by that very c.

If every row of every K_t (next state <- messages) is an exact multiple of c^T, a state is a multiple of what was seen
of the round before. So the combinations seen determine, one by one and injectively, the numbers c^T Q_t (g_t + e_t);
every model, released ones included, is a function of them; and with noise fresh in every step X_u is diagonal, entry
t = (c^T Q_t)_u^2 / (variance of c^T Q_t e_t that the attacker does not know). A server that averages everybody is the
case in point.

"Exact" is meant: proportionality is decided on the floats as rational numbers, never within a tolerance.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from ...view import View

UNIT = float(np.finfo(np.float64).eps) / 2


def step_values(view: View) -> tuple[FloatArray, FloatArray, np.ndarray] | None:
    """(diagonals of X_u, bounds on their rounding errors, variance is zero), each (n, T), (n, T), (T,), or None.

    None: the view is not of this form. Cost: O(n^2) rational numbers for each distinct round, O(T n) otherwise.
    """
    algorithm, knowledge = view.algorithm, view.knowledge
    if algorithm is None or knowledge is None or knowledge.combination is None:
        return None
    causal = algorithm.noise.causal
    if causal is None or not causal.fresh or causal.is_zero or algorithm.noise_on_messages:
        return None
    c = np.asarray(knowledge.combination.toarray())
    if not states_are_multiples(algorithm, knowledge.combination):
        return None
    T, n = algorithm.num_steps, algorithm.num_nodes
    F = causal.mixing.toarray()
    values, errors, silent = np.zeros((n, T)), np.zeros((n, T)), np.zeros(T, dtype=bool)
    made: dict[tuple[int, bytes], tuple[FloatArray, float, float]] = {}
    for one, t in zip(algorithm.rounds, algorithm.step_of_round, strict=True):
        if t < 0:
            continue
        known = knowledge.known_noise[t]
        key = (id(one), known.tobytes())
        if key not in made:
            gradient, noise = one.message_from_gradient, one.message_from_noise
            if gradient is None or noise is None:
                return None
            row = np.asarray(c[0] @ gradient.toarray())
            mixed = (c[0] @ noise.toarray()) @ (F * ~known)
            size = (np.abs(c[0]) @ abs(noise).toarray()) @ np.abs(F * ~known)
            variance = float(mixed @ mixed)
            # |fl(mixed) - mixed| <= rounding * size entrywise
            rounding = 2 * (c.shape[1] + F.shape[0] + 4) * UNIT
            slack = (
                rounding * float(2 * np.abs(mixed) @ size + rounding * size @ size) + (len(mixed) + 2) * UNIT * variance
            )
            made[key] = (row, variance, slack)
        row, variance, slack = made[key]
        silent[t] = variance <= 4 * slack
        if not silent[t]:
            values[:, t] = row**2 / variance
            relative = slack / (variance - slack) + 4 * (c.shape[1] + 4) * UNIT
            errors[:, t] = 2 * relative * values[:, t]
    return values, errors, silent


def states_are_multiples(algorithm: LinearAlgorithm, combination: sp.csr_array) -> bool:
    """Whether every state after a round is an exact multiple of the single combination c^T m seen of that round."""
    c = np.asarray(combination.toarray())
    if len(c) != 1 or not algorithm.sent.any(axis=1).all():
        return False
    for one in algorithm.kinds:
        if any(m is not None for m in (one.state_from_state, one.state_from_gradient, one.state_from_noise)):
            return False
        if one.state_from_message is None:
            return False
        if not all(is_multiple(row, c[0]) for row in np.unique(one.state_from_message.toarray(), axis=0)):
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
