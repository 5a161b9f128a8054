"""Reversible gossip by its eigenvectors: W = D^-1/2 S D^1/2 with S = U diag(lam) U^T, and each mode a scalar recursion.

A unit injection at step s leaves lam-dependent scalars in every later model; `by_age` has them where they depend on the
age r - s alone, `by_step` for every pair of steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from ..check import FloatArray
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
    def symmetric(self) -> bool:
        """W is symmetric: its eigenvectors are orthogonal."""
        return bool((self.root == 1.0).all())

    def target(self) -> FloatArray:
        """U^T D^-1/2 Q D^-1/2 U: what a pair of modes contributes to the counted models; shape (n, n)."""
        counted = self.counted.counts(self.vectors / self.root[:, None])
        return counted.T @ counted

    def injected(self) -> FloatArray:
        """U^T D U: overlap of unit injections at all nodes; the identity for symmetric W."""
        sent = self.vectors * self.root[:, None]
        return sent.T @ sent

    @property
    def decoupled(self) -> bool:
        """No pair of modes meets: symmetric W, and every node's model counts alike."""
        return self.symmetric and self.counted.node_factor is None

    def by_age(self) -> FloatArray:
        """h[a, k]: mode k of the model counted a steps after a unit injection, at rate 1; shape (T, n)."""
        c = self.counted
        n, last = self.lam.size, self.lam if c.after_averaging else np.ones_like(self.lam)
        h = np.empty((c.num_steps, n))
        model, buffer = np.zeros(n), 1.0
        shrink = float(c.shrink[0])
        for a in range(c.num_steps):
            message = shrink * model + buffer
            h[a] = last * message
            model, buffer = self.lam * message, c.dynamics.momentum * buffer
        return h

    def by_step(self) -> Iterator[FloatArray]:
        """For r = 0..T-1: y[k, s], mode k of the model counted after step r for a unit injection at s; shape (n, T)."""
        c = self.counted
        n, T = self.lam.size, c.num_steps
        model, buffer = np.zeros((n, T)), np.zeros(T)
        for r in range(T):
            buffer *= c.dynamics.momentum
            buffer[r] = 1.0
            message = c.shrink[r] * model + c.rates[r] * buffer
            model = self.lam[:, None] * message
            yield model if c.after_averaging else message
