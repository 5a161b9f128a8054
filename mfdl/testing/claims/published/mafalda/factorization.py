"""Encoders, their noise, and its cost: clipping, Algorithms 1 and 2, W_T, Lemma 10, BSR and Anti-PGD."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import scipy.linalg
from hypothesis import strategies as st

from ..... import gossip
from .....check import FloatArray
from .....participation import Cyclic, Single
from ....oracles import brute_force_sensitivity, dense_averaged_workload, dense_error_gram, prefix_sum
from ....strategies import integer_encoders
from .._stated import stated
from ._systems import local_encoders
from ._views import GRAPHS, ROUNDING, distance


@stated(
    "mafalda-clip-is-replace-one",
    gradient=st.lists(st.integers(-3, 3), min_size=2, max_size=2),
    replaced=st.lists(st.integers(-3, 3), min_size=2, max_size=2),
    clip_norm=st.integers(1, 3),
)
def clip_is_replace_one(gradient: list[int], replaced: list[int], clip_norm: int) -> tuple[float, float]:
    g, h = (np.array(x) * min(1.0, clip_norm / max(math.hypot(*x), 1e-300)) for x in (gradient, replaced))
    return float(clip_norm), math.hypot(*(g - h))


@stated(
    "mafalda-algorithm-1-noise",
    system=st.sampled_from(["dp-dsgd", "bsr", "anti-pgd"]),
    epochs=st.integers(1, 3),
    period=st.integers(1, 3),
)
def algorithm_1_noise(system: str, epochs: int, period: int) -> tuple[float, float]:
    participation = Cyclic(epochs, period)
    (C,) = local_encoders(system, nx.empty_graph(1), participation.num_steps, 0)
    return 1.0, brute_force_sensitivity(C, participation)


@stated("mafalda-workload-diagonals", graph=GRAPHS, diagonal=st.integers(1, 4))
def workload_diagonals(graph: nx.Graph, diagonal: int) -> tuple[float, float]:
    W = gossip.metropolis_hastings(graph)
    sent = np.eye(len(graph))
    for _ in range(diagonal):
        sent = np.asarray(W.weights @ sent)
    return 0.0, distance(np.linalg.matrix_power(W.dense(), diagonal - 1), sent)


@stated("mafalda-lemma-10-cholesky", tolerance=ROUNDING, graph=GRAPHS, encoder=integer_encoders(max_steps=4, largest=2))
def lemma_10_cholesky(graph: nx.Graph, encoder: FloatArray) -> tuple[float, float]:
    H = dense_error_gram(gossip.metropolis_hastings(graph), len(encoder))
    return 0.0, _error_mismatch(_cholesky(H), graph, encoder)


@stated("mafalda-lemma-10-root", tolerance=ROUNDING, graph=GRAPHS, encoder=integer_encoders(max_steps=4, largest=2))
def lemma_10_root(graph: nx.Graph, encoder: FloatArray) -> tuple[float, float]:
    H = dense_error_gram(gossip.metropolis_hastings(graph), len(encoder))
    return 0.0, _error_mismatch(_cholesky(H[::-1, ::-1]).T[::-1, ::-1], graph, encoder)


def _cholesky(X: FloatArray) -> FloatArray:
    """Lower triangular G with G G^T = X, as every library has it."""
    return np.asarray(np.linalg.cholesky(X), dtype=np.float64)


def _error_mismatch(L: FloatArray, graph: nx.Graph, encoder: FloatArray) -> float:
    """How far ||L C^-1||^2 is off ||(I (x) W) W_T (C^-1 (x) I)||^2, relatively."""
    inverse = np.linalg.inv(encoder)
    workload = dense_averaged_workload(gossip.metropolis_hastings(graph), len(encoder))
    true = np.linalg.norm(workload @ np.kron(inverse, np.eye(len(graph)))) ** 2
    return abs(float(np.linalg.norm(L @ inverse) ** 2 / true) - 1)


def _commutation(rows: int, columns: int) -> FloatArray:
    """K^(m,n) by its definition: K vec(M) = vec(M^T) for M of shape (m, n), vec stacking columns."""
    K = np.zeros((rows * columns,) * 2)
    for i, j in itertools.product(range(rows), range(columns)):
        K[i * columns + j, j * rows + i] = 1.0
    return K


@stated("mafalda-appendix-d-commutation", graph=GRAPHS, encoder=integer_encoders(max_steps=4, largest=2))
def appendix_d_commutation(graph: nx.Graph, encoder: FloatArray) -> tuple[float, float]:
    W, n, T = gossip.metropolis_hastings(graph).dense(), len(graph), len(encoder)
    return 0.0, distance(_commutation(n, T) @ np.kron(W, encoder), np.kron(encoder, W) @ _commutation(T, n))


@stated("mafalda-lemma-10-commutation", graph=GRAPHS, encoder=integer_encoders(max_steps=4, largest=2))
def lemma_10_commutation(graph: nx.Graph, encoder: FloatArray) -> tuple[float, float]:
    W, n, T = gossip.metropolis_hastings(graph).dense(), len(graph), len(encoder)
    return 0.0, distance(_commutation(T, n) @ np.kron(W, encoder), np.kron(encoder, W) @ _commutation(T, n))


@stated("mafalda-algorithm-2-cholesky", encoder=integer_encoders(max_steps=4, largest=2))
def algorithm_2_cholesky(encoder: FloatArray) -> tuple[float, float]:
    X = encoder.T @ encoder
    return float(X.diagonal().max()), brute_force_sensitivity(_cholesky(X), Single(len(X))) ** 2


@stated("mafalda-bsr-as-coded", steps=st.integers(1, 6))
def bsr_as_coded(steps: int) -> tuple[float, float]:
    return 0.0, float(np.abs(np.triu(np.linalg.inv(scipy.linalg.toeplitz(_bsr_coefficients(steps))), 1)).max())


@stated("mafalda-bsr-square-root", steps=st.integers(1, 40), examples=60)
def bsr_square_root(steps: int) -> tuple[float, float]:
    C = np.tril(scipy.linalg.toeplitz(_bsr_coefficients(steps)))
    return 0.0, distance(C @ C, prefix_sum(steps))


def _bsr_coefficients(steps: int) -> FloatArray:
    """1, 1/2, 3/8, 5/16, ...: binom(2 i, i) / 4^i."""
    return np.array([math.comb(2 * i, i) / 4**i for i in range(steps)])


@stated("mafalda-anti-pgd-sensitivity", epochs=st.integers(1, 5), period=st.integers(1, 5), examples=60)
def anti_pgd_sensitivity(epochs: int, period: int) -> tuple[float, float]:
    k, b = epochs, period
    squared = brute_force_sensitivity(prefix_sum(k * b), Cyclic(k, b)) ** 2
    return 0.0, abs(6 * squared / (b * k * (k + 1) * (2 * k + 1)) - 1)
