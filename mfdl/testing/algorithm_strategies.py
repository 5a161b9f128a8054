"""Algorithms for tests: every builder by name, random encoders, and what their operators must be, dense.

The dense forms are written from the definitions: block (t, s) of the workload is W_{t-1} ... W_s, and the
noising matrix holds C_u^-1 of every node. They take (T n)^2 numbers and are for tests only.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from .. import algorithms
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..dynamics import Dynamics
from ..gossip import Gossip
from ..operators import IndependentNoise, LocalNoise, ZeroNoise
from ..participation import Cyclic, EveryStep, Explicit, Participation, Single
from .graph_strategies import gossip_matrices, gossip_sequences

RANDOM_ENCODERS = ("mf-shared", "mf-per-node")
NAMES = ("none", "dp-dsgd", "anti-pgd", "bsr", "d-mf", "mafalda", "mafalda-l", *RANDOM_ENCODERS)
CHEAP_NAMES = ("none", "dp-dsgd", "anti-pgd", "bsr", *RANDOM_ENCODERS)
"""Those that solve no problem."""


def random_encoder(rng: np.random.Generator, num_steps: int, num_nodes: int | None = None) -> FloatArray:
    """A well-conditioned causal encoder with entries of both signs, (T, T) or (n, T, T)."""
    shape = (num_steps, num_steps) if num_nodes is None else (num_nodes, num_steps, num_steps)
    below = np.tril(rng.uniform(-1, 1, shape), -1)
    diagonal: FloatArray = rng.uniform(0.5, 2, shape[:-1])
    return below + diagonal[..., None] * np.eye(num_steps)


def build_algorithm(name: str, dynamics: Dynamics, participation: Participation, seed: int = 0) -> LinearAlgorithm:
    """An algorithm of `NAMES`; `seed` draws the random encoders."""
    T, n = participation.num_steps, dynamics.num_nodes
    if name in RANDOM_ENCODERS:
        encoder = random_encoder(np.random.default_rng(seed), T, n if name == "mf-per-node" else None)
        return algorithms.mf_dsgd(dynamics, participation, encoder, name=name)
    return algorithms.build(name, dynamics, participation)


def dense_workload(gossip: Gossip, num_steps: int) -> FloatArray:
    """W_T with one product per block; (T n, T n)."""
    n = gossip.num_nodes
    W_T = np.zeros((num_steps, n, num_steps, n))
    for s in range(num_steps):
        block = np.eye(n)
        for t in range(s, num_steps):
            W_T[t, :, s, :] = block
            block = gossip.at(t).weights.toarray() @ block
    return W_T.reshape(num_steps * n, num_steps * n)


def dense_averaged_workload(gossip: Gossip, num_steps: int) -> FloatArray:
    """blockdiag(W_t) W_T: what enters the models after averaging; (T n, T n)."""
    n = gossip.num_nodes
    blocks = dense_workload(gossip, num_steps).reshape(num_steps, n, -1)
    averaged = [gossip.at(t).weights.toarray() @ blocks[t] for t in range(num_steps)]
    return np.concatenate(averaged)


def dense_noising(algorithm: LinearAlgorithm) -> FloatArray:
    """N = blockdiag over nodes of C_u^-1, rows and columns time-major; (T n, T n), or (T n, 0) without noise."""
    T, n, noise = algorithm.num_steps, algorithm.num_nodes, algorithm.noise
    if isinstance(noise, ZeroNoise):
        return np.zeros((T * n, 0))
    if isinstance(noise, IndependentNoise):
        return np.eye(T * n)
    assert isinstance(noise, LocalNoise)
    N = np.zeros((T, n, T, n))
    for u in range(n):
        N[:, u, :, u] = np.linalg.inv(noise.encoder if noise.encoder.ndim == 2 else noise.encoder[u])
    return N.reshape(T * n, T * n)


def to_fractions(matrix: FloatArray) -> list[list[Fraction]]:
    """The exact rational numbers that the floats are."""
    return [[Fraction(float(x)) for x in row] for row in matrix]


@st.composite
def participations(draw: st.DrawFn, num_steps: int) -> Participation:
    """Any scheme over a number of steps, overlapping explicit patterns included."""
    scheme = draw(st.sampled_from(["single", "cyclic", "every-step", "explicit"]))
    if scheme == "single":
        return Single(num_steps)
    if scheme == "every-step":
        return EveryStep(num_steps)
    if scheme == "cyclic":
        period = draw(st.sampled_from([b for b in range(1, num_steps + 1) if num_steps % b == 0]))
        return Cyclic(epochs=num_steps // period, period=period)
    pattern = st.lists(st.integers(0, num_steps - 1), min_size=1, max_size=num_steps, unique=True)
    return Explicit(draw(st.lists(pattern, min_size=1, max_size=4)), num_steps)


@st.composite
def integer_encoders(draw: st.DrawFn, max_steps: int = 6, largest: int = 4) -> FloatArray:
    """Causal encoders of small integers with a positive diagonal; they shrink to the identity."""
    T = draw(st.integers(1, max_steps))
    below = draw(st.lists(st.integers(-largest, largest), min_size=T * (T - 1) // 2, max_size=T * (T - 1) // 2))
    diagonal = draw(st.lists(st.integers(1, largest), min_size=T, max_size=T))
    C = np.diag(np.array(diagonal, dtype=np.float64))
    C[np.tril_indices(T, -1)] = below
    return C


@st.composite
def linear_algorithms(
    draw: st.DrawFn,
    names: tuple[str, ...] = CHEAP_NAMES,
    max_epochs: int = 3,
    max_period: int = 3,
    max_nodes: int = 4,
) -> LinearAlgorithm:
    """Algorithms under cyclic participation on constant or time-varying gossip of every kind."""
    gossip = draw(st.one_of(gossip_matrices(max_nodes=max_nodes), gossip_sequences(max_nodes=max_nodes)))
    period = draw(st.integers(1, max_period))
    epochs = draw(st.integers(1, max_epochs))
    if (length := getattr(gossip, "num_steps", None)) is not None:  # a sequence that does not repeat
        epochs, period = 1, length
    dynamics = Dynamics(gossip, learning_rate=draw(st.sampled_from([1.0, 0.5, 0.3])))
    return build_algorithm(
        draw(st.sampled_from(names)), dynamics, Cyclic(epochs, period), seed=draw(st.integers(0, 2**16))
    )
