"""Noise correlated over time: from dynamics, error weights and participation to a certified encoder.

`factorize` poses the problem min tr(H X^-1) at unit sensitivity and solves it; `evaluate` puts a given encoder
to the same H, so that its gap says what a better one would save.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import solvers
from solvers import Factorization
from solvers.problem import FIXED, OPTIMAL, STOPPED

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_gram import error_gram, node_error_grams, prefix_sum_gram
from ..error_weights import ErrorWeights
from ..errors import InvalidInput, unknown_name
from ..participation import Participation

SOLVERS = ("dense", "autodiff")


def problem(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> solvers.FactorizationProblem:
    """The FactorizationProblem of one shared local encoder.

    Raises: UnsupportedMechanism: participation patterns overlap or leave a step out.
    """
    labels = participation.classes()
    return solvers.FactorizationProblem(
        error_gram(dynamics, participation.num_steps, weights=weights, objective=objective), labels
    )


def factorize(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    solver: str = "dense",
    tolerance: float = 1e-4,
    max_iterations: int = 5000,
    allow_stopped: bool = False,
) -> Factorization:
    """The best local encoder C of MAFALDA-SGD, shared by all nodes, with its certificate.

    Args:
        dynamics, participation: what trains, and who takes part when.
        weights, objective: which models count.
        solver: "dense" (L-BFGS on X) or "autodiff" (torch, same optimum).
        tolerance: certified relative gap to reach, > 0.
        allow_stopped: return a factorization that did not reach it instead of raising.

    Returns: Factorization; loss = sensitivity^2 tr(H X^-1), H for learning rate 1.
    Raises: NotConverged; UnsupportedMechanism: patterns not disjoint; InvalidInput: bad tolerance or names.
    Cost: O(T^3) per iteration, about a hundred iterations at tolerance 1e-4.
    Source: arXiv:2510.17480, Lemma 10 and Algorithm 2, with the exact Gram and a certificate.
    """
    posed = problem(dynamics, participation, weights=weights, objective=objective)
    solved = solve_problem(posed, solver=solver, tolerance=tolerance, max_iterations=max_iterations)
    return solved if allow_stopped else solved.require_converged(tolerance)


def solve_problem(
    posed: solvers.FactorizationProblem,
    *,
    solver: str = "dense",
    tolerance: float = 1e-4,
    max_iterations: int = 5000,
    start: FloatArray | None = None,
    device: str | None = None,
) -> Factorization:
    """One problem through the named solver; never raises for a stopped result (look at its status).

    `start` is a Gram matrix for the dense solver, `device` the torch device of the autodiff one.
    """
    check.positive(tolerance=tolerance)
    check.integer_at_least(1, max_iterations=max_iterations)
    if solver == "dense":
        return solvers.solve(posed, tolerance=tolerance, max_iterations=max_iterations, start=start)
    if solver == "autodiff":
        if start is not None:
            raise InvalidInput(
                "start is for solver='dense'; the autodiff solver starts from its parametrisation's own."
            )
        from solvers import autodiff  # brings torch

        return autodiff.solve(posed, tolerance=tolerance, max_iterations=max_iterations, device=device)
    raise unknown_name("solver", solver, SOLVERS)


@dataclasses.dataclass(frozen=True, eq=False)
class NodeFactorizations:
    """One factorization per node (MAFALDA-L); totals over nodes behave like one `Factorization`."""

    nodes: tuple[Factorization, ...]
    seconds: float

    @property
    def encoder(self) -> FloatArray:
        """C_u, shape (n, T, T)."""
        return np.stack([f.encoder for f in self.nodes])

    @property
    def loss(self) -> float:
        """Sum over nodes."""
        return sum(f.loss for f in self.nodes)

    @property
    def lower_bound(self) -> float:
        """Sum over nodes: valid since the nodes' problems are separate."""
        return sum(f.lower_bound for f in self.nodes)

    @property
    def gap(self) -> float:
        """loss / lower_bound - 1."""
        return self.loss / self.lower_bound - 1

    @property
    def status(self) -> str:
        """optimal when every node is, fixed when nothing was optimised, else stopped."""
        (status, *others) = {f.status for f in self.nodes}
        return STOPPED if others or status not in (OPTIMAL, FIXED) else status

    @property
    def iterations(self) -> int:
        """Sum over nodes."""
        return sum(f.iterations for f in self.nodes)

    @property
    def sensitivity(self) -> float:
        """The largest of any node."""
        return max(f.sensitivity for f in self.nodes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Distinct notes of the nodes."""
        return tuple(dict.fromkeys(note for f in self.nodes for note in f.notes))


def factorize_nodes(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float = 1e-4,
    max_iterations: int = 5000,
    allow_stopped: bool = False,
    progress: Any = None,
) -> NodeFactorizations:
    """One encoder per node from its own error Gram H_u (MAFALDA-L).

    Each node starts from the solution of the node before, so later nodes take fewer iterations; nodes with the
    same Gram (symmetric graphs) share one solution. `progress`, if given, is called after each node.
    """
    labels = participation.classes()
    began = time.perf_counter()
    solved: list[Factorization] = []
    grams: list[FloatArray] = []
    for H in node_error_grams(dynamics, participation.num_steps, weights=weights, objective=objective):
        twin = next((i for i, seen in enumerate(grams) if np.array_equal(seen, H)), None)
        if twin is not None:
            solved.append(solved[twin])
        else:
            posed = solvers.FactorizationProblem(H, labels)
            result = solve_problem(
                posed,
                tolerance=tolerance,
                max_iterations=max_iterations,
                start=solved[-1].gram if solved else None,
            )
            solved.append(result if allow_stopped else result.require_converged(tolerance))
        grams.append(H)
        if progress is not None:
            progress()
    return NodeFactorizations(tuple(solved), time.perf_counter() - began)


def evaluate(posed: solvers.FactorizationProblem, encoder: FloatArray, *, lower_bound: float) -> Factorization:
    """A given encoder at the problem's H: status "fixed", loss at unit sensitivity, the given lower bound.

    The encoder is scaled to sensitivity 1. `lower_bound` is that of the best encoder (solve the problem once).
    """
    began = time.perf_counter()
    C = check.square_array(encoder=encoder)
    if C.shape[0] != posed.size:
        raise InvalidInput(f"encoder must have shape ({posed.size}, {posed.size}), got {C.shape}.")
    X = C.T @ C
    sensitivity = posed.sensitivity_squared(X) ** 0.5
    if sensitivity == 0:
        raise InvalidInput("encoder must not be zero: its noise would have to be infinite.")
    C, X = C / sensitivity, X / sensitivity**2
    return Factorization(
        encoder=C,
        gram=X,
        loss=posed.loss(X),
        lower_bound=lower_bound,
        status=FIXED,
        iterations=0,
        seconds=time.perf_counter() - began,
        sensitivity=posed.sensitivity_squared(X) ** 0.5,
    )


def evaluate_nodes(
    grams: FloatArray, participation: Participation, encoders: FloatArray, *, lower_bounds: Sequence[float]
) -> NodeFactorizations:
    """Given encoders, one per node, at the nodes' error Grams; all are scaled by the largest sensitivity.

    Args: grams, encoders: shape (n, T, T); lower_bounds: of the best encoder of each node.
    """
    began = time.perf_counter()
    labels = participation.classes()
    posed = [solvers.FactorizationProblem(H, labels) for H in grams]
    worst = max(p.sensitivity_squared(C.T @ C) for p, C in zip(posed, encoders, strict=True)) ** 0.5
    nodes = []
    for p, C, bound in zip(posed, encoders, lower_bounds, strict=True):
        unit = evaluate(p, C, lower_bound=bound)
        share = p.sensitivity_squared(C.T @ C) ** 0.5 / worst  # one noise level serves all nodes
        nodes.append(
            dataclasses.replace(
                unit,
                encoder=C / worst,
                gram=unit.gram * share**2,
                loss=unit.loss / share**2,
                sensitivity=unit.sensitivity * share,
            )
        )
    return NodeFactorizations(tuple(nodes), time.perf_counter() - began)


PREFIX_SUM_TOLERANCE = 1e-6
"""D-MF is judged by another H than it is solved for, where its loss moves by the root of the gap, not by the gap."""


def prefix_sum_encoder(
    participation: Participation, *, tolerance: float = PREFIX_SUM_TOLERANCE, max_iterations: int = 5000
) -> Factorization:
    """The matrix-mechanism encoder for prefix sums (D-MF): the same solver with H = A^T A, A the prefix sums.

    Source: arXiv:2306.08153 for the centralized mechanism; used on gossip graphs as D-MF by arXiv:2510.17480.
    """
    posed = solvers.FactorizationProblem(prefix_sum_gram(participation.num_steps), participation.classes())
    solved = solve_problem(posed, tolerance=tolerance, max_iterations=max_iterations)
    return solved.require_converged(tolerance)


def square_root_encoder(num_steps: int, bandwidth: int | None = None) -> FloatArray:
    """BSR: the lower-triangular Toeplitz square root of the prefix sum, banded.

    Coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, 5/16, ...; unbanded, C @ C is the prefix sum.

    Args: num_steps: T; bandwidth: number of non-zero diagonals, default T.
    Source: arXiv:2405.13763 (banded square root), with a lower-triangular Toeplitz matrix.
    """
    check.integer_at_least(1, num_steps=num_steps)
    width = num_steps if bandwidth is None else min(check.integer_at_least(1, bandwidth=bandwidth), num_steps)
    j = np.arange(1, width)
    coefficients = np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])
    lag = np.subtract.outer(np.arange(num_steps), np.arange(num_steps))
    inside = (lag >= 0) & (lag < width)
    return np.where(inside, coefficients[np.where(inside, lag, 0)], 0.0)
