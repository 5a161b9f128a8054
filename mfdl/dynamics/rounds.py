"""The rounds of `Dynamics` as sparse maps. The state is the models, followed by the buffers if there is momentum."""

from __future__ import annotations

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
        n = dynamics.num_nodes
        self._eye, self._zero = matrices.sparse_matrix(eye=sp.eye_array(n)), sp.csr_array((n, n))
        self._buffers = dynamics.momentum > 0
        models = sp.hstack([self._eye, self._zero]) if self._buffers else self._eye
        self.model_from_state = matrices.sparse_matrix(models=models)

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

        Args: divisors: m_u, shape (n,), of gradients and noise; default ones.
        """
        eye, zero, decay, beta = self._eye, self._zero, self.dynamics.weight_decay, self.dynamics.momentum
        kept = (1 - rate * decay) * eye if rate and decay else eye
        entering = eye if divisors is None else sp.diags_array(1 / divisors)
        injection = sp.csr_array(-rate * entering) if rate else None
        if not self._buffers:
            return RecursionMaps(sp.csr_array(kept), injection, weights)
        return RecursionMaps(
            sp.csr_array(sp.hstack([kept, -rate * beta * eye])),
            injection,
            sp.csr_array(sp.vstack([weights, zero])),
            sp.csr_array(sp.block_diag([zero, beta * eye if rate else eye])),
            sp.csr_array(sp.vstack([zero, entering])) if rate else None,
        )
