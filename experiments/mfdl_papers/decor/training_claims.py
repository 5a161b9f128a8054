"""Claims of DECOR about averaging and training: weights, what pairwise noise they leave, step sizes, split, rates.

Lemmas 7 and 9, Theorem 2 without convexity and Corollary 12 are judged by an expectation in closed form: nodes have one
model weight and losses l_i x^2 / 2 - b_i x, curvatures l_i of either sign, so models stay linear in the noise.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from mfdl import gossip
from mfdl.check import FloatArray
from mfdl.gossip import GossipMatrix
from mfdl.node_covariances import incidence
from mfdl.testing.oracles.dense_views import pairwise_factor
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..paper_claims import statements
from . import convergence, decor_corollary

BOUND_CONSTANT = 1e6  # what "up to an absolute constant" may hide

published_claim = statements(graph=connected_graphs(2, 5), pair=st.integers(1, 4))
claim_of_training = statements(
    gossip_matrix=gossip_matrices(min_nodes=2, max_nodes=5, kinds=("symmetric",)),
    seed=st.integers(0, 2**32 - 1),
    rate=st.integers(1, 20).map(lambda k: k / 20),
    tolerance=1e-9,
)


def _printed_weights(graph: nx.Graph) -> FloatArray:
    """1 / (degree_i + 1) for the neighbours of i, as printed without i itself."""
    A = nx.to_numpy_array(graph)
    return A / (A.sum(axis=1) + 1)[:, None]


def _with_self_weight(graph: nx.Graph) -> FloatArray:
    A = nx.to_numpy_array(graph) + np.eye(len(graph))
    return A / A.sum(axis=1)[:, None]


@published_claim("decor-weights-doubly-stochastic", graph=connected_graphs(1, 5))
def weights_are_doubly_stochastic(graph: nx.Graph) -> tuple[float, float]:
    return 0.0, float(np.abs(_with_self_weight(graph).sum(axis=0) - 1).max())


@published_claim("decor-neighbourhood-without-self")
def rows_sum_to_one(graph: nx.Graph) -> tuple[float, float]:
    return 0.0, float(np.abs(_printed_weights(graph).sum(axis=1) - 1).max())


def _heterogeneity(vectors: FloatArray, edges: Sequence[tuple[int, int]]) -> float:
    """Mean over the edges of ||w_i - w_k||^2 / 2, w_i the rows of `vectors`."""
    ends = np.array(edges)
    return float(((vectors[ends[:, 0]] - vectors[ends[:, 1]]) ** 2).sum()) / (2 * len(ends))


def _lemma_8_gap(weights: FloatArray, pair: int) -> float:
    """Relative distance of 2 H_G |E| s_pair^2, over columns, to the variance of pairwise noise N in N W."""
    n = len(weights)
    edges = [(i, k) for i, k in itertools.combinations(range(n), 2) if weights[i, k]]
    truth = float(np.linalg.norm(weights.T @ pairwise_factor(edges, n, 0, pair)) ** 2)
    printed = 2 * _heterogeneity(weights.T, edges) * len(edges) * pair**2
    return abs(printed - truth) / max(printed, truth, 1e-12 * pair**2)  # both are 0 where all nodes average alike


@published_claim("decor-lemma-8", gossip_matrix=gossip_matrices(min_nodes=2, max_nodes=5, kinds=("symmetric",)))
def lemma_8(gossip_matrix: GossipMatrix, pair: int) -> tuple[float, float]:
    return 0.0, _lemma_8_gap(gossip_matrix.dense(), pair)


@published_claim("decor-lemma-8-columns")
def lemma_8_by_columns(graph: nx.Graph, pair: int) -> tuple[float, float]:
    return 0.0, _lemma_8_gap(_with_self_weight(graph), pair)


SIDES = st.integers(1, 40)


@published_claim("decor-heterogeneity-columns", left=SIDES, right=SIDES)
def heterogeneity_of_columns(left: int, right: int) -> tuple[float, float]:
    graph = nx.complete_bipartite_graph(left, right)
    return 2 / min(left, right), _heterogeneity(_printed_weights(graph).T, list(graph.edges))


@published_claim(
    "decor-heterogeneity-rows",
    graph=st.one_of(connected_graphs(2, 7), st.builds(nx.complete_bipartite_graph, SIDES, SIDES)),
)
def heterogeneity_of_rows(graph: nx.Graph) -> tuple[float, float]:
    least = min(degree for _, degree in graph.degree)
    edges = list(graph.edges)
    both = [_heterogeneity(weights(graph), edges) for weights in (_printed_weights, _with_self_weight)]
    return 2 / least, max(both)


@published_claim("decor-heterogeneity-metropolis-hastings", num_nodes=st.integers(2, 60))
def heterogeneity_of_metropolis_hastings(num_nodes: int) -> tuple[FloatArray, FloatArray]:
    left = range(1, num_nodes // 2 + 1)
    truth = [_metropolis_hastings_heterogeneity(k, num_nodes - k) for k in left]
    return 2 / np.array(left, dtype=np.float64), np.array(truth)


def _metropolis_hastings_heterogeneity(left: int, right: int) -> float:
    graph = nx.complete_bipartite_graph(left, right)
    degrees = nx.to_numpy_array(graph).sum(axis=1)
    W = nx.to_numpy_array(graph) / (1 + np.maximum.outer(degrees, degrees))
    return _heterogeneity(W + np.diag(1 - W.sum(axis=1)), list(graph.edges))


STEPS, CONDITIONS = st.integers(1, 20), st.integers(1, 10)


@published_claim("decor-theorem-2-step-sizes", graph=connected_graphs(2, 4), condition=CONDITIONS, num_steps=STEPS)
def printed_step_sizes_converge(graph: nx.Graph, condition: int, num_steps: int) -> tuple[float, float]:
    """On a quadratic of curvatures L and mu = 1 that all nodes share, from one start and without noise: only this term
    of the bound is left, and `BOUND_CONSTANT` stands for its constant.
    """
    return bound_and_loss(graph, condition, num_steps, delay=1)


def bound_and_loss(graph: nx.Graph, condition: int, num_steps: int, *, delay: int) -> tuple[float, float]:
    """The term of the bound, and the loss after steps 16 / (mu (t + delay c L / (mu p))); the lemmas want delay 16."""
    W = gossip.metropolis_hastings(graph).dense()
    n, L = len(graph), float(condition)
    p = 1 - float(np.linalg.norm(W - 1 / n, 2)) ** 2
    c = max(1 / L, 2 * p)
    curvatures = np.array([L, 1.0])
    X = np.ones((n, 2))
    for t in range(num_steps):
        X = W @ (X - 16 / (t + delay * c * L / p) * X * curvatures)
    start, end = (float((curvatures * x**2).sum()) / 2 for x in (np.ones(2), X.mean(axis=0)))
    return BOUND_CONSTANT * (c * L / (p * num_steps)) ** 2 * start, end


@published_claim("decor-code-data-split", counts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def split_holds_every_record_once(counts: list[int]) -> tuple[float, float]:
    records: list[int] = []
    position = 0
    for count in counts:
        records += range(position, position + count)
        position = count
    return 0.0, float(sum(records.count(record) != 1 for record in range(sum(counts))))


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
        """Curvature of f."""
        return float(self.curvatures.mean())

    def gradient(self, x: FloatArray | float) -> FloatArray | float:
        """Gradient of f."""
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
        """Covariance over nodes of the injected noise."""
        N = incidence(gossip_matrix.graph()).toarray()
        return self.local**2 * np.eye(len(N)) + self.pair**2 * N @ N.T

    def after(self, gossip_matrix: GossipMatrix, eta: float) -> tuple[FloatArray, FloatArray]:
        """Mean and covariance of the models after one step."""
        W = gossip_matrix.dense()
        moved = W @ (self.models - eta * (self.curvatures * self.models - self.slopes))
        sampled = np.diag(self.variance + self.growth * np.asarray(self.gradient(self.models)) ** 2)
        return moved, eta**2 * W @ (sampled + self.noise(gossip_matrix)) @ W.T


@claim_of_training("decor-lemma-7")
def lemma_7(gossip_matrix: GossipMatrix, seed: int, rate: float) -> tuple[float, float]:
    """rate: the step as a share of the largest."""
    n = gossip_matrix.num_nodes
    case = Quadratics.drawn(seed, gossip_matrix)
    known, x = case.known(), float(case.models.mean())
    L, M, p = known["smoothness"], known["growth_of_variance"], gossip_matrix.mixing_parameter
    assume(p > 1e-6)
    eta = rate * min(1 / L, n / (4 * L * M) if M else math.inf)
    at = {"loss": case.loss(x), "gradient_squared": float(case.gradient(x)) ** 2, "disagreement": case.models.var()}
    bound = convergence.decor_descent(gossip_matrix, learning_rate=eta, **at, sigma_ldp=case.local, **known)
    weakened = at["loss"] - eta / 4 * at["gradient_squared"] + 0.75 * eta * L**2 * at["disagreement"]
    weakened += L * eta**2 / (2 * n) * (case.variance + case.local**2)
    mean, covariance = case.after(gossip_matrix, eta)
    after = case.loss(float(mean.mean())) + case.curvature / 2 * float(covariance.mean())
    return min(bound, weakened), after


@claim_of_training("decor-lemma-9", examples=400, share=st.sampled_from([0.1, 1.0, 1e6]))
def lemma_9(gossip_matrix: GossipMatrix, seed: int, rate: float, share: float) -> tuple[float, float]:
    """rate: the step as a share of the largest that leaves 1 - p/3."""
    case, p = Quadratics.drawn(seed, gossip_matrix), gossip_matrix.mixing_parameter
    assume(1e-6 < p < 1 - 1e-6)
    known = case.known(share)
    L, M = known["smoothness"], known["growth_of_variance"]
    eta = rate * p / (L * math.sqrt(6 * (1 - p) * (3 + p * M)))
    known |= {"gradient_squared": float(case.gradient(case.models.mean())) ** 2, "learning_rate": eta}
    known |= {"sigma_ldp": case.local, "sigma_cor": case.pair}
    bound, without = (
        convergence.decor_disagreement(gossip_matrix, disagreement=Xi, **known) for Xi in (case.models.var(), 0.0)
    )
    mean, covariance = case.after(gossip_matrix, eta)
    after = mean.var() + float(np.diag(covariance).mean() - covariance.mean())
    return min(bound, (1 - p / 3) * case.models.var() + without), after


@claim_of_training(
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


@claim_of_training("decor-theorem-2-non-convex", examples=100, num_steps=st.sampled_from([1, 3, 10, 100]))
def theorem_2_non_convex(gossip_matrix: GossipMatrix, seed: int, num_steps: int) -> tuple[float, float]:
    """Without M, so that the covariance of the models needs no other moment."""
    case, p = Quadratics.drawn(seed, gossip_matrix), gossip_matrix.mixing_parameter
    case = dataclasses.replace(case, growth=0.0)
    assume(case.curvature > 0 and p > 1e-6)
    start = float(case.gradient(case.models.mean()))
    known = {**case.known(), "initial_loss": start**2 / (2 * case.curvature), "initial_disagreement": case.models.var()}
    noise: dict[str, Any] = {"sigma_ldp": case.local, "dimension": 1}
    assume(start)
    eta = convergence.decor_step_size(gossip_matrix, num_steps, **noise, **known)
    noise |= {"sigma_cor": case.pair, "num_steps": num_steps}
    bound = convergence.decor_theorem_2_non_convex(gossip_matrix, **noise, **known)
    W, covariance, squares = gossip_matrix.dense(), np.zeros((len(case.models),) * 2), 0.0
    step = W @ np.diag(1 - eta * case.curvatures)
    for _ in range(num_steps):
        squares += float(case.gradient(case.models.mean())) ** 2 + case.curvature**2 * float(covariance.mean())
        mean, added = case.after(gossip_matrix, eta)
        case, covariance = dataclasses.replace(case, models=mean), step @ covariance @ step.T + added
    return bound.total, squares / num_steps


@claim_of_training(
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
    noise = decor_corollary(graph, **budget).sigma_ldp
    common = 32 * dimension * -math.log(1e-5) / (n * (n - colluders) * epsilon**2)
    claimed = np.array([common * 2 / 0.5**2, common * 2 * 3])
    known: dict[str, Any] = {"smoothness": 2.0, "pl_constant": 0.5, "initial_loss": 3.0}
    known |= {**budget, "dimension": dimension}
    first, second = convergence.decor_rate(graph, **known), convergence.decor_rate_non_convex(graph, **known)
    leading = dimension * noise**2 / (n * num_steps)
    return claimed, np.maximum([first.total, second.total**2], [leading * 2 / 0.5**2, leading * 2 * 3])
