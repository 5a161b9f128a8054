"""What rounds that are alike save: patterns that others bound, and shifts of a long run from those of a short one.

Let all rounds of a step be those of the next step, in their masks, weights, rates and constants, and let a feasible
choice of shifts be moved by one step, with no shifts in the step that is new. It is feasible for the pattern that is
moved, and costs no more where the cost of a step is at most that of the step it came from,

- one step later, if no final model is released: nothing is required at the end;
- one step earlier, if all are: what is left at the end is zero, and so it stays one step longer.

So of patterns that are the same but for a shift in time the first bounds all in the one case, the last in the other.

The best shifts of a long run that repeats are those of a shorter run at both ends, and repeat between, up to what
decays with the distance from the ends. They are a start for the solver, and no bound rests on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...check import FloatArray
from .shift_problem import Cost, ShiftProblem

SHORTEST = 96  # rounds of the run that is solved first, and at least
PERIODS = 3


def worst_patterns(problem: ShiftProblem, patterns: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Patterns whose bounds are at least those of all the given ones."""
    ordered = [tuple(sorted(pattern)) for pattern in patterns]
    labels, at_end = _labels(problem), problem.pinned[-1]
    steps = np.flatnonzero(problem.step_of_round >= 0)
    ahead = int(steps[1]) if len(steps) > 1 else len(labels)  # rounds of a step
    if steps[0] or (labels[ahead:] != labels[:-ahead]).any() or not (at_end.all() or not at_end.any()):
        return ordered
    cost = Cost(problem)
    if cost.matrix is None:
        earlier, later = cost.diagonal[:-1], cost.diagonal[1:]
    else:
        earlier, later = cost.matrix[..., :-1, :-1], cost.matrix[..., 1:, 1:]
    if (later > earlier).any() if not at_end.any() else (earlier > later).any():
        return ordered
    by_gaps: dict[bytes, tuple[int, ...]] = {}
    for pattern in sorted(ordered, reverse=not at_end.any()):
        by_gaps[np.diff(pattern).tobytes()] = pattern
    return list(by_gaps.values())


@dataclasses.dataclass(frozen=True, eq=False)
class ShortRun:
    """A run with rounds between two ends left out.

    Attributes: problem: its own; columns: victims and their steps; first, period, repeats: its shifts of the `period`
        rounds before `first` stand `repeats` times more in the long run.
    """

    problem: ShiftProblem
    columns: list[tuple[int, NDArray[np.int64]]]
    first: int
    period: int
    repeats: int

    @classmethod
    def of(cls, problem: ShiftProblem, columns: list[tuple[int, NDArray[np.int64]]]) -> ShortRun | None:
        """None of a run that does not repeat itself, or hardly, or has noise correlated in time."""
        R, steps, rounds = problem.num_rounds, problem.step_of_round, np.flatnonzero(problem.step_of_round >= 0)
        if problem.noise_gram is not None or len(columns[0][1]) < 2:
            return None
        period = int(np.diff(rounds[np.sort(columns[0][1])[:2]])[0])
        joined = np.zeros((len(columns), R), dtype=bool)
        for k, (_, pattern) in enumerate(columns):
            joined[k, rounds[pattern]] = True
        labels = _labels(problem)
        if (labels[period:] != labels[:-period]).any() or (joined[:, period:] != joined[:, :-period]).any():
            return None
        length = max(PERIODS, -(-SHORTEST // period))
        repeats, first = R // period - length, -(-length // 2) * period
        if repeats < length:
            return None
        keep = np.r_[0:first, first + repeats * period : R]
        left = steps[keep][steps[keep] >= 0]
        numbers = np.cumsum(steps[keep] >= 0) - 1
        weights = problem.noise_weights
        short = dataclasses.replace(
            problem,
            mixing=[problem.mixing[r] for r in keep],
            step_of_round=np.where(steps[keep] >= 0, numbers, -1),
            rates=problem.rates[left],
            lipschitz=problem.lipschitz[left],
            seen=problem.seen[keep],
            pinned=problem.pinned[np.r_[keep, R]],
            noise_weights=None if weights is None else weights[left],
            present=problem.present[left],
        )
        return cls(
            short, [(u, numbers[j[keep]]) for (u, _), j in zip(columns, joined, strict=True)], first, period, repeats
        )

    def stretched(self, shifts: FloatArray) -> FloatArray:
        """Shifts of the long run, (R, n, B)."""
        middle = np.tile(shifts[self.first - self.period : self.first], (self.repeats, 1, 1))
        return np.concatenate([shifts[: self.first], middle, shifts[self.first :]])


def _labels(problem: ShiftProblem) -> NDArray[np.intp]:
    """Equal numbers for rounds that are alike, shape (R,)."""
    numbers: dict[tuple[object, ...], int] = {}
    labels = []
    for r, t in enumerate(problem.step_of_round.tolist()):
        key: tuple[object, ...] = (id(problem.mixing[r]), problem.seen[r].tobytes(), problem.pinned[r].tobytes())
        if t >= 0:
            weights = b"" if problem.noise_weights is None else problem.noise_weights[t].tobytes()
            key += (problem.rates[t], problem.lipschitz[t], problem.present[t].tobytes(), weights)
        labels.append(numbers.setdefault(key, len(numbers)))
    return np.asarray(labels)
