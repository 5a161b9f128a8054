"""Shift reduction: a privacy bound with hidden messages that holds for adaptively chosen gradients.

In: a `ShiftProblem`, arrays that say which node mixes with which, what is seen, where noise enters. Out: mu^2 per
victim and pattern, for record shift 1 and noise standard deviation 1. Algorithms and trust models are not known here.
Statement, conditions and proof: `docs/shift_reduction.md`. Symbols: `docs/notation.md`, and per round r and node j

    s_j(r)  bound on how far the two neighbouring runs differ in j's model before round r,
    d_j(r)  the same after the local step, L s_j(r) plus the victim's own source,
    a_j(r)  the part that j's noise absorbs,    r_j(r) = d_j(r) - a_j(r)  the part that j's message still carries,

with s(0) = 0 and s(r + 1) = |W_r| r(r). Every feasible choice of r gives a valid bound, so the solver is not trusted:
what is returned is always recomputed from a repaired point, rounded up (`cost_upper_bound`).
The program and that recomputation are in `shift_system`, the method that searches for good shifts in `shift_solver`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import check
from ...check import FloatArray
from ...errors import InvalidInput
from .shift_problem import ShiftProblem
from .shift_solver import minimise
from .shift_system import System

CONVERGED_GAP = 1e-4
CHUNK_ENTRIES = 2**18  # entries of one (rounds, nodes, columns) array: 2 MB; some fifteen are alive at a time


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftBound:
    """The bound for each victim (first axis) and pattern (second axis), per unit record shift and unit noise.

    Attributes:
        sensitivity_squared: (V, P) mu^2, never below the true value under the conditions of the theorem; may be inf.
        lower_estimate: (V, P) value of a dual feasible point: no choice of shifts goes lower, up to rounding. It says
            how far the solver got; it is no lower bound on the privacy loss.
        iterations: the largest number of iterations used by a group of victims.
        shifts: (V, P, R, n) the r that attains `sensitivity_squared`, if asked for.
    """

    sensitivity_squared: FloatArray
    lower_estimate: FloatArray
    iterations: int
    shifts: FloatArray | None = None

    @property
    def relative_gap(self) -> FloatArray:
        """(V, P) how much of the value could at most be won by solving further; 0 where it is 0 or inf."""
        value = self.sensitivity_squared
        open_ = np.isfinite(value) & (value > 0)
        return np.where(open_, 1 - self.lower_estimate / np.where(open_, value, 1.0), 0.0)

    @property
    def converged(self) -> bool:
        """Whether every relative gap is at most 1e-4; where not, the value is valid but larger than it need be."""
        return bool((self.relative_gap <= CONVERGED_GAP).all())


def solve(
    problem: ShiftProblem,
    victims: Sequence[int],
    patterns: Sequence[Sequence[int]],
    *,
    iterations: int = 20_000,
    tolerance: float = 1e-6,
    return_shifts: bool = False,
) -> ShiftBound:
    """mu^2 of each victim under each pattern: the smallest total cost of absorbing what its record changes.

    Accelerated projected gradients on r >= 0, all victims and patterns at once, with a restart per column and
    diagonal step sizes from the row sums of the Hessian; a >= 0 is kept by an augmented Lagrangian where noise is
    correlated in time, and holds by itself otherwise.

    Args:
        victims: node indices.
        patterns: for each pattern the steps in which the record takes part.
        iterations: most iterations per group of columns; 0 returns the value in which every noisy node absorbs all.
        tolerance: columns whose relative gap is at most this are finished.
        return_shifts: also return the point; V P R n numbers.

    Guarantees:
        Never below the optimum of the program, whatever the solver did: the value is recomputed from a repaired point
        with directed rounding. inf where a difference would be seen without noise.
    Raises:
        InvalidInput: a victim that is no node, a pattern that is empty or names a step out of range or twice.
    Cost: per iteration and column, two passes over all nonzero weights of all rounds (over n^2 per round for n in the
        hundreds, as dense products); memory for some fifteen arrays of 2 MB, or of R n numbers if that is more.
    """
    iterations = check.integer_at_least(0, iterations=iterations)
    tolerance = check.non_negative(tolerance=tolerance)
    columns = _columns(problem, victims, patterns)
    with np.errstate(over="ignore", invalid="ignore"):  # a value that overflows is returned as inf
        return _solve(problem, columns, (len(victims), len(patterns)), iterations, tolerance, return_shifts)


def cost_upper_bound(problem: ShiftProblem, victim: int, pattern: Sequence[int], shifts: Any) -> float:
    """mu^2 of one choice of shifts after repair: a valid bound for any array whatever.

    The shifts are clipped to [0, d], set to 0 where zero is required and to d where a node has no noise; the recursion
    is run forward in the order of the rounds and rounded up. inf where a difference is seen without noise.

    Args:
        shifts: (R, n) proposed r; entries that are not numbers count as 0.
    """
    system = System(problem)
    column = _columns(problem, [victim], [pattern])
    proposed = np.nan_to_num(np.array(shifts, dtype=np.float64), nan=0.0)
    if proposed.shape != (problem.num_rounds, problem.num_nodes):
        raise InvalidInput(f"shifts must have shape {(problem.num_rounds, problem.num_nodes)}, got {proposed.shape}.")
    if system.leaks(*column[0]):
        return math.inf
    with np.errstate(over="ignore", invalid="ignore"):  # a value that overflows is returned as inf
        return float(system.repaired(proposed[:, :, None], system.sources(column)).value[0])


def _solve(
    problem: ShiftProblem,
    columns: list[tuple[int, NDArray[np.int64]]],
    shape: tuple[int, int],
    iterations: int,
    tolerance: float,
    return_shifts: bool,
) -> ShiftBound:
    system = System(problem)
    value = np.full(len(columns), math.inf)
    lower = np.full(len(columns), math.inf)
    shifts = np.zeros((len(columns), problem.num_rounds, problem.num_nodes)) if return_shifts else None
    open_columns = [k for k, (u, steps) in enumerate(columns) if not system.leaks(u, steps)]
    width = max(1, CHUNK_ENTRIES // (problem.num_rounds * problem.num_nodes))
    most = 0
    for start in range(0, len(open_columns), width):
        chunk = open_columns[start : start + width]
        found = minimise(system, system.sources([columns[k] for k in chunk]), iterations, tolerance)
        value[chunk], lower[chunk], most = found.value, found.lower, max(most, found.iterations)
        if shifts is not None:
            shifts[chunk] = np.moveaxis(found.shifts, 2, 0)
    return ShiftBound(
        value.reshape(shape),
        lower.reshape(shape),
        most,
        None if shifts is None else shifts.reshape(*shape, problem.num_rounds, problem.num_nodes),
    )


def _columns(
    problem: ShiftProblem, victims: Sequence[int], patterns: Sequence[Sequence[int]]
) -> list[tuple[int, NDArray[np.int64]]]:
    """(victim, steps) of every column, victims first."""
    nodes = [check.integer_at_least(0, victim=u) for u in victims]
    if any(u >= problem.num_nodes for u in nodes):
        raise InvalidInput(f"victim must be a node index below {problem.num_nodes}, got {max(nodes)}.")
    checked: list[NDArray[np.int64]] = []
    for pattern in patterns:
        steps = np.array([check.integer_at_least(0, step=t) for t in pattern], dtype=np.int64)
        if steps.size == 0 or steps.max() >= problem.num_steps or np.unique(steps).size < steps.size:
            raise InvalidInput(
                f"a pattern must hold distinct steps from 0 .. {problem.num_steps - 1}, at least one, got "
                f"{steps.tolist()}."
            )
        checked.append(steps)
    return [(u, steps) for u in nodes for steps in checked]
