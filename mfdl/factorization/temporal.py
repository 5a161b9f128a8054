"""Noise correlated over time: from dynamics, error weights and participation to a certified encoder.

`factorize` poses the problem min tr(H X^-1) at unit sensitivity, or that of the largest error of a step (measure
"maximum"), and solves it; `evaluate` puts a given encoder to the same errors, so that its gap says what a better one
would save. An encoder for each node: `nodes`.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import scipy.linalg

import mfdl_solvers
from mfdl_solvers import Factorization, FactorizationProblem, MaximumProblem, kronecker_encoder, maximum_encoder
from mfdl_solvers.problem import FIXED

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput, require_known
from ..gossip.randomized import RandomGossip
from ..objective import ErrorWeights, Probes
from ..objective.estimated_grams import EstimatedGram
from ..participation import Participation
from ..progress import Progress, reporter
from ..spec import refusing, storable
from . import solutions
from .encoders import square_root_series
from .setting import SHAPES, STEPS, USUAL_TOLERANCE, Setting, checked_stopping, solver_refusals

SOLVERS = ("dense", "autodiff")
SUM, MAXIMUM = MEASURES = ("sum", "maximum")
"""Of the errors of the models after each step."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EstimatedProblem(FactorizationProblem):
    """A problem with an estimated H: objective, lower bound and gap of its solution refer to the estimate, and say so.

    Its sensitivity, and with it privacy where every message is seen, takes the encoder and nothing of H.
    """

    estimate: EstimatedGram = dataclasses.field(compare=False)

    def with_objective_error(self, solved: Factorization) -> EstimatedFactorization:
        """What solves it, with how far its objective on the graph itself may be."""
        note = (
            f"H is estimated from {len(self.estimate.of_probes)} {self.estimate.source}: objective, lower bound and "
            "gap refer to this estimate; on the graph itself the objective is within `objective_error` in 95 % of draws"
        )
        facts = {field.name: getattr(solved, field.name) for field in dataclasses.fields(solved)}
        error = solved.sensitivity**2 * self.estimate.objective(solved.encoder).error
        return EstimatedFactorization(**{**facts, "notes": (*solved.notes, note)}, objective_error=error)


@storable
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EstimatedFactorization(Factorization):
    """A factorization for an estimated H.

    Attributes: objective_error: half the width of the 95 % interval of the objective on the graph itself, around
        `objective`.
    """

    objective_error: float = dataclasses.field(kw_only=True)


@refusing({})
@solver_refusals()
def problem(
    dynamics: Any,
    participation: Participation | None = None,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    probes: Probes | None = None,
    averaged_over: RandomGossip | None = None,
    over: str = STEPS,
) -> FactorizationProblem:
    """The FactorizationProblem of one shared local encoder; an `EstimatedProblem` where the graph is too large for H.

    Args:
        dynamics, participation: what trains, and who takes part when; or a `LinearAlgorithm` alone, of any recursion
            whose noise enters with gradients, of T n <= 4096.
        weights, counted_models: which models count; default all alike, after averaging ("message": before).
        probes: of H where the graph is too large for its exact form (`NoiseObjective.estimated`); default 8.
        averaged_over: the encoder is made for the mean of H over gossip that is drawn anew in each round
            (`NoiseObjective.averaged`), in place of the gossip of `dynamics`: for all draws, before any.
        over: "steps": one encoder (T, T) for all nodes. "nodes": one per node, "both": any correlation, as one problem
            of T n <= 4096 indices, time-major; its solution is for `mf_dsgd`, and its bound for all of that shape.

    Raises: UnsupportedMechanism: participation patterns overlap or leave a step out, an algorithm without a Gram
        (`LinearAlgorithm.error_gram`); InvalidInput: a participation for another number of nodes, an error beyond
        float64.
    """
    require_known("over", over, SHAPES)
    recursion: Any = dynamics if hasattr(dynamics, "error_gram") else None  # a LinearAlgorithm, of a layer above
    if recursion is not None:
        if participation not in (None, recursion.participation):
            raise InvalidInput("participation must be left out with an algorithm, which has its own.")
        dynamics, participation = recursion.dynamics, recursion.participation
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)  # type: ignore[arg-type]
    labels, noise = setting.classes(), setting.noise_objective
    if recursion is not None or over != STEPS:
        if probes is not None or averaged_over is not None:
            raise InvalidInput("probes and averaged_over are for dynamics and over='steps'; leave them out.")
        joint = labels if over == STEPS else kronecker_encoder.joint_classes(labels, noise.dynamics.num_nodes)
        return FactorizationProblem(setting.gram_over(over, recursion), joint)
    H = noise.exact_or_estimated(probes) if averaged_over is None else noise.averaged(averaged_over, probes)
    if isinstance(H, EstimatedGram):
        return EstimatedProblem(H.gram, labels, H)
    return FactorizationProblem(H, labels)


@refusing({})
@solver_refusals()
def maximum_problem(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
) -> MaximumProblem:
    """The problem of one shared local encoder whose objective is the largest error of a step, not the sum.

    Args: as for `problem`; an error is w_r times the variance in the counted models after step r, over nodes together.
    Raises: as `problem`; InvalidInput: released models, of which there is one; UnsupportedMechanism: T above 512.
    Cost: that of `NoiseObjective.over_each_step`, T^3 numbers.
    """
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)
    return MaximumProblem(setting.noise_objective.over_each_step(), setting.classes())


@refusing({})
def factorize(
    dynamics: Any,
    participation: Participation | None = None,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    tolerance: float | None = None,
    max_iterations: int = 5000,
    progress: Progress = "auto",
    solver: str = "dense",
    allow_stopped: bool = False,
    probes: Probes | None = None,
    averaged_over: RandomGossip | None = None,
    measure: str = SUM,
) -> Factorization:
    """The best local encoder C of MAFALDA-SGD, shared by all nodes, with its certificate.

    Args:
        dynamics, participation, weights, counted_models, probes, averaged_over: as for `problem`.
        measure: "sum" of the errors of the steps, or "maximum", their largest (MaxSE; `maximum_problem`).
        tolerance: certified relative gap to reach, > 0; default 1e-4. max_iterations: of the solver.
        progress: True, False, "auto" (see `mfdl.progress`), or a function: called with the iterations so far and the
            certified gap, by the solvers that certify on their way.
        solver: "dense" (the dual; L-BFGS on X for a singular H) or "autodiff" (torch, same optimum).
        allow_stopped: return a factorization that did not reach the tolerance instead of raising.

    Returns: Factorization; objective = sensitivity^2 tr(H X^-1), H for learning rate 1; of measure "maximum" the
        largest sensitivity^2 w_r tr(H_r X^-1), over the nodes that count together.
    Raises: NotConverged; UnsupportedMechanism: patterns not disjoint; InvalidInput: bad tolerance or names, an
        objective beyond float64.
    Cost: O(T^3) per iteration, about a hundred iterations at tolerance 1e-4; T^3 numbers for measure "maximum".
    Source: arXiv:2510.17480, Lemma 10 and Algorithm 2, with the exact Gram and a certificate.
    """
    ends = checked_stopping(USUAL_TOLERANCE if tolerance is None else tolerance, max_iterations)
    counted: dict[str, Any] = {"weights": weights, "counted_models": counted_models}
    require_known("measure", measure, MEASURES)
    posed: FactorizationProblem | MaximumProblem
    if measure == SUM:
        posed = problem(dynamics, participation, probes=probes, averaged_over=averaged_over, **counted)
    elif probes is None and averaged_over is None:
        posed = maximum_problem(dynamics, participation, **counted)  # type: ignore[arg-type]  # checked there
    else:
        raise InvalidInput("measure 'maximum' takes neither probes nor averaged_over: H must be known; leave them out.")
    options: dict[str, Any] = {"solver": solver, "progress": progress}
    solved = solve_problem(posed, tolerance=ends.tolerance, max_iterations=ends.max_iterations, **options)
    return solved if allow_stopped else solved.require_converged(ends.tolerance)


@solver_refusals()
def solve_problem(
    posed: FactorizationProblem | MaximumProblem,
    *,
    solver: str = "dense",
    tolerance: float = 1e-4,
    max_iterations: int = 5000,
    start: FloatArray | None = None,
    device: str | None = None,
    progress: Progress = "auto",
) -> Factorization:
    """One problem through the named solver; never raises for a stopped result (look at its status).

    `start` is a Gram matrix for the dense solver, `device` the torch device of the autodiff one; `progress`: as for
    `factorize`.
    """
    check.instance(FactorizationProblem, MaximumProblem, posed=posed)
    stopping = checked_stopping(tolerance, max_iterations)
    require_known("solver", solver, SOLVERS)
    if isinstance(posed, MaximumProblem) and (solver != "dense" or start is not None):
        raise InvalidInput("the largest error is minimised by solver='dense', which starts by itself; leave out start.")
    if solver == "autodiff" and start is not None:
        raise InvalidInput("start is for solver='dense'; the autodiff solver starts from its parametrisation's own.")
    with reporter(progress).search(f"factorizing {posed.size} steps", stopping.tolerance) as report:
        stopping = dataclasses.replace(stopping, report=report)
        if isinstance(posed, MaximumProblem):
            solved = solutions.solved(maximum_encoder.solve, posed, stopping=stopping)
        elif solver == "dense":
            solved = solutions.solved(mfdl_solvers.solve, posed, stopping=stopping, start=start)
        else:
            from mfdl_solvers import autodiff  # brings torch

            solved = autodiff.solve(posed, stopping=stopping, device=device)
    return _with_error(posed, solved)


@solver_refusals()
def evaluate(posed: FactorizationProblem | MaximumProblem, encoder: FloatArray, *, lower_bound: float) -> Factorization:
    """A given encoder at the problem's H: status "fixed", objective at unit sensitivity, the given lower bound.

    The encoder is scaled to sensitivity 1. `lower_bound` is that of the best encoder (solve the problem once).
    Raises: InvalidInput: an encoder of another size or zero, an objective beyond float64.
    """
    check.instance(FactorizationProblem, MaximumProblem, posed=posed)
    began = time.perf_counter()
    C = check.square_array(encoder=encoder)
    if C.shape[0] != posed.size:
        raise InvalidInput(f"encoder must have shape ({posed.size}, {posed.size}), got {C.shape}.")
    X = C.T @ C
    sensitivity = posed.sensitivity_squared(X) ** 0.5
    if sensitivity == 0:
        raise InvalidInput("encoder must not be zero: its noise would have to be infinite.")
    C, X = C / sensitivity, X / sensitivity**2
    fixed = Factorization(
        encoder=C,
        gram=X,
        objective=posed.objective(X),
        lower_bound=lower_bound,
        status=FIXED,
        iterations=0,
        seconds=time.perf_counter() - began,
        sensitivity=posed.sensitivity_squared(X) ** 0.5,
    )
    return _with_error(posed, fixed)


def _with_error(posed: FactorizationProblem | MaximumProblem, solved: Factorization) -> Factorization:
    return posed.with_objective_error(solved) if isinstance(posed, EstimatedProblem) else solved


PREFIX_SUM_TOLERANCE = 1e-6
"""D-MF is judged by another H than it is solved for; there its objective moves by the root of the gap."""


def prefix_sum_encoder(
    participation: Participation,
    *,
    tolerance: float = PREFIX_SUM_TOLERANCE,
    max_iterations: int = 5000,
    progress: Progress = "auto",
) -> Factorization:
    """The matrix-mechanism encoder for prefix sums (D-MF): the same solver with H = A^T A, A the prefix sums.

    Source: arXiv:2306.08153 for the centralized mechanism; used on gossip graphs as D-MF by arXiv:2510.17480.
    """
    check.instance(Participation, participation=participation)
    posed = FactorizationProblem(prefix_sum_gram(participation.num_steps), participation.classes())
    solved = solve_problem(posed, tolerance=tolerance, max_iterations=max_iterations, progress=progress)
    return solved.require_converged(tolerance)


def prefix_sum_gram(num_steps: int) -> FloatArray:
    """A^T A for the prefix sums A (ones lower triangular): H[s, t] = T - max(s, t)."""
    check.integer_at_least(1, num_steps=num_steps)
    index = np.arange(num_steps)
    return (num_steps - np.maximum.outer(index, index)).astype(np.float64)


def square_root_encoder(num_steps: int, bandwidth: int | None = None) -> FloatArray:
    """BSR: the lower-triangular Toeplitz square root of the prefix sum, banded.

    Coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, 5/16, ...; unbanded, C @ C is the prefix sum.
    Source: arXiv:2405.13763 (banded square root), with a lower-triangular Toeplitz matrix.
    """
    check.integer_at_least(1, num_steps=num_steps)
    width = num_steps if bandwidth is None else check.at_most_steps(num_steps, bandwidth=bandwidth)
    coefficients = square_root_series(width)
    return np.asarray(scipy.linalg.toeplitz(np.pad(coefficients, (0, num_steps - width)), np.zeros(num_steps)))
