"""Noise that is correlated across nodes: how much of it stays in the models after averaging.

In: gossip, and a covariance R over nodes or the standard deviations of pairwise noise. Out: variances per coordinate
at learning rate 1, and constants of the graph; what training makes of them is in `convergence`. What it costs in
privacy is in `spatial` and `privacy`; the error of a whole algorithm is
`mfdl.algorithms.noise_error`.

Convention: new = W @ old. Papers that stack models as columns write X W; their W is W^T here. It matters only where W
is not symmetric, and there pairwise noise does not even cancel in the average unless W is doubly stochastic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from mfdl import check, node_covariances
from mfdl.check import FloatArray
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput, require_known
from mfdl.gossip import Gossip, GossipMatrix
from mfdl.objective import NoiseObjective

__all__ = [
    "accumulated_error",
    "average_error",
    "heterogeneity",
    "one_step_error",
    "pairwise_error",
]

PARTS = ("columns", "rows")


def one_step_error(gossip: GossipMatrix, covariance: Any) -> float:
    """tr(W R W^T): variance, summed over nodes, that one step's noise leaves in the models after averaging.

    Args: covariance: R over nodes, dense or sparse, shape (n, n), symmetric.
    Raises: InvalidInput: R has another shape, is not finite or not symmetric.
    Source: arXiv:2501.14644v2, Theorem 1 (times eta_t^2 and the number of coordinates), a criterion for one step only:
        `accumulated_error` counts what earlier steps left as well.
    """
    check.instance(GossipMatrix, gossip=gossip)
    W = gossip.weights
    return float((W * np.asarray(W @ _covariance(covariance, gossip.num_nodes))).sum())


def accumulated_error(gossip: Gossip, covariance: Any, num_steps: int) -> float:
    """sum over tau, s <= tau of tr(P R P^T), P = W_tau ... W_s: variance in the models of all T steps and nodes.

    Noise of covariance R over nodes is drawn afresh in each step; learning rate 1. For schedules and several gossip
    rounds take tr(H R) with `mfdl.objective.NoiseObjective.over_nodes`.
    """
    check.instance(Gossip, gossip=gossip)
    R = _covariance(covariance, gossip.num_nodes)
    return float(np.sum(NoiseObjective(Dynamics(gossip), num_steps).over_nodes() * R))


def average_error(gossip: GossipMatrix, covariance: Any) -> float:
    """a R a^T, a = 1^T W / n: variance that one step's noise leaves in the average of the models.

    1^T R 1 / n^2 where W is doubly stochastic, hence 0 for pairwise noise R = L. Not so on irregular graphs with the
    uniform weights 1 / (degree + 1), which arXiv:2405.01031 and arXiv:2501.14644v2 call Metropolis-Hastings: their
    columns do not sum to 1.
    """
    check.instance(GossipMatrix, gossip=gossip)
    a = np.asarray(gossip.weights.sum(axis=0)).ravel() / gossip.num_nodes
    return float(a @ _covariance(covariance, gossip.num_nodes) @ a)


def heterogeneity(gossip: GossipMatrix, *, of: str = "columns") -> float:
    """H_G(W): mean over the edges {i, k} of ||w_i - w_k||^2 / 2, w the columns or the rows of W; 0 without edges.

    How much of the noise of an edge survives one averaging: none if all neighbours have equal columns (complete graph).

    Args: of: "columns", what a pair's noise goes through when new = W @ old, so that `pairwise_error` is
        2 H_G |E| sigma_cor^2; or "rows", the same for models multiplied from the other side.

    Guarantees: rows of uniform weights 1 / (degree + 1) have H_G <= 1 / (k_min + 1), k_min the least degree. The
        published H_G <= 2 / k_min holds for them, not in general: facts `decor-heterogeneity-columns` and
        `decor-heterogeneity-metropolis-hastings`.
    Source: arXiv:2405.01031, the definition before Lemma 8: its proof, for X W, yields the rows of its W, which are the
        columns of W here; the text says columns. The two agree for symmetric W.

    >>> from mfdl.gossip import metropolis_hastings
    >>> round(heterogeneity(metropolis_hastings("ring:n=16")), 4)
    0.1111
    """
    check.instance(GossipMatrix, gossip=gossip)
    require_known("part of the gossip matrix", of, PARTS)
    N = _incidence(gossip)
    edges = N.shape[1]
    differences = gossip.weights @ N if of == "columns" else N.T @ gossip.weights
    return float(differences.power(2).sum()) / (2 * edges) if edges else 0.0


def pairwise_error(gossip: GossipMatrix, sigma_cor: float) -> float:
    """sigma_cor^2 tr(W L W^T) = 2 H_G |E| sigma_cor^2: variance of pairwise noise after one averaging, all nodes.

    Args: sigma_cor: standard deviation, >= 0, of the noise that the two ends of each edge add with opposite signs.
    Source: arXiv:2405.01031, Lemma 8, per coordinate.
    """
    check.instance(GossipMatrix, gossip=gossip)
    pair = check.non_negative(sigma_cor=sigma_cor)
    return pair**2 * float((gossip.weights @ _incidence(gossip)).power(2).sum())


def _covariance(covariance: Any, n: int) -> FloatArray:
    R = check.square_array(covariance=covariance.toarray() if sp.issparse(covariance) else covariance)
    if len(R) != n:
        raise InvalidInput(f"covariance must be {n} x {n}, one row per node of the gossip matrix, got shape {R.shape}.")
    gap = float(np.abs(R - R.T).max())
    if gap > node_covariances.SYMMETRY_TOLERANCE * float(np.abs(R).max()):
        raise InvalidInput(f"covariance must be symmetric, got entries that differ from the transpose by {gap:.3g}.")
    return R


def _incidence(gossip: GossipMatrix) -> sp.csr_array:
    return node_covariances.incidence(gossip.links())
