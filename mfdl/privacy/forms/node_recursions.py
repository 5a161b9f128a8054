"""Views in which each node's state is known up to its own earlier gradients: messages some of which are never sent.

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

In: a view. Out: the recursions, or None where the claim does not apply; their Grams are in `known_states`. Y is found
by least squares and any Y makes the identity above exact, so rounding shows in r and in the products alone: r at
rounding level is noise of lower blocks of B, B = B_0 (I + N) with B_0 block diagonal, and (B B^T)^+ grows at most by
(1 - ||N||)^-2. Off-diagonal entries of D and E must be zero term by term. R_T F is a product too: where it is rounded,
rows that look dependent may differ by noise that cancels the noise of others, and no Gram follows.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from ...algorithms import LinearAlgorithm
from ...algorithms.round import Round
from ...check import FloatArray
from ...floats import ROUNDING, UNIT
from ...trust.view import AlgorithmView
from .base import SMALLEST_WEIGHT, remembered, smallest_weight, states_are_of_messages

MAX_BLOCK_WORK = 1e11  # rows^2 * columns of noise that hangs together in one round: a few seconds
MAX_EXACT_TERMS = 100_000  # of a product that is computed again in fractions: about a tenth of a second

Index = NDArray[np.intp]


@dataclasses.dataclass(frozen=True, eq=False)
class Recursions:
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
    """One round in the eyes of the attacker, gradients in units of `Recursions.scale`.

    Attributes:
        retained, added: D_jj and E_jj, shape (n,); retained_error, added_error: bounds on their rounding errors.
        unseen: norm of row j of r, the noise at rounding level that is neglected, shape (n,).
        rows: the messages seen; from_state, from_gradient, noise: P_T, Q_T and R_T F.
        noise_error: bounds on the rounding errors of `noise`; without entries where the product is exact.
        blocks: (rows, columns) of `noise` that hang together; a row without noise is a block of its own.
    """

    retained: FloatArray
    added: FloatArray
    retained_error: FloatArray
    added_error: FloatArray
    unseen: FloatArray
    rows: Index
    from_state: sp.csr_array
    from_gradient: sp.csr_array
    noise: sp.csr_array
    noise_error: sp.csr_array
    blocks: list[tuple[Index, Index]]


def recursions(view: AlgorithmView) -> Recursions | None:
    """The recursions of the nodes, or None where their states are not known up to their own gradients.

    None also for released models, a state that is not the model, several rounds per step, noise that is not fresh in
    every step, state that bypasses the messages, and weights below SMALLEST_WEIGHT.

    Guarantees: not None only if the claim of the module head holds, but for noise r at rounding level.
    Cost: one least-squares problem for each block of noise that hangs together, in each distinct round.
    """
    if view.knowledge.combination is not None or not view.unreleased:
        return None
    return remembered(view, "recursions", _recursions)


def _recursions(view: AlgorithmView) -> Recursions | None:
    algorithm, knowledge = view.algorithm, view.knowledge
    if not _is_covered(algorithm):
        return None
    shape = (algorithm.messages_per_round, algorithm.num_nodes)
    units = [_per_unit(kind.message_from_gradient, shape) for kind in algorithm.kinds]
    kinds: list[RoundKind] = []
    kind_of_step = np.zeros(algorithm.num_steps, dtype=np.intp)
    of_masks: dict[tuple[int, bytes], int] = {}
    of_content: dict[bytes, int] = {}
    for t, number in enumerate(algorithm.kind_of_round):
        seen, known = knowledge.seen[t], knowledge.known_noise[t]
        key = (number, seen.tobytes() + known.tobytes())
        if key not in of_masks:
            kind, (unit, _) = algorithm.kinds[number], units[number]
            maps = (kind.message_from_state, unit, kind.message_from_noise, kind.state_from_message)
            content = key[1] + b"".join(_content(matrix) for matrix in maps)  # the same but for the scale
            if content not in of_content:
                round_kind = _round_kind(algorithm, kind, unit, seen, known)
                if round_kind is None:
                    return None
                of_content[content] = len(kinds)
                kinds.append(round_kind)
            of_masks[key] = of_content[content]
        kind_of_step[t] = of_masks[key]
    return Recursions(kinds, kind_of_step, np.stack([units[number][1] for number in algorithm.kind_of_round]))


def _is_covered(algorithm: LinearAlgorithm) -> bool:
    n, T = algorithm.num_nodes, algorithm.num_steps
    noise = algorithm.noise
    if noise.step_factor is None or noise.is_zero or algorithm.step_of_round != tuple(range(T)):
        return False
    model = algorithm.model_from_state
    if model.shape != (n, n) or (model != sp.eye_array(n, format="csr")).nnz:
        return False
    return states_are_of_messages(algorithm) and smallest_weight(algorithm) >= SMALLEST_WEIGHT


def _per_unit(matrix: sp.csr_array | None, shape: tuple[int, int]) -> tuple[sp.csr_array, FloatArray]:
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
    algorithm: LinearAlgorithm, kind: Round, unit: sp.csr_array, seen: NDArray[np.bool_], known: NDArray[np.bool_]
) -> RoundKind | None:
    """One round, or None where r is not zero to rounding or D or E not diagonal."""
    n, S = algorithm.num_nodes, algorithm.messages_per_round
    F = algorithm.noise.step_factor
    assert F is not None
    P = _or_zero(kind.message_from_state, (S, n))
    from_noise, F = _or_zero(kind.message_from_noise, (S, F.shape[0])), sp.csr_array(F[:, np.flatnonzero(~known)])
    R = sp.csr_array(from_noise @ F)
    noise_error = _product_error(from_noise, F)
    R.eliminate_zeros()
    rows, hidden = np.flatnonzero(seen), np.flatnonzero(~seen)
    K = _or_zero(kind.state_from_message, (n, S))[:, hidden]
    blocks = _blocks(sp.csr_array(abs(R[rows]) + noise_error[rows]))  # what rounds to zero hangs together too
    if any(float(len(r)) ** 2 * len(c) > MAX_BLOCK_WORK for r, c in blocks):
        return None
    wanted = sp.csr_array(K @ R[hidden])
    Y = _combinations(wanted, R[rows], blocks)
    # products of at most this many terms each
    terms = 4 + int(max(np.diff(K.indptr).max(initial=0), np.diff(Y.indptr).max(initial=0), np.diff(R.indptr).max()))
    rounding = 2 * terms * UNIT
    remainder = abs(wanted - Y @ R[rows]).toarray()
    size = (abs(K) @ abs(R[hidden]) + abs(Y) @ abs(R[rows])).toarray()
    of_products = sp.csr_array(abs(K) @ noise_error[hidden] + abs(Y) @ noise_error[rows])
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
        retained=diagonals[0],
        retained_error=diagonals[1],
        added=diagonals[2],
        added_error=diagonals[3],
        unseen=np.linalg.norm(remainder + rounding * size + of_products.toarray(), axis=1),
        rows=rows,
        from_state=P[rows],
        from_gradient=unit[rows],
        noise=R[rows],
        noise_error=noise_error[rows],
        blocks=blocks,
    )


def _product_error(left: sp.csr_array, right: sp.csr_array) -> sp.csr_array:
    """Entrywise bounds on the rounding of left @ right; without entries where every product and sum is exact.

    Exact are sums of entries times powers of two, one a row, and what exact fractions show.
    """
    terms = np.diff(left.indptr)
    smallest = np.abs(left.data).min(initial=1.0) * np.abs(right.data[right.data != 0]).min(initial=1.0)
    underflows = smallest < np.finfo(np.float64).tiny  # subnormal numbers are rounded by powers of two as well
    if terms.max(initial=0) <= 1 and (np.frexp(np.abs(left.data))[0] == 0.5).all() and not underflows:
        return sp.csr_array((left.shape[0], right.shape[1]))
    products = sp.csr_array(abs(left) @ abs(right))
    if products.nnz * int(terms.max(initial=1)) <= MAX_EXACT_TERMS and _is_exact_product(left, right):
        return sp.csr_array(products.shape)
    return sp.csr_array(products * (2 * (int(terms.max(initial=1)) + 1) * UNIT))


def _is_exact_product(left: sp.csr_array, right: sp.csr_array) -> bool:
    product, exact = sp.csr_array(left @ right), [dict[int, Fraction]() for _ in range(left.shape[0])]
    computed = {
        (int(i), int(j)): float(value)
        for i, j, value in zip(*product.nonzero(), product[product.nonzero()], strict=True)
    }
    for i, row in enumerate(exact):
        for at in range(left.indptr[i], left.indptr[i + 1]):
            factor, k = Fraction(float(left.data[at])), left.indices[at]
            for j in range(right.indptr[k], right.indptr[k + 1]):
                column = int(right.indices[j])
                row[column] = row.get(column, Fraction(0)) + factor * Fraction(float(right.data[j]))
    return all(Fraction(computed.get((i, j), 0.0)) == value for i, row in enumerate(exact) for j, value in row.items())


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

    Any Y may be used: what it does not explain is in the remainder.
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
