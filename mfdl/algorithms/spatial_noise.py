"""Algorithms whose noise is correlated across nodes, fresh in every step: DECOR and any node covariance R (CorN).

All are the plain decentralized round with `StepNoise`: injected noise of a step = F times the step's base noise. Each
part of the base noise is a column of F with the nodes that hold it; who knows what is for trust models to say.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .. import check, spatial
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..operators import StepNoise
from ..participation import Participation
from .dsgd import decentralized
from .linear_algorithm import LinearAlgorithm


def graph_of(dynamics: Dynamics) -> nx.Graph:
    """The communication graph: an edge where either node gives the other weight, nodes 0..n-1 in matrix order."""
    weights = sp.coo_array(dynamics.gossip.at(0).weights)
    graph = nx.Graph()
    graph.add_nodes_from(range(dynamics.num_nodes))
    pairs = zip(weights.coords[0].tolist(), weights.coords[1].tolist(), weights.data.tolist(), strict=True)
    graph.add_edges_from((min(i, j), max(i, j)) for i, j, w in pairs if w != 0 and i != j)
    return graph


def decor(
    dynamics: Dynamics,
    participation: Participation,
    *,
    sigma_local: float = 1.0,
    sigma_pair: float = 1.0,
    orientation: Sequence[int] | None = None,
) -> LinearAlgorithm:
    """DECOR: private noise at each node plus pairwise noise that cancels over each edge of the graph.

    Node i injects sigma_local v_i + sum over its edges of +- sigma_pair v_e, all v fresh in every step and independent;
    covariance over nodes sigma_local^2 I + sigma_pair^2 L. Each v_e is held by both ends of its edge.

    Args:
        sigma_local: > 0 or 0 (then only pairwise noise: rank deficient); sigma_pair: >= 0. Standard deviations, in
            units of the mechanism's noise_std.
        orientation: one sign +-1 per edge in sorted order; no number depends on it.
    Source: arXiv:2405.01031, Algorithm 1, drawn fresh in every step.
    """
    local = check.non_negative(sigma_local=sigma_local)
    pair = check.non_negative(sigma_pair=sigma_pair)
    n = dynamics.num_nodes
    incidence = spatial.incidence(graph_of(dynamics), orientation)
    factor = sp.hstack([local * sp.eye_array(n), pair * incidence]).tocsr()
    holders = sp.vstack([sp.eye_array(n, dtype=bool), (incidence.T != 0)]).tocsr()
    used = np.flatnonzero(np.asarray(abs(factor).sum(axis=0)).ravel() > 0)
    noise = StepNoise(factor[:, used], holders[used], participation.num_steps, n)
    return decentralized("decor", dynamics, participation, noise)


def spatial_covariance(
    dynamics: Dynamics,
    participation: Participation,
    covariance: ArrayLike | Sequence[ArrayLike] | None = None,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    name: str = "spatial",
) -> LinearAlgorithm:
    """Noise over nodes from shared seeds, fresh in every step: N(0, sum_k R_k), R_k from the seed of group k (CorN).

    Args:
        covariance: R, shape (n, n), symmetric positive semidefinite, or one R_k per group, each zero outside its
            group; default the identity.
        groups: for each seed the nodes that hold it; default one seed held by all nodes, which protects against
            outsiders only. A group of one node makes private noise.
    Source: arXiv:2501.14644v2, problems (9) and (10).
    """
    n = dynamics.num_nodes
    holding = [list(range(n))] if groups is None else [list(group) for group in groups]
    matrices = np.eye(n) if covariance is None else np.asarray(covariance, dtype=np.float64)
    given = [matrices] if matrices.ndim < 3 else list(matrices)
    if len(given) != len(holding):
        raise InvalidInput(f"covariance must hold one matrix per group, got {len(given)} for {len(holding)} groups.")
    factors, holders = [], []
    for R, group in zip(given, holding, strict=True):
        factor = _root(R, n)
        outside = np.setdiff1d(np.arange(n), group)
        if groups is not None and np.abs(np.asarray(R)[outside]).max(initial=0.0) > 0:
            raise InvalidInput(f"the covariance of group {group} must be zero outside the group, which cannot make it.")
        members = np.zeros(n, dtype=bool)
        members[group] = True
        factors.append(factor)
        holders.append(np.tile(members, (factor.shape[1], 1)))
    noise = StepNoise(np.hstack(factors), sp.csr_array(np.vstack(holders)), participation.num_steps, n)
    return decentralized(name, dynamics, participation, noise)


def _root(covariance: ArrayLike, n: int) -> np.ndarray:
    """F with F F^T = R, columns with non-zero variance only."""
    R = check.square_array(covariance=covariance)
    if R.shape[0] != n:
        raise InvalidInput(f"covariance must be {n} x {n} for num_nodes={n}, got {R.shape}.")
    if np.abs(R - R.T).max() > 1e-9 * np.abs(R).max():
        raise InvalidInput("covariance must be symmetric; use (R + R.T) / 2 if that is what you mean.")
    values, vectors = np.linalg.eigh((R + R.T) / 2)
    if values[0] < -1e-9 * max(values[-1], 0.0) or values[-1] <= 0:
        raise InvalidInput(f"covariance must be positive semidefinite and not zero, got eigenvalue {values[0]:.3g}.")
    kept = values > 1e-12 * values[-1]
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))
