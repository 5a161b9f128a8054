"""Noise correlated over steps and nodes at once: from dynamics, error weights and participation to a certified X.

Three forms of X = C^T C over time x nodes, each containing the one before:

- kronecker, X = X_t (x) R^-1: one encoder over steps for all base noise, one covariance R over nodes. The nodes' half
  may be any covariance of `node_covariances`, so seed groups and coalitions are covered;
- per-mode, X = sum_k X_k (x) f_k f_k^T: an encoder of its own for every direction over the nodes;
- joint, any X, where T n is small.

What the noise costs, tr(H X^-1), is minimised at unit sensitivity of every node. An attacker knows the noise of the
seeds it holds, so kronecker with one seed for all, per-mode and joint protect against outsiders only.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mfdl_solvers import kronecker_encoder, per_mode_encoder
from mfdl_solvers.kronecker_encoder import ModeProblem
from mfdl_solvers.problem import STOPPED, Certified, Stopping, objective_in_range

from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..gossip import Gossip
from ..noise import JointNoise, NoiseOperator, SpatioTemporalNoise
from ..objective import ErrorWeights
from ..participation import Participation
from ..progress import Progress, reporter
from ..spec import refusing, storable
from . import solutions
from .seeded_covariances import Seeds, SpatialFactorization, covariance_for_gram, default_tolerance, one_seed_from
from .setting import USUAL_TOLERANCE, Setting, checked_stopping, solver_refusals

KRONECKER, PER_MODE, JOINT = "kronecker", "per-mode", "joint"
KINDS = (KRONECKER, PER_MODE, JOINT)
PER_MODE_TOLERANCE = 1e-3
"""The gap that `optimal_per_mode` asks for by default: what its form costs is percents, and each iteration n T^3."""


@storable
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SpatioTemporalFactorization(Certified):
    """Noise over steps and nodes with who holds which part, what it costs and how far that is from the best.

    Attributes:
        kind: "kronecker", "per-mode" or "joint".
        num_steps, num_nodes: T, n.
        encoder: C over steps, shape (T, T); one per direction, (n, T, T); or over time x nodes, (T n, T n), time-major.
            Causal.
        space: kronecker: the covariance over nodes with its seed groups, at [R^-1]_ii <= 1.
        directions: per-mode: g_k in the columns, shape (n, n); base noise k is spread over the nodes by g_k.
        objective: tr(H X^-1) at unit sensitivity: variance in the counted models together, per unit of noise and
            coordinate.
        lower_bound: no noise over steps and nodes at unit sensitivity against an outsider costs less, of any form.
        independent_objective: that of independent noise at unit sensitivity.
        sensitivity: of X under the participation, an upper bound; 1 up to rounding.
        participation: what it was made for, as `Participation.to_dict` has it.
        gossip_hash: of the gossip it was made for.
    """

    kind: str
    num_steps: int
    num_nodes: int
    encoder: FloatArray
    independent_objective: float
    sensitivity: float
    participation: dict[str, Any]
    gossip_hash: str
    space: SpatialFactorization | None = None
    directions: FloatArray | None = None

    def __post_init__(self) -> None:
        parts = self.space is not None, self.directions is not None
        if self.kind not in KINDS or parts != (self.kind == KRONECKER, self.kind == PER_MODE):
            raise InvalidInput(
                f"a factorization over time and nodes is one of {', '.join(KINDS)}; kronecker alone has a covariance "
                f"over nodes and per-mode alone has directions, got {self.kind!r}."
            )

    def shifted(self, k: int) -> SpatioTemporalFactorization:
        """As for `Certified`; the objective of independent noise too."""
        alone = objective_in_range(self.independent_objective, k)
        return dataclasses.replace(super().shifted(k), independent_objective=alone)

    @property
    def coalition_size(self) -> int:
        """q; 0 is an eavesdropper who holds no seed."""
        return 0 if self.space is None else self.space.coalition_size

    def noise(self) -> NoiseOperator:
        """The operator from base noise to injected noise."""
        if self.space is not None:
            return SpatioTemporalNoise(self.encoder, *self.space.factor(), self.num_nodes)
        if self.directions is not None:
            everybody = np.ones((self.num_nodes, self.num_nodes), dtype=bool)
            return SpatioTemporalNoise(self.encoder, self.directions, everybody, self.num_nodes)
        return JointNoise(self.encoder, self.num_steps, self.num_nodes)


@refusing({})
@solver_refusals()
def optimal_kronecker(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    tolerance: float | None = None,
    max_iterations: int = 5000,
    progress: Progress = "auto",
    groups: Sequence[Sequence[int]] | None = None,
    coalition_size: int = 0,
) -> SpatioTemporalFactorization:
    """The best product of one encoder over steps and one covariance over nodes.

    Args: groups, coalition_size: as for `optimal_covariance`; default one seed for all, against outsiders. tolerance:
        of each half and of the alternation; default `default_tolerance`. The others: as for `factorize`.
    Returns: SpatioTemporalFactorization; look at its status. Unless it is "stopped", the product found is the best of
        its form with one seed for all, up to the tolerance; with groups neither half can be improved.
    Raises: UnsupportedMechanism: no modes (`NoiseObjective.by_modes`), or participation whose patterns overlap.
        InvalidInput: groups, coalitions, a participation for another number of nodes, an objective beyond float64.
    Cost: n T^3 for the modes; then per round one problem over T and one over n.
    """
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)
    seeds, began = Seeds(groups, coalition_size).checked(dynamics.num_nodes), time.perf_counter()
    usual = default_tolerance(groups, coalition_size)
    stopping = checked_stopping(usual if tolerance is None else tolerance, max_iterations)
    given = modes_problem(setting)
    solve = _one_seed if groups is None and coalition_size == 0 else _seed_groups
    with reporter(progress).status(setting.during(KRONECKER)):
        answer = solve(given.normalised, dynamics.gossip, seeds, stopping)
    independent = _independent_of_modes(given.normalised)
    return _answered(KRONECKER, setting, began, independent, **answer).shifted(given.exponent)


@refusing({})
@solver_refusals()
def optimal_per_mode(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    tolerance: float | None = None,
    max_iterations: int = 5000,
    progress: Progress = "auto",
) -> SpatioTemporalFactorization:
    """One encoder for every direction over the nodes; never worse than the product it begins with.

    That product is solved at the tolerance given here, so against `optimal_kronecker` at another tolerance the
    objective is no larger up to the larger of the two. Against outsiders. On graphs that look alike from every node it
    is the best noise of any form.

    Args: as for `factorize`; tolerance: default `PER_MODE_TOLERANCE`.
    Raises: as `optimal_kronecker`.
    Cost: per iteration n Cholesky factorizations of T x T; memory about 6 n T^2 and 600 MB.
    """
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)
    stopping = checked_stopping(PER_MODE_TOLERANCE if tolerance is None else tolerance, max_iterations)
    began, given = time.perf_counter(), modes_problem(setting)
    with reporter(progress).status(setting.during(PER_MODE)):
        solved = solutions.solved(per_mode_encoder.solve, given.normalised, stopping=stopping)
    answer = _solver_facts(solved) | {"iterations": solved.iterations + solved.kronecker.iterations}
    answer["directions"] = np.asarray(np.linalg.inv(solved.basis).T, dtype=np.float64)
    independent = _independent_of_modes(given.normalised)
    return _answered(PER_MODE, setting, began, independent, encoder=solved.encoders, **answer).shifted(given.exponent)


@refusing({})
@solver_refusals()
def optimal_joint(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    counted_models: str = "post-average",
    tolerance: float | None = None,
    max_iterations: int = 5000,
    progress: Progress = "auto",
) -> SpatioTemporalFactorization:
    """The best noise of any correlation over steps and nodes, certified; any gossip, small T n.

    Args: as for `factorize`.
    Raises: UnsupportedMechanism: T n above 4096, or participation whose patterns overlap. InvalidInput: a participation
        for another number of nodes, an objective beyond float64.
    Cost: O((T n)^3) per iteration, about a hundred of them.
    """
    setting = Setting(dynamics, participation, weights=weights, counted_models=counted_models)
    stopping = checked_stopping(USUAL_TOLERANCE if tolerance is None else tolerance, max_iterations)
    began, labels = time.perf_counter(), setting.classes()
    H = setting.noise_objective.over_both()
    with reporter(progress).search(setting.during(JOINT), stopping.tolerance) as report:
        stopping = dataclasses.replace(stopping, report=report)
        solved = solutions.solved(kronecker_encoder.solve_dense, H, labels, dynamics.num_nodes, stopping=stopping)
    independent = _independent(labels, np.diagonal(H).reshape(labels.size, -1).sum(axis=1))
    return _answered(JOINT, setting, began, independent, encoder=solved.encoder, **_solver_facts(solved))


def modes_problem(setting: Setting) -> ModeProblem:
    """H over steps and nodes by the modes of the gossip, with the classes of steps.

    Raises: UnsupportedMechanism: see `NoiseObjective.by_modes`, `Participation.classes`; InvalidInput: a participation
        for another number of nodes, an error beyond float64.
    """
    labels = setting.classes()
    U, grams = setting.noise_objective.by_modes()
    return ModeProblem(grams, U, labels)


def _one_seed(posed: ModeProblem, gossip: Gossip, seeds: Seeds, stopping: Stopping) -> dict[str, Any]:
    solved = solutions.solved(kronecker_encoder.solve, posed, stopping=stopping)
    d = posed.time_costs(solved.time.gram)
    node_covariance = one_seed_from(solved.space, posed.node_gram(d), tolerance=stopping.tolerance)
    space = dataclasses.replace(node_covariance, gossip_hash=gossip.content_hash)
    return _solver_facts(solved) | {
        "encoder": solved.time.encoder,
        "space": space,
        "objective": solved.time.sensitivity**2 * float(_node_costs(posed, space) @ d),  # of the R that is kept
        "status": STOPPED if STOPPED in (solved.status, space.status) else solved.status,
        "sensitivity": solved.time.sensitivity,
    }


def _seed_groups(posed: ModeProblem, gossip: Gossip, seeds: Seeds, stopping: Stopping) -> dict[str, Any]:
    def over_nodes(node_gram: FloatArray) -> tuple[SpatialFactorization, FloatArray, float]:
        half = covariance_for_gram(node_gram, gossip, seeds, stopping.share(kronecker_encoder.HALF_SHARE))
        return half, _node_costs(posed, half), 1.0

    best, _, facts = kronecker_encoder.alternate(posed, over_nodes, stopping)
    return {"encoder": best.time.encoder, "space": best.space, **facts}


def _node_costs(posed: ModeProblem, space: SpatialFactorization) -> FloatArray:
    """c_k = u_k^T R u_k."""
    U = posed.vectors
    return np.asarray(np.einsum("uk,uk->k", U, space.covariance @ U))


def _solver_facts(solved: Certified) -> dict[str, Any]:
    """What a solver says of its answer, under the names it has here."""
    names = ("objective", "lower_bound", "status", "iterations", "sensitivity", "notes")
    return {name: getattr(solved, name) for name in names}


def _answered(
    kind: str, setting: Setting, began: float, independent_objective: float, **answer: Any
) -> SpatioTemporalFactorization:
    return SpatioTemporalFactorization(
        kind=kind,
        num_steps=setting.participation.num_steps,
        num_nodes=setting.dynamics.num_nodes,
        independent_objective=independent_objective,
        seconds=time.perf_counter() - began,
        participation=setting.participation.to_dict(),
        gossip_hash=setting.dynamics.gossip.content_hash,
        **answer,
    )


def _independent_of_modes(posed: ModeProblem) -> float:
    return _independent(posed.classes, np.einsum("ktt->t", posed.grams))


def _independent(labels: Any, costs: FloatArray) -> float:
    """tr(H) k_max: X = I / k with k the steps of the largest class."""
    if not math.isfinite(objective := float(np.bincount(labels).max()) * float(costs.sum())):
        raise InvalidInput("the objective of independent noise is beyond float64; take smaller error weights.")
    return objective
