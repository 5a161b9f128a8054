"""Reversible gossip by its eigenvectors: W = D^-1/2 S D^1/2, S = U diag(lam) U^T, each mode a scalar recursion."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from ..check import FloatArray
from ..dynamics.responses import ByModes, Entries
from ._counted import Counted

MAX_MEASURE_RATIO = 1e6  # the closed form cancels: relative error about 1e-16 of max D / min D


@dataclasses.dataclass(frozen=True, eq=False)
class Modes:
    """Eigenvalues of one step's averaging and what couples the modes.

    Attributes:
        lam: eigenvalues of W^K, shape (n,).
        vectors: U, orthogonal, shape (n, n); root: sqrt(D), shape (n,), all ones for symmetric W.
    """

    counted: Counted
    lam: FloatArray
    vectors: FloatArray
    root: FloatArray

    @classmethod
    def of(cls, counted: Counted) -> Modes | None:
        """None where gossip is not constant and reversible, with D within MAX_MEASURE_RATIO."""
        gossip = counted.dynamics.gossip
        if not gossip.is_constant:
            return None
        measure = gossip.at(0).reversible_measure
        if measure is None or measure.max() > MAX_MEASURE_RATIO * measure.min():
            return None
        symmetric = bool(np.ptp(measure) <= 1e-12 * measure.max())
        root = np.ones_like(measure) if symmetric else np.sqrt(measure)
        W = counted.dynamics.step_weights(0)
        S = (sp.diags_array(root) @ W @ sp.diags_array(1 / root)).toarray()
        lam, U = scipy.linalg.eigh((S + S.T) / 2, overwrite_a=True, driver="evd")
        return cls(counted, lam, U, root)

    @property
    def averaging(self) -> ByModes:
        """The recursion of every mode at once."""
        return ByModes(self.lam)

    @property
    def entries(self) -> Entries:
        """A unit injection in every mode, as one column."""
        return np.arange(self.lam.size), np.zeros(self.lam.size, dtype=np.intp)

    @property
    def symmetric(self) -> bool:
        """W is symmetric: its eigenvectors are orthogonal."""
        return bool((self.root == 1.0).all())

    @property
    def coupling(self) -> FloatArray | None:
        """What two modes add to the counted variance together, shape (n, n); None where no two meet.

        (U^T D^-1/2 Q D^-1/2 U) * (U^T D U) entrywise: their overlap in the counted models times that of unit injections
        at all nodes. The identity for symmetric W where every node's model counts alike.
        """
        if self.symmetric and self.counted.node_factor is None:
            return None
        counted = self.counted.of_nodes(self.vectors / self.root[:, None])
        sent = self.vectors * self.root[:, None]
        return (counted.T @ counted) * (sent.T @ sent)
