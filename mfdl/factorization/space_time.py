"""Noise correlated over steps and nodes at once: from dynamics, error weights and participation to a certified X.

Three forms of X = C^T C over time x nodes, each containing the one before:

- time-space, X = X_t (x) R^-1: one encoder over steps for all base noise, one covariance R over nodes. The nodes' half
  may be any covariance of `spatial`, so seed groups and coalitions are covered;
- adapted, X = sum_k X_k (x) f_k f_k^T: an encoder of its own for every direction over the nodes;
- space-time, any X, where T n is small.

What the noise costs, tr(H X^-1), is minimised at unit sensitivity of every node. An attacker knows the noise of the
seeds it holds, so time-space with one seed for all, adapted and space-time protect against outsiders only.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mfdl_solvers import adapted, spacetime, time_space
from mfdl_solvers.modes_problem import ModeProblem
from mfdl_solvers.problem import STOPPED, Certified, Stopping, loss_in_range

from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_gram import mode_error_grams, space_time_error_gram
from ..error_weights import ErrorWeights
from ..errors import InvalidInput
from ..gossip import Gossip
from ..noise import JointNoise, NoiseOperator, SpaceTimeNoise
from ..participation import Participation
from .boundary import checked_stopping, solver_refusals
from .spatial import Seeds, SpatialFactorization, covariance_for_gram, one_seed_from

TIME_SPACE, ADAPTED, SPACE_TIME = "time-space", "adapted", "space-time"
KINDS = (TIME_SPACE, ADAPTED, SPACE_TIME)
ADAPTED_TOLERANCE = 1e-3
"""The gap that `optimal_adapted` asks for by default: what its form costs is percents, and each iteration n T^3."""


@dataclasses.dataclass(frozen=True, eq=False)
class SpaceTimeFactorization(Certified):
    """Noise over steps and nodes with who holds which part, what it costs and how far that is from the best.

    Attributes:
        kind: "time-space", "adapted" or "space-time".
        num_steps, num_nodes: T, n.
        encoder: C over steps, shape (T, T); one per direction, (n, T, T); or over time x nodes, (T n, T n), time-major.
            Causal.
        space: time-space: the covariance over nodes with its seed groups, at [R^-1]_ii <= 1.
        directions: adapted: g_k in the columns, shape (n, n); base noise k is spread over the nodes by g_k.
        loss: tr(H X^-1) at unit sensitivity: variance in the counted models together, per unit of noise and coordinate.
        lower_bound: no noise over steps and nodes at unit sensitivity against an outsider costs less, of any form.
        independent_loss: that of independent noise at unit sensitivity.
        sensitivity: of X under the participation, an upper bound; 1 up to rounding.
        participation: what it was made for, as `Participation.to_dict` has it.
        gossip_hash: of the gossip it was made for.
    """

    kind: str
    num_steps: int
    num_nodes: int
    encoder: FloatArray
    independent_loss: float
    sensitivity: float
    participation: dict[str, Any]
    gossip_hash: str
    space: SpatialFactorization | None = None
    directions: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.space is not None, self.directions is not None) != (
            self.kind == TIME_SPACE,
            self.kind == ADAPTED,
        ):
            raise InvalidInput(
                f"a factorization over time and nodes is one of {', '.join(KINDS)}; time-space alone has a covariance "
                f"over nodes and adapted alone has directions, got {self.kind!r}."
            )

    def shifted(self, k: int) -> SpaceTimeFactorization:
        """As for `Certified`; the loss of independent noise and the half over nodes too."""
        return dataclasses.replace(
            super().shifted(k),
            independent_loss=loss_in_range(self.independent_loss, k),
            space=None if self.space is None else self.space.shifted(k),
        )

    @property
    def coalition_size(self) -> int:
        """q; 0 is an eavesdropper who holds no seed."""
        return 0 if self.space is None else self.space.coalition_size

    def noise(self) -> NoiseOperator:
        """The operator from base noise to injected noise."""
        if self.space is not None:
            return SpaceTimeNoise(self.encoder, *self.space.factor(), self.num_nodes)
        if self.directions is not None:
            everybody = np.ones((self.num_nodes, self.num_nodes), dtype=bool)
            return SpaceTimeNoise(self.encoder, self.directions, everybody, self.num_nodes)
        return JointNoise(self.encoder, self.num_steps, self.num_nodes)


@solver_refusals()
def optimal_time_space(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    groups: Sequence[Sequence[int]] | None = None,
    coalition_size: int = 0,
    tolerance: float | None = None,
    max_iterations: int = 5000,
) -> SpaceTimeFactorization:
    """The best product of one encoder over steps and one covariance over nodes.

    Args:
        weights, objective: which models count.
        groups, coalition_size: who holds which seed, and how many nodes pool what they hold, as for
            `optimal_covariance`; default one seed for all, against outsiders.
        tolerance: of each half and of the alternation; default `default_tolerance`.

    Returns: SpaceTimeFactorization; look at its status. Unless it is "stopped", the product found is the best of its
        form with one seed for all, up to the tolerance; with groups neither half can be improved.
    Raises: UnsupportedMechanism: no modes (`mode_error_grams`), or participation whose patterns overlap. InvalidInput:
        groups, coalitions, a participation for another number of nodes, a loss beyond float64.
    Cost: n T^3 for the modes; then per round one problem over T and one over n.
    """
    seeds = Seeds(groups, coalition_size).checked(dynamics.num_nodes)
    wanted = checked_stopping(seeds.default_tolerance if tolerance is None else tolerance, max_iterations)
    began = time.perf_counter()
    given = modes_problem(dynamics, participation, weights=weights, objective=objective)
    solve = _one_seed if groups is None and coalition_size == 0 else _seed_groups
    answer = solve(given.normalised, dynamics.gossip, seeds, wanted)
    facts = _facts(dynamics, participation, _independent_of_modes(given.normalised), began)
    return SpaceTimeFactorization(kind=TIME_SPACE, **answer, **facts).shifted(given.exponent)


@solver_refusals()
def optimal_adapted(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float = ADAPTED_TOLERANCE,
    max_iterations: int = 5000,
) -> SpaceTimeFactorization:
    """One encoder for every direction over the nodes; never worse than the product it begins with.

    That product is solved at the tolerance given here, so against `optimal_time_space` at another tolerance the loss is
    no larger up to the larger of the two. Against outsiders. On graphs that look alike from every node it is the best
    noise of any form.

    Raises: as `optimal_time_space`.
    Cost: per iteration n Cholesky factorizations of T x T; memory about 6 n T^2 and 600 MB.
    """
    stopping = checked_stopping(tolerance, max_iterations)
    began = time.perf_counter()
    given = modes_problem(dynamics, participation, weights=weights, objective=objective)
    solved = adapted.solve(given.normalised, stopping)
    answer = _said(solved) | {"iterations": solved.iterations + solved.time_space.iterations}
    return SpaceTimeFactorization(
        kind=ADAPTED,
        encoder=solved.encoders,
        directions=np.asarray(np.linalg.inv(solved.basis).T, dtype=np.float64),
        **answer,
        **_facts(dynamics, participation, _independent_of_modes(given.normalised), began),
    ).shifted(given.exponent)


@solver_refusals()
def optimal_space_time(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
    tolerance: float = 1e-4,
    max_iterations: int = 5000,
) -> SpaceTimeFactorization:
    """The best noise of any correlation over steps and nodes, certified; any gossip, small T n.

    Raises: UnsupportedMechanism: T n above 4096, or participation whose patterns overlap. InvalidInput: a participation
        for another number of nodes, a loss beyond float64.
    Cost: O((T n)^3) per iteration, about a hundred of them.
    """
    stopping = checked_stopping(tolerance, max_iterations)
    began = time.perf_counter()
    participation.require_nodes(dynamics.num_nodes)
    labels = participation.classes()
    H = space_time_error_gram(dynamics, participation.num_steps, weights=weights, objective=objective)
    solved = spacetime.solve(H, labels, dynamics.num_nodes, stopping)
    independent = _independent(labels, np.diagonal(H).reshape(participation.num_steps, -1).sum(axis=1))
    return SpaceTimeFactorization(
        kind=SPACE_TIME,
        encoder=solved.encoder,
        **_said(solved),
        **_facts(dynamics, participation, independent, began),
    )


def modes_problem(
    dynamics: Dynamics,
    participation: Participation,
    *,
    weights: ErrorWeights | None = None,
    objective: str = "post-average",
) -> ModeProblem:
    """H over steps and nodes by the modes of the gossip, with the classes of steps.

    Raises: UnsupportedMechanism: see `mode_error_grams`, `Participation.classes`; InvalidInput: a participation for
        another number of nodes, an error beyond float64.
    """
    participation.require_nodes(dynamics.num_nodes)
    labels = participation.classes()
    U, grams = mode_error_grams(dynamics, participation.num_steps, weights=weights, objective=objective)
    return ModeProblem(grams, U, labels)


def _one_seed(posed: ModeProblem, gossip: Gossip, seeds: Seeds, stopping: Stopping) -> dict[str, Any]:
    solved = time_space.solve(posed, stopping)
    d = posed.time_costs(solved.time.gram)
    made = one_seed_from(solved.space, posed.node_gram(d), tolerance=stopping.tolerance)
    space = dataclasses.replace(made, gossip_hash=gossip.content_hash)
    return _said(solved) | {
        "encoder": solved.time.encoder,
        "space": space,
        "loss": solved.time.sensitivity**2 * float(_node_costs(posed, space) @ d),  # of the R that is kept
        "status": STOPPED if STOPPED in (solved.status, space.status) else solved.status,
        "sensitivity": solved.time.sensitivity,
    }


def _seed_groups(posed: ModeProblem, gossip: Gossip, seeds: Seeds, stopping: Stopping) -> dict[str, Any]:
    def over_nodes(node_gram: FloatArray) -> tuple[SpatialFactorization, FloatArray, float]:
        half = covariance_for_gram(node_gram, gossip, seeds, stopping.share(time_space.HALF_SHARE))
        return half, _node_costs(posed, half), 1.0

    best, _, said = time_space.alternate(posed, over_nodes, stopping)
    return {"encoder": best.time.encoder, "space": best.space, **said}


def _node_costs(posed: ModeProblem, space: SpatialFactorization) -> FloatArray:
    """c_k = u_k^T R u_k."""
    U = posed.vectors
    return np.asarray(np.einsum("uk,uk->k", U, space.covariance @ U))


def _said(solved: Certified) -> dict[str, Any]:
    """What a solver says of its answer, under the names it has here."""
    names = ("loss", "lower_bound", "status", "iterations", "sensitivity", "notes")
    return {name: getattr(solved, name) for name in names}


def _facts(dynamics: Dynamics, participation: Participation, independent_loss: float, began: float) -> dict[str, Any]:
    return {
        "num_steps": participation.num_steps,
        "num_nodes": dynamics.num_nodes,
        "independent_loss": independent_loss,
        "seconds": time.perf_counter() - began,
        "participation": participation.to_dict(),
        "gossip_hash": dynamics.gossip.content_hash,
    }


def _independent_of_modes(posed: ModeProblem) -> float:
    return _independent(posed.classes, np.einsum("ktt->t", posed.grams))


def _independent(labels: Any, costs: FloatArray) -> float:
    """tr(H) k_max: X = I / k with k the steps of the largest class."""
    if not math.isfinite(loss := float(np.bincount(labels).max()) * float(costs.sum())):
        raise InvalidInput("the loss of independent noise is beyond float64; take smaller error weights.")
    return loss
