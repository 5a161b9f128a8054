"""The flat index over time x nodes, and the commutation between its two orders.

Everything in the library is time-major: flat index = step * num_nodes + node, zero-based. The node-major
order (node * num_steps + step) appears only where a per-node block is wanted, and is reached by an index
array, never by multiplying with a permutation matrix. Symbols: `docs/notation.md`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from . import check

IntArray = NDArray[np.intp]


@dataclasses.dataclass(frozen=True)
class TimeNodeAxis:
    """The index set time x nodes.

    Attributes: num_steps: T >= 1; num_nodes: n >= 1.

    >>> axis = TimeNodeAxis(num_steps=2, num_nodes=3)
    >>> axis.flat(step=1, node=2)
    5
    >>> axis.node_major().tolist()
    [0, 3, 1, 4, 2, 5]
    """

    num_steps: int
    num_nodes: int

    def __post_init__(self) -> None:
        check.integer_at_least(1, num_steps=self.num_steps)
        check.integer_at_least(1, num_nodes=self.num_nodes)

    @property
    def size(self) -> int:
        """num_steps * num_nodes."""
        return self.num_steps * self.num_nodes

    def flat(self, step: int, node: int) -> int:
        """Flat index of one (step, node)."""
        return step * self.num_nodes + node

    def of_node(self, node: int) -> IntArray:
        """Flat indices of all steps of one node, shape (num_steps,), in time order."""
        return np.arange(self.num_steps, dtype=np.intp) * self.num_nodes + node

    def node_major(self) -> IntArray:
        """pi with pi[u * T + t] = t * n + u, so that `A @ commutation == A[:, pi]` and `x[pi]` is node-major."""
        flat = np.arange(self.size, dtype=np.intp)
        return flat.reshape(self.num_steps, self.num_nodes).T.ravel().copy()

    def commutation(self) -> sp.csr_array:
        """K with K[t * n + u, u * T + t] = 1: K (X (x) Y) = (Y (x) X) K for X n x n, Y T x T. For oracles."""
        columns = np.arange(self.size)
        return sp.csr_array((np.ones(self.size), (self.node_major(), columns)), shape=(self.size, self.size))
