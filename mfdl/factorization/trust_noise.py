"""Covariances of node-local noise that are the best for given views: arrays of a trust model in, certified noise out.

Per attacker a view O = A G + V Z, Z with one column for each slot of each node. A record moves what is seen by its
columns of A at the steps of a pattern, times gradients of norm at most 1, whose inner products are any correlation
matrix U: with a factor U = C C^T its shift is the columns of A C. Signs are the extreme U of patterns of one or two
steps. Of longer ones those that exceed the budget beside all signs join the problem until none does.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mfdl_solvers.local_noise import LocalCovariances, LocalNoiseProblem, NoiseView, solve_local_noise
from mfdl_solvers.problem import OPTIMAL, STOPPED

from ..check import FloatArray
from ..errors import UnsupportedMechanism
from ..participation import Participation
from ..sensitivity.elliptope import maximise
from ..spec import storable
from .setting import checked_stopping, solver_refusals
from .solutions import solved

MAX_SHIFTS = 20_000
"""Shifts of all attackers, victims, patterns and signs together."""
MAX_CUTS, SWEEPS = 8, 40  # solves with further correlation matrices, and sweeps of the search for each
storable(LocalCovariances)


class AttackerView(NamedTuple):
    """What an attacker sees.

    Attributes:
        gradients: A, shape (rows, T, n); noise: V, shape (rows, blocks, slots of a block), without what it knows.
        victims: nodes; budgets: mu of each of them; name: of the attacker; attackers: nodes that attack together.
    """

    gradients: FloatArray
    noise: FloatArray
    victims: Sequence[int]
    budgets: FloatArray
    name: str
    attackers: tuple[int, ...]

    def shifts(self, patterns: Sequence[NDArray[np.intp]]) -> Iterator[FloatArray]:
        """What one record moves at the steps of its pattern, / mu: (rows, steps), victim after victim."""
        for victim, budget in zip(self.victims, self.budgets, strict=True):
            yield from (self.gradients[:, pattern, victim] / budget for pattern in patterns)


def optimal_local_noise(
    views: Sequence[AttackerView],
    costs: FloatArray,
    participation: Participation,
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 200,
) -> LocalCovariances:
    """The cheapest independent noise of blocks, at record shift 1, for every attacker, victim and pattern.

    Args: costs: H_v + price I of each block, shape (blocks, slots, slots), positive definite; one block: as for
        `LocalNoiseProblem`.
    Raises: InvalidInput: a record that some attacker sees without noise, or a problem beyond the solver's size.
        UnsupportedMechanism: more than MAX_SHIFTS shifts, or patterns that are not listed.
    """
    patterns = _listed(participation, sum(len(view.victims) for view in views))
    views = [view for view in views if view.gradients.any()] or views
    shifts = [list(view.shifts(patterns)) for view in views]
    factors, most = [[_signs(shift.shape[1]) for shift in of_view] for of_view in shifts], max(map(len, patterns))
    stopping, bound = checked_stopping(tolerance, max_iterations), 0.0
    for cuts in range(1, MAX_CUTS + 1):
        with solver_refusals():
            problem = LocalNoiseProblem(costs, list(map(_solver_view, views, shifts, factors)))
            noise = solved(solve_local_noise, problem, stopping=stopping if most <= 2 else stopping.share(0.5))
        if most <= 2:
            break
        bound = max(bound, noise.lower_bound)
        ratio = _add_cuts(problem, noise.covariances, shifts, factors, 1 + tolerance / 8)
        objective = ratio * noise.objective
        if (optimal := stopping.reached(objective, bound)) or cuts == MAX_CUTS:
            status, covariances = OPTIMAL if optimal else STOPPED, ratio * noise.covariances
            facts = {"objective": objective, "lower_bound": bound, "status": status}
            return dataclasses.replace(noise, covariances=covariances, **facts)  # type: ignore[arg-type]
    return noise


def _solver_view(view: AttackerView, shifts: list[FloatArray], factors: list[list[FloatArray]]) -> NoiseView:
    columns = [shift @ factor for shift, several in zip(shifts, factors, strict=True) for factor in several]
    counts = np.array([part.shape[1] for part in columns])
    return NoiseView(view.noise, np.concatenate(columns, axis=1), np.ones(counts.size), view.name, counts)


def _signs(steps: int) -> list[FloatArray]:
    """Every choice of signs, the first of them +1, each as a column."""
    return [np.array([[1.0], *zip(signs)]) for signs in itertools.product((1.0, -1.0), repeat=steps - 1)]


def _add_cuts(
    problem: LocalNoiseProblem,
    covariances: FloatArray,
    shifts: list[list[FloatArray]],
    factors: list[list[list[FloatArray]]],
    allowed: float,
) -> float:
    """An upper bound on s / mu^2 over all correlation matrices, >= 1; those found above `allowed` join the factors."""
    largest = 1.0
    for small, shifts_of_view, factors_of_view in zip(problem.whitened, shifts, factors, strict=True):
        root = np.linalg.cholesky(small.gram(covariances))
        for steps in {shift.shape[1] for shift in shifts_of_view}:
            places = [place for place, shift in enumerate(shifts_of_view) if shift.shape[1] == steps]
            half = np.linalg.solve(root, small.unwhiten.T @ np.stack([shifts_of_view[place] for place in places]))
            grams = half.transpose(0, 2, 1) @ half
            values = maximise(grams, tolerance=(allowed - 1) / 4).upper
            largest = max(largest, float(values.max()))
            over = np.flatnonzero(values > allowed)
            for place, vectors in zip(over.tolist(), _worst_gradients(grams[over]), strict=True):
                factors_of_view[places[place]].append(vectors)
    return largest


def _worst_gradients(grams: FloatArray) -> FloatArray:
    """Unit vectors as rows, whose correlations have a large product with each Gram: by ascent over one at a time."""
    batch, steps = grams.shape[:2]
    vectors = np.random.default_rng(0).normal(size=(batch, steps, steps))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    for step in list(range(steps)) * SWEEPS:
        others = grams[:, step].copy()
        others[:, step] = 0.0
        pull = (others[:, None] @ vectors)[:, 0]
        size = np.linalg.norm(pull, axis=1, keepdims=True)
        vectors[:, step] = np.where(size > 0, pull / np.maximum(size, np.finfo(float).tiny), vectors[:, step])
    return vectors


def _listed(participation: Participation, pairs: int) -> list[NDArray[np.intp]]:
    """Every pattern of a record; raises UnsupportedMechanism."""
    uses = participation.patterns_of_record().uses
    count = participation.num_patterns * 2.0 ** (uses - 1) * pairs
    if not (math.isfinite(count) and count <= MAX_SHIFTS):
        raise UnsupportedMechanism(
            f"trust-optimal lists every pattern with its signs for each attacker and victim, at most {MAX_SHIFTS:,} "
            f"together; {participation.describe()} has {participation.num_patterns:,g} patterns of up to {uses} steps, "
            f"{count:,.3g} for {pairs:,} pairs; take fewer epochs or nodes."
        )
    return list(participation.patterns())
