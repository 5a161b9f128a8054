"""Zip-DL, noise that cancels among the messages of a node: its claims, and the factorization theorem about it.

In each round node a draws Y_{a->v} for the d nodes v of its closed neighbourhood and sends x_a + Z_{a->v},

    Z_{a->v} = Y_{a->v} - (1 / (d W_va)) sum_j W_ja Y_{a->j},    so that sum_v W_va Z_{a->v} = 0.

The matrices below are written from these lines, gradients and noise as columns; the learning rate is 1. The truth is
their Gram by pseudo-inverse, in units sens^2 per record shift and standard deviation of Y, or, where gradients react,
total variation by numerical integration over two nodes and two steps. W is Metropolis-Hastings where a graph is given.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np
import scipy.linalg
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from mfdl import algorithms, gossip, trust
from mfdl.check import FloatArray
from mfdl.dynamics import Dynamics
from mfdl.participation import EveryStep
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.testing.oracles.dense_views import clear_rank, node_columns, pinv_gram
from mfdl.testing.oracles.sensitivity_oracle import largest_signed_sum
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..paper_claims import nodes_with_pair, statements, total_variation

NODES = st.integers(0, 3)
WAVES = st.lists(st.integers(-1, 1), min_size=1, max_size=3)
INTEGRATION = 1e-3  # its error: 3e-4 found

published_claim = statements(
    graph=connected_graphs(min_nodes=2, max_nodes=4),
    W=gossip_matrices(min_nodes=2, max_nodes=4, kinds=("symmetric",)).map(lambda W: W.dense()),
    node=NODES,
    attacker=NODES,
    victim=NODES,
    steps=st.integers(1, 3),
    wave=WAVES,
    first=WAVES,
    second=WAVES,
)


# ---- the algorithm written out ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class ZipDLRun:
    """All messages of T rounds, and the models after the last, as functions of gradients and Y.

    Attributes:
        sender, receiver: of each message of one round, shape (S,); a message to itself is one of them.
        A, B: messages <- gradients and Y, round by round, shapes (T S, T n) and (T S, T S).
        final_A, final_B: models <- gradients and Y, shapes (n, T n) and (n, T S).
    """

    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    A: FloatArray
    B: FloatArray
    final_A: FloatArray
    final_B: FloatArray

    def sent(self) -> NDArray[np.bool_]:
        """Rows that are transmitted: all but those to the sender itself."""
        return self._in_every_round(self.sender != self.receiver)

    def heard_by(self, attacker: int) -> NDArray[np.bool_]:
        """Rows that reach the attacker from others."""
        return self._in_every_round((self.receiver == attacker) & (self.sender != attacker))

    def noise_without(self, attacker: int) -> FloatArray:
        """B with the attacker's own columns zero."""
        return self.B * self._in_every_round(self.sender != attacker)

    def _in_every_round(self, of_messages: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.tile(of_messages, len(self.A) // len(self.sender))

    def loss(self, node: int, A: FloatArray | None = None, B: FloatArray | None = None) -> float:
        """`node_loss` by these rows of a view; default: what is sent."""
        A, B = (rows[self.sent()] if seen is None else seen for rows, seen in ((self.A, A), (self.B, B)))
        return node_loss(node_columns(A, node, len(self.final_A)), B)


def printed_noise(weights: FloatArray) -> FloatArray:
    """Z <- Y of one sender with weights W_va to its d receivers, shape (d, d)."""
    return np.eye(len(weights)) - np.outer(1 / (len(weights) * weights), weights)


def written_out(W: FloatArray, num_steps: int, *, independent: bool = False) -> ZipDLRun:
    """Zip-DL; with `independent` the messages carry Y instead of Z."""
    n = len(W)
    sender, receiver = (index.astype(np.intp) for index in np.nonzero(W.T))
    S, split = len(sender), num_steps * n
    blocks = [printed_noise(W[receiver[sender == a], a]) for a in range(n)]
    F = np.eye(S) if independent else scipy.linalg.block_diag(*blocks)
    models, rows = np.zeros((n, num_steps * (n + S))), []
    for t in range(num_steps):
        half = models.copy()
        half[:, t * n : (t + 1) * n] -= np.eye(n)
        messages = half[sender]
        messages[:, split + t * S : split + (t + 1) * S] += F
        models = np.zeros_like(models)
        np.add.at(models, receiver, W[receiver, sender][:, None] * messages)
        rows.append(messages)
    view = np.vstack(rows)
    return ZipDLRun(sender, receiver, view[:, :split], view[:, split:], models[:, :split], models[:, split:])


def _metropolis_hastings(graph: nx.Graph) -> FloatArray:
    return gossip.metropolis_hastings(graph).dense()


def node_loss(A: FloatArray, B: FloatArray) -> float:
    """sens^2 of one node that takes part in every step, at gradients 1 or -1; A its columns; inf for a leak.

    Noise below 1e-12 is rounding.
    """
    B = np.where(np.abs(B) < 1e-12, 0.0, B)
    assume(clear_rank(B))
    X, leaks = pinv_gram(A, B)
    return math.inf if leaks.any() else float(largest_signed_sum(X))


# ---- what cancels -------------------------------------------------------------------------------------------


@published_claim("zip-dl-average-without-noise")
def average_without_noise(W: FloatArray, steps: int) -> tuple[float, float]:
    assume((W.diagonal() > 0).all())
    run = written_out(W, steps)
    return 0.0, float(np.linalg.norm(run.final_B.mean(axis=0)) / np.linalg.norm(run.final_B))


@published_claim("zip-dl-released-average")
def released_average(graph: nx.Graph, steps: int) -> tuple[float, float]:
    run = written_out(_metropolis_hastings(graph), steps)
    return run.loss(0), run.loss(0, *(rows.mean(axis=0, keepdims=True) for rows in (run.final_A, run.final_B)))


@published_claim("zip-dl-released-models")
def released_models(graph: nx.Graph, steps: int) -> tuple[float, float]:
    run = written_out(_metropolis_hastings(graph), steps)
    pairs = (run.A, run.final_A), (run.B, run.final_B)
    return run.loss(0), run.loss(0, *(np.vstack([rows[run.sent()], final]) for rows, final in pairs))


# ---- the public code ----------------------------------------------------------------------------------------


def coded_noise_map(draws: int) -> FloatArray:
    """k draws of standard deviation sqrt(k / (k - 1)), less their mean."""
    return math.sqrt(draws / (draws - 1)) * (np.eye(draws) - 1 / draws)


@published_claim("zip-dl-coded-noise", neighbours=st.integers(1, 5))
def coded_noise(neighbours: int) -> tuple[float, float]:
    d = neighbours + 1
    printed, coded = printed_noise(np.full(d, 1 / d)), coded_noise_map(d)
    return 0.0, float(np.abs(coded @ coded.T - printed @ printed.T).max())


@published_claim("zip-dl-coded-without-self-noise", neighbours=st.integers(2, 5))
def coded_without_self_noise(neighbours: int) -> tuple[float, float]:
    """Stated as the distance of (1, ..., 1) from that range, relative to its norm."""
    F, ones = coded_noise_map(neighbours), np.ones(neighbours)
    distance = np.linalg.norm(ones - F @ np.linalg.pinv(F, rcond=1e-9) @ ones)
    return 0.0, float(distance / np.linalg.norm(ones))


# ---- the factorization theorem of arXiv:2510.17480 ------------------------------------------------------------


@published_claim("zip-dl-theorem-5-ldp")
def theorem_5_ldp(graph: nx.Graph, steps: int) -> tuple[float, float]:
    """Stated as the distance of A from the range of B, relative to its norm, for the worst column."""
    run = written_out(_metropolis_hastings(graph), steps)
    outside = run.A - run.B @ (np.linalg.pinv(run.B, rcond=1e-9) @ run.A)
    return 0.0, float((np.linalg.norm(outside, axis=0) / np.linalg.norm(run.A, axis=0)).max())


@published_claim("zip-dl-growth", tolerance=1e-7, steps=st.integers(1, 4))  # of a pseudo-inverse
def growth(W: FloatArray, node: int, steps: int) -> tuple[float, float]:
    """Stated as the relative difference."""
    assume((W.diagonal() > 0).all() and node < len(W))
    expected = written_out(W, 1).loss(node) * steps * (steps + 1) * (2 * steps + 1) / 6
    return 0.0, abs(written_out(W, steps).loss(node) / expected - 1)


@published_claim("zip-dl-independent-messages", steps=st.integers(1, 2))
def independent_messages(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    nodes_with_pair(len(graph), attacker, victim)
    losses = []
    for independent in (True, False):
        run = written_out(_metropolis_hastings(graph), steps, independent=independent)
        heard = run.heard_by(attacker)
        losses.append(run.loss(victim, run.A[heard], run.noise_without(attacker)[heard]))
    return losses[0], losses[1]


# ---- gradients that react -------------------------------------------------------------------------------------

Reaction = Callable[[FloatArray], FloatArray]


def reaction_wave(values: Sequence[float]) -> Reaction:
    """A gradient that takes these values in turn, one in each unit interval of the model."""
    return lambda model: np.asarray(values, dtype=np.float64)[np.floor(model + 1e-9).astype(int) % len(values)]


def two_step_total_variation(
    weight: float, first: tuple[float, float], second: tuple[Reaction, Reaction], noise: float
) -> float:
    """Total variation of all messages sent by nodes 0 and 1 in two steps between two data sets of node 0.

    Node 0 has gradients first[i] and second[i](model), node 1 zero; they give each other `weight`. Node 0 sends
    m = -g + Z with Z to itself -(weight / own) Z, receives k, and is at -g + r after averaging, r = weight (k - m). So
    its next message is at a known place less g + g'(r - g), with fresh noise. Integrated over m and r: the jumps of a
    wave lie on edges of the cells of r; the integral over the last message is exact.
    """
    F = printed_noise(np.array([1 - weight, weight]))
    s = noise * float(np.linalg.norm(F[1]))  # of what is sent
    spread = weight * math.sqrt(2) * s
    cells = 2 * max(1, math.ceil(12 / spread))  # a cell is 1 / cells, spread / 24 or less
    edge = math.ceil(8 * spread) + 1
    r = (np.arange(-edge * cells, edge * cells) + 0.5)[:, None] / cells
    m, step = np.linspace(-8 * s - 1, 8 * s + 1, 201, retstep=True)
    logs = [-((m + g) ** 2) / (2 * s * s) for g in first]
    received = np.exp(-((m + r / weight) ** 2) / (2 * s * s))
    shift = [g + react(r - g) for g, react in zip(first, second, strict=True)]
    delta = (shift[0] - shift[1]) / s
    ratio = logs[0] - logs[1]
    inner = _difference(np.exp(logs[0]), np.exp(logs[1]), ratio, np.abs(delta))
    return float((received * inner).sum() * step / cells / (2 * math.pi * s * s * weight) / 2)


def _difference(p: FloatArray, q: FloatArray, log_ratio: FloatArray, distance: FloatArray) -> FloatArray:
    """Integral of |p phi(y) - q phi(y - distance)| over y, log_ratio = log(p / q)."""
    apart = np.where(distance > 0, distance, 1.0)
    where = log_ratio / apart + apart / 2  # p phi is the larger one below it
    return np.where(distance > 0, p * (2 * ndtr(where) - 1) - q * (2 * ndtr(where - apart) - 1), np.abs(p - q))


@published_claim("zip-dl-record-adaptive", tolerance=INTEGRATION, noise=st.integers(1, 4))
def record_adaptive(wave: list[int], noise: int) -> tuple[float, float]:
    """Two nodes, two steps. The record adds 1 to the first gradient; another record's takes the values of the wave in
    turn over unit intervals of the model.
    """
    run = written_out(np.full((2, 2), 0.5), 2)
    X, _ = pinv_gram(node_columns(run.A[run.sent()], 0, 2), run.B[run.sent()])
    claimed = math.sqrt(X.diagonal().max()) / noise
    other = reaction_wave(wave)
    return total_variation(claimed), two_step_total_variation(0.5, (1.0, 0.0), (other, other), float(noise))


@published_claim(
    "zip-dl-user-adaptive", tolerance=INTEGRATION, examples=60, neighbour=st.integers(2, 4), noise=st.integers(1, 3)
)
def user_adaptive(neighbour: int, first: list[int], second: list[int], noise: int) -> tuple[float, float]:
    """Two nodes that give each other 1 / `neighbour`, two steps. The first gradient is 1/2 or -1/2, the second takes
    half of the values of one wave or of the other in turn over unit intervals of the model.
    """
    W = np.eye(2) + (np.ones((2, 2)) - 2 * np.eye(2)) / neighbour
    algorithm = algorithms.zip_dl(Dynamics(gossip.from_array(W)), EveryStep(2))
    (loss,) = sensitivity_by_victim(algorithm, trust.Eavesdropper(), release="none", unit="user", victims=[0])
    claimed = math.sqrt(loss.adaptive_sensitivity_squared) / noise
    waves = reaction_wave([v / 2 for v in first]), reaction_wave([v / 2 for v in second])
    return total_variation(claimed), two_step_total_variation(1 / neighbour, (0.5, -0.5), waves, float(noise))
