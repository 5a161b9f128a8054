"""Dynamics: how models move. ErrorWeights: which models count. Error Gram = f(Dynamics, ErrorWeights).

`Dynamics` is the one place where step sizes live: the executor, the accountant and the error Gram read
them here. One training step is

    theta_{t+1} = W_t (theta_t - eta_t (gradients_t + injected noise_t)).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from . import check
from .check import FloatArray
from .gossip import Gossip


@dataclasses.dataclass(frozen=True, eq=False)
class Dynamics:
    """Gossip and step size.

    Attributes:
        gossip: the averaging matrix, constant or one per step.
        learning_rate: eta > 0, the same at every step.
        gossip_rounds: K >= 1 averaging rounds per gradient step; round j of step t uses gossip.at(t K + j).
    """

    gossip: Gossip
    learning_rate: float = 1.0
    gossip_rounds: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "gossip_rounds", check.integer_at_least(1, gossip_rounds=self.gossip_rounds))
        object.__setattr__(self, "learning_rate", check.positive(learning_rate=self.learning_rate))

    @property
    def num_nodes(self) -> int:
        """n."""
        return self.gossip.num_nodes

    def step_weights(self, step: int) -> sp.csr_array:
        """The averaging of one whole step: the product of its K matrices, csr (n, n)."""
        first = step * self.gossip_rounds
        total = self.gossip.at(first).weights
        for later in range(first + 1, first + self.gossip_rounds):
            total = self.gossip.at(later).weights @ total
        return sp.csr_array(total)

    def learning_rates(self, num_steps: int) -> FloatArray:
        """eta_t for t < num_steps, shape (num_steps,)."""
        return np.full(num_steps, self.learning_rate)


@dataclasses.dataclass(frozen=True)
class ErrorWeights:
    """Which models the error counts: here every node's model at every step, alike."""

    def step_weights(self, num_steps: int) -> FloatArray:
        """Weight of the model of each step, shape (num_steps,)."""
        return np.ones(num_steps)
