"""What the noise costs in privacy: Theorem 2, the conversions under it, and the budget of (9b).

The systems of these claims are gossip matrices with covariances of noise, what is seen of them, and its exact loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from mfdl.check import FloatArray
from mfdl.decor_search import COROLLARY_RANGE
from mfdl.gossip import GossipMatrix
from mfdl.testing.claims import describe
from mfdl.testing.oracles.curve_oracles import exact_epsilon
from mfdl.testing.oracles.dense_views import gossip_messages
from mfdl.testing.strategies import integer_arrays
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..paper_claims import losses, statements
from .covariance_bounds import corn_equation_9_renyi, corn_renyi, corn_theorem

EPSILONS, DELTAS = st.integers(1, 60), st.sampled_from([1e-5, 1e-6, 1e-4, 1e-3, 1e-2])
CLIP_NORMS = st.sampled_from([1.0, 0.5, 2.0])


@dataclasses.dataclass(frozen=True, eq=False)
class NoisySystem:
    """A gossip matrix W and a covariance R over its nodes."""

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


def mu_of(system: NoisySystem, num_steps: int, clip_norm: float = 1.0) -> float:
    """That of everybody, all messages seen."""
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
    return bound.value, float(exact_epsilon(mu_of(system, num_steps, clip_norm), delta))


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


@published_claim(
    "corn-theorem-2-renyi",
    covariance=covariances(max_nodes=2),
    order=st.sampled_from([2.0, 1.25, 3.0, 5.0]),
    examples=80,
)
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
