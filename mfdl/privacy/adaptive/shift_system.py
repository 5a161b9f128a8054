"""The program of shift reduction: the recursion of a `ShiftProblem` with its masks, and what a choice of shifts costs.

Symbols: `shift_reduction`. Whatever is proposed is repaired and recomputed here, rounded up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from ...check import FloatArray
from ...floats import UNIT
from .shift_problem import ShiftProblem

DENSE_BYTES = 2**28  # mixing matrices are multiplied as dense arrays while they fit here
PSD_TOLERANCE = 1e-12  # only decides which of two valid forms of the cost is used


@dataclasses.dataclass(frozen=True, eq=False)
class Repaired:
    value: FloatArray  # (B,)
    absorbed: FloatArray  # (R, n, B)
    shifts: FloatArray  # (R, n, B)


class System:
    """The recursion with its masks: which r are free, which are 0, which must pass on all of d.

    Required zeros on nodes without noise travel backward: r_j = d_j = 0 needs s_j = 0 (unless L = 0), which needs r = 0
    at everybody j hears from, until it meets noise, or the source of the victim, which is a leak.
    """

    def __init__(self, problem: ShiftProblem) -> None:
        self.problem = problem
        R, n = problem.num_rounds, problem.num_nodes
        steps = problem.step_of_round
        injects = steps >= 0
        self.step_rounds = np.flatnonzero(injects)
        self.rate = np.where(injects, problem.rates[steps], 0.0)
        acts = injects[:, None] & problem.present[steps]
        self.growth = np.where(acts, problem.lipschitz[steps, None], 1.0)
        acts &= (self.rate > 0)[:, None]
        self.noise = acts & problem.noisy
        self.zero = problem.seen.copy()
        must_match = problem.pinned.copy()
        for r in range(R - 1, -1, -1):
            # any stored weight > 0 counts; sums of signs cannot underflow
            self.zero[r] |= (problem.mixing[r] > 0).astype(np.float64).T @ must_match[r + 1] > 0
            must_match[r] |= self.zero[r] & ~self.noise[r] & (self.growth[r] > 0)
        # what reaches no message or model that must match may pass on everything: absorbing it would win nothing
        matters = np.zeros(n, dtype=bool)
        for r in range(R - 1, -1, -1):
            idle = self.noise[r] & ~self.zero[r] & ~matters
            self.noise[r] &= ~idle
            of_d = np.where(self.zero[r], self.noise[r], matters)
            if r > 0:
                matters = (self.growth[r] > 0) & ((problem.mixing[r - 1] > 0).astype(np.float64).T @ of_d > 0)
        self.free = self.noise & ~self.zero
        self.forced = ~self.noise & ~self.zero
        self.exposed = self.zero & ~self.noise & acts
        self.scale = np.zeros((R, n))  # b = scale * a is the shift of the unit noise, rounded up
        np.divide(problem.divisors[None, :], self.rate[:, None], out=self.scale, where=self.noise)
        self.scale *= 1 + 4 * UNIT
        self.cost = _Cost(problem)
        distinct = {id(W): W for W in problem.mixing}
        if 8 * n * n * len(distinct) <= DENSE_BYTES and max(W.nnz for W in distinct.values()) >= 0.02 * n * n:
            operators: dict[int, Any] = {key: W.toarray() for key, W in distinct.items()}
        else:
            operators = dict(distinct)
        transposed = {key: W.T.tocsr() if issparse(W) else np.ascontiguousarray(W.T) for key, W in operators.items()}
        self.forward_weights = [operators[id(W)] for W in problem.mixing]
        self.backward_weights = [transposed[id(W)] for W in problem.mixing]
        longest = {key: int(np.diff(W.indptr).max(initial=0)) for key, W in distinct.items()}
        self.rounding = [1 + 2 * (longest[id(W)] + 4) * UNIT for W in problem.mixing]  # of one entry of W r, r >= 0

    def leaks(self, victim: int, steps: NDArray[np.int64]) -> bool:
        """Whether the record's own source must vanish at a message that no noise hides."""
        return bool(self.exposed[self.step_rounds[steps], victim].any())

    def sources(self, columns: Sequence[tuple[int, NDArray[np.int64]]]) -> FloatArray:
        """(R, n, B) the victims' sources eta_t / m_u, rounded up."""
        source = np.zeros((self.problem.num_rounds, self.problem.num_nodes, len(columns)))
        for k, (u, steps) in enumerate(columns):
            rounds = self.step_rounds[steps]
            moved = self.rate[rounds] / self.problem.divisors[u] * (1 + 2 * UNIT)
            source[rounds, u, k] = np.where(self.problem.present[steps, u], moved, 0.0)
        return source

    def repaired(self, shifts: FloatArray, source: FloatArray) -> Repaired:
        """The nearest feasible point in the order of rounds, with its cost rounded up.

        All quantities are sums of products of numbers >= 0, so each is inflated by its own relative error bound; the
        clipped r are then exact numbers, and d - r is an upper bound on what must be absorbed.
        """
        R, n, width = source.shape
        absorbed, kept = np.zeros((R, n, width)), np.empty((R, n, width))
        s = np.zeros((n, width))
        leak = np.zeros(width, dtype=bool)
        for r in range(R):
            d = (self.growth[r][:, None] * s + source[r]) * (1 + 4 * UNIT)
            free, forced = self.free[r][:, None], self.forced[r][:, None]
            kept[r] = np.where(free, np.clip(shifts[r], 0.0, d), np.where(forced, d, 0.0))
            absorbed[r] = np.where(self.noise[r][:, None], (d - kept[r]) * (1 + 2 * UNIT), 0.0)
            # the masks above leave none of these; checked all the same, against the problem itself
            wrong = (s > 0) & self.problem.pinned[r][:, None] | (kept[r] > 0) & self.problem.seen[r][:, None]
            wrong |= (d > 0) & (self.zero[r] & ~self.noise[r])[:, None]
            leak |= wrong.any(axis=0)
            s = (self.forward_weights[r] @ kept[r]) * self.rounding[r]
        leak |= (self.problem.pinned[R][:, None] & (s > 0)).any(axis=0)
        b = (self.scale[:, :, None] * absorbed)[self.step_rounds]
        terms = 2 * self.problem.num_steps + 10
        value = np.einsum("tnb,tnb->b", b, self.cost.apply(b)) * (1 + 4 * (terms + b.shape[0] * n) * UNIT)
        valid = np.isfinite(value) & ~leak  # overflow, and all that follows from it, is inf
        value = np.where(value > 0, np.nextafter(value, np.inf), 0.0)
        return Repaired(np.where(valid, value, math.inf), absorbed, kept)


class _Cost:
    """The quadratic form sum_j b_j^T Q_j b_j of unit-noise shifts b, shape (T, n, B): Q >= 0 entrywise, convex."""

    def __init__(self, problem: ShiftProblem) -> None:
        T, n = problem.num_steps, problem.num_nodes
        self.matrix: FloatArray | None = None  # (T, T) shared or (n, T, T)
        if problem.noise_weights is not None:
            self.diagonal = problem.noise_weights
        elif problem.noise_gram is None:
            self.diagonal = np.ones((T, n))
        else:
            magnitudes = np.abs(problem.noise_gram)
            blocks = magnitudes if magnitudes.ndim == 3 else magnitudes[None]
            forms = np.stack([_convex_form(block) for block in blocks])
            diagonals = np.diagonal(forms, axis1=1, axis2=2)
            self.diagonal = np.broadcast_to(diagonals.T, (T, n))
            if np.count_nonzero(forms) > np.count_nonzero(diagonals):
                self.matrix = forms if magnitudes.ndim == 3 else forms[0]

    def apply(self, b: FloatArray) -> FloatArray:
        if self.matrix is None:
            return self.diagonal[:, :, None] * b
        T, n, width = b.shape
        if self.matrix.ndim == 2:
            return (self.matrix @ b.reshape(T, n * width)).reshape(T, n, width)
        return np.moveaxis(self.matrix @ np.moveaxis(b, 1, 0), 0, 1)


def _convex_form(magnitudes: FloatArray) -> FloatArray:
    """|X| if positive semi-definite (then the tighter form), else its row sums as a diagonal, rounded up."""
    spectrum = np.linalg.eigvalsh(magnitudes)
    if spectrum[0] >= -PSD_TOLERANCE * spectrum[-1]:
        return magnitudes
    T = len(magnitudes)
    return np.diag(magnitudes.sum(axis=1) * (1 + 2 * T * UNIT))


# Boundary
