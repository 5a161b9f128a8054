"""Noise from seeds shared in groups that withstands coalitions: solved, repaired, certified.

In: a `CoalitionProblem`. Out: private variance s and a covariance R_k per group that satisfy every constraint in
float64, with objective, lower bound and gap.

Where H has a kernel within a group the optimum is not attained. A small multiple of the projector on that kernel is
then added to the cost of R_k, tied to the tolerance; objective and lower bound are those of the H that was given.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np

from .arithmetic import EPS, ITERATION, blas_threads
from .coalition_methods import interior_point
from .coalition_problem import CoalitionProblem, group_kernels, outsider_bound
from .problem import OPTIMAL, STOPPED, Array, Certified, ProblemError, Stopping
from .ties import equal_to_largest, first_largest

METHODS = ("newton", "conic")
USUAL_HERE = Stopping(tolerance=1e-3, max_iterations=500)
MAX_UNKNOWNS = 5_000  # matrices of 200 MB, up to seven at a time
RIDGE_FLOOR = 1e-14  # relative to the largest eigenvalue of H

Feasible = tuple[float, list[Array], tuple[tuple[int, ...], int, float]]
"""s, R_k, and the coalition, node and value of the tightest constraint."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CoalitionFactorization(Certified):
    """Noise that withstands every coalition, with what it costs and how far that is from the best.

    Attributes:
        private_variance: s, the variance of what each node draws alone; covariance: R.
        parts: R_k of each group, shape (|H_k|, |H_k|), rows and columns in the order of the group.
        objective: tr(H R) at the bound r = 1; no s and R_k that satisfy the constraints have less than `lower_bound`.
        worst: the coalition, the node and the value [M^-1]_ii (rounded up, at most 1) of the tightest constraint.
    """

    private_variance: float
    parts: tuple[Array, ...]
    covariance: Array
    worst: tuple[tuple[int, ...], int, float]


def solve(
    problem: CoalitionProblem, stopping: Stopping = USUAL_HERE, *, method: str = "newton"
) -> CoalitionFactorization:
    """Minimises tr(H R) over private and shared noise, to a certified relative gap.

    >>> two = CoalitionProblem(np.array([[1.0, 0.9], [0.9, 1.0]]), ((0, 1),), 0)
    >>> round(solve(two).objective, 2)  # (tr H^1/2)^2 / 2, against tr H = 2 without a shared seed
    1.44

    Args:
        stopping: wanted gap, below about 1e-7 float64 ends the search; Newton steps, or interior-point iterations.
        method: "newton", or "conic": the semidefinite program by cvxpy and Clarabel, slow, for comparison.
    Guarantees: every [(s I + sum of R_k over U(I))^-1]_ii is at most 1 in float64, whatever the status: the result is
        scaled up by the largest, rounded up. With private noise the objective is never above tr H (LDP), but for that
        rounding.
    Raises: ProblemError: method, or more than MAX_UNKNOWNS free entries. RuntimeError: the conic solver found no point.
    Cost: per Newton step O(K p^2 + J p^2 + p^3) for K blocks, J constraints and p free entries of the R_k.
    """
    began = time.perf_counter()
    if method not in METHODS:
        raise ProblemError(f"method must be one of {METHODS}, got {method!r}.")
    unknowns = sum(len(group) * (len(group) + 1) // 2 for group in problem.groups)
    if unknowns > MAX_UNKNOWNS and problem.exposed is None and method == "newton":
        raise ProblemError(
            f"groups of these sizes make {unknowns} unknowns, more than {MAX_UNKNOWNS}; take smaller groups."
        )
    if problem.exponent:
        return solve(problem.normalised, stopping, method=method).shifted(problem.exponent)
    if problem.exposed is None:
        with blas_threads(unknowns, single_up_to=ITERATION):
            (s, parts, worst), bound, iterations, notes = _searched(problem, stopping, method)
    else:
        s, parts, worst = feasible(problem, 1.0, _no_seeds(problem))
        bound, iterations = problem.local_loss * (1 - 4 * problem.size * EPS), 0
        reason = "node {1} has no seed that coalition {0} does not know".format(*problem.exposed)
        notes = (f"{reason}: every node needs the private noise of LDP, and shared seeds cannot help",)
    objective = problem.objective(s, parts)
    return CoalitionFactorization(
        private_variance=s,
        parts=tuple(parts),
        covariance=problem.covariance(s, parts),
        objective=objective,
        lower_bound=bound,
        status=OPTIMAL if stopping.reached(objective, bound) else STOPPED,
        iterations=iterations,
        seconds=time.perf_counter() - began,
        worst=worst,
        notes=notes,
    )


def _searched(
    problem: CoalitionProblem, stopping: Stopping, method: str
) -> tuple[Feasible, float, int, tuple[str, ...]]:
    """The best feasible noise, the best bound, iterations and notes, over falling ridges."""
    best = feasible(problem, 1.0, _no_seeds(problem)) if problem.private else None
    bound, iterations = outsider_bound(problem), 0
    kernels = group_kernels(problem)
    for ridge in _ridges(problem, kernels, stopping.tolerance):
        costs, early = _costs(problem, kernels, ridge)
        left = Stopping(stopping.tolerance, stopping.max_iterations - iterations)
        if method == "conic":
            from .coalition_methods import solve_conic  # it brings cvxpy, seconds to import

            s, parts, proven, steps = solve_conic(problem, costs, left)
        else:
            s, parts, proven, steps = interior_point(problem, costs, early, left)
        bound, iterations = max(bound, proven), iterations + steps
        answer = feasible(problem, s, parts)
        if best is None or problem.objective(*answer[:2]) < problem.objective(*best[:2]):
            best = answer
        if stopping.reached(problem.objective(*best[:2]), bound) or iterations >= stopping.max_iterations:
            break
    assert best is not None  # there is at least one ridge
    singular = any(kernel.size for kernel in kernels)
    notes = (_note_on_kernels(ridge, problem.covariance(*best[:2])),) if singular else ()
    return best, bound, iterations, notes


def _no_seeds(problem: CoalitionProblem) -> list[Array]:
    return [np.zeros((len(group), len(group))) for group in problem.groups]


def feasible(problem: CoalitionProblem, private_variance: float, parts: Sequence[Array]) -> Feasible:
    """(s, R_k) scaled so that the largest left side, rounded up, is at most 1; and where it is attained.

    What is too ill-conditioned to invert first gets a little more noise, 1e-12 of the largest entry in every group (and
    in s if it may) and ten times more until it can be inverted.
    """
    s, parts = private_variance, [(part + part.T) / 2 for part in parts]
    exposed = problem.exposed
    if problem.private and not any(part.any() for part in parts):  # M = s I: no rounding
        blocks = problem.blocks
        at_hand = exposed or (blocks.coalitions[0], int(np.argmax(blocks.constrained[0])))  # exact: booleans
        return 1.0, parts, (*at_hand, 1.0)
    lift = 1e-12 * max([s, EPS, *(float(np.abs(part).max()) for part in parts)])
    scaled = False
    while True:
        upper = problem.inverse_diagonal_upper_bounds(s, parts)
        alone = -math.inf if exposed is None else 1 / s if s > 0 else math.inf
        top = max(alone, float(upper.max(initial=-math.inf)))
        if not math.isfinite(top):
            s, parts = s + lift * problem.private, [part + lift * np.eye(len(part)) for part in parts]
            lift *= 10
        elif scaled and top <= 1:
            break
        else:
            factor, scaled = top * (1 + 4 * EPS), True
            s, parts = s * factor, [part * factor for part in parts]
    if exposed is not None and equal_to_largest([alone, top])[0]:
        return s, parts, (*exposed, top)
    block, node = np.unravel_index(first_largest(upper), upper.shape)
    return s, parts, (problem.blocks.coalitions[int(block)], int(node), top)


def _ridges(problem: CoalitionProblem, kernels: Sequence[Array], tolerance: float) -> list[float]:
    """Costs per unit of noise in kernels of H, to be tried in this order; 0 when there is no kernel.

    For one observer and one group, H + rho I costs a factor (1 + sqrt(rho) n / ||H^1/2||_*)^2 at most; the first rho
    keeps that within a quarter of the tolerance. Where groups overlap it may cost more, so smaller ones follow.
    """
    if not any(kernel.size for kernel in kernels):
        return [0.0]
    values = np.linalg.svd(problem.root, compute_uv=False)
    floor = RIDGE_FLOOR * float(values[0]) ** 2
    ridges = [max((tolerance / 8 * float(values.sum()) / problem.size) ** 2, floor)]
    while ridges[-1] > floor:
        ridges.append(max(ridges[-1] / 100, floor))
    return ridges


def _note_on_kernels(ridge: float, covariance: Array) -> str:
    return (
        "error_gram is singular to working precision within a group: the best objective is not attained, the noise "
        f"grows without bound where it costs nothing, so a cost of {ridge:.2g} was put on it; the largest eigenvalue "
        f"of R is {float(np.linalg.eigvalsh(covariance)[-1]):.3g}"
    )


def _costs(problem: CoalitionProblem, kernels: Sequence[Array], ridge: float) -> tuple[list[Array], list[Array]]:
    """H restricted to each group with a ridge on its kernel; and what early iterates get on top, per unit of t."""
    grams = [problem.root[list(group)] @ problem.root[list(group)].T for group in problem.groups]
    projectors = [kernel @ kernel.T for kernel in kernels]
    bounded = ridge**0.5 / float(np.linalg.norm(problem.root, 2))  # keeps that noise below 1 / bounded
    costs = [gram + ridge * projector for gram, projector in zip(grams, projectors, strict=True)]
    return costs, [bounded * projector for projector in projectors]
