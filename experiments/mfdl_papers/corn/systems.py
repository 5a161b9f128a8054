"""Gossip matrices with covariances of noise, what is seen of them, and its exact loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from mfdl.check import FloatArray
from mfdl.gossip import GossipMatrix
from mfdl.testing.claims import describe
from mfdl.testing.oracles.views import gossip_messages
from mfdl.testing.strategies import integer_arrays
from mfdl.testing.strategies.graphs import connected_graphs, gossip_matrices

from ..pairwise_views import losses

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
