"""All blocks of `adapted` at once, under one weighted sum of the nodes' constraints per class: L-BFGS on the blocks.

In: `Blocks`, a multiplier per node and class, feasible X_k to begin with. Out: better X_k for these multipliers, and
the relaxed value they reach; then the multipliers are raised where a node's own constraint is broken.
"""

from __future__ import annotations

import numpy as np

from .adapted_blocks import Blocks
from .free_entries import FreeEntries
from .lbfgs import minimise
from .problem import Array, Stopping

CHECK_EVERY = 5  # iterations between looks at the progress
FLAT = 0.02  # of the tolerance: a relative decrease below it over CHECK_EVERY iterations ends one search
KERNEL = 1e-10  # of M: smaller singular values count as zero; what that adds to the sensitivity is counted
PAIR_BYTES = 6e8  # for the pairs of L-BFGS


class Relaxation:
    """X between multipliers: L-BFGS on Y_k = D_k X_k D_k, D_k[t]^2 = omega_kc = sum_u lam_uc M_uk for t of class c.

    In Y the relaxed constraints are plain: the diagonal sum over a class and all blocks is 1, and in-class entries off
    the diagonal lie in the kernel of M (`FreeEntries`).
    """

    def __init__(self, blocks: Blocks, multipliers: Array, grams: Array) -> None:
        self.blocks, self.multipliers, self.X = blocks, multipliers, grams
        self.flat_share = FLAT
        _, s, Vt = np.linalg.svd(blocks.weights)
        self.kernel = Vt[s <= KERNEL * s[0]].T
        self._weigh()

    def _weigh(self) -> None:
        omega = self.blocks.weights.T @ self.multipliers  # (n, classes)
        self.D = np.sqrt(omega)[:, self.blocks.classes]
        # in Y the kernel is that of M diag(1 / omega_c)
        kernels = [np.linalg.qr(self.kernel * column[:, None])[0] for column in omega.T]
        self.free = FreeEntries(self.blocks.classes, kernels)

    def raise_multipliers(self) -> None:
        self.multipliers = self.multipliers * self.blocks.class_sums(self.X) ** 2
        self.multipliers /= self.multipliers.sum(axis=0)
        self._weigh()

    def improve(self, rho: float, stopping: Stopping) -> tuple[float, int, bool]:
        """Goes on from X; the relaxed value reached (for H + rho I), iterations, and whether progress had ended."""
        roots = [np.asfortranarray(D[:, None] * self.blocks.root(k, rho)) for k, D in enumerate(self.D)]
        values: list[float] = []
        share = self.flat_share * stopping.tolerance

        def flat(iteration: int, x: Array, value: float, gradient: Array) -> bool:
            values.append(value)
            return len(values) > CHECK_EVERY and values[-1 - CHECK_EVERY] <= value * (1 + share)

        left, right = self.D[:, :, None], self.D[:, None, :]
        x = self.free.vector(self.free.feasible(self.X * left * right))
        memory = max(2, min(10, int(PAIR_BYTES / (16 * x.size))))
        most = stopping.max_iterations
        minimum = minimise(
            lambda x: self.free.value_and_gradient(x, roots), x, stop=flat, max_iterations=most, memory=memory
        )
        self.X = self.free.matrices(minimum.point) / (left * right)
        return minimum.value, minimum.iterations, minimum.iterations < most
