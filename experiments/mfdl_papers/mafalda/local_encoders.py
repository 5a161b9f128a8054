"""The encoders of the systems that the paper writes as factorizations."""

from __future__ import annotations

import networkx as nx
import numpy as np

from mfdl import gossip
from mfdl.check import FloatArray
from mfdl.dynamics import Dynamics
from mfdl.factorization import factorize, square_root_encoder
from mfdl.participation import EveryStep
from mfdl.testing.oracles import prefix_sum
from mfdl.testing.strategies import random_encoder

SYSTEMS = ("dp-dsgd", "muffliato", "anti-pgd", "bsr", "mafalda", "mf-shared", "mf-per-node")


def local_encoders(system: str, graph: nx.Graph, steps: int, seed: int) -> FloatArray:
    """C_u of every node, shape (n, T, T); `seed` draws the encoders that no system fixes."""
    n = len(graph)
    rng, dynamics = np.random.default_rng(seed), Dynamics(gossip.metropolis_hastings(graph))
    if system == "mf-per-node":
        return random_encoder(rng, steps, n)
    if system == "anti-pgd":
        C = prefix_sum(steps)
    elif system == "bsr":
        C = square_root_encoder(steps)
    elif system == "mafalda":
        C = factorize(dynamics, EveryStep(steps)).encoder
    elif system == "mf-shared":
        C = random_encoder(rng, steps)
    else:
        C = np.eye(steps)
    return np.stack([C] * n)
