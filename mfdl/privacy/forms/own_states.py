"""X_u where each node's state is known up to its own earlier gradients; the statement and its proof: `recursions`.

X_u = sum_t M_t^T Sigma_t^+ M_t is a polynomial in five numbers a round, so its rounding errors are bounded by the same
polynomial. Nothing larger than one round is ever formed besides X_u.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...check import FloatArray
from ...floats import UNIT
from ...view import AlgorithmView, View
from ..exact_rank import ranks_agree
from ._base import ViewForm, ViewGram, leak_in_words
from .recursions import Index, Recursions, RoundKind, recursions
from .whitening import whiten

FORM = "own-state form"
MAX_WORK_BESIDE_A_BOUND = 2e10  # of a dense form, where all messages seen bound the view: a second or two
MERGED_BITS = 36  # victims whose numbers agree to so many bits share one Gram, with errors that cover all of them


class OwnStates(ViewForm):
    """The Grams of a view whose states are known up to the nodes' own gradients, though not all injections are."""

    def __init__(self, view: AlgorithmView, states: Recursions) -> None:
        self.view, self.states = view, states

    @classmethod
    def of(cls, view: View) -> Self | None:
        if not isinstance(view, AlgorithmView) or view.shows_injections or view.algorithm.of_all_sent.injections:
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
    def of(cls, view: View) -> Self | None:
        if not isinstance(view, AlgorithmView) or not view.unreleased or view.knowledge.combination is not None:
            return None
        rows, columns = view.noise.shape
        more = view.knowledge.with_all_sent(view.algorithm)
        if float(rows) ** 2 * columns <= MAX_WORK_BESIDE_A_BOUND or not more.covers(view.knowledge):
            return None
        return super().of(View.of(view.algorithm, more, release="none", attacker=view.attacker))

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        grams = own_state_grams(self.view, self.states, victims)
        if grams is None or any(gram.leaks.any() for gram in grams):
            return [None] * len(victims)
        form = f"{FORM} of all messages, as an upper bound"
        bounds = {id(g): dataclasses.replace(g, upper=True, form=form) for g in grams}
        return [bounds[id(g)] for g in grams]


@dataclasses.dataclass(frozen=True, eq=False)
class _Seen:
    """What one round shows of every node: [p q]^T Sigma^+ [p q] for p = P_T e_j and q = Q_T e_j per unit.

    Attributes:
        values, errors: its entries pp, pq, qq, shape (3, n); leaks: of p and q, shape (2, n).
        shown: (message rows, combination) without noise for (0 or 1 for p or q, node), where one leaks.
    """

    values: FloatArray
    errors: FloatArray
    leaks: NDArray[np.bool_]
    shown: dict[tuple[int, int], tuple[Index, FloatArray]]


def own_state_grams(view: AlgorithmView, states: Recursions, victims: Sequence[int]) -> list[ViewGram] | None:
    """X_u of each victim in a view with these recursions; equal ones are one object.

    None: noise at rounding level was neglected at a node whose messages lack any other (then nothing bounds it).
    Guarantees: the true X is at most inflation times (values + errors), see `ViewGram`; a victim whose gradient shows
        without noise has a leak at that step.
    Cost: O(T^2) per victim with numbers of its own, O(T n) and one singular value decomposition per block besides.
    """
    of_kind = [_seen_of(kind) for kind in states.kinds]
    of_step = [of_kind[number] for number in states.kind_of_step]
    values, errors, leaks = (
        np.stack([getattr(seen, name) for seen in of_step]) for name in ("values", "errors", "leaks")
    )
    kept, kept_error, unseen = (states.over_steps(name) for name in ("kept", "kept_error", "unseen"))
    added, added_error = (states.over_steps(name) * states.scale for name in ("added", "added_error"))
    added_error = added_error + 2 * UNIT * np.abs(added)
    for power in (1, 2):
        values[:, power] *= states.scale**power
        errors[:, power] = errors[:, power] * states.scale**power + 4 * UNIT * np.abs(values[:, power])
    inflation = _inflation(np.abs(kept) + kept_error, values[:, 0] + errors[:, 0], leaks[:, 0], unseen)
    if inflation is None:
        return None
    numbers = np.stack([kept, added, *values.transpose(1, 0, 2)])  # (5, T, n)
    slack = np.stack([kept_error, added_error, *errors.transpose(1, 0, 2)])
    made: dict[int, ViewGram] = {}
    for members in _alike(numbers, leaks, victims):
        u = members[0]
        off = (slack[:, :, members] + np.abs(numbers[:, :, members] - numbers[:, :, [u]])).max(axis=2)
        X, error = _assembled(numbers[:, :, u], off)
        leaking, by = _leaking_steps(np.abs(numbers[:2, :, u]) + off[:2], leaks[:, :, u])
        unproven = math.isinf(inflation)
        why = "its rounding errors are not small, so that infinity is only an upper bound" * unproven
        gram = ViewGram(X, error, inflation, leaking, why, FORM, upper=unproven)
        for member in members:
            made[member] = gram
            if by is not None:
                step, t, which = by
                messages, combination = of_step[t].shown[which, member]
                names = [view.message_name(t, int(message)) for message in messages]
                made[member] = dataclasses.replace(gram, why=leak_in_words(step, combination, names))
    return [made[u] for u in victims]


def _alike(numbers: FloatArray, leaks: NDArray[np.bool_], victims: Sequence[int]) -> list[list[int]]:
    """Victims in groups whose (5, T) numbers agree to MERGED_BITS and whose leaks are the same."""
    groups: dict[bytes, list[int]] = {}
    for u in dict.fromkeys(victims):
        mantissa, exponent = np.frexp(numbers[:, :, u])
        rounded = np.ldexp(np.round(np.ldexp(mantissa, MERGED_BITS)), exponent - MERGED_BITS)
        groups.setdefault(rounded.tobytes() + leaks[:, :, u].tobytes(), []).append(u)
    return list(groups.values())


def _seen_of(kind: RoundKind) -> _Seen:
    n = kind.kept.size
    out = _Seen(np.zeros((3, n)), np.zeros((3, n)), np.zeros((2, n), dtype=bool), {})
    for rows, columns in kind.blocks:
        p, q = kind.from_state[rows].toarray(), kind.from_gradient[rows].toarray()
        nodes = np.flatnonzero(p.any(axis=0) | q.any(axis=0))
        A, B = np.hstack([p[:, nodes], q[:, nodes]]), kind.noise[rows][:, columns].toarray()
        white = whiten(A, B)
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
                    out.shown[which, int(j)] = kind.rows[rows], white.noiseless[:, which * k + i]
    return out


def _inflation(kept: FloatArray, shown: FloatArray, leaks: NDArray[np.bool_], unseen: FloatArray) -> float | None:
    """(1 - ||N||)^-2 for the noise r that was neglected, or None where it is not in the range of B_0.

    Block (t, s) of N is Sigma_t^{+1/2} sum_j P_T e_j (prod_{s<r<t} D_jj(r)) r_j(s), at most T blocks a row and column.
    """
    nodes = np.flatnonzero(unseen.any(axis=0))
    if leaks[:, nodes].any():
        return None
    with np.errstate(over="ignore"):
        growth = np.maximum(kept[:, nodes], 1.0).prod(axis=0)
        blocks = growth * np.sqrt(shown[:, nodes].max(axis=0)) * unseen[:, nodes].max(axis=0)
    size = len(kept) * float(blocks.sum()) * (1 + 1e-9)
    return math.inf if not size < 1 else (1 - size) ** -2


def _assembled(numbers: FloatArray, slack: FloatArray) -> tuple[FloatArray, FloatArray]:
    """X and a bound on its error, from (kept, added, pp, pq, qq) over the steps, each within `slack`, shape (5, T).

    X is a polynomial in these with positive coefficients, so |X(x + e) - X(x)| <= X(|x| + |e|) - X(|x|) entrywise.
    """
    X = _polynomial(*numbers)
    kept, added, _, pq, _ = numbers
    positive = (kept >= 0).all() and (added * pq >= 0).all() and ((added >= 0).all() or (added <= 0).all())
    with np.errstate(over="ignore", invalid="ignore"):
        largest = _polynomial(*(np.abs(numbers) + slack))
        plain = X if positive else _polynomial(*np.abs(numbers))  # no term is negative: the same polynomial
        error = largest - plain + 3 * (6 * numbers.shape[1] + 16) * UNIT * largest
    return X, np.where(np.isfinite(error), error, np.inf)


def _polynomial(kept: FloatArray, added: FloatArray, pp: FloatArray, pq: FloatArray, qq: FloatArray) -> FloatArray:
    """X = sum_t M_t^T Sigma_t^+ M_t: with V_t = pp_t + kept_t^2 V_{t+1}, what a change of s before step t costs,

    X_ss = qq_s + added_s^2 V_{s+1},  X_st = added_s (prod_{s<r<t} kept_r) (pq_t + kept_t added_t V_{t+1}) for s < t.
    """
    T = len(kept)
    later = np.zeros(T + 1)
    for t in range(T - 1, -1, -1):
        later[t] = pp[t] + kept[t] ** 2 * later[t + 1]
    weight = pq + kept * added * later[1:]
    X, carried = np.zeros((T, T)), np.zeros(T)
    for t in range(T):
        X[t, :t] = carried[:t] * weight[t]
        carried[:t] *= kept[t]
        carried[t] = added[t]
    X += X.T
    X[np.diag_indices(T)] = qq + added**2 * later[1:]
    return X


def _leaking_steps(
    reach: FloatArray, leaks: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], tuple[int, int, int] | None]:
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
    step = int(np.argmax(steps))
    return steps, (step, int(shown_at[step]), int(shown_at[step] == step))
