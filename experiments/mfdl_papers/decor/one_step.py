"""One step of D-SGD with noise that neighbours add with opposite signs: what it does to the loss and to agreement.

In: gossip that keeps the average, standard deviations of the noise, and what is known of the losses. Out: upper bounds
on two expectations after the step; what many steps make of them is in `convergence`.

One step is X <- W (X - eta (G + N)): row i of G is the stochastic gradient of f_i at row i of X, and N has covariance
s_local^2 I + s_pair^2 L over nodes in each of d coordinates. f is the mean of the f_i, f* its infimum, x the mean of
the rows, Xi the mean squared distance of the rows to x, J = 1 1^T / n.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from mfdl import check
from mfdl.errors import InvalidInput
from mfdl.gossip import GossipMatrix

from ..noise_in_models import pairwise_error

SMALLEST_MIXING = 1e-12  # below it p is rounding: some part of the graph never hears of another


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a rate knows of the losses; its fields are keywords of the functions below.

    Attributes:
        smoothness: L > 0, of every f_i. pl_constant: mu, of Polyak and Lojasiewicz, ||grad f||^2 >= 2 mu (f - f*); 0
            where none is known, which only the non-convex functions take.
        gradient_variance, growth_of_variance: s*^2 and M, for every node: E ||g_i(x) - grad f_i(x)||^2 <= s*^2 + M
            ||grad f(x)||^2.
        gradient_divergence, growth_of_divergence: zeta*^2 and P: the mean over nodes of ||grad f_i(x) - grad f(x)||^2
            (or of ||grad f_i(x)||^2) is at most zeta*^2 + P ||grad f(x)||^2.
        initial_loss: f_0, loss above the optimum at the start. initial_disagreement: Xi_0, mean squared distance of
            the start models to their average.

    Raises: InvalidInput: L is not positive, or another number is negative.
    """

    smoothness: float
    pl_constant: float = 0.0
    gradient_variance: float = 0.0
    gradient_divergence: float = 0.0
    growth_of_variance: float = 0.0
    growth_of_divergence: float = 0.0
    initial_loss: float = 0.0
    initial_disagreement: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            allowed = check.positive if name == "smoothness" else check.non_negative
            object.__setattr__(self, name, allowed(**{name: value}))

    def constant(self, p: float, num_nodes: int) -> float:
        """c of `decor_constant` for the mixing parameter p."""
        M, P = self.growth_of_variance, max(1.0, self.growth_of_divergence)
        root = 4 * math.sqrt(3 * (1 - p) * (3 * P + p * M))
        return max(root, self.pl_constant / self.smoothness, 2 * p, 4 * p * M / num_nodes)

    def convex_enough(self) -> float:
        """mu, where it is needed. Raises: InvalidInput: none is known."""
        return check.positive(pl_constant=self.pl_constant)


def decor_descent(
    gossip: GossipMatrix,
    *,
    learning_rate: float,
    loss: float,
    gradient_squared: float,
    disagreement: float,
    sigma_ldp: float = 0.0,
    dimension: int = 1,
    **objective: float,
) -> float:
    """Upper bound on E f(x) after one step: the descent lemma of the average model, for eta <= 1 / L.

        f - (eta / 2) (1 - m) g + (eta L^2 / 2) (1 + m) Xi + (L eta^2 / (2 n)) (s*^2 + d s_local^2),  m = 2 eta L M / n

    g = ||grad f(x)||^2. For eta <= n / (4 L M) the terms are at most -(eta / 4) g and (3 / 4) eta L^2 Xi.

    Proof: W keeps the mean, in which pairwise noise cancels. By smoothness E f(x - eta h) <= f - eta <grad f, h> + (L
    eta^2 / 2) (||h||^2 + variance), h the mean of the grad f_i(x_i). 2 <grad f, h> = g + ||h||^2 - ||grad f - h||^2
    with ||grad f - h||^2 <= L^2 Xi, and what is left of ||h||^2 is not positive. The variance is at most (s*^2 + M
    mean ||grad f(x_i)||^2 + d s_local^2) / n, and ||grad f(x_i)||^2 <= 2 g + 2 L^2 ||x_i - x||^2.

    Args:
        learning_rate: eta, > 0 and at most 1 / L. loss: f(x), above any constant. gradient_squared: g >= 0.
        disagreement: Xi >= 0. sigma_ldp: standard deviation. dimension: d >= 1. objective: keywords of `Objective`.

    Raises: InvalidInput: a number out of range, or W not doubly stochastic.
    Source: arXiv:2405.01031, Lemma 7, with constants proved here.
    """
    _ = gossip.mixing_parameter  # refuses what moves the average
    f, eta = Objective(**objective), check.positive(learning_rate=learning_rate)
    L, n = f.smoothness, gossip.num_nodes
    if eta > (1 + 1e-12) / L:
        raise InvalidInput(f"learning_rate must be at most 1 / smoothness = {1 / L:g} for this lemma, got {eta:g}.")
    g, Xi = check.non_negative(gradient_squared=gradient_squared), check.non_negative(disagreement=disagreement)
    local = check.integer_at_least(1, dimension=dimension) * check.non_negative(sigma_ldp=sigma_ldp) ** 2
    growth = 2 * eta * L * f.growth_of_variance / n
    progress = eta / 2 * (1 - growth) * g - eta * L**2 / 2 * (1 + growth) * Xi
    return loss - progress + L * eta**2 / (2 * n) * (f.gradient_variance + local)


def decor_disagreement(
    gossip: GossipMatrix,
    *,
    learning_rate: float,
    gradient_squared: float,
    disagreement: float,
    sigma_ldp: float = 0.0,
    sigma_cor: float = 0.0,
    dimension: int = 1,
    **objective: float,
) -> float:
    """Upper bound on E Xi after one step: how far the models lie from their mean, for any eta.

        (1 - 2 p / 3 + 2 (1 - p) (3 + p M) eta^2 L^2 / p) Xi + (2 (1 - p) (3 P + p M) / p) eta^2 g
        + (1 - p) eta^2 (6 zeta*^2 / p + s*^2) + (eta^2 d / n) (2 H_G |E| s_pair^2 + ||W - J||_F^2 s_local^2)

    The first factor is 1 - p/3 at eta = p / (L sqrt(6 (1 - p) (3 + p M))) and 1 - p/2 with 12 in place of 6.

    Proof: W - J maps the deviations Y - eta V to the new ones, V those of the grad f_i(x_i), and shrinks squares to 1
    - p of them. (1 - p) ||Y - eta V||^2 <= (1 - p) (1 + a) ||Y||^2 + (1 - p) (1 + 1/a) eta^2 ||V||^2, where a = p /
    (3 (1 - p)) makes the first factor 1 - 2 p / 3 and the second at most 3 (1 - p) / p. A mean is the best constant
    to subtract, so ||V||^2 <= 2 sum ||grad f_i(x_i) - grad f_i(x)||^2 + 2 sum ||grad f_i(x) - grad f(x)||^2 <= 2 n
    (L^2 Xi + zeta*^2 + P g). Sampling adds (1 - p) eta^2 (s*^2 + 2 M g + 2 M L^2 Xi) and the noise its own variance,
    both independent of Y.

    Args: as in `decor_descent`; sigma_cor: standard deviation of pairwise noise; learning_rate: any eta > 0.
    Raises: InvalidInput: a number out of range, W not doubly stochastic, or no mixing (p = 0).
    Source: arXiv:2405.01031, Lemma 9, with its contraction mended: fact `decor-lemma-9-contraction`.
    """
    p, f = positive_mixing(gossip), Objective(**objective)
    eta = check.positive(learning_rate=learning_rate)
    g, Xi = check.non_negative(gradient_squared=gradient_squared), check.non_negative(disagreement=disagreement)
    L, M, P = f.smoothness, f.growth_of_variance, f.growth_of_divergence
    factor = 2 * (1 - p) * eta**2 / p
    shrunk = (1 - 2 * p / 3 + factor * (3 + p * M) * L**2) * Xi + factor * (3 * P + p * M) * g
    return shrunk + eta**2 * sum(added_disagreement(gossip, p, f, sigma_ldp, sigma_cor, dimension))


def positive_mixing(gossip: GossipMatrix) -> float:
    p = gossip.mixing_parameter
    if p <= SMALLEST_MIXING:
        raise InvalidInput(
            f"gossip must mix, p = 1 - lambda_2(W^T W) > 0, got p = {p:.3g}: some difference between nodes never "
            "decays; connect the graph or give each node a self weight."
        )
    return p


def added_disagreement(
    gossip: GossipMatrix, p: float, f: Objective, sigma_ldp: float, sigma_cor: float, dimension: int
) -> tuple[float, float, float]:
    """What a step of rate 1 adds to Xi whatever the models are: by gradients, by pairwise, by local noise."""
    n, d = gossip.num_nodes, check.integer_at_least(1, dimension=dimension)
    local = check.non_negative(sigma_ldp=sigma_ldp) ** 2
    deviation = float(np.linalg.norm(gossip.dense() - 1.0 / n)) ** 2
    gradients = (1 - p) * (6 * f.gradient_divergence / p + f.gradient_variance)
    return gradients, d * pairwise_error(gossip, sigma_cor) / n, deviation * d * local / n
