"""Convergence of D-SGD with noise that neighbours add with opposite signs, with and without convexity.

One step is X <- W (X - eta (G + N)): row i of G is the stochastic gradient of f_i at row i of X, and N has covariance
s_local^2 I + s_pair^2 L over nodes in each of d coordinates. f is the mean of the f_i, f* its infimum, x the mean of
the rows, Xi the mean squared distance of the rows to x, J = 1 1^T / n.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from mfdl import check, graphs
from mfdl.check import FloatArray
from mfdl.errors import InvalidInput
from mfdl.gossip import GossipMatrix

from . import decor_corollary, pairwise_error


class DecorBound(NamedTuple):
    """The terms of `decor_theorem_2` or of `decor_theorem_2_non_convex`, which says what their sum bounds."""

    average_noise: float
    initial_loss: float
    initial_disagreement: float
    gradient_disagreement: float
    pairwise_disagreement: float
    local_disagreement: float

    @property
    def total(self) -> float:
        return sum(self)


class DecorRate(NamedTuple):
    """The terms of `decor_rate` or `decor_rate_non_convex`: the price of privacy, and what sampling costs anyway."""

    privacy: float
    sampling: float

    @property
    def total(self) -> float:
        return sum(self)


# Theorem 2


def decor_theorem_2(
    gossip: GossipMatrix, *, sigma_ldp: float, sigma_cor: float, num_steps: int, dimension: int, **objective: float
) -> DecorBound:
    """The convergence bound of pairwise noise under the Polyak-Lojasiewicz condition, term by term, UP TO CONSTANTS.

    With L, mu, T, d, n, p = `mixing_parameter` and c of `decor_constant`, terms of the expected loss above the optimum:

        average_noise          L (s*^2 + d s_local^2) / (mu^2 n T)
        initial_loss           c^2 L^2 f_0 / (mu^2 p^2 T^2)
        initial_disagreement   c L^3 Xi_0 / (mu^2 p^2 T^2)
        ..._disagreement       L^2 log(T) / (mu^3 p T^2) times
            gradient           (1 - p) (zeta*^2 / p + s*^2)
            pairwise           H_G |E| d s_pair^2 / n
            local              ||W - 1 1^T / n||_F^2 d s_local^2

    Only the first term is of order 1 / T, and pairwise noise is not in it: it cancels in the average.

    Args: num_steps: T. dimension: d. objective: keywords of `Objective`; pl_constant is needed.
    Raises: InvalidInput: a number out of range, W not doubly stochastic, or no mixing (p = 0).
    Source: arXiv:2405.01031, Theorem 2, for the step sizes of `decor_step_sizes` in place of the published ones, fact
        `decor-theorem-2-step-sizes`. A rate to compare by, no certificate.
    """
    p, f = positive_mixing(gossip), Objective(**objective)
    n, T = gossip.num_nodes, check.integer_at_least(1, num_steps=num_steps)
    d = check.integer_at_least(1, dimension=dimension)
    local = check.non_negative(sigma_ldp=sigma_ldp) ** 2
    c, L, mu = f.constant(p, n), f.smoothness, f.convex_enough()
    drift = L**2 * math.log(T) / (mu**3 * p * T**2)
    deviation = float(np.linalg.norm(gossip.dense() - 1.0 / n)) ** 2
    return DecorBound(
        average_noise=L * (f.gradient_variance + d * local) / (mu**2 * n * T),
        initial_loss=(c * L / (mu * p * T)) ** 2 * f.initial_loss,
        initial_disagreement=c * L**3 * f.initial_disagreement / (mu * p * T) ** 2,
        gradient_disagreement=drift * (1 - p) * (f.gradient_divergence / p + f.gradient_variance),
        pairwise_disagreement=drift * d * pairwise_error(gossip, sigma_cor) / (2 * n),
        local_disagreement=drift * deviation * d * local,
    )


def decor_theorem_2_non_convex(
    gossip: GossipMatrix, *, sigma_ldp: float, sigma_cor: float, num_steps: int, dimension: int, **objective: float
) -> DecorBound:
    """Bound on the mean over T steps of E ||grad f(x_t)||^2, for smooth losses of any shape; a certificate.

    With one eta = `decor_step_size` for all steps and D of `decor_disagreement`, what a step of rate 1 adds to Xi:

        average_noise          3.2 eta L (s*^2 + d s_local^2) / n
        initial_loss           6.4 f_0 / (eta T)
        initial_disagreement   14.4 L^2 Xi_0 / (p T)
        ..._disagreement       14.4 eta^2 L^2 D / p, D by gradients, pairwise and local noise

    The first two sum to at most 6.4 sqrt(2 L f_0 (s*^2 + d s_local^2) / (n T)) + 6.4 c L f_0 / (p T); pairwise noise
    is in neither, and all else is of order 1 / T.

    Proof: add 9 eta L^2 / (4 p) times `decor_disagreement` to `decor_descent`. Xi leaves with the weight it came
    with, as c^2 >= 6 (1 - p) (3 + p M), and g with the factor -eta / 4 + (9 / 2) eta^3 L^2 (1 - p) (3 P + p M) / p^2
    <= -5 eta / 32, as c^2 >= 48 (1 - p) (3 P + p M). Sum over the steps.

    Args, Raises: those of `decor_theorem_2`; initial_loss > 0 is needed, pl_constant is not used.
    Source: arXiv:2405.01031, Theorem 2, non-convex part, with constants proved here; facts `decor-theorem-2-constant`
        and `decor-theorem-2-non-convex-constant`.
    """
    p, f = positive_mixing(gossip), Objective(**objective)
    n, T, L = gossip.num_nodes, check.integer_at_least(1, num_steps=num_steps), f.smoothness
    added = added_disagreement(gossip, p, f, sigma_ldp, sigma_cor, dimension)
    eta = decor_step_size(gossip, T, sigma_ldp=sigma_ldp, dimension=dimension, **objective)
    by_gradients, by_pairs, by_nodes = (14.4 * eta**2 * L**2 * part / p for part in added)
    return DecorBound(
        average_noise=3.2 * eta * L * (f.gradient_variance + dimension * sigma_ldp**2) / n,
        initial_loss=6.4 * f.initial_loss / (eta * T),
        initial_disagreement=14.4 * L**2 * f.initial_disagreement / (p * T),
        gradient_disagreement=by_gradients,
        pairwise_disagreement=by_pairs,
        local_disagreement=by_nodes,
    )


def decor_constant(gossip: GossipMatrix, **objective: float) -> float:
    """c = max(4 sqrt(3 (1 - p) (3 max(P, 1) + p M)), mu / L, 2 p, 4 p M / n); keywords as in `decor_theorem_2`.

    Without a pl_constant it is that of the non-convex part, which has no mu. P counts as 1 at least, fact
    `decor-theorem-2-constant`: c = 2 p lets nodes of one loss part for good.
    """
    return Objective(**objective).constant(positive_mixing(gossip), gossip.num_nodes)


def decor_step_sizes(gossip: GossipMatrix, num_steps: int, **objective: float) -> FloatArray:
    """eta_t = 16 / (mu (t + 16 c L / (mu p))), t < T, shape (T,): a schedule for `Dynamics`, starting at p / (c L).

    Source: arXiv:2405.01031, Theorem 2, whose eta_0 = 16 p / (c L) is 16 times the largest step its lemmas allow.
    """
    T = check.integer_at_least(1, num_steps=num_steps)
    p, f = positive_mixing(gossip), Objective(**objective)
    c, L, mu = f.constant(p, gossip.num_nodes), f.smoothness, f.convex_enough()
    eta: FloatArray = 16.0 / (mu * (np.arange(T, dtype=np.float64) + 16 * c * L / (mu * p)))
    return eta


def decor_step_size(
    gossip: GossipMatrix, num_steps: int, *, sigma_ldp: float, dimension: int, **objective: float
) -> float:
    """eta = min(p / (c L), sqrt(2 n f_0 / (L T (s*^2 + d s_local^2)))), the one step size of the non-convex part.

    c is `decor_constant` without pl_constant. Args: as in `decor_theorem_2_non_convex`.
    """
    T, d = check.integer_at_least(1, num_steps=num_steps), check.integer_at_least(1, dimension=dimension)
    p, f = positive_mixing(gossip), dataclasses.replace(Objective(**objective), pl_constant=0.0)
    largest = p / (f.constant(p, gossip.num_nodes) * f.smoothness)
    variance = f.gradient_variance + d * check.non_negative(sigma_ldp=sigma_ldp) ** 2
    start = check.positive(initial_loss=f.initial_loss)
    if variance == 0:
        return largest
    return min(largest, math.sqrt(2 * gossip.num_nodes * start / (f.smoothness * T * variance)))


# Corollaries 3 and 12


def decor_rate(
    graph: graphs.Source,
    *,
    epsilon: float,
    delta: float,
    num_colluders: int = 0,
    clip_norm: float = 1.0,
    num_steps: int,
    dimension: int,
    **objective: float,
) -> DecorRate:
    """The leading term of `decor_theorem_2` with the noise of `decor_corollary`, UP TO CONSTANTS.

        privacy    32 C^2 d L log(1 / delta) / (mu^2 n (n - q) epsilon^2), whatever T
        sampling   L s*^2 / (mu^2 n T)

    Independent noise for the same budget has n in place of n (n - q).

    Args, Raises: those of `decor_corollary` and `decor_theorem_2`.
    Source: arXiv:2405.01031, Corollaries 3 and 12, first rate; the range of epsilon is that of `decor_corollary`.
    """
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "num_colluders": num_colluders}
    local = decor_corollary(graph, **budget, clip_norm=clip_norm, num_steps=num_steps).sigma_ldp
    f, d = Objective(**objective), check.integer_at_least(1, dimension=dimension)
    scale = f.smoothness / (f.convex_enough() ** 2 * graphs.load(graph).number_of_nodes() * num_steps)
    return DecorRate(scale * d * local**2, scale * f.gradient_variance)


def decor_rate_non_convex(
    graph: graphs.Source,
    *,
    epsilon: float,
    delta: float,
    num_colluders: int = 0,
    clip_norm: float = 1.0,
    num_steps: int,
    dimension: int,
    **objective: float,
) -> DecorRate:
    """The leading terms of `decor_theorem_2_non_convex` with the noise of `decor_corollary`, UP TO CONSTANTS.

        privacy    C sqrt(32 d L f_0 log(1 / delta) / (n (n - q))) / epsilon, whatever T
        sampling   sqrt(L f_0 s*^2 / (n T))

    Args, Raises: those of `decor_rate`, without pl_constant.
    Source: arXiv:2405.01031, Corollaries 3 and 12, second rate.
    """
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "num_colluders": num_colluders}
    local = decor_corollary(graph, **budget, clip_norm=clip_norm, num_steps=num_steps).sigma_ldp
    f, d = Objective(**objective), check.integer_at_least(1, dimension=dimension)
    start = check.positive(initial_loss=f.initial_loss)
    scale = f.smoothness * start / (graphs.load(graph).number_of_nodes() * num_steps)
    return DecorRate(math.sqrt(scale * d) * local, math.sqrt(scale * f.gradient_variance))


SMALLEST_MIXING = 1e-12  # below it p is rounding: some part of the graph never hears of another


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a rate knows of the losses.

    Attributes:
        smoothness: L > 0, of every f_i. pl_constant: mu, of Polyak and Lojasiewicz, ||grad f||^2 >= 2 mu (f - f*); 0
            where none is known, which only the non-convex functions take.
        gradient_variance, growth_of_variance: s*^2 and M, for every node: E ||g_i(x) - grad f_i(x)||^2 <= s*^2 + M
            ||grad f(x)||^2.
        gradient_divergence, growth_of_divergence: zeta*^2 and P: the mean over nodes of ||grad f_i(x) - grad f(x)||^2
            (or of ||grad f_i(x)||^2) is at most zeta*^2 + P ||grad f(x)||^2.
        initial_loss: f_0, loss above the optimum at the start. initial_disagreement: Xi_0, mean squared distance of
            the start models to their average.
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
        """mu, which must be known."""
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

    Args: learning_rate: eta. loss: f(x), above any constant. gradient_squared: g. disagreement: Xi. dimension: d.
        objective: keywords of `Objective`.
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

    Args: as in `decor_descent`. Raises: as in `decor_theorem_2`.
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
