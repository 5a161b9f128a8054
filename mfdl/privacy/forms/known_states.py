"""X_u of views in which states are known up to earlier gradients: of each node, or of one combination of all.

For each node (`node_recursions`), X_u = sum_t M_t^T Sigma_t^+ M_t is a polynomial in five numbers a round, so its
rounding errors are bounded by the same polynomial. Nothing larger than one round is ever formed besides X_u.

Or the attacker sees one combination c^T m of each round's messages, in algorithms that average by that very c. If every
row of every K_t (next state <- messages) is an exact multiple of c^T, a state is a multiple of what was seen of the
round before. So the combinations seen determine, one by one and injectively, the numbers c^T Q_t (g_t + e_t); every
model, released ones included, is a function of them; and with noise fresh in every step X_u is diagonal, entry t = (c^T
Q_t)_u^2 / (variance of c^T Q_t e_t that the attacker does not know). Proportionality is decided on the floats as
rational numbers, never within a tolerance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...algorithms import LinearAlgorithm
from ...algorithms.round import Round
from ...check import FloatArray
from ...floats import UNIT
from ...trust.knowledge import combined
from ...trust.view import AlgorithmView
from ..exact_arithmetic import ranks_agree
from .base import ViewForm, ViewGram, leak_in_words, states_are_of_messages
from .node_recursions import Index, Recursions, RoundKind, recursions
from .whitening import whiten

FORM = "own-state form"
MAX_WORK_BESIDE_A_BOUND = 2e10  # of a dense form, where all messages seen bound the view: a second or two
MERGED_BITS = 36  # victims whose numbers agree to so many bits share one Gram, with errors that cover all of them
SILENT = "the combination that is seen has no noise that the attacker does not know"


class OwnStates(ViewForm):
    """The Grams of a view whose states are known up to the nodes' own gradients, though not all injections are."""

    def __init__(self, view: AlgorithmView, states: Recursions) -> None:
        self.view, self.states = view, states

    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        if view.shows_injections or view.algorithm.sent_flow.injections:
            return None
        states = recursions(view)
        return None if states is None else cls(view, states)

    def cost(self, victims: Sequence[int]) -> float:
        return float(self.view.algorithm.num_steps) ** 2 * len(victims)

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        grams = own_state_grams(self.view, self.states, victims)
        return [None] * len(victims) if grams is None else list(grams)


class OwnStatesOfAll(OwnStates):
    """The same with every message seen: an upper bound on views that hide some, where the dense form is slow."""

    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        if not view.unreleased or view.knowledge.combination is not None:
            return None
        rows, columns = view.noise.shape
        more = view.knowledge.with_all_sent(view.algorithm)
        if float(rows) ** 2 * columns <= MAX_WORK_BESIDE_A_BOUND or not more.covers(view.knowledge):
            return None
        return super().from_algorithm(AlgorithmView(view.algorithm, more, release="none", attacker=view.attacker))

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        grams = own_state_grams(self.view, self.states, victims)
        if grams is None or any(gram.leaks.any() for gram in grams):
            return [None] * len(victims)
        form = f"{FORM} of all messages, as an upper bound"
        bounds = {id(g): dataclasses.replace(g, upper=True, form=form) for g in grams}
        return [bounds[id(g)] for g in grams]


@dataclasses.dataclass(frozen=True, eq=False)
class _Seen:
    """The information in one round on every node: [p q]^T Sigma^+ [p q] for p = P_T e_j and q = Q_T e_j per unit.

    Attributes:
        values, errors: its entries pp, pq, qq, shape (3, n); leaks: of p and q, shape (2, n).
        revealing: (message rows, combination) without noise for (0 or 1 for p or q, node), where one leaks.
    """

    values: FloatArray
    errors: FloatArray
    leaks: NDArray[np.bool_]
    revealing: dict[tuple[int, int], tuple[Index, FloatArray]]


def own_state_grams(view: AlgorithmView, states: Recursions, victims: Sequence[int]) -> list[ViewGram] | None:
    """X_u of each victim in a view with these recursions; equal ones are one object.

    None: noise at rounding level was neglected at a node whose messages lack any other (then nothing bounds it), or the
    noise of messages is a rounded product whose rows depend on each other or nearly so.
    Guarantees: the true X is at most inflation times (values + errors), see `ViewGram`; a victim whose gradient shows
        without noise has a leak at that step.
    Cost: O(T^2) per victim with numbers of its own, O(T n) and one singular value decomposition per block besides.
    """
    of_kind = [seen for kind in states.kinds if (seen := _shown_by(kind)) is not None]
    if len(of_kind) < len(states.kinds):
        return None
    of_step = [of_kind[number] for number in states.kind_of_step]
    values, errors, leaks = (np.stack([getattr(s, name) for s in of_step]) for name in ("values", "errors", "leaks"))
    retained, retained_error, unseen = (states.over_steps(name) for name in ("retained", "retained_error", "unseen"))
    added, added_error = (states.over_steps(name) * states.scale for name in ("added", "added_error"))
    added_error = added_error + 2 * UNIT * np.abs(added)
    for power in (1, 2):
        values[:, power] *= states.scale**power
        errors[:, power] = errors[:, power] * states.scale**power + 4 * UNIT * np.abs(values[:, power])
    inflation = _inflation(np.abs(retained) + retained_error, values[:, 0] + errors[:, 0], leaks[:, 0], unseen)
    if inflation is None:
        return None
    numbers = np.stack([retained, added, *values.transpose(1, 0, 2)])  # (5, T, n)
    slack = np.stack([retained_error, added_error, *errors.transpose(1, 0, 2)])
    grams_by_numbers: dict[int, ViewGram] = {}
    for members in _alike(numbers, leaks, victims):
        u = members[0]
        off = (slack[:, :, members] + np.abs(numbers[:, :, members] - numbers[:, :, [u]])).max(axis=2)
        X, error = _assembled(numbers[:, :, u], off)
        leaking, by = _leak_steps(np.abs(numbers[:2, :, u]) + off[:2], leaks[:, :, u])
        unproven = math.isinf(inflation)
        why = "its rounding errors are not small, so that infinity is only an upper bound" * unproven
        gram = ViewGram(X, error, inflation, leaking, why, FORM, upper=unproven)
        for member in members:
            grams_by_numbers[member] = gram
            if by is not None:
                step, t, which = by
                messages, combination = of_step[t].revealing[which, member]
                names = [view.message_name(t, int(message)) for message in messages]
                leak = leak_in_words(step, combination, names.__getitem__)
                grams_by_numbers[member] = dataclasses.replace(gram, why=leak)
    return [grams_by_numbers[u] for u in victims]


def _alike(numbers: FloatArray, leaks: NDArray[np.bool_], victims: Sequence[int]) -> list[list[int]]:
    groups: dict[bytes, list[int]] = {}
    for u in dict.fromkeys(victims):
        mantissa, exponent = np.frexp(numbers[:, :, u])
        rounded = np.ldexp(np.round(np.ldexp(mantissa, MERGED_BITS)), exponent - MERGED_BITS)
        groups.setdefault(rounded.tobytes() + leaks[:, :, u].tobytes(), []).append(u)
    return list(groups.values())


def _shown_by(kind: RoundKind) -> _Seen | None:
    """None where rounding of the noise itself may have hidden what rows have in common."""
    n = kind.retained.size
    out = _Seen(np.zeros((3, n)), np.zeros((3, n)), np.zeros((2, n), dtype=bool), {})
    for rows, columns in kind.blocks:
        p, q = kind.from_state[rows].toarray(), kind.from_gradient[rows].toarray()
        nodes = np.flatnonzero(p.any(axis=0) | q.any(axis=0))
        A, B = np.hstack([p[:, nodes], q[:, nodes]]), kind.noise[rows][:, columns].toarray()
        off = kind.noise_error[rows][:, columns].toarray()
        white = whiten(A, B, rounding=(np.zeros_like(A), off) if off.any() else None)
        noisy = B.any(axis=1) | off.any(axis=1)
        if off.any() and (white.undecided.any() or len(white.whitened) < np.count_nonzero(noisy)):
            return None
        k = len(nodes)
        open_ = white.leaks | white.undecided | (not ranks_agree(A, B, len(white.whitened), white.leaks))
        for i, j in enumerate(nodes):
            pair = slice(i, None, k)
            gram, error = white.whitened[:, pair].T @ white.whitened[:, pair], white.gram_error(pair)
            for matrix, total in ((gram, out.values), (error, out.errors)):
                total[:, j] += matrix[0, 0], matrix[0, 1], matrix[1, 1]
            for which in (0, 1):
                if open_[which * k + i] and not out.leaks[which, j]:
                    out.leaks[which, j] = True
                    out.revealing[which, int(j)] = kind.rows[rows], white.noiseless[:, which * k + i]
    return out


def _inflation(retained: FloatArray, seen: FloatArray, leaks: NDArray[np.bool_], unseen: FloatArray) -> float | None:
    """(1 - ||N||)^-2 for the noise r that was neglected, or None where it is not in the range of B_0.

    Block (t, s) of N is Sigma_t^{+1/2} sum_j P_T e_j (prod_{s<r<t} D_jj(r)) r_j(s), at most T blocks a row and column.
    """
    nodes = np.flatnonzero(unseen.any(axis=0))
    if leaks[:, nodes].any():
        return None
    with np.errstate(over="ignore"):
        growth = np.maximum(retained[:, nodes], 1.0).prod(axis=0)
        blocks = growth * np.sqrt(seen[:, nodes].max(axis=0)) * unseen[:, nodes].max(axis=0)
    size = len(retained) * float(blocks.sum()) * (1 + 1e-9)
    return math.inf if not size < 1 else (1 - size) ** -2


def _assembled(numbers: FloatArray, slack: FloatArray) -> tuple[FloatArray, FloatArray]:
    """X and a bound on its error, from (retained, added, pp, pq, qq) over the steps, each within `slack`, shape (5, T).

    X is a polynomial in these with positive coefficients, so |X(x + e) - X(x)| <= X(|x| + |e|) - X(|x|) entrywise.
    """
    X = _polynomial(*numbers)
    retained, added, _, pq, _ = numbers
    positive = (retained >= 0).all() and (added * pq >= 0).all() and ((added >= 0).all() or (added <= 0).all())
    with np.errstate(over="ignore", invalid="ignore"):
        largest = _polynomial(*(np.abs(numbers) + slack))
        plain = X if positive else _polynomial(*np.abs(numbers))  # no term is negative: the same polynomial
        error = largest - plain + 3 * (6 * numbers.shape[1] + 16) * UNIT * largest
    return X, np.where(np.isfinite(error), error, np.inf)


def _polynomial(retained: FloatArray, added: FloatArray, pp: FloatArray, pq: FloatArray, qq: FloatArray) -> FloatArray:
    """X = sum_t M_t^T Sigma_t^+ M_t: with V_t = pp_t + retained_t^2 V_{t+1}, what a change of s before step t costs,

    X_ss = qq_s + added_s^2 V_{s+1},
    X_st = added_s (prod_{s<r<t} retained_r) (pq_t + retained_t added_t V_{t+1}) for s < t.
    """
    T = len(retained)
    later = np.zeros(T + 1)
    for t in range(T - 1, -1, -1):
        later[t] = pp[t] + retained[t] ** 2 * later[t + 1]
    weight = pq + retained * added * later[1:]
    X, carried = np.zeros((T, T)), np.zeros(T)
    for t in range(T):
        X[t, :t] = carried[:t] * weight[t]
        carried[:t] *= retained[t]
        carried[t] = added[t]
    X += X.T
    X[np.diag_indices(T)] = qq + added**2 * later[1:]
    return X


def _leak_steps(reach: FloatArray, leaks: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], tuple[int, int, int] | None]:
    """Steps whose gradient shows without noise, and for the first of them (step, where it shows, p or q)."""
    T = leaks.shape[0]
    shown_at = np.full(T, -1)
    later = -1  # the first round from t on in which a change of the state before t shows
    for t in range(T - 1, -1, -1):
        shown_at[t] = t if leaks[t, 1] else later if reach[1, t] > 0 else -1
        later = t if leaks[t, 0] else later if reach[0, t] > 0 else -1
    steps = shown_at >= 0
    if not steps.any():
        return steps, None
    step = int(np.flatnonzero(steps)[0])
    return steps, (step, int(shown_at[step]), int(shown_at[step] == step))


class Combination(ViewForm):
    """One combination seen, noise fresh in every step. Cost to see that: O(n^2) rational numbers a distinct round."""

    def __init__(self, view: AlgorithmView, combination: sp.csr_array, mixing: FloatArray) -> None:
        self.algorithm, self.known = view.algorithm, view.knowledge.known_noise
        self.combination, self.mixing = combination.toarray()[0], mixing

    @classmethod
    def from_algorithm(cls, view: AlgorithmView) -> Self | None:
        if (c := view.knowledge.combination) is None:
            return None
        algorithm, factor = view.algorithm, view.algorithm.noise.step_factor
        if factor is None or algorithm.noise.is_zero or algorithm.noise_on_messages:
            return None
        if not states_are_multiples(algorithm, c):
            return None
        of_steps = {k for k, t in zip(algorithm.kind_of_round, algorithm.step_of_round, strict=True) if t >= 0}
        inputs = ((algorithm.kinds[k].message_from_gradient, algorithm.kinds[k].message_from_noise) for k in of_steps)
        return None if any(m is None for pair in inputs for m in pair) else cls(view, c, factor.toarray())

    def cost(self, victims: Sequence[int]) -> float:
        return float(self.mixing.size) * self.algorithm.num_steps

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        T, n = self.algorithm.num_steps, self.algorithm.num_nodes
        values, errors, silent = np.zeros((n, T)), np.zeros((n, T)), np.zeros(T, dtype=bool)
        computed: dict[tuple[int, bytes], tuple[FloatArray, FloatArray, bool]] = {}
        for k, t in zip(self.algorithm.kind_of_round, self.algorithm.step_of_round, strict=True):
            if t >= 0:
                known = self.known[t]
                key = (k, known.tobytes())
                if key not in computed:
                    computed[key] = self._round_entries(self.algorithm.kinds[k], known)
                values[:, t], errors[:, t], silent[t] = computed[key]
        why = SILENT if silent.any() else ""
        form = "one combination of the messages"
        return [ViewGram(values[u], errors[u], leaks=silent.copy(), why=why, form=form) for u in victims]

    def _round_entries(self, kind: Round, known: np.ndarray) -> tuple[FloatArray, FloatArray, bool]:
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
    c = np.asarray(combination.toarray())
    if len(c) != 1 or not algorithm.sent.any(axis=1).all() or not combined(algorithm).all():
        return False
    if not states_are_of_messages(algorithm):
        return False
    for kind in algorithm.kinds:
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
    pivot = int(np.argmax(np.abs(of)))  # exact: every pivot gives one answer
    at, scale = Fraction(float(of[pivot])), Fraction(float(row[pivot]))
    return at != 0 and all(Fraction(float(r)) * at == Fraction(float(o)) * scale for r, o in zip(row, of, strict=True))
