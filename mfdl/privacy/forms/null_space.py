"""View Gram in null-space form: what the unseen messages hide, for independent noise and one gossip round.

The injections are x = D^-1 W_T^-1 y with y all messages and D = diag(eta_s / m_v). The attacker knows the seen y and
its own; the unseen ones, y_h, are free. So of the whitened injections of the unknown nodes it learns everything but
the range of N = [D^-1 W_T^-1] (unknown rows, unseen columns):

    X_u = I - N_u (N^T N)^-1 N_u^T.

N^T N is block tridiagonal in time with blocks of the number of unseen nodes h, so its Cholesky factor is block
bidiagonal: T h^3 time, T h^2 memory, whatever is seen. W may vary in time. N has full column rank because W_T^-1 is
unit lower triangular. X_u <= I is explicit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from ...check import FloatArray
from ...floats import EPS
from ...view import View
from ._base import ViewForm, ViewGram
from .partly_seen import PartlySeen


class NullSpace(ViewForm):
    """The form for views, any W per step."""

    def __init__(self, part: PartlySeen) -> None:
        self.part = part

    @classmethod
    def of(cls, view: View) -> Self | None:
        part = PartlySeen.of(view)
        covered = part is not None and part.noise.fresh and part.released is None and part.rows.size > 0
        return cls(part) if part is not None and covered else None

    def cost(self, victims: Sequence[int]) -> float:
        """Four times its multiplications: its blocks are smaller than those of the range form, and slower for it."""
        T, h, v = len(self.part.scale), float(self.part.hidden.sum()), self.part.chosen(list(victims)).size
        return 4 * T * h**2 * (h + 2.0 * T * v)

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        part, T = self.part, len(self.part.scale)
        form = NullSpaceForm(part.weights, part.hidden, part.unknown, part.scale)
        X = [form.gram(int(u)) for u in part.chosen(list(victims))]
        grams = np.stack(X) if X else np.zeros((0, T, T))
        none = np.zeros(grams.shape[:2])
        return part.view_grams(list(victims), grams, none, form="null-space form", absolute=form.absolute_error())


class NullSpaceForm:
    """Factor once, then X_u of any unknown node.

    Args:
        weights: one W per step, csr (n, n); the averaging after step t uses weights[t].
        unseen: bool (n,), nodes whose messages are hidden (all of them unknown).
        unknown: bool (n,), nodes whose noise is unknown.
        scale: q = eta / m, shape (T, n).
    """

    def __init__(
        self, weights: Sequence[sp.csr_array], unseen: np.ndarray, unknown: np.ndarray, scale: FloatArray
    ) -> None:
        self.scale, self.unseen = scale, np.flatnonzero(unseen)
        self.position = np.full(unseen.size, -1)
        self.position[self.unseen] = np.arange(self.unseen.size)
        self.num_steps = T = scale.shape[0]
        known_rows = np.flatnonzero(unknown)
        self.after = [W[:, self.unseen].toarray() for W in weights[: T - 1]]  # (n, h): W_t into step t + 1
        self.diagonal: list[FloatArray] = []
        self.below: list[FloatArray] = []
        for t in range(T):
            block = np.diag(1.0 / scale[t, self.unseen] ** 2)
            if t + 1 < T:
                weighted = self.after[t][known_rows] / scale[t + 1, known_rows, None]
                block += weighted.T @ weighted
            if t > 0:
                # N^T N between columns t-1 and t meets in the rows of step t
                coupling = -self.after[t - 1][self.unseen] / scale[t, self.unseen, None] ** 2
                lower = scipy.linalg.solve_triangular(self.diagonal[t - 1], coupling.T, lower=True).T
                block -= lower @ lower.T
                self.below.append(lower)
            self.diagonal.append(np.linalg.cholesky(block))

    def gram(self, node: int) -> FloatArray:
        """X_u, shape (T, T)."""
        T, h = self.num_steps, self.unseen.size
        X = np.eye(T)
        carried = np.zeros((h, T))
        place = int(self.position[node])
        for t in range(T):
            right = np.zeros((h, T))
            if place >= 0:
                right[place, t] = 1.0 / self.scale[t, node]
            if t + 1 < T:
                right[:, t + 1] = -self.after[t][node] / self.scale[t + 1, node]
            if t > 0:
                right -= self.below[t - 1] @ carried
            carried = scipy.linalg.solve_triangular(self.diagonal[t], right, lower=True, check_finite=False)
            X -= carried.T @ carried
        return X

    def absolute_error(self) -> float:
        """First-order bound on the absolute rounding error of X (X <= I): size * eps * growth of the factor."""
        smallest = min(float(np.diagonal(d).min()) for d in self.diagonal) if self.unseen.size else 1.0
        largest = max(float(np.diagonal(d).max()) for d in self.diagonal) if self.unseen.size else 1.0
        size = self.num_steps * max(self.unseen.size, 1)
        return 8.0 * size * EPS * (largest / smallest) ** 2
