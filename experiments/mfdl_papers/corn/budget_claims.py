"""What the noise costs in privacy: Theorem 2, the conversions under it, and the budget of (9b)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from mfdl.check import FloatArray
from mfdl.decor_search import COROLLARY_RANGE
from mfdl.testing.oracles.gaussian import exact_epsilon

from ..statements import statements
from .covariance_bounds import corn_equation_9_renyi, corn_renyi, corn_theorem
from .systems import CLIP_NORMS, NoisySystem, covariances, exact_mu, mu_of, systems

EPSILONS, DELTAS = st.integers(1, 60), st.sampled_from([1e-5, 1e-6, 1e-4, 1e-3, 1e-2])

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
