"""Noise correlated over the nodes, fresh in every step: from dynamics to a certified covariance R.

R = s I + sum_k R_k: each node keeps noise of variance s to itself, and the nodes of group k make N(0, R_k) from a seed
they share. At the price of one step, max_i [R^-1]_ii <= r for what an attacker does not know, the noise that stays in
the models, tr(H R), is minimised. With one seed for all nodes and an outside attacker that is the factorization problem
min tr(H X^-1) over nodes in place of steps, R = X^-1 / r (CorN-DSGD, problem (9)); with seed groups and coalitions it
is the convex program of `mfdl_solvers.coalitions` (problem (10)). The same noise on every edge: `pairwise_covariance`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Hashable, Sequence

import numpy as np
from scipy.sparse import csr_array

import mfdl_solvers
from mfdl_solvers import Factorization, FactorizationProblem
from mfdl_solvers.arithmetic import EPS
from mfdl_solvers.problem import OPTIMAL, STOPPED, Certified, Stopping, objective_in_range

from .. import check, errors, node_covariances
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput, require_known, unknown_name
from ..gossip import Gossip
from ..objective import ErrorWeights, NoiseObjective
from ..progress import Progress, reporter
from ..spec import storable
from . import solutions
from .setting import checked_stopping, solver_refusals

COVARIANCE_SOLVERS = ("newton", "conic")
ONE_SEED_TOLERANCE, GROUP_TOLERANCE = 1e-4, 1e-3  # certified gaps asked for by default
LARGEST_VARIANCE = 1e300  # the sum of two, and a factor of rounding, stay finite


@storable
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SpatialFactorization(Certified):
    """A covariance over nodes with who holds which part, what it costs and how far that is from the best.

    Attributes:
        private_variance: s, of the noise each node keeps to itself.
        groups: the nodes of each seed, as indices; parts: R_k, shape (|group k|, |group k|), in the order of the group.
        max_inverse_diagonal: r; for every coalition of `coalition_size` nodes (q; 0 is an eavesdropper who holds no
            seed), with the seeds it holds taken out of R, [R^-1]_ii <= r at all other nodes i.
        objective: tr(H R), variance in the counted models per coordinate.
        lower_bound: nothing in `bound_over`, in words, that meets the constraint has a smaller objective.
        sigma_ldp, sigma_cor: standard deviations where all edges carry the same noise, else None.
        gossip_hash: of the gossip matrix it was made for; "" if unknown.
        independent_objective: tr(H) / r, the objective of independent noise at the same price.
        horizon: steps whose models the objective counts; None if unknown.
    """

    private_variance: float
    groups: tuple[tuple[int, ...], ...]
    parts: tuple[FloatArray, ...]
    num_nodes: int
    max_inverse_diagonal: float
    coalition_size: int
    sigma_ldp: float | None = None
    sigma_cor: float | None = None
    independent_objective: float | None = None
    bound_over: str = "covariance over nodes"
    gossip_hash: str = ""
    horizon: int | None = None

    @property
    def covariance(self) -> FloatArray:
        """R, shape (n, n)."""
        R = self.private_variance * np.eye(self.num_nodes)
        for group, part in zip(self.groups, self.parts, strict=True):
            R[np.ix_(group, group)] += part
        return R

    def shifted(self, k: int) -> SpatialFactorization:
        """As for `Certified`; the objective of independent noise too."""
        alone = self.independent_objective
        return dataclasses.replace(
            super().shifted(k), independent_objective=None if alone is None else objective_in_range(alone, k)
        )

    def with_all_shared(self) -> SpatialFactorization:
        """The same covariance, all of it from one seed of all nodes: n normals a step in a simulation, the fewest.

        For an outsider it is the same noise. Raises: InvalidInput: made for seeds of groups or against coalitions.
        """
        everybody = tuple(range(self.num_nodes))
        of_groups = self.sigma_ldp is None and self.groups != (everybody,)
        if self.coalition_size or of_groups:
            setting = f"coalitions of {self.coalition_size}" if self.coalition_size else f"{len(self.groups)} groups"
            raise InvalidInput(
                f"the covariance was made for {setting}, and one seed of all nodes hides nothing from a node; make it "
                "with coalition_size=0 and no groups."
            )
        return dataclasses.replace(
            self, private_variance=0.0, groups=(everybody,), parts=(self.covariance,), sigma_ldp=None, sigma_cor=None
        )

    def factor(self) -> tuple[csr_array, csr_array]:
        """F with F F^T = R and who holds its columns, see `node_covariances.seed_factor`."""
        used = [k for k, part in enumerate(self.parts) if part.any()]  # a seed not worth its noise stays unused
        groups, parts = [self.groups[k] for k in used], [self.parts[k] for k in used]
        return node_covariances.seed_factor(self.private_variance, groups, parts, self.num_nodes)


def optimal_covariance(
    dynamics: Dynamics,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    coalition_size: int = 0,
    private: bool = True,
    max_inverse_diagonal: float = 1.0,
    horizon: int = 1,
    counted_models: str = "post-average",
    weights: ErrorWeights | None = None,
    tolerance: float | None = None,
    max_iterations: int = 5000,
    method: str = "newton",
    progress: Progress = "auto",
) -> SpatialFactorization:
    """The covariance with the least noise in the models at a given price of privacy (CorN-DSGD).

    Args:
        groups: who holds each seed; default one seed held by all nodes for q = 0, one seed per edge for q >= 1.
        coalition_size: q < n, nodes that pool all they hold.
        private: nodes may keep noise of their own; without it a coalition that knows all of a node's seeds makes the
            problem infeasible.
        max_inverse_diagonal: r > 0; R is proportional to 1 / r.
        horizon: number of steps whose models count; 1 is the published one-step criterion tr(W R W^T).
        weights: how much each of them counts; default alike.
        tolerance: certified relative gap to reach; default `default_tolerance`.
        method: with groups, "newton" or "conic" (cvxpy, of the extra `testing`).
    Returns: a SpatialFactorization; look at its status.
    Raises: InvalidInput: bad groups (unknown or repeated nodes, none at all), q >= n, an infeasible coalition (named),
        an objective beyond float64.
    Cost: one seed: O(n^3) per iteration, tens of iterations. Groups: O(n^3) per distinct coalition and iteration.
    Source: arXiv:2501.14644v2, problems (9) and (10). Who shares the only seed can subtract all but the private noise:
        with one seed for all, the least eigenvalue of R is kept private, at no cost.
    """
    check.instance(Dynamics, dynamics=dynamics)
    seeds = Seeds(groups, coalition_size, private, max_inverse_diagonal).checked(dynamics.num_nodes)
    wanted = checked_stopping(seeds.default_tolerance if tolerance is None else tolerance, max_iterations)
    require_known("method", method, COVARIANCE_SOLVERS)
    if method == "conic":
        errors.imported("cvxpy", "the conic solver", "use method newton")
    gram = node_gram(dynamics, horizon, counted_models, weights)
    with reporter(progress).status(f"factorizing {dynamics.num_nodes} nodes"):
        best = covariance_for_gram(gram, dynamics.gossip, seeds, wanted, method=method)
    return dataclasses.replace(best, horizon=horizon)


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Who holds which seed, and what the noise must withstand, as for `optimal_covariance`."""

    groups: Sequence[Sequence[int]] | None = None
    coalition_size: int = 0
    private: bool = True
    max_inverse_diagonal: float = 1.0

    def checked(self, num_nodes: int) -> Seeds:
        """The same as the solvers take it; raises InvalidInput."""
        return Seeds(
            groups=None if self.groups is None else given_groups(self.groups, num_nodes),
            coalition_size=checked_coalition(self.coalition_size, num_nodes),
            private=self.private,
            max_inverse_diagonal=check.positive(max_inverse_diagonal=self.max_inverse_diagonal),
        )

    @property
    def default_tolerance(self) -> float:
        return default_tolerance(self.groups, self.coalition_size)


@solver_refusals()
def covariance_for_gram(
    error_gram: FloatArray, gossip: Gossip, seeds: Seeds, stopping: Stopping, *, method: str = "newton"
) -> SpatialFactorization:
    """`optimal_covariance` for a given error Gram over nodes, shape (n, n); the gossip names nodes and edges."""
    H, r, q = error_gram, seeds.max_inverse_diagonal, seeds.coalition_size
    if seeds.groups is None and q == 0 and seeds.private:
        return dataclasses.replace(one_seed_covariance(H, r, stopping), gossip_hash=gossip.content_hash)
    chosen = edge_groups(gossip) if seeds.groups is None else checked_groups(seeds.groups, gossip.num_nodes)
    from mfdl_solvers.coalition_problem import CoalitionProblem, InfeasibleCoalition
    from mfdl_solvers.coalitions import solve

    labels = gossip.labels
    try:
        posed = CoalitionProblem(H, chosen, q, private=seeds.private)
        solved = solutions.solved(solve, posed, stopping=stopping, method=method)
    except InfeasibleCoalition as error:
        who = _names(error.coalition, labels)
        raise InvalidInput(
            f"no covariance meets the bound: {who} knows every seed of node {labels[error.node]}, and no "
            "node keeps noise to itself; allow private noise, or give that node a seed the coalition does not hold."
        ) from None
    notes = solved.notes
    if posed.exposed is not None:
        coalition, node = posed.exposed
        who = f"node {labels[node]} holds no seed that {_names(coalition, labels)} does not know"
        notes = (f"shared seeds cannot help: {who}, so private noise must be that of LDP",)
    opponents = f"coalitions of {q}" if q else "an outsider"
    return in_range(
        SpatialFactorization(
            private_variance=solved.private_variance / r,
            groups=chosen,
            parts=tuple(part / r for part in solved.parts),
            num_nodes=gossip.num_nodes,
            max_inverse_diagonal=r,
            coalition_size=q,
            objective=solved.objective / r,
            lower_bound=solved.lower_bound / r,
            status=solved.status,
            iterations=solved.iterations,
            seconds=solved.seconds,
            notes=notes,
            bound_over=f"private noise with these {len(chosen)} seed groups, against {opponents}",
            gossip_hash=gossip.content_hash,
            independent_objective=float(np.trace(H)) / r,
        )
    )


def in_range(covariance: SpatialFactorization) -> SpatialFactorization:
    """Itself; raises InvalidInput where its objective is beyond float64."""
    if not (math.isfinite(covariance.objective) and math.isfinite(covariance.independent_objective or 0.0)):
        raise InvalidInput(
            f"the objective is beyond float64 at max_inverse_diagonal={covariance.max_inverse_diagonal:g}; raise "
            "that, or take smaller error weights."
        )
    return covariance


def default_tolerance(groups: object, coalition_size: int) -> float:
    """The gap that `optimal_covariance` asks for: the program for groups takes longer."""
    return ONE_SEED_TOLERANCE if groups is None and coalition_size == 0 else GROUP_TOLERANCE


def one_seed_covariance(H: FloatArray, r: float, stopping: Stopping) -> SpatialFactorization:
    """Problem (9): every node is its own class."""
    posed = FactorizationProblem(H, np.arange(len(H)))
    solved = solutions.solved(mfdl_solvers.solve, posed.normalised, stopping=stopping)
    return in_range(one_seed_from(solved, posed.normalised.error_gram, r, stopping.tolerance).shifted(posed.exponent))


def one_seed_from(
    solved: Factorization, H: FloatArray, r: float = 1.0, tolerance: float = ONE_SEED_TOLERANCE
) -> SpatialFactorization:
    """R = X^-1 / r from a solution over nodes: one seed held by all, the least eigenvalue of R kept private."""
    began = time.perf_counter()
    n = len(H)
    values, vectors = np.linalg.eigh(solved.gram)
    values = np.clip(values, EPS * values[-1], None)
    with np.errstate(over="ignore", invalid="ignore"):
        R = (vectors / values) @ vectors.T / r
    if not np.abs(R).max() < LARGEST_VARIANCE:
        raise InvalidInput(f"max_inverse_diagonal must leave room for variances of its inverse in float64, got {r:g}.")
    # the inverse that was computed, not the one that was meant, must meet the bound
    worst = float(node_covariances.inverse_diagonal((R + R.T) / 2)) / r
    scale = worst * (1 + 4 * n * EPS * float(values[-1] / values[0]))
    R = (R + R.T) / 2 * max(scale, 1.0)
    private = float(1 / values[-1] / r) * (1 - 1e-9)
    return SpatialFactorization(
        private_variance=private,
        groups=(tuple(range(n)),),
        parts=(R - private * np.eye(n),),
        num_nodes=n,
        max_inverse_diagonal=r,
        coalition_size=0,
        objective=float(np.sum(H * R)),
        lower_bound=solved.lower_bound / r,
        status=solved.status if solved.status != OPTIMAL or max(scale, 1.0) <= 1 + tolerance else STOPPED,
        iterations=solved.iterations,
        seconds=solved.seconds + time.perf_counter() - began,
        notes=solved.notes,
        independent_objective=float(np.trace(H)) / r,
    )


def node_gram(dynamics: Dynamics, horizon: int, counted_models: str, weights: ErrorWeights | None) -> FloatArray:
    """H over nodes; of one step in units of the first step size."""
    check.integer_at_least(1, horizon=horizon)
    first = float(np.ravel(dynamics.learning_rate)[0])
    one_rate = dataclasses.replace(dynamics, learning_rate=first) if horizon == 1 else dynamics
    counted = NoiseObjective(one_rate, horizon, ErrorWeights() if weights is None else weights, counted_models)
    return counted.over_nodes()


def _names(nodes: Sequence[int], labels: Sequence[Hashable]) -> str:
    return f"coalition {{{', '.join(str(labels[i]) for i in nodes)}}}" if nodes else "an outsider"


# ---- groups of nodes that share a seed -------------------------------------------------------------------------------

Groups = tuple[tuple[int, ...], ...]


def edge_groups(gossip: Gossip) -> tuple[tuple[int, int], ...]:
    """Both ends of every edge of the gossip graph, as indices, i < j, in increasing order."""
    check.instance(Gossip, gossip=gossip)
    edges = gossip.at(0).graph().edges
    return tuple(sorted((min(i, j), max(i, j)) for i, j in edges))


def checked_groups(groups: Sequence[Sequence[int]], num_nodes: int) -> Groups:
    """Groups as sorted tuples of indices below n. Raises: InvalidInput: an empty one, a bad or repeated index."""
    out = []
    num_nodes = check.integer_at_least(0, num_nodes=num_nodes)
    for number, group in enumerate(check.listed("groups of node indices, e.g. [[0, 1], [1, 2]]", groups=groups)):
        given = check.listed("groups of node indices, e.g. [[0, 1], [1, 2]]", groups=group)
        nodes = [check.integer_at_least(0, node=node) for node in given]
        if not nodes:
            raise InvalidInput(f"groups must hold at least one node each, got none in group {number}.")
        if max(nodes) >= num_nodes:
            raise InvalidInput(f"groups must hold node indices below {num_nodes}, got {max(nodes)} in group {number}.")
        if len(set(nodes)) != len(nodes):
            raise InvalidInput(f"groups must hold distinct nodes, got one twice in group {number}.")
        out.append(tuple(sorted(nodes)))
    return tuple(out)


def given_groups(groups: Sequence[Sequence[int]], num_nodes: int) -> Groups:
    """`checked_groups` of what a caller gave; raises InvalidInput for what is no list of lists, or no group at all."""
    try:
        listed = [list(group) for group in groups]
    except TypeError:
        raise InvalidInput(f"groups must be a list of lists of node indices, got {groups!r}.") from None
    if not listed:
        raise InvalidInput(
            "groups must hold at least one group; for noise without shared seeds take mafalda or dp-dsgd."
        )
    return checked_groups(listed, num_nodes)


def checked_coalition(size: int, n: int) -> int:
    """The size of a coalition that leaves some of n nodes; raises InvalidInput."""
    q = check.integer_at_least(0, coalition_size=size)
    if q >= n:
        raise InvalidInput(f"coalition_size must be below the number of nodes, {n}, got {q}; some node must be left.")
    return q


def read_groups(path: str | os.PathLike[str], labels: Sequence[Hashable]) -> Groups:
    """Groups from JSON, a list of lists of node labels. Raises: InvalidInput: no such file or node."""
    form = "a JSON list of lists of node labels, e.g. [[0, 1], [1, 2]]"
    path = check.path(path=path)
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidInput(f"cannot read {str(path)!r}: {error.strerror}; give {form}.") from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{str(path)!r} is not valid JSON; give {form}.") from None
    if not isinstance(content, list) or not all(isinstance(group, list) for group in content) or not content:
        raise InvalidInput(f"{str(path)!r} must hold {form}.")
    index = {str(label): i for i, label in enumerate(labels)}
    named = []
    for group in content:
        for label in group:
            if isinstance(label, list | dict) or str(label) not in index:
                raise unknown_name(f"node in {str(path)!r}", str(label), index)
        named.append([index[str(label)] for label in group])
    return checked_groups(named, len(labels))
