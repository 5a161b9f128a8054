"""The same noise on every edge, with opposite signs at its ends, beside each node's own (DECOR): one ratio is left."""

from __future__ import annotations

import math
import time

import numpy as np
import scipy

from mfdl_solvers import FactorizationProblem
from mfdl_solvers.arithmetic import EPS
from mfdl_solvers.problem import STATIONARY, Stopping

from .. import check, node_covariances
from ..check import FloatArray
from ..dynamics import Dynamics
from ..objective import ErrorWeights
from .seeded_covariances import (
    ONE_SEED_TOLERANCE,
    SpatialFactorization,
    checked_coalition,
    edge_groups,
    in_range,
    node_gram,
    one_seed_covariance,
)
from .setting import solver_refusals

LARGEST_RATIO = 1e8
"""sigma_cor^2 times the largest Laplacian eigenvalue over sigma_ldp^2, at most: beyond, rounding eats the bound."""


@solver_refusals()
def optimal_pairwise(
    dynamics: Dynamics,
    *,
    coalition_size: int = 0,
    max_inverse_diagonal: float = 1.0,
    horizon: int = 1,
    counted_models: str = "post-average",
    weights: ErrorWeights | None = None,
) -> SpatialFactorization:
    """The best covariance sigma_ldp^2 I + sigma_cor^2 L of DECOR at a given price of privacy.

    One ratio is searched; sigma_ldp then follows from the constraint exactly. q = 0 is the pairwise-constrained
    problem (9) of CorN-DSGD.

    Args: as for `optimal_covariance`; every coalition of q nodes is tried.
    Returns: SpatialFactorization, status "stationary"; its lower bound is that of any covariance at all.
    Source: arXiv:2405.01031, Algorithms 2 and 3 for the constraint; arXiv:2501.14644v2 for the criterion.
    """
    began = time.perf_counter()
    check.instance(Dynamics, dynamics=dynamics)
    r = check.positive(max_inverse_diagonal=max_inverse_diagonal)
    n = dynamics.num_nodes
    q = checked_coalition(coalition_size, n)
    graph = dynamics.gossip.at(0).graph()
    posed = FactorizationProblem(node_gram(dynamics, horizon, counted_models, weights), np.arange(n))
    H, k = posed.normalised.error_gram, posed.exponent
    price = PairwisePrice(graph, q)
    plain, paired = float(np.trace(H)), float(np.sum(H * node_covariances.laplacian(graph).toarray()))
    ratio, evaluations, notes = _best_ratio(price, plain, paired)
    local, pair = price(ratio) / r, ratio * price(ratio) / r
    edges = edge_groups(dynamics.gossip) if pair else ()
    cancelling = np.array([[1.0, -1.0], [-1.0, 1.0]])
    unrestricted = one_seed_covariance(H, r, Stopping(ONE_SEED_TOLERANCE))
    best = SpatialFactorization(
        private_variance=local,
        groups=edges,
        parts=tuple(pair * cancelling for _ in edges),
        num_nodes=n,
        max_inverse_diagonal=r,
        coalition_size=q,
        objective=local * plain + pair * paired,
        lower_bound=unrestricted.lower_bound,
        status=STATIONARY,
        iterations=evaluations,
        seconds=time.perf_counter() - began,
        notes=notes,
        sigma_ldp=math.sqrt(local),
        sigma_cor=math.sqrt(pair),
        independent_objective=plain / r,
        bound_over="covariance over nodes, against an outsider" if q else "covariance over nodes",
        gossip_hash=dynamics.gossip.content_hash,
        horizon=horizon,
    )
    return in_range(best.shifted(k))


def _best_ratio(price: PairwisePrice, plain: float, paired: float) -> tuple[float, int, tuple[str, ...]]:
    """sigma_cor^2 / sigma_ldp^2 of the least objective, evaluations and notes; plain, paired: tr H and tr(H L)."""

    def objective(log_ratio: float) -> float:
        ratio = math.exp(log_ratio)
        return price(ratio) * (plain + ratio * paired)

    top = math.log(LARGEST_RATIO / price.largest_eigenvalue) if price.largest_eigenvalue > 0 else 0.0
    grid = np.linspace(top - math.log(1e14), top, 141)  # a step of a quarter: the minimum lies beside the best
    values = [objective(x) for x in grid]
    best = int(np.argmin(values))  # bound: refined below
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    refined = scipy.optimize.minimize_scalar(objective, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    evaluations = len(grid) + int(refined.nfev)
    log_ratio = float(refined.x) if refined.fun < values[best] else float(grid[best])
    if not objective(log_ratio) < price(0.0) * plain:
        note = "pairwise noise does not help on this graph: independent noise is the best of the family"
        return 0.0, evaluations, (note,)
    ratio = math.exp(log_ratio)
    if log_ratio <= top - math.log(1e3):
        return ratio, evaluations, ()
    note = (
        "the best objective is not attained: averaging removes pairwise noise, so more of it never hurts; it ends "
        f"where rounding would begin to count, at sigma_cor / sigma_ldp = {math.sqrt(ratio):.3g}"
    )
    return ratio, evaluations, (note,)


class PairwisePrice:
    """x -> max over coalitions I of q nodes and i outside of [(I + x L_I)^-1]_ii, L_I the Laplacian without I.

    A call costs O(n^2) per coalition; every value is rounded up by what the eigenvalues may be off.
    """

    def __init__(self, graph: object, coalition_size: int) -> None:
        self._spectra: list[tuple[FloatArray, FloatArray]] = []
        self.largest_eigenvalue = 0.0
        for batch, _ in node_covariances.laplacians_after_deletion(graph, coalition_size):
            values, vectors = np.linalg.eigh(batch)
            self.largest_eigenvalue = max(self.largest_eigenvalue, float(values[:, -1].max(initial=0.0)))
            self._spectra.append((np.clip(values, 0.0, None), vectors**2))

    def __call__(self, ratio: float) -> float:
        worst = 0.0
        for values, squares in self._spectra:
            inverse = (squares / (1 + ratio * values)[:, None, :]).sum(axis=2)
            m = values.shape[1]
            rounding = 8 * m * EPS * (1 + ratio * float(values[:, -1].max()))
            worst = max(worst, float(inverse.max()) * (1 + rounding))
        return worst
