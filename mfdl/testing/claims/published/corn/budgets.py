"""What the noise costs in privacy: Theorem 2, the conversions under it, the budget of (9b), and the first version."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

from .....check import FloatArray
from .....theory import bounds
from ....oracles.gaussian import exact_delta, exact_epsilon
from .._stated import statements
from .systems import CLIP_NORMS, System, covariances, exact_mu, mu_of, systems

MUS = st.integers(1, 12).map(lambda quarters: quarters / 4)

stated = statements(
    system=systems(),
    num_steps=st.integers(1, 3),
    clip_norm=CLIP_NORMS,
    mu=MUS,
    epsilon=st.integers(1, 60),
    delta=st.sampled_from([1e-5, 1e-6, 1e-4, 1e-3, 1e-2]),
)


# ---- Theorem 2: privacy, and the conversions under it -------------------------------------------------------


@stated("corn-theorem-2", examples=80)
def theorem_2(system: System, num_steps: int, clip_norm: float, delta: float) -> Any:
    bound = bounds.corn_theorem(system.R, delta=delta, clip_norm=clip_norm, num_steps=num_steps)
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


@stated(
    "corn-theorem-2-renyi",
    covariance=covariances(max_nodes=2),
    order=st.sampled_from([2.0, 1.25, 3.0, 5.0]),
    examples=80,
)
def theorem_2_renyi(covariance: FloatArray, order: float) -> Any:
    printed = order * float(bounds.corn_renyi(covariance, clip_norm=0.5).value)
    truth = max(_renyi_divergence(shift, covariance, order) for shift in np.eye(len(covariance)))
    return [printed, truth], [truth, printed]


@stated("corn-theorem-2-conversion", examples=60)
def theorem_2_conversion(mu: float, delta: float) -> Any:
    rho, L = mu**2 / 2, -math.log(delta)
    return rho + 2 * math.sqrt(rho * L), float(exact_epsilon(mu, delta))


@stated("corn-code-budget", examples=60)
def code_budget(epsilon: int, delta: float) -> Any:
    mu = bounds.corn_equation_9_renyi(epsilon, delta).value
    return epsilon, float(exact_epsilon(float(mu), delta))


@stated("gdp-delta", epsilon=st.integers(0, 10), tolerance=1e-8, examples=60)
def gdp_delta(mu: float, epsilon: int) -> Any:
    start = epsilon / mu + mu / 2  # where the ratio of the densities reaches e^eps
    scale = -((start - mu) ** 2) / 2

    def excess(x: float) -> float:
        return math.exp(-((x - mu) ** 2) / 2 - scale) - math.exp(epsilon - x**2 / 2 - scale)

    ends = [start + width / (1 + start) for width in (0, 4, 16, 64)]
    integral = sum(quad(excess, a, b, epsabs=0.0, epsrel=1e-10)[0] for a, b in itertools.pairwise(ends))
    off = math.exp(scale) / math.sqrt(2 * math.pi) * integral / float(exact_delta(mu, epsilon)) - 1
    return 0.0, abs(off)


@stated("gdp-composition", first=MUS, second=MUS, epsilon=st.integers(0, 8), tolerance=1e-7, examples=100)
def gdp_composition(first: float, second: float, epsilon: int) -> Any:
    x, step = np.linspace(first - 14, first + 30, 6000, retstep=True)  # the first release; the second by its integral
    left = epsilon - (first * x - first**2 / 2)
    inner = ndtr(second / 2 - left / second) - np.exp(left + log_ndtr(-left / second - second / 2))
    delta = float((norm.pdf(x, first) * inner).sum() * step)
    return 0.0, abs(delta / float(exact_delta(math.hypot(first, second), epsilon)) - 1)


# ---- Proposition 1: the budget of (9b) ----------------------------------------------------------------------


def _inverse_diagonal_of_9b(epsilon: float, delta: float, num_steps: int = 1) -> float:
    return epsilon**2 / (16 * num_steps * -math.log(delta))


def _epsilon_spent(epsilon: float, delta: float, num_steps: int = 1) -> float:
    """The exact epsilon of T steps of one agent whose noise meets (9b) with equality, C = 1."""
    std = 1 / math.sqrt(_inverse_diagonal_of_9b(epsilon, delta, num_steps))
    mu = exact_mu(np.eye(num_steps), std * np.eye(num_steps), [0], 1, 1.0)
    return float(exact_epsilon(mu, delta))


@stated("corn-proposition-1")
def proposition_1(delta: float, num_steps: int, epsilon: int) -> Any:
    return epsilon, _epsilon_spent(epsilon, delta, num_steps)


@stated("corn-proposition-1-proof")
def proposition_1_proof(delta: float, epsilon: int) -> Any:
    rho, L = 2 * _inverse_diagonal_of_9b(epsilon, delta), -math.log(delta)
    best = minimize_scalar(lambda y: (1 + math.exp(y)) * rho + L * math.exp(-y), bounds=(-10, 10), method="bounded")
    return epsilon, best.fun


@stated("corn-proposition-1-small-epsilon", share=st.integers(1, 40).map(lambda i: i / 40), examples=60)
def proposition_1_small_epsilon(delta: float, share: float) -> Any:
    epsilon = share * bounds.COROLLARY_RANGE * -math.log(delta)
    return epsilon, _epsilon_spent(epsilon, delta)


@stated("whisper-condition")
def whisper_condition(delta: float, epsilon: int) -> Any:
    assume(epsilon >= -math.log(delta))
    return _epsilon_spent(epsilon, delta), epsilon


# ---- the first version --------------------------------------------------------------------------------------


@stated("whisper-theorem-2", system=systems(min_nodes=2), num_steps=st.integers(1, 2))
def whisper_theorem_2(system: System, num_steps: int, delta: float) -> Any:
    printed = bounds.whisper_theorem(system.R, delta=delta, num_steps=num_steps).value
    return printed, float(exact_epsilon(mu_of(system, num_steps), delta))


@stated("whisper-10", max_inverse_diagonal=st.sampled_from([1.0, 0.5, 0.25, 2.0]))
def whisper_10(system: System, max_inverse_diagonal: float) -> Any:
    assume(np.linalg.inv(system.R).diagonal().min() >= max_inverse_diagonal)
    return 2 * math.sqrt(max_inverse_diagonal), mu_of(system, 1)
