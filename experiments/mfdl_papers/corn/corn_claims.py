"""Claims of CorN-DSGD: what the noise costs in privacy, which noise is best, and who can subtract it.

Theorem 2, its conversions, the budget of (9b); Theorem 1, shared seeds, problems (9) and (10), the public code.
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
from scipy.optimize import minimize_scalar

from mfdl import gossip
from mfdl.check import FloatArray
from mfdl.decor_search import COROLLARY_RANGE
from mfdl.gossip import GossipMatrix
from mfdl.testing.claims import describe
from mfdl.testing.oracles.curve_oracles import exact_epsilon
from mfdl.testing.oracles.dense_views import gossip_messages, pairwise_factor, rank, rational, without_noise
from mfdl.testing.oracles.sensitivity_oracle import coalition_loss_reference
from mfdl.testing.strategies import integer_arrays
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..paper_claims import laplacian, losses, statements
from . import corn_equation_9_renyi, corn_renyi, corn_theorem

EPSILONS, DELTAS = st.integers(1, 60), st.sampled_from([1e-5, 1e-6, 1e-4, 1e-3, 1e-2])
CLIP_NORMS = st.sampled_from([1.0, 0.5, 2.0])
Groups = tuple[tuple[int, int], ...]
PAIRINGS = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))
PAIR_RATIOS = np.append(0.0, np.geomspace(1e-4, 1e4, 400))  # the best gain is stationary: the grid misses 1e-3 of it


@dataclasses.dataclass(frozen=True, eq=False)
class NoisySystem:
    """Gossip W with a covariance R over its nodes."""

    W: GossipMatrix
    R: FloatArray

    def __str__(self) -> str:
        return f"({describe(self.W)}, R = {describe(self.R)})"


@st.composite
def covariances(draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 3) -> FloatArray:
    """I + F F^T with F of small integers; it shrinks to the identity."""
    n = draw(st.integers(min_nodes, max_nodes))
    return np.eye(n) + (F := draw(integer_arrays(2, n, n))) @ F.T


@st.composite
def systems(draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 3) -> NoisySystem:
    """Any covariance with symmetric or uniform weights."""
    R = draw(covariances(min_nodes, max_nodes))
    return NoisySystem(draw(gossip_matrices(len(R), len(R), kinds=("symmetric", "uniform"))), R)


@st.composite
def shared_seeds(draw: st.DrawFn, min_nodes: int = 2, max_nodes: int = 4) -> FloatArray:
    """What each node adds of each seed, shape (nodes, seeds); a node holds the seeds it adds."""
    return draw(integer_arrays(2, draw(st.integers(min_nodes, max_nodes)), draw(st.integers(1, 3))))


@st.composite
def draws_of_edges(draw: st.DrawFn) -> dict[tuple[int, int], int]:
    """For each edge of a connected graph on 2 to 4 nodes the number of the random draw that it uses."""
    return {edge: draw(st.integers(0, 2)) for edge in draw(connected_graphs(2, 4)).edges}


def all_messages(W: GossipMatrix, R: FloatArray, num_steps: int) -> tuple[FloatArray, FloatArray]:
    """(A, B) of all messages of T steps."""
    messages, _ = gossip_messages(W, num_steps)
    return messages, messages @ np.kron(np.eye(num_steps), np.linalg.cholesky(R))


def exact_mu(A: FloatArray, B: FloatArray, victims: Sequence[int], num_nodes: int, clip_norm: float) -> float:
    """The largest mu over victims in every step that move a gradient by 2 C; inf where a view has no noise."""
    return 2 * clip_norm * math.sqrt(losses(A, B, victims, num_nodes).max(initial=0.0))


def mu_of_all_messages(system: NoisySystem, num_steps: int, clip_norm: float = 1.0) -> float:
    """`exact_mu` over all nodes, all messages seen."""
    n = len(system.R)
    return exact_mu(*all_messages(system.W, system.R, num_steps), range(n), n, clip_norm)


published_claim = statements(
    system=systems(),
    num_steps=st.integers(1, 3),
    clip_norm=CLIP_NORMS,
    mu=st.integers(1, 12).map(lambda quarters: quarters / 4),
    epsilon=EPSILONS,
    delta=DELTAS,
)


# ---- Theorem 2: privacy, and the conversions under it -------------------------------------------------------


@published_claim("corn-theorem-2", examples=80)
def theorem_2(system: NoisySystem, num_steps: int, clip_norm: float, delta: float) -> Any:
    bound = corn_theorem(system.R, delta=delta, clip_norm=clip_norm, num_steps=num_steps)
    return bound.value, float(exact_epsilon(mu_of_all_messages(system, num_steps, clip_norm), delta))


def _renyi_divergence(shift: FloatArray, R: FloatArray, order: float) -> float:
    """D_order(N(shift, R) || N(0, R)) by the trapezoid rule; error below 1e-12 for R >= I and this grid."""
    reach, step = 9 * math.sqrt(np.linalg.eigvalsh(R)[-1]), 0.6
    axes = [np.arange(min(0.0, order * m) - reach, max(0.0, order * m) + reach, step) for m in shift]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(shift))
    P = np.linalg.inv(R)
    log_p, log_q = (-0.5 * np.einsum("ka,ab,kb->k", y, P, y) for y in (x - shift, x))
    cell = step ** len(shift) / math.sqrt((2 * math.pi) ** len(shift) * np.linalg.det(R))
    exponents = order * log_p + (1 - order) * log_q
    top = exponents.max()
    return float((top + np.log(np.exp(exponents - top).sum() * cell)) / (order - 1))


ORDERS = st.sampled_from([2.0, 1.25, 3.0, 5.0])


@published_claim("corn-theorem-2-renyi", covariance=covariances(max_nodes=2), order=ORDERS, examples=80)
def theorem_2_renyi(covariance: FloatArray, order: float) -> Any:
    printed = order * float(corn_renyi(covariance, clip_norm=0.5).value)
    truth = max(_renyi_divergence(shift, covariance, order) for shift in np.eye(len(covariance)))
    return [printed, truth], [truth, printed]


@published_claim("corn-theorem-2-conversion", examples=60)
def theorem_2_conversion(mu: float, delta: float) -> Any:
    rho, L = mu**2 / 2, -math.log(delta)
    return rho + 2 * math.sqrt(rho * L), float(exact_epsilon(mu, delta))


@published_claim("corn-code-budget", examples=60)
def code_budget(epsilon: int, delta: float) -> Any:
    mu = corn_equation_9_renyi(epsilon, delta).value
    return epsilon, float(exact_epsilon(float(mu), delta))


# ---- Proposition 1: the budget of (9b) ----------------------------------------------------------------------


def _inverse_diagonal_of_9b(epsilon: float, delta: float, num_steps: int = 1) -> float:
    return epsilon**2 / (16 * num_steps * -math.log(delta))


def epsilon_spent(epsilon: float, delta: float, num_steps: int = 1) -> float:
    """The exact epsilon of T steps of one agent whose noise meets (9b) with equality, C = 1."""
    std = 1 / math.sqrt(_inverse_diagonal_of_9b(epsilon, delta, num_steps))
    mu = exact_mu(np.eye(num_steps), std * np.eye(num_steps), [0], 1, 1.0)
    return float(exact_epsilon(mu, delta))


@published_claim("corn-proposition-1")
def proposition_1(delta: float, num_steps: int, epsilon: int) -> Any:
    return epsilon, epsilon_spent(epsilon, delta, num_steps)


@published_claim("corn-proposition-1-proof")
def proposition_1_proof(delta: float, epsilon: int) -> Any:
    rho, L = 2 * _inverse_diagonal_of_9b(epsilon, delta), -math.log(delta)
    best = minimize_scalar(lambda y: (1 + math.exp(y)) * rho + L * math.exp(-y), bounds=(-10, 10), method="bounded")
    return epsilon, best.fun


@published_claim("corn-proposition-1-small-epsilon", share=st.integers(1, 40).map(lambda i: i / 40), examples=60)
def proposition_1_small_epsilon(delta: float, share: float) -> Any:
    epsilon = share * COROLLARY_RANGE * -math.log(delta)
    return epsilon, epsilon_spent(epsilon, delta)


claim_of_covariances = statements(
    system=systems(),
    seeds=shared_seeds(),
    graph=connected_graphs(2, 4),
    num_steps=st.integers(1, 4),
    clip_norm=CLIP_NORMS,
)


# ---- Theorem 1: error -------------------------------------------------------------------------------------


def _printed_and_true_variance(system: NoisySystem, num_steps: int) -> tuple[float, float]:
    """tr(W R W^T), and the variance of the noise in all models after the last averaging."""
    W, R = system.W.dense(), system.R
    _, final = gossip_messages(system.W, num_steps)
    return float(np.trace(W @ R @ W.T)), float(np.trace(final @ np.kron(np.eye(num_steps), R) @ final.T))


def _price(R: FloatArray, gram: FloatArray) -> float:
    """tr(H R) with R scaled to max_i [R^-1]_ii = 1."""
    return float(np.trace(gram @ R) * np.linalg.inv(R).diagonal().max())


@claim_of_covariances("corn-theorem-1", system=systems(max_nodes=4), examples=100)
def theorem_1(system: NoisySystem) -> Any:
    printed, truth = _printed_and_true_variance(system, 1)
    return [printed, truth], [truth, printed]


@claim_of_covariances("corn-theorem-1-all-steps")
def theorem_1_all_steps(system: NoisySystem, num_steps: int) -> Any:
    return _printed_and_true_variance(system, num_steps)


# ---- who knows what: Algorithm 1, pairwise noise, problem (10) -----------------------------------------------


@claim_of_covariances("corn-algorithm-1-insiders", system=systems(min_nodes=2))
def algorithm_1_insiders(system: NoisySystem) -> Any:
    n = len(system.R)
    A, B = all_messages(system.W, system.R, 1)
    holders = [set(range(n))] * B.shape[1]
    truth = max(
        exact_mu(A, without_noise(B, {k for k in range(n) if attacker in holders[k]}), [u], n, 1.0)
        for attacker, u in itertools.permutations(range(n), 2)
    )
    return math.sqrt(4 * np.linalg.inv(system.R).diagonal().max()), truth


@claim_of_covariances("corn-pairwise-noise", draw_of_edge=draws_of_edges())
def pairwise_noise(draw_of_edge: dict[tuple[int, int], int]) -> Any:
    for (e, a), (f, b) in itertools.combinations(draw_of_edge.items(), 2):
        assume(a != b or set(e) & set(f))
    n = 1 + max(map(max, draw_of_edge))
    N = pairwise_factor(list(draw_of_edge), n, 0.0, 1.0)[:, n:]
    of_draw = np.eye(3)[list(draw_of_edge.values())]
    truth = [exact_mu(np.eye(n), np.hstack([np.eye(n), N @ of_draw]), [u], n, 1.0) ** 2 for u in range(n)]
    return 4 * np.linalg.inv(np.eye(n) + N @ N.T).diagonal(), truth


@claim_of_covariances("corn-problem-10", coalition_size=st.integers(0, 2), num_steps=st.integers(1, 2), examples=100)
def problem_10(seeds: FloatArray, coalition_size: int, num_steps: int) -> Any:
    n, m = seeds.shape
    assume(coalition_size < n)
    printed, truth = 0.0, 0.0
    messages, _ = gossip_messages(gossip.metropolis_hastings(nx.path_graph(n)), num_steps)
    B = messages @ np.kron(np.eye(num_steps), np.hstack([np.eye(n), seeds]))
    for coalition in itertools.combinations(range(n), coalition_size):
        honest = [i for i in range(n) if i not in coalition]
        known_seeds = {k for k in range(m) if seeds[list(coalition), k].any()}
        lacking = seeds[:, [k for k in range(m) if k not in known_seeds]]
        inverse = np.linalg.inv(np.eye(n) + lacking @ lacking.T)
        printed = max(printed, 2 * math.sqrt(num_steps * inverse.diagonal()[honest].max()))
        known = {t * (n + m) + k for t in range(num_steps) for k in [*coalition, *(n + k for k in known_seeds)]}
        truth = max(truth, exact_mu(messages, without_noise(B, known), honest, n, 1.0))
    return [printed, truth], [truth, printed]


@claim_of_covariances("corn-problem-10-private-noise")
def problem_10_private_noise(seeds: FloatArray) -> Any:
    return len(seeds) - 1, rank(rational(seeds @ seeds.T))


def _printed_gram(graph: nx.Graph) -> FloatArray:
    """H = W^T W of the printed weights 1 / (degree + 1); their smallest singular value is kept from 0."""
    W = gossip.uniform(graph).dense()
    assume(np.linalg.svd(W, compute_uv=False)[-1] > 0.05)
    return W.T @ W


@claim_of_covariances(
    "corn-disjoint-groups", graph=connected_graphs(4, 4), groups=st.sampled_from(PAIRINGS), examples=30
)
def disjoint_groups(graph: nx.Graph, groups: Groups) -> Any:
    H = _printed_gram(graph)
    return (1 - 1e-3) * np.trace(H), coalition_loss_reference(H, groups, 1)


# ---- problem (9) and what it is compared with ------------------------------------------------------------------


@claim_of_covariances(
    "corn-order-of-errors", ratio=st.integers(0, 40).map(lambda quarters: quarters / 4), tolerance=1e-5, examples=40
)
def order_of_errors(graph: nx.Graph, ratio: float) -> Any:
    H, n = _printed_gram(graph), len(graph)
    optimum = coalition_loss_reference(H, [range(n)], 0)
    return [_price(np.eye(n) + ratio * laplacian(graph), H), np.trace(H)], [optimum, optimum]


@claim_of_covariances("corn-complete-graph", covariance=covariances(min_nodes=2, max_nodes=5))
def complete_graph(covariance: FloatArray) -> Any:
    """The best a I + b L has the eigenvalue 1^T R 1 / n on the average and the mean of the rest on all else."""
    n = len(covariance)
    W, mean = np.full((n, n), 1 / n), covariance.sum() / n
    pairwise = mean * W + (np.trace(covariance) - mean) / (n - 1) * (np.eye(n) - W)

    def numbers(R: FloatArray) -> list[float]:
        return [np.linalg.inv(R).diagonal().max(), np.trace(W @ R @ W.T), -np.trace(W @ R @ W.T)]

    return numbers(covariance), numbers(pairwise)


@claim_of_covariances("corn-pairwise-gain", graph=connected_graphs(2, 5))
def pairwise_gain(graph: nx.Graph) -> Any:
    W = gossip.uniform(graph).dense()
    R = np.eye(len(graph)) + PAIR_RATIOS[:, None, None] * laplacian(graph)
    return (1 - 1e-6) * np.sum(W**2), min(_price(noise, W.T @ W) for noise in R)


def _bounded_optimum(gram: FloatArray, largest_variance: float) -> float:
    """min tr(H R) with [R^-1]_ii <= 1 and tr R <= n times the largest variance (CLARABEL).

    In one block matrix [[R, I], [I, T]] >= 0 with T >= R^-1: n separate `matrix_frac` leave the last digits inaccurate.
    """
    import cvxpy as cp

    n = len(gram)
    blocks = cp.Variable((2 * n, 2 * n), PSD=True)
    R = blocks[:n, :n]
    inverse = [blocks[:n, n:] == np.eye(n), cp.diag(blocks[n:, n:]) <= 1]
    task = cp.Problem(cp.Minimize(cp.trace(gram @ R)), [*inverse, cp.trace(R) <= n * largest_variance])
    task.solve(solver=cp.CLARABEL)
    return float(task.value)


@claim_of_covariances("corn-problem-9-attained", tolerance=1e-4, examples=60)
def problem_9_attained(graph: nx.Graph) -> Any:
    W = gossip.uniform(graph).dense()
    return _bounded_optimum(W.T @ W, 1000.0), _bounded_optimum(W.T @ W, 100.0)


# ---- the public code -------------------------------------------------------------------------------------------


@claim_of_covariances("corn-code-clipping", batch_size=st.integers(1, 4))
def code_clipping(batch_size: int, clip_norm: float) -> Any:
    sums = [sum(signs) * clip_norm for signs in itertools.product((-1, 1), repeat=batch_size)]
    return 2 * clip_norm, max(abs(a - b) for a in sums for b in sums)


@claim_of_covariances("corn-code-central-baseline", num_nodes=st.integers(1, 5))
def code_central_baseline(num_nodes: int, num_steps: int) -> Any:
    local = exact_mu(np.eye(num_steps), np.eye(num_steps), [0], 1, 1.0)  # s = 1
    central = exact_mu(np.eye(num_steps) / num_nodes, np.eye(num_steps), [0], 1, 1.0)
    return (central / local) ** 2, 1 / num_nodes
