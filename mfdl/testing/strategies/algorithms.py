"""Hypothesis strategy for linear algorithms: every builder by name, and random encoders."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ... import algorithms
from ...algorithms import LinearAlgorithm
from ...dynamics import Dynamics
from ...participation import Cyclic, Participation
from .factorizations import random_encoder
from .graphs import gossip_matrices, gossip_sequences

RANDOM_ENCODERS = ("mf-shared", "mf-per-node")

NAMES = ("none", "dp-dsgd", "anti-pgd", "bsr", "d-mf", "mafalda", "mafalda-l", *RANDOM_ENCODERS)

CHEAP_NAMES = ("none", "dp-dsgd", "anti-pgd", "bsr", *RANDOM_ENCODERS)

"""Those that solve no problem."""


def build_algorithm(name: str, dynamics: Dynamics, participation: Participation, seed: int = 0) -> LinearAlgorithm:
    """An algorithm of `NAMES`; `seed` draws the random encoders."""
    T, n = participation.num_steps, dynamics.num_nodes
    if name in RANDOM_ENCODERS:
        encoder = random_encoder(np.random.default_rng(seed), T, n if name == "mf-per-node" else None)
        return algorithms.mf_dsgd(dynamics, participation, encoder, name=name)
    return algorithms.build(name, dynamics, participation)


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
