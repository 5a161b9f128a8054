"""Views and algorithms over the rationals (python-flint): rank, leaks and Gram without rounding.

An algorithm is written from its maps alone: what it sends, and the (A, B) that an attacker is left with. Nothing is
shared with `mfdl.operators`, `mfdl.trust`, `mfdl.privacy` or the executor: round after round,
m = P s + Q g + R e and s' = K m + F s + J g + L e, in fractions. Floats are the binary fractions that they are. Sizes:
some ten rows and columns.
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

Rational = list[list[Fraction]]
Mask = NDArray[np.bool_]


def rational(matrix: FloatArray) -> Rational:
    """The rational numbers that the floats are."""
    return [[Fraction(float(x)) for x in row] for row in matrix]


def to_float(matrix: Rational) -> FloatArray:
    """Nearest floats."""
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
    """For each column of A whether it lies outside the range of B.

    In the reduced [B | A] the rows below the rank of B hold what of A no combination of B's columns reaches.
    """
    reduced, _ = flint_matrix([[*b, *a] for a, b in zip(A, B, strict=True)]).rref()
    beyond = reduced.tolist()[rank(B) :]
    return [any(row[j] != 0 for row in beyond) for j in range(len(B[0]), len(B[0]) + len(A[0]))]


def exact_view_gram(A: Rational, B: Rational) -> Rational:
    """A^T (B B^T)^+ A for any A and B.

    B = F C with F the pivot columns of B and C the rows of its reduced form, both of full rank, so that
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

    Args:
        reactions: r, shape (T, n): the gradient of node u at step t is r[t, u] times its model, plus a part of its own
            (the column); default none. Gradients that react so are adaptive in the simplest way.
    """
    T, n = algorithm.num_steps, algorithm.num_nodes
    N = np.hstack(
        [np.zeros((algorithm.noise.shape[0], T * n)), algorithm.noise.matmat(np.eye(algorithm.noise.shape[1]))]
    )
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
