"""The rounds of `Dynamics` as sparse maps. The state is the models, followed by the buffers if there is momentum."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from .. import matrices
from ..check import FloatArray
from ..gossip import GossipMatrix
from ..operators import RecursionMaps
from .dynamics import Dynamics


class PlainRounds:
    """What `dynamics` describes, round by round; gradients and noise enter by the same maps.

    Attributes: model_from_state: M, csr (n, state).
    """

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics = dynamics
        n, beta = dynamics.num_nodes, dynamics.momentum
        eye, zero = matrices.sparse_matrix(eye=sp.eye_array(n)), sp.csr_array((n, n))
        self._eye, self._buffers = eye, beta > 0
        self._both = matrices.sparse_matrix(both=sp.hstack([eye, eye]))
        models = sp.hstack([eye, zero]) if self._buffers else eye
        self.model_from_state = matrices.sparse_matrix(models=models)

        def stacked(parts: list[sp.csr_array]) -> sp.csr_array:
            return matrices.sparse_matrix(parts=sp.vstack(parts))

        self._entering = matrices.once(lambda m: eye if m is None else matrices.with_entries(eye, 1 / m))
        self._to_models = matrices.once(lambda weights: stacked([weights, zero]))
        self._to_buffers = matrices.once(lambda entering: stacked([zero, entering]))
        self._decayed = matrices.once(
            lambda step: matrices.sparse_matrix(decayed=sp.block_diag([zero, beta * eye if step else eye]))
        )

    def schedule(self, num_steps: int) -> list[tuple[int, GossipMatrix, float]]:
        """(gradient step or -1, averaging matrix, learning rate or 0) of every round: K for each step."""
        K, at = self.dynamics.gossip_rounds, self.dynamics.gossip.at
        rates = self.dynamics.learning_rates(num_steps).tolist()
        return [
            (t, at(t * K), rate) if j == 0 else (-1, at(t * K + j), 0.0)
            for t, rate in enumerate(rates)
            for j in range(K)
        ]

    def of(self, weights: sp.csr_array, rate: float, divisors: FloatArray | None = None) -> RecursionMaps:
        """A gradient step of the given rate followed by averaging; averaging alone at rate 0.

        What the rate does not change is the same object for every rate.

        Args: divisors: m_u, shape (n,), of gradients and noise; default ones.
        """
        n, decay, beta = self.dynamics.num_nodes, self.dynamics.weight_decay, self.dynamics.momentum
        kept = 1 - rate * decay
        entering = self._entering(divisors)
        injection = matrices.with_entries(entering, -rate * entering.data) if rate else None
        if not self._buffers:
            models = self._eye if kept == 1 else matrices.with_entries(self._eye, np.full(n, kept))
            return RecursionMaps(models, injection, weights)
        return RecursionMaps(
            matrices.with_entries(self._both, np.tile([kept, -rate * beta], n)),
            injection,
            self._to_models(weights),
            self._decayed(bool(rate)),
            self._to_buffers(entering) if rate else None,
        )
