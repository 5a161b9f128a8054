"""Claims of MAFALDA about views: Theorem 5, Lemma 11, (12), Theorem 7 with (8), Figure 2, DECOR's view; and encoders.

Of encoders: clipping, Algorithms 1 and 2, W_T, Lemma 10, BSR and Anti-PGD. Tolerances are those of the pseudo-inverses
and semidefinite programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import networkx as nx
import numpy as np
import scipy.linalg
from hypothesis import assume
from hypothesis import strategies as st
from scipy.stats import norm

from mfdl.check import FloatArray
from mfdl.dynamics import Dynamics
from mfdl.factorization import factorize, square_root_encoder
from mfdl.gossip import metropolis_hastings
from mfdl.participation import Cyclic, EveryStep, Single
from mfdl.privacy import gaussian
from mfdl.testing.oracles import (
    Reaction,
    adaptive_total_variation,
    append_known_noise,
    brute_force_sensitivity,
    clear_rank,
    dense_averaged_workload,
    dense_error_gram,
    elliptope_reference,
    gossip_messages,
    largest_signed_sum,
    local_noising,
    node_columns,
    pairwise_factor,
    pinv_gram,
    prefix_sum,
    without_noise,
)
from mfdl.testing.oracles.dense_views import exact_view_gram, rank, rational
from mfdl.testing.strategies import connected_graphs, encoders, integer_encoders, integer_views, random_encoder, views
from mfdl.trust.view import View

from ..paper_claims import (
    distance,
    heard,
    nodes_with_pair,
    own_parts,
    pairwise_gram,
    printed_gram,
    statements,
    total_variation,
    victim_gram,
)
from . import greedy_rows, sum_abs_gram, sum_abs_gram_as_printed

GRAPHS, NODES = connected_graphs(2, 5), st.integers(0, 4)
ROUNDING = 1e-6  # condition numbers are up to 1e5
EXACT = 1e-9
UP_TO_FOUR = {"graph": connected_graphs(2, 4), "attacker": st.integers(0, 3), "victim": st.integers(0, 3)}

published_claim = statements(
    graph=GRAPHS, attacker=NODES, victim=NODES, steps=st.integers(1, 4), slope=st.integers(-3, 3), tolerance=ROUNDING
)


SYSTEMS = ("dp-dsgd", "muffliato", "anti-pgd", "bsr", "mafalda", "mf-shared", "mf-per-node")


def local_encoders(system: str, graph: nx.Graph, steps: int, seed: int) -> FloatArray:
    """C_u of every node, shape (n, T, T); `seed` draws the encoders that no system fixes."""
    n, rng = len(graph), np.random.default_rng(seed)
    if system == "mf-per-node":
        return random_encoder(rng, steps, n)
    shared: dict[str, Callable[[], FloatArray]] = {
        "anti-pgd": lambda: prefix_sum(steps),
        "bsr": lambda: square_root_encoder(steps),
        "mafalda": lambda: factorize(Dynamics(metropolis_hastings(graph)), EveryStep(steps)).encoder,
        "mf-shared": lambda: random_encoder(rng, steps),
    }
    return np.stack([shared.get(system, lambda: np.eye(steps))()] * n)


@published_claim(
    "mafalda-theorem-5-ldp",
    graph=connected_graphs(1, 4),
    steps=st.integers(1, 3),
    system=st.sampled_from(SYSTEMS),
    seed=st.integers(0, 99),
)
def theorem_5_ldp(graph: nx.Graph, steps: int, system: str, seed: int) -> tuple[float, float]:
    n, rounds = len(graph), 2 if system == "muffliato" else 1
    C = local_encoders(system, graph, steps, seed)
    messages, _ = gossip_messages(metropolis_hastings(graph), steps, gossip_rounds=rounds)
    X, leaks = pinv_gram(messages, messages @ local_noising(C))
    claimed = np.zeros((steps, n, steps, n))
    for u in range(n):
        claimed[:, u, :, u] = C[u].T @ C[u]
    return 0.0, math.inf if leaks.any() else distance(X, claimed.reshape(X.shape))


@published_claim("mafalda-theorem-5-pndp-below-ldp", examples=80, **UP_TO_FOUR, encoder=encoders(max_steps=3))
def theorem_5_pndp_below_ldp(graph: nx.Graph, attacker: int, victim: int, encoder: FloatArray) -> tuple[float, float]:
    n, steps = nodes_with_pair(len(graph), attacker, victim), len(encoder)
    rows = heard(metropolis_hastings(graph), attacker, steps)
    noise = without_noise(rows @ local_noising(np.stack([encoder] * n)), own_parts(attacker, steps, n))
    return elliptope_reference(encoder.T @ encoder), elliptope_reference(victim_gram(rows, noise, victim, n))


@published_claim("mafalda-lemma-11-known-gradients")
def lemma_11_known_gradients(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    return _lemma_11(graph, attacker, victim, steps)


@published_claim("mafalda-lemma-11-nothing-known-moves")
def lemma_11_nothing_known_moves(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    assume(attacker != victim)
    return _lemma_11(graph, attacker, victim, steps)


def _lemma_11(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    """(reduced view, all messages, gradients and noise that the attacker holds)."""
    n = len(graph)
    assume(attacker < n and victim < n)
    known = sorted(own_parts(attacker, steps, n))
    W = metropolis_hastings(graph)
    rest = without_noise(heard(W, attacker, steps), known)
    reduced = victim_gram(rest, rest, victim, n)
    messages = heard(W, attacker, steps, own_messages=True)
    gradients = np.eye(steps * n)[known]
    full_A, full_B = append_known_noise(
        np.vstack([messages, gradients]), np.vstack([messages, np.zeros_like(gradients)]), known
    )
    full, leaks = pinv_gram(node_columns(full_A, victim, n), full_B)
    return largest_signed_sum(reduced), math.inf if leaks.any() else largest_signed_sum(full)


@published_claim("mafalda-lemma-11-factorization", noise_known_of=NODES)
def lemma_11_factorization(graph: nx.Graph, attacker: int, noise_known_of: int, steps: int) -> tuple[float, float]:
    """The attacker knows its own gradients and the noise of one node."""
    n = len(graph)
    assume(attacker < n and noise_known_of < n)
    rows = heard(metropolis_hastings(graph), attacker, steps, own_messages=True)
    A = without_noise(rows, own_parts(attacker, steps, n))
    B = without_noise(rows, own_parts(attacker, steps, n) | own_parts(noise_known_of, steps, n))
    assume(clear_rank(B))
    return 0.0, float(np.linalg.norm(A - B @ np.linalg.pinv(B, rcond=1e-9) @ A))


@published_claim("mafalda-known-noise-appended-rows", view=integer_views(), known=st.sets(st.integers(0, 4)))
def known_noise_appended_rows(view: tuple[FloatArray, FloatArray], known: set[int]) -> tuple[float, float]:
    A, B = view
    known = {j for j in known if j < B.shape[1]}
    zeroed, first = pinv_gram(A, without_noise(B, known))
    appended, second = pinv_gram(*append_known_noise(A, B, known))
    assume(not first.any() and not second.any())
    return 0.0, distance(zeroed, appended)


@published_claim("mafalda-equation-12-own-noise")
def equation_12_own_noise(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    W, n = metropolis_hastings(graph), nodes_with_pair(len(graph), attacker, victim)
    rows = heard(W, attacker, steps)
    printed = victim_gram(rows, rows, victim, n)
    return float(np.abs(printed).sum()), largest_signed_sum(pairwise_gram(W, attacker, victim, steps))


@published_claim("mafalda-decor-received-messages", member=NODES)
def decor_received_messages(graph: nx.Graph, member: int, victim: int, steps: int) -> tuple[float, float]:
    n = nodes_with_pair(len(graph), member, victim)
    edges = list(graph.edges)
    noise = np.kron(np.eye(steps), pairwise_factor(edges, n, 0.5, 2.0))
    secrets = [member, *(n + i for i, edge in enumerate(edges) if member in edge)]
    known = {t * (n + len(edges)) + secret for t in range(steps) for secret in secrets}
    W = metropolis_hastings(graph)
    everything, _ = gossip_messages(W, steps)
    received_only, all_messages = (
        victim_gram(rows, without_noise(rows @ noise, known), victim, n)
        for rows in (heard(W, member, steps, own_messages=True), everything)
    )
    return float(np.abs(received_only).sum()), largest_signed_sum(all_messages)


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
    n = nodes_with_pair(len(graph), attacker, victim)
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
    rows_of_echelon = greedy_rows(view.dense_noise())
    A_kept, B_kept = ([matrix[i] for i in rows_of_echelon] for matrix in (A, B))
    pairs = ((exact_view_gram(B, B), B_kept), (exact_view_gram(A, B), A_kept))
    gaps = [
        abs(x - y)
        for whole, rows in pairs
        for row, other in zip(whole, exact_view_gram(rows, B_kept), strict=True)
        for x, y in zip(row, other, strict=True)
    ]
    return 0.0, float(max(gaps)) + abs(rank(B) - len(rows_of_echelon))


@published_claim("mafalda-figure-2-tighter", examples=500, **UP_TO_FOUR, steps=st.integers(1, 8))
def figure_2_tighter(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    return float(steps), float(np.abs(pairwise_gram(metropolis_hastings(graph), attacker, victim, steps)).sum())


factorization_claim = statements(graph=GRAPHS, encoder=integer_encoders(max_steps=4, largest=2))


PLANE = st.lists(st.integers(-3, 3), min_size=2, max_size=2)


@factorization_claim("mafalda-clip-is-replace-one", gradient=PLANE, replaced=PLANE, clip_norm=st.integers(1, 3))
def clip_is_replace_one(gradient: list[int], replaced: list[int], clip_norm: int) -> tuple[float, float]:
    g, h = (np.array(x) * min(1.0, clip_norm / max(math.hypot(*x), 1e-300)) for x in (gradient, replaced))
    return float(clip_norm), math.hypot(*(g - h))


TEMPORAL = st.sampled_from(["dp-dsgd", "bsr", "anti-pgd"])


@factorization_claim("mafalda-algorithm-1-noise", system=TEMPORAL, epochs=st.integers(1, 3), period=st.integers(1, 3))
def algorithm_1_noise(system: str, epochs: int, period: int) -> tuple[float, float]:
    participation = Cyclic(epochs, period)
    (C,) = local_encoders(system, nx.empty_graph(1), participation.num_steps, 0)
    return 1.0, brute_force_sensitivity(C, participation)


@factorization_claim("mafalda-workload-diagonals", diagonal=st.integers(1, 4))
def workload_diagonals(graph: nx.Graph, diagonal: int) -> tuple[float, float]:
    W = metropolis_hastings(graph)
    sent = np.eye(len(graph))
    for _ in range(diagonal):
        sent = np.asarray(W.weights @ sent)
    return 0.0, distance(np.linalg.matrix_power(W.dense(), diagonal - 1), sent)


def _root_gap(graph: nx.Graph, encoder: FloatArray, *, transposed: bool) -> tuple[float, float]:
    """How far ||L C^-1||^2 is off ||(I (x) W) W_T (C^-1 (x) I)||^2, relatively.

    L is the Cholesky factor G of H = G G^T, or the one with H = L^T L.
    """
    W, inverse = metropolis_hastings(graph), np.linalg.inv(encoder)
    H = dense_error_gram(W, len(encoder))
    L = np.linalg.cholesky(H[::-1, ::-1]).T[::-1, ::-1] if transposed else np.linalg.cholesky(H)
    true = np.linalg.norm(dense_averaged_workload(W, len(encoder)) @ np.kron(inverse, np.eye(len(graph)))) ** 2
    return 0.0, abs(float(np.linalg.norm(L @ inverse) ** 2 / true) - 1)


@factorization_claim("mafalda-lemma-10-cholesky", tolerance=ROUNDING)
def lemma_10_cholesky(graph: nx.Graph, encoder: FloatArray) -> tuple[float, float]:
    return _root_gap(graph, encoder, transposed=False)


@factorization_claim("mafalda-lemma-10-root", tolerance=ROUNDING)
def lemma_10_root(graph: nx.Graph, encoder: FloatArray) -> tuple[float, float]:
    return _root_gap(graph, encoder, transposed=True)


def _commuted(graph: nx.Graph, encoder: FloatArray, left: FloatArray) -> tuple[float, float]:
    W, back = metropolis_hastings(graph).dense(), _commutation(len(encoder), len(graph))
    return 0.0, distance(left @ np.kron(W, encoder), np.kron(encoder, W) @ back)


def _commutation(rows: int, columns: int) -> FloatArray:
    """K^(m,n) by its definition: K vec(M) = vec(M^T) for M of shape (m, n), vec stacking columns."""
    return np.eye(rows * columns)[np.arange(rows * columns).reshape(columns, rows).T.ravel()]


@factorization_claim("mafalda-appendix-d-commutation")
def appendix_d_commutation(graph: nx.Graph, encoder: FloatArray) -> tuple[float, float]:
    return _commuted(graph, encoder, _commutation(len(graph), len(encoder)))


@factorization_claim("mafalda-lemma-10-commutation")
def lemma_10_commutation(graph: nx.Graph, encoder: FloatArray) -> tuple[float, float]:
    return _commuted(graph, encoder, _commutation(len(encoder), len(graph)))


@factorization_claim("mafalda-algorithm-2-cholesky")
def algorithm_2_cholesky(encoder: FloatArray) -> tuple[float, float]:
    X = encoder.T @ encoder
    G: FloatArray = np.asarray(np.linalg.cholesky(X), dtype=np.float64)
    return float(X.diagonal().max()), brute_force_sensitivity(G, Single(len(X))) ** 2


@factorization_claim("mafalda-bsr-as-coded", steps=st.integers(1, 6))
def bsr_as_coded(steps: int) -> tuple[float, float]:
    return 0.0, float(np.abs(np.triu(np.linalg.inv(scipy.linalg.toeplitz(_bsr_coefficients(steps))), 1)).max())


@factorization_claim("mafalda-bsr-square-root", steps=st.integers(1, 40), examples=60)
def bsr_square_root(steps: int) -> tuple[float, float]:
    C = np.tril(scipy.linalg.toeplitz(_bsr_coefficients(steps)))
    return 0.0, distance(C @ C, prefix_sum(steps))


def _bsr_coefficients(steps: int) -> FloatArray:
    """1, 1/2, 3/8, 5/16, ...: binom(2 i, i) / 4^i."""
    return np.array([math.comb(2 * i, i) / 4**i for i in range(steps)])


@factorization_claim("mafalda-anti-pgd-sensitivity", epochs=st.integers(1, 5), period=st.integers(1, 5), examples=60)
def anti_pgd_sensitivity(epochs: int, period: int) -> tuple[float, float]:
    k, b = epochs, period
    squared = brute_force_sensitivity(prefix_sum(k * b), Cyclic(k, b)) ** 2
    return 0.0, abs(6 * squared / (b * k * (k + 1) * (2 * k + 1)) - 1)
