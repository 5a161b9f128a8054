"""Views, workloads, error Grams and noise, written out as dense arrays block by block, or over the rationals.

Nothing is shared with `mfdl.trust`, `mfdl.privacy`, `mfdl.operators` or the executor. Message (r, v) is the one of v in
round r, gradient and noise columns are time-major; arrays take (T n)^2 numbers: keep T n below a few hundred.

Over the rationals (python-flint) rank, leaks and Gram come without rounding, floats being the binary fractions that
they are. An algorithm is written from its maps alone, round after round: m = P s + Q g + R e and s' = K m + F s + J g +
L e. Sizes: some ten rows and columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any

import flint
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from ...gossip import Gossip


def round_matrix(gossip: Gossip, number: int, shifts: Sequence[float] = (0.0,)) -> FloatArray:
    """(W - r I) / (1 - r) of a round, r its shift among those of a step."""
    r = shifts[number % len(shifts)]
    return np.asarray((gossip.at(number).dense() - r * np.eye(gossip.num_nodes)) / (1 - r))


def gossip_messages(
    gossip: Gossip,
    num_steps: int,
    *,
    gossip_rounds: int = 1,
    shifts: Sequence[float] = (0.0,),
    rate: float = 1.0,
    divisors: Sequence[float] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """(messages <- injected sums, final models <- injected sums), shapes (T K n, T n) and (n, T n).

    Block (r, t) is -rate / m_u times W_{r-1} ... W_{t K}, the identity for r = t K and zero before; W_r as of
    `round_matrix`.
    """
    n, R = gossip.num_nodes, num_steps * gossip_rounds
    scale = -rate / (np.ones(n) if divisors is None else np.asarray(divisors, dtype=np.float64))
    rows = np.zeros((R + 1, n, num_steps, n))
    for t in range(num_steps):
        product = np.eye(n)
        for r in range(t * gossip_rounds, R + 1):
            rows[r, :, t, :] = product * scale
            if r < R:
                product = round_matrix(gossip, r, shifts) @ product
    flat = rows.reshape(R + 1, n, num_steps * n)
    return flat[:R].reshape(R * n, num_steps * n), flat[R]


def received(
    gossip: Gossip, num_rounds: int, nodes: Collection[int], *, self_messages: bool = False
) -> NDArray[np.bool_]:
    """Which messages reach one of the nodes: those of the others to which it gives weight; shape (R, n)."""
    seen = np.zeros((num_rounds, gossip.num_nodes), dtype=bool)
    for r in range(num_rounds):
        sends = gossip.at(r).dense() != 0
        np.fill_diagonal(sends, sends.diagonal() & self_messages)
        seen[r] = sends[list(nodes)].any(axis=0)
    return seen


def local_noising(encoders: FloatArray) -> FloatArray:
    """Injected <- base noise for one causal encoder per node, (n, T, T) to (T n, T n)."""
    n, T, _ = encoders.shape
    N = np.zeros((T, n, T, n))
    for u in range(n):
        N[:, u, :, u] = np.linalg.inv(encoders[u])
    return N.reshape(T * n, T * n)


def pairwise_factor(edges: Sequence[tuple[int, int]], num_nodes: int, local: float, pair: float) -> FloatArray:
    """[local I, pair N]: one private column per node, then one column per edge."""
    F = np.zeros((num_nodes, num_nodes + len(edges)))
    F[:, :num_nodes] = local * np.eye(num_nodes)
    for column, (i, j) in enumerate(edges):
        F[i, num_nodes + column], F[j, num_nodes + column] = pair, -pair
    return F


def node_columns(matrix: FloatArray, node: int, num_nodes: int) -> FloatArray:
    return matrix[:, node::num_nodes]


def without_noise(B: FloatArray, known: Collection[int]) -> FloatArray:
    out = B.copy()
    out[:, sorted(known)] = 0.0
    return out


def append_known_noise(A: FloatArray, B: FloatArray, known: Collection[int]) -> tuple[FloatArray, FloatArray]:
    """The other way to know noise: B untouched, one further row that shows each known part."""
    rows = np.eye(B.shape[1])[sorted(known)]
    return np.vstack([A, np.zeros((len(rows), A.shape[1]))]), np.vstack([B, rows])


def pinv_gram(A: FloatArray, B: FloatArray, *, cutoff: float = 1e-9) -> tuple[FloatArray, NDArray[np.bool_]]:
    """(A^T (B B^T)^+ A, columns of A with a part outside the range of B), by one singular value decomposition."""
    if not B.any():
        return np.zeros((A.shape[1],) * 2), np.abs(A).sum(axis=0) > 0
    U, sigma, _ = np.linalg.svd(B)
    rank = int((sigma > cutoff * sigma[0]).sum())
    Y = (U[:, :rank].T @ A) / sigma[:rank, None]
    outside = np.linalg.norm(A - U[:, :rank] @ (U[:, :rank].T @ A), axis=0)
    return Y.T @ Y, outside > 1e-7 * max(1.0, float(np.abs(A).max(initial=0.0)))


def clear_rank(B: FloatArray, low: float = 1e-13, high: float = 1e-5) -> bool:
    """Whether no singular value of B, relative to the largest, lies between low and high."""
    sigma = np.linalg.svd(B, compute_uv=False)
    return not sigma.size or not ((sigma > low * sigma[0]) & (sigma < high * sigma[0])).any()


def dense_gossip_workload(gossip: Gossip, num_steps: int) -> FloatArray:
    """W_T, shape (T n, T n): block (t, s) is the product W_{t-1} ... W_s, the identity for t = s."""
    return gossip_messages(gossip, num_steps, rate=-1.0)[0]


def dense_averaged_workload(gossip: Gossip, num_steps: int) -> FloatArray:
    """blockdiag(W_t) W_T: what enters the models after averaging; (T n, T n)."""
    n = gossip.num_nodes
    blocks = dense_gossip_workload(gossip, num_steps).reshape(num_steps, n, -1)
    averaged = [gossip.at(t).weights.toarray() @ blocks[t] for t in range(num_steps)]
    return np.concatenate(averaged)


def dense_noising(algorithm: LinearAlgorithm) -> FloatArray:
    """N, with F[i, k] C_k^-1 in its rows of slot i and columns of part k, both time-major; or C^-1 of joint noise."""
    if (joint := algorithm.noise.joint) is not None:
        return np.asarray(np.linalg.inv(joint.array))
    noise = algorithm.noise.causal
    assert noise is not None
    N = np.zeros((noise.num_steps, noise.slots_per_step, noise.num_steps, noise.columns_per_step))
    for (i, k), entry in np.ndenumerate(noise.mixing.toarray()):
        N[:, i, :, k] = entry * np.linalg.inv(noise.column_encoder(k))
    return N.reshape(noise.shape)


def dense_node_error_grams(gossip: Gossip, num_steps: int, objective: str = "post-average") -> FloatArray:
    """H_u = A_u^T A_u, shape (n, T, T); A_u: the columns of node u in the workload of the counted models."""
    counted = dense_averaged_workload if objective == "post-average" else dense_gossip_workload
    by_node = [node_columns(counted(gossip, num_steps), node, gossip.num_nodes) for node in range(gossip.num_nodes)]
    return np.stack([A.T @ A for A in by_node])


def dense_error_gram(gossip: Gossip, num_steps: int, objective: str = "post-average") -> FloatArray:
    """H = sum over nodes of H_u, shape (T, T)."""
    return dense_node_error_grams(gossip, num_steps, objective).sum(axis=0)


def prefix_sum(num_steps: int) -> FloatArray:
    """Ones on and below the diagonal, shape (T, T).

    >>> prefix_sum(2)
    array([[1., 0.],
           [1., 1.]])
    """
    return np.array([[float(s <= t) for s in range(num_steps)] for t in range(num_steps)])


# ---- over the rationals ----------------------------------------------------------------------------------------------

Rational = list[list[Fraction]]
Mask = NDArray[np.bool_]


def rational(matrix: FloatArray) -> Rational:
    return [[Fraction(float(x)) for x in row] for row in matrix]


def to_float(matrix: Rational) -> FloatArray:
    return np.array([[float(x) for x in row] for row in matrix])


def exact_gram(encoder: ArrayLike) -> Rational:
    """C^T C; the entries of C are taken as the exact binary numbers they are.

    >>> exact_gram([[1, 0], [2, 3]])[0]
    [Fraction(5, 1), Fraction(6, 1)]
    """
    C = flint_matrix(rational(np.asarray(encoder)))
    return fractions(C.transpose() * C)


def rank(matrix: Rational) -> int:
    """Rank over the rationals.

    >>> rank(rational(np.array([[1, 3], [2, 6]]))), rank(rational(np.array([[0.1, 0.3], [1, 3]])))  # 3 * 0.1 > 0.3
    (1, 2)
    """
    return int(flint_matrix(matrix).rank())


def rows_span(spanning: FloatArray, wanted: FloatArray) -> bool:
    """Whether every wanted row is a rational combination of the spanning rows."""
    rows = rational(spanning)
    return rank(rows) == rank([*rows, *rational(wanted)])


def exact_leaks(A: Rational, B: Rational) -> list[bool]:
    """For each column of A whether it lies outside the range of B: [B | A], reduced, reaches below the rank of B."""
    reduced, _ = flint_matrix([[*b, *a] for a, b in zip(A, B, strict=True)]).rref()
    beyond = reduced.tolist()[rank(B) :]
    return [any(row[j] != 0 for row in beyond) for j in range(len(B[0]), len(B[0]) + len(A[0]))]


def exact_view_gram(A: Rational, B: Rational) -> Rational:
    """A^T (B B^T)^+ A for any A and B.

    With B = F C, F its pivot columns and C the rows of its reduced form, both of full rank,
    (B B^T)^+ = F (F^T F)^-1 (C C^T)^-1 (F^T F)^-1 F^T.
    """
    reduced, r = flint_matrix(B).rref()
    rows = reduced.tolist()[:r]
    if not r:
        return [[Fraction(0)] * len(A[0]) for _ in A[0]]
    pivots = [next(j for j, x in enumerate(row) if x != 0) for row in rows]
    F, C = flint_matrix([[row[j] for j in pivots] for row in B]), flint.fmpq_mat(rows)
    K = (F.transpose() * F).solve(F.transpose() * flint_matrix(A))
    return fractions(K.transpose() * (C * C.transpose()).solve(K))


def flint_matrix(matrix: Rational) -> flint.fmpq_mat:
    entries = [flint.fmpq(x.numerator, x.denominator) for row in matrix for x in row]
    return flint.fmpq_mat(len(matrix), len(matrix[0]) if matrix else 0, entries)


def fractions(matrix: flint.fmpq_mat) -> Rational:
    return [[Fraction(int(x.p), int(x.q)) for x in row] for row in matrix.tolist()]


@dataclasses.dataclass(frozen=True, eq=False)
class ExactRun:
    """Rows over the columns (gradients, time-major; base noise, time-major).

    Attributes:
        messages: one list of rows per round. models: of the rounds that take a gradient, before it. final: after all.
        num_gradients: T n, the first columns; the others are noise.
    """

    messages: list[Rational]
    models: list[Rational]
    final: Rational
    num_gradients: int


def exact_run(algorithm: LinearAlgorithm, reactions: FloatArray | None = None) -> ExactRun:
    """Messages and models as exact combinations of gradients and base noise; start models removed.

    Args: reactions: r, shape (T, n): the gradient of node u at step t is r[t, u] times its model, plus a part of its
        own (the column); default none.
    """
    T, n = algorithm.num_steps, algorithm.num_nodes
    noising = algorithm.noise.matmat(np.eye(algorithm.noise.shape[1]))
    N = np.hstack([np.zeros((len(noising), T * n)), noising])
    slots, width = len(N) // T, N.shape[1]
    M = flint_matrix(rational(algorithm.model_from_state.toarray()))
    state = flint.fmpq_mat(M.ncols(), width)
    messages, models = [], []
    for kind, t in zip(algorithm.rounds, algorithm.step_of_round, strict=True):
        gradient, noise = flint.fmpq_mat(n, width), flint.fmpq_mat(slots, width)
        if t >= 0:
            models_before = M * state
            models.append(fractions(models_before))
            gradient = flint_matrix(rational(np.eye(n, width, t * n)))
            if reactions is not None:
                gradient += flint_matrix(rational(np.diag(reactions[t]))) * models_before
            noise = flint_matrix(rational(N[t * slots : (t + 1) * slots]))
        m, after = flint.fmpq_mat(algorithm.messages_per_round, width), flint.fmpq_mat(M.ncols(), width)
        for part, x in (("state", state), ("gradient", gradient), ("noise", noise)):
            m += _times(getattr(kind, f"message_from_{part}"), x, m)
            after += _times(getattr(kind, f"state_from_{part}"), x, after)
        messages.append(fractions(m))
        state = after + _times(kind.state_from_message, m, after)
    return ExactRun(messages, models, fractions(M * state), T * n)


def exact_view(
    run: ExactRun,
    seen: Mask,
    known_noise: Collection[int] = (),
    *,
    release: str = "none",
    combination: Sequence[Sequence[Fraction]] | None = None,
) -> tuple[Rational, Rational]:
    """(A, B) of one who sees messages by a mask (rounds, messages), or a combination of each round's, and final models.

    A combination is of the messages that the mask has in the round, and of those that it never has.

    Args: known_noise: columns of the base noise whose values are known; release: "none", "average" or "all".
    """
    rows: Rational = []
    for r, sent in enumerate(run.messages):
        if combination is not None:  # of rounds with something to combine
            here = [visible or not any(mask[i] for mask in seen) for i, visible in enumerate(seen[r])]
            counted = [[x if keep else Fraction(0) for x, keep in zip(row, here, strict=True)] for row in combination]
            combined = flint_matrix(counted) * flint_matrix(sent)
            rows += fractions(combined) if seen[r].any() else []
        else:
            rows += [row for row, visible in zip(sent, seen[r], strict=True) if visible]
    if release == "all":
        rows += run.final
    if release == "average":
        count = len(run.final)
        rows.append([sum(column, Fraction(0)) / count for column in zip(*run.final, strict=True)])
    split = run.num_gradients
    hidden = [i not in set(known_noise) for i in range(len(run.final[0]) - split)]
    B = [[x if keep else Fraction(0) for x, keep in zip(row[split:], hidden, strict=True)] for row in rows]
    return [row[:split] for row in rows], B


def _times(matrix: Any, x: flint.fmpq_mat, like: flint.fmpq_mat) -> flint.fmpq_mat:
    """matrix @ x, or zeros shaped as `like` where there is no map."""
    return like * 0 if matrix is None else flint_matrix(rational(matrix.toarray())) * x
