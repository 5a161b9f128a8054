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

import flint
import numpy as np
from numpy.typing import NDArray

from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from .rational import Rational, flint_matrix, fractions, rational

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
    N = np.hstack(
        [np.zeros((algorithm.noise.shape[0], T * n)), algorithm.noise.matmat(np.eye(algorithm.noise.shape[1]))]
    )
    slots, width = len(N) // T, N.shape[1]
    M = flint_matrix(rational(algorithm.model_from_state.toarray()))
    state = flint.fmpq_mat(M.ncols(), width)
    messages, models = [], []
    for one, t in zip(algorithm.rounds, algorithm.step_of_round, strict=True):
        gradient, noise = flint.fmpq_mat(n, width), flint.fmpq_mat(slots, width)
        if t >= 0:
            held = M * state
            models.append(fractions(held))
            gradient = flint_matrix(rational(np.eye(n, width, t * n)))
            if reactions is not None:
                gradient += flint_matrix(rational(np.diag(reactions[t]))) * held
            noise = flint_matrix(rational(N[t * slots : (t + 1) * slots]))
        m, after = flint.fmpq_mat(algorithm.messages_per_round, width), flint.fmpq_mat(M.ncols(), width)
        for part, x in (("state", state), ("gradient", gradient), ("noise", noise)):
            m += _times(getattr(one, f"message_from_{part}"), x, m)
            after += _times(getattr(one, f"state_from_{part}"), x, after)
        messages.append(fractions(m))
        state = after + _times(one.state_from_message, m, after)
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
            here = [shown or not any(mask[i] for mask in seen) for i, shown in enumerate(seen[r])]
            counted = [[x if keep else Fraction(0) for x, keep in zip(row, here, strict=True)] for row in combination]
            combined = flint_matrix(counted) * flint_matrix(sent)
            rows += fractions(combined) if seen[r].any() else []
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


def _times(matrix: Any, x: flint.fmpq_mat, like: flint.fmpq_mat) -> flint.fmpq_mat:
    """matrix @ x, or zeros shaped as `like` where there is no map."""
    return like * 0 if matrix is None else flint_matrix(rational(matrix.toarray())) * x
