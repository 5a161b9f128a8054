"""Claims of DECOR about training: Lemmas 7 and 9, Theorem 2 without convexity, and the rates of Corollary 12.

Truth is an expectation in closed form: nodes have one model weight and losses l_i x^2 / 2 - b_i x, curvatures l_i of
either sign, so models stay linear in the noise. Cases are drawn from a seed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from mfdl.check import FloatArray
from mfdl.gossip import GossipMatrix, mixing_parameter
from mfdl.spatial import incidence
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..statements import statements
from . import convergence, one_step
from .pairwise_bounds import decor_corollary

published_claim = statements(
    gossip_matrix=gossip_matrices(min_nodes=2, max_nodes=5, kinds=("symmetric",)),
    seed=st.integers(0, 2**32 - 1),
    rate=st.integers(1, 20).map(lambda k: k / 20),
    tolerance=1e-9,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Quadratics:
    """Losses of all nodes, their noise, and where the models stand; every number is per coordinate of one.

    `variance` and `growth`: each stochastic gradient has exactly s*^2 + M ||grad f||^2 at its own model.
    """

    curvatures: FloatArray
    slopes: FloatArray
    models: FloatArray
    variance: float
    growth: float
    local: float
    pair: float

    @classmethod
    def drawn(cls, seed: int, gossip_matrix: GossipMatrix) -> Quadratics:
        rng, n = np.random.default_rng(seed), gossip_matrix.num_nodes
        if rng.random() < 0.5:  # the worst that averaging leaves: models pulled apart along the slowest difference
            _, vectors = np.linalg.eigh(gossip_matrix.dense() - 1 / n)
            slowest = vectors[:, np.abs(np.linalg.eigvalsh(gossip_matrix.dense() - 1 / n)).argmax()]
            return cls(np.full(n, -1.0), slowest * rng.uniform(0, 2), slowest, 0.0, 0.0, 0.0, 0.0)
        numbers = [rng.choice([0.0, 0.5, 2.0]) for _ in range(4)]
        curvatures = rng.uniform(-1, 1, n)
        assume(abs(curvatures.mean()) > 0.05)  # of no curvature no P bounds the differences
        return cls(curvatures, rng.normal(size=n), rng.normal(size=n) * rng.choice([0.1, 1, 10]), *numbers)

    @property
    def curvature(self) -> float:
        """Of f."""
        return float(self.curvatures.mean())

    def gradient(self, x: FloatArray | float) -> FloatArray | float:
        """Of f."""
        return self.curvature * x - self.slopes.mean()

    def loss(self, x: float) -> float:
        return self.curvature * x**2 / 2 - float(self.slopes.mean()) * x

    def known(self, share: float = 1.0) -> dict[str, Any]:
        """Keywords of `Objective`; share: how much of the cross term of (a y + b)^2 counts to a^2 y^2."""
        relative = (self.curvatures - self.curvature) / self.curvature
        offsets = relative * self.slopes.mean() - (self.slopes - self.slopes.mean())
        return {
            "smoothness": float(np.abs(self.curvatures).max()),
            "gradient_variance": self.variance,
            "growth_of_variance": self.growth,
            "gradient_divergence": float((offsets**2).mean()) * (1 + 1 / share),
            "growth_of_divergence": float((relative**2).mean()) * (1 + share),
        }

    def noise(self, gossip_matrix: GossipMatrix) -> FloatArray:
        """Covariance over nodes of what is injected."""
        N = incidence(gossip_matrix.graph()).toarray()
        return self.local**2 * np.eye(len(N)) + self.pair**2 * N @ N.T

    def after(self, gossip_matrix: GossipMatrix, eta: float) -> tuple[FloatArray, FloatArray]:
        """Mean and covariance of the models after one step."""
        W = gossip_matrix.dense()
        moved = W @ (self.models - eta * (self.curvatures * self.models - self.slopes))
        sampled = np.diag(self.variance + self.growth * np.asarray(self.gradient(self.models)) ** 2)
        return moved, eta**2 * W @ (sampled + self.noise(gossip_matrix)) @ W.T


@published_claim("decor-lemma-7")
def lemma_7(gossip_matrix: GossipMatrix, seed: int, rate: float) -> tuple[float, float]:
    """rate: the step as a share of the largest."""
    n = gossip_matrix.num_nodes
    case = Quadratics.drawn(seed, gossip_matrix)
    known, x = case.known(), float(case.models.mean())
    L, M, p = known["smoothness"], known["growth_of_variance"], mixing_parameter(gossip_matrix)
    assume(p > 1e-6)
    eta = rate * min(1 / L, n / (4 * L * M) if M else math.inf)
    at = {"loss": case.loss(x), "gradient_squared": float(case.gradient(x)) ** 2, "disagreement": case.models.var()}
    bound = one_step.decor_descent(gossip_matrix, learning_rate=eta, **at, sigma_local=case.local, **known)
    weakened = at["loss"] - eta / 4 * at["gradient_squared"] + 0.75 * eta * L**2 * at["disagreement"]
    weakened += L * eta**2 / (2 * n) * (case.variance + case.local**2)
    mean, covariance = case.after(gossip_matrix, eta)
    after = case.loss(float(mean.mean())) + case.curvature / 2 * float(covariance.mean())
    return min(bound, weakened), after


@published_claim("decor-lemma-9", examples=400, share=st.sampled_from([0.1, 1.0, 1e6]))
def lemma_9(gossip_matrix: GossipMatrix, seed: int, rate: float, share: float) -> tuple[float, float]:
    """rate: the step as a share of the largest that leaves 1 - p/3."""
    case, p = Quadratics.drawn(seed, gossip_matrix), mixing_parameter(gossip_matrix)
    assume(1e-6 < p < 1 - 1e-6)
    known = case.known(share)
    L, M = known["smoothness"], known["growth_of_variance"]
    eta = rate * p / (L * math.sqrt(6 * (1 - p) * (3 + p * M)))
    at: dict[str, Any] = {
        "gradient_squared": float(case.gradient(case.models.mean())) ** 2,
        "disagreement": case.models.var(),
    }
    noise: dict[str, Any] = {"sigma_local": case.local, "sigma_pair": case.pair}
    bound = one_step.decor_disagreement(gossip_matrix, learning_rate=eta, **at, **noise, **known)
    without = one_step.decor_disagreement(
        gossip_matrix, learning_rate=eta, **{**at, "disagreement": 0.0}, **noise, **known
    )
    mean, covariance = case.after(gossip_matrix, eta)
    after = mean.var() + float(np.diag(covariance).mean() - covariance.mean())
    return min(bound, (1 - p / 3) * at["disagreement"] + without), after


@published_claim(
    "decor-lemma-9-contraction",
    weight=st.integers(1, 25).map(lambda k: k / 100),
    pull=st.integers(0, 8).map(lambda k: k / 4),
)
def lemma_9_as_printed(weight: float, pull: float) -> tuple[float, float]:
    """Two nodes at 1 and -1, each with the other's weight, losses -x^2 / 2 - b x with b = pull and -pull, no noise; the
    largest step.
    """
    p = 1 - (1 - 2 * weight) ** 2
    eta = p / math.sqrt(18 * (1 - p))
    after = (1 - 2 * weight) * (1 + eta * (1 + pull))  # of the first node; the mean stays at 0, where grad f = 0
    return (1 - p / 2) + (1 - p) * eta**2 * 6 * pull**2 / p, after**2


@published_claim("decor-theorem-2-non-convex", examples=100, num_steps=st.sampled_from([1, 3, 10, 100]))
def theorem_2_non_convex(gossip_matrix: GossipMatrix, seed: int, num_steps: int) -> tuple[float, float]:
    """Without M, so that the covariance of the models needs no other moment."""
    case, p = Quadratics.drawn(seed, gossip_matrix), mixing_parameter(gossip_matrix)
    case = dataclasses.replace(case, growth=0.0)
    assume(case.curvature > 0 and p > 1e-6)
    start = float(case.gradient(case.models.mean()))
    known = {**case.known(), "initial_loss": start**2 / (2 * case.curvature), "initial_disagreement": case.models.var()}
    noise: dict[str, Any] = {"sigma_local": case.local, "dimension": 1}
    assume(start)
    bound = convergence.decor_theorem_2_non_convex(
        gossip_matrix, **noise, sigma_pair=case.pair, num_steps=num_steps, **known
    )
    eta = convergence.decor_step_size(gossip_matrix, num_steps, **noise, **known)
    W, covariance, squares = gossip_matrix.dense(), np.zeros((len(case.models),) * 2), 0.0
    step = W @ np.diag(1 - eta * case.curvatures)
    for _ in range(num_steps):
        squares += float(case.gradient(case.models.mean())) ** 2 + case.curvature**2 * float(covariance.mean())
        mean, added = case.after(gossip_matrix, eta)
        case, covariance = dataclasses.replace(case, models=mean), step @ covariance @ step.T + added
    return bound.total, squares / num_steps


@published_claim(
    "decor-corollary-12-rates",
    graph=connected_graphs(2, 5),
    colluders=st.integers(0, 1),
    dimension=st.integers(1, 9),
    num_steps=st.integers(1, 4).map(lambda k: 10**k),
    epsilon=st.integers(1, 10),
)
def corollary_12_rates(
    graph: nx.Graph, colluders: int, dimension: int, num_steps: int, epsilon: int
) -> tuple[FloatArray, FloatArray]:
    """L = 2, mu = 1/2, f_0 = 3, C = 1, delta = 1e-5, no gradient noise; the loss, and the squared mean gradient."""
    n = len(graph)
    assume(n - colluders >= 2 and nx.node_connectivity(graph) > colluders)
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-5, "num_colluders": colluders, "num_steps": num_steps}
    noise = decor_corollary(graph, **budget).sigma_local
    common = 32 * dimension * -math.log(1e-5) / (n * (n - colluders) * epsilon**2)
    claimed = np.array([common * 2 / 0.5**2, common * 2 * 3])
    known: dict[str, Any] = {"smoothness": 2.0, "pl_constant": 0.5, "initial_loss": 3.0}
    rates = [
        convergence.decor_rate(graph, **budget, dimension=dimension, **known).total,
        convergence.decor_rate_non_convex(graph, **budget, dimension=dimension, **known).total ** 2,
    ]
    leading = dimension * noise**2 / (n * num_steps)
    truth = np.maximum(rates, [leading * 2 / 0.5**2, leading * 2 * 3])
    return claimed, truth
