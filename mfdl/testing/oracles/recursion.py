"""An algorithm over the rationals, written from its maps alone: what it sends, and what an attacker is left with.

Nothing is shared with `mfdl.operators`, `mfdl.trust`, `mfdl.view`, `mfdl.privacy` or the executor: round after round,
m = P s + Q g + R e and s' = K m + F s + J g + L e, in fractions. Floats are the binary fractions that they are. Sizes:
some ten rows and columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from .rational import Rational, rational

Mask = NDArray[np.bool_]


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
    N = rational(algorithm.noise.matmat(np.eye(algorithm.noise.shape[1])))
    slots, width = len(N) // T, T * n + algorithm.noise.shape[1]
    M = rational(algorithm.model_from_state.toarray())
    state = _zeros(len(M[0]), width)
    messages, models = [], []
    for one, t in zip(algorithm.rounds, algorithm.step_of_round, strict=True):
        gradient, noise = _zeros(n, width), _zeros(slots, width)
        if t >= 0:
            held = _times(M, state)
            models.append(held)
            for u in range(n):
                if reactions is not None:
                    gradient[u] = [Fraction(float(reactions[t, u])) * x for x in held[u]]
                gradient[u][t * n + u] += 1
            noise = [[Fraction(0)] * (T * n) + row for row in N[t * slots : (t + 1) * slots]]
        m = _sum(
            algorithm.messages_per_round,
            width,
            (one.message_from_state, state),
            (one.message_from_gradient, gradient),
            (one.message_from_noise, noise),
        )
        messages.append(m)
        state = _sum(
            len(state),
            width,
            (one.state_from_message, m),
            (one.state_from_state, state),
            (one.state_from_gradient, gradient),
            (one.state_from_noise, noise),
        )
    return ExactRun(messages, models, _times(M, state), T * n)


def exact_view(
    run: ExactRun,
    seen: Mask,
    known_noise: Collection[int] = (),
    *,
    release: str = "none",
    combination: Sequence[Sequence[Fraction]] | None = None,
) -> tuple[Rational, Rational]:
    """(A, B) of one who sees messages by a mask (rounds, messages), or a combination of each round's, and final models.

    Args: known_noise: columns of the base noise whose values are known; release: "none", "average" or "all".
    """
    rows: Rational = []
    for r, sent in enumerate(run.messages):
        if combination is not None:  # of rounds with something to combine
            rows += _times([list(row) for row in combination], sent) if seen[r].any() else []
        else:
            rows += [row for row, shown in zip(sent, seen[r], strict=True) if shown]
    if release == "all":
        rows += run.final
    if release == "average":
        count = len(run.final)
        rows.append([sum(column, Fraction(0)) / count for column in zip(*run.final, strict=True)])
    split = run.num_gradients
    hidden = [i not in set(known_noise) for i in range(len(run.final[0]) - split)]
    B = [[x if keep else Fraction(0) for x, keep in zip(row[split:], hidden, strict=True)] for row in rows]
    return [row[:split] for row in rows], B


def _zeros(rows: int, columns: int) -> Rational:
    return [[Fraction(0)] * columns for _ in range(rows)]


def _times(matrix: Rational, x: Rational) -> Rational:
    out = _zeros(len(matrix), len(x[0]) if x else 0)
    for i, row in enumerate(matrix):
        for weight, other in zip(row, x, strict=True):
            if weight:
                out[i] = [a + weight * b if b else a for a, b in zip(out[i], other, strict=True)]
    return out


def _sum(rows: int, columns: int, *products: tuple[Any, Rational]) -> Rational:
    total = _zeros(rows, columns)
    for matrix, x in products:
        if matrix is not None:
            part = _times(rational(matrix.toarray()), x)
            total = [[a + b for a, b in zip(r, q, strict=True)] for r, q in zip(total, part, strict=True)]
    return total
