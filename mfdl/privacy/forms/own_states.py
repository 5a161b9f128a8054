"""X_u where each node's state is known up to its own earlier gradients: messages some of which are never sent.

Zip-DL is the case in point: the noise of the message a -> a, which is never sent, is a combination of the noise of
those that are. A round maps state s, gradients g and fresh noise e = F z, with T the rows seen and H the others, to

    m = P s + Q g + R e,    s' = K m = K_T m_T + K_H m_H.

Columns of F that the attacker knows are left out of it: what they add is known. For any matrix Y,

    s' = (K_T + Y) m_T + D s + E g + r z,    D = K_H P_H - Y P_T,  E = K_H Q_H - Y Q_T,  r = (K_H R_H - Y R_T) F.

Claim. If some Y per round makes r = 0 and D, E diagonal, if s is one number per node, public at the start, and its
gradient is taken there, and if no model is released, then the Gaussian formula holds for gradients chosen adaptively
and participation in every step: against node u the view is mu-GDP with mu^2 = max over ||delta_t|| <= 1 of
sum_st X_u[s, t] <delta_s, delta_t>, times (record shift / nu)^2.

Proof. s_j' = D_jj s_j + E_jj g_j + a function of m_T. So by induction over the rounds s_j is a function of the messages
seen before and j's own earlier gradients, and with it g_j is one of those messages and of j's data. Given the messages
seen before, other data of u therefore change g_u and s_u and no other gradient or state (nor a gradient that the
attacker knows, unless it is u's: then the loss is infinite). With delta_t(v) the change of g_u at step t given the
messages v, of norm at most 1, the mean of the messages of step t moves by

    M_t delta = P_T e_u sum_{s<t} (prod_{s<r<t} D_uu(r)) E_uu(s) delta_s + Q_T e_u delta_t,

against fresh noise of covariance Sigma_t = R_T F F^T R_T^T; each step spends the energy |Sigma_t^{+1/2} M_t delta|^2,
which is known before its noise is drawn. On every path the energies sum to sum_st X_u[s, t] <delta_s, delta_t>, where
X_u = sum_t M_t^T Sigma_t^+ M_t. If they sum to at most b on every path, the view is sqrt(b)-GDP: the first energy e is
a constant, for every value of the first messages the rest spends at most b - e on every path and is, by induction
over the steps, sqrt(b - e)-GDP, and adaptive composition adds squares.  []

All data of u must be the unit, in every step: a record bounds delta by its own shift, and at its own steps alone, but
the change of s_u moves the gradients of u's other records by as much as clipping allows. And X_u is that of the dense
form: subtracting what is known from the rows is a triangular change of rows of [A B], which leaves block diagonal noise
behind.

In: a view, victims. Out: the recursions, or None where the claim does not apply; Grams. Y is found by least squares
and any Y makes the identity above exact, so rounding shows in r and in the products alone: r at rounding level is
noise of lower blocks of B, B = B_0 (I + N) with B_0 block diagonal, and (B B^T)^+ grows at most by (1 - ||N||)^-2.
Off-diagonal entries of D and E must be zero term by term. Nothing larger than one round is ever formed besides X_u.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ...algorithms import LinearAlgorithm, Round
from ...check import FloatArray
from ...view import View
from ..exact_rank import ranks_agree
from ..structure import ROUNDING, SMALLEST_WEIGHT, smallest_weight
from .whitening import whiten

UNIT = float(np.finfo(np.float64).eps) / 2
MAX_BLOCK_WORK = 1e11  # rows^2 * columns of noise that hangs together in one round: a few seconds
MERGED_BITS = 36  # victims whose numbers agree to so many bits share one Gram, with errors that cover all of them

Index = NDArray[np.intp]


@dataclasses.dataclass(frozen=True, eq=False)
class OwnStates:
    """The recursions s_j' = D_jj s_j + E_jj g_j + known of all nodes.

    Attributes:
        kinds: the distinct rounds; kind_of_step: which of them each step is, shape (T,).
        scale: unit of each node's gradient at each step, shape (T, n): E and Q_T of a kind are per unit.
    """

    kinds: list[RoundKind]
    kind_of_step: Index
    scale: FloatArray

    def over_steps(self, name: str) -> FloatArray:
        """One of the per-node arrays of the kinds, shape (T, n)."""
        return np.stack([getattr(kind, name) for kind in self.kinds])[self.kind_of_step]


@dataclasses.dataclass(frozen=True, eq=False)
class RoundKind:
    """One round in the eyes of the attacker, gradients in units of `OwnStates.scale`.

    Attributes:
        kept, added: D_jj and E_jj, shape (n,); kept_error, added_error: bounds on their rounding errors.
        unseen: norm of row j of r, the noise at rounding level that is neglected, shape (n,).
        rows: the messages seen; from_state, from_gradient, noise: P_T, Q_T and R_T F.
        blocks: (rows, columns) of `noise` that hang together; a row without noise is a block of its own.
    """

    kept: FloatArray
    added: FloatArray
    kept_error: FloatArray
    added_error: FloatArray
    unseen: FloatArray
    rows: Index
    from_state: sp.csr_array
    from_gradient: sp.csr_array
    noise: sp.csr_array
    blocks: list[tuple[Index, Index]]


@dataclasses.dataclass(frozen=True, eq=False)
class OwnStateGram:
    """X_u of one victim; values, errors, inflation and leaks as in `ViewGram`.

    Attributes: shown: (step, round, message rows, combination of them without noise) for a leak, or None.
    """

    values: FloatArray
    errors: FloatArray
    inflation: float
    leaks: NDArray[np.bool_]
    shown: tuple[int, int, Index, FloatArray] | None


# ---- the recursions -----------------------------------------------------------------------------------------------


def own_states(view: View) -> OwnStates | None:
    """The recursions of the nodes, or None where their states are not known up to their own gradients.

    None also for released models, a state that is not the model, several rounds per step, noise that is not fresh in
    every step, state that bypasses the messages, and weights below SMALLEST_WEIGHT.

    Guarantees: not None only if the claim of the module head holds, but for noise r at rounding level, stated.
    Cost: one least-squares problem for each block of noise that hangs together, in each distinct round.
    """
    algorithm, knowledge = view.algorithm, view.knowledge
    if algorithm is None or knowledge is None or knowledge.combination is not None:
        return None
    if view.release not in ("none", "not applicable") or not _is_covered(algorithm):
        return None
    kinds: list[RoundKind] = []
    kind_of_step = np.zeros(algorithm.num_steps, dtype=np.intp)
    scale = np.ones((algorithm.num_steps, algorithm.num_nodes))
    units: dict[int, tuple[sp.csr_array, FloatArray]] = {}
    of_round: dict[tuple[int, bytes], int] = {}
    of_content: dict[bytes, int] = {}
    for t, one in enumerate(algorithm.rounds):
        if id(one) not in units:
            shape = (algorithm.messages_per_round, algorithm.num_nodes)
            units[id(one)] = _per_unit(one.message_from_gradient, shape)
        unit, scale[t] = units[id(one)]
        seen, known = knowledge.seen[t], knowledge.known_noise[t]
        masks = seen.tobytes() + known.tobytes()
        if (id(one), masks) not in of_round:
            maps = (one.message_from_state, unit, one.message_from_noise, one.state_from_message)
            content = masks + b"".join(_content(matrix) for matrix in maps)
            if content not in of_content:
                kind = _round_kind(algorithm, one, unit, seen, known)
                if kind is None:
                    return None
                of_content[content] = len(kinds)
                kinds.append(kind)
            of_round[id(one), masks] = of_content[content]
        kind_of_step[t] = of_round[id(one), masks]
    return OwnStates(kinds, kind_of_step, scale)


def _is_covered(algorithm: LinearAlgorithm) -> bool:
    n, T = algorithm.num_nodes, algorithm.num_steps
    if not algorithm.noise.fresh or algorithm.noise.is_zero or algorithm.step_of_round != tuple(range(T)):
        return False
    model = algorithm.model_from_state
    if model.shape != (n, n) or (model != sp.eye_array(n, format="csr")).nnz:
        return False
    for one in {id(r): r for r in algorithm.rounds}.values():
        if any(m is not None for m in (one.state_from_state, one.state_from_gradient, one.state_from_noise)):
            return False
    return smallest_weight(algorithm) >= SMALLEST_WEIGHT


def _per_unit(matrix: sp.csr_array | None, shape: tuple[int, int]) -> tuple[sp.csr_array, FloatArray]:
    """Columns divided by their largest entry, and that entry (1 for a column of zeros)."""
    if matrix is None:
        return sp.csr_array(shape), np.ones(shape[1])
    largest = np.zeros(shape[1])
    np.maximum.at(largest, matrix.indices, np.abs(matrix.data))
    largest[largest == 0] = 1.0
    data = matrix.data / largest[matrix.indices]
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=shape), largest


def _content(matrix: sp.csr_array | None) -> bytes:
    if matrix is None:
        return b"-"
    return b"".join(part.tobytes() for part in (matrix.data, matrix.indices, matrix.indptr))


def _round_kind(
    algorithm: LinearAlgorithm, one: Round, unit: sp.csr_array, seen: NDArray[np.bool_], known: NDArray[np.bool_]
) -> RoundKind | None:
    """One round, or None where r is not zero to rounding or D or E not diagonal."""
    n, S = algorithm.num_nodes, algorithm.messages_per_round
    assert algorithm.noise.causal is not None  # as `_is_covered` has seen
    F = algorithm.noise.causal.mixing
    P = _or_zero(one.message_from_state, (S, n))
    R = sp.csr_array(_or_zero(one.message_from_noise, (S, F.shape[0])) @ F[:, np.flatnonzero(~known)])
    R.eliminate_zeros()
    rows, hidden = np.flatnonzero(seen), np.flatnonzero(~seen)
    K = _or_zero(one.state_from_message, (n, S))[:, hidden]
    blocks = _blocks(R[rows])
    if any(float(len(r)) ** 2 * len(c) > MAX_BLOCK_WORK for r, c in blocks):
        return None
    wanted = sp.csr_array(K @ R[hidden])
    Y = _combinations(wanted, R[rows], blocks)
    # products of at most this many terms each
    terms = 4 + int(max(np.diff(K.indptr).max(initial=0), np.diff(Y.indptr).max(initial=0), np.diff(R.indptr).max()))
    rounding = 2 * terms * UNIT
    remainder = abs(wanted - Y @ R[rows]).toarray()
    size = (abs(K) @ abs(R[hidden]) + abs(Y) @ abs(R[rows])).toarray()
    largest = max((max(len(r), len(c)) for r, c in blocks), default=1)
    if (remainder > ROUNDING * largest * size).any():
        return None
    diagonals = []
    for full in (P, unit):
        size_of = sp.coo_array(abs(K) @ abs(full[hidden]) + abs(Y) @ abs(full[rows]))
        if ((size_of.coords[0] != size_of.coords[1]) & (size_of.data > 0)).any():
            return None
        diagonals += [(K @ full[hidden] - Y @ full[rows]).diagonal(), rounding * size_of.diagonal()]
    return RoundKind(
        kept=diagonals[0],
        kept_error=diagonals[1],
        added=diagonals[2],
        added_error=diagonals[3],
        unseen=np.linalg.norm(remainder + rounding * size, axis=1),
        rows=rows,
        from_state=P[rows],
        from_gradient=unit[rows],
        noise=R[rows],
        blocks=blocks,
    )


def _or_zero(matrix: sp.csr_array | None, shape: tuple[int, int]) -> sp.csr_array:
    return sp.csr_array(shape) if matrix is None else sp.csr_array(matrix)


def _blocks(noise: sp.csr_array) -> list[tuple[Index, Index]]:
    """Connected components of rows and columns; columns that no row has are left out."""
    rows, columns = noise.shape
    graph = sp.block_array([[None, noise], [noise.T, None]]) if noise.nnz else sp.csr_array((rows + columns,) * 2)
    _, label = connected_components(graph, directed=False)
    of_row, of_column = label[:rows], label[rows:]
    return [(np.flatnonzero(of_row == k), np.flatnonzero(of_column == k)) for k in np.unique(of_row)]


def _combinations(wanted: sp.csr_array, noise: sp.csr_array, blocks: list[tuple[Index, Index]]) -> sp.csr_array:
    """Y with Y noise = wanted where there is one, of least norm; entries at rounding level are left out.

    Any Y may be used, so this is no matter of accuracy: what Y does not explain is in the remainder.
    """
    entries, where = [np.zeros(0)], [np.zeros((2, 0), dtype=np.intp)]
    by_column = sp.csc_array(wanted)
    for rows, columns in blocks:
        targets = by_column[:, columns].toarray() if len(columns) else np.zeros((wanted.shape[0], 0))
        nodes = np.flatnonzero(targets.any(axis=1))
        if not nodes.size:
            continue
        B, targets = noise[rows][:, columns].toarray(), targets[nodes]
        length = np.linalg.norm(B, axis=1)
        inverse = np.linalg.pinv(B / length[:, None], rcond=1e-12)
        part = targets @ inverse
        part += (targets - part @ (B / length[:, None])) @ inverse
        small = ROUNDING * max(B.shape) * np.abs(part).max(axis=1, keepdims=True)
        part[np.abs(part) <= small] = 0.0
        at = np.nonzero(part)
        entries.append((part / length)[at])
        where.append(np.stack([nodes[at[0]], rows[at[1]]]))
    return sp.csr_array((np.concatenate(entries), np.hstack(where)), shape=(wanted.shape[0], noise.shape[0]))


# ---- the Grams ----------------------------------------------------------------------------------------------------


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


def own_state_grams(states: OwnStates, victims: Sequence[int]) -> list[OwnStateGram] | None:
    """X_u of each victim in a view with these recursions; equal ones are one object.

    None: noise at rounding level was neglected at a node whose messages lack any other (then nothing bounds it).
    Guarantees: the true X is at most inflation times (values + errors), see `ViewGram`; a victim whose gradient shows
        without noise has a leak at that step.
    Cost: O(T^2) per victim with numbers of its own, O(T n) and one singular value decomposition per block besides.
    """
    of_kind = [_seen_of(kind) for kind in states.kinds]
    values, errors, leaks = (
        np.stack([getattr(one, name) for one in of_kind])[states.kind_of_step] for name in ("values", "errors", "leaks")
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
    groups: dict[bytes, list[int]] = {}
    for u in dict.fromkeys(victims):
        numbers = np.concatenate([kept[:, u], added[:, u], values[:, :, u].ravel()])
        mantissa, exponent = np.frexp(numbers)
        rounded = np.ldexp(np.round(np.ldexp(mantissa, MERGED_BITS)), exponent - MERGED_BITS)
        groups.setdefault(rounded.tobytes() + leaks[:, :, u].tobytes(), []).append(u)
    found: dict[int, OwnStateGram] = {}
    for members in groups.values():
        u = members[0]
        numbers = np.stack([kept, added, *values.transpose(1, 0, 2)])  # (5, T, n)
        slack = np.stack([kept_error, added_error, *errors.transpose(1, 0, 2)])
        off = (slack[:, :, members] + np.abs(numbers[:, :, members] - numbers[:, :, [u]])).max(axis=2)
        X, error = _assembled(numbers[:, :, u], off)
        leaking, by = _leaking_steps(np.abs(numbers[:2, :, u]) + off[:2], leaks[:, :, u])
        alike = OwnStateGram(X, error, inflation, leaking, None)
        for member in members:
            found[member] = alike
            if by is not None:
                step, t, which = by
                shown = (step, t, *of_kind[states.kind_of_step[t]].shown[which, member])
                found[member] = dataclasses.replace(alike, shown=shown)
    return [found[u] for u in victims]


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
