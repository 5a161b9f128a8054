"""Utility theory of noise that is correlated across nodes: what of it stays in the models after averaging.

In: gossip, and a covariance R over nodes or the standard deviations of pairwise noise. Out: variances per coordinate
at learning rate 1, constants of the graph, and a published convergence bound in terms. What it costs in privacy is in
`spatial` and `privacy`; the error of a whole algorithm is `noise_error`.

Convention: new = W @ old. Papers that stack models as columns write X W; their W is W^T here. It matters only where W
is not symmetric, and there pairwise noise does not even cancel in the average unless W is doubly stochastic.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .. import check, spatial
from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_gram import spatial_error_gram
from ..errors import InvalidInput, unknown_name
from ..gossip import Gossip, GossipMatrix

__all__ = [
    "DecorBound",
    "Objective",
    "accumulated_error",
    "average_error",
    "decor_constant",
    "decor_step_sizes",
    "decor_theorem_2",
    "heterogeneity",
    "mixing_parameter",
    "one_step_error",
    "pairwise_error",
]

PARTS = ("columns", "rows")
SMALLEST_MIXING = 1e-12  # below it p is rounding: some part of the graph never hears of another


def one_step_error(gossip: GossipMatrix, covariance: Any) -> float:
    """tr(W R W^T): variance, summed over nodes, that one step's noise leaves in the models after averaging.

    Args: covariance: R over nodes, dense or sparse, shape (n, n), symmetric.
    Raises: InvalidInput: R has another shape, is not finite or not symmetric.
    Source: arXiv:2501.14644v2, Theorem 1 (times eta_t^2 and the number of coordinates), a criterion for one step only:
        `accumulated_error` counts what earlier steps left as well.
    """
    W = gossip.weights
    return float((W * np.asarray(W @ _covariance(covariance, gossip.num_nodes))).sum())


def accumulated_error(gossip: Gossip, covariance: Any, num_steps: int) -> float:
    """sum over tau, s <= tau of tr(P R P^T), P = W_tau ... W_s: variance in the models of all T steps and nodes.

    Noise of covariance R over nodes is drawn afresh in each step; learning rate 1. For schedules and several gossip
    rounds take tr(H R) with `error_gram.spatial_error_gram`.
    """
    R = _covariance(covariance, gossip.num_nodes)
    return float(np.sum(spatial_error_gram(Dynamics(gossip), num_steps=num_steps) * R))


def average_error(gossip: GossipMatrix, covariance: Any) -> float:
    """a R a^T, a = 1^T W / n: variance that one step's noise leaves in the average of the models.

    1^T R 1 / n^2 where W is doubly stochastic, hence 0 for pairwise noise R = L. Not so on irregular graphs with the
    uniform weights 1 / (degree + 1), which arXiv:2405.01031 and arXiv:2501.14644v2 call Metropolis-Hastings: their
    columns do not sum to 1.
    """
    a = np.asarray(gossip.weights.sum(axis=0)).ravel() / gossip.num_nodes
    return float(a @ _covariance(covariance, gossip.num_nodes) @ a)


def heterogeneity(gossip: GossipMatrix, *, of: str = "columns") -> float:
    """H_G(W): mean over the edges {i, k} of ||w_i - w_k||^2 / 2, w the columns or the rows of W; 0 without edges.

    How much of the noise of an edge survives one averaging: none if all neighbours have equal columns (complete graph).

    Args: of: "columns", what a pair's noise goes through when new = W @ old, so that `pairwise_error` is
        2 H_G |E| sigma_pair^2; or "rows", the same for models multiplied from the other side.

    Guarantees: rows of uniform weights 1 / (degree + 1) have H_G <= 1 / (k_min + 1), k_min the least degree. The
        published H_G <= 2 / k_min holds for them, not in general: facts `decor-heterogeneity-columns` and
        `decor-heterogeneity-metropolis-hastings`.
    Source: arXiv:2405.01031, the definition before Lemma 8: its proof, for X W, yields the rows of its W, which are the
        columns of W here; the text says columns. The two agree for symmetric W.

    >>> from mfdl.gossip import metropolis_hastings
    >>> round(heterogeneity(metropolis_hastings("ring:n=16")), 4)
    0.1111
    """
    if of not in PARTS:
        raise unknown_name("part of the gossip matrix", of, PARTS)
    N = _incidence(gossip)
    edges = N.shape[1]
    differences = gossip.weights @ N if of == "columns" else N.T @ gossip.weights
    return float(differences.power(2).sum()) / (2 * edges) if edges else 0.0


def pairwise_error(gossip: GossipMatrix, sigma_pair: float) -> float:
    """sigma_pair^2 tr(W L W^T) = 2 H_G |E| sigma_pair^2: variance of pairwise noise after one averaging, all nodes.

    Args: sigma_pair: standard deviation, >= 0, of the noise that the two ends of each edge add with opposite signs.
    Source: arXiv:2405.01031, Lemma 8, per coordinate.
    """
    pair = check.non_negative(sigma_pair=sigma_pair)
    return pair**2 * float((gossip.weights @ _incidence(gossip)).power(2).sum())


def mixing_parameter(gossip: GossipMatrix) -> float:
    """p = 1 - lambda_2(W^T W): one averaging shrinks the squared distance to the average to at most 1 - p of it.

    >>> from mfdl.gossip import metropolis_hastings
    >>> round(mixing_parameter(metropolis_hastings("torus:n=16")), 4)
    0.64

    Returns: 0 <= p <= 1; 0 if some nodes never hear of others or a difference never decays, 1 for one node.
    Raises: InvalidInput: W is not doubly stochastic, so that the average itself moves.
    Cost: O(n^3) time, O(n^2) memory.
    """
    if not gossip.is_doubly_stochastic:
        raise InvalidInput(
            "gossip must be doubly stochastic: otherwise the average moves, and noise that sums to zero over the nodes "
            "does not cancel in it; use metropolis-hastings."
        )
    n = gossip.num_nodes
    shrinkage = float(np.linalg.norm(gossip.dense() - 1.0 / n, 2)) ** 2
    p = min(1.0, 1.0 - shrinkage)
    return p if p > 8 * n * np.finfo(np.float64).eps else 0.0  # rounding of a norm of one is not mixing


class DecorBound(NamedTuple):
    """The terms of `decor_theorem_2`, each an expected loss above the optimum, up to one common constant."""

    average_noise: float
    initial_loss: float
    initial_disagreement: float
    gradient_disagreement: float
    pairwise_disagreement: float
    local_disagreement: float

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(self)


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a rate knows of the losses; its fields are keywords of the functions below.

    Attributes:
        smoothness: L > 0. pl_constant: mu > 0, of Polyak and Lojasiewicz.
        gradient_variance: s*^2, variance of the stochastic gradients at the optimum; growth_of_variance: M.
        gradient_divergence: zeta*^2, between the nodes' gradients at the optimum; growth_of_divergence: P.
        initial_loss: f_0, loss above the optimum at the start. initial_disagreement: Xi_0, mean squared distance of
            the start models to their average.

    Raises: InvalidInput: L or mu is not positive, or another number is negative.
    """

    smoothness: float
    pl_constant: float
    gradient_variance: float = 0.0
    gradient_divergence: float = 0.0
    growth_of_variance: float = 0.0
    growth_of_divergence: float = 0.0
    initial_loss: float = 0.0
    initial_disagreement: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            allowed = check.positive if name in ("smoothness", "pl_constant") else check.non_negative
            object.__setattr__(self, name, allowed(**{name: value}))

    def constant(self, p: float, num_nodes: int) -> float:
        """c of `decor_constant` for the mixing parameter p."""
        M, P = self.growth_of_variance, self.growth_of_divergence
        root = 4 * math.sqrt(3 * (1 - p) * (3 * P + p * M))
        return max(root, self.pl_constant / self.smoothness, 2 * p, 4 * p * M / num_nodes)


def decor_theorem_2(
    gossip: GossipMatrix,
    *,
    sigma_local: float,
    sigma_pair: float,
    num_steps: int,
    dimension: int,
    **objective: float,
) -> DecorBound:
    """The convergence bound of pairwise noise under the Polyak-Lojasiewicz condition, term by term, UP TO CONSTANTS.

    With L, mu, T, d, n, p = `mixing_parameter` and c of `decor_constant`:

        average_noise          L (s*^2 + d s_local^2) / (mu^2 n T)
        initial_loss           c^2 L^2 f_0 / (mu^2 p^2 T^2)
        initial_disagreement   c L^3 Xi_0 / (mu^2 p^2 T^2)
        ..._disagreement       L^2 log(T) / (mu^3 p T^2) times
            gradient           (1 - p) (zeta*^2 / p + s*^2)
            pairwise           H_G |E| d s_pair^2 / n
            local              ||W - 1 1^T / n||_F^2 d s_local^2

    Only the first term is of order 1 / T, and pairwise noise is not in it: it cancels in the average.

    Args:
        sigma_local, sigma_pair: standard deviations of the injected noise, as in `spatial.decor_covariance`.
        num_steps: T >= 1. dimension: d >= 1. objective: keywords of `Objective`.

    Raises: InvalidInput: a number out of range, W not doubly stochastic, or no mixing (p = 0).
    Source: arXiv:2405.01031, Theorem 2, for the step sizes of `decor_step_sizes` in place of the published ones, fact
        `decor-theorem-2-step-sizes`. Lemma 9's condition gives a contraction by 1 - p/3, not the printed 1 - p/2
        (which needs 12 in place of 6 under its root); both change constants only. A rate to compare by, no certificate.
    """
    p, f = _positive_mixing(gossip), Objective(**objective)
    n, T = gossip.num_nodes, check.integer_at_least(1, num_steps=num_steps)
    d = check.integer_at_least(1, dimension=dimension)
    local = check.non_negative(sigma_local=sigma_local) ** 2
    c, L, mu = f.constant(p, n), f.smoothness, f.pl_constant
    drift = L**2 * math.log(T) / (mu**3 * p * T**2)
    deviation = float(np.linalg.norm(gossip.dense() - 1.0 / n)) ** 2
    return DecorBound(
        average_noise=L * (f.gradient_variance + d * local) / (mu**2 * n * T),
        initial_loss=(c * L / (mu * p * T)) ** 2 * f.initial_loss,
        initial_disagreement=c * L**3 * f.initial_disagreement / (mu * p * T) ** 2,
        gradient_disagreement=drift * (1 - p) * (f.gradient_divergence / p + f.gradient_variance),
        pairwise_disagreement=drift * d * pairwise_error(gossip, sigma_pair) / (2 * n),
        local_disagreement=drift * deviation * d * local,
    )


def decor_constant(gossip: GossipMatrix, **objective: float) -> float:
    """c = max(4 sqrt(3 (1 - p) (3 P + p M)), mu / L, 2 p, 4 p M / n); source and keywords as in `decor_theorem_2`."""
    return Objective(**objective).constant(_positive_mixing(gossip), gossip.num_nodes)


def decor_step_sizes(gossip: GossipMatrix, num_steps: int, **objective: float) -> FloatArray:
    """eta_t = 16 / (mu (t + 16 c L / (mu p))), t < T, shape (T,): a schedule for `Dynamics`, starting at p / (c L).

    Args: objective: keywords of `Objective`.
    Source: arXiv:2405.01031, Theorem 2, whose eta_0 = 16 p / (c L) is 16 times the largest step its lemmas allow.
    """
    T = check.integer_at_least(1, num_steps=num_steps)
    p, f = _positive_mixing(gossip), Objective(**objective)
    c, L, mu = f.constant(p, gossip.num_nodes), f.smoothness, f.pl_constant
    eta: FloatArray = 16.0 / (mu * (np.arange(T, dtype=np.float64) + 16 * c * L / (mu * p)))
    return eta


def _covariance(covariance: Any, n: int) -> FloatArray:
    R = check.square_array(covariance=covariance.toarray() if sp.issparse(covariance) else covariance)
    if len(R) != n:
        raise InvalidInput(f"covariance must be {n} x {n}, one row per node of the gossip matrix, got shape {R.shape}.")
    gap = float(np.abs(R - R.T).max())
    if gap > spatial.SYMMETRY_TOLERANCE * float(np.abs(R).max()):
        raise InvalidInput(f"covariance must be symmetric, got entries that differ from the transpose by {gap:.3g}.")
    return R


def _incidence(gossip: GossipMatrix) -> sp.csr_array:
    return spatial.incidence(gossip.graph())


def _positive_mixing(gossip: GossipMatrix) -> float:
    p = mixing_parameter(gossip)
    if p <= SMALLEST_MIXING:
        raise InvalidInput(
            f"gossip must mix, p = 1 - lambda_2(W^T W) > 0, got p = {p:.3g}: some difference between nodes never "
            "decays; connect the graph or give each node a self weight."
        )
    return p
