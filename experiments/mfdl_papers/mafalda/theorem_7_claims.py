"""The sensitivity of a view: Theorem 7 with (8), its hypotheses, where it is attained, and Figure 2."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy.stats import norm

from mfdl.check import FloatArray
from mfdl.gossip import metropolis_hastings
from mfdl.participation import EveryStep
from mfdl.privacy import gaussian
from mfdl.testing.oracles import (
    Reaction,
    adaptive_total_variation,
    brute_force_sensitivity,
    elliptope_reference,
    largest_signed_sum,
    without_noise,
)
from mfdl.testing.oracles.rational import exact_view_gram, rank, rational
from mfdl.testing.strategies import encoders, views
from mfdl.view import View

from ..pairwise_views import heard, own_parts, pairwise_gram, printed_gram, total_variation, two_of
from .case_draws import EXACT, UP_TO_FOUR, published_claim
from .gram_sums import sum_abs_gram, sum_abs_gram_as_printed
from .reduction import greedy_rows


@published_claim("mafalda-equation-8-square")
def equation_8_square(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    W = metropolis_hastings(graph)
    claimed = sum_abs_gram_as_printed(printed_gram(W, attacker, victim, steps)).value
    return float(claimed), math.sqrt(max(0.0, largest_signed_sum(pairwise_gram(W, attacker, victim, steps))))


@published_claim("mafalda-theorem-7-square-root", examples=80)
def theorem_7_square_root(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    W = metropolis_hastings(graph)
    claimed = sum_abs_gram(printed_gram(W, attacker, victim, steps)).value
    return float(claimed), math.sqrt(max(0.0, elliptope_reference(pairwise_gram(W, attacker, victim, steps))))


@published_claim("mafalda-theorem-7-adaptive", tolerance=1e-3, examples=100, **UP_TO_FOUR)
def theorem_7_adaptive(graph: nx.Graph, attacker: int, victim: int, slope: int) -> tuple[float, float]:
    """Two steps, the record takes part in the first; a gradient is clip(slope x, -1, 1) of the part x of its node's
    model that the attacker does not see.
    """
    n = two_of(len(graph), attacker, victim)
    W = metropolis_hastings(graph)
    X = printed_gram(W, attacker, victim, 2)
    reactions = {j: Reaction(float(slope)) for j in range(n) if j != attacker}
    seen = adaptive_total_variation(W.dense(), attacker=attacker, victim=victim, reactions=reactions, resolution=12)
    return total_variation(math.sqrt(X[0, 0])), seen.value - seen.error


@published_claim(
    "mafalda-theorem-7-adaptive-ldp", encoder=encoders(size=2), offset=st.integers(-3, 3), epsilon=st.integers(0, 3)
)
def theorem_7_adaptive_ldp(encoder: FloatArray, slope: int, offset: int, epsilon: int) -> tuple[float, float]:
    """Two steps, the record takes part in both; the second gradient is clip(slope y + offset, -1, 1), y the message."""
    mu = float(sum_abs_gram(encoder.T @ encoder).value)
    return gaussian.delta_from_mu(mu, epsilon), _two_step_delta(encoder, slope, offset, epsilon)


def _two_step_delta(encoder: FloatArray, slope: float, offset: float, epsilon: float) -> float:
    """delta(epsilon) between y = z and y = C g + z, g_0 = 1, g_1 = clip(slope y_0 + offset, -1, 1).

    Given y_0 the other coordinate is Gaussian, so the inner integral of (b phi(y - m) - a phi(y))_+ is b delta_m(log
    a / b) for densities a, b of y_0; the outer one is by the trapezoidal rule, the larger of both directions.
    """
    y = np.linspace(-9, 9 + encoder[0, 0], 4001)
    log_without, log_moved = norm.logpdf(y), norm.logpdf(y - encoder[0, 0])
    m = np.maximum(np.abs(encoder[1, 0] + encoder[1, 1] * np.clip(slope * y + offset, -1, 1)), 1e-12)

    def one_way(log_a: FloatArray, log_b: FloatArray) -> float:
        at = (log_a - log_b + epsilon) / m
        inner = np.exp(log_b) * norm.cdf(m / 2 - at) - np.exp(epsilon + log_a) * norm.cdf(-m / 2 - at)
        return float(np.trapezoid(inner, y))

    return max(one_way(log_without, log_moved), one_way(log_moved, log_without))


@published_claim("mafalda-theorem-7-echelon")
def theorem_7_echelon(graph: nx.Graph, attacker: int, steps: int) -> tuple[int, int]:
    assume(attacker < len(graph))
    unknown = without_noise(heard(metropolis_hastings(graph), attacker, steps), own_parts(attacker, steps, len(graph)))
    filled = np.abs(unknown) > 1e-12
    starts = filled.argmax(axis=0)[filled.any(axis=0)]
    return len(set(starts.tolist())), len(starts)


@published_claim("mafalda-remark-8-equality", tolerance=EXACT, encoder=encoders(max_steps=6, non_negative=True))
def remark_8_equality(encoder: FloatArray) -> tuple[float, float]:
    squared = brute_force_sensitivity(encoder, EveryStep(len(encoder))) ** 2
    return 0.0, abs(float(sum_abs_gram_as_printed(encoder.T @ encoder).value) / squared - 1)


@published_claim("mafalda-algorithm-3", view=views(kinds=("regular", "rank-deficient")))
def algorithm_3(view: View) -> tuple[float, float]:
    """Over the rationals: what B^+ B and X of the kept rows differ by, and the rank by their number."""
    A, B = rational(view.dense_gradients_by_time()), rational(view.dense_noise())
    kept = greedy_rows(view.dense_noise())
    A_kept, B_kept = ([matrix[i] for i in kept] for matrix in (A, B))
    pairs = ((exact_view_gram(B, B), B_kept), (exact_view_gram(A, B), A_kept))
    gaps = [
        abs(x - y)
        for whole, rows in pairs
        for row, other in zip(whole, exact_view_gram(rows, B_kept), strict=True)
        for x, y in zip(row, other, strict=True)
    ]
    return 0.0, float(max(gaps)) + abs(rank(B) - len(kept))


@published_claim("mafalda-figure-2-tighter", examples=500, **UP_TO_FOUR, steps=st.integers(1, 8))
def figure_2_tighter(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    return float(steps), float(np.abs(pairwise_gram(metropolis_hastings(graph), attacker, victim, steps)).sum())
