"""Noise correlated over the nodes, fresh in every step: from dynamics to a certified covariance R.

R = s I + sum_k R_k: each node keeps noise of variance s to itself, and the nodes of group k make N(0, R_k) from a seed
they share. At the price of one step, max_i [R^-1]_ii <= r for what an attacker does not know, the noise that stays in
the models, tr(H R), is minimised. With one seed for all nodes and an outside attacker that is the factorization problem
min tr(H X^-1) over nodes in place of steps, R = X^-1 / r (CorN-DSGD, problem (9)); with seed groups and coalitions it
is the convex program of `mfdl_solvers.coalitions` (problem (10)); with the same noise on every edge one ratio is left
(DECOR).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Hashable, Sequence

import numpy as np
import scipy.optimize
from scipy.sparse import csr_array

import mfdl_solvers
from mfdl_solvers.problem import OPTIMAL, STATIONARY, STOPPED, Certified, loss_in_range

from .. import check, spatial
from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_gram import spatial_error_gram
from ..error_weights import ErrorWeights
from ..errors import InvalidInput, unknown_name
from ..gossip import Gossip
from .groups import Groups, checked_groups, edge_groups
from .temporal import solver_refusals

COVARIANCE_SOLVERS = ("newton", "conic")
ONE_SEED_TOLERANCE, GROUP_TOLERANCE = 1e-4, 1e-3  # certified gaps asked for by default
LARGEST_RATIO = 1e8
"""sigma_pair^2 times the largest Laplacian eigenvalue over sigma_local^2, at most: beyond, rounding eats the bound."""
UNIT = float(np.finfo(np.float64).eps)
LARGEST_VARIANCE = 1e300  # the sum of two, and a factor of rounding, stay finite


@dataclasses.dataclass(frozen=True, eq=False)
class SpatialFactorization(Certified):
    """A covariance over nodes with who holds which part, what it costs and how far that is from the best.

    Attributes:
        private_variance: s, of the noise each node keeps to itself.
        groups: the nodes of each seed, as indices.
        parts: R_k, shape (|group k|, |group k|), in the order of the group.
        covariance: R = s I + sum_k R_k, shape (n, n).
        max_inverse_diagonal: r; for every coalition of `coalition_size` nodes, with the seeds it holds taken out of R,
            [R^-1]_ii <= r at all other nodes i.
        coalition_size: q; 0 is an eavesdropper who holds no seed.
        loss: tr(H R), variance in the counted models per coordinate.
        lower_bound: nothing in `bound_over` that meets the constraint has a smaller loss.
        bound_over: what the lower bound ranges over, in words.
        status: "optimal" (gap within tolerance), "stopped", or "stationary" (best of a restricted family).
        sigma_local, sigma_pair: standard deviations where all edges carry the same noise, else None.
        gossip_hash: of the gossip matrix it was made for; "" if unknown.
        independent_loss: tr(H) / r, the loss of independent noise at the same price.
    """

    private_variance: float
    groups: tuple[tuple[int, ...], ...]
    parts: tuple[FloatArray, ...]
    num_nodes: int
    max_inverse_diagonal: float
    coalition_size: int
    loss: float
    lower_bound: float
    status: str
    iterations: int
    seconds: float
    notes: tuple[str, ...] = ()
    sigma_local: float | None = None
    sigma_pair: float | None = None
    independent_loss: float | None = None
    bound_over: str = "covariance over nodes"
    gossip_hash: str = ""

    @property
    def covariance(self) -> FloatArray:
        """R, shape (n, n)."""
        R = self.private_variance * np.eye(self.num_nodes)
        for group, part in zip(self.groups, self.parts, strict=True):
            R[np.ix_(group, group)] += part
        return R

    def shifted(self, k: int) -> SpatialFactorization:
        """As for `Certified`; the loss of independent noise too."""
        if self.independent_loss is None:
            return super().shifted(k)
        return dataclasses.replace(super().shifted(k), independent_loss=loss_in_range(self.independent_loss, k))

    def factor(self) -> tuple[csr_array, csr_array]:
        """F with F F^T = R and who holds its columns, see `spatial.seed_factor`."""
        used = [k for k, part in enumerate(self.parts) if part.any()]  # a seed not worth its noise stays unused
        groups, parts = [self.groups[k] for k in used], [self.parts[k] for k in used]
        return spatial.seed_factor(self.private_variance, groups, parts, self.num_nodes)


def optimal_covariance(
    dynamics: Dynamics,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    coalition_size: int = 0,
    private: bool = True,
    max_inverse_diagonal: float = 1.0,
    horizon: int = 1,
    objective: str = "post-average",
    weights: ErrorWeights | None = None,
    tolerance: float | None = None,
    max_iterations: int = 5000,
    method: str = "newton",
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
        method: with groups, "newton" or "conic" (cvxpy).

    Returns: SpatialFactorization; look at its status.
    Raises: InvalidInput: bad groups (unknown or repeated nodes, none at all), q >= n, an infeasible coalition (named),
        a loss beyond float64.
    Cost: one seed: O(n^3) per iteration, tens of iterations. Groups: O(n^3) per distinct coalition and iteration.
    Source: arXiv:2501.14644v2, problems (9) and (10). Who shares the only seed can subtract all but the private noise:
        with one seed for all, the least eigenvalue of R is kept private, at no cost.
    """
    H = _node_gram(dynamics, horizon, objective, weights)
    return covariance_for_gram(
        H,
        dynamics.gossip,
        groups=groups,
        coalition_size=coalition_size,
        private=private,
        max_inverse_diagonal=max_inverse_diagonal,
        tolerance=tolerance,
        max_iterations=max_iterations,
        method=method,
    )


@solver_refusals()
def covariance_for_gram(
    error_gram: FloatArray,
    gossip: Gossip,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    coalition_size: int = 0,
    private: bool = True,
    max_inverse_diagonal: float = 1.0,
    tolerance: float | None = None,
    max_iterations: int = 5000,
    method: str = "newton",
) -> SpatialFactorization:
    """`optimal_covariance` for a given error Gram over nodes, shape (n, n); the gossip names nodes and edges."""
    r = check.positive(max_inverse_diagonal=max_inverse_diagonal)
    H, n = error_gram, gossip.num_nodes
    q = _coalition(coalition_size, n)
    check.integer_at_least(1, max_iterations=max_iterations)
    if method not in COVARIANCE_SOLVERS:
        raise unknown_name("method", method, COVARIANCE_SOLVERS)
    one_seed = groups is None and q == 0 and private
    gap = check.positive(tolerance=tolerance) if tolerance is not None else default_tolerance(groups, q)
    if one_seed:
        found = _one_seed(H, r, gap, max_iterations)
        return dataclasses.replace(found, gossip_hash=gossip.content_hash)
    chosen = edge_groups(gossip) if groups is None else given_groups(groups, n)
    from mfdl_solvers.coalition_problem import CoalitionProblem, InfeasibleCoalition
    from mfdl_solvers.coalitions import solve

    labels = gossip.labels
    try:
        posed = CoalitionProblem(H, chosen, q, private=private)
        solved = solve(posed, tolerance=gap, max_iterations=max_iterations, method=method)
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
    return in_range(
        SpatialFactorization(
            private_variance=solved.private_variance / r,
            groups=chosen,
            parts=tuple(part / r for part in solved.parts),
            num_nodes=n,
            max_inverse_diagonal=r,
            coalition_size=q,
            loss=solved.loss / r,
            lower_bound=solved.lower_bound / r,
            status=solved.status,
            iterations=solved.iterations,
            seconds=solved.seconds,
            notes=notes,
            bound_over=f"private noise with these {len(chosen)} seed groups, against {_opponents(q)},",
            gossip_hash=gossip.content_hash,
            independent_loss=float(np.trace(H)) / r,
        )
    )


@solver_refusals()
def optimal_pairwise(
    dynamics: Dynamics,
    *,
    coalition_size: int = 0,
    max_inverse_diagonal: float = 1.0,
    horizon: int = 1,
    objective: str = "post-average",
    weights: ErrorWeights | None = None,
) -> SpatialFactorization:
    """The best covariance sigma_local^2 I + sigma_pair^2 L of DECOR at a given price of privacy.

    One ratio is searched; sigma_local then follows from the constraint exactly. q = 0 is the pairwise-constrained
    problem (9) of CorN-DSGD.

    Args: as for `optimal_covariance`; every coalition of q nodes is tried, see `spatial.MAX_COALITIONS`.
    Returns: SpatialFactorization, status "stationary"; its lower bound is that of any covariance at all.
    Source: arXiv:2405.01031, Algorithms 2 and 3 for the constraint; arXiv:2501.14644v2 for the criterion.
    """
    began = time.perf_counter()
    r = check.positive(max_inverse_diagonal=max_inverse_diagonal)
    n = dynamics.num_nodes
    q = _coalition(coalition_size, n)
    graph = dynamics.gossip.at(0).graph()
    posed = mfdl_solvers.FactorizationProblem(_node_gram(dynamics, horizon, objective, weights), np.arange(n))
    H, k = posed.normalised.error_gram, posed.exponent
    L = spatial.laplacian(graph).toarray()
    price = PairwisePrice(graph, q)
    plain, paired = float(np.trace(H)), float(np.sum(H * L))

    def loss(log_ratio: float) -> float:
        ratio = math.exp(log_ratio)
        return price(ratio) * (plain + ratio * paired)

    top = math.log(LARGEST_RATIO / price.largest_eigenvalue) if price.largest_eigenvalue > 0 else 0.0
    grid = np.linspace(top - math.log(1e14), top, 141)  # a step of a quarter: the minimum lies beside the best
    values = [loss(x) for x in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    refined = scipy.optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    log_ratio = float(refined.x) if refined.fun < values[best] else float(grid[best])
    ratio = math.exp(log_ratio) if loss(log_ratio) < price(0.0) * plain else 0.0
    note = ""
    if log_ratio > top - math.log(1e3):
        note = (
            "the best loss is not attained: averaging removes pairwise noise, so more of it never hurts; it ends where "
            f"rounding would begin to count, at sigma_pair / sigma_local = {math.sqrt(ratio):.3g}"
        )
    if not ratio:
        note = "pairwise noise does not help on this graph: independent noise is the best of the family"
    local, pair = price(ratio) / r, ratio * price(ratio) / r
    edges = edge_groups(dynamics.gossip)
    cancelling = np.array([[1.0, -1.0], [-1.0, 1.0]])
    unrestricted = _one_seed(H, r, ONE_SEED_TOLERANCE, 5000)
    found = SpatialFactorization(
        private_variance=local,
        groups=edges if pair else (),
        parts=tuple(pair * cancelling for _ in edges) if pair else (),
        num_nodes=n,
        max_inverse_diagonal=r,
        coalition_size=q,
        loss=local * plain + pair * paired,
        lower_bound=unrestricted.lower_bound,
        status=STATIONARY,
        iterations=len(grid) + int(refined.nfev),
        seconds=time.perf_counter() - began,
        notes=(note,) if note else (),
        sigma_local=math.sqrt(local),
        sigma_pair=math.sqrt(pair),
        independent_loss=plain / r,
        bound_over="covariance over nodes, against an outsider," if q else "covariance over nodes",
        gossip_hash=dynamics.gossip.content_hash,
    )
    return in_range(found.shifted(k))


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


def in_range(found: SpatialFactorization) -> SpatialFactorization:
    """Itself; raises InvalidInput where its loss is beyond float64."""
    if not (math.isfinite(found.loss) and math.isfinite(found.independent_loss or 0.0)):
        raise InvalidInput(
            f"the loss is beyond float64 at max_inverse_diagonal={found.max_inverse_diagonal:g}; raise that, or take "
            "smaller error weights."
        )
    return found


def default_tolerance(groups: object, coalition_size: int) -> float:
    """The gap that `optimal_covariance` asks for: the program for groups takes longer."""
    return ONE_SEED_TOLERANCE if groups is None and coalition_size == 0 else GROUP_TOLERANCE


class PairwisePrice:
    """x -> max over coalitions I of q nodes and i outside of [(I + x L_I)^-1]_ii, L_I the Laplacian without I.

    A call costs O(n^2) per coalition; every value is rounded up by what the eigenvalues may be off.
    """

    def __init__(self, graph: object, coalition_size: int) -> None:
        self._spectra: list[tuple[FloatArray, FloatArray]] = []
        self.largest_eigenvalue = 0.0
        for batch, _ in spatial.laplacians_after_deletion(graph, coalition_size):
            values, vectors = np.linalg.eigh(batch)
            self.largest_eigenvalue = max(self.largest_eigenvalue, float(values[:, -1].max(initial=0.0)))
            self._spectra.append((np.clip(values, 0.0, None), vectors**2))

    def __call__(self, ratio: float) -> float:
        worst = 0.0
        for values, squares in self._spectra:
            inverse = (squares / (1 + ratio * values)[:, None, :]).sum(axis=2)
            m = values.shape[1]
            rounding = 8 * m * UNIT * (1 + ratio * float(values[:, -1].max()))
            worst = max(worst, float(inverse.max()) * (1 + rounding))
        return worst


def _one_seed(H: FloatArray, r: float, tolerance: float, max_iterations: int) -> SpatialFactorization:
    """Problem (9): every node is its own class."""
    posed = mfdl_solvers.FactorizationProblem(H, np.arange(len(H)))
    normal, k = posed.normalised, posed.exponent
    found = mfdl_solvers.solve(normal, tolerance=tolerance, max_iterations=max_iterations)
    return in_range(one_seed_from(found, normal.error_gram if k else H, r, tolerance).shifted(k))


def one_seed_from(
    found: mfdl_solvers.Factorization, H: FloatArray, r: float = 1.0, tolerance: float = ONE_SEED_TOLERANCE
) -> SpatialFactorization:
    """R = X^-1 / r from a solution over nodes: one seed held by all, the least eigenvalue of R kept private."""
    began = time.perf_counter()
    n = len(H)
    values, vectors = np.linalg.eigh(found.gram)
    values = np.clip(values, UNIT * values[-1], None)
    with np.errstate(over="ignore", invalid="ignore"):
        R = (vectors / values) @ vectors.T / r
    if not np.abs(R).max() < LARGEST_VARIANCE:
        raise InvalidInput(f"max_inverse_diagonal must leave room for variances of its inverse in float64, got {r:g}.")
    # the inverse that was computed, not the one that was meant, must meet the bound
    worst = float(spatial.inverse_diagonal((R + R.T) / 2)) / r
    scale = worst * (1 + 4 * n * UNIT * float(values[-1] / values[0]))
    R = (R + R.T) / 2 * max(scale, 1.0)
    private = float(1 / values[-1] / r) * (1 - 1e-9)
    return SpatialFactorization(
        private_variance=private,
        groups=(tuple(range(n)),),
        parts=(R - private * np.eye(n),),
        num_nodes=n,
        max_inverse_diagonal=r,
        coalition_size=0,
        loss=float(np.sum(H * R)),
        lower_bound=found.lower_bound / r,
        status=found.status if found.status != OPTIMAL or max(scale, 1.0) <= 1 + tolerance else STOPPED,
        iterations=found.iterations,
        seconds=found.seconds + time.perf_counter() - began,
        notes=found.notes,
        independent_loss=float(np.trace(H)) / r,
    )


def _node_gram(dynamics: Dynamics, horizon: int, objective: str, weights: ErrorWeights | None) -> FloatArray:
    """H over nodes; one step has one step size, which only scales it."""
    check.integer_at_least(1, horizon=horizon)
    one_rate = dataclasses.replace(dynamics, learning_rate=1.0) if horizon == 1 else dynamics
    return spatial_error_gram(one_rate, num_steps=horizon, objective=objective, weights=weights)


def _names(nodes: Sequence[int], labels: Sequence[Hashable]) -> str:
    return f"coalition {{{', '.join(str(labels[i]) for i in nodes)}}}" if nodes else "an outsider"


def _opponents(q: int) -> str:
    return f"coalitions of {q}" if q else "an outsider"


def _coalition(size: int, n: int) -> int:
    q = check.integer_at_least(0, coalition_size=size)
    if q >= n:
        raise InvalidInput(f"coalition_size must be below the number of nodes, {n}, got {q}; some node must be left.")
    return q
